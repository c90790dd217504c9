//! The last seconds of what the pipeline was given, in memory: a recording that begins before it is asked for.
//!
//! Frames are kept in segments, the oldest of which go first. What a replay needs of the time before stays: who processes are, and
//! which connections are open. A recording that is made of them is what an agent would have recorded that was started then.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use tracer_common::event::{Header, Kind, Open, State};
use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;

use super::{FrameKind, Origin, header, push_frame};

/// A segment ends with the tick, or when it has so many bytes.
const SEGMENT: usize = 1 << 20;
/// Most processes and connections from before the segments that are remembered.
const BEFORE: usize = 16_384;
/// Where a record's header has its time (`Header::nanos`).
const NANOS: std::ops::Range<usize> = 8..16;
/// `TCP_CLOSE` (`include/net/tcp_states.h`).
const CLOSED: u8 = 7;

/// The ring.
#[derive(Debug)]
pub struct HindsightRing {
    /// As of the oldest segment.
    origin: Origin,
    time: Nanos,
    most: usize,
    segments: VecDeque<Segment>,
    open: Vec<u8>,
    bytes: usize,
    /// Time of the newest record.
    now: Nanos,
    /// When the oldest segment begins.
    begins: Nanos,
    /// Segments that went before their time, because there was no room.
    short: u64,
    before: Before,
}

#[derive(Debug)]
struct Segment {
    frames: Arc<Vec<u8>>,
    ends: Nanos,
}

/// What is known of the time before the oldest segment.
#[derive(Debug, Default)]
struct Before {
    /// Facts by process.
    processes: Remembered<u32>,
    /// [`Open`] records by socket.
    sockets: Remembered<u64>,
    shed: Option<u8>,
}

/// The newest frame of each key. The end of a UNIX socket is not reported, so the oldest half goes where there is no room.
#[derive(Debug, Default)]
struct Remembered<K> {
    /// With the number of when it came.
    frames: FxHashMap<K, (u64, Box<[u8]>)>,
    came: u64,
    dropped: u64,
}

impl<K: Hash + Eq> Remembered<K> {
    fn remember(&mut self, key: K, frame: &[u8]) {
        if self.frames.len() >= BEFORE {
            let mut came: Vec<u64> = self.frames.values().map(|(came, _)| *came).collect();
            let (_, middle, _) = came.select_nth_unstable(BEFORE / 2);
            let before = self.frames.len();
            self.frames.retain(|_, (came, _)| came > middle);
            self.dropped += (before - self.frames.len()) as u64;
        }
        self.came += 1;
        self.frames.insert(key, (self.came, frame.into()));
    }

    fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.values().map(|(_, frame)| &**frame)
    }
}

/// A recording in memory.
#[derive(Clone, Debug)]
pub struct HindsightRecording {
    /// Bytes of the file, in order.
    pub pieces: Vec<Arc<Vec<u8>>>,
    /// How much time it covers, nanoseconds.
    pub time: Nanos,
}

impl HindsightRing {
    /// Keeps the last `time` nanoseconds, in at most `most` bytes.
    pub fn new(origin: Origin, time: Nanos, most: usize) -> Self {
        Self {
            origin,
            time,
            most,
            segments: VecDeque::new(),
            open: Vec::new(),
            bytes: 0,
            now: 0,
            begins: 0,
            short: 0,
            before: Before::default(),
        }
    }

    /// Takes a frame.
    pub fn frame(&mut self, kind: FrameKind, bytes: &[u8]) {
        let time = match kind {
            FrameKind::Record => bytes.get(NANOS),
            FrameKind::Tick => Some(bytes),
            _ => None,
        };
        if let Some(now) = time.and_then(|time| time.try_into().ok()).map(u64::from_ne_bytes) {
            // Those of several CPUs are a little out of order.
            self.now = self.now.max(now);
            if self.begins == 0 {
                self.begins = self.now;
            }
        }
        push_frame(&mut self.open, kind, bytes);
        if kind == FrameKind::Tick || self.open.len() >= SEGMENT {
            self.end_segment();
        }
    }

