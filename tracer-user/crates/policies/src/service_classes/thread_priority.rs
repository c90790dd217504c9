//! The nice value of a thread: read with what identifies the thread, and set.

use std::fs;
use std::io;

/// Scheduling policies whose threads have a nice value.
const FAIR: [u32; 2] = [libc::SCHED_OTHER as u32, libc::SCHED_BATCH as u32];

/// What `/proc` says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStat {
    /// Its nice value.
    pub nice: i8,
    /// When it started, clock ticks since boot: with its id, this names one thread.
    pub start: u64,
    /// Process that made its process.
    pub parent: u32,
    /// Whether its policy knows nice values; those of real-time threads mean nothing.
    pub fair: bool,
}

/// Reads thread `tid` of process `tgid`. Errors: there is no such thread, or `/proc` hides it.
pub fn read(tgid: u32, tid: u32) -> io::Result<ThreadStat> {
    let stat = fs::read_to_string(format!("/proc/{tgid}/task/{tid}/stat"))?;
    parse(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected format of stat"))
}

fn parse(stat: &str) -> Option<ThreadStat> {
    // The name, in parentheses, may contain anything. The state after it is field 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3);
    let policy: u32 = field(41)?.parse().ok()?;
    Some(ThreadStat {
        nice: field(19)?.parse().ok()?,
        start: field(22)?.parse().ok()?,
        parent: field(4)?.parse().ok()?,
        fair: FAIR.contains(&policy),
    })
}

/// Sets the nice value of a thread.
pub fn set(tid: u32, nice: i8) -> io::Result<()> {
    // SAFETY: a plain system call. For this call "process" means one thread, whichever process it is of.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, i32::from(nice)) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Threads of a process.
pub fn threads(tgid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{tgid}/task"))
}

/// Every process.
pub fn processes() -> Vec<u32> {
    numbers("/proc")
}

/// Most entries read of a directory.
const ENTRIES: usize = 65_536;

fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(ENTRIES);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Number of `CAP_SYS_NICE`.
const CAP_SYS_NICE: u32 = 23;
/// Inode of the first process-id namespace (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Why this process cannot change priorities and restore them; `None` if it can.
pub fn obstacle() -> Option<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !has_capability(&status, CAP_SYS_NICE) {
        // Lowering a priority needs none, but raising it again does.
        return Some("CAP_SYS_NICE is missing: a priority that was lowered could not be restored");
    }
    // Records name threads by their ids in the first namespace.
    let own = fs::read_link("/proc/self/ns/pid").ok();
    if own.is_none_or(|own| own.as_os_str() != FIRST_NAMESPACE) {
        return Some("the agent runs in a process-id namespace of its own: thread ids mean other threads there");
    }
    None
}

fn has_capability(status: &str, number: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    bits & (1 << number) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_thread_is_read_and_set() {
        let tid = tracer_host::guard::self_process::thread_id();
        std::thread::spawn(|| {
            let tid = tracer_host::guard::self_process::thread_id();
            let before = read(std::process::id(), tid).unwrap();
            assert!(before.fair && before.start > 0);
            set(tid, before.nice + 1).unwrap();
            assert_eq!(read(std::process::id(), tid).unwrap(), ThreadStat { nice: before.nice + 1, ..before });
        })
        .join()
        .unwrap();
        assert!(threads(std::process::id()).contains(&tid));
        assert!(processes().contains(&std::process::id()));
        // A thread of this process is none of another.
        assert!(read(1, tid).is_err());
    }

    #[test]
    fn fields_are_counted_from_the_name() {
        let text = "12 (a) (b c) S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 -3 1 0 4711 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 0 1 2 0";
        let stat = parse(text).unwrap();
        assert_eq!((stat.parent, stat.nice, stat.start, stat.fair), (7, -3, 4711, false));
        assert_eq!(parse("12 (a) S 7"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn capabilities_are_bits() {
        let status = |bits: &str| format!("Name:\ttracer\nCapEff:\t{bits}\nCapBnd:\t0\n");
        assert!(has_capability(&status("0000000000800000"), CAP_SYS_NICE));
        assert!(!has_capability(&status("ffffffffff7fffff"), CAP_SYS_NICE));
        assert!(!has_capability("", CAP_SYS_NICE));
    }
}
