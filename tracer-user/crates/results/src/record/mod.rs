//! Recordings: everything the pipeline was given, for replay.
//!
//! A header (magic, version, byte order, clock offset, seed, host) and frames: one byte of kind, four of length, the
//! payload. Kernel records are in the machine's byte order, which the header gives. Files hold payload prefixes as they
//! were on the wire, so they are created with mode 0600 and never overwritten.

mod atomic_file;
mod background_writer;
mod hindsight;
mod rotate;
mod stream;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

pub use atomic_file::Whole;
pub use background_writer::{Behind, Sink, Waiting, Words};
pub use hindsight::{HindsightRecording, HindsightRing};
pub use rotate::Rotating;
pub use stream::Stream;

use tracer_host::files;

const MAGIC: &[u8; 8] = b"TRACERF\x07";
/// Marks the byte order: reads differently on a machine of the other one.
const ORDER: u32 = 0x0102_0304;
/// Longest plausible frame.
const FRAME_MAX: u32 = 1 << 20;
/// Longest host name kept.
const HOST_MAX: usize = 255;
/// Frames are buffered up to this many bytes before they are written.
const GATHER: usize = 1 << 18;

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A kernel record.
    Record,
    /// Facts about a process, JSON.
    Process,
    /// The pipeline's tick, with its time (8 bytes).
    Tick,
    /// Regular end of the recording.
    End,
    /// The wall clock was set: wall clock minus monotonic clock from here on, nanoseconds (8 bytes).
    Clock,
    /// Load shedding from here on (1 byte: the level).
    Shed,
    /// An input from another agent (`relay::event`).
    Relay,
    /// Records of operations were lost after one time; this matters until another (8 bytes each).
    Lost,
}

impl FrameKind {
    const ALL: [Self; 8] =
        [Self::Record, Self::Process, Self::Tick, Self::End, Self::Clock, Self::Shed, Self::Relay, Self::Lost];

    fn byte(self) -> u8 {
        match self {
            Self::Record => 1,
            Self::Process => 2,
            Self::Tick => 3,
            Self::End => 4,
            Self::Clock => 5,
            Self::Shed => 6,
            Self::Relay => 7,
            Self::Lost => 8,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }
}

/// The contents of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Wall clock minus monotonic clock, nanoseconds.
    pub wall_offset: i64,
    /// Seed of generated ids.
    pub seed: u64,
    /// Name of the host.
    pub host: String,
}

/// Why a file cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// Path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file is malformed.
    #[error("{path}: at byte {at}: expected {expected}")]
    Malformed {
        /// Path.
        path: String,
        /// Offset in the file.
        at: u64,
        /// What was expected there.
        expected: &'static str,
    },
}

/// Writes a recording. The file contains only whole frames, whatever happens to the disk.
#[derive(Debug)]
pub struct Writer {
    path: String,
    file: Behind,
    /// Whole frames that are buffered, and their number.
    frames: Vec<u8>,
    gathered: u64,
    failed: bool,
    /// Frames dropped before they were queued.
    dropped: u64,
}

/// A file to which nothing is added after a failure, or beyond `most` bytes.
struct Unbroken {
    file: Whole<File>,
    most: u64,
    broken: bool,
}

impl Sink for Unbroken {
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("a recording has no holes"));
        }
        let written = if self.file.length() + piece.len() as u64 > self.most {
            let most = self.most >> 20;
            Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {most} MiB (limits.max_recording)")))
        } else {
            self.file.write(piece)
        };
        self.broken = written.is_err();
        written
    }
}

fn header(origin: &Origin) -> Vec<u8> {
    let host = origin.host.as_bytes();
    let host = host.get(..host.len().min(HOST_MAX)).unwrap_or_default();
    let mut header = MAGIC.to_vec();
    header.extend(ORDER.to_ne_bytes());
    header.extend(origin.wall_offset.to_ne_bytes());
    header.extend(origin.seed.to_ne_bytes());
    header.push(host.len() as u8);
    header.extend(host);
    header
}

fn push_frame(frames: &mut Vec<u8>, kind: FrameKind, bytes: &[u8]) {
    frames.push(kind.byte());
    frames.extend((bytes.len() as u32).to_ne_bytes());
    frames.extend(bytes);
}

impl Writer {
    /// Creates the file, which must not exist and takes `most` bytes.
    pub fn create(path: &Path, origin: &Origin, most: u64) -> Result<Self, RecordError> {
        let name = path.display().to_string();
        let io = |source| RecordError::Io { path: name.clone(), source };
        let mut file = Whole::new(files::create_new(path).map_err(io)?);
        file.write(&header(origin)).map_err(io)?;
        let words = Words { place: name.clone(), what: "recording", meaning: "has stopped", passes: false };
        let file = Behind::start(Unbroken { file, most, broken: false }, words).map_err(io)?;
        Ok(Self { path: name, file, frames: Vec::new(), gathered: 0, failed: false, dropped: 0 })
    }

    /// Appends a frame. After a failure (a full disk) it writes nothing more, because a recording with a gap would
    /// replay events that never happened; it logs that once and counts the dropped frames.
    pub fn frame(&mut self, kind: FrameKind, bytes: &[u8]) {
        if self.failed {
            self.dropped += 1;
            return;
        }
        push_frame(&mut self.frames, kind, bytes);
        self.gathered += 1;
        if self.frames.len() >= GATHER {
            self.flush();
        }
    }

