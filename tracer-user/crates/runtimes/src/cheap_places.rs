//! Finds the instruction of a function at which a probe is cheap and the function's arguments are still in their
//! registers. x86-64.
//!
//! The kernel emulates `push`, relative calls and relative jumps, which costs about half a microsecond a hit; it single-steps
//! other instructions (`endbr64`, with which each function of many distributions begins, among them), which costs some twenty on a
//! virtual machine, because the hypervisor takes part. Only instructions that are known to leave the argument registers alone
//! are stepped over; anything else ends the search.

/// Most bytes of a function that are searched.
pub(super) const CODE: usize = 96;

/// Registers of the first four arguments, as instructions number them: `rdi`, `rsi`, `rdx`, `rcx`.
const ARGUMENTS: [u8; 4] = [7, 6, 2, 1];
/// `endbr64`.
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gentle {
    Push,
    /// A call of the function at this distance from the function's beginning.
    Call(i64),
    Jump,
}

/// Bytes of the `endbr64` that a function may begin with.
pub(super) fn landing(code: &[u8]) -> usize {
    if code.starts_with(&ENDBR) { ENDBR.len() } else { 0 }
}

/// Whether a function begins with `push`, an `endbr64` before it aside.
pub(super) fn begins_with_push(code: &[u8]) -> bool {
    code.get(landing(code)..).is_some_and(|rest| is_push(rest).is_some())
}

/// Where the probe at a function's return goes, which takes the return address from the top of the stack: behind an `endbr64`, if a
/// `push` follows.
pub(super) fn return_place(code: &[u8]) -> usize {
    if begins_with_push(code) { landing(code) } else { 0 }
}

/// The first cheap instruction: its offset, and what it is. `arguments`: how many must still be in their registers.
pub(super) fn place(code: &[u8], arguments: usize) -> Option<(usize, Gentle)> {
    walk(code, arguments, |_, _| true)
}

/// The function that the first call in a function, with its arguments untouched, calls: its distance from the
/// function's beginning.
pub(super) fn callee(code: &[u8], arguments: usize) -> Option<i64> {
    match walk(code, arguments, |_, gentle| matches!(gentle, Gentle::Call(_)))? {
        (_, Gentle::Call(distance)) => Some(distance),
        _ => None,
    }
}

fn is_push(code: &[u8]) -> Option<usize> {
    match code {
        [0x50..=0x57, ..] => Some(1),
        [0x41, 0x50..=0x57, ..] => Some(2),
        _ => None,
    }
}

fn walk(code: &[u8], arguments: usize, accept: impl Fn(usize, Gentle) -> bool) -> Option<(usize, Gentle)> {
    let kept = ARGUMENTS.get(..arguments)?;
    let code = code.get(..code.len().min(CODE))?;
    let mut at = landing(code);
    loop {
        let rest = code.get(at..)?;
        let found = match rest {
            _ if is_push(rest).is_some() => Some((Gentle::Push, is_push(rest)?)),
            [0xe8, a, b, c, d, ..] => {
                let distance = i32::from_le_bytes([*a, *b, *c, *d]);
                Some((Gentle::Call((at as i64 + 5).checked_add(i64::from(distance))?), 5))
            }
            [0x70..=0x7f, _, ..] => Some((Gentle::Jump, 2)),
            [0x0f, 0x80..=0x8f, _, _, _, _, ..] => Some((Gentle::Jump, 6)),
            _ => None,
        };
        if let Some((gentle, length)) = found {
            if accept(at, gentle) {
                return Some((at, gentle));
            }
            // A call changes the argument registers.
            if matches!(gentle, Gentle::Call(_)) {
                return None;
            }
            at += length;
            continue;
        }
        let (length, written) = harmless(rest)?;
        if written.is_some_and(|register| kept.contains(&register)) {
            return None;
        }
        at += length;
    }
}

