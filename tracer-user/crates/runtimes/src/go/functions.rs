//! Finds a Go program's functions in `.gopclntab`, and the cheapest place for a probe in them. The runtime needs that
//! table to unwind stacks, so stripped programs have it too.
//!
//! The table's format is that of Go 1.20 and later (`runtime/symtab.go`, `pcHeader` and `_func`).

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use super::image::{Image, Source, number};

/// The table's first bytes: magic number, two zeros, smallest instruction, size of a pointer.
const MAGIC: [u8; 8] = [0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
/// Most bytes read of the table. That of a program of 100 MB has some 25 MB.
pub(super) const TABLE: usize = 64 << 20;
/// Most functions in the table, and most bytes of a name.
const COUNT: usize = 1 << 20;
const NAME: usize = 1024;
/// Most bytes of a function that are searched.
const CODE: u64 = 4096;
/// How far Go's first function may be from the start of the code: C code may precede it.
const AHEAD: u64 = 64 << 10;
/// Alignment of functions.
const ALIGNED: usize = 16;

/// `cmp 0x10(%r14),%rsp`: the stack check.
const SMALL: [u8; 4] = [0x49, 0x3b, 0x66, 0x10];
/// `cmp 0x10(%r14),%r12`: the stack check of a function with a large frame.
const LARGE: [u8; 4] = [0x4d, 0x3b, 0x66, 0x10];
/// `push %rbp; mov %rsp,%rbp`.
const FRAME: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];

/// Flags of a function (`internal/abi`, `FuncFlag`): it is the outermost of its stack; it changes the stack pointer by other
/// means than adding a constant; it is written in assembly.
pub(super) const OUTERMOST: u8 = 1;
pub(super) const WRITES_STACK_POINTER: u8 = 2;
pub(super) const ASSEMBLY: u8 = 4;
/// Where its record has them, and where its frame's sizes stand in the tables by instruction.
const FLAGS: usize = 41;
const HEIGHTS: usize = 16;

/// The table.
pub(crate) struct Functions<'a> {
    bytes: Cow<'a, [u8]>,
    count: usize,
    /// Start of the code as in the table; 0 if the table does not have it (since 1.26, and where the loader fills it
    /// in).
    pub(crate) text: u64,
    names: usize,
    /// Tables by instruction.
    by_instruction: usize,
    entries: usize,
}

/// One function.
pub(super) struct Record<'a> {
    pub(super) name: &'a [u8],
    /// Relative to the start of the code.
    pub(super) range: Range<u64>,
    pub(super) flags: u8,
    heights: &'a [u8],
}

impl Record<'_> {
    /// How far the return address is above the stack pointer, in bytes, from which offset in the function on; `None` = it is
    /// not said.
    pub(super) fn heights(&self) -> impl Iterator<Item = (u32, Option<u32>)> + '_ {
        let (mut rest, mut at, mut value) = (self.heights, 0u32, -1i32);
        let end = (self.range.end - self.range.start) as u32;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let first = at;
            let Some((change, length)) = pair(&mut rest).filter(|(change, _)| *change != 0 || first == 0) else {
                at = end;
                return Some((first, None));
            };
            // Its lowest bit is the sign.
            value = value.wrapping_add((change >> 1) as i32 ^ -((change & 1) as i32));
            at = at.saturating_add(length);
            Some((first, u32::try_from(value).ok()))
        })
    }
}

/// Two numbers of seven bits a byte, the lowest first.
fn pair(bytes: &mut &[u8]) -> Option<(u32, u32)> {
    let mut next = || {
        let (mut value, mut shift) = (0u32, 0);
        loop {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift += 7;
        }
    };
    Some((next()?, next()?))
}

impl<'a> Functions<'a> {
    pub(crate) fn read<S: Source + ?Sized>(image: &Image<'_, S>) -> Option<Self> {
        let section = image.section(".gopclntab").filter(|section| section.size <= TABLE as u64)?;
        Self::of(Cow::Owned(image.bytes(section, TABLE)?))
    }

