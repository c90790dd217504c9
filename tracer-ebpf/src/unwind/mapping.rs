//! The mapping of an address, from the kernel's own tree of mappings (a maple tree, `include/linux/maple_tree.h`): no list
//! per process that would have to be kept up to date.
//!
//! It is read without a lock, so what is read may be gone: a mapping is believed only where it contains the address.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_kernel};
use tracer_common::unwind::{FILE_PENDING, FILE_TABLE, JIT_CODE, PAGE_SHIFT};

use super::{NO_FILE, tables};
use crate::{
    bound::{less, masked},
    kernel::task::peek,
    offsets::{
        OFF_FILE_INODE, OFF_INODE_GENERATION, OFF_INODE_INO, OFF_INODE_SB, OFF_INODE_SIZE, OFF_MM_TREE, OFF_MM_VDSO,
        OFF_SB_DEV, OFF_VMA_FILE, OFF_VMA_PGOFF,
    },
    scratch::{SAMPLE_SCRATCH, SampleScratch},
};

/// Words of a node.
const WORDS: usize = 32;
/// Most levels of the tree: with ten mappings or more per node, six are a million.
const LEVELS: u32 = 6;
/// Type of nodes with 9 pivots and gaps (`maple_arange_64`); those below have 15 pivots (`maple_range_64`).
const ARANGE: u64 = 3;
/// Type of the leaves; inner nodes have higher numbers.
const LEAF: u64 = 1;
/// First slot of a node with 9 pivots, and how many words later that of the others stands.
const SLOTS: u64 = 10;
const SLOTS_LATER: u64 = 6;

/// Where the descent is.
#[repr(C)]
pub(crate) struct Descent {
    /// Number of the page that is looked for.
    page: u64,
    /// What leads on: the address of a node and its type, or of a mapping.
    entry: u64,
    node: [u64; WORDS],
}

/// Finds the mapping of `place`, its file and its table.
///
/// # Safety
/// `scratch` is the area with the index `*which`.
#[inline(always)]
pub(super) unsafe fn find(scratch: *mut SampleScratch, which: *mut u32, place: u64) -> bool {
    // SAFETY: the caller's promise. Through pointers: the callback changes it.
    let entry = unsafe {
        let tree = &raw mut (*scratch).walk.tree;
        (&raw mut (*tree).page).write_volatile(place >> 12);
        (&raw mut (*tree).entry).write_volatile(peek((*scratch).walk.mm, OFF_MM_TREE.load()));
        // By `bpf_loop` too: unrolled, it is more than the verifier walks.
        bpf_loop(LEVELS, down as *mut c_void, which.cast(), 0);
        (&raw const (*tree).entry).read_volatile()
    };
    if entry == 0 {
        return false;
    }
    // SAFETY: as above.
    let walk = unsafe { &mut (*scratch).walk };
    // `vm_start` and `vm_end` come first in `vm_area_struct`.
    let (start, end) = (peek(entry, 0), peek(entry, 8));
    if place < start || place >= end {
        return false;
    }
    walk.start = start;
    walk.end = end;
    let file = peek(entry, OFF_VMA_FILE.load());
    let mut offset = peek(entry, OFF_VMA_PGOFF.load()) << 12;
    if file != 0 {
        let inode = peek(file, OFF_FILE_INODE.load());
        walk.key.device = peek(peek(inode, OFF_INODE_SB.load()), OFF_SB_DEV.load()) as u32;
        walk.key.generation = peek(inode, OFF_INODE_GENERATION.load()) as u32;
        walk.key.inode = peek(inode, OFF_INODE_INO.load());
        walk.key.size = peek(inode, OFF_INODE_SIZE.load());
    } else if start == peek(walk.mm, OFF_MM_VDSO.load()) {
        // SAFETY: plain words; one by one, so that no call of `memset` is made of it.
        unsafe {
            (&raw mut walk.key.device).write_volatile(0);
            (&raw mut walk.key.generation).write_volatile(0);
            (&raw mut walk.key.inode).write_volatile(0);
            (&raw mut walk.key.size).write_volatile(0);
        }
        offset = 0;
    } else {
        // SAFETY: as above.
        unsafe {
            (&raw mut walk.key.device).write_volatile(JIT_CODE);
            (&raw mut walk.key.generation).write_volatile(0);
            (&raw mut walk.key.inode).write_volatile(walk.tgid);
            (&raw mut walk.key.size).write_volatile(0);
        }
        walk.state = NO_FILE;
        if !tables::file(walk, 0) {
            walk.unknown = 1;
        }
        // The process has made other code, too.
        if walk.state == FILE_TABLE as u64 && place.wrapping_add(walk.shift) >> PAGE_SHIFT >= walk.pages {
            walk.state = NO_FILE;
        }
        return true;
    }
    walk.state = FILE_PENDING as u64;
    tables::file(walk, offset.wrapping_sub(start));
    true
}

/// One level down the tree; 1 ends the descent.
#[inline(never)]
extern "C" fn down(_: u32, which: *mut u32) -> i64 {
    // SAFETY: the index `find` passed.
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(unsafe { *which }) else { return 1 };
    // SAFETY: a per-CPU area that only this program uses.
    let tree = unsafe { &mut (*scratch).walk.tree };
    let (page, entry) = (tree.page, tree.entry);
    // An entry that leads to a node: its type in bits 3 to 6, the node at a multiple of 256.
    let kind = (entry >> 3) & 15;
    // SAFETY: 256 bytes; the helper tolerates any address.
    let failed = unsafe {
        bpf_probe_read_kernel((&raw mut tree.node).cast(), 8 * WORDS as u32, (entry & !0xff) as *const c_void) != 0
    };
    if failed {
        tree.entry = 0;
        return 1;
    }
    // The slot is behind as many others as there are pivots below the page. Pivots are the last bytes of pages, and 0
    // ends them. Counted without jumps: the verifier would follow both ways of each.
    let mut before = 0;
    for i in 1..SLOTS as usize {
        before += less(tree.node[i].wrapping_sub(1) >> 12, page);
    }
    let more = less(kind, ARANGE);
    for i in SLOTS as usize..(SLOTS + SLOTS_LATER) as usize {
        before += less(tree.node[i].wrapping_sub(1) >> 12, page) & more;
    }
    let slot = masked::<{ WORDS as i32 - 1 }>(SLOTS + SLOTS_LATER * more + before);
    // SAFETY: the mask keeps it within the node.
    tree.entry = unsafe { (&raw const tree.node).cast::<u64>().add(slot as usize).read_volatile() };
    (kind <= LEAF) as i64
}