/// Length of a known instruction that jumps nowhere, and the register it writes.
fn harmless(code: &[u8]) -> Option<(usize, Option<u8>)> {
    let mut at = 0;
    while matches!(code.get(at)?, 0x64 | 0x65 | 0x66 | 0x2e | 0xf3) {
        at += 1;
        if at > 4 {
            return None;
        }
    }
    let prefix = *code.get(at)?;
    let rex = if prefix & 0xf0 == 0x40 { prefix } else { 0 };
    at += usize::from(rex != 0);
    let opcode = *code.get(at)?;
    at += 1;
    let register = |modrm: u8| modrm >> 3 & 7 | (rex & 4) << 1;
    let other = |modrm: u8| modrm & 7 | (rex & 1) << 3;
    match opcode {
        // `nop` in all its lengths.
        0x90 => Some((at, None)),
        0x0f if *code.get(at)? == 0x1f => Some((at + 1 + operand(code.get(at + 1..)?)?, None)),
        // `movslq`, `mov` and `lea` to a register.
        0x63 | 0x8b | 0x8d => {
            let modrm = *code.get(at)?;
            Some((at + operand(code.get(at..)?)?, Some(register(modrm))))
        }
        // `mov` from a register, to memory or to another one.
        0x89 | 0x31 | 0x29 | 0x01 => {
            let modrm = *code.get(at)?;
            let written = (modrm >> 6 == 3).then(|| other(modrm));
            Some((at + operand(code.get(at..)?)?, written))
        }
        // `test` and `cmp`.
        0x84 | 0x85 | 0x38 | 0x39 | 0x3a | 0x3b => Some((at + operand(code.get(at..)?)?, None)),
        // `add`, `or`, `and`, `sub`, `xor`, `cmp` with a constant.
        0x80 | 0x83 | 0x81 => {
            let modrm = *code.get(at)?;
            let is_compare = modrm >> 3 & 7 == 7;
            let written = (modrm >> 6 == 3 && !is_compare).then(|| other(modrm));
            Some((at + operand(code.get(at..)?)? + if opcode == 0x81 { 4 } else { 1 }, written))
        }
        // `test` with a constant; the others of the group write.
        0xf6 | 0xf7 if *code.get(at)? >> 3 & 7 < 2 => {
            Some((at + operand(code.get(at..)?)? + if opcode == 0xf7 { 4 } else { 1 }, None))
        }
        // `mov` of a constant.
        0xb8..=0xbf if rex & 8 == 0 => Some((at + 4, Some(opcode & 7 | (rex & 1) << 3))),
        0xc7 => {
            let modrm = *code.get(at)?;
            Some((at + operand(code.get(at..)?)? + 4, (modrm >> 6 == 3).then(|| other(modrm))))
        }
        _ => None,
    }
}

/// Bytes of the ModR/M byte, the SIB byte and the displacement.
fn operand(code: &[u8]) -> Option<usize> {
    super::return_instructions::operand(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        text.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hexadecimal")).collect()
    }

    /// `SSL_read`, `SSL_read_ex`, `SSL_free` and the internal function of Debian 12; with `endbr64` as others build it.
    #[test]
    fn places_of_known_functions() {
        let read =
            "48 83 ec 18 64 48 8b 04 25 28 00 00 00 48 89 44 24 08 31 c0 85 d2 78 2f 48 89 e1 48 63 d2 e8 3d fe ff ff";
        let read_ex = "48 83 ec 08 e8 c7 fd ff ff 31 d2";
        let free = "48 85 ff 0f 84 97 03 00 00 41 55";
        for (text, arguments, expected) in [
            (read, 3, Some((22, Gentle::Jump))),
            (read_ex, 4, Some((4, Gentle::Call(9 - 0x239)))),
            (free, 1, Some((3, Gentle::Jump))),
            ("41 55 41 54", 4, Some((0, Gentle::Push))),
            ("f3 0f 1e fa 55 48", 4, Some((4, Gentle::Push))),
            // An argument is changed first; an unknown instruction; nothing in reach.
            ("48 89 f7 55", 1, None),
            ("0f 05 55", 1, None),
            ("48 83 ec 18", 1, None),
        ] {
            let code = bytes(text);
            assert_eq!(place(&code, arguments), expected, "{text}");
            for end in 0..code.len() {
                let cut = place(&code[..end], arguments);
                assert!(cut.is_none() || cut == expected, "{text} cut at {end}");
            }
        }
        assert_eq!(callee(&bytes(read_ex), 4), Some(9 - 0x239));
        assert_eq!(return_place(&bytes("f3 0f 1e fa 41 57")), 4);
        assert_eq!(["56 e8 1a 00", "f3 0f 1e fa 48 83", "48 83 ec 18"].map(|code| return_place(&bytes(code))), [0; 3]);
        assert!(begins_with_push(&bytes("f3 0f 1e fa 41 57")) && !begins_with_push(&bytes(read)));
    }

    #[test]
    fn a_call_behind_other_cheap_instructions_is_found() {
        // `SSL_read`: the length is extended before the call, which counts as a change of that argument.
        let read = "48 83 ec 18 31 c0 85 d2 78 2f 48 89 e1 48 63 d2 e8 3d fe ff ff";
        assert_eq!(callee(&bytes(read), 2), Some(16 + 5 - 0x1c3));
        assert_eq!(callee(&bytes(read), 3), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(code in proptest::collection::vec(0u8.., 0..120), arguments in 0usize..6) {
            let _ = (place(&code, arguments), callee(&code, arguments), begins_with_push(&code));
        }
    }
}
