//! What was read of files that many processes map: all processes of a host run a few of them, and each is looked at again and again.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

/// A file, by file system, number, size and time of the last change.
type FileId = (u64, u64, u64, i64, i64);

/// Most files that are remembered.
const FILES: usize = 64;

/// What was read of each file.
pub(super) struct KnownFiles<T>(Mutex<Vec<(FileId, T)>>);

impl<T: Copy> KnownFiles<T> {
    /// Of none.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// What is known of a file, read now if nothing is; `None` where it cannot be read, which is tried again.
    pub(super) fn get(&self, file: &File, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let about = file.metadata().ok()?;
        let id = (about.dev(), about.ino(), about.len(), about.mtime(), about.mtime_nsec());
        let found =
            self.0.lock().ok().and_then(|all| all.iter().find(|(known, _)| *known == id).map(|(_, read)| *read));
        if found.is_some() {
            return found;
        }
        let read = read()?;
        if let Ok(mut all) = self.0.lock() {
            if all.len() >= FILES {
                all.clear();
            }
            all.push((id, read));
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_read_once_until_it_changes() {
        static KNOWN: KnownFiles<u32> = KnownFiles::new();
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(KNOWN.get(&file, || None), None);
        assert_eq!((KNOWN.get(&file, || Some(1)), KNOWN.get(&file, || Some(2))), (Some(1), Some(1)));
        file.write_all(b"more").unwrap();
        assert_eq!(KNOWN.get(&file, || Some(3)), Some(3));
        for _ in 0..FILES {
            let other = tempfile::tempfile().unwrap();
            assert_eq!(KNOWN.get(&other, || Some(4)), Some(4));
        }
        assert!(KNOWN.0.lock().unwrap().len() <= FILES);
    }
}