    /// Queues the buffered frames without waiting for the disk.
    pub fn flush(&mut self) {
        self.failed |= self.file.is_failing();
        if self.frames.is_empty() {
            return;
        }
        let (frames, gathered) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.gathered));
        if self.failed {
            self.dropped += gathered;
        } else {
            self.failed = !self.file.write(frames, gathered);
        }
    }

    /// Number of frames that are missing from the file.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.file.dropped()
    }

    /// A gauge of the write queue.
    pub fn waiting(&self) -> Waiting {
        self.file.waiting()
    }

    /// Ends the file.
    pub fn finish(mut self) -> Result<(), RecordError> {
        self.frame(FrameKind::End, &[]);
        self.flush();
        self.file.finish();
        if self.dropped() > 0 {
            let why = format!("recording had stopped before, {} frames are missing", self.dropped());
            let source = io::Error::other(why);
            return Err(RecordError::Io { path: self.path.clone(), source });
        }
        Ok(())
    }
}

/// Reads a recording.
#[derive(Debug)]
pub struct RecordingReader<R = BufReader<File>> {
    path: String,
    input: R,
    at: u64,
    /// The contents of the header.
    pub origin: Origin,
    buffer: Vec<u8>,
}

impl RecordingReader {
    /// Opens a file and checks its header.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let name = path.display().to_string();
        let file = files::open_recording(path).map_err(|source| RecordError::Io { path: name.clone(), source })?;
        Self::new(name, BufReader::with_capacity(1 << 18, file))
    }
}

impl<R: Read> RecordingReader<R> {
    /// Reads the header from `input`; `path` is for error messages.
    pub fn new(path: String, input: R) -> Result<Self, RecordError> {
        let origin = Origin { wall_offset: 0, seed: 0, host: String::new() };
        let mut reader = Self { path, input, at: 0, origin, buffer: Vec::new() };
        if reader.array("the beginning of a file written by `tracer record`")? != *MAGIC {
            return Err(reader.malformed(0, "a file written by `tracer record` (magic \"TRACERF\", version 7)"));
        }
        if u32::from_ne_bytes(reader.array("the byte order")?) != ORDER {
            return Err(reader.malformed(8, "a file from a machine of the same byte order"));
        }
        reader.origin.wall_offset = i64::from_ne_bytes(reader.array("the clock offset")?);
        reader.origin.seed = u64::from_ne_bytes(reader.array("the seed")?);
        let [len] = reader.array::<1>("the host's name")?;
        let mut host = vec![0; len as usize];
        reader.fill(&mut host, "the host's name")?;
        reader.origin.host = String::from_utf8_lossy(&host).into_owned();
        Ok(reader)
    }

    fn malformed(&self, at: u64, expected: &'static str) -> RecordError {
        RecordError::Malformed { path: self.path.clone(), at, expected }
    }

    fn fill(&mut self, bytes: &mut [u8], expected: &'static str) -> Result<(), RecordError> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.malformed(self.at, expected)),
            Err(source) => Err(RecordError::Io { path: self.path.clone(), source }),
        }
    }

    fn array<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], RecordError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, expected)?;
        Ok(bytes)
    }

    /// The next frame; a [`FrameKind::End`] frame is the last of a complete file.
    pub fn next_frame(&mut self) -> Result<(FrameKind, &[u8]), RecordError> {
        let start = self.at;
        let [byte] = self.array("another frame: the file was cut off")?;
        let kind = FrameKind::of(byte).ok_or_else(|| self.malformed(start, "a frame's kind (1 to 8)"))?;
        let len = u32::from_ne_bytes(self.array("a frame's length: the file was cut off")?);
        if len > FRAME_MAX {
            return Err(self.malformed(start + 1, "a frame of at most 1 MiB"));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(len as usize, 0);
        let filled = self.fill(&mut buffer, "the rest of a frame: the file was cut off");
        self.buffer = buffer;
        filled.map(|()| (kind, self.buffer.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin() -> Origin {
        Origin { wall_offset: -5, seed: 9, host: "host".into() }
    }

    #[test]
    fn frames_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let mut writer = Writer::create(&path, &origin(), 1 << 20).unwrap();
        writer.frame(FrameKind::Record, b"abc");
        writer.frame(FrameKind::Process, b"{}");
        writer.finish().unwrap();
        assert!(Writer::create(&path, &origin(), 1 << 20).is_err(), "never overwritten");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let mut reader = RecordingReader::open(&path).unwrap();
        assert_eq!(reader.origin, origin());
        assert_eq!(reader.next_frame().unwrap(), (FrameKind::Record, &b"abc"[..]));
        assert_eq!(reader.next_frame().unwrap(), (FrameKind::Process, &b"{}"[..]));
        assert_eq!(reader.next_frame().unwrap().0, FrameKind::End);
        let error = reader.next_frame().unwrap_err().to_string();
        assert!(error.contains("cut off"), "{error}");
    }

    #[test]
    fn a_recording_stops_at_its_limit_and_is_whole_up_to_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let mut writer = Writer::create(&path, &origin(), 10_000).unwrap();
        for _ in 0..50 {
            writer.frame(FrameKind::Record, &[7; 995]);
            writer.flush();
        }
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("frames are missing"), "{error}");
        assert!((9_000..=10_000).contains(&std::fs::metadata(&path).unwrap().len()));
        let mut reader = RecordingReader::open(&path).unwrap();
        let frames = std::iter::from_fn(|| reader.next_frame().ok().map(|(kind, _)| kind)).count();
        assert_eq!(frames, 9);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(bytes in proptest::collection::vec(any::<u8>(), 0..300), header in any::<bool>()) {
            let mut input = Vec::new();
            if header {
                input.extend(MAGIC);
                input.extend(ORDER.to_ne_bytes());
            }
            input.extend(bytes);
            if let Ok(mut reader) = RecordingReader::new("x".into(), input.as_slice()) {
                while let Ok((kind, _)) = reader.next_frame() {
                    if kind == FrameKind::End { break; }
                }
            }
        }
    }
}
