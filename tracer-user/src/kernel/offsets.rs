//! Offsets of the members in `tracer_common::members`, from the running kernel.

use tracer_common::arch;
use tracer_common::members::{ABSENT, LENDS, MEMBERS};

use super::btf::Btf;

/// Global of the BPF object and the offset it gets.
pub type Resolved = (&'static str, u64);

/// Members that are not read, but that only kernels with a facility have which nothing can stand in for.
const FACILITIES: &[(&str, &str, &str)] =
    &[("task_struct", "bpf_storage", "storage of BPF programs that belongs to a thread")];

/// Resolves every member, or names those this kernel lacks that tracing cannot do without.
pub fn resolve(btf: &Btf) -> Result<Vec<Resolved>, Vec<String>> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    let registers = arch::HOST.registers;
    for member in MEMBERS.iter().chain(registers) {
        match btf.offset(member.of, member.path) {
            Some(offset) => found.push((member.global, offset)),
            None if member.required => missing.push(format!("{}.{}", member.of, member.path)),
            None => found.push((member.global, ABSENT)),
        }
    }
    // Without it no socket is seen to lend: the test at start of what that matters to finds out.
    let bit = btf.enumerator(LENDS.of, LENDS.name).and_then(|bit| 1u64.checked_shl(bit));
    found.push((LENDS.global, bit.unwrap_or(0)));
    for (of, member, what) in FACILITIES {
        if btf.offset(of, member).is_none() {
            missing.push(format!("{of}.{member} ({what})"));
        }
    }
    // Argument registers that share one array differ by a fixed step.
    for (argument, step) in arch::HOST.argument_step.into_iter().enumerate() {
        let name = ["OFF_REG_ARG0", "OFF_REG_ARG1", "OFF_REG_ARG2", "OFF_REG_ARG4"][argument];
        for (global, offset) in &mut found {
            if *global == name {
                *offset += step;
            }
        }
    }
    if missing.is_empty() { Ok(found) } else { Err(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_of_this_kernel_resolves() {
        let Ok(btf) = Btf::of_kernel() else {
            println!("SKIPPED kernel::offsets: this kernel offers no BTF");
            return;
        };
        let found = resolve(&btf).expect("all required members");
        assert_eq!(found.len(), MEMBERS.len() + arch::HOST.registers.len() + 1);
        for (global, offset) in found {
            if global == LENDS.global {
                assert!(offset.is_power_of_two(), "{offset:#x}");
                continue;
            }
            assert!(offset < 1 << 16 || offset == ABSENT, "{global} = {offset}");
        }
    }
}
