//! The stack sampler: one cpu-clock perf event per CPU, and for a while one for a thread that works for a slow request. The agent
//! owns the descriptors, so that it can change the rate.
//!
//! A new period begins when it is set, and the one that it cuts short gives no sample. So a sample does not stand for the
//! period in force, but for the time since the clock of its CPU last ran, which the sampling program measures.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use aya::programs::ProgramFd;

use super::attachments::Attachments;
use super::bpf_call::{self, bpf_open};

/// The program also reports threads that never leave the CPU, so it runs at least this often.
const MIN_HERTZ: u32 = 1;
/// Highest sampling rate; the clock's own minimum period is 10 µs.
pub const MAX_HERTZ: u32 = 10_000;

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
/// Its highest level in the kernel as published. Those of Debian and Ubuntu have levels above, at which only CAP_SYS_ADMIN may
/// open an event.
pub(super) const HIGHEST_COMMON_LEVEL: i32 = 2;

// include/uapi/linux/perf_event.h
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const FLAG_DISABLED: u64 = 1;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
// include/uapi/linux/bpf.h
const BPF_PERF_EVENT: u32 = 41;

/// `union bpf_attr` of `BPF_LINK_CREATE` for a perf event.
#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    kind: u32,
    flags: u32,
    cookie: u64,
}

/// `struct perf_event_attr`, version 1 (72 bytes), which suffices for a software clock and for a uprobe.
#[repr(C)]
#[derive(Default)]
pub(super) struct EventAttr {
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) config: u64,
    pub(super) period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) wakeup: u32,
    pub(super) bp_type: u32,
    /// Of a uprobe: the path of its file.
    pub(super) config1: u64,
    /// Of a uprobe: its place in the file.
    pub(super) config2: u64,
}

