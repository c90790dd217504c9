//! Functions of JavaScript: names, files and lines, read from the heap of a process that may say anything, and whose garbage collector
//! moves objects.
//!
//! Pure and total: every length, depth and number of reads is bounded. An object is believed if its map says that it is of the expected
//! kind, and a function if its words are those that the kernel side saw. Of sources only the ends of lines are looked at.

mod strings;

use rustc_hash::FxHashMap;
use tracer_common::interpreter::{InterpretedFrame, fold};

use super::process_memory::ProcessMemory;
use super::python_code::Code;
use super::v8_constants::V8Constants;

/// Most characters of a source whose lines are counted.
const SOURCE: u64 = 16 << 20;
/// Most ends of lines that are kept of one process.
const ENDS: usize = 1 << 18;
/// Most variables in contexts of one function; more are not believed.
const LOCALS: u64 = 1 << 12;
/// Up to so many stand in the description itself, more in a table apart (`kScopeInfoMaxInlinedLocalNamesSize`).
const LOCALS_INLINE: u64 = 75;
/// Words behind the variables in which name and place are looked for.
const BEHIND: u64 = 8;

/// Whether a word points to an object: it is one byte beyond.
fn is_object(word: u64) -> bool {
    word & 3 == 1
}

/// A small number.
fn small(word: u64) -> Option<u32> {
    (word as u32 == 0).then_some((word >> 32) as u32)
}

/// A process's memory, by the constants of its V8.
struct Heap<'a, M> {
    memory: &'a mut M,
    constants: &'a V8Constants,
}

impl<M: ProcessMemory> Heap<'_, M> {
    fn bytes<const N: usize>(&mut self, object: u64, offset: u16) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let at = object.checked_sub(1)?.checked_add(offset.into())?;
        self.memory.read(at, &mut bytes).then_some(bytes)
    }

    fn word(&mut self, object: u64, offset: u16) -> Option<u64> {
        self.bytes(object, offset).map(u64::from_le_bytes)
    }

    /// An object that a member of another one points to.
    fn object(&mut self, object: u64, offset: u16) -> Option<u64> {
        self.word(object, offset).filter(|word| is_object(*word))
    }

    /// The kind of an object, as its map has it.
    fn kind(&mut self, object: u64) -> Option<u16> {
        let map = self.object(object, 0)?;
        self.bytes(map, self.constants.map_kind).map(u16::from_le_bytes)
    }

    /// The object that a member points to, if it is of this kind.
    fn object_of_kind(&mut self, object: u64, offset: u16, kind: u16) -> Option<u64> {
        let object = self.object(object, offset)?;
        (self.kind(object)? == kind).then_some(object)
    }

    /// Name of a function, and where in its source it begins.
    fn function(&mut self, shared: u64) -> Option<(String, Option<u32>)> {
        let known = self.constants;
        // Not compiled, or V8's own: without a name it has none at all.
        let Some(name) = self.object(shared, known.shared_name) else { return Some((String::new(), None)) };
        let kind = self.kind(name)?;
        if kind < known.first_no_string {
            return Some((self.name(name)?, None));
        }
        if kind != known.kind_scope {
            return None;
        }
        let at = |index: u64| u16::try_from(8 + 8 * index).ok();
        let locals = u64::from(small(self.word(name, at(known.scope_locals.into())?)?)?);
        if locals > LOCALS {
            return None;
        }
        // Their names, or a table of them, and what they are.
        let behind = locals + if locals > LOCALS_INLINE { 1 } else { locals };
        let first = u64::from(known.scope_first) + behind;
        let (mut found, mut numbers) = (String::new(), Vec::new());
        for index in first..first + BEHIND {
            // The description may end before, and the page with it.
            let Some(word) = self.word(name, at(index)?) else { break };
            if let Some(number) = small(word) {
                numbers.push(number);
                continue;
            }
            // Where the function begins and ends are the last numbers before the description outside.
            if numbers.len() >= 2 {
                break;
            }
            numbers.clear();
            if found.is_empty() && is_object(word) && self.kind(word).is_some_and(|kind| kind < known.first_no_string) {
                found = self.name(word).unwrap_or_default();
            }
        }
        // Since V8 13 (Node.js 24) they stand between the number of variables and the first one.
        let before = u64::from(known.scope_locals) + 1;
        if u64::from(known.scope_first) >= before + 2 {
            let mut number = |index| small(self.word(name, at(index)?)?);
            numbers = [number(before), number(before + 1)].into_iter().flatten().collect();
        }
        let begin = match numbers[..] {
            [.., begin, end] if begin <= end => Some(begin),
            _ => None,
        };
        Some((found, begin))
    }

    /// The line, counted from 1, of a place in a script.
    fn line(&mut self, script: u64, place: u32, lines: &mut ScriptLines) -> Option<u32> {
        let known = self.constants;
        if let Some(ends) = self.object_of_kind(script, known.script_line_ends, known.kind_array) {
            return self.line_by_ends(ends, place);
        }
        let source = self.object(script, known.script_source)?;
        if let Some(ends) = lines.scripts.get(&(script, source)) {
            return Some(1 + ends.partition_point(|end| *end < place) as u32);
        }
        let ends = self.ends(source)?;
        let line = 1 + ends.partition_point(|end| *end < place) as u32;
        lines.keep((script, source), ends);
        Some(line)
    }

    /// The same where V8 has made a table of where lines end.
    fn line_by_ends(&mut self, ends: u64, place: u32) -> Option<u32> {
        let known = self.constants;
        let (mut low, mut high) = (0, small(self.word(ends, known.array_length)?)?);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = ends.checked_add(8 * u64::from(middle))?;
            if small(self.word(at, known.array_data)?)? < place {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_add(1)
    }
}

