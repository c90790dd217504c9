//! Recordings as sequences of frames, and copies of them with records dropped, doubled and swapped.
//!
//! The format is that of `tracer-user/src/record/mod.rs`; it is read here again, so that a comparison needs neither build's code.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tracer_tests::Numbers;

/// What every recording begins with; the version follows.
const MAGIC: &[u8] = b"TRACERF";
/// Bytes before the host's name: magic and version, byte order, clock offset, seed, the name's length.
const HEADER: usize = 8 + 4 + 8 + 8 + 1;
/// A frame's kind and length.
const FRAME_HEADER: usize = 5;
/// The kind of frames that hold a kernel record. Others (facts about processes, ticks) are never spoilt: an agent makes
/// them itself and loses none.
const RECORD: u8 = 1;
/// One record in this many is dropped, doubled or swapped with the next.
const ONE_IN: u64 = 60;

/// A recording: its header, and its frames with their own headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recording {
    header: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Recording {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is no whole recording", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        if !bytes.starts_with(MAGIC) {
            bail!("it does not begin with {}", String::from_utf8_lossy(MAGIC));
        }
        let name = usize::from(*bytes.get(HEADER - 1).context("its header is cut off")?);
        let (header, mut rest) = bytes.split_at_checked(HEADER + name).context("its header is cut off")?;
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let length = rest.get(1..FRAME_HEADER).and_then(|length| length.try_into().ok());
            let length = u32::from_ne_bytes(length.context("a frame's header is cut off")?) as usize;
            let (frame, after) = rest.split_at_checked(FRAME_HEADER + length).context("a frame is cut off")?;
            frames.push(frame.to_vec());
            rest = after;
        }
        Ok(Self { header: header.to_vec(), frames })
    }

    /// Writes it to a file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let bytes = [self.header.as_slice(), &self.frames.concat()].concat();
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A copy whose records were dropped, doubled and swapped with the next as this seed has it; seed 0 changes nothing.
    pub(super) fn spoilt(&self, seed: u64) -> Self {
        if seed == 0 {
            return self.clone();
        }
        let mut numbers = Numbers::new(seed);
        let mut frames: Vec<Vec<u8>> = Vec::with_capacity(self.frames.len());
        // A record that changes places with the next one.
        let mut held: Option<Vec<u8>> = None;
        for frame in &self.frames {
            let is_record = frame.first() == Some(&RECORD);
            let spoil = is_record && held.is_none() && numbers.below(ONE_IN) == 0;
            match (spoil, numbers.below(3)) {
                (true, 0) => {}
                (true, 1) => frames.extend([frame.clone(), frame.clone()]),
                (true, _) => held = Some(frame.clone()),
                (false, _) => {
                    // Nothing may stand behind the frame that ends the recording.
                    if !is_record {
                        frames.extend(held.take());
                    }
                    frames.push(frame.clone());
                    frames.extend(held.take());
                }
            }
        }
        frames.extend(held);
        Self { header: self.header.clone(), frames }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(records: u32) -> Recording {
        let frame = |kind: u8, bytes: &[u8]| [&[kind][..], &(bytes.len() as u32).to_ne_bytes(), bytes].concat();
        let mut header = vec![0; HEADER];
        header[..MAGIC.len()].copy_from_slice(MAGIC);
        let mut frames: Vec<Vec<u8>> = (0..records).map(|n| frame(RECORD, &n.to_ne_bytes())).collect();
        frames.push(frame(4, &[]));
        Recording { header, frames }
    }

    #[test]
    fn files_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        recording(3).write(&path).unwrap();
        assert_eq!(Recording::read(&path).unwrap(), recording(3));
        let bytes = fs::read(&path).unwrap();
        assert!(Recording::parse(&bytes[..bytes.len() - 1]).is_err(), "cut off");
        assert!(Recording::parse(b"something else entirely, and long enough").is_err());
    }

    #[test]
    fn copies_are_spoilt_by_their_seed_and_end_where_they_should() {
        let fresh = recording(6000);
        assert_eq!(fresh.spoilt(0), fresh);
        assert_eq!(fresh.spoilt(3), fresh.spoilt(3));
        assert_ne!(fresh.spoilt(3), fresh.spoilt(4));
        let spoilt = fresh.spoilt(3);
        assert_eq!(spoilt.frames.last(), fresh.frames.last(), "the frame that ends it");
        let mut counts = std::collections::BTreeMap::new();
        for frame in &spoilt.frames {
            *counts.entry(frame).or_insert(0) += 1;
        }
        let dropped = fresh.frames.len() - counts.len();
        let doubled = counts.values().filter(|count| **count == 2).count();
        let order: Vec<u32> = spoilt
            .frames
            .iter()
            .filter(|f| f.len() == 9)
            .map(|f| u32::from_ne_bytes(f[5..].try_into().unwrap()))
            .collect();
        let swapped = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        for (what, count) in [("dropped", dropped), ("doubled", doubled), ("swapped", swapped)] {
            assert!((10..100).contains(&count), "{count} {what}");
        }
    }
}
