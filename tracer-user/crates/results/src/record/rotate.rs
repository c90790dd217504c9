//! A file with a limit: when it is full it gets a second name and is begun anew, and what had that name before goes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tracer_host::files;

use super::atomic_file::Whole;
use super::background_writer::Sink;

/// Files there are at a time: the one being written and the one before.
const FILES: u64 = 2;

/// A file and the one before it (`.1` after its name), which together stay within a limit.
#[derive(Debug)]
pub struct Rotating {
    path: PathBuf,
    before: PathBuf,
    file: Whole<File>,
    /// Most bytes of one file.
    most: u64,
}

impl Rotating {
    /// Of the empty file at `path`; both files take at most `most` bytes.
    pub fn new(path: &Path, file: File, most: u64) -> Self {
        let mut before = OsString::from(path);
        before.push(".1");
        Self { path: path.into(), before: before.into(), file: Whole::new(file), most: (most / FILES).max(1) }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let there = fs::symlink_metadata(&self.path).is_ok();
        // Somebody else may have taken it away: that is what rotating is for.
        if there {
            // Renaming over a file would write this one out first (ext4): hundreds of megabytes.
            match fs::remove_file(&self.before) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::rename(&self.path, &self.before)?,
            }
        }
        self.file = Whole::new(files::create_new(&self.path)?);
        Ok(())
    }
}

impl Sink for Rotating {
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let length = self.file.length();
        if length > 0 && length + piece.len() as u64 > self.most {
            self.rotate()?;
        }
        self.file.write(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn both_files_stay_within_the_limit_and_hold_whole_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let (path, before) = (dir.path().join("spans"), dir.path().join("spans.1"));
        let mut file = Rotating::new(&path, files::create_new(&path).unwrap(), 100);
        for n in 0..100 {
            file.write(format!("{n:09}\n").as_bytes()).unwrap();
            let size = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
            assert!(size(&path) <= 50 && size(&path) + size(&before) <= 100);
        }
        let text = fs::read_to_string(&before).unwrap() + &fs::read_to_string(&path).unwrap();
        let lines: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(lines, (90..100).collect::<Vec<_>>());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A file taken away by somebody else is no reason to stop.
        fs::remove_file(&path).unwrap();
        file.write(&[b'x'; 49]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 49);
        // One that cannot be renamed stops: what does not fit is an error, which is counted.
        fs::remove_file(&before).unwrap();
        fs::create_dir_all(before.join("in the way")).unwrap();
        assert!(file.write(b"more").is_err());
        assert_eq!(fs::metadata(&path).unwrap().len(), 49);
    }
}
