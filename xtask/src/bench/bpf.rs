//! The parts of bpf(2) that measuring needs: loading and attaching an empty program, and reading what programs cost.

use std::ffi::CString;
use std::fs;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result, bail};

// include/uapi/linux/bpf.h: commands.
const PROG_LOAD: libc::c_long = 5;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const LINK_CREATE: libc::c_long = 28;
const ENABLE_STATS: libc::c_long = 32;
// Program types.
const KPROBE: u32 = 2;
const PERF_EVENT: u32 = 7;
const TRACING: u32 = 26;
// include/uapi/linux/perf_event.h.
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
const IOC_ENABLE: libc::c_ulong = 0x2400;
/// An attach type: uprobes, several by one link.
const UPROBE_MULTI: u32 = 48;
/// Its flag: at returns.
const UPROBE_MULTI_RETURN: u32 = 1;

/// Where a tracing program is attached (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A tracepoint, by BTF.
    Tracepoint,
    /// The beginning of a function.
    Entry,
    /// The end of a function.
    Exit,
}

impl Place {
    fn attach_type(self) -> u32 {
        match self {
            Self::Tracepoint => 23,
            Self::Entry => 24,
            Self::Exit => 25,
        }
    }
}

/// `union bpf_attr`, as bytes: its layout differs by command.
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Self {
        Self([0; 128])
    }

    fn with(mut self, offset: usize, value: &[u8]) -> Self {
        if let Some(to) = self.0.get_mut(offset..offset + value.len()) {
            to.copy_from_slice(value);
        }
        self
    }

    fn word(self, offset: usize, value: u32) -> Self {
        self.with(offset, &value.to_ne_bytes())
    }

    fn long(self, offset: usize, value: u64) -> Self {
        self.with(offset, &value.to_ne_bytes())
    }

    /// A call whose result is a descriptor.
    fn open(&self, command: libc::c_long) -> Result<OwnedFd, Error> {
        // SAFETY: the kernel reads at most the given length; addresses in it point to buffers the callers hold.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), self.0.len()) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }
}

/// Loads `r0 = 0; exit`.
fn load_empty(kind: u32, attach_type: u32, btf_id: u32) -> Result<OwnedFd> {
    // struct bpf_insn: code, registers, offset, immediate.
    const PROGRAM: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];
    let license = CString::new("GPL").unwrap_or_default();
    let attr = Attr::new()
        .word(0, kind)
        .word(4, PROGRAM.len() as u32)
        .long(8, PROGRAM.as_ptr() as u64)
        .long(16, license.as_ptr() as u64)
        .with(48, b"bench_floor")
        .word(68, attach_type)
        .word(108, btf_id);
    attr.open(PROG_LOAD).context("the kernel refused an empty program")
}

/// Attaches an empty program; it stays as long as both descriptors do.
pub(super) fn attach_empty(place: Place, btf_id: u32) -> Result<[OwnedFd; 2]> {
    let program = load_empty(TRACING, place.attach_type(), btf_id)?;
    let link = Attr::new().word(8, program.as_raw_fd() as u32).open(RAW_TRACEPOINT_OPEN);
    Ok([program, link.context("the kernel refused to attach an empty program")?])
}

/// Uprobes of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UprobeLink {
    path: String,
    offsets: Vec<u64>,
    /// Whether they stand at returns.
    returns: bool,
}

impl UprobeLink {
    /// From what the kernel says of a link's descriptor; `None` if it is no such link, or the kernel does not list its places.
    fn parse(fdinfo: &str) -> Option<Self> {
        let field = |name: &str| fdinfo.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let returns = match field("link_type:")? {
            "uprobe_multi" => false,
            "uretprobe_multi" => true,
            _ => return None,
        };
        // Cookie, offset, place of a counter.
        let offset = |line: &str| {
            let offset = line.split_whitespace().nth(1)?.strip_prefix("0x")?;
            u64::from_str_radix(offset, 16).ok()
        };
        let offsets = fdinfo.lines().skip_while(|line| !line.starts_with("cookie")).skip(1).map_while(offset).collect();
        Some(Self { path: field("path:")?.to_owned(), offsets, returns })
    }

    /// Those that a process holds.
    pub(super) fn held_by(pid: i32) -> Result<Vec<Self>> {
        let texts = fdinfo(pid)?;
        Ok(texts.iter().filter_map(|text| Self::parse(text)).filter(|probes| !probes.offsets.is_empty()).collect())
    }

    /// Attaches an empty program to them; it stays as long as both descriptors do.
    pub(super) fn attach_empty(&self) -> Result<[OwnedFd; 2]> {
        let program = load_empty(KPROBE, UPROBE_MULTI, 0)?;
        let path = CString::new(self.path.as_str()).context("a path with a zero byte")?;
        let link = Attr::new()
            .word(0, program.as_raw_fd() as u32)
            .word(8, UPROBE_MULTI)
            .long(16, path.as_ptr() as u64)
            .long(24, self.offsets.as_ptr() as u64)
            .word(48, self.offsets.len() as u32)
            .word(52, if self.returns { UPROBE_MULTI_RETURN } else { 0 })
            .open(LINK_CREATE);
        Ok([program, link.with_context(|| format!("the kernel refused empty probes in {}", self.path))?])
    }
}