/// Why sampling failed.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The CPUs could not be listed.
    #[error("the online CPUs could not be listed: {0}")]
    Cpus(io::Error),
    /// The kernel refused an operation.
    #[error("{what} on CPU {cpu}: {source} (needs CAP_PERFMON; see also /proc/sys/kernel/perf_event_paranoid)")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused an operation for the clock of one thread.
    #[error("{what} for thread {tid}: {source}")]
    Thread {
        /// The operation.
        what: &'static str,
        /// The thread.
        tid: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// What a clock counts the time of.
#[derive(Clone, Copy)]
enum On {
    /// A CPU, whatever runs.
    Cpu(u32),
    /// A thread, wherever it runs; 0 = this one.
    Thread(u32),
}

impl On {
    fn refused(self, what: &'static str, source: io::Error) -> SamplerError {
        match self {
            Self::Cpu(cpu) => SamplerError::Refused { what, cpu, source },
            Self::Thread(tid) => SamplerError::Thread { what, tid, source },
        }
    }
}

/// The running sampler; it runs as long as its clock events are attached.
pub struct Sampler {
    attachments: Attachments,
    program: OwnedFd,
    hertz: u32,
    forbidden: Option<String>,
}

/// The clock of one thread: its program and its event. Dropping it stops it.
pub(super) struct ThreadClock {
    _link: OwnedFd,
    _clock: OwnedFd,
}

/// Nanoseconds between samples at `hertz`. A clock event's period is in nanoseconds, however it was opened.
fn period(hertz: u32) -> u64 {
    1_000_000_000 / u64::from(hertz.clamp(MIN_HERTZ, MAX_HERTZ))
}

impl Sampler {
    /// Starts the clocks. Where the kernel permits none, there is no sampling, and [`Self::forbidden`] says why.
    pub(super) fn start(program: &ProgramFd, hertz: u32, attachments: &Attachments) -> Result<Self, SamplerError> {
        let mut forbidden = None;
        for cpu in aya::util::online_cpus().map_err(|(_, error)| SamplerError::Cpus(error))? {
            match open(program, On::Cpu(cpu), period(hertz)) {
                Ok(clock) => attachments.clocks().push((cpu, clock)),
                Err(SamplerError::Refused { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied && attachments.clocks().is_empty() =>
                {
                    forbidden = Some(why_forbidden(&source, paranoid_level()));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let refused = |source| SamplerError::Refused { what: "a second descriptor was refused", cpu: 0, source };
        let program = program.as_fd().try_clone_to_owned().map_err(refused)?;
        let hertz = if forbidden.is_some() { 0 } else { hertz };
        Ok(Self { attachments: attachments.clone(), program, hertz, forbidden })
    }

    /// Samples the thread by a clock of its own, too: `hertz` times a second of its CPU time, until [`Self::leave_thread`].
    pub fn sample_thread(&self, tid: u32, hertz: u32) -> Result<(), SamplerError> {
        let clock = of_thread(self.program.as_fd(), tid, period(hertz))?;
        self.attachments.thread_clock(tid, clock);
        Ok(())
    }

    /// Stops the thread's own clock.
    pub fn leave_thread(&self, tid: u32) {
        drop(self.attachments.take_thread_clock(tid));
    }

    /// Samples per second and CPU; 0 if no stacks are taken.
    pub fn hertz(&self) -> u32 {
        self.hertz
    }

    /// Why the kernel permits no clock, and what to do; `None`: it does.
    pub fn forbidden(&self) -> Option<&str> {
        self.forbidden.as_deref()
    }

    /// Number of clocks: one for each CPU.
    pub fn clocks(&self) -> usize {
        self.attachments.clocks().len()
    }

    /// The period in force, nanoseconds; 0 if no stacks are taken.
    pub fn announced_period(&self) -> u64 {
        if self.hertz == 0 { 0 } else { period(self.hertz) }
    }

    /// Changes the rate.
    pub fn set_hertz(&mut self, hertz: u32) -> Result<(), SamplerError> {
        let nanos = period(hertz);
        for (cpu, fd) in self.attachments.clocks().iter() {
            // SAFETY: a valid descriptor and a pointer to a u64.
            if unsafe { libc::ioctl(fd.as_raw_fd(), IOC_PERIOD, &raw const nanos) } != 0 {
                let source = io::Error::last_os_error();
                return Err(SamplerError::Refused { what: "the sampling period was refused", cpu: *cpu, source });
            }
        }
        self.hertz = if self.forbidden.is_some() { 0 } else { hertz.min(MAX_HERTZ) };
        Ok(())
    }
}

/// `kernel.perf_event_paranoid`; `None` if it cannot be read.
pub(super) fn paranoid_level() -> Option<i32> {
    std::fs::read_to_string(PARANOID).ok()?.trim().parse().ok()
}

/// What to do about the refusal of a clock at this level.
fn why_forbidden(error: &io::Error, level: Option<i32>) -> String {
    match level {
        Some(level) if level > HIGHEST_COMMON_LEVEL => format!(
            "perf events are refused: {error}; kernel.perf_event_paranoid is {level}, where this kernel wants CAP_SYS_ADMIN: \
             'sysctl kernel.perf_event_paranoid=2', then restart the agent, or add that capability (docs/install.md)"
        ),
        _ => format!("perf events are refused: {error}; CAP_PERFMON is needed"),
    }
}

/// Samples this thread alone, wherever it runs, while the descriptor is open.
pub(super) fn of_this_thread(program: &ProgramFd, nanos: u64) -> Result<OwnedFd, SamplerError> {
    open(program, On::Thread(0), nanos)
}

/// A clock of this thread that runs no program.
pub(super) fn idle(nanos: u64) -> Result<OwnedFd, SamplerError> {
    clock(On::Thread(0), nanos)
}

/// A clock of the thread, which expires every `nanos` of its CPU time and has the program run with them as its cookie.
fn of_thread(program: BorrowedFd<'_>, tid: u32, nanos: u64) -> Result<ThreadClock, SamplerError> {
    let refused = |what| move |source| SamplerError::Thread { what, tid, source };
    let clock = clock(On::Thread(tid), nanos)?;
    let link = link(program, &clock, nanos).map_err(refused("attaching the sampling program was refused"))?;
    enable(&clock).map_err(refused("enabling the clock event was refused"))?;
    Ok(ThreadClock { _link: link, _clock: clock })
}

/// Has the event run the program, which reads `cookie`.
pub(super) fn link(program: BorrowedFd<'_>, event: &OwnedFd, cookie: u64) -> io::Result<OwnedFd> {
    let attr = LinkAttr {
        program: program.as_raw_fd() as u32,
        target: event.as_raw_fd() as u32,
        kind: BPF_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: without pointers; both descriptors are open.
    unsafe { bpf_open(bpf_call::LINK_CREATE, &attr) }
}

/// Starts an event.
pub(super) fn enable(clock: &OwnedFd) -> io::Result<()> {
    control(clock, IOC_ENABLE, 0)
}

/// Stops a clock.
pub(super) fn disable(clock: &OwnedFd) -> io::Result<()> {
    control(clock, IOC_DISABLE, 0)
}

fn control(clock: &OwnedFd, request: libc::c_ulong, argument: RawFd) -> io::Result<()> {
    // SAFETY: a valid descriptor; these requests take a number.
    match unsafe { libc::ioctl(clock.as_raw_fd(), request, argument as libc::c_ulong) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a clock and has it run the program.
fn open(program: &ProgramFd, on: On, nanos: u64) -> Result<OwnedFd, SamplerError> {
    let fd = clock(on, nanos)?;
    control(&fd, IOC_SET_BPF, program.as_fd().as_raw_fd())
        .map_err(|source| on.refused("attaching the sampling program was refused", source))?;
    enable(&fd).map_err(|source| on.refused("enabling the clock event was refused", source))?;
    Ok(fd)
}

/// Opens a clock; it does not run yet.
fn clock(on: On, nanos: u64) -> Result<OwnedFd, SamplerError> {
    let attr = EventAttr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<EventAttr>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK,
        period: nanos,
        flags: FLAG_DISABLED,
        ..EventAttr::default()
    };
    let (tid, cpu) = match on {
        On::Cpu(cpu) => (-1, cpu as libc::c_int),
        On::Thread(tid) => (tid as libc::c_int, -1),
    };
    // SAFETY: `attr` says its own size; all processes on one CPU, or one thread on all.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(on.refused("a clock event was refused", io::Error::last_os_error()));
    }
    // SAFETY: just opened and owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        assert!(why_forbidden(&error, Some(3)).contains("sysctl kernel.perf_event_paranoid=2"));
        for level in [Some(2), Some(-1), None] {
            assert!(why_forbidden(&error, level).ends_with("CAP_PERFMON is needed"), "{level:?}");
        }
    }

    #[test]
    fn periods_are_nanoseconds() {
        for (hertz, nanos) in [(99, 10_101_010), (1000, 1_000_000), (0, 1_000_000_000), (u32::MAX, 100_000)] {
            assert_eq!(period(hertz), nanos);
        }
        assert_eq!(size_of::<EventAttr>(), 72);
    }
}
