//! The rings that carry the agent's records, as another process sees them: whether anything is left in them once they are
//! read. The kernel side takes a word that is not zero for a record, so bytes of an earlier one would be read as another.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use tracer_common::ring::{CONSUMED, DATA, RESERVED, Shape};

use crate::{bpf, wait};

/// `BPF_MAP_GET_FD_BY_ID` and `BPF_OBJ_GET_INFO_BY_FD` of `bpf(2)`.
const MAP_GET_FD_BY_ID: libc::c_long = 14;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// The front of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    name: [u8; 16],
}

fn open(id: u32) -> Option<OwnedFd> {
    let attributes = [id, 0, 0];
    // SAFETY: the kernel reads as many bytes as given, of an array that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, MAP_GET_FD_BY_ID, attributes.as_ptr(), size_of_val(&attributes)) };
    // SAFETY: a new descriptor of this process.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn info(map: &OwnedFd) -> MapInfo {
    let mut found = MapInfo::default();
    let (fd, size) = (map.as_raw_fd() as u32, size_of::<MapInfo>() as u32);
    let at = (&raw mut found) as u64;
    let attributes = [fd, size, at as u32, (at >> 32) as u32];
    // SAFETY: the kernel writes at most `size` bytes to `found`.
    unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, attributes.as_ptr(), size_of_val(&attributes)) };
    found
}

/// The memory of the agent's rings, mapped for reading.
#[derive(Debug)]
struct Mapped {
    at: *mut libc::c_void,
    len: usize,
    shape: Shape,
}

impl Mapped {
    fn of(pid: u32) -> Self {
        let maps: BTreeSet<u32> =
            bpf::held(pid).into_iter().filter(|(kind, _)| *kind == "map_id").map(|(_, id)| id).collect();
        let rings = maps.into_iter().filter_map(open).map(|map| (info(&map), map));
        let (found, map) = rings
            .into_iter()
            .find(|(found, _)| found.name.starts_with(b"RINGS\0"))
            .unwrap_or_else(|| panic!("process {pid} holds no map of rings"));
        let shapes = [1, 2, 4, 8, 16, 32, 64].map(Shape::of);
        let shape = shapes.into_iter().find(|shape| shape.rings == found.entries).expect("as many rings as a host has");
        assert_eq!(shape.element(), found.value as usize, "the rings' layout");
        let len = (shape.element() * shape.rings as usize).next_multiple_of(4096);
        // SAFETY: a new mapping, for reading.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "the rings: {}", std::io::Error::last_os_error());
        Self { at, len, shape }
    }

    fn word(&self, ring: usize, offset: usize) -> u64 {
        // SAFETY: a word of the mapping; elements and offsets are multiples of a word.
        unsafe { self.at.cast::<u64>().add((ring * self.shape.element() + offset) / 8).read_volatile() }
    }

    /// Where the ring has a byte that is not zero; `None` while it has records.
    fn stale(&self, ring: usize) -> Option<Vec<usize>> {
        let passed = self.word(ring, RESERVED);
        if self.word(ring, CONSUMED) != passed {
            return None;
        }
        let offsets = (DATA..self.shape.element() - 7).step_by(8);
        let found = offsets.filter(|offset| self.word(ring, *offset) != 0).take(8).collect();
        (self.word(ring, RESERVED) == passed).then_some(found)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Waits until each ring of the agent `pid` is read, and asserts that nothing is left in it; returns how many bytes passed
/// through them.
pub fn nothing_is_left(pid: u32) -> u64 {
    let mapped = Mapped::of(pid);
    let mut passed = 0;
    for ring in 0..mapped.shape.rings as usize {
        let stale = wait("a ring without records", Duration::from_secs(30), || mapped.stale(ring));
        assert_eq!(stale, [0_usize; 0], "ring {ring} has bytes of earlier records at these offsets");
        passed += mapped.word(ring, RESERVED);
    }
    passed
}
