//! Signals: SIGINT and SIGTERM end the agent, SIGHUP has the configuration read again.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tracer_host::guard::status::Status;

use super::reloading::ReloadRequests;

/// Whether this process has a terminal that is still there.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Whether SIGHUP is ignored, as `nohup` has it.
fn is_hangup_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the current one to `action`, which is valid for it.
    let done = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroes are a valid value, and the call wrote a whole one if it succeeded.
    done == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Follows signals. `interrupted` is set by SIGINT: whoever pressed Ctrl-C wants the summary. Without a configuration there
/// are no `requests` to read it again.
pub(super) fn watch(
    runtime: &tokio::runtime::Runtime,
    status: &Arc<Status>,
    interrupted: &Arc<AtomicBool>,
    requests: Option<ReloadRequests>,
) {
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (status, interrupted) = (Arc::clone(status), Arc::clone(interrupted));
        runtime.spawn(async move {
            if let Ok(mut signals) = signal(kind) {
                signals.recv().await;
                interrupted.fetch_or(kind == SignalKind::interrupt(), Ordering::Relaxed);
                status.stop();
            }
        });
    }
    // An agent in the foreground ends with its terminal, which sends the same signal as somebody who wants a reload.
    let ends_with_terminal = has_terminal() && !is_hangup_ignored();
    let status = Arc::clone(status);
    let _inside = runtime.enter();
    // Before anything else is done: without a handler the signal ends the process.
    let Ok(mut signals) =
        signal(SignalKind::hangup()).inspect_err(|error| log::warn!("SIGHUP cannot be handled: {error}"))
    else {
        return;
    };
    runtime.spawn(async move {
        while signals.recv().await.is_some() {
            if ends_with_terminal && !has_terminal() {
                status.stop();
                return;
            }
            match &requests {
                Some(requests) => requests.ask(),
                None => log::warn!("SIGHUP: there is nothing to read again without --config"),
            }
        }
    });
}
