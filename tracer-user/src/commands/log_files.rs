//! Where a process's log lines go: which of its files an inode is, and the socket to the journal that systemd gave it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use tracer_host::process;
use tracer_model::text;

/// Most descriptors that are looked at.
const DESCRIPTORS: usize = 4096;
/// Longest name.
const NAME: usize = 512;

/// What the file of a process with this device and inode is called: a path as the process sees it, `pipe:[…]`, `socket:[…]`.
pub(super) fn name_of(pid: u32, device: u32, inode: u64) -> Option<String> {
    // The kernel's own numbering (`MKDEV`).
    let wanted = libc::makedev(device >> 20, device & 0xf_ffff);
    let mut by_inode = None;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.take(DESCRIPTORS).flatten() {
        let Some(found) = fs::metadata(entry.path()).ok().filter(|found| found.ino() == inode) else { continue };
        let Ok(name) = fs::read_link(entry.path()) else { continue };
        let name = text::printable(&name.to_string_lossy()).chars().take(NAME).collect();
        if found.dev() == wanted {
            return Some(name);
        }
        // Layered file systems show another device than the one they write to.
        by_inode.get_or_insert(name);
    }
    by_inode
}

/// The inode of the socket to the journal that a process has as standard output or error, by what systemd set
/// (`JOURNAL_STREAM`, systemd.exec(5)); 0: none.
pub(super) fn journal_of(pid: u32) -> u64 {
    // Device and inode.
    let stream = process::variable(pid, "JOURNAL_STREAM");
    let number = stream.and_then(|stream| stream.split_once(':')?.1.parse().ok());
    // Only what it still is.
    let is_standard = |inode: &u64| {
        ["1", "2"]
            .iter()
            .any(|fd| fs::metadata(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|found| found.ino() == *inode))
    };
    number.filter(is_standard).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_is_found_by_its_inode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"x").unwrap();
        let found = file.metadata().unwrap();
        let device = libc::major(found.dev()) << 20 | libc::minor(found.dev());
        assert_eq!(name_of(std::process::id(), device, found.ino()).as_deref(), path.to_str());
        assert_eq!(
            name_of(std::process::id(), device + 1, found.ino()).as_deref(),
            path.to_str(),
            "by its inode alone"
        );
        drop(file);
        assert_eq!(name_of(std::process::id(), device, found.ino()), None);
        assert_eq!(journal_of(u32::MAX), 0);
    }
}
