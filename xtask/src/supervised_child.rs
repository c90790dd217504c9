//! Processes that end with us, even if we are killed, even if they are root's and we are not.
//!
//! A small shell starts each and reads from a pipe we hold. When we drop it, or die, the read ends and the shell
//! terminates its child. We could not signal a process of root's, and could not send one if we were killed.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell::Root;

/// `$@` is the program. It gets SIGTERM, and SIGKILL five seconds later. The shell ends when both its child and the
/// watcher have, so that no process of ours outlives it.
const SCRIPT: &str = r#"
trap '' INT
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
(
    trap 'exit 0' TERM
    read -r _ <&3
    kill -TERM "$child"
    n=0
    while [ $n -lt 50 ] && kill -0 "$child"; do sleep 0.1; n=$((n + 1)); done
    kill -KILL "$child"
) >/dev/null 2>&1 &
watcher=$!
wait "$child"
code=$?
kill "$watcher" 2>/dev/null
wait "$watcher"
exit $code
"#;

/// A supervised process; dropping it ends the process and waits for its end.
pub(crate) struct SupervisedChild {
    name: String,
    child: Child,
    /// Our end of the pipe; the process lives while it is open.
    held: Option<ChildStdin>,
}

impl SupervisedChild {
    /// Starts `program`; its output goes to `log`.
    pub(crate) fn start(
        root: Root,
        program: &Path,
        args: &[impl AsRef<OsStr>],
        env: &[(&str, &str)],
        log: &Path,
    ) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot create {}", log.display()))?;
        let errors = file.try_clone().with_context(|| format!("cannot open {} twice", log.display()))?;
        let mut command = root.command("sh");
        command.args(["-c", SCRIPT, "supervisor"]).arg(program).args(args);
        for (key, value) in env {
            command.env(key, value);
        }
        if root == Root::Already {
            // Ctrl-C is for us; we stop the others in order. (A sudo taken out of the foreground could not use the
            // terminal; there the shell ignores the signal.)
            command.process_group(0);
        }
        command.stdin(Stdio::piped()).stdout(file).stderr(errors);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let held = child.stdin.take();
        Ok(Self { name, child, held })
    }

    /// The process's id; waits until the shell has started it. Not usable behind sudo.
    pub(crate) fn pid(&self) -> Result<i32> {
        let shell = self.child.id();
        let children = format!("/proc/{shell}/task/{shell}/children");
        for _ in 0..1000 {
            let text = fs::read_to_string(&children).with_context(|| format!("{} has ended", self.name))?;
            // In start order: the program, then the watcher.
            if let Some(pid) = text.split_whitespace().next() {
                return pid.parse().context("the kernel lists a process without a number");
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("{} was not started", self.name)
    }

    /// How the process ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Ends the process (SIGTERM) and waits for it.
    pub(crate) fn end(mut self) -> Result<ExitStatus> {
        self.held = None;
        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))
    }
}

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        self.held = None;
        // Bounded: the shell kills after five seconds.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn lives(pid: &str) -> bool {
        Path::new("/proc").join(pid).exists()
    }

    fn start(script: &str, dir: &Path) -> (SupervisedChild, String) {
        let log = dir.join("log");
        let child =
            SupervisedChild::start(Root::Already, Path::new("/bin/sh"), &["-c", script], &[], &log).expect("sh");
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let text = fs::read_to_string(&log).expect("log");
            if let Some(pid) = text.strip_suffix('\n') {
                return (child, pid.to_owned());
            }
            assert!(Instant::now() < until, "nothing printed");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_process_ends_with_its_supervisor() {
        let dir = tempfile::tempdir().expect("dir");
        let (child, pid) = start("echo $$; exec sleep 1000", dir.path());
        assert!(lives(&pid));
        assert_eq!(child.pid().expect("number").to_string(), pid);
        let status = child.end().expect("wait");
        assert_eq!(status.code(), Some(128 + libc::SIGTERM));
        assert!(!lives(&pid));
    }

    #[test]
    fn the_supervisor_ends_with_the_process() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut child, _) = start("echo $$; exit 77", dir.path());
        let until = Instant::now() + Duration::from_secs(10);
        while child.ended().expect("wait").is_none() {
            assert!(Instant::now() < until, "still there");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(child.ended().expect("wait").and_then(|s| s.code()), Some(77));
    }
}
