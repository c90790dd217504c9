//! Cores and priorities of threads, and the CPU that processes used.

use std::fs;
use std::io::Error;

use anyhow::{Context, Result};

/// Priority of load and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Real time: the measurement must not attribute other work on this machine to the agent.
    Realtime,
    /// Normal priority: the agent competes as in production.
    Usual,
}

/// The servers' core.
pub(super) const SERVER: usize = 0;

/// The loads' core: the last one.
pub(super) fn load_core() -> usize {
    cores() - 1
}

/// Cores available to this process.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Makes a thread urgent and pins it. 0 is the calling one.
pub(super) fn place(tid: i32, urgency: Urgency, core: Option<usize>) -> Result<()> {
    let (policy, priority) = match urgency {
        Urgency::Realtime => (libc::SCHED_RR, 1),
        Urgency::Usual => (libc::SCHED_OTHER, 0),
    };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: plain values, valid for the call.
    if unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) } != 0 {
        return Err(Error::last_os_error()).context("cannot set a priority");
    }
    if let Some(core) = core {
        // SAFETY: a set of zeroes is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `core` is one of this machine's, and the set holds at least 1024.
        unsafe { libc::CPU_SET(core, &mut set) };
        // SAFETY: the set is of the size given.
        if unsafe { libc::sched_setaffinity(tid, size_of_val(&set), &raw const set) } != 0 {
            return Err(Error::last_os_error()).context("cannot pin a thread");
        }
    }
    Ok(())
}

/// The same for every thread of these processes; skips threads that ended meanwhile.
pub(super) fn place_processes(pids: &[i32], urgency: Urgency, core: Option<usize>) -> Result<()> {
    for pid in pids {
        for entry in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))? {
            let Some(tid) = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok()) else { continue };
            let placed = place(tid, urgency, core);
            if fs::exists(format!("/proc/{tid}")).unwrap_or(true) {
                placed?;
            }
        }
    }
    Ok(())
}

/// A process and all its descendants.
pub(super) fn tree(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    all
}

/// CPU a process used, ended threads included, nanoseconds.
pub(super) fn process_cpu(pid: i32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: `clock` is valid for the call.
    let refused = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    if refused != 0 || unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(Error::last_os_error()).with_context(|| format!("process {pid} is gone"));
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU the calling thread used, nanoseconds.
pub(super) fn thread_cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU of a process's ended and waited-for children, nanoseconds, in the kernel's ticks of 10 ms.
pub(super) fn ended_children_cpu(pid: i32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    children_ticks(&stat).map(|ticks| ticks * 10_000_000).context("/proc/PID/stat is not as it should be")
}

fn children_ticks(stat: &str) -> Option<u64> {
    // The name may contain anything, so count fields from its end. The first one there is the manual's third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(field(16)? + field(17)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_children() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 70 800 20 0 12 0 900 4096000 55 0";
        assert_eq!(children_ticks(stat), Some(870));
        assert_eq!(children_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_process_has_used_cpu_and_is_in_its_tree() {
        let own = std::process::id() as i32;
        assert!(process_cpu(own).expect("own clock") > 0 && thread_cpu() > 0);
        assert!(tree(own).contains(&own));
        // Above the largest possible process id (4194304).
        assert!(process_cpu(5_000_000).is_err());
    }
}
