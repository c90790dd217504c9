//! Run count and run time of the programs, as the kernel counts them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use aya::Ebpf;
use aya::programs::Program;

use super::bpf_call::{self, bpf};
use super::user_programs::UserPrograms;

/// Usage of one program so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of runs (counted only while kernel statistics are on).
    pub runs: u64,
    /// Total run time, nanoseconds (likewise).
    pub nanos: u64,
    /// Number of runs skipped because the program was already running on that CPU.
    pub missed: u64,
}

// include/uapi/linux/bpf.h: struct bpf_prog_info, byte offsets.
const INFO_LEN: usize = 232;
const RUN_TIME: usize = 192;
const RUN_COUNT: usize = 200;
const MISSES: usize = 208;
const JITED_LEN: usize = 16;
const JITED: usize = 24;
const VERIFIED: usize = 216;

/// `union bpf_attr` of `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct Attr {
    fd: u32,
    len: u32,
    info: u64,
}

/// Usage by program name.
pub(super) fn of(ebpf: &Ebpf, user_programs: &UserPrograms) -> BTreeMap<String, Usage> {
    let mut all = BTreeMap::new();
    for (name, fd) in user_programs.all() {
        all.extend(info(fd.as_raw_fd()).map(|usage| (name.to_owned(), usage)));
    }
    for (name, program) in ebpf.programs() {
        let fd = match program {
            Program::BtfTracePoint(program) => program.fd(),
            Program::FEntry(program) => program.fd(),
            Program::FExit(program) => program.fd(),
            Program::PerfEvent(program) => program.fd(),
            Program::SockOps(program) => program.fd(),
            _ => continue,
        };
        if let Some(usage) = fd.ok().and_then(|fd| info(fd.as_fd().as_raw_fd())) {
            all.insert(name.to_owned(), usage);
        }
    }
    all
}

fn info(fd: i32) -> Option<Usage> {
    let bytes = ask(fd)?;
    let at = |offset: usize| bytes.get(offset..).and_then(|rest| rest.first_chunk()).map(|b| u64::from_ne_bytes(*b));
    Some(Usage { runs: at(RUN_COUNT)?, nanos: at(RUN_TIME)?, missed: at(MISSES)? })
}

/// Instructions the verifier processed and bytes of machine code; each `None` if the kernel does not report it.
pub(super) fn size(fd: i32) -> Option<(Option<u32>, Option<u32>)> {
    let bytes = ask(fd)?;
    let at = |offset: usize| bytes.get(offset..).and_then(|rest| rest.first_chunk()).map(|b| u32::from_ne_bytes(*b));
    Some((at(VERIFIED).filter(|n| *n > 0), at(JITED_LEN).filter(|n| *n > 0)))
}

/// A program's machine code; `None` if it is interpreted, or if the kernel does not show it.
pub(super) fn machine_code(fd: i32) -> Option<Vec<u8>> {
    let (_, jited) = size(fd)?;
    let mut code = vec![0u8; jited? as usize];
    let mut bytes = [0u8; INFO_LEN];
    bytes[JITED_LEN..JITED_LEN + 4].copy_from_slice(&(code.len() as u32).to_ne_bytes());
    bytes[JITED..JITED + 8].copy_from_slice(&(code.as_mut_ptr() as u64).to_ne_bytes());
    ask_into(fd, &mut bytes)?;
    // Without the privilege to see addresses of the kernel there is nothing but zeros, or no length.
    code.iter().any(|byte| *byte != 0).then_some(code)
}

fn ask(fd: i32) -> Option<[u8; INFO_LEN]> {
    let mut bytes = [0u8; INFO_LEN];
    ask_into(fd, &mut bytes).map(|()| bytes)
}

/// `bytes`: a `bpf_prog_info` whose pointers, if any, are valid for the lengths beside them.
fn ask_into(fd: i32, bytes: &mut [u8; INFO_LEN]) -> Option<()> {
    let attr = Attr { fd: fd as u32, len: INFO_LEN as u32, info: bytes.as_mut_ptr() as u64 };
    // SAFETY: `attr` names a buffer of the length it says; the kernel writes at most that much there and to what it points to.
    unsafe { bpf(bpf_call::OBJECT_INFO, &attr) }.ok().map(drop)
}
