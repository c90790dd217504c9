//! Which file a path leads to, for probes that the kernel keeps by file.
//!
//! Device and inode say that, except on an overlay, as a container's root is one. There the kernel keeps probes at the file
//! of the layer below, which all containers of an image share, while each of them shows a device of its own for it. And a file
//! that is copied up to the writable layer keeps its numbers, though its code is another file's from then on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::host::file_system::{OVERLAY, file_system};

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
        assert!(overlaid.device.is_none());
        fs::write(&one, "another text").unwrap();
        assert_ne!(FileIdentity::new(&fs::metadata(&one).unwrap(), true), overlaid);
        assert_eq!(FileIdentity::new(&fs::metadata(&one).unwrap(), false), FileIdentity::new(&meta, false));
    }
}
