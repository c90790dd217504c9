//! Compiled code of HotSpot: heaps of blocks, each with a blob, with its kind and the size of its frames.
//!
//! A heap's *segments* (128 bytes in most builds) have a byte each: 0 where a block begins, 255 where there is none, else how far
//! back towards the beginning (`CodeHeap::find_block_for`, `src/hotspot/share/memory/heap.cpp`).

use std::ops::Range;

use super::layout::{CodeBegin, HotspotLayout, text};
use super::{inlined_methods, method_names};
use crate::process_memory::{ProcessMemory, number, word};

/// Most heaps: builds have one or three.
const HEAPS: u32 = 8;
/// Most bytes from the lowest to the highest address of code that is used: the directory of a table has eight bytes for each page of
/// it, and lies in one chunk. By default a virtual machine reserves 240 MB, and uses them from the bottom.
pub const RANGE: u64 = 511 << 20;
/// Binary logarithm of a segment's bytes: from and to.
const SHIFTS: Range<u32> = 6..13;
/// Most blobs that are looked at; a large server has 20 000.
const BLOBS: usize = 1 << 16;
/// A segment without a block.
const FREE: u8 = 255;
/// Most steps back to the beginning of a block: each goes back up to 254 segments.
const STEPS: usize = 4096;
/// Most bytes of the name of a blob.
const BLOB_NAME: usize = 64;
/// Largest frame that is believed, words.
const FRAME_WORDS: u32 = 1 << 13;

/// A heap of code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Heap {
    memory: Range<u64>,
    segments: u64,
    shift: u32,
}

/// What a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// A compiled method, or a bridge to a native one.
    Method,
    /// The interpreter.
    Interpreter,
    /// Code that is jumped through on the way to a method, without a frame of its own.
    Adapter,
    /// The machine's own code.
    Runtime,
}

impl BlobKind {
    /// By the name that the machine gave it.
    fn of(name: &str) -> Self {
        match name {
            "nmethod" | "native nmethod" => Self::Method,
            "Interpreter" | "interpreter" => Self::Interpreter,
            "vtable chunks" | "I2C/C2I adapters" => Self::Adapter,
            _ => Self::Runtime,
        }
    }
}

/// A blob of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeBlob {
    /// Where it begins.
    pub at: u64,
    /// What it is.
    pub kind: BlobKind,
    /// Its code.
    pub code: Range<u64>,
    /// The method it is of; 0: of none.
    pub method: u64,
    /// Bytes of a frame, with the return address and the saved frame pointer; 0: not known.
    pub frame: u32,
}

/// Where a machine's code is.
#[derive(Clone, Debug)]
pub struct CodeCache<'a> {
    layout: &'a HotspotLayout,
    heaps: Vec<Heap>,
    range: Range<u64>,
}

impl<'a> CodeCache<'a> {
    /// Reads where it is; `None` where it cannot be, or is not believed.
    pub fn read(memory: &mut impl ProcessMemory, layout: &'a HotspotLayout) -> Option<Self> {
        let range = word(memory, layout.low)?..word(memory, layout.high)?;
        let list = word(memory, layout.heaps)?;
        let count = half(memory, list.checked_add(layout.list_len)?)?.min(HEAPS);
        let data = word(memory, list.checked_add(layout.list_data)?)?;
        let (mut heaps, mut bytes) = (Vec::new(), 0);
        for number in 0..count {
            let heap = word(memory, data.checked_add(8 * u64::from(number))?)?;
            let space = heap.checked_add(layout.heap_memory)?;
            let low = word(memory, space.checked_add(layout.space_low)?)?;
            let high = word(memory, space.checked_add(layout.space_high)?)?;
            let segments = heap.checked_add(layout.heap_segments)?.checked_add(layout.space_low)?;
            let segments = word(memory, segments)?;
            let shift = half(memory, heap.checked_add(layout.heap_shift)?)?;
            if low < range.start || high > range.end || low > high || !SHIFTS.contains(&shift) {
                return None;
            }
            bytes = u64::saturating_add(bytes, high - low);
            if bytes > RANGE {
                return None;
            }
            heaps.push(Heap { memory: low..high, segments, shift });
        }
        let low = heaps.iter().map(|heap| heap.memory.start).min()?;
        let high = heaps.iter().map(|heap| heap.memory.end).max()?;
        (high - low <= RANGE).then_some(Self { layout, heaps, range: low..high })
    }

