//! `CAP_SYS_ADMIN`: some kernels ask for it where `CAP_PERFMON` does for others, so the service is started with it. Where the
//! kernel does not ask, the agent gives it up before it starts a thread.

use std::fs;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::btf::Btf;
use super::{sampler, user_programs};

/// The highest number of a capability that the kernel knows.
const LAST_CAPABILITY: &str = "/proc/sys/kernel/cap_last_cap";

/// Gives `CAP_SYS_ADMIN` up for the calling thread and those it starts, unless the kernel or `settings`, which names the
/// setting, needs it. Leaves an agent alone that has every capability, as root's, and one that does not have this one.
pub fn give_up_if_unneeded(settings: Option<&'static str>) {
    // Where a filter of system calls refuses to tell, nothing is changed.
    let Ok(sets) = capabilities(None) else { return };
    if !was_chosen(&sets, &fs::read_to_string(LAST_CAPABILITY).unwrap_or_default()) {
        return;
    }
    let reason = if stands_in(&sets) { Some("it stands in for CAP_BPF or CAP_PERFMON") } else { settings };
    if let Some(reason) = reason.map(str::to_owned).or_else(kernel_reason) {
        log::warn!("CAP_SYS_ADMIN is kept: {reason}");
        return;
    }
    match set_capabilities(None, without(sets)) {
        Ok(()) => log::info!("CAP_SYS_ADMIN is given up: nothing here needs it"),
        Err(error) => log::warn!("CAP_SYS_ADMIN is not needed here, but giving it up failed: {error}"),
    }
}

/// Why this kernel asks for the capability.
fn kernel_reason() -> Option<String> {
    let by_level = sampler::paranoid_level().filter(|level| *level > sampler::HIGHEST_COMMON_LEVEL);
    if let Some(level) = by_level {
        return Some(format!("kernel.perf_event_paranoid is {level}, where stacks may need it"));
    }
    let multi = Btf::of_kernel().is_ok_and(|btf| user_programs::multi(&btf));
    (!multi)
        .then(|| "this kernel attaches probes in programs (TLS, tasks, declared functions) as perf events".to_owned())
}

/// Whether the capability is there, and not all others with it. `last`: what the file says.
fn was_chosen(sets: &CapabilitySets, last: &str) -> bool {
    let all = last.trim().parse().ok().and_then(|last: u32| u64::MAX.checked_shr(63u32.checked_sub(last)?));
    sets.permitted.contains(CapabilitySet::SYS_ADMIN) && all != Some(sets.permitted.bits())
}

/// Whether it has to do for what newer capabilities are for, as with container engines that do not know those.
fn stands_in(sets: &CapabilitySets) -> bool {
    !sets.permitted.contains(CapabilitySet::BPF | CapabilitySet::PERFMON)
}

/// The kernel takes a capability out of the ambient set when it leaves these.
fn without(mut sets: CapabilitySets) -> CapabilitySets {
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(CapabilitySet::SYS_ADMIN);
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(permitted: u64) -> CapabilitySets {
        let set = CapabilitySet::from_bits_retain(permitted);
        CapabilitySets { effective: set, permitted: set, inheritable: set }
    }

    #[test]
    fn a_chosen_capability_is_told_from_roots() {
        let admin = CapabilitySet::SYS_ADMIN.bits();
        assert!(was_chosen(&sets(admin | 1), "40\n"));
        assert!(!was_chosen(&sets(1), "40\n"), "not there");
        assert!(!was_chosen(&sets((1 << 41) - 1), "40\n"), "root's");
        assert!(!was_chosen(&sets(u64::MAX), "63\n"), "root's, all numbers in use");
        // A file that says nothing sensible: the capability is not root's as far as is known.
        for last in ["", "64\n", "-1\n"] {
            assert!(was_chosen(&sets(admin), last), "{last:?}");
        }
    }

    #[test]
    fn it_stands_in_for_newer_ones() {
        let newer = (CapabilitySet::BPF | CapabilitySet::PERFMON).bits();
        assert!(!stands_in(&sets(newer)));
        assert!(stands_in(&sets(CapabilitySet::BPF.bits())) && stands_in(&sets(0)));
    }

    #[test]
    fn only_this_one_is_given_up() {
        let admin = CapabilitySet::SYS_ADMIN.bits();
        let left = without(sets(admin | 0b1011));
        for set in [left.effective, left.permitted, left.inheritable] {
            assert_eq!(set.bits(), 0b1011);
        }
    }
}