    pub(super) fn of(bytes: Cow<'a, [u8]>) -> Option<Self> {
        if bytes.get(..8)? != MAGIC {
            return None;
        }
        let word = |n: usize| number::<8>(&bytes, 8 + 8 * n).and_then(|word| usize::try_from(word).ok());
        let (count, names, by_instruction, entries) = (word(0)?, word(3)?, word(6)?, word(7)?);
        let text = number::<8>(&bytes, 24)?;
        // One entry more than there are functions: the end of the last one.
        let end = count.checked_add(1)?.checked_mul(8)?.checked_sub(4)?.checked_add(entries)?;
        (count <= COUNT && end <= bytes.len() && names < bytes.len()).then_some(Self {
            bytes,
            count,
            text,
            names,
            by_instruction,
            entries,
        })
    }

    /// The range of the `n`th function, relative to the start of the code.
    fn range(&self, n: usize) -> Option<Range<u64>> {
        let at = self.entries.checked_add(n.checked_mul(8)?)?;
        Some(number::<4>(&self.bytes, at)?..number::<4>(&self.bytes, at.checked_add(8)?)?)
    }

    /// Where the `n`th function's record stands.
    fn record(&self, n: usize) -> Option<usize> {
        let at = self.entries.checked_add(n.checked_mul(8)?)?.checked_add(4)?;
        self.entries.checked_add(number::<4>(&self.bytes, at)? as usize)
    }

    fn name(&self, record: usize) -> Option<&[u8]> {
        let name = number::<4>(&self.bytes, record.checked_add(4)?)? as usize;
        let rest = self.bytes.get(self.names.checked_add(name)?..)?;
        let name = rest.get(..rest.len().min(NAME))?;
        name.get(..memchr(0, name)?)
    }

    /// Calls `each` with the name and range of every function.
    pub(crate) fn each(&self, mut each: impl FnMut(&[u8], Range<u64>)) {
        for n in 0..self.count {
            if let (Some(name), Some(range)) = (self.record(n).and_then(|record| self.name(record)), self.range(n)) {
                each(name, range);
            }
        }
    }

