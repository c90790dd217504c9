//! Strings of V8: flat ones, two together, parts of others, and those outside of the heap.

use super::{ENDS, Heap, SOURCE, small};
use crate::process_memory::ProcessMemory;
use crate::python_code::NAME;

/// Kinds, by their lowest bits: how it is stored, whether its characters have one byte.
const REPRESENTATION: u16 = 7;
const FLAT: u16 = 0;
const CONS: u16 = 1;
const EXTERNAL: u16 = 2;
const SLICED: u16 = 3;
const THIN: u16 = 5;
const ONE_BYTE: u16 = 8;
/// Of a string outside of the heap: only what owns it knows where.
const UNCACHED: u16 = 16;
/// Strings that one leads to at most.
const PARTS: u32 = 256;
/// Characters that are read at once.
const PIECE: u64 = 8 << 10;

/// A part of a string that still has to be read: from which character on, and how many.
type Part = (u64, u64, u64);

impl<M: ProcessMemory> Heap<'_, M> {
    /// The text of a string; its end, where it is long: of names of files that says most.
    pub(super) fn name(&mut self, string: u64) -> Option<String> {
        let length = self.length(string)?;
        let count = length.min(NAME as u64);
        let mut units = Vec::new();
        self.pieces((string, length - count, count), |piece| units.extend_from_slice(piece))?;
        Some(String::from_utf16_lossy(&units))
    }

    /// Where the lines of a text end.
    pub(super) fn ends(&mut self, string: u64) -> Option<Vec<u32>> {
        let length = self.length(string).filter(|length| *length <= SOURCE)?;
        let (mut ends, mut at, mut is_return) = (Vec::new(), 0u32, false);
        self.pieces((string, 0, length), |piece| {
            for unit in piece {
                // A line feed behind a carriage return ends the same line.
                if is_return && *unit == 10 {
                    ends.pop();
                }
                is_return = *unit == 13;
                if matches!(*unit, 10 | 13 | 0x2028 | 0x2029) && ends.len() <= ENDS {
                    ends.push(at);
                }
                at += 1;
            }
        })?;
        (ends.len() <= ENDS).then_some(ends)
    }

    fn length(&mut self, string: u64) -> Option<u64> {
        (self.kind(string)? < self.constants.first_no_string).then_some(())?;
        self.bytes(string, self.constants.string_length).map(u32::from_le_bytes).map(u64::from)
    }

    /// Passes a part of a string on, piece by piece.
    fn pieces(&mut self, whole: Part, mut piece: impl FnMut(&[u16])) -> Option<()> {
        let known = self.constants;
        let (mut parts, mut left) = (vec![whole], PARTS);
        while let Some((string, from, count)) = parts.pop() {
            left = left.checked_sub(1)?;
            let (length, kind) = (self.length(string)?, self.kind(string)?);
            if count == 0 {
                continue;
            }
            if from.checked_add(count)? > length {
                return None;
            }
            match kind & REPRESENTATION {
                THIN => parts.push((self.object(string, known.thin_actual)?, from, count)),
                SLICED => {
                    let begin = small(self.word(string, known.sliced_offset)?)?;
                    parts.push((self.object(string, known.sliced_parent)?, from + u64::from(begin), count));
                }
                CONS => {
                    let (first, second) =
                        (self.object(string, known.cons_first)?, self.object(string, known.cons_second)?);
                    let middle = self.length(first)?;
                    // The first one is read first.
                    if from + count > middle {
                        let begin = from.max(middle);
                        parts.push((second, begin - middle, from + count - begin));
                    }
                    if from < middle {
                        parts.push((first, from, count.min(middle - from)));
                    }
                }
                FLAT | EXTERNAL => {
                    let width = if kind & ONE_BYTE == 0 { 2 } else { 1 };
                    let begin = if kind & REPRESENTATION == EXTERNAL {
                        (kind & UNCACHED == 0).then(|| self.word(string, known.external_resource + 8))??
                    } else {
                        let offset = if width == 1 { known.string_one_byte } else { known.string_two_byte };
                        string.checked_sub(1)?.checked_add(offset.into())?
                    };
                    self.flat(begin.checked_add(from * width)?, count, width, &mut piece)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    fn flat(&mut self, begin: u64, count: u64, width: u64, piece: &mut impl FnMut(&[u16])) -> Option<()> {
        let (mut raw, mut units) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < count {
            let now = PIECE.min(count - done);
            raw.resize((now * width) as usize, 0);
            if !self.memory.read(begin.checked_add(done * width)?, &mut raw) {
                return None;
            }
            units.clear();
            if width == 1 {
                units.extend(raw.iter().map(|byte| u16::from(*byte)));
            } else {
                units.extend(
                    raw.chunks_exact(2).filter_map(|pair| pair.first_chunk()).map(|pair| u16::from_le_bytes(*pair)),
                );
            }
            piece(&units);
            done += now;
        }
        Some(())
    }
}
