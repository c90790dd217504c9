//! Memory of a process that tests write.

use std::collections::HashMap;

use crate::process_memory::ProcessMemory;

/// Bytes by address; all others cannot be read.
#[derive(Default)]
pub(super) struct FakeMemory(HashMap<u64, u8>);

impl FakeMemory {
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.0.extend((at..).zip(bytes.iter().copied()));
    }

    pub(super) fn words(&mut self, at: u64, words: &[u64]) {
        for (n, word) in (0..).zip(words) {
            self.put(at + 8 * n, &word.to_le_bytes());
        }
    }
}

impl ProcessMemory for FakeMemory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        into.iter_mut().zip(at..).all(|(to, at)| self.0.get(&at).map(|byte| *to = *byte).is_some())
    }
}
