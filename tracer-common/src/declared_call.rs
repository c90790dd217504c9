//! Records of calls of declared functions.

use crate::event::{Header, ThreadCounters};
use crate::wire::wire;

/// [`DeclaredCall`]: the function returned (set) or was entered (clear).
pub const DECLARED_RETURN: u8 = 1 << 0;
/// [`DeclaredCall`]: [`DeclaredValues`] follow.
pub const DECLARED_VALUES: u8 = 1 << 1;
/// [`DeclaredCall`]: the place is also reached in other ways: a return without an entry means nothing.
pub const DECLARED_SHARED: u8 = 1 << 2;

wire! {
    /// A thread entered a declared function, or returned from it. Followed by [`DeclaredValues`] with [`DECLARED_VALUES`].
    pub struct DeclaredCall {
        /// Common part; [`DECLARED_RETURN`], [`DECLARED_VALUES`], [`DECLARED_SHARED`].
        pub header: Header,
        /// Index of the declared transaction in the configuration.
        pub declared: u64,
        /// Goroutine it runs on (the address of its `g`); 0 where a thread has one stack.
        pub task: u64,
        /// How deep the stack is, the same at entry and return of one call; deeper calls have larger values. Bytes
        /// below the stack's upper end for goroutines, whose stacks move; the complement of the stack pointer for
        /// threads.
        pub depth: u64,
        /// Return value: the first result register. 0 at entry.
        pub value: u64,
        /// The task, as in [`crate::event::Op::entity`]; 0 if its process has no known runtime.
        pub entity: u64,
        /// The thread's counters at this moment.
        pub counters: ThreadCounters,
    }
}

/// Registers in [`DeclaredValues`].
pub const DECLARED_REGISTERS: usize = 9;
/// Most bytes of a text in [`DeclaredValues`].
pub const DECLARED_TEXT: usize = 64;
/// A length in [`DeclaredValues`]: no text was to be read.
pub const TEXT_NONE: u32 = u32::MAX;
/// A length in [`DeclaredValues`]: it could not be read.
pub const TEXT_UNREAD: u32 = u32::MAX - 1;

wire! {
    /// Values of a declared call.
    pub struct DeclaredValues {
        /// At entry the argument registers of the calling convention, in order; at return the result registers. 0 where the
        /// convention has fewer.
        pub registers: [u64; 9],
        /// Bytes of `first` and of `second`, or `TEXT_…`.
        pub first_len: u32,
        /// See `first_len`.
        pub second_len: u32,
        /// The text that names the user, eight bytes a word.
        pub first: [u64; 8],
        /// The text that is a metric.
        pub second: [u64; 8],
    }
}
