//! Machine code as declared transactions need it: where instructions begin, and where each can go.
//!
//! Total: the bytes may be anything.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

/// Most bytes of a function that are decoded.
pub(super) const CODE: u64 = 256 << 10;
/// `e_machine`.
pub(super) const X86_64: u16 = 62;
const AARCH64: u16 = 183;

/// Where a jump or call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JumpTarget {
    /// To this address.
    To(u64),
    /// Where the pointer at this address says.
    Through(u64),
    /// Where a register or table says.
    Unknown,
}

/// What comes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next one.
    Next,
    /// A call, then the next one.
    Call(JumpTarget),
    /// A jump.
    Jump(JumpTarget),
    /// The next one, or this address.
    Branch(u64),
    /// The caller.
    Return,
    /// Nothing: a trap.
    Stop,
}

/// What an instruction does to the stack pointer and the frame pointer (x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Nothing, or what is undone when a call is back.
    Same,
    /// The stack pointer moves by so many bytes.
    Moved(i64),
    /// The frame pointer becomes the stack pointer.
    SetFrame,
    /// The stack pointer becomes the frame pointer and so many bytes.
    FromFrame(i64),
    /// The frame pointer is popped.
    PopFrame,
    /// `leave`.
    Leave,
    /// The frame pointer becomes something else.
    FrameLost,
    /// The stack pointer becomes something else.
    Unknown,
}

/// An instruction: the address behind it, what comes after it, and what it does to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) end: u64,
    pub(super) flow: Flow,
    pub(super) stack: Stack,
}

/// Instructions by address.
pub(super) type Instructions = BTreeMap<u64, Instruction>;

/// Decodes the code that is at `address`; the error is the address of what is no instruction.
pub(super) fn decode(machine: u16, code: &[u8], address: u64) -> Result<Instructions, u64> {
    match machine {
        X86_64 => x86(code, address),
        AARCH64 => arm(code, address),
        _ => Err(address),
    }
}

fn x86(code: &[u8], address: u64) -> Result<Instructions, u64> {
    let mut found = BTreeMap::new();
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    while decoder.can_decode() {
        let one = decoder.decode();
        if one.is_invalid() {
            return Err(one.ip());
        }
        let indirect = || {
            if one.is_ip_rel_memory_operand() {
                JumpTarget::Through(one.ip_rel_memory_address())
            } else {
                JumpTarget::Unknown
            }
        };
        let flow = match one.flow_control() {
            // System calls are calls, too.
            FlowControl::Call if one.is_call_near() => Flow::Call(JumpTarget::To(one.near_branch_target())),
            FlowControl::IndirectCall => Flow::Call(indirect()),
            FlowControl::UnconditionalBranch => Flow::Jump(JumpTarget::To(one.near_branch_target())),
            FlowControl::IndirectBranch => Flow::Jump(indirect()),
            FlowControl::ConditionalBranch => Flow::Branch(one.near_branch_target()),
            FlowControl::Return => Flow::Return,
            FlowControl::Exception => Flow::Stop,
            // Where a transaction of the processor is given up.
            FlowControl::XbeginXabortXend if one.near_branch_target() != 0 => Flow::Branch(one.near_branch_target()),
            FlowControl::Next | FlowControl::Call | FlowControl::Interrupt | FlowControl::XbeginXabortXend => {
                Flow::Next
            }
        };
        found.insert(one.ip(), Instruction { end: one.next_ip(), flow, stack: stack(&one) });
    }
    Ok(found)
}

