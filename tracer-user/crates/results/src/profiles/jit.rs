//! Names of code that a process made while running, from the file it wrote: `/tmp/perf-PID.map`.
//!
//! Anybody can put anything there, a FIFO included: what is not a regular file of the process's own user (or root's), or
//! is too large, is left alone. Of what a file says no more is kept than its reader has room for.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Longest file that is read at all, bytes.
const BYTES: u64 = 64 << 20;
/// Longest name that is kept, and longest line that is read, bytes.
const NAME: usize = 512;
const LINE: u64 = 4096;
/// A line takes about as much in the file as here. What is read beyond twice the room are lines that say nothing.
const READ: u64 = 2;

/// A function: where it is, and where its name begins among all names.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    end: u64,
    name: u32,
    length: u16,
}

/// Names by address.
#[derive(Debug, Default)]
pub struct Names {
    functions: Vec<Function>,
    names: String,
    /// The file says more than there is room for.
    pub is_cut: bool,
}

impl Names {
    /// Reads lines of start and length, hexadecimal, and a name; others are skipped. Of what overlaps the last counts. Takes at
    /// most `most` bytes of memory.
    pub fn parse(file: impl Read, most: usize) -> Self {
        let mut names = Self::default();
        let limit = READ * most as u64;
        let mut file = BufReader::with_capacity(64 * 1024, file.take(limit));
        let (mut line, mut read) = (Vec::new(), 0);
        loop {
            line.clear();
            match (&mut file).take(LINE).read_until(b'\n', &mut line) {
                // A file that cannot be read on is as good as its front.
                Ok(0) | Err(_) => break,
                Ok(bytes) => read += bytes as u64,
            }
            let Some((start, end, name)) = Self::line(&line) else { continue };
            if names.bytes() + size_of::<Function>() + name.len() > most {
                names.is_cut = true;
                break;
            }
            let offset = names.names.len() as u32;
            names.names.push_str(name);
            names.functions.push(Function { start, end, name: offset, length: name.len() as u16 });
        }
        names.is_cut |= read >= limit;
        names.functions.shrink_to_fit();
        names.names.shrink_to_fit();
        // Stable: of those that begin at one address the last stays last.
        names.functions.sort_by_key(|function| function.start);
        names
    }

    fn line(line: &[u8]) -> Option<(u64, u64, &str)> {
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let line = match std::str::from_utf8(line) {
            Ok(line) => line,
            // A name is kept as far as it is text.
            Err(error) => std::str::from_utf8(line.get(..error.valid_up_to())?).ok()?,
        };
        let mut words = line.splitn(3, ' ');
        let (start, length, name) = (hex(words.next()?)?, hex(words.next()?)?, words.next()?.trim_ascii());
        let end = (0..=NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        let name = name.get(..end).unwrap_or_default();
        (!name.is_empty()).then_some((start, start.checked_add(length)?, name))
    }

    /// The file of a process, if it has one that can be trusted to be its own; `most` as for [`Self::parse`].
    pub fn of(pid: u32, most: usize) -> Option<Self> {
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
        Some(Self::parse(file, most))
    }

    /// Memory it takes, bytes.
    pub fn bytes(&self) -> usize {
        self.functions.len() * size_of::<Function>() + self.names.len()
    }

    /// Name of the function at `address`.
    pub fn find(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        let begin = function.name as usize;
        (address < function.end).then(|| self.names.get(begin..begin + usize::from(function.length))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let lines = |count: usize, name: usize| {
            let line = move |n: usize| format!("{:x} 10 {}{n}\n", n * 16, "x".repeat(name));
            (0..count).map(line).collect::<Vec<_>>().concat()
        };
        for (text, is_cut) in [
            (lines(1000, 100), false),
            (lines(100_000, 100), true),
            // Hardly any name, names that are too long, lines that are none and have no end.
            (lines(200_000, 0), true),
            (lines(3000, 5000), true),
            ("nonsense\n".repeat(1 << 20), true),
            ("x".repeat(16 << 20), true),
        ] {
            let names = Names::parse(text.as_bytes(), ROOM);
            let memory = names.functions.capacity() * size_of::<Function>() + names.names.capacity();
            assert!(names.bytes() <= ROOM && memory <= ROOM, "{} of {ROOM}", names.bytes());
            assert_eq!(names.is_cut, is_cut, "{:?}", text.get(..40));
        }
        // Names that are not text are kept as far as they are.
        let names = Names::parse(&b"10 10 na\xc3\xa9\xffme\n"[..], ROOM);
        assert_eq!(names.find(0x10), Some("na\u{e9}"));
    }

    #[test]
    fn lines_that_are_none_are_skipped() {
        let text = b"10 10 first\nnonsense\n0x40 8 last one\nffffffffffffffff 2 wraps\n30 5 \n10 8 newer\n";
        let names = Names::parse(&text[..], 1 << 20);
        assert!(!names.is_cut);
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
            Names::of(std::process::id(), ROOM).and_then(|names| names.find(0x1005).map(String::from)).as_deref(),
            Some("jitted")
        );
        clean();
        // Opening a FIFO waits for a writer, for ever.
        let name = std::ffi::CString::new(path.as_str()).unwrap();
        // SAFETY: a zero-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
        assert!(Names::of(std::process::id(), ROOM).is_none());
        clean();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Names::of(std::process::id(), ROOM).is_none());
        clean();
        fs::File::create(&path).unwrap().set_len(BYTES + 1).unwrap();
        assert!(Names::of(std::process::id(), ROOM).is_none());
        clean();
    }
}
