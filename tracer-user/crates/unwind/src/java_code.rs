//! Unwind tables of code that a process made while running: compiled Java. HotSpot knows the frame size of each piece
//! of code; its instructions show the prologue and the epilogues.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use memchr::memmem;
use tracer_common::unwind::{CFA_SENDER, CFA_SP, FP_AT_CFA, Rule};
use tracer_runtimes::hotspot::code_cache::{BlobKind, CodeBlob};

use super::compile::{NONE, Rules, Table, pages};

/// Most instructions until a frame is made; and from where it is given back to the return.
const PROLOGUE: usize = 64;
const EPILOGUE: usize = 12;
/// Most bytes of one piece of code that are looked at for returns.
pub(super) const CODE: u64 = 1 << 20;
/// Return address and saved frame pointer.
const SAVED: u32 = 16;

/// The return address stands so many bytes below where the stack pointer leads; with the frame pointer of the caller below it.
fn frame(bytes: u32, saved: bool) -> Rule {
    let rule = Rule { cfa: CFA_SP, cfa_offset: bytes as i32, ..NONE };
    if saved { Rule { fp: FP_AT_CFA, fp_offset: -16, ..rule } } else { rule }
}

/// What an instruction adds to the frame, bytes; negative where it gives back.
fn grows(instruction: &Instruction) -> i64 {
    let immediate = || match instruction.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => Some(instruction.immediate(1) as i64),
        _ => None,
    };
    match instruction.mnemonic() {
        Mnemonic::Push => 8,
        Mnemonic::Pop => -8,
        Mnemonic::Sub if instruction.op0_register() == Register::RSP => immediate().unwrap_or(0),
        Mnemonic::Add if instruction.op0_register() == Register::RSP => -immediate().unwrap_or(0),
        _ => 0,
    }
}

/// Where there is no code, as far as is known: compiled code does not keep frame pointers, and what they lead to is no caller.
const UNKNOWN_CODE: Rule = Rule { extra: 1, ..NONE };

/// Rows of a piece of code: from which address on which rule holds. `code` are its bytes, which may be cut.
pub(super) fn rows(blob: &CodeBlob, code: &[u8], mut row: impl FnMut(u64, Rule)) {
    put(blob, code, &mut row);
    row(blob.code.end, UNKNOWN_CODE);
}

fn put(blob: &CodeBlob, code: &[u8], row: &mut impl FnMut(u64, Rule)) {
    let start = blob.code.start;
    match blob.kind {
        BlobKind::Interpreter => return row(start, Rule { cfa: CFA_SENDER, ..NONE }),
        BlobKind::Adapter => return row(start, frame(8, false)),
        BlobKind::Method | BlobKind::Runtime if blob.frame < SAVED => return row(start, NONE),
        BlobKind::Method | BlobKind::Runtime => {}
    }
    let whole = frame(blob.frame, true);
    match prologue(blob, code) {
        Some(steps) => steps.into_iter().for_each(|(at, rule)| row(at, rule)),
        None => row(start, whole),
    }
    let given_back = blob.frame - SAVED;
    for head in [&[0x48, 0x83, 0xc4][..], &[0x48, 0x81, 0xc4][..]] {
        for at in memmem::find_iter(code, head) {
            epilogue(start, at, code, given_back, whole, row);
        }
    }
}

/// Rows until the frame is made, and from there on; `None` where that is not found.
fn prologue(blob: &CodeBlob, code: &[u8]) -> Option<Vec<(u64, Rule)>> {
    let start = blob.code.start;
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let (mut depth, mut saved) = (8_i64, false);
    let mut steps = vec![(start, frame(8, false))];
    for _ in 0..PROLOGUE {
        if !decoder.can_decode() {
            return None;
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() || instruction.flow_control() == FlowControl::Return {
            return None;
        }
        let more = grows(&instruction);
        if more == 0 {
            continue;
        }
        depth += more;
        saved |= instruction.code() == Code::Push_r64 && instruction.op0_register() == Register::RBP && depth == 16;
        if depth == i64::from(blob.frame) {
            steps.push((instruction.next_ip(), frame(blob.frame, true)));
            return Some(steps);
        }
        let bytes = u32::try_from(depth).ok().filter(|bytes| (8..blob.frame).contains(bytes))?;
        steps.push((instruction.next_ip(), frame(bytes, saved)));
    }
    None
}

/// Rows from where a frame is given back, at `at` of the code, to the return behind it.
fn epilogue(start: u64, at: usize, code: &[u8], bytes: u32, whole: Rule, row: &mut impl FnMut(u64, Rule)) {
    let Some(rest) = code.get(at..) else { return };
    let mut decoder = Decoder::with_ip(64, rest, start + at as u64, DecoderOptions::NONE);
    let mut next = || decoder.can_decode().then(|| decoder.decode()).filter(|one| !one.is_invalid());
    let (Some(add), Some(pop)) = (next(), next()) else { return };
    let is_pop = pop.mnemonic() == Mnemonic::Pop && pop.op0_register() == Register::RBP;
    if grows(&add) != -i64::from(bytes) || !is_pop {
        return;
    }
    for _ in 0..EPILOGUE {
        let Some(one) = next() else { return };
        if matches!(
            one.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        ) {
            row(add.next_ip(), frame(SAVED, true));
            row(pop.next_ip(), frame(8, false));
            row(one.next_ip(), whole);
            return;
        }
    }
}

/// The table of all code of a process, which lies in `range`; rows in any order.
pub(super) fn table(range: &Range<u64>, mut rows: Vec<(u64, Rule)>, rules: &mut Rules) -> Table {
    // Stable: where one piece ends another one may begin.
    rows.sort_by_key(|(at, _)| *at);
    let numbered: Vec<(u64, u16)> = rows.iter().map(|(at, rule)| (*at, rules.number(*rule))).collect();
    let nothing = rules.number(UNKNOWN_CODE);
    pages(range.start, range.end, &numbered, nothing)
}

#[cfg(test)]
mod tests;
