//! Which BPF programs the kernel holds.

use std::collections::BTreeSet;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// `BPF_PROG_GET_NEXT_ID` of `bpf(2)`.
const PROG_GET_NEXT_ID: libc::c_long = 11;

#[repr(C)]
#[derive(Default)]
struct NextId {
    start: u32,
    next: u32,
    flags: u32,
}

/// Ids of every program loaded now, by any process.
pub fn programs() -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let mut attributes = NextId::default();
    loop {
        // SAFETY: the kernel reads and writes as many bytes as given, of a structure that outlives the call.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, PROG_GET_NEXT_ID, &raw mut attributes, size_of::<NextId>()) };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "BPF_PROG_GET_NEXT_ID: {error}");
            return ids;
        }
        ids.insert(attributes.next);
        attributes.start = attributes.next;
    }
}

/// Commands of `bpf(2)` that return the next id after the given one, of a program, map or link.
const NEXT_ID: [(&str, libc::c_long); 3] = [("prog_id", 11), ("map_id", 12), ("link_id", 31)];

/// Programs, maps and links, by kind and id.
pub type Objects = BTreeSet<(&'static str, u32)>;

/// The objects process `pid` holds now, by its open descriptors. Empty if the process is gone.
///
/// Compares only a process's own ids, so that other processes loading programs meanwhile do not disturb the result.
pub fn held(pid: u32) -> Objects {
    let mut objects = Objects::new();
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return objects };
    for entry in entries.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let kind = NEXT_ID.iter().find(|(kind, _)| *kind == key);
            if let (Some((kind, _)), Ok(id)) = (kind, value.trim().parse()) {
                objects.insert((kind, id));
            }
        }
    }
    objects
}

/// Which of `objects` the kernel still has.
pub fn remaining(objects: &Objects) -> Objects {
    objects.iter().copied().filter(|object| exists(*object)).collect()
}

/// Uses the list of ids instead of opening one: the kernel empties an array of programs each time its last descriptor
/// is closed, and loses count of it if that happens twice before it gets round to it (`prog_array_map_clear`).
fn exists((kind, id): (&str, u32)) -> bool {
    let command = NEXT_ID.iter().find(|(known, _)| *known == kind).map(|(_, command)| *command);
    let mut attributes = NextId { start: id.saturating_sub(1), ..NextId::default() };
    // SAFETY: the kernel reads and writes as many bytes as given, of a structure that outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command.unwrap_or(-1), &raw mut attributes, size_of::<NextId>()) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{kind} {id}: {error}");
        return false;
    }
    attributes.next == id
}

/// Waits until the kernel has freed all of `objects`, which it does after grace periods of its own; returns how many
/// are left after half a minute: on a full machine grace periods can take more than ten seconds.
pub fn left(objects: &Objects) -> usize {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let left = remaining(objects).len();
        if left == 0 || Instant::now() > end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Number of links and clock events a process holds: they keep programs attached.
pub fn links(pid: u32) -> usize {
    let held = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    held.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| {
            matches!(target.to_str(), Some("anon_inode:bpf_link" | "anon_inode:[perf_event]" | "anon_inode:bpf-link"))
        })
        .count()
}

/// `BPF_ENABLE_STATS` of `bpf(2)`.
const ENABLE_STATS: libc::c_long = 32;

/// Has the kernel count runs and run time of all programs while the descriptor is open.
pub fn statistics() -> OwnedFd {
    // All zero: BPF_STATS_RUN_TIME.
    let attributes = [0u32; 4];
    // SAFETY: the kernel reads as many bytes as given, of an array that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, ENABLE_STATS, attributes.as_ptr(), size_of_val(&attributes)) };
    assert!(fd >= 0, "BPF_ENABLE_STATS: {}", std::io::Error::last_os_error());
    // SAFETY: just opened and owned by nothing else.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}
