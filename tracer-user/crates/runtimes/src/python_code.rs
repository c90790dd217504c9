//! Code objects of `CPython`: names, files and lines, read from the memory of a process that may say anything.
//!
//! Pure and total: every length is bounded, kinds are checked, and a code object whose words are not those that the kernel
//! side saw, or that has no owner any more, gives nothing: it was freed, and its strings may be another's. That of a module is as soon
//! as it was imported.

use std::ops::Range;

use tracer_common::interpreter::{FRAME_VERSION_SHIFT, InterpretedFrame, Language, PYTHON_INDEX, fold};

use super::process_memory::{ProcessMemory, word};

/// Most characters read of a name.
pub(super) const NAME: usize = 512;
/// Most bytes of a line table.
const TABLE: usize = 64 << 10;

/// What a code object says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its qualified name (until 3.10 the bare name).
    pub name: String,
    /// Its file, as it was compiled from; the end of a long path.
    pub file: String,
    /// The line its definition begins at.
    pub first: u32,
    /// Which instruction belongs to which line; empty if it was not asked for.
    pub table: Vec<u8>,
}

impl Code {
    /// Whether this is a function of Python that was read without its lines.
    pub fn lacks_lines(&self, frame: &InterpretedFrame) -> bool {
        self.table.is_empty() && Language::of_flags(frame.flags) == Language::Python
    }
}

/// Offsets of one minor version: in a code object, in strings and in bytes.
struct Offsets {
    minor: u32,
    /// Four words: file, name, qualified name (since 3.11), line table.
    names: u64,
    first: u64,
    /// The first instruction.
    body: u64,
    /// Characters of a string that is ASCII, and of another.
    ascii: u64,
    other: u64,
}

const OFFSETS: &[Offsets] = &[
    Offsets { minor: 9, names: 104, first: 40, body: 0, ascii: 48, other: 72 },
    Offsets { minor: 10, names: 104, first: 40, body: 0, ascii: 48, other: 72 },
    Offsets { minor: 11, names: 112, first: 72, body: 184, ascii: 48, other: 72 },
    Offsets { minor: 12, names: 112, first: 68, body: 192, ascii: 40, other: 56 },
    Offsets { minor: 13, names: 112, first: 68, body: 200, ascii: 40, other: 56 },
    Offsets { minor: 14, names: 112, first: 68, body: 208, ascii: 40, other: 56 },
    Offsets { minor: 15, names: 112, first: 68, body: 208, ascii: 40, other: 56 },
];

/// First version with qualified names, and with positions as addresses.
const QUALIFIED: u32 = 11;

fn offsets(frame: &InterpretedFrame) -> Option<&'static Offsets> {
    let minor = frame.flags >> FRAME_VERSION_SHIFT;
    OFFSETS.iter().find(|offsets| offsets.minor == minor)
}

fn words(memory: &mut impl ProcessMemory, at: u64) -> Option<[u64; 4]> {
    let mut bytes = [0; 32];
    if !memory.read(at, &mut bytes) {
        return None;
    }
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(*bytes.first_chunk()?);
    }
    Some(words)
}

/// In every object: how many refer to it, and its type; in a type: its name.
const TYPE: u64 = 8;
const TYPE_NAME: u64 = 24;
/// Numbers of references that are believed of a code object; and of one that is never freed (3.11: 999 999 999 and more).
const REFERENCES: Range<u64> = 1..1 << 20;
const NEVER_FREED: Range<u64> = 999_000_000..1 << 32;
/// Flags of an object, above its number of references (since 3.14); zeros before.
const OBJECT_FLAGS: u32 = 48;

/// Whether a code object has an owner. Where memory is freed, the allocators link it to other free memory by an address in the
/// place of the number of references: none, or one that lies between these or above them.
fn has_owner(memory: &mut impl ProcessMemory, code: u64) -> bool {
    let Some(references) = word(memory, code).map(|word| word & ((1 << OBJECT_FLAGS) - 1)) else { return false };
    if !REFERENCES.contains(&references) && !NEVER_FREED.contains(&references) {
        return false;
    }
    let mut name = [0; 5];
    let type_name = code.checked_add(TYPE).and_then(|at| word(memory, at)?.checked_add(TYPE_NAME));
    let type_name = type_name.and_then(|at| word(memory, at));
    type_name.is_some_and(|at| memory.read(at, &mut name)) && name == *b"code\0"
}

/// Reads the code object of a frame, its line table too if `lines`; `None` if it is not there any more.
pub fn read(memory: &mut impl ProcessMemory, frame: &InterpretedFrame, lines: bool) -> Option<Code> {
    let offsets = offsets(frame)?;
    let at = |offset: u64| frame.code.checked_add(offset);
    let found = words(memory, at(offsets.names)?)?;
    if fold(&found) != frame.cookie || !has_owner(memory, frame.code) {
        return None;
    }
    let [file, name, third, fourth] = found;
    let (name, table) = if offsets.minor >= QUALIFIED { (third, fourth) } else { (name, third) };
    let mut first = [0; 4];
    if !memory.read(at(offsets.first)?, &mut first) {
        return None;
    }
    let code = Code {
        name: string(memory, offsets, name, false)?,
        file: string(memory, offsets, file, true)?,
        first: u32::from_ne_bytes(first),
        table: if lines { bytes(memory, table)? } else { Vec::new() },
    };
    // Freed meanwhile?
    (words(memory, at(offsets.names)?)? == found && has_owner(memory, frame.code)).then_some(code)
}

