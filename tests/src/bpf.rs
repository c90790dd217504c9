//! Which BPF programs the kernel holds.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
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

/// Commands of `bpf(2)` on maps and pins.
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const MAP_NEXT_KEY: libc::c_long = 4;
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;

fn bpf<const N: usize>(command: libc::c_long, attributes: &[u64; N]) -> std::io::Result<i32> {
    // SAFETY: the kernel reads as many bytes as given; what the attributes point to outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// A map of 8-byte keys and values of `N` bytes, by its pin.
#[derive(Debug)]
pub struct PinnedMap<const N: usize>(OwnedFd);

impl<const N: usize> PinnedMap<N> {
    /// Opens it as any other program does.
    pub fn open(path: &std::path::Path) -> std::io::Result<Self> {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
        let fd = bpf(OBJ_GET, &[path.as_ptr() as u64, 0])?;
        // SAFETY: just opened and owned by nothing else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes a map of this type (`BPF_MAP_TYPE_…`) and pins it.
    pub fn create(kind: u32, path: &std::path::Path) -> std::io::Result<Self> {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
        // Type and size of keys; size of values and number of elements.
        let fd = bpf(MAP_CREATE, &[u64::from(kind) | 8 << 32, N as u64 | 64 << 32])?;
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        bpf(OBJ_PIN, &[path.as_ptr() as u64, fd.as_raw_fd() as u64])?;
        Ok(Self(fd))
    }

    /// Writes an element.
    pub fn write(&self, key: u64, value: [u8; N]) -> std::io::Result<()> {
        bpf(MAP_UPDATE, &[self.0.as_raw_fd() as u64, &raw const key as u64, value.as_ptr() as u64, 0]).map(|_| ())
    }

    /// Its elements now.
    pub fn entries(&self) -> Vec<(u64, [u8; N])> {
        let (fd, mut found) = (self.0.as_raw_fd() as u64, Vec::new());
        let (mut at, mut next) = (None::<u64>, 0u64);
        while bpf(MAP_NEXT_KEY, &[fd, at.as_ref().map_or(0, |key| &raw const *key as u64), &raw mut next as u64])
            .is_ok()
        {
            let mut value = [0; N];
            if bpf(MAP_LOOKUP, &[fd, &raw const next as u64, value.as_mut_ptr() as u64, 0]).is_ok() {
                found.push((next, value));
            }
            at = Some(next);
        }
        found
    }
}
