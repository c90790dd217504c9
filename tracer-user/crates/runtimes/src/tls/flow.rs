//! Where a C function keeps its arguments, found by following its code from its beginning: at each instruction, which
//! registers and places of its frame hold an argument, as it was given. x86-64, System V's calling convention.
//!
//! All paths are followed and joined: what differs between two of them is not known. Jumps by tables and out of the code
//! at hand end a path. Total: the bytes may be anything.

use std::collections::BTreeMap;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Most bytes of a function that are followed.
pub(super) const CODE: usize = 16 << 10;
/// Most steps: each instruction is followed again when a path brings less knowledge than those before it.
const STEPS: usize = 40_000;
/// Most places of a frame that are remembered.
const SLOTS: usize = 256;
/// Number of the stack pointer.
const SP: usize = 4;
/// Number of the frame pointer.
const FRAME: usize = 5;
/// Number of the register of a result, `rax`.
const RESULT: usize = 0;
/// Registers of arguments, by number: `rdi`, `rsi`, `rdx`, `rcx`, `r8`, `r9`.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// Registers that a call may change.
const CHANGED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// Registers that it keeps.
const KEPT: [usize; 6] = [3, 5, 12, 13, 14, 15];

/// What is known of a register or a place of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    /// The argument, counted from 0.
    Argument(u8),
    /// The argument and something added.
    Near(u8),
    /// The address of a place of the frame, relative to the stack pointer at the function's beginning.
    Frame(i64),
    Constant(i64),
    /// What the first argument points to, at this offset.
    Field(i64),
}

use Value::{Argument, Constant, Field, Frame, Near, Unknown};

impl Value {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            _ if self == other => self,
            (Argument(a) | Near(a), Argument(b) | Near(b)) if a == b => Near(a),
            _ => Unknown,
        }
    }

    /// The value with something added.
    fn moved(self) -> Self {
        match self {
            Argument(n) | Near(n) => Near(n),
            _ => Unknown,
        }
    }

    /// The value when only its lower four bytes are kept.
    fn narrow(self) -> Self {
        match self {
            Frame(_) | Near(_) => Unknown,
            _ => self,
        }
    }
}

/// Where an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In a register, by number.
    Register(u8),
    /// On the stack, bytes above the stack pointer.
    Stack(u32),
}

/// What is known before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineState {
    registers: [Value; 16],
    /// Places of the frame, with their sizes.
    frame: BTreeMap<i64, (Value, u32)>,
    /// Whether the last instruction found that a constant is zero: then only one way goes on behind a jump.
    is_zero: Option<bool>,
}

impl MachineState {
    fn begin() -> Self {
        let mut registers = [Unknown; 16];
        for (n, register) in ARGUMENTS.into_iter().enumerate() {
            registers[register] = Argument(n as u8);
        }
        registers[SP] = Frame(0);
        Self { registers, frame: BTreeMap::new(), is_zero: None }
    }

