//! Which BPF programs the kernel holds.

use std::collections::BTreeSet;

/// `BPF_PROG_GET_NEXT_ID` of `bpf(2)`.
const PROG_GET_NEXT_ID: libc::c_long = 11;

#[repr(C)]
#[derive(Default)]
struct NextId {
    start: u32,
    next: u32,
    flags: u32,
}

/// Ids of every program loaded now, by whomever.
pub fn programs() -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let mut attributes = NextId::default();
    loop {
        // SAFETY: the kernel reads and writes as many bytes as it is told, of a structure that lives on.
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

/// Links and clock events a process holds: what keeps programs attached.
pub fn links(pid: u32) -> usize {
    let held = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    held.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| {
            matches!(target.to_str(), Some("anon_inode:bpf_link" | "anon_inode:[perf_event]" | "anon_inode:bpf-link"))
        })
        .count()
}
