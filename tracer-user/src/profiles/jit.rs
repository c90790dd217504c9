//! Names of code that a process made while running, from the file it wrote: `/tmp/perf-PID.map`.
//!
//! Anybody can put anything there, a FIFO included: what is not a regular file of the process's own user (or root's), or
//! is too large, is left alone.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Longest file, functions and names that are taken.
const BYTES: u64 = 64 << 20;
const FUNCTIONS: usize = 500_000;
const NAME: usize = 512;

/// Names by address.
#[derive(Debug, Default)]
pub struct Names(Vec<(u64, u64, Box<str>)>);

impl Names {
    /// Reads lines of start and length, hexadecimal, and a name; others are skipped. Of what overlaps the last counts.
    pub fn parse(bytes: &[u8]) -> Self {
        let hex = |word: &[u8]| u64::from_str_radix(std::str::from_utf8(word).ok()?.trim_start_matches("0x"), 16).ok();
        let line = |line: &[u8]| {
            let mut words = line.splitn(3, |byte| *byte == b' ');
            let (start, len, name) = (hex(words.next()?)?, hex(words.next()?)?, words.next()?.trim_ascii());
            let name = String::from_utf8_lossy(name.get(..NAME).unwrap_or(name)).into_owned();
            Some((start, start.checked_add(len)?, name.into_boxed_str()))
        };
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut all: Vec<_> = lines.filter_map(line).filter(|(_, _, name)| !name.is_empty()).take(FUNCTIONS).collect();
        // Stable: of those that begin at one address the last stays last.
        all.sort_by_key(|(start, _, _)| *start);
        Self(all)
    }

    /// The file of a process, if it has one that can be trusted to be its own.
    pub fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let inner =
            status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().next_back()?;
        let inner: u32 = inner.parse().ok()?;
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let path = format!("/proc/{pid}/root/tmp/perf-{inner}.map");
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let about = file.metadata().ok()?;
        let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        if !about.is_file() || (about.uid() != owner && about.uid() != 0) || about.len() > BYTES {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes).ok()?;
        Some(Self::parse(&bytes))
    }

    /// Name of the function at `address`.
    pub fn find(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(start, _, _)| *start <= address);
        let (_, end, name) = self.0.get(after.checked_sub(1)?)?;
        (address < *end).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_none_are_skipped() {
        let names =
            Names::parse(b"10 10 first\nnonsense\n0x40 8 last one\nffffffffffffffff 2 wraps\n30 5 \n10 8 newer\n");
        for (address, expected) in [
            (0xf, None),
            (0x10, Some("newer")),
            (0x17, Some("newer")),
            (0x18, None),
            (0x44, Some("last one")),
            (0x48, None),
        ] {
            assert_eq!(names.find(address), expected, "{address:x}");
        }
    }

    #[test]
    fn files_that_are_not_the_process_s_own_are_left_alone() {
        let path = format!("/tmp/perf-{}.map", std::process::id());
        let clean = || drop(fs::remove_file(&path));
        clean();
        fs::write(&path, "1000 10 jitted\n").unwrap();
        assert_eq!(
            Names::of(std::process::id()).and_then(|names| names.find(0x1005).map(String::from)).as_deref(),
            Some("jitted")
        );
        clean();
        // Opening a FIFO waits for a writer, for ever.
        let name = std::ffi::CString::new(path.as_str()).unwrap();
        // SAFETY: a zero-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
        assert!(Names::of(std::process::id()).is_none());
        clean();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Names::of(std::process::id()).is_none());
        clean();
        fs::File::create(&path).unwrap().set_len(BYTES + 1).unwrap();
        assert!(Names::of(std::process::id()).is_none());
        clean();
    }
}
