//! File mappings of a process, from `/proc/PID/maps`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Most bytes read of `/proc/PID/maps`.
const READ_LIMIT: u64 = 4 << 20;

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub from: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Address after the last one.
    pub until: u64,
    /// The file, as the process sees it.
    pub path: String,
    /// The path leads to another file now, or to none.
    pub deleted: bool,
}

/// The file mappings of a process.
#[derive(Clone, Debug)]
pub struct Maps {
    /// Mappings by address.
    pub files: Vec<Mapping>,
    /// Path of the process's program.
    pub exe: String,
    /// The process's root as the agent sees it: another directory than `/` after a `chroot` in the agent's mount namespace.
    /// Paths of mappings begin with it there.
    root: String,
    pid: u32,
}

impl Maps {
    /// Reads the mappings of a process; `None` if it is gone or access is denied.
    pub fn read(pid: u32) -> Option<Self> {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let exe = exe.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        let root = std::fs::read_link(format!("/proc/{pid}/root")).ok()?.to_string_lossy().into_owned();
        let mut text = Vec::new();
        File::open(format!("/proc/{pid}/maps")).ok()?.take(READ_LIMIT).read_to_end(&mut text).ok()?;
        Some(Self { files: parse(&String::from_utf8_lossy(&text)), exe, root, pid })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The first mapping of a file whose base name `wanted` accepts.
    pub fn named(&self, wanted: impl Fn(&str) -> bool) -> Option<&Mapping> {
        self.files.iter().find(|mapping| wanted(name(&mapping.path)))
    }

    /// All mappings of one file.
    pub fn of<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Mapping> {
        self.files.iter().filter(move |mapping| mapping.path == path)
    }

    /// A path by which the agent can open a file of the process.
    pub fn open_by(&self, path: &str) -> PathBuf {
        if path == self.exe {
            // Works even if the program was replaced on disk.
            return PathBuf::from(format!("/proc/{}/exe", self.pid));
        }
        PathBuf::from(format!("/proc/{}/root{}", self.pid, within(&self.root, path)))
    }

    /// A path by which the agent can open a mapped file, even one that was deleted or replaced.
    pub fn mapped(&self, mapping: &Mapping) -> PathBuf {
        PathBuf::from(format!("/proc/{}/map_files/{:x}-{:x}", self.pid, mapping.from, mapping.until))
    }

    /// Reads `N` bytes of the process's memory.
    pub fn memory<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        File::open(format!("/proc/{}/mem", self.pid)).ok()?.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

/// The last part of a path.
pub fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A path within a root directory that it begins with; the same path if it does not.
fn within<'a>(root: &str, path: &'a str) -> &'a str {
    path.strip_prefix(root.trim_end_matches('/')).filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

/// Parses the lines that name a file. Total: any text.
fn parse(text: &str) -> Vec<Mapping> {
    let line = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (from, until) = words.next()?.split_once('-')?;
        let offset = words.nth(1)?;
        let whole = words.nth(2)?.trim();
        let path = whole.trim_end_matches(" (deleted)");
        path.starts_with('/').then_some(())?;
        let number = |word| u64::from_str_radix(word, 16).ok();
        let deleted = path.len() < whole.len();
        Some(Mapping {
            from: number(from)?,
            offset: number(offset)?,
            until: number(until)?,
            path: path.to_owned(),
            deleted,
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_files_are_read_and_others_are_not() {
        let text = "00400000-0041f000 r--p 00001000 fe:01 1   /usr/bin/a b\n7f00-8000 rw-p 00000000 00:00 0 \n\
                    1-2 r-xp 3 0:0 0 [heap]\nx-y r 1 2 3 /no\nnonsense\n5-6 r-xp 7 0:0 0 /gone.so (deleted)\n";
        let found = parse(text);
        let mapping =
            |from, until, offset, path: &str, deleted| Mapping { from, offset, until, path: path.into(), deleted };
        let there = mapping(0x40_0000, 0x41_f000, 0x1000, "/usr/bin/a b", false);
        assert_eq!(found, [there, mapping(5, 6, 7, "/gone.so", true)]);
    }

    #[test]
    fn paths_of_mappings_are_taken_within_the_root() {
        assert_eq!(within("/", "/usr/lib/a.so"), "/usr/lib/a.so");
        assert_eq!(within("/srv/root", "/srv/root/usr/lib/a.so"), "/usr/lib/a.so");
        // A file that is mounted from outside, and a directory with a longer name.
        assert_eq!(within("/srv/root", "/usr/lib/a.so"), "/usr/lib/a.so");
        assert_eq!(within("/srv/root", "/srv/rooted/a.so"), "/srv/rooted/a.so");
    }

    #[test]
    fn this_process_maps_its_program_and_can_read_itself() {
        static HERE: [u8; 4] = *b"here";
        let maps = Maps::read(std::process::id()).expect("this process");
        assert!(maps.of(&maps.exe).next().is_some(), "{} in {:?}", maps.exe, maps.files.first());
        assert_eq!(maps.memory::<4>(std::ptr::from_ref(&HERE) as u64), Some(*b"here"));
        assert!(Maps::read(u32::MAX).is_none());
    }
}