/// Where lines of scripts end, of those for which V8 has made no table. Of one process.
#[derive(Debug, Default)]
pub struct ScriptLines {
    /// By script and source.
    scripts: FxHashMap<(u64, u64), Box<[u32]>>,
    ends: usize,
}

impl ScriptLines {
    fn keep(&mut self, script: (u64, u64), ends: Vec<u32>) {
        if self.ends + ends.len() > ENDS || self.scripts.len() > ENDS {
            *self = Self::default();
        }
        self.ends += ends.len();
        self.scripts.insert(script, ends.into());
    }
}

/// What a function without a name is called, as V8 does.
const ANONYMOUS: &str = "(anonymous)";

/// Reads the function of a frame; `None` if it is not there any more. Its file is empty if it is V8's own, its line 0 if that is not
/// known.
pub fn read(
    memory: &mut impl ProcessMemory,
    constants: &V8Constants,
    frame: &InterpretedFrame,
    lines: &mut ScriptLines,
) -> Option<Code> {
    let mut heap = Heap { memory, constants };
    let shared = frame.code;
    let words = |heap: &mut Heap<'_, _>| {
        let of = |heap: &mut Heap<'_, _>, offset| heap.word(shared, offset);
        Some([of(heap, 0)?, of(heap, constants.shared_name)?, of(heap, constants.shared_script)?, 0])
    };
    if fold(&words(&mut heap)?) != frame.cookie || heap.kind(shared)? != constants.kind_shared {
        return None;
    }
    let (name, begin) = heap.function(shared)?;
    let script = heap.object_of_kind(shared, constants.shared_script, constants.kind_script);
    let (mut file, mut first) = (String::new(), 0);
    if let Some(script) = script {
        file = heap.object(script, constants.script_name).and_then(|name| heap.name(name)).unwrap_or_default();
        if file.is_empty() {
            // Made by `eval` or `new Function`.
            ANONYMOUS.clone_into(&mut file);
        }
        first = begin.and_then(|begin| heap.line(script, begin, lines)).unwrap_or(0);
    }
    // Moved meanwhile?
    if fold(&words(&mut heap)?) != frame.cookie {
        return None;
    }
    let name = if name.is_empty() { ANONYMOUS.to_owned() } else { name };
    Some(Code { name, file, first, table: Vec::new() })
}

#[cfg(test)]
mod tests;