fn stack(one: &iced_x86::Instruction) -> Stack {
    let to = if one.op_count() > 0 && one.op0_kind() == OpKind::Register { one.op0_register() } else { Register::None };
    let by_number =
        || (one.op1_kind() != OpKind::Register && one.op1_kind() != OpKind::Memory).then(|| one.immediate(1) as i64);
    let from = || if one.op1_kind() == OpKind::Register { one.op1_register() } else { Register::None };
    match one.mnemonic() {
        Mnemonic::Pop if to == Register::RBP => Stack::PopFrame,
        Mnemonic::Pop if to.full_register() == Register::RSP => Stack::Unknown,
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq => {
            Stack::Moved(i64::from(one.stack_pointer_increment()))
        }
        Mnemonic::Leave => Stack::Leave,
        Mnemonic::Enter => Stack::Unknown,
        Mnemonic::Cmp | Mnemonic::Test => Stack::Same,
        Mnemonic::Sub if to == Register::RSP => {
            by_number().and_then(i64::checked_neg).map_or(Stack::Unknown, Stack::Moved)
        }
        Mnemonic::Add if to == Register::RSP => by_number().map_or(Stack::Unknown, Stack::Moved),
        Mnemonic::Mov if to == Register::RBP && from() == Register::RSP => Stack::SetFrame,
        Mnemonic::Mov if to == Register::RSP && from() == Register::RBP => Stack::FromFrame(0),
        Mnemonic::Lea if to == Register::RSP && one.memory_index() == Register::None => {
            let by = one.memory_displacement64() as i64;
            match one.memory_base() {
                Register::RSP => Stack::Moved(by),
                Register::RBP => Stack::FromFrame(by),
                _ => Stack::Unknown,
            }
        }
        _ if to.full_register() == Register::RSP => Stack::Unknown,
        _ if to.full_register() == Register::RBP => Stack::FrameLost,
        // What writes both operands.
        Mnemonic::Xchg | Mnemonic::Xadd if from().full_register() == Register::RSP => Stack::Unknown,
        Mnemonic::Xchg | Mnemonic::Xadd if from().full_register() == Register::RBP => Stack::FrameLost,
        _ => Stack::Same,
    }
}

fn arm(code: &[u8], address: u64) -> Result<Instructions, u64> {
    let mut found = BTreeMap::new();
    let (words, rest) = code.as_chunks::<4>();
    let mut at = address;
    for word in words {
        let end = at.wrapping_add(4);
        found.insert(at, Instruction { end, flow: arm_flow(u32::from_le_bytes(*word), at), stack: Stack::Unknown });
        at = end;
    }
    if rest.is_empty() { Ok(found) } else { Err(at) }
}

/// Branches of A64 (Arm Architecture Reference Manual, C4.1.93).
fn arm_flow(word: u32, at: u64) -> Flow {
    // A signed number of words: `bits` bits of the instruction from `low`.
    let to = |low: u32, bits: u32| {
        let words = ((word << (32 - bits - low)) as i32) >> (32 - bits);
        at.wrapping_add((i64::from(words) * 4) as u64)
    };
    match word {
        _ if word & 0xfc00_0000 == 0x1400_0000 => Flow::Jump(JumpTarget::To(to(0, 26))),
        _ if word & 0xfc00_0000 == 0x9400_0000 => Flow::Call(JumpTarget::To(to(0, 26))),
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => Flow::Branch(to(5, 19)),
        _ if word & 0x7e00_0000 == 0x3600_0000 => Flow::Branch(to(5, 14)),
        // By register, with and without authentication.
        _ if word & 0xfe00_0000 == 0xd600_0000 => match word >> 21 & 7 {
            0 => Flow::Jump(JumpTarget::Unknown),
            1 => Flow::Call(JumpTarget::Unknown),
            2 => Flow::Return,
            _ => Flow::Stop,
        },
        // BRK, UDF.
        _ if word & 0xffe0_001f == 0xd420_0000 || word & 0xffff_0000 == 0 => Flow::Stop,
        _ => Flow::Next,
    }
}

