//! The stack sampler: one cpu-clock perf event per CPU. The agent owns the descriptors, so that it can change the rate.
//!
//! A new period begins when it is set, and the one that it cuts short gives no sample. So a sample does not stand for the
//! period in force, but for the time since the clock of its CPU last ran, which the sampling program measures.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use aya::programs::ProgramFd;

use super::attachments::Attachments;

/// The program also reports threads that never leave the CPU, so it runs at least this often.
const MIN_HERTZ: u32 = 1;
/// Highest sampling rate; the clock's own minimum period is 10 µs.
pub const MAX_HERTZ: u32 = 10_000;

// include/uapi/linux/perf_event.h
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const FLAG_DISABLED: u64 = 1;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

/// `struct perf_event_attr`, version 0 (64 bytes), which suffices for a software clock.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
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
}

/// The running sampler; it runs as long as its clock events are attached.
pub struct Sampler {
    attachments: Attachments,
    hertz: u32,
}

/// Nanoseconds between samples at `hertz`. A clock event's period is in nanoseconds, however it was opened.
fn period(hertz: u32) -> u64 {
    1_000_000_000 / u64::from(hertz.clamp(MIN_HERTZ, MAX_HERTZ))
}

impl Sampler {
    pub(super) fn start(program: &ProgramFd, hertz: u32, attachments: &Attachments) -> Result<Self, SamplerError> {
        for cpu in aya::util::online_cpus().map_err(|(_, error)| SamplerError::Cpus(error))? {
            let clock = open(program, Some(cpu), period(hertz))?;
            attachments.clocks().push((cpu, clock));
        }
        Ok(Self { attachments: attachments.clone(), hertz })
    }

    /// Samples per second and CPU; 0 if no stacks are taken.
    pub fn hertz(&self) -> u32 {
        self.hertz
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
        self.hertz = hertz.min(MAX_HERTZ);
        Ok(())
    }
}

/// Samples this thread alone, wherever it runs, while the descriptor is open.
pub(super) fn of_this_thread(program: &ProgramFd, nanos: u64) -> Result<OwnedFd, SamplerError> {
    open(program, None, nanos)
}

/// A clock of this thread that runs no program.
pub(super) fn idle(nanos: u64) -> Result<OwnedFd, SamplerError> {
    clock(None, nanos)
}

/// Starts a clock.
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

/// Opens a clock of one CPU, or of this thread, and has it run the program.
fn open(program: &ProgramFd, cpu: Option<u32>, nanos: u64) -> Result<OwnedFd, SamplerError> {
    let refused = |what| move |source| SamplerError::Refused { what, cpu: cpu.unwrap_or_default(), source };
    let fd = clock(cpu, nanos)?;
    control(&fd, IOC_SET_BPF, program.as_fd().as_raw_fd())
        .map_err(refused("attaching the sampling program was refused"))?;
    enable(&fd).map_err(refused("enabling the clock event was refused"))?;
    Ok(fd)
}

/// Opens a clock of one CPU, or of this thread; it does not run yet.
fn clock(cpu: Option<u32>, nanos: u64) -> Result<OwnedFd, SamplerError> {
    let attr = Attr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK,
        period: nanos,
        flags: FLAG_DISABLED,
        ..Attr::default()
    };
    let (pid, on) = cpu.map_or((0, -1), |cpu| (-1, cpu as libc::c_int));
    // SAFETY: `attr` says its own size; all processes on one CPU, or this thread on all.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, on, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        let source = io::Error::last_os_error();
        return Err(SamplerError::Refused { what: "a clock event was refused", cpu: cpu.unwrap_or_default(), source });
    }
    // SAFETY: just opened and owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_nanoseconds() {
        for (hertz, nanos) in [(99, 10_101_010), (1000, 1_000_000), (0, 1_000_000_000), (u32::MAX, 100_000)] {
            assert_eq!(period(hertz), nanos);
        }
        assert_eq!(size_of::<Attr>(), 64);
    }
}
