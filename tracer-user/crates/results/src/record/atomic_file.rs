//! Files that never contain a partial piece.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use super::background_writer::Sink;

/// Appends whole pieces to a file and removes one that did not fit.
#[derive(Debug)]
pub struct Whole<W> {
    out: W,
    /// Bytes of whole pieces.
    length: u64,
}

impl Whole<File> {
    /// Wraps a file just created or opened for writing, at its beginning.
    pub fn new(out: File) -> Self {
        Self { out, length: 0 }
    }

    /// Bytes of whole fragments.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Appends a piece. On failure the file is as it was before; pipes and devices, which cannot be cut, keep what went
    /// through.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let written = self.out.write_all(piece);
        if written.is_ok() {
            self.length += piece.len() as u64;
        } else {
            // Report the write error; one from truncating is only a consequence.
            let _ = self.out.set_len(self.length).and_then(|()| self.out.seek(SeekFrom::Start(self.length)));
        }
        written
    }
}

impl Sink for Whole<File> {
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.write(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_does_not_fit_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = Whole::new(File::create(&path).unwrap());
        file.write(b"one\n").unwrap();
        // As if the disk had accepted half of a piece.
        file.out.write_all(b"tw").unwrap();
        let length = file.length;
        file.out.set_len(length).and_then(|()| file.out.seek(SeekFrom::Start(length))).unwrap();
        file.write(b"three\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\nthree\n");
        // The failure is reported even where the file cannot be truncated.
        let mut full = Whole::new(File::options().write(true).open("/dev/full").unwrap());
        assert_eq!(full.write(b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