    /// Takes a path that ends here, too; whether less is known now.
    fn join(&mut self, other: &Self) -> bool {
        let before = (self.registers, self.frame.len(), self.is_zero);
        if self.is_zero != other.is_zero {
            self.is_zero = None;
        }
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            *mine = mine.join(theirs);
        }
        let mut changed = false;
        self.frame.retain(|at, (value, size)| {
            let Some((theirs, width)) = other.frame.get(at) else { return false };
            let joined = if size == width { value.join(*theirs) } else { Unknown };
            changed |= joined != *value;
            *value = joined;
            joined != Unknown
        });
        changed || before != (self.registers, self.frame.len(), self.is_zero)
    }

    /// The value of a call's argument.
    pub(super) fn argument(&self, n: usize) -> Value {
        ARGUMENTS.get(n).map_or(Unknown, |register| self.registers[*register])
    }

    /// The offset in the first argument of what a function returns.
    pub(super) fn result_field(&self) -> Option<i64> {
        if let Field(offset) = self.registers[RESULT] { Some(offset) } else { None }
    }

    /// The offset in the first argument of the pointer that an instruction follows.
    pub(super) fn base_field(&self, one: &Instruction) -> Option<i64> {
        if let Field(offset) = self.get(one.memory_base()) { Some(offset) } else { None }
    }

    /// Whether a register holds the first argument as it was given.
    pub(super) fn is_first_argument(&self, register: Register) -> bool {
        register.size() == 8 && self.get(register) == Argument(0)
    }

    /// Where the function keeps an argument: a register that calls keep, or a place of its frame.
    pub(super) fn location(&self, argument: u8) -> Option<Location> {
        let wanted = Argument(argument);
        if let Some(register) = KEPT.into_iter().find(|register| self.registers[*register] == wanted) {
            return Some(Location::Register(register as u8));
        }
        let Frame(sp) = self.registers[SP] else { return None };
        let at = self.frame.iter().find(|(at, (value, _))| *value == wanted && **at >= sp)?.0;
        u32::try_from(at - sp).ok().map(Location::Stack)
    }

    fn get(&self, register: Register) -> Value {
        let full = register.full_register();
        if !full.is_gpr64() {
            return Unknown;
        }
        let value = self.registers[full.number() & 15];
        match register.size() {
            8 => value,
            // Types are passed on as bytes.
            4 | 1 => value.narrow(),
            _ => Unknown,
        }
    }

    fn set(&mut self, register: Register, value: Value) {
        let full = register.full_register();
        if full.is_gpr64() {
            self.registers[full.number() & 15] = match register.size() {
                8 => value,
                4 => value.narrow(),
                _ => Unknown,
            };
        }
    }

    /// The place of the frame that an instruction's memory operand is.
    fn slot(&self, one: &Instruction) -> Option<i64> {
        if one.memory_index() != Register::None || one.is_ip_rel_memory_operand() {
            return None;
        }
        match self.get(one.memory_base()) {
            Frame(base) if one.memory_base().size() == 8 => base.checked_add(one.memory_displacement64() as i64),
            _ => None,
        }
    }

    fn load(&self, one: &Instruction, size: u32) -> Value {
        if let Some(at) = self.slot(one) {
            return self.frame.get(&at).filter(|(_, stored)| size <= *stored).map_or(Unknown, |(value, _)| *value);
        }
        let plain = one.memory_index() == Register::None && one.segment_prefix() == Register::None;
        match self.get(one.memory_base()) {
            Argument(0) if plain && size >= 4 => Field(one.memory_displacement64() as i64),
            _ => Unknown,
        }
    }

    fn store(&mut self, at: i64, size: u32, value: Value) {
        let end = at.saturating_add(i64::from(size));
        self.frame.retain(|begin, (_, size)| *begin >= end || begin.saturating_add(i64::from(*size)) <= at);
        if value != Unknown && self.frame.len() < SLOTS {
            self.frame.insert(at, (value, size));
        }
    }

    /// The value of an operand.
    fn operand(&self, one: &Instruction, n: u32) -> Value {
        match one.op_kind(n) {
            OpKind::Register => self.get(one.op_register(n)),
            OpKind::Memory => self.load(one, one.memory_size().size() as u32),
            _ => one.try_immediate(n).map_or(Unknown, |constant| Constant(constant as i64)),
        }
    }

    fn put(&mut self, one: &Instruction, value: Value) {
        match one.op0_kind() {
            OpKind::Register => self.set(one.op0_register(), value),
            OpKind::Memory => {
                if let Some(at) = self.slot(one) {
                    self.store(at, one.memory_size().size() as u32, value);
                }
            }
            _ => {}
        }
    }

    /// Whether a conditional jump is taken, where what it tests is constant.
    fn takes(&self, one: &Instruction) -> Option<bool> {
        match one.condition_code() {
            ConditionCode::e => self.is_zero,
            ConditionCode::ne => self.is_zero.map(|is_zero| !is_zero),
            _ => None,
        }
    }

    fn step(&mut self, one: &Instruction, facts: &mut InstructionInfoFactory) {
        let tested = (one.mnemonic() == Mnemonic::Test && one.op0_kind() == OpKind::Register)
            .then(|| (one.op0_register(), one.op1_register()));
        self.is_zero = match tested {
            Some((register, same)) if register == same => {
                if let Constant(value) = self.get(register) {
                    Some(value == 0)
                } else {
                    None
                }
            }
            _ => None,
        };
        if matches!(one.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            // What is given a buffer of the caller's first fills it and returns it, as `memcpy` does.
            let returned = match self.argument(0) {
                Argument(n) | Near(n) if n > 0 => Near(n),
                _ => Unknown,
            };
            for register in CHANGED {
                self.registers[register] = Unknown;
            }
            self.registers[RESULT] = returned;
            return;
        }
        match one.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = self.operand(one, 1);
                self.put(one, value);
            }
            Mnemonic::Lea => {
                let (base, index) = (self.get(one.memory_base()), self.get(one.memory_index()));
                let value = match (self.slot(one), base.moved(), index.moved()) {
                    (Some(at), ..) => Frame(at),
                    (None, Unknown, near) | (None, near, Unknown) => near,
                    _ => Unknown,
                };
                // What others can write to is not known.
                if let Some(at) = self.slot(one) {
                    self.frame.remove(&at);
                }
                self.set(one.op0_register(), value);
            }
            Mnemonic::Push => {
                let value = self.operand(one, 0);
                if let Frame(sp) = self.registers[SP] {
                    self.registers[SP] = Frame(sp - 8);
                    self.store(sp - 8, 8, value);
                }
            }
            Mnemonic::Pop => {
                if let Frame(sp) = self.registers[SP] {
                    let value = self.frame.get(&sp).map_or(Unknown, |(value, _)| *value);
                    self.put(one, value);
                    self.registers[SP] = Frame(sp + 8);
                }
            }
            Mnemonic::Leave => {
                self.registers[SP] = self.registers[FRAME];
                if let Frame(sp) = self.registers[SP] {
                    self.registers[FRAME] = self.frame.get(&sp).map_or(Unknown, |(value, _)| *value);
                    self.registers[SP] = Frame(sp + 8);
                }
            }
            Mnemonic::Add | Mnemonic::Sub => {
                let (old, by) = (self.operand(one, 0), self.operand(one, 1));
                let sign = if one.mnemonic() == Mnemonic::Add { 1 } else { -1 };
                let value = match (old, by) {
                    (Frame(at), Constant(by)) => at.checked_add(by.saturating_mul(sign)).map_or(Unknown, Frame),
                    (Argument(n) | Near(n), _) => Near(n),
                    (_, Argument(n) | Near(n)) if sign > 0 => Near(n),
                    _ => Unknown,
                };
                self.put(one, value);
            }
            Mnemonic::Xor if one.op0_kind() == OpKind::Register && one.op0_register() == one.op1_register() => {
                self.set(one.op0_register(), Constant(0));
            }
            // A conditional `mov`.
            _ if one.condition_code() != ConditionCode::None && one.op_count() == 2 => {
                let value = self.operand(one, 0).join(self.operand(one, 1));
                self.put(one, value);
            }
            _ => self.forget(one, facts),
        }
    }

    /// Forgets what an instruction changes in a way that is not followed.
    fn forget(&mut self, one: &Instruction, facts: &mut InstructionInfoFactory) {
        let changes = |access| {
            matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
        };
        let found = facts.info(one);
        for used in found.used_registers().iter().filter(|used| changes(used.access())) {
            let full = used.register().full_register();
            if full.is_gpr64() {
                self.registers[full.number() & 15] = Unknown;
            }
        }
        if found.used_memory().iter().any(|used| changes(used.access()))
            && let Some(at) = self.slot(one)
        {
            self.store(at, one.memory_size().size().max(8) as u32, Unknown);
        }
    }
}

