//! Programs under test: each in its own process group that dies with the test, however that ends.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// Kills the registered groups when its input ends, that is, when this process dies for any reason.
const WARDEN: &str = r#"
list=" "
while read -r op group; do
  case $op in
    +) list="$list$group " ;;
    -) list="${list%% $group *} ${list#* $group }" ;;
  esac
done
for group in $list; do kill -9 -- "-$group" 2>/dev/null; done
"#;

static WARDEN_INPUT: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    let mut command = Command::new("sh");
    command.args(["-c", WARDEN]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    // It outlives us to clean up; no process is left to wait for it then.
    #[expect(clippy::zombie_processes, reason = "outlives this process on purpose")]
    let child = command.spawn().unwrap_or_else(|error| panic!("sh: {error}"));
    Mutex::new(child.stdin.unwrap_or_else(|| panic!("sh has no input")))
});

fn warden(op: char, group: u32) {
    let mut input = WARDEN_INPUT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Without the warden nothing guards the groups; the test itself still cleans up.
    let _ = writeln!(input, "{op} {group}");
}

/// A running program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    /// Its start in the log: an earlier process may have written there.
    from: u64,
    done: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`; its output goes to `log`, which is shown if the test fails.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Self {
        let open = || OpenOptions::new().create(true).append(true).open(log);
        let from = std::fs::metadata(log).map_or(0, |about| about.len());
        let out: File = open().unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let err: File = open().unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        // SAFETY: prctl is a plain system call: it allocates nothing and takes no lock between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        warden('+', child.id());
        Self { child, name: name.into(), log: log.into(), from, done: None }
    }

    /// Process id, and id of its group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is ours and not yet reaped, so the id still belongs to it.
        let sent = unsafe { libc::kill(self.pid() as i32, signal) };
        assert_eq!(sent, 0, "signal {signal} to {}", self.name);
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.done.is_none() {
            self.done = self.child.try_wait().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        }
        self.done
    }

    /// Waits for its end; panics after `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < end, "{} still runs after {limit:?}:\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its output on both streams so far.
    pub fn output(&self) -> String {
        let all = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(all.get(self.from as usize..).unwrap_or_default()).into_owned()
    }

    /// Waits for a line that begins with `word` and returns the rest of it.
    pub fn line(&mut self, word: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        loop {
            let output = self.output();
            let complete = output.rfind('\n').map_or("", |at| output.get(..at).unwrap_or_default());
            if let Some(rest) = complete.lines().find_map(|line| line.strip_prefix(word)) {
                return rest.trim().to_owned();
            }
            let ended = self.ended();
            assert!(ended.is_none(), "{} ended ({ended:?}) before it wrote {word}:\n{output}", self.name);
            assert!(Instant::now() < end, "{} did not write {word} in {limit:?}:\n{output}", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = self.pid() as i32;
        // SAFETY: a plain system call. The leader is reaped only below, or its group has no member left.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        let _ = self.child.wait();
        warden('-', self.pid());
        if std::thread::panicking() {
            let output = self.output();
            let from = output.len().saturating_sub(4000);
            let tail = output.get(from..).map_or_else(|| output.clone(), str::to_owned);
            crate::say(&format!("--- output of {}:\n{tail}---", self.name));
        }
    }
}

/// The fields of `/proc/PID/stat` after the name; empty if the process is gone.
fn stat(pid: u32) -> Vec<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = text.rsplit_once(") ").map_or("", |(_, after)| after);
    after.split(' ').skip(1).map(|word| word.trim().parse().unwrap_or(0)).collect()
}

/// A process and all below it.
pub fn descendants(root: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u64)> = pids.filter_map(|pid| Some((pid, *stat(pid).first()?))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, above)| *above == u64::from(parent)).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

/// CPU that these processes have used, seconds.
pub fn cpu_s(pids: &[u32]) -> f64 {
    // User and system time, in hundredths.
    let of = |pid: &u32| stat(*pid).get(10..12).map_or(0, |times| times.iter().sum());
    pids.iter().map(of).sum::<u64>() as f64 / 100.0
}

/// Seconds that the main threads of these processes were on the CPU, exactly, as the scheduler counts.
pub fn scheduled_s(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0)
    };
    pids.iter().map(of).sum::<u64>() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_die_with_their_owner_and_their_output_is_kept() {
        let dir = crate::scratch();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & echo CHILD $!; echo READY; wait"]);
        let mut process = Process::start("sh", &mut command, &dir.path().join("log"));
        process.line("READY", Duration::from_secs(10));
        let child = process.line("CHILD", Duration::from_secs(10));
        assert!(Path::new("/proc").join(&child).exists());
        assert!(descendants(process.pid()).iter().any(|pid| pid.to_string() == child));
        drop(process);
        // Must not read the first process's lines from the same log.
        let mut other =
            Process::start("sh", Command::new("sh").args(["-c", "echo READY again"]), &dir.path().join("log"));
        assert_eq!(other.line("READY", Duration::from_secs(10)), "again");
        crate::wait("the grandchild's end", Duration::from_secs(10), || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z")).then_some(())
        });
    }
}