    fn end_segment(&mut self) {
        let mut frames = std::mem::take(&mut self.open);
        frames.shrink_to_fit();
        self.bytes += frames.len();
        self.segments.push_back(Segment { frames: Arc::new(frames), ends: self.now });
        let old = self.now.saturating_sub(self.time);
        while let Some(oldest) = self.segments.front()
            && (oldest.ends < old || self.bytes > self.most)
        {
            self.short += u64::from(oldest.ends >= old);
            self.begins = oldest.ends;
            self.bytes -= oldest.frames.len();
            self.before.take(&oldest.frames, &mut self.origin);
            self.segments.pop_front();
        }
    }

    /// How much time the segments cover, nanoseconds.
    pub fn covers(&self) -> Nanos {
        self.now.saturating_sub(self.begins)
    }

    /// Bytes held of those allowed; how often there was no room for all the time asked for.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(
            self.bytes + self.open.len(),
            self.most,
            self.short + self.before.processes.dropped + self.before.sockets.dropped,
        )
    }

    /// The recording of now. Copies nothing of the segments.
    pub fn recording(&mut self) -> HindsightRecording {
        if !self.open.is_empty() {
            self.end_segment();
        }
        let mut first = header(&self.origin);
        if let Some(level) = self.before.shed {
            push_frame(&mut first, FrameKind::Shed, &[level]);
        }
        for facts in self.before.processes.frames() {
            push_frame(&mut first, FrameKind::Process, facts);
        }
        for open in self.before.sockets.frames() {
            // As if they were seen for the first time when the recording begins: of old ones without traffic little is kept.
            let mut open = open.to_vec();
            if let Some(nanos) = open.get_mut(NANOS) {
                nanos.copy_from_slice(&self.begins.to_ne_bytes());
            }
            push_frame(&mut first, FrameKind::Record, &open);
        }
        let mut last = Vec::new();
        push_frame(&mut last, FrameKind::End, &[]);
        let segments = self.segments.iter().map(|segment| Arc::clone(&segment.frames));
        let pieces = [Arc::new(first)].into_iter().chain(segments).chain([Arc::new(last)]).collect();
        HindsightRecording { pieces, time: self.covers() }
    }
}

/// Facts of a process, as far as needed.
#[derive(Deserialize)]
struct Facts {
    pid: u32,
}

impl Before {
    /// The frames are of the past now.
    fn take(&mut self, mut frames: &[u8], origin: &mut Origin) {
        while let Some(([byte, length @ ..], rest)) = frames.split_first_chunk::<5>()
            && let Some((bytes, rest)) = rest.split_at_checked(u32::from_ne_bytes(*length) as usize)
        {
            frames = rest;
            match FrameKind::of(*byte) {
                Some(FrameKind::Record) => self.record(bytes),
                Some(FrameKind::Process) => {
                    if let Ok(Facts { pid }) = serde_json::from_slice(bytes) {
                        self.processes.remember(pid, bytes);
                    }
                }
                Some(FrameKind::Clock) => {
                    if let Ok(offset) = bytes.try_into() {
                        origin.wall_offset = i64::from_ne_bytes(offset);
                    }
                }
                Some(FrameKind::Shed) => self.shed = bytes.first().copied(),
                _ => {}
            }
        }
    }