/// The text of a string object of Python 3.`minor`; its beginning, where it is long.
pub(super) fn text(memory: &mut impl ProcessMemory, minor: u64, at: u64) -> Option<String> {
    let offsets = OFFSETS.iter().find(|offsets| u64::from(offsets.minor) == minor)?;
    string(memory, offsets, at, false)
}

/// A string object; its beginning, or its end, where it is long.
fn string(memory: &mut impl ProcessMemory, offsets: &Offsets, at: u64, end: bool) -> Option<String> {
    let mut head = [0; 40];
    if !memory.read(at, &mut head) {
        return None;
    }
    let length = usize::try_from(u64::from_ne_bytes(*head.get(16..)?.first_chunk()?)).ok()?;
    let state = u32::from_ne_bytes(*head.get(32..)?.first_chunk()?);
    let (width, compact, ascii) = ((state >> 2 & 7) as usize, state >> 5 & 1, state >> 6 & 1);
    // No name has a million characters.
    if compact == 0 || !matches!(width, 1 | 2 | 4) || length > 1 << 20 {
        return None;
    }
    let count = length.min(NAME);
    let skipped = if end { (length - count) * width } else { 0 };
    let data = if ascii == 1 { offsets.ascii } else { offsets.other };
    let mut raw = vec![0; count * width];
    if !memory.read(at.checked_add(data)?.checked_add(skipped as u64)?, &mut raw) {
        return None;
    }
    let unit = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
    Some(raw.chunks_exact(width).map(|bytes| char::from_u32(unit(bytes)).unwrap_or('\u{fffd}')).collect())
}

/// A bytes object.
fn bytes(memory: &mut impl ProcessMemory, at: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(word(memory, at.checked_add(16)?)?).ok().filter(|length| *length <= TABLE)?;
    let mut raw = vec![0; length];
    memory.read(at.checked_add(32)?, &mut raw).then_some(raw)
}

/// The line a frame is at; `None` where its code has none (the interpreter's own instructions).
pub fn line(frame: &InterpretedFrame, code: &Code) -> Option<u32> {
    let offsets = offsets(frame)?;
    if frame.flags & PYTHON_INDEX != 0 {
        // Of the last instruction; before the first one, -1. 3.10 counts in units of two bytes.
        let Ok(index) = i32::try_from(i64::from(frame.at as i32)) else { return Some(code.first) };
        let Ok(index) = u64::try_from(index) else { return Some(code.first) };
        let pairs = code.table.chunks_exact(2).map(|pair| (u64::from(pair[0]), pair[1] as i8));
        return if offsets.minor == 9 {
            Some(by_lnotab(pairs, index, code.first))
        } else {
            by_pairs(pairs, 2 * index, code.first)
        };
    }
    // In units of two bytes; before the first one, the frame is being made.
    let Some(into) = u64::from(frame.at).checked_sub(offsets.body) else { return Some(code.first) };
    by_entries(&code.table, into / 2, code.first)
}

/// `line`, moved by `by`.
fn moved(line: u32, by: i64) -> u32 {
    u32::try_from(i64::from(line) + by).unwrap_or(0)
}

/// 3.9, `co_lnotab`: bytes of code, then how the line changes behind them.
fn by_lnotab(pairs: impl Iterator<Item = (u64, i8)>, index: u64, first: u32) -> u32 {
    let (mut at, mut line) = (0, first);
    for (bytes, change) in pairs {
        at += bytes;
        if at > index {
            break;
        }
        line = moved(line, i64::from(change));
    }
    line
}

/// 3.10, `co_linetable`: bytes of code, and how their line differs from the one before; -128: they have none.
fn by_pairs(pairs: impl Iterator<Item = (u64, i8)>, index: u64, first: u32) -> Option<u32> {
    let (mut at, mut line) = (0, first);
    for (bytes, change) in pairs {
        if change != i8::MIN {
            line = moved(line, i64::from(change));
        }
        at += bytes;
        if at > index {
            return (change != i8::MIN).then_some(line);
        }
    }
    None
}

/// Since 3.11, `co_linetable`: entries of `1kkkklll` and what kind `k` takes, each for `l` + 1 units of code.
fn by_entries(table: &[u8], index: u64, first: u32) -> Option<u32> {
    let (mut rest, mut at, mut line) = (table.iter().copied(), 0u64, first);
    while let Some(head) = rest.next() {
        let kind = head >> 3 & 15;
        match kind {
            15 => {}
            14 => {
                line = moved(line, signed(&mut rest)?);
                for _ in 0..3 {
                    varint(&mut rest)?;
                }
            }
            13 => line = moved(line, signed(&mut rest)?),
            10..=12 => {
                line = moved(line, i64::from(kind) - 10);
                rest.nth(1)?;
            }
            _ => {
                rest.next()?;
            }
        }
        at += u64::from(head & 7) + 1;
        if at > index {
            return (kind != 15).then_some(line);
        }
    }
    None
}

/// Six bits a byte, the lowest first.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = bytes.next()?;
        if shift < 60 {
            value |= u64::from(byte & 63) << shift;
        }
        shift += 6;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
}

fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = varint(bytes)?;
    let size = i64::try_from(value >> 1).ok()?;
    Some(if value & 1 == 1 { -size } else { size })
}

#[cfg(test)]
mod tests;
