//! A control group with a memory limit, in whichever hierarchy this machine has.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group of its own; removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    dir: PathBuf,
    limit: PathBuf,
    events: PathBuf,
}

impl MemoryGroup {
    /// Makes one that allows `bytes`; returns why not, if this machine refuses.
    pub fn new(bytes: u64) -> Result<Self, String> {
        // The old hierarchy of the memory controller, then the unified one.
        let name = format!("tracer-tests-{}", std::process::id());
        let hierarchies = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
            ("/sys/fs/cgroup", "memory.max", "memory.events"),
        ];
        let mut why = Vec::new();
        for (root, limit, events) in hierarchies {
            if !Path::new(root).join("cgroup.procs").exists() {
                why.push(format!("{root} is no control group"));
                continue;
            }
            let dir = Path::new(root).join(&name);
            if let Err(error) = fs::create_dir_all(&dir) {
                why.push(format!("{}: {error}", dir.display()));
                continue;
            }
            let group = Self { limit: dir.join(limit), events: dir.join(events), dir };
            match fs::write(&group.limit, bytes.to_string()) {
                Ok(()) => return Ok(group),
                Err(error) => why.push(format!("{}: {error}", group.limit.display())),
            }
        }
        Err(why.join("; "))
    }

    /// Changes the limit. The old hierarchy refuses a limit below the memory it cannot free, and kills no process for
    /// it: then use the smallest limit it accepts, which the next needed page exceeds.
    pub fn limit(&self, bytes: u64) {
        let mut bytes = bytes;
        while fs::write(&self.limit, bytes.to_string()).is_err() {
            bytes += 1 << 20;
            assert!(bytes < 1 << 40, "{} takes no limit", self.limit.display());
        }
    }

    /// The file a process writes its id to in order to enter.
    pub fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Processes that the kernel killed because the limit was reached.
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(&self.events).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Killed processes may not be reaped yet.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while fs::remove_dir(&self.dir).is_err() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
