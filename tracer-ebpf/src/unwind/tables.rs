//! Tables of unwind rules, as user space wrote them: file to directory, directory to rows, row to rule.

use core::{mem::MaybeUninit, ptr};

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    bindings::BPF_NOEXIST,
    btf_maps::{Array as BtfArray, ArrayOfMaps},
    macros::{btf_map, map},
    maps::{Array, HashMap, RingBuf},
};
use tracer_common::unwind::{
    CHUNK_WORDS, CHUNKS, FILE_FRAME_POINTERS, FILE_PENDING, FILE_TABLE, FILES, FileEntry, FileKey, PAGE_SHIFT,
    REQUEST_RING_BYTES, RULES, Rule, TableRequest,
};

use super::Walk;
use crate::bound::{if_less, masked};

/// A chunk of the arena; user space writes it through a mapping.
type Chunk = [u64; CHUNK_WORDS as usize / 2];

#[btf_map]
static UNWIND_CHUNKS: ArrayOfMaps<BtfArray<Chunk, 1, { BPF_F_MMAPABLE as usize }>, { CHUNKS as usize }> =
    ArrayOfMaps::new();

#[map]
static UNWIND_FILES: HashMap<FileKey, FileEntry> = HashMap::with_max_entries(FILES, 0);

#[map]
static UNWIND_RULES: Array<Rule> = Array::with_max_entries(RULES, 0);

#[map]
static UNWIND_REQUESTS: RingBuf = RingBuf::with_byte_size(REQUEST_RING_BYTES, 0);

/// Takes over what is known of the walk's file; whether anything is. `shift`: added to an address, gives its offset in the file.
#[inline(always)]
pub(super) fn file(walk: &mut Walk, shift: u64) -> bool {
    let key = walk.key;
    let Some(entry) = UNWIND_FILES.get_ptr_mut(key) else { return false };
    // SAFETY: an element of the map; user space replaces elements as a whole.
    let entry = unsafe { &mut *entry };
    walk.state = entry.state as u64;
    if entry.state == FILE_TABLE {
        walk.directory = entry.directory as u64;
        walk.pages = entry.pages as u64;
        walk.shift = shift.wrapping_sub(entry.from);
    } else if entry.state == FILE_PENDING {
        // The walk ends here. By these counts user space chooses whose table it makes first; counts that CPUs lose to each
        // other do not change that.
        entry.waiting = entry.waiting.wrapping_add(1);
    }
    let second = walk.second as u32;
    // Written once in a second only: every CPU shares the line.
    if entry.used != second {
        entry.used = second;
    }
    true
}

/// Asks user space for the table of the walk's file, unless that was done.
///
/// # Safety
/// `walk` is valid.
#[inline(always)]
pub(super) unsafe fn ask(tgid: u32, walk: *const Walk) {
    // SAFETY: the caller's promise.
    let (key, start, end, second) = unsafe {
        (
            (&raw const (*walk).key).read_volatile(),
            (&raw const (*walk).start).read_volatile(),
            (&raw const (*walk).end).read_volatile(),
            (&raw const (*walk).second).read_volatile(),
        )
    };
    let entry = FileEntry {
        state: FILE_PENDING,
        directory: 0,
        pages: 0,
        used: second as u32,
        from: 0,
        waiting: 1,
        reserved: 0,
    };
    if UNWIND_FILES.insert(key, entry, BPF_NOEXIST as u64).is_ok() && !request(&key, start, end, tgid) {
        // The next walk asks again.
        let _ = UNWIND_FILES.remove(key);
    }
}

/// Asks for the table of code that a process made; until there is an answer, frame pointers lead on.
#[inline(always)]
pub(super) fn ask_for_jit_code(tgid: u32) {
    let key = FileKey::jit_code(tgid);
    let entry =
        FileEntry { state: FILE_FRAME_POINTERS, directory: 0, pages: 0, used: 0, from: 0, waiting: 0, reserved: 0 };
    if UNWIND_FILES.insert(key, entry, BPF_NOEXIST as u64).is_ok() && !request(&key, 0, 0, tgid) {
        let _ = UNWIND_FILES.remove(key);
    }
}

/// Asks user space for a table, whether that was done before or not; whether there was room.
#[inline(always)]
pub(super) fn request(key: &FileKey, start: u64, end: u64, tgid: u32) -> bool {
    UNWIND_REQUESTS.output::<TableRequest>(TableRequest { key: *key, start, end, tgid, reserved: 0 }, 0).is_ok()
}

/// The rule in force at `place`; `None` where the table does not cover it.
#[inline(always)]
pub(super) fn rule(walk: &Walk, place: u64) -> Option<&'static Rule> {
    let offset = place.wrapping_add(walk.shift);
    let page = offset >> PAGE_SHIFT;
    if page >= walk.pages {
        return None;
    }
    let directory = chunk(walk.directory)?;
    // SAFETY: the mask keeps it within the chunk.
    let entry = unsafe { long(directory, walk.directory + page * 2) };
    let (mut at, mut len) = (entry & 0xffff_ffff, (entry >> 32) & 0x1ffff);
    let rows = chunk(at)?;
    // The last row that does not begin behind the place: less than the first row number of the byte that follows.
    let target = ((offset & ((1 << PAGE_SHIFT) - 1)) + 1) << 16;
    for _ in 0..=PAGE_SHIFT {
        let half = len >> 1;
        if half == 0 {
            break;
        }
        // SAFETY: as above.
        let row = unsafe { word(rows, at + half) };
        at += if_less(row, target, half);
        len -= half;
    }
    // SAFETY: as above.
    UNWIND_RULES.get(unsafe { word(rows, at) } as u32 & 0xffff)
}

/// The chunk in which word `index` of the arena lies.
#[inline(always)]
fn chunk(index: u64) -> Option<*const u8> {
    let mut key = MaybeUninit::<u32>::uninit();
    // On the stack: a constant 0 would be merged with a global that is 0 until user space sets it.
    // SAFETY: a variable of our own, written before it is read.
    let key = unsafe {
        key.as_mut_ptr().write_volatile(0);
        key.assume_init_ref()
    };
    UNWIND_CHUNKS.get_value((index / CHUNK_WORDS as u64) as u32, key).map(|chunk| ptr::from_ref(chunk).cast())
}

/// The eight bytes at word `index` (even), of its chunk.
///
/// # Safety
/// `chunk` is one.
#[inline(always)]
unsafe fn long(chunk: *const u8, index: u64) -> u64 {
    const MASK: i32 = CHUNK_WORDS as i32 - 2;
    // SAFETY: masked; the caller's promise.
    unsafe { chunk.add((masked::<MASK>(index) << 2) as usize).cast::<u64>().read_volatile() }
}

/// Word `index`, of its chunk.
///
/// # Safety
/// `chunk` is one.
#[inline(always)]
unsafe fn word(chunk: *const u8, index: u64) -> u64 {
    const MASK: i32 = CHUNK_WORDS as i32 - 1;
    // SAFETY: masked; the caller's promise.
    unsafe { chunk.add((masked::<MASK>(index) << 2) as usize).cast::<u32>().read_volatile() as u64 }
}
