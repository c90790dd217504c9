//! Pipes, terminals and `/dev/null`: whoever reads them may be slow, or never read.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;

use super::background_writer::{Deadline, Sink};

/// Most written at once: a pipe that has room has room for this much (`PIPE_BUF`), so that also one that blocks does not.
const AT_ONCE: usize = 4096;
/// How long one wait for room takes before the deadline is looked at, milliseconds.
const WAIT: i32 = 50;

/// Something that is written to as fast as it is read, until the deadline.
#[derive(Debug)]
pub struct Stream {
    out: File,
    deadline: Deadline,
}

impl Stream {
    /// Of what was opened for writing.
    pub fn new(out: File) -> Self {
        Self { out, deadline: Deadline::default() }
    }

    /// Waits until there is room.
    fn wait(&self) -> io::Result<()> {
        let mut room = libc::pollfd { fd: self.out.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        loop {
            // SAFETY: one valid entry.
            let found = unsafe { libc::poll(&raw mut room, 1, WAIT) };
            if found > 0 {
                // An error shows when it is written to.
                return Ok(());
            }
            if found < 0 && io::Error::last_os_error().kind() != ErrorKind::Interrupted {
                return Err(io::Error::last_os_error());
            }
            if self.deadline.has_passed() {
                return Err(io::Error::new(ErrorKind::TimedOut, "it was not read until the end"));
            }
        }
    }
}

impl Sink for Stream {
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let mut left = piece;
        while !left.is_empty() {
            self.wait()?;
            let part = left.get(..AT_ONCE).unwrap_or(left);
            match self.out.write(part) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => left = left.get(written..).unwrap_or_default(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn until(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Behind, Words};
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    fn behind(writer: impl Into<OwnedFd>) -> Behind {
        let words = Words { place: "pipe".into(), what: "lines", meaning: "are gone", passes: true };
        Behind::start(Stream::new(writer.into().into()), words).unwrap()
    }

    #[test]
    fn a_slow_reader_gets_everything() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut behind = behind(writer);
        for part in [1, AT_ONCE, 300_000] {
            assert!(behind.write(vec![b'x'; part], 1));
        }
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all.len())
        });
        behind.finish();
        assert_eq!((behind.written(), behind.dropped()), (3, 0));
        assert_eq!(read.join().unwrap().unwrap(), 1 + AT_ONCE + 300_000);
    }

    #[test]
    fn a_reader_that_never_reads_does_not_hold_up_the_end() {
        // The pipe blocks: what the agent was given as its output does.
        let (_reader, writer) = io::pipe().unwrap();
        let mut behind = behind(writer);
        assert!(behind.write(vec![b'x'; 1 << 20], 3));
        let begin = Instant::now();
        behind.waiting().end_by(begin + Duration::from_millis(100));
        behind.finish();
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        assert_eq!((behind.written(), behind.dropped()), (0, 3));
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut behind = behind(writer);
        assert!(behind.write(vec![1], 1));
        behind.finish();
        assert_eq!((behind.written(), behind.dropped()), (0, 1));
    }
}
