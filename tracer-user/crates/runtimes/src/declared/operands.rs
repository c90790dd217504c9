//! Where the arguments of a USDT probe are: the assembler's text in the probe's note, of x86-64.
//!
//! Total: the text is whatever the file has.

use std::fmt;

use tracer_common::runtime::{NO_REGISTER, OPERAND_CONSTANT, OPERAND_MEMORY, OPERAND_REGISTER, Operand};

/// The registers by their offsets in the kernel's `pt_regs` (`arch/x86/include/asm/ptrace.h`), with the names of their 64,
/// 32, 16 and 8 bits.
const REGISTERS: [(u8, [&str; 4]); 16] = [
    (0, ["r15", "r15d", "r15w", "r15b"]),
    (8, ["r14", "r14d", "r14w", "r14b"]),
    (16, ["r13", "r13d", "r13w", "r13b"]),
    (24, ["r12", "r12d", "r12w", "r12b"]),
    (32, ["rbp", "ebp", "bp", "bpl"]),
    (40, ["rbx", "ebx", "bx", "bl"]),
    (48, ["r11", "r11d", "r11w", "r11b"]),
    (56, ["r10", "r10d", "r10w", "r10b"]),
    (64, ["r9", "r9d", "r9w", "r9b"]),
    (72, ["r8", "r8d", "r8w", "r8b"]),
    (80, ["rax", "eax", "ax", "al"]),
    (88, ["rcx", "ecx", "cx", "cl"]),
    (96, ["rdx", "edx", "dx", "dl"]),
    (104, ["rsi", "esi", "si", "sil"]),
    (112, ["rdi", "edi", "di", "dil"]),
    (152, ["rsp", "esp", "sp", "spl"]),
];

/// An argument of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// As in the note: `-4@%eax`.
    pub text: Box<str>,
    /// Where it is; the error: why it cannot be read here.
    pub operand: Result<Operand, &'static str>,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operand {
            Ok(operand) => {
                let kind = if operand.is_signed == 0 { 'u' } else { 'i' };
                write!(f, "{kind}{}", 64 - u32::from(operand.unused_bits))
            }
            Err(why) => write!(f, "{}, cannot be read: {why}", self.text),
        }
    }
}

/// The arguments in a note, of a program for this machine if `is_x86`; others cannot be read.
pub(super) fn arguments(text: &str, is_x86: bool) -> Vec<Argument> {
    let of = |text: &str| Argument {
        text: text.into(),
        operand: if is_x86 { operand(text) } else { Err("arguments of probes are read on x86-64 only") },
    };
    text.split_ascii_whitespace().map(of).collect()
}

/// One argument: `SIZE@OPERAND`, where a negative size is that of a signed number.
fn operand(text: &str) -> Result<Operand, &'static str> {
    let (size, place) = text.split_once('@').ok_or("its size is not given")?;
    if size.ends_with('f') {
        return Err("it is a floating-point number");
    }
    let size: i64 = size.parse().map_err(|_| "its size is not known")?;
    let bits = match size.unsigned_abs() {
        bytes @ (1 | 2 | 4 | 8) => bytes as u8 * 8,
        _ => return Err("its size is not one of a register"),
    };
    let sized = Operand {
        base: NO_REGISTER,
        index: NO_REGISTER,
        unused_bits: 64 - bits,
        is_signed: u8::from(size < 0),
        ..Operand::default()
    };
    if let Some(constant) = place.strip_prefix('$') {
        let displacement = number(constant).ok_or("its constant is a symbol, not a number")?;
        return Ok(Operand { kind: OPERAND_CONSTANT, displacement, ..sized });
    }
    if let Some(name) = place.strip_prefix('%') {
        if name.starts_with("xmm") || name.starts_with("st") || name.starts_with("mm") {
            return Err("it is in a floating-point or vector register");
        }
        if name.contains(':') {
            return Err("it is in a segment, such as thread-local storage");
        }
        let (base, _) = register(name).ok_or("its register is not known, or is the upper half of one")?;
        return Ok(Operand { kind: OPERAND_REGISTER, base, ..sized });
    }
    let Some((displacement, address)) = place.strip_suffix(')').and_then(|place| place.split_once('(')) else {
        return Err("it is at a fixed address, or its form is not known");
    };
    let displacement = match displacement {
        "" => 0,
        text => number(text).ok_or("its address contains a symbol")?,
    };
    let mut parts = address.split(',').map(str::trim);
    let whole = |name: Option<&str>| match name {
        None | Some("") => Ok(NO_REGISTER),
        Some("%rip") => Err("its address is relative to the code"),
        Some(name) => match name.strip_prefix('%').and_then(register) {
            Some((offset, 0)) => Ok(offset),
            _ => Err("a register of its address is not known, or is a part of one"),
        },
    };
    let (base, index) = (whole(parts.next())?, whole(parts.next())?);
    let scale = match parts.next() {
        None | Some("" | "1") => 0,
        Some("2") => 1,
        Some("4") => 2,
        Some("8") => 3,
        Some(_) => return Err("the form of its address is not known"),
    };
    if parts.next().is_some() || (base, index) == (NO_REGISTER, NO_REGISTER) {
        return Err("the form of its address is not known");
    }
    Ok(Operand { kind: OPERAND_MEMORY, displacement, base, index, scale, ..sized })
}

