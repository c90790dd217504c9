//! Finds the return instructions of a function, for programs that get no return probes (Go moves its stacks). x86-64:
//! the lengths of instructions decide where one begins, because a byte that looks like `ret` can be part of another.
//!
//! Lengths are those of Intel's manual, volume 2, appendix A. An instruction that is not in the tables, or that leads
//! beyond the function, makes the function one that cannot be declared.

/// Offsets of the return instructions in `code`, a whole function; the error is the offset of an unknown instruction.
pub fn returns(code: &[u8]) -> Result<Vec<usize>, usize> {
    let (mut at, mut found) = (0, Vec::new());
    while at < code.len() {
        let rest = code.get(at..).unwrap_or_default();
        let (length, is_return) = instruction(rest).ok_or(at)?;
        if length > rest.len() {
            return Err(at);
        }
        if is_return {
            found.push(at);
        }
        at += length;
    }
    Ok(found)
}

/// Length of the instruction that `code` begins with, and whether it is a near return.
fn instruction(code: &[u8]) -> Option<(usize, bool)> {
    let (mut at, mut narrow) = (0, false);
    loop {
        match code.get(at)? {
            0x66 => narrow = true,
            0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => {}
            _ => break,
        }
        at += 1;
        if at > 14 {
            return None;
        }
    }
    let mut wide = false;
    if let byte @ 0x40..=0x4f = *code.get(at)? {
        wide = byte & 8 != 0;
        at += 1;
    }
    let opcode = *code.get(at)?;
    at += 1;
    // Bytes of an immediate operand of the operand's size, at most four.
    let full = if narrow { 2 } else { 4 };
    let modrm = |at: usize, immediate: usize| Some((at + operand(code.get(at..)?)? + immediate, false));
    match opcode {
        0x0f => {
            let second = *code.get(at)?;
            at += 1;
            match second {
                0x38 => modrm(at + 1, 0),
                0x3a => modrm(at + 1, 1),
                0x05 | 0x06..=0x09 | 0x0b | 0x30..=0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => {
                    Some((at, false))
                }
                0x80..=0x8f => Some((at + 4, false)),
                0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => modrm(at, 1),
                0x04 | 0x0a | 0x0c | 0x0e | 0x0f | 0x24..=0x27 | 0x3b..=0x3f | 0x7a | 0x7b | 0xa6 | 0xa7 => None,
                _ => modrm(at, 0),
            }
        }
        // Two-byte and three-byte VEX, EVEX: which map says whether an immediate follows.
        0xc5 => vex(code, at + 1, 1),
        0xc4 => vex(code, at + 2, code.get(at)? & 0x1f),
        0x62 => vex(code, at + 3, code.get(at)? & 0x07),
        0x00..=0x3f => match opcode & 7 {
            0..=3 => modrm(at, 0),
            4 => Some((at + 1, false)),
            5 => Some((at + full, false)),
            _ => None,
        },
        0x50..=0x5f
        | 0x6c..=0x6f
        | 0x90..=0x99
        | 0x9b..=0x9f
        | 0xa4..=0xa7
        | 0xaa..=0xaf
        | 0xc9
        | 0xcc
        | 0xcf
        | 0xec..=0xef
        | 0xf4
        | 0xf5
        | 0xf8..=0xfd => Some((at, false)),
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => modrm(at, 0),
        0x68 | 0xa9 => Some((at + full, false)),
        0x69 | 0x81 | 0xc7 => modrm(at, full),
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => Some((at + 1, false)),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => modrm(at, 1),
        0xa0..=0xa3 => Some((at + 8, false)),
        0xb8..=0xbf => Some((at + if wide { 8 } else { full }, false)),
        0xc2 => Some((at + 2, true)),
        0xc3 => Some((at, true)),
        0xe8 | 0xe9 => Some((at + 4, false)),
        // `test` is the only one of its group with an immediate.
        0xf6 => modrm(at, usize::from(code.get(at)? >> 3 & 7 < 2)),
        0xf7 => modrm(at, if code.get(at)? >> 3 & 7 < 2 { full } else { 0 }),
        _ => None,
    }
}

/// An instruction with a VEX or EVEX prefix; its opcode of map `map` is at `at`.
fn vex(code: &[u8], at: usize, map: u8) -> Option<(usize, bool)> {
    let opcode = *code.get(at)?;
    if map == 1 && opcode == 0x77 {
        // `vzeroupper` has no operands.
        return Some((at + 1, false));
    }
    let immediate = match map {
        1 => matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6),
        2 => false,
        3 => true,
        _ => return None,
    };
    Some((at + 1 + operand(code.get(at + 1..)?)? + usize::from(immediate), false))
}

/// Bytes of the ModR/M byte, the SIB byte and the displacement.
pub(super) fn operand(code: &[u8]) -> Option<usize> {
    let modrm = *code.first()?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(1);
    }
    let sib = usize::from(rm == 4);
    let base = if rm == 4 { *code.get(1)? & 7 } else { rm };
    let displacement = match mode {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + sib + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        text.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hexadecimal")).collect()
    }

    #[test]
    fn lengths_are_those_of_the_manual() {
        for (text, length) in [
            ("48 83 ec 20", 4),
            ("48 b8 c3 c3 c3 c3 c3 c3 c3 c3", 10),
            ("66 81 7c 24 08 c3 c3", 7),
            ("f7 44 24 08 c3 c3 c3 c3", 8),
            ("f7 d8", 2),
            ("49 3b 66 10", 4),
            ("0f 86 93 04 00 00", 6),
            ("48 8d 05 c3 c3 00 00", 7),
            ("c5 fe 6f 44 24 c3", 6),
            ("c5 f8 77", 3),
            ("62 f1 fe 48 6f 07", 6),
            ("66 0f 3a 0f c1 c3", 6),
            ("f2 0f 10 84 24 c3 00 00 00", 9),
            ("66 2e 0f 1f 84 00 00 00 00 00", 10),
            ("f3 48 a5", 3),
        ] {
            let code = bytes(text);
            assert_eq!(instruction(&code), Some((length, false)), "{text}");
            for end in 0..code.len() {
                // A cut instruction is never one that ends within the cut.
                assert!(instruction(&code[..end]).is_none_or(|(length, _)| length > end), "{text} cut at {end}");
            }
        }
    }

    #[test]
    fn only_whole_instructions_return() {
        // push; mov $0xc3c3c3c3,%eax; ret; nop; ret.
        assert_eq!(returns(&bytes("55 b8 c3 c3 c3 c3 c3 90 c3")), Ok(vec![6, 8]));
        assert_eq!(returns(&bytes("90 06")), Err(1), "not an instruction of 64-bit code");
        assert_eq!(returns(&bytes("90 e8 01")), Err(1), "leads beyond the function");
        assert_eq!(returns(&[]), Ok(Vec::new()));
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(code in proptest::collection::vec(0u8.., 0..200)) {
            let _ = returns(&code);
        }
    }
}
