//! The files that a process maps, where its code is, and whose they are.

use std::hash::{Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

/// Mapped files looked at to see who owns them, and bytes of the list of mappings that are read.
const MAPPED: usize = 1024;
const MAPS: u64 = 1 << 20;
/// The files a process maps.
#[derive(Debug)]
pub(super) struct Mapped {
    /// Of the files and where they are; never 0.
    pub(super) fingerprint: u64,
    /// Where those with code are, as their mappings are named (`10-20`). Inode numbers would not do: on an overlay those of
    /// the list may be others than the file's.
    code: FxHashSet<Box<str>>,
    /// Where code is, and the path of its file.
    places: Vec<(std::ops::Range<u64>, String)>,
    /// Whether the list was read to its end.
    whole: bool,
}

impl Mapped {
    fn parse(maps: &[u8], whole: bool) -> Self {
        let (mut hasher, mut code, mut places) = (FxHasher::default(), FxHashSet::default(), Vec::new());
        for line in maps.split(|byte| *byte == b'\n') {
            let mut words = line.split(|byte| *byte == b' ');
            // Memory without a file may come and go.
            let (Some(range), Some(permissions), Some(offset), Some(device), Some(inode)) =
                (words.next(), words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let number = std::str::from_utf8(inode).ok().and_then(|text| text.parse().ok()).unwrap_or(0u64);
            if number != 0 {
                (range, offset, device, inode).hash(&mut hasher);
                if permissions.get(2) == Some(&b'x') {
                    code.extend(std::str::from_utf8(range).ok().and_then(mapping_name));
                    places.extend(place(range, &words.collect::<Vec<_>>().join(&b' ')));
                }
            }
        }
        Self { fingerprint: hasher.finish().max(1), code, places, whole }
    }

    /// Whether code of a file with this end of its path is mapped.
    pub(super) fn has(&self, end: &str) -> bool {
        self.places.iter().any(|(_, path)| path.ends_with(end))
    }

    /// The path of the file whose code is at this address.
    pub(super) fn file(&self, address: u64) -> Option<&str> {
        let (_, path) = self.places.iter().find(|(range, _)| range.contains(&address))?;
        Some(path)
    }
}

/// How `/proc/PID/map_files` names a mapping: without the zeros that the list of mappings begins addresses with.
fn mapping_name(range: &str) -> Option<Box<str>> {
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(format!("{:x}-{:x}", number(start)?, number(end)?).into())
}

/// Where a line of a list of mappings says that a file is: its range, and its padded path.
fn place(range: &[u8], path: &[u8]) -> Option<(std::ops::Range<u64>, String)> {
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let path = String::from_utf8_lossy(path.trim_ascii());
    Some((start..end, path.trim_end_matches(" (deleted)").to_owned()))
}

/// What a process maps; `None` when it is gone.
pub(super) fn mapped(pid: u32) -> Option<Mapped> {
    let file = std::fs::File::open(format!("/proc/{pid}/maps")).ok()?;
    let mut text = Vec::new();
    file.take(MAPS).read_to_end(&mut text).ok()?;
    Some(Mapped::parse(&text, (text.len() as u64) < MAPS))
}

/// The files with code that a process has mapped, each with the path it knows it by, if all files it has mapped are root's or
/// our own user's. It may map others a moment later.
pub(super) fn trusted_code(pid: u32, mapped: &Mapped) -> Option<Vec<(PathBuf, PathBuf)>> {
    if !mapped.whole {
        return None;
    }
    // SAFETY: takes nothing, cannot fail.
    let own = unsafe { libc::geteuid() };
    let maps = std::fs::read_dir(format!("/proc/{pid}/map_files")).ok()?;
    let mut files: FxHashMap<(u64, u64), (PathBuf, PathBuf)> = FxHashMap::default();
    for (looked, entry) in maps.flatten().enumerate() {
        // By the mapping, not by its name: whatever stands under the name now.
        let about = std::fs::metadata(entry.path()).ok()?;
        if (about.uid() != 0 && about.uid() != own) || looked >= MAPPED {
            return None;
        }
        if entry.file_name().to_str().is_some_and(|range| mapped.code.contains(range)) {
            let path = std::fs::read_link(entry.path()).ok()?;
            files.insert((about.dev(), about.ino()), (entry.path(), path));
        }
    }
    Some(files.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_at_the_same_place_is_another_fingerprint() {
        let one = b"10-20 r-xp 00000000 08:01 77    /bin/a\n20-30 rw-p 00000000 00:00 0    [heap]\n";
        let heap = b"10-20 r-xp 00000000 08:01 77    /bin/a\n20-50 rw-p 00000000 00:00 0    [heap]\n";
        let other = b"10-20 r-xp 00000000 08:01 78    /bin/a\n20-30 rw-p 00000000 00:00 0    [heap]\n";
        let fingerprint = |maps| Mapped::parse(maps, true).fingerprint;
        assert_eq!(fingerprint(one), fingerprint(heap));
        assert_ne!(fingerprint(one), fingerprint(other));
        assert_ne!(fingerprint(b"nonsense"), 0);
        assert_eq!(Mapped::parse(one, true).code.into_iter().collect::<Vec<_>>(), ["10-20".into()]);
        let gone = Mapped::parse(b"10-20 r-xp 00000000 08:01 77    /opt/a b (deleted)\n30-4 r-xp 0 0 7\n", true);
        assert_eq!([0xf, 0x10, 0x1f, 0x20].map(|at| gone.file(at)), [None, Some("/opt/a b"), Some("/opt/a b"), None]);
    }

    #[test]
    fn only_files_with_code_count_and_all_must_be_trusted() {
        let pid = std::process::id();
        let mut mapped = mapped(pid).unwrap();
        let own = trusted_code(pid, &mapped).unwrap();
        let path = std::env::current_exe().unwrap();
        assert!(own.iter().any(|(_, known)| *known == path), "{own:?}");
        mapped.code.clear();
        assert_eq!(trusted_code(pid, &mapped), Some(Vec::new()), "data may be large");
        mapped.whole = false;
        assert_eq!(trusted_code(pid, &mapped), None);
    }
}