/// The offset of a register, and which of its names this is.
fn register(name: &str) -> Option<(u8, usize)> {
    REGISTERS.iter().find_map(|(offset, names)| Some((*offset, names.iter().position(|one| *one == name)?)))
}

/// A number of the assembler: decimal or hexadecimal.
fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    let value = value as i64;
    Some(if is_negative { value.wrapping_neg() } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_real_programs() {
        let sized = |unused_bits, is_signed| Operand {
            base: NO_REGISTER,
            index: NO_REGISTER,
            unused_bits,
            is_signed,
            ..Operand::default()
        };
        let memory = |displacement, base| Operand { kind: OPERAND_MEMORY, displacement, base, ..sized(0, 0) };
        for (text, expected) in [
            ("8@%rax", Operand { kind: OPERAND_REGISTER, base: 80, ..sized(0, 0) }),
            ("-4@%r13d", Operand { kind: OPERAND_REGISTER, base: 16, ..sized(32, 1) }),
            ("1@%sil", Operand { kind: OPERAND_REGISTER, base: 104, ..sized(56, 0) }),
            ("-2@%r13w", Operand { kind: OPERAND_REGISTER, base: 16, ..sized(48, 1) }),
            ("4@$-1", Operand { kind: OPERAND_CONSTANT, displacement: -1, ..sized(32, 0) }),
            ("8@$0x10", Operand { kind: OPERAND_CONSTANT, displacement: 16, ..sized(0, 0) }),
            ("8@(%rsp)", memory(0, 152)),
            ("8@-144(%rbp)", memory(-144, 32)),
            ("8@16(%rsp)", memory(16, 152)),
            ("8@-8(%rbx,%rcx,8)", Operand { index: 88, scale: 3, ..memory(-8, 40) }),
            ("8@(,%rcx,2)", Operand { index: 88, scale: 1, ..memory(0, NO_REGISTER) }),
        ] {
            assert_eq!(operand(text), Ok(expected), "{text}");
        }
        assert_eq!(arguments("8@%rax -4@%edx  1@%al", true).len(), 3);
        assert_eq!(arguments("-4@%edx", true)[0].to_string(), "i32");
        assert!(arguments("8@x0", false)[0].to_string().contains("x86-64 only"));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (text, why) in [
            ("%rax", "its size is not given"),
            ("8f@%xmm0", "floating-point"),
            ("-8@%xmm1", "floating-point or vector register"),
            ("1@%ah", "the upper half"),
            ("4@%fs:12(%rax)", "thread-local"),
            ("3@%eax", "its size is not one of a register"),
            ("8@counter(%rip)", "contains a symbol"),
            ("8@8(%rip)", "relative to the code"),
            ("4@$counter", "a symbol"),
            ("4@(%eax)", "a part of one"),
            ("4@counter", "a fixed address"),
            ("4@()", "the form of its address"),
            ("4@(%rax,%rbx,3)", "the form of its address"),
            ("4@(%rax,%rbx,1,1)", "the form of its address"),
            ("@", "its size is not known"),
            ("8@", "form is not known"),
            ("99999999999999999999@%rax", "its size"),
        ] {
            assert!(operand(text).unwrap_err().contains(why), "{text}: {:?}", operand(text));
        }
    }
}
