//! Reads the `traceparent` in record headers (KIP-82). Record batches of version 2 have headers, older message sets do
//! not.
//!
//! Keys and values are skipped unread; so are compressed batches, whose records are counted by the number in the batch
//! header.

use tracer_model::Linked;

use super::read::KafkaReader;
use crate::context;

/// Bytes of a batch not counted in its length: the offset of its first record, and the length.
const FRONT: usize = 12;
/// The batch version that is read.
const MAGIC: u8 = 2;
/// Batch attributes: the compression, and the flag for control batches.
const COMPRESSION: i16 = 0x07;
const CONTROL: i16 = 0x20;
/// The record header that carries the link.
const HEADER: &[u8] = b"traceparent";

/// The links in the records of a PRODUCE, from the bytes after its header.
pub(super) fn sent(version: i16, mut body: KafkaReader<'_>) -> Linked {
    let mut linked = Linked::default();
    // Uncaptured records link nothing.
    let _ = topics(version, &mut body, &mut linked);
    linked
}

fn topics(version: i16, body: &mut KafkaReader<'_>, linked: &mut Linked) -> Option<()> {
    if version >= 3 {
        body.text()?;
    }
    body.skip(6)?;
    for _ in 0..body.count()? {
        body.topic(version >= 13)?;
        for _ in 0..body.count()? {
            body.skip(4)?;
            batches(body, linked)?;
            body.tags()?;
        }
        body.tags()?;
    }
    Some(())
}

/// Reads and skips the batches of one partition; `None` if they were not captured to their end.
pub(super) fn batches(body: &mut KafkaReader<'_>, linked: &mut Linked) -> Option<()> {
    let (mut rest, whole) = body.blob_as_far()?;
    // A broker may cut the last batch: the consumer then drops it and fetches it again.
    while let Some(len) = rest.get(8..FRONT).and_then(|len| len.first_chunk()) {
        let Ok(len) = usize::try_from(i32::from_be_bytes(*len)) else { break };
        let batch = rest.get(FRONT..).unwrap_or_default();
        let complete = batch.len() >= len;
        if !complete && whole {
            break;
        }
        batch_of(batch.get(..len).unwrap_or(batch), linked);
        rest = batch.get(len..).unwrap_or_default();
    }
    whole.then_some(())
}

/// Reads one batch, from the epoch on.
fn batch_of(batch: &[u8], linked: &mut Linked) {
    let mut front = KafkaReader::new(batch, false);
    let mut read = || -> Option<(i16, u32)> {
        front.skip(4)?;
        if front.take(1)? != [MAGIC] {
            return None;
        }
        front.skip(4)?;
        let attributes = front.short()?;
        front.skip(34)?;
        Some((attributes, u32::try_from(front.long()?).ok()?))
    };
    let Some((attributes, count)) = read().filter(|(attributes, _)| attributes & CONTROL == 0) else { return };
    let mut seen = 0;
    if attributes & COMPRESSION == 0 {
        while seen < count
            && let Some(record) = front.piece()
        {
            seen += 1;
            if let Some(context) = header(record).and_then(context::traceparent) {
                linked.add(context.names());
            }
        }
    }
    linked.unread = linked.unread.saturating_add(count - seen);
}

/// The header's value, if the record has exactly one (W3C Trace Context §3.2).
fn header(record: &[u8]) -> Option<&[u8]> {
    let mut record = KafkaReader::new(record, false);
    record.skip(1)?;
    record.passed()?;
    record.passed()?;
    for _ in ["key", "value"] {
        record.piece()?;
    }
    let mut found = None;
    for _ in 0..record.signed()? {
        let (name, value) = (record.piece()?, record.piece()?);
        if name.eq_ignore_ascii_case(HEADER) && found.replace(value).is_some() {
            return None;
        }
    }
    found
}

#[cfg(test)]
mod tests;
