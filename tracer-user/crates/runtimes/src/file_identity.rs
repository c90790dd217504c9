//! Which file a path leads to, for probes that the kernel keeps by file.
//!
//! Device and inode say that, except on an overlay, as a container's root is one. There the kernel keeps probes at the file
//! of the layer below, which all containers of an image share, while each of them shows a device of its own for it. And a file
//! that is copied up to the writable layer (`chmod`, `touch`) keeps its numbers, though the code of later processes is another
//! file's. Which of both a process runs shows in its memory only.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use tracer_host::file_system::{OVERLAY, file_system};

use super::maps::Maps;

/// A file that probes stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device; `None`: an overlay.
    device: Option<u64>,
    inode: u64,
    /// On an overlay, size and time of the last change, seconds and nanoseconds: in place of the device.
    version: (u64, i64, i64),
}

impl FileIdentity {
    /// The regular file that a path leads to; `None` if it leads to none. What `/proc/PID/maps` says is never part of it: on
    /// an overlay its numbers may be others.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self::new(&meta, file_system(path) == Some(OVERLAY)))
    }

    fn new(meta: &fs::Metadata, overlay: bool) -> Self {
        if overlay {
            Self { device: None, inode: meta.ino(), version: (meta.size(), meta.mtime(), meta.mtime_nsec()) }
        } else {
            Self { device: Some(meta.dev()), inode: meta.ino(), version: (0, 0, 0) }
        }
    }

    /// Whether other files may show the same numbers: copies in writable layers.
    pub fn may_have_copies(self) -> bool {
        self.device.is_none()
    }
}

/// A place in a file's code, and the byte there: a probe puts another one into the memory of those that run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeByte {
    offset: u64,
    byte: u8,
}

impl CodeByte {
    /// Reads it from the file.
    pub fn read(file: &fs::File, offset: u64) -> Option<Self> {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).ok()?;
        Some(Self { offset, byte: byte[0] })
    }

    /// Whether a process has it in its memory as it is in the file, without a probe. Not if the process does not have the file
    /// mapped, or its memory cannot be read.
    pub fn is_unchanged(self, maps: &Maps, path: &str) -> bool {
        let place = maps.of(path).find_map(|mapping| {
            let at = mapping.from.checked_add(self.offset.checked_sub(mapping.offset)?)?;
            (at < mapping.until).then_some(at)
        });
        place.and_then(|at| maps.memory::<1>(at)).is_some_and(|[byte]| byte == self.byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_an_overlay_the_device_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (one, other) = (file("one", "text"), file("other", "text"));
        let of = |path: &Path| FileIdentity::of(path).unwrap();
        assert_eq!(of(&one), of(&one));
        assert_ne!(of(&one), of(&other));
        assert!(FileIdentity::of(dir.path()).is_none(), "a directory");
        // The same file as two containers show it, and once another was written in its place.
        let meta = fs::metadata(&one).unwrap();
        let overlaid = FileIdentity::new(&meta, true);
        assert!(overlaid.may_have_copies());
        fs::write(&one, "another text").unwrap();
        assert_ne!(FileIdentity::new(&fs::metadata(&one).unwrap(), true), overlaid);
        assert_eq!(FileIdentity::new(&fs::metadata(&one).unwrap(), false), FileIdentity::new(&meta, false));
    }

    #[test]
    fn a_process_has_the_code_of_its_file_until_a_probe_stands_there() {
        let maps = Maps::read(std::process::id()).unwrap();
        let exe = maps.exe.clone();
        let offset = maps.of(&exe).next().unwrap().offset;
        let code = CodeByte::read(&fs::File::open(&exe).unwrap(), offset).unwrap();
        assert!(code.is_unchanged(&maps, &exe));
        assert!(!CodeByte { byte: !code.byte, ..code }.is_unchanged(&maps, &exe));
        assert!(!CodeByte { offset: u64::MAX, ..code }.is_unchanged(&maps, &exe));
        assert!(!code.is_unchanged(&maps, "/nowhere"));
    }
}
