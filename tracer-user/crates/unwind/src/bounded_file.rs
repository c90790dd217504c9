//! Reads parts of a program's file, and no more of it than is worth it: a traced process decides what is in it.

use std::fs::File;

use object::read::ReadCacheOps;

/// Most bytes of a file that are read: headers, and unwind information, which is a tenth of the code at most.
const READ_LIMIT: usize = 64 << 20;

/// A program's file of which at most 64 MiB are read.
pub struct BoundedFile {
    file: File,
    left: usize,
}

impl BoundedFile {
    /// `file`, of which the limit can be read.
    pub fn new(file: File) -> Self {
        Self { file, left: READ_LIMIT }
    }

    fn take(&mut self, bytes: usize) -> Result<(), ()> {
        self.left = self.left.checked_sub(bytes).ok_or(())?;
        Ok(())
    }
}

impl ReadCacheOps for BoundedFile {
    fn len(&mut self) -> Result<u64, ()> {
        ReadCacheOps::len(&mut self.file)
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        ReadCacheOps::seek(&mut self.file, pos)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        self.take(buf.len())?;
        ReadCacheOps::read(&mut self.file, buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ()> {
        self.take(buf.len())?;
        ReadCacheOps::read_exact(&mut self.file, buf)
    }
}
