//! Header self-test cases for threads blocked in a read: signals and resets.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use super::PATIENCE;
use super::pair::{Pair, last, reset, words};

/// Number of signals handled.
static SIGNALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: i32) {
    SIGNALLED.fetch_add(1, Ordering::SeqCst);
}

/// Runs `act` once a thread is blocked in a read of the client; returns the result of that read.
fn while_waiting(
    pair: &mut Pair,
    act: impl FnOnce(i32, &mut TcpStream) -> Result<(), String>,
) -> Result<io::Result<usize>, String> {
    pair.client.set_read_timeout(None).map_err(words("SO_RCVTIMEO"))?;
    let tid = AtomicI32::new(0);
    let (say, hear) = mpsc::channel();
    std::thread::scope(|scope| {
        let (client, tid) = (&pair.client, &tid);
        scope.spawn(move || {
            // SAFETY: no argument.
            tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let mut buffer = [0u8; 8];
            // Not the standard library's read, which retries after a signal.
            // SAFETY: eight bytes of room.
            let got = unsafe { libc::recv(client.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            let _ = say.send(usize::try_from(got).map_err(|_| io::Error::last_os_error()));
        });
        let end = Instant::now() + PATIENCE;
        let asleep = |tid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        };
        let done = loop {
            let thread = tid.load(Ordering::SeqCst);
            if thread != 0 && asleep(thread) {
                break act(thread, &mut pair.peer);
            }
            if Instant::now() > end {
                break Err("the read did not wait".into());
            }
            std::thread::yield_now();
        };
        let got = hear.recv_timeout(PATIENCE);
        if got.is_err() {
            // Makes the thread end.
            let _ = pair.client.shutdown(Shutdown::Both);
        }
        done?;
        got.map_err(|_| "the read did not end".into())
    })
}

pub(super) fn interrupted(pair: &mut Pair) -> Result<(), String> {
    // SIGURG is ignored by default, and is not used otherwise.
    // SAFETY: a handler that only counts; the previous one is restored.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: as above.
    if unsafe { libc::sigaction(libc::SIGURG, &raw const action, &raw mut before) } != 0 {
        return Err(last("sigaction"));
    }
    let seen = SIGNALLED.load(Ordering::SeqCst);
    let got = while_waiting(pair, |tid, peer| {
        // SAFETY: a thread of this process.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGURG) };
        let end = Instant::now() + PATIENCE;
        while SIGNALLED.load(Ordering::SeqCst) == seen {
            if Instant::now() > end {
                return Err("the signal did not come".into());
            }
            std::thread::yield_now();
        }
        peer.write_all(b"on").map_err(words("the peer's write"))
    });
    // SAFETY: restores the previous handler.
    unsafe { libc::sigaction(libc::SIGURG, &raw const before, std::ptr::null_mut()) };
    match got? {
        Ok(2) => Ok(()),
        Ok(other) => Err(format!("{other} bytes")),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn reset_waiting(pair: &mut Pair) -> Result<(), String> {
    reset(&pair.peer)?;
    let spare = Pair::new().map_err(words("a connection"))?;
    match while_waiting(pair, |_, peer| {
        drop(std::mem::replace(peer, spare.peer));
        Ok(())
    })? {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(bytes) => Err(format!("{bytes} bytes")),
    }
}