    /// Calls `each` with the record of every function.
    pub(super) fn each_record(&self, mut each: impl FnMut(Record<'_>)) {
        for n in 0..self.count {
            let record = || {
                let (at, range) = (self.record(n)?, self.range(n).filter(|range| range.start <= range.end)?);
                let heights = number::<4>(&self.bytes, at.checked_add(HEIGHTS)?)? as usize;
                let flags = *self.bytes.get(at.checked_add(FLAGS)?)?;
                // 0: there is no such table.
                let heights = if heights == 0 { None } else { self.by_instruction.checked_add(heights) };
                let heights = heights.and_then(|from| self.bytes.get(from..)).unwrap_or_default();
                Some(Record { name: self.name(at)?, range, flags, heights })
            };
            record().into_iter().for_each(&mut each);
        }
    }
}

/// The start of the code that function ranges are relative to: the table's, or the section's, or a little later;
/// accepted only if `caller` calls `callee` there.
pub(crate) fn text<S: Source + ?Sized>(
    image: &Image<'_, S>,
    announced: u64,
    caller: &Range<u64>,
    callee: &Range<u64>,
) -> Option<u64> {
    let section = image.section(".text")?;
    let right = |base: u64| {
        let code = image.code(base.checked_add(callee.start)?, SMALL.len())?;
        (code == SMALL && call(image, base, caller, callee).is_some()).then_some(base)
    };
    let near = || (section.address..section.address.saturating_add(AHEAD)).step_by(ALIGNED).find_map(right);
    right(announced).or_else(near)
}

/// The call from `caller` to `callee`, relative to the start of the code.
pub(crate) fn call<S: Source + ?Sized>(
    image: &Image<'_, S>,
    base: u64,
    caller: &Range<u64>,
    callee: &Range<u64>,
) -> Option<u64> {
    let len = caller.end.checked_sub(caller.start)?.min(CODE);
    let code = image.code(base.checked_add(caller.start)?, len as usize)?;
    let calls = code.windows(5).enumerate().filter(|(at, bytes)| {
        // `call` with the distance from the next instruction. Other bytes match by chance once in 2^32.
        let behind = caller.start as i64 + *at as i64 + 5;
        bytes.first() == Some(&0xe8)
            && number::<4>(bytes, 1).is_some_and(|far| behind + i64::from(far as u32 as i32) == callee.start as i64)
    });
    let mut calls = calls.map(|(at, _)| caller.start + at as u64);
    // Ambiguous if there are several.
    calls.next().filter(|_| calls.next().is_none())
}

/// Offset of the frame setup in a function that starts with `code`: after the stack check, which may restart the
/// function, and at an instruction (`push`) that the kernel emulates instead of single-stepping the program. All
/// arguments are still in registers there.
pub(crate) fn frame(code: &[u8]) -> Option<usize> {
    let looked = match code {
        [0x4c, 0x8d, 0x64, 0x24, _, rest @ ..] if rest.starts_with(&LARGE) => 9,
        [0x4c, 0x8d, 0xa4, 0x24, _, _, _, _, rest @ ..] if rest.starts_with(&LARGE) => 12,
        _ if code.starts_with(&SMALL) => 4,
        _ => return None,
    };
    // `jbe` to the code that grows the stack, short or near.
    let at = match code.get(looked..)? {
        [0x76, ..] => looked + 2,
        [0x0f, 0x86, ..] => looked + 6,
        _ => return None,
    };
    code.get(at..)?.starts_with(&FRAME).then_some(at)
}

/// Whether the beginning of a function sets up a frame.
pub(super) fn has_frame(code: &[u8]) -> bool {
    code.windows(FRAME.len()).any(|bytes| bytes == FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_behind_every_look_at_the_stack() {
        let check = |text: &str, at: Option<usize>| {
            let code: Vec<u8> =
                text.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hexadecimal")).collect();
            assert_eq!(frame(&code), at, "{text}");
            for end in 0..code.len() {
                let cut = frame(&code[..end]);
                assert!(cut.is_none() || cut == at, "{text} cut at {end}");
            }
        };
        // runtime.newproc.func1, runtime.newproc1 and net/http.(*persistConn).roundTrip of Go 1.27.3.
        check("49 3b 66 10 76 53 55 48 89 e5 48 83 ec 20", Some(6));
        check("49 3b 66 10 0f 86 93 04 00 00 55 48 89 e5 48 83", Some(10));
        check("4c 8d a4 24 58 fe ff ff 4d 3b 66 10 0f 86 74 0e 00 00 55 48 89 e5 48 81", Some(18));
        check("4c 8d 64 24 d8 4d 3b 66 10 0f 86 74 0e 00 00 55 48 89 e5", Some(15));
        // No stack check; another register; no frame.
        check("55 48 89 e5 48 83 ec 20", None);
        check("49 3b 66 18 76 53 55 48 89 e5", None);
        check("49 3b 66 10 76 53 48 83 ec 20 48 89", None);
    }

    #[test]
    fn a_table_that_lies_has_no_functions() {
        let mut table = MAGIC.to_vec();
        for word in [2u64, 0, 0, 72, 0, 0, 0, 80] {
            table.extend(word.to_le_bytes());
        }
        table.extend(b"f\0g\0....");
        assert!(Functions::of(Cow::Borrowed(&table)).is_none(), "no entries");
        // Entries: f at 0x10, its record at 20; g at 0x40, with its record out of bounds; the end.
        for word in [0x10u32, 20, 0x40, u32::MAX, 0x50, 0x10, 0] {
            table.extend(word.to_le_bytes());
        }
        let functions = Functions::of(Cow::Borrowed(&table)).expect("a table");
        let mut found = Vec::new();
        functions.each(|name, range| found.push((name.to_vec(), range)));
        assert_eq!(found, [(b"f".to_vec(), 0x10..0x40)]);
        for at in 0..table.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut other = table.clone();
                other[at] = byte;
                if let Some(functions) = Functions::of(Cow::Borrowed(&other)) {
                    functions.each(|_, _| ());
                }
            }
        }
    }
}
