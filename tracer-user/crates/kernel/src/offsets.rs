//! Resolves the members in `tracer_common::members` to offsets in the running kernel.

use tracer_common::arch;
use tracer_common::members::{ABSENT, LENDS, MEMBERS, UNWIND_LAYOUT};

use super::btf::Btf;

/// A global of the BPF object and its value.
pub type Resolved = (&'static str, u64);

/// Members that are not read but prove that the kernel has a required facility.
const FACILITIES: &[(&str, &str, &str)] =
    &[("task_struct", "bpf_storage", "storage of BPF programs that belongs to a thread")];

/// Resolves every member; the error names the required ones that this kernel lacks.
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
    // If the bit is missing, no socket looks like it uses `SO_ZEROCOPY`; the header test at start finds out if that
    // matters.
    let bit = btf.enumerator(LENDS.of, LENDS.name).and_then(|bit| 1u64.checked_shl(bit));
    found.push((LENDS.global, bit.unwrap_or(0)));
    for (of, member, what) in FACILITIES {
        if btf.offset(of, member).is_none() {
            missing.push(format!("{of}.{member} ({what})"));
        }
    }
    // Argument registers that share one array are a fixed step apart.
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

/// What a walk by unwind tables needs besides [`UNWIND_LAYOUT`].
const UNWIND_MEMBERS: [&str; 15] = [
    "OFF_TASK_MM",
    "OFF_MM_TREE",
    "OFF_MM_VDSO",
    "OFF_VMA_PGOFF",
    "OFF_VMA_FILE",
    "OFF_FILE_INODE",
    "OFF_INODE_INO",
    "OFF_INODE_GENERATION",
    "OFF_INODE_SIZE",
    "OFF_INODE_SB",
    "OFF_SB_DEV",
    "OFF_REG_PC",
    "OFF_REG_SP",
    "OFF_REG_FP",
    "OFF_REG_CS",
];

/// Why stacks cannot be walked by unwind tables on this kernel, if they cannot.
pub fn without_unwinding(btf: &Btf, found: &[Resolved]) -> Option<String> {
    let has = |global: &str| found.iter().any(|(name, offset)| *name == global && *offset != ABSENT);
    if let Some(missing) = UNWIND_MEMBERS.iter().find(|global| !has(global)) {
        let member = MEMBERS.iter().chain(arch::HOST.registers).find(|member| member.global == *missing);
        let name = member.map_or_else(|| (*missing).to_owned(), |member| format!("{}.{}", member.of, member.path));
        return Some(format!("this kernel has no {name}"));
    }
    let other = UNWIND_LAYOUT.iter().find(|(of, path, offset)| btf.offset(of, path) != Some(*offset));
    other.map(|(of, path, _)| format!("{of}.{path} is not where this kernel side looks for it"))
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