/// The address of the pointer that a stub of the linkage table jumps through, if `code` is one.
pub(super) fn stub(machine: u16, code: &[u8], address: u64) -> Option<u64> {
    if machine != X86_64 {
        return None;
    }
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    // `endbr64`, then the jump.
    for _ in 0..2 {
        if !decoder.can_decode() {
            return None;
        }
        let one = decoder.decode();
        if one.flow_control() == FlowControl::IndirectBranch && one.is_ip_rel_memory_operand() {
            return Some(one.ip_rel_memory_address());
        }
        if one.is_invalid() || one.flow_control() != FlowControl::Next {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_instructions_go_x86() {
        for (bytes, flow) in [
            (&[0xe8, 0x10, 0, 0, 0][..], Flow::Call(JumpTarget::To(0x1015))),
            (&[0xff, 0x15, 0x10, 0, 0, 0], Flow::Call(JumpTarget::Through(0x1016))),
            (&[0xff, 0xd0], Flow::Call(JumpTarget::Unknown)),
            (&[0xeb, 0xfe], Flow::Jump(JumpTarget::To(0x1000))),
            (&[0xff, 0x25, 0, 0, 0, 0], Flow::Jump(JumpTarget::Through(0x1006))),
            (&[0x3e, 0xff, 0xe0], Flow::Jump(JumpTarget::Unknown)),
            (&[0x74, 0x02], Flow::Branch(0x1004)),
            (&[0xc3], Flow::Return),
            (&[0xf3, 0xc3], Flow::Return),
            (&[0x0f, 0x0b], Flow::Stop),
            (&[0x0f, 0x05], Flow::Next),
            (&[0x48, 0x83, 0xec, 0x20], Flow::Next),
        ] {
            let found = decode(X86_64, bytes, 0x1000).unwrap();
            assert_eq!(found[&0x1000].flow, flow, "{bytes:x?}");
            assert_eq!(found[&0x1000].end, 0x1000 + bytes.len() as u64);
        }
        assert_eq!(decode(X86_64, &[0x90, 0x06], 0x1000), Err(0x1001), "not in 64 bits");
        assert_eq!(stub(X86_64, &[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0, 0, 0, 0], 0), Some(10));
        assert_eq!(stub(X86_64, &[0x90], 0), None);
    }

    #[test]
    fn what_instructions_do_to_the_stack() {
        for (bytes, expected) in [
            (&[0x55][..], Stack::Moved(-8)),
            (&[0x5d], Stack::PopFrame),
            (&[0x41, 0x5c], Stack::Moved(8)),
            (&[0x48, 0x83, 0xec, 0x20], Stack::Moved(-0x20)),
            (&[0x48, 0x81, 0xc4, 0x08, 0x01, 0, 0], Stack::Moved(0x108)),
            (&[0x48, 0x83, 0xec, 0x80], Stack::Moved(0x80)),
            (&[0x48, 0x89, 0xe5], Stack::SetFrame),
            (&[0x48, 0x8d, 0x65, 0xd8], Stack::FromFrame(-0x28)),
            (&[0x48, 0x83, 0xe4, 0xf0], Stack::Unknown),
            (&[0xc9], Stack::Leave),
            (&[0x31, 0xed], Stack::FrameLost),
            (&[0x48, 0x39, 0xe0], Stack::Same),
            (&[0xe8, 0, 0, 0, 0], Stack::Same),
        ] {
            assert_eq!(decode(X86_64, bytes, 0x1000).unwrap()[&0x1000].stack, expected, "{bytes:x?}");
        }
    }

    #[test]
    fn where_instructions_go_arm() {
        for (word, flow) in [
            (0x9400_0004u32, Flow::Call(JumpTarget::To(0x1010))),
            (0x97ff_ffff, Flow::Call(JumpTarget::To(0xffc))),
            (0x1400_0001, Flow::Jump(JumpTarget::To(0x1004))),
            (0x5400_0040, Flow::Branch(0x1008)),
            (0xb400_0060, Flow::Branch(0x100c)),
            (0x3607_fffb, Flow::Branch(0xffc)),
            (0xd63f_0000, Flow::Call(JumpTarget::Unknown)),
            (0xd61f_0200, Flow::Jump(JumpTarget::Unknown)),
            (0xd65f_03c0, Flow::Return),
            (0xd65f_0bff, Flow::Return),
            (0xd73f_0a11, Flow::Call(JumpTarget::Unknown)),
            (0xd420_0000, Flow::Stop),
            (0xd503_201f, Flow::Next),
        ] {
            let found = decode(AARCH64, &word.to_le_bytes(), 0x1000).unwrap();
            assert_eq!(found[&0x1000].flow, flow, "{word:#x}");
        }
        assert_eq!(decode(AARCH64, &[0; 6], 0x1000), Err(0x1004));
    }

    #[test]
    fn never_panics_on_arbitrary_code() {
        let mut state = 7u64;
        for machine in [X86_64, AARCH64, 3] {
            for address in [0, 0x1000, u64::MAX - 64] {
                for _ in 0..200 {
                    let bytes: Vec<u8> = (0..64)
                        .map(|_| {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (state >> 56) as u8
                        })
                        .collect();
                    let _ = decode(machine, &bytes, address);
                    let _ = stub(machine, &bytes, address);
                }
            }
        }
    }
}
