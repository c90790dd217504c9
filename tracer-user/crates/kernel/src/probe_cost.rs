//! What a probe in a program costs the program: the trap, the kernel's own work, and the agent's program. That depends on the
//! first instruction of the function, on the processor and, by a factor of ten, on whether the machine is virtual; so the
//! agent attaches the probes to two functions of its own and measures it, where something is decided by it.

use std::arch::naked_asm;
use std::time::Duration;

use tracer_common::runtime::{UserProbe, declared as cookie};
use tracer_host::guard::self_process;
use tracer_runtimes::maps::Maps;

use super::uprobes::Prober;

/// Calls of a round. The shortest round counts: others were interrupted by something else.
const CALLS: u64 = 200;
const ROUNDS: usize = 8;
/// What a measurement can be, nanoseconds.
const LIMITS: (u64, u64) = (100, 100_000);

// The first instruction decides: the kernel emulates a push, and executes others in a copy, one step at a time.

/// Begins with an instruction that the kernel emulates.
// SAFETY: it leaves every register and the stack as they were.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn emulated_first() {
    naked_asm!("push rbp", "pop rbp", "ret")
}

/// Begins with another one.
// SAFETY: it changes a register that functions may change.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn stepped_first() {
    naked_asm!("lea rax, [rip]", "ret")
}

/// Begins with an instruction that the kernel emulates.
// SAFETY: it changes nothing.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn emulated_first() {
    naked_asm!("nop", "ret")
}

/// Begins with another one.
// SAFETY: it changes a register that functions may change.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn stepped_first() {
    naked_asm!("mov x1, x0", "ret")
}

/// Nanoseconds of CPU that a hit takes from the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCost {
    /// At an instruction that the kernel emulates.
    pub emulated: u64,
    /// At any other.
    pub stepped: u64,
    /// A return probe, beyond the probe at the entry.
    pub returned: u64,
}

/// Measures it; takes some 20 ms. `visit`: a number under which nothing else is attached.
pub fn measure(prober: &mut Prober, visit: u64) -> Result<ProbeCost, String> {
    let number = cookie::CALIBRATION;
    let mut with = |function: extern "C" fn(), probes: &[(UserProbe, u64)]| {
        let at = place(function)?;
        let own = std::path::Path::new("/proc/self/exe");
        for (probe, cookie) in probes {
            if let Err(why) = prober.attach_file(*probe, visit, (own, at), *cookie) {
                prober.detach_file(visit);
                return Err(why);
            }
        }
        let taken = shortest(function);
        prober.detach_file(visit);
        Ok(taken)
    };
    let entry = (UserProbe::DeclaredPlace, number);
    let back = (UserProbe::DeclaredReturn, number | cookie::RETURN);
    let without = shortest(emulated_first);
    let emulated = with(emulated_first, &[entry])?;
    let stepped = with(stepped_first, &[entry])?;
    let both = with(emulated_first, &[back, entry])?;
    Ok(ProbeCost { emulated: each(without, emulated), stepped: each(without, stepped), returned: each(emulated, both) })
}

/// The offset of a function of this program in its file.
fn place(function: extern "C" fn()) -> Result<u64, String> {
    let address = function as usize as u64;
    let maps = Maps::read(std::process::id()).ok_or("the agent's own mappings cannot be read")?;
    let mapping = maps.files.iter().find(|mapping| (mapping.from..mapping.until).contains(&address));
    mapping
        .map(|mapping| address - mapping.from + mapping.offset)
        .ok_or_else(|| "the agent's own code is not mapped".into())
}

/// CPU of this thread for the shortest round of calls.
fn shortest(function: extern "C" fn()) -> Duration {
    let round = || {
        let begin = self_process::thread_cpu();
        for _ in 0..CALLS {
            function();
        }
        Duration::from_nanos(self_process::thread_cpu().saturating_sub(begin))
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

/// Nanoseconds of a hit when the same calls took so long `without` the probe and `with` it.
fn each(without: Duration, with: Duration) -> u64 {
    (with.saturating_sub(without).as_nanos() as u64 / CALLS).clamp(LIMITS.0, LIMITS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_is_the_difference_by_their_number() {
        let micros = Duration::from_micros;
        assert_eq!(each(micros(1), micros(201)), 1_000);
        assert_eq!(each(micros(5), micros(4)), LIMITS.0);
        assert_eq!(each(micros(0), Duration::from_secs(9)), LIMITS.1);
    }

    #[test]
    fn the_functions_are_in_this_programs_file() {
        let (one, other) = (place(emulated_first).unwrap(), place(stepped_first).unwrap());
        assert!(one != other && shortest(stepped_first) < Duration::from_millis(1));
    }
}