    /// From the lowest to the highest address that code has.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The maps of segments of all heaps, as far as they are used: they change when blobs come and go.
    pub fn segments(&self, memory: &mut impl ProcessMemory) -> Option<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for heap in &self.heaps {
            let bytes = (heap.memory.end - heap.memory.start) >> heap.shift;
            let mut map = vec![FREE; usize::try_from(bytes).ok()?];
            if !memory.read(heap.segments, &mut map) {
                return None;
            }
            all.push(map);
        }
        Some(all)
    }

    /// The blobs in use, by maps of [`Self::segments`].
    pub fn blobs(&self, memory: &mut impl ProcessMemory, segments: &[Vec<u8>]) -> Vec<CodeBlob> {
        let mut all = Vec::new();
        for (heap, map) in self.heaps.iter().zip(segments) {
            let begins = map.iter().enumerate().filter(|(_, segment)| **segment == 0);
            for (number, _) in begins.take(BLOBS) {
                all.extend(self.block(memory, heap, number as u64));
            }
        }
        all.sort_by_key(|blob| blob.code.start);
        all
    }

    /// The blob of the block that begins with segment `number`.
    fn block(&self, memory: &mut impl ProcessMemory, heap: &Heap, number: u64) -> Option<CodeBlob> {
        let layout = self.layout;
        let block = heap.memory.start.checked_add(number.checked_shl(heap.shift)?)?;
        let mut used = [0];
        if !memory.read(block.checked_add(layout.block_used)?, &mut used) || used == [0] {
            return None;
        }
        let at = block.checked_add(layout.block_bytes)?;
        let member = |offset: u64| at.checked_add(offset);
        let name = word(memory, member(layout.blob_name)?)?;
        let kind = BlobKind::of(&text::<BLOB_NAME>(memory, name)?);
        let begin = match layout.blob_code {
            CodeBegin::Address(offset) => word(memory, member(offset)?)?,
            CodeBegin::Distance(offset) => member(half(memory, member(offset)?)?.into())?,
        };
        let end = member(half(memory, member(layout.blob_data)?)?.into())?;
        if begin < at || end < begin || end > heap.memory.end {
            return None;
        }
        let words = half(memory, member(layout.blob_frame)?)?;
        let frame = if words < FRAME_WORDS { words * 8 } else { 0 };
        let method = if kind == BlobKind::Method { word(memory, member(layout.method)?)? } else { 0 };
        Some(CodeBlob { at, kind, code: begin..end, method, frame })
    }

    /// The blob at an address.
    pub fn find(&self, memory: &mut impl ProcessMemory, address: u64) -> Option<CodeBlob> {
        let heap = self.heaps.iter().find(|heap| heap.memory.contains(&address))?;
        let mut number = (address - heap.memory.start) >> heap.shift;
        for _ in 0..STEPS {
            let mut back = [FREE];
            if !memory.read(heap.segments.checked_add(number)?, &mut back) || back == [FREE] {
                return None;
            }
            if back == [0] {
                return self.block(memory, heap, number).filter(|blob| address < blob.code.end.max(blob.at));
            }
            number = number.checked_sub(back[0].into())?;
        }
        None
    }

    /// What the code at an address is called: `class.method`, and what was inlined there, outermost first; or what part of the machine
    /// it is. Empty where there is no code that is known.
    pub fn names(&self, memory: &mut impl ProcessMemory, address: u64) -> Vec<String> {
        let Some(blob) = self.find(memory, address) else { return Vec::new() };
        match blob.kind {
            BlobKind::Method => {
                let inlined = inlined_methods::methods_at(memory, self.layout, &blob, address);
                let methods = inlined.unwrap_or_else(|| vec![blob.method]);
                methods.into_iter().rev().map_while(|method| method_names::name(memory, self.layout, method)).collect()
            }
            BlobKind::Interpreter => vec!["[Java interpreter]".to_owned()],
            BlobKind::Adapter | BlobKind::Runtime => vec!["[Java runtime]".to_owned()],
        }
    }
}

/// Four bytes of memory.
pub(super) fn half(memory: &mut impl ProcessMemory, at: u64) -> Option<u32> {
    number::<4>(memory, at).map(|number| number as u32)
}

#[cfg(test)]
mod tests;
