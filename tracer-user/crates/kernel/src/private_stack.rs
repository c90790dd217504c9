//! Whether the kernel runs a program on a private stack: one per CPU, for all threads (Linux 6.13 and later).
//!
//! Such a program must not run twice on one CPU. Programs at uprobes can, because the kernel preempts them, and their second
//! run would overwrite the stack of the first. `tracer-ebpf/src/own_stack.rs` keeps them off private stacks; here the machine
//! code shows whether that worked.

use super::usage;

/// How machine code takes the private stack of its CPU: `add r9, gs:[…]` on x86-64, where nothing else puts a CPU's own
/// address into that register.
const TAKES: [u8; 5] = [0x65, 0x4c, 0x03, 0x0c, 0x25];

/// Why a program at uprobes that has one is not attached.
pub(super) const REFUSED: &str = "the kernel gave it a stack that all threads of a CPU share, which a preempted thread would find \
                                  overwritten: the host could crash";

/// Whether the loaded program has one; `None` where its machine code cannot be read, or is for another processor.
pub(super) fn is_used(fd: i32) -> Option<bool> {
    if cfg!(target_arch = "x86_64") { usage::machine_code(fd).map(|code| takes(&code)) } else { None }
}

fn takes(code: &[u8]) -> bool {
    code.windows(TAKES.len()).any(|window| window == TAKES)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use aya_obj::{Object, ProgramSection};
    use tracer_common::runtime::UserProbe;

    use super::super::object::OBJECT;
    use super::super::probes::CALLED;
    use super::*;

    #[test]
    fn the_register_of_a_private_stack_is_recognised() {
        // Linux 6.18, x86-64: the beginnings of `switch`, which has one, and of `node_timers`, which has a tail call.
        let with = [
            0x0f, 0x1f, 0x44, 0x00, 0x00, 0x0f, 0x1f, 0x00, 0x55, 0x48, 0x89, 0xe5, 0x53, 0x41, 0x55, 0x41, 0x56, 0x41,
            0x57, 0x49, 0xb9, 0x78, 0x55, 0xb0, 0x5b, 0x79, 0x60, 0x00, 0x00, 0x65, 0x4c, 0x03, 0x0c, 0x25, 0x28, 0xe0,
        ];
        let without = [
            0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0x31, 0xc0, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x81, 0xec, 0x70, 0x00, 0x00,
            0x00, 0x48, 0x83, 0xf8, 0x21, 0x77, 0x06, 0x50, 0x48, 0x89, 0xe0, 0xeb, 0x01, 0x50, 0x50, 0x53, 0x41, 0x55,
        ];
        assert!(takes(&with) && !takes(&without) && !takes(&[]));
    }

    /// A kernel gives no private stack to a program with a tail call in it. Programs at uprobes, and those that several others
    /// tail-call, are not protected from running twice on a CPU.
    #[test]
    fn every_program_that_can_run_twice_on_a_cpu_has_a_tail_call() {
        if OBJECT.is_empty() {
            println!("SKIPPED kernel::private_stack: built without the BPF object");
            return;
        }
        let object = Object::parse(OBJECT).expect("the embedded object");
        let called: HashSet<&str> = CALLED.iter().map(|(program, _)| *program).collect();
        // `call 12` is `bpf_tail_call`.
        let tail_calls = |name: &str| {
            let function = &object.functions[&object.programs[name].function_key()];
            function.instructions.iter().any(|at| at.code == 0x85 && at.src_reg() == 0 && at.imm == 12)
        };
        let at_probes = object.programs.iter().filter(|(_, program)| {
            matches!(program.section, ProgramSection::UProbe { .. } | ProgramSection::URetProbe { .. })
        });
        let names: Vec<&str> = at_probes.map(|(name, _)| name.as_str()).chain(called).collect();
        assert!(UserProbe::ALL.iter().all(|probe| names.contains(&probe.name())), "{names:?}");
        let lacking: Vec<&&str> = names.iter().filter(|name| !tail_calls(name)).collect();
        assert!(lacking.is_empty(), "{lacking:?}");
        // The check can fail.
        assert!(!tail_calls("fork"));
    }
}
