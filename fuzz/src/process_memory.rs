//! Any bytes as the memory of a process.
use tracer_runtimes::process_memory::ProcessMemory;

/// Memory in which addresses wrap around, so that most of them are something.
pub(crate) struct Bytes<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes read so far.
    pub(crate) read: usize,
}

impl ProcessMemory for Bytes<'_> {
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        self.read += into.len();
        let Some(begin) = usize::try_from(at).ok().and_then(|at| at.checked_rem(self.bytes.len())) else {
            return false;
        };
        let found = self.bytes.get(begin..begin.saturating_add(into.len()));
        found.inspect(|found| into.copy_from_slice(found)).is_some()
    }
}