/// Samples every CPU this many times a second with an empty program.
pub(super) fn sample_empty(hertz: u32, cpus: usize) -> Result<Vec<OwnedFd>> {
    let program = load_empty(PERF_EVENT, 0, 0)?;
    let mut held = Vec::new();
    for cpu in 0..cpus {
        // struct perf_event_attr, first version: PERF_TYPE_SOFTWARE, its size, PERF_COUNT_SW_CPU_CLOCK, frequency;
        // flags: `freq`.
        let attr = Attr::new().word(0, 1).word(4, 64).long(8, 0).long(16, u64::from(hertz)).long(40, 1 << 10);
        // SAFETY: the attributes are of the size they say.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.0.as_ptr(), -1, cpu as i32, -1, 8) };
        if fd < 0 {
            return Err(Error::last_os_error()).context("no sampling clock");
        }
        // SAFETY: a new descriptor that nothing else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // SAFETY: both take an integer.
        let done = unsafe {
            libc::ioctl(event.as_raw_fd(), IOC_SET_BPF, program.as_raw_fd()) == 0
                && libc::ioctl(event.as_raw_fd(), IOC_ENABLE, 0) == 0
        };
        if !done {
            return Err(Error::last_os_error()).context("the sampling clock takes no program");
        }
        held.push(event);
    }
    held.push(program);
    Ok(held)
}

/// Turns run-time statistics on while the descriptor lives: they go off even if this process is killed.
pub(super) fn statistics() -> Result<OwnedFd> {
    // All zero: BPF_STATS_RUN_TIME.
    Attr::new().open(ENABLE_STATS).context("the kernel keeps no statistics of BPF programs")
}

/// What a program has cost since it was loaded; counted only while kernel statistics are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// The kernel's number for it.
    pub(super) id: u32,
    /// Its name, cut to 15 characters by the kernel.
    pub(super) name: String,
    /// Times it ran.
    pub(super) runs: u64,
    /// Time it ran, nanoseconds.
    pub(super) nanos: u64,
}

/// Usage of the program behind a descriptor.
pub(super) fn usage(fd: &OwnedFd) -> Result<Usage> {
    // struct bpf_prog_info up to and with `run_cnt`.
    let mut info = [0u8; 208];
    let attr = Attr::new().word(0, fd.as_raw_fd() as u32).word(4, info.len() as u32).long(8, info.as_mut_ptr() as u64);
    // SAFETY: `attr` names a buffer of the length it says; the kernel writes at most that much.
    let refused = unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, attr.0.as_ptr(), attr.0.len()) };
    if refused != 0 {
        return Err(Error::last_os_error()).context("the kernel tells nothing about a program");
    }
    let long = |at: usize| info.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b));
    let name = info.get(64..80).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Usage {
        id: (long(0) >> 32) as u32,
        name: String::from_utf8_lossy(name).into_owned(),
        nanos: long(192),
        runs: long(200),
    })
}

/// What the kernel says of each of a process's descriptors.
fn fdinfo(pid: i32) -> Result<Vec<String>> {
    let dir = format!("/proc/{pid}/fdinfo");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {dir}"))?.flatten();
    Ok(entries.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default()).collect())
}

/// Programs a process holds, sorted by number.
pub(super) fn held_by(pid: i32) -> Result<Vec<Usage>> {
    let mut ids: Vec<u32> = fdinfo(pid)?.iter().filter_map(|text| program_id(text)).collect();
    // Links name their program too; each counts once.
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        bail!("process {pid} holds no BPF program");
    }
    ids.into_iter()
        .map(|id| {
            let fd = Attr::new().word(0, id).open(PROG_GET_FD_BY_ID);
            usage(&fd.with_context(|| format!("program {id} is gone"))?)
        })
        .collect()
}

fn program_id(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_descriptors() {
        assert_eq!(program_id("pos:\t0\nprog_type:\t26\nprog_id:\t812\nrun_cnt:\t5\n"), Some(812));
        assert_eq!(program_id("pos:\t0\nmap_id:\t3\n"), None);
    }

    #[test]
    fn probes_are_found_in_descriptors() {
        let text = "pos:\t0\nlink_type:\tuprobe_multi\nprog_id:\t7\nuprobe_cnt:\t2\npid:\t0\npath:\t/lib/libssl.so.3\n\
                    cookie\t offset\t ref_ctr_offset\n0\t 0x3b353\t 0x0\n5\t 0x38b50\t 0x0\n";
        let found = UprobeLink { path: "/lib/libssl.so.3".into(), offsets: vec![0x3b353, 0x38b50], returns: false };
        assert_eq!(UprobeLink::parse(text), Some(found));
        assert!(
            UprobeLink::parse(&text.replace("uprobe_multi", "uretprobe_multi")).is_some_and(|probes| probes.returns)
        );
        assert_eq!(UprobeLink::parse(&text.replace("uprobe_multi", "tracing")), None);
    }
}
