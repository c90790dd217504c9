//! The cheapest place for a probe in a function that wakes a task: an instruction that the kernel emulates instead of
//! single-stepping the program.

/// Most bytes of a function that are decoded.
const FAR: usize = 64;
/// `%rdi`: the argument, the task's header.
const ARGUMENT: u8 = 7;

/// Offset of the first `push` or short conditional jump on the straight path from the function's start, with the
/// argument still in its register. 0, the start, if there is none or an unknown instruction comes first.
pub(super) fn gentle(code: &[u8]) -> usize {
    let mut at = 0;
    while at < FAR {
        let rest = code.get(at..).unwrap_or_default();
        match rest {
            // push; jcc
            [0x50..=0x57 | 0x70..=0x7f, ..] | [0x41, 0x50..=0x57, ..] => return at,
            _ => {}
        }
        match length(rest) {
            Some(len) => at += len,
            None => return 0,
        }
    }
    0
}

/// The length of an instruction that neither changes the argument's register nor branches.
fn length(code: &[u8]) -> Option<usize> {
    match *code {
        // Prefixes of a long `nop`.
        [0x66 | 0x2e, ..] => Some(1 + nop(code.get(1..)?)?),
        [0x0f, 0x1f, ..] => nop(code),
        // test $NUMBER, %al
        [0xa8, _, ..] => Some(2),
        // sub or add $NUMBER, %rsp
        [0x48, 0x83, 0xec | 0xc4, _, ..] => Some(4),
        [0x48, 0x81, 0xec | 0xc4, ..] => Some(7),
        // mov into memory; mov and lea into a register
        [rex @ 0x48..=0x4f, what @ (0x89 | 0x8b | 0x8d), modes, ..] => {
            let (reg, base) = ((modes >> 3 & 7) | (rex << 1 & 8), (modes & 7) | (rex << 3 & 8));
            let changes = if what == 0x89 { if modes >> 6 == 3 { base } else { ARGUMENT + 1 } } else { reg };
            (changes != ARGUMENT).then_some(2 + operand(code.get(2..)?)?)
        }
        _ => None,
    }
}

/// A multi-byte `nop`, after its first prefix.
fn nop(code: &[u8]) -> Option<usize> {
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count();
    match code.get(prefixes..)? {
        [0x0f, 0x1f, rest @ ..] => Some(prefixes + 2 + operand(rest)?),
        [0x90, ..] => Some(prefixes + 1),
        _ => None,
    }
}

/// Length of the ModRM byte and the rest of the operand.
fn operand(code: &[u8]) -> Option<usize> {
    let modes = *code.first()?;
    let scaled = usize::from(modes >> 6 != 3 && modes & 7 == 4);
    let distance = match modes >> 6 {
        0 if modes & 7 == 5 => 4,
        0 if scaled == 1 && code.get(1)? & 7 == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(1 + scaled + distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `wake_by_ref` of tokio 1.54 as rustc 1.95 compiled it.
    const BY_REF: [u8; 37] = [
        0x48, 0x83, 0xec, 0x18, // sub $0x18,%rsp
        0x48, 0x8b, 0x07, // mov (%rdi),%rax
        0x48, 0x8d, 0x4c, 0x24, 0x08, // lea 0x8(%rsp),%rcx
        0x48, 0x8d, 0x54, 0x24, 0x10, // lea 0x10(%rsp),%rdx
        0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, // nop
        0xa8, 0x02, // test $0x2,%al
        0x75, 0x1c, // jne
        0xa8,
    ];

    #[test]
    fn the_first_instruction_that_the_kernel_does() {
        assert_eq!(gentle(&BY_REF), 34);
        // wake_by_val: push %rbx; mov %rdi,%rbx; call
        assert_eq!(gentle(&[0x53, 0x48, 0x89, 0xfb, 0xe8, 0, 0, 0, 0]), 0);
        assert_eq!(gentle(&[0x48, 0x83, 0xec, 0x18, 0x41, 0x56]), 4);
        // The argument is overwritten; a call may change it; an unknown instruction.
        assert_eq!(gentle(&[0x48, 0x8b, 0x3f, 0x53]), 0);
        assert_eq!(gentle(&[0x48, 0x89, 0xc7, 0x53]), 0);
        assert_eq!(gentle(&[0x48, 0x83, 0xec, 0x18, 0xe8, 0, 0, 0, 0, 0x53]), 0);
        assert_eq!(gentle(&[0xf0, 0x48, 0x0f, 0xb1, 0x07, 0x53]), 0);
        assert_eq!(gentle(&[0x48, 0x89, 0xfb, 0x48, 0x8b, 0x05, 1, 2, 3, 4, 0x74, 1]), 10);
    }

    #[test]
    fn never_panics_on_damaged_code() {
        for end in 0..BY_REF.len() {
            let at = gentle(&BY_REF[..end]);
            assert!(at == 0 || at == 34, "{end}: {at}");
            for byte in [0, 0x24, 0x7f, 0xff] {
                let mut other = BY_REF;
                other[end] = byte;
                assert!(gentle(&other) < other.len());
            }
        }
    }
}
