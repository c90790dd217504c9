//! What code takes from the heap: the allocator of the system, counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes glibc keeps beside each block.
const BESIDE: usize = 8;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// Counts what its thread takes and gives back while [`counted`] runs.
pub(crate) struct Heap;

/// What some code did with the heap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Blocks taken, those made larger included.
    pub(crate) allocations: u64,
    /// Bytes held after it and not before it, as the allocator rounds them, its own words for each block included.
    pub(crate) bytes: i64,
}

/// Runs `work`; what it did with the heap.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Used) {
    TAKEN.set(0);
    HELD.set(0);
    ON.set(true);
    let made = work();
    ON.set(false);
    (made, Used { allocations: TAKEN.get(), bytes: HELD.get() })
}

fn took(block: *mut u8) {
    if !block.is_null() && ON.try_with(Cell::get).unwrap_or(false) {
        TAKEN.set(TAKEN.get() + 1);
        HELD.set(HELD.get() + size(block));
    }
}

fn gives(block: *mut u8) {
    if ON.try_with(Cell::get).unwrap_or(false) {
        HELD.set(HELD.get() - size(block));
    }
}

fn size(block: *mut u8) -> i64 {
    // SAFETY: `block` is a live block of malloc's: it was just taken, or is about to be given back.
    let usable = unsafe { libc::malloc_usable_size(block.cast()) };
    (usable + BESIDE) as i64
}

// SAFETY: every call goes to the system's allocator as it came; what is counted beside it touches no block.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let block = unsafe { System.alloc(layout) };
        took(block);
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let block = unsafe { System.alloc_zeroed(layout) };
        took(block);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        gives(block);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        gives(block);
        // SAFETY: the caller's promise is passed on.
        let moved = unsafe { System.realloc(block, layout, new) };
        took(if moved.is_null() { block } else { moved });
        moved
    }
}