/// Follows the code of the function that begins at `address`; each instruction that is reached, in order, with what is
/// known before it. `None` if it is too long.
pub(super) fn follow(code: &[u8], address: u64) -> Option<Vec<(Instruction, MachineState)>> {
    follow_while(code, address, |_| true)
}

/// As [`follow`], and paths end at calls: what an accessor does for objects of another kind, it asks other functions.
pub(super) fn follow_to_calls(code: &[u8], address: u64) -> Option<Vec<(Instruction, MachineState)>> {
    follow_while(code, address, |one| !matches!(one.flow_control(), FlowControl::Call | FlowControl::IndirectCall))
}

fn follow_while(
    code: &[u8],
    address: u64,
    goes_on: impl Fn(&Instruction) -> bool,
) -> Option<Vec<(Instruction, MachineState)>> {
    let mut facts = InstructionInfoFactory::new();
    let mut known: BTreeMap<u64, (Instruction, MachineState)> = BTreeMap::new();
    let mut waiting = vec![(address, MachineState::begin())];
    let mut steps = 0;
    while let Some((mut at, mut state)) = waiting.pop() {
        loop {
            steps += 1;
            if steps > STEPS {
                return None;
            }
            // Where the stack pointer is lost, so is everything.
            if !matches!(state.registers[SP], Frame(_)) {
                break;
            }
            if let Some((_, before)) = known.get_mut(&at) {
                if !before.join(&state) {
                    break;
                }
                state = before.clone();
            }
            let Some(bytes) = at.checked_sub(address).and_then(|at| code.get(usize::try_from(at).ok()?..)) else {
                break;
            };
            let one = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            if one.is_invalid() {
                break;
            }
            known.entry(at).or_insert_with(|| (one, state.clone()));
            if !goes_on(&one) {
                break;
            }
            let takes = state.takes(&one);
            state.step(&one, &mut facts);
            match one.flow_control() {
                FlowControl::ConditionalBranch if takes == Some(true) => {
                    at = one.near_branch_target();
                    continue;
                }
                FlowControl::ConditionalBranch if takes == Some(false) => {}
                FlowControl::ConditionalBranch => waiting.push((one.near_branch_target(), state.clone())),
                FlowControl::UnconditionalBranch => {
                    at = one.near_branch_target();
                    continue;
                }
                FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Exception => break,
                _ => {}
            }
            at = one.next_ip();
        }
    }
    Some(known.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hexadecimal")).collect()
    }

    /// What is known before the only call.
    fn at_call(text: &str) -> MachineState {
        let followed = follow(&bytes(text), 0x1000).expect("short");
        let mut calls = followed.into_iter().filter(|(one, _)| one.flow_control() == FlowControl::Call);
        let (_, state) = calls.next().expect("a call");
        assert!(calls.next().is_none());
        state
    }

    #[test]
    fn arguments_are_followed_to_registers_and_the_frame() {
        // push %r12; mov %rdi,%r12; sub $0x20,%rsp; mov %rdx,0x8(%rsp); mov %r9d,0x4(%rsp); lea 0x10(%rsp),%rcx;
        // xor %r9d,%r9d; add $1,%rdx; call
        let state = at_call(
            "41 54 49 89 fc 48 83 ec 20 48 89 54 24 08 44 89 4c 24 04 48 8d 4c 24 10 45 31 c9 48 83 c2 01 e8 0 0 0 0 c3",
        );
        assert_eq!(state.location(0), Some(Location::Register(12)));
        assert_eq!(state.location(2), Some(Location::Stack(8)));
        assert_eq!(state.location(5), Some(Location::Stack(4)));
        assert_eq!(state.location(4), None, "it is in a register that calls change");
        assert_eq!(state.argument(0), Argument(0));
        assert_eq!(state.argument(2), Near(2));
        assert_eq!(state.argument(3), Frame(-8 - 0x20 + 0x10));
        assert_eq!(state.argument(5), Constant(0));
    }

    #[test]
    fn what_differs_between_paths_is_not_known() {
        // mov %rdi,%rbx; mov %rsi,%rbp; test %eax,%eax; je +6; mov %rdx,%rbx; add $8,%rbp (in turn); call
        let state = at_call("48 89 fb 48 89 f5 85 c0 74 07 48 89 d3 48 83 c5 08 e8 0 0 0 0 c3");
        assert_eq!(state.location(0), None);
        assert_eq!(state.location(1), None);
        assert_eq!(state.registers[5], Near(1));
        // The same, and both paths agree.
        assert_eq!(at_call("48 89 fb 85 c0 74 03 48 89 fb e8 0 0 0 0 c3").location(0), Some(Location::Register(3)));
        // What is called with a buffer returns it: mov %rcx,%rdi; call; mov %rax,%rbx; ret
        let followed = follow(&bytes("48 89 cf e8 0 0 0 0 48 89 c3 c3"), 0).expect("short");
        assert_eq!(followed.last().expect("a return").1.registers[3], Near(3));
        // A call changes what calls may change: call; mov is not reached without it.
        let followed = follow(&bytes("e8 0 0 0 0 48 89 fb c3"), 0).expect("short");
        assert_eq!(followed.last().expect("a return").1.registers[3], Unknown);
    }

    #[test]
    fn paths_end_at_calls_if_they_are_to() {
        // test %eax,%eax; je +8; call; mov %rax,%rdi; lea 0x188(%rdi),%rcx; ret
        let code = bytes("85 c0 74 08 e8 0 0 0 0 48 89 c7 48 8d 8f 88 01 00 00 c3");
        let base = |followed: Vec<(Instruction, MachineState)>| {
            let lea = followed.into_iter().find(|(one, _)| one.mnemonic() == Mnemonic::Lea).expect("its address");
            lea.1.is_first_argument(lea.0.memory_base())
        };
        assert!(base(follow_to_calls(&code, 0x1000).expect("short")));
        assert!(!base(follow(&code, 0x1000).expect("short")), "it may be what the call returned");
    }

    #[test]
    fn loops_end_and_keep_what_they_do_not_change() {
        // push %rbx; mov %rdi,%rbx; mov %rsi,%rbp; call; add $1,%rbp; jne back to the call; ret
        let state = at_call("53 48 89 fb 48 89 f5 e8 0 0 0 0 48 83 c5 01 75 f5 c3");
        assert_eq!((state.location(0), state.registers[5]), (Some(Location::Register(3)), Near(1)));
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(code in proptest::collection::vec(0u8.., 0..400)) {
            if let Some(followed) = follow(&code, u64::MAX - 100) {
                for (one, state) in &followed {
                    let _ = (state.location(0), state.base_field(one), state.result_field(), state.argument(9));
                }
            }
            let _ = follow(&code, 0x40_0000);
        }
    }
}