    fn record(&mut self, bytes: &[u8]) {
        match bytes.first().copied().and_then(Kind::from_byte) {
            Some(Kind::Open) => {
                if let Some(open) = Open::decode(bytes) {
                    self.sockets.remember(open.cookie, bytes);
                }
            }
            Some(Kind::State) => {
                if let Some(state) = State::decode(bytes).filter(|state| state.new == CLOSED) {
                    self.sockets.frames.remove(&state.cookie);
                }
            }
            Some(Kind::ProcessEnd | Kind::Exec) => {
                if let Some(header) = Header::decode(bytes) {
                    self.processes.frames.remove(&header.tgid);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RecordingReader;
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn origin() -> Origin {
        Origin { wall_offset: 1, seed: 2, host: "host".into() }
    }

    fn record(kind: Kind, nanos: Nanos) -> Vec<u8> {
        let header = Header { kind: kind as u8, nanos, tgid: 7, ..Header::default() };
        let mut bytes = vec![0; kind.fixed_size()];
        header.encode(&mut bytes).expect("room");
        bytes
    }

    fn open(cookie: u64, nanos: Nanos) -> Vec<u8> {
        let mut bytes = record(Kind::Open, nanos);
        bytes[Header::SIZE..][..8].copy_from_slice(&cookie.to_ne_bytes());
        bytes
    }

    fn closed(cookie: u64, nanos: Nanos) -> Vec<u8> {
        let header = Header { kind: Kind::State as u8, nanos, ..Header::default() };
        let mut bytes = vec![0; State::SIZE];
        State { header, cookie, new: CLOSED, ..State::default() }.encode(&mut bytes).expect("room");
        bytes
    }

    /// The frames of a recording: kind, and time of records and ticks.
    fn frames(recording: &HindsightRecording) -> (Origin, Vec<(FrameKind, Nanos)>) {
        let file: Vec<u8> = recording.pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let mut reader = RecordingReader::new("r".into(), &file[..]).expect("a recording");
        let mut found = Vec::new();
        loop {
            let (kind, bytes) = reader.next_frame().expect("a frame");
            let time = match kind {
                FrameKind::End => return (reader.origin, found),
                FrameKind::Record => u64::from_ne_bytes(bytes[NANOS].try_into().expect("eight")),
                FrameKind::Tick => u64::from_ne_bytes(bytes.try_into().expect("eight")),
                _ => 0,
            };
            found.push((kind, time));
        }
    }

    #[test]
    fn the_last_seconds_are_a_recording_of_their_own() {
        let mut ring = HindsightRing::new(origin(), 3 * SECOND, 1 << 20);
        ring.frame(FrameKind::Process, br#"{"pid":7}"#);
        ring.frame(FrameKind::Process, br#"{"pid":8}"#);
        ring.frame(FrameKind::Record, &open(1, SECOND));
        ring.frame(FrameKind::Record, &open(2, SECOND));
        ring.frame(FrameKind::Shed, &[1]);
        ring.frame(FrameKind::Clock, &5i64.to_ne_bytes());
        for second in 1..=10 {
            ring.frame(FrameKind::Record, &record(Kind::Op, second * SECOND + 1));
            if second == 3 {
                ring.frame(FrameKind::Record, &closed(2, second * SECOND + 2));
                let end = Header { kind: Kind::ProcessEnd as u8, tgid: 8, ..Header::default() };
                let mut bytes = vec![0; Kind::ProcessEnd.fixed_size()];
                end.encode(&mut bytes).expect("room");
                ring.frame(FrameKind::Record, &bytes);
            }
            ring.frame(FrameKind::Tick, &(second * SECOND + 9).to_ne_bytes());
        }
        ring.frame(FrameKind::Record, &record(Kind::Op, 10 * SECOND + 500));
        assert_eq!(ring.covers(), 4 * SECOND + 491);
        let (origin, found) = frames(&ring.recording());
        assert_eq!(origin.wall_offset, 5);
        let begins = 7 * SECOND + 9;
        let mut expected = vec![(FrameKind::Shed, 0), (FrameKind::Process, 0), (FrameKind::Record, begins)];
        for second in 8..=10 {
            expected.extend([(FrameKind::Record, second * SECOND + 1), (FrameKind::Tick, second * SECOND + 9)]);
        }
        expected.push((FrameKind::Record, 10 * SECOND + 500));
        assert_eq!(found, expected);
        // It goes on after that.
        ring.frame(FrameKind::Tick, &(11 * SECOND + 9).to_ne_bytes());
        assert_eq!(frames(&ring.recording()).1.last(), Some(&(FrameKind::Tick, 11 * SECOND + 9)));
    }

    #[test]
    fn memory_is_bounded_and_less_time_is_visible() {
        let mut ring = HindsightRing::new(origin(), 60 * SECOND, 3 * SEGMENT);
        let mut large = record(Kind::Op, 0);
        large.resize(10_000, 0);
        for n in 1..=1000 {
            large[NANOS].copy_from_slice(&(n * SECOND / 100).to_ne_bytes());
            ring.frame(FrameKind::Record, &large);
        }
        let used = ring.table_use();
        assert!(used.entries <= used.limit && used.reached > 0, "{used:?}");
        assert!(ring.covers() < 4 * SECOND && ring.covers() > SECOND, "{}", ring.covers());
        for cookie in 0..BEFORE as u64 + 5 {
            ring.before.record(&open(cookie, 1));
        }
        let sockets = &ring.before.sockets;
        assert_eq!(sockets.frames.len() + sockets.dropped as usize, BEFORE + 5);
        assert!(sockets.frames.len() <= BEFORE && sockets.frames.contains_key(&(BEFORE as u64)));
    }
}
