//! What records carry: the `traceparent` in their headers (KIP-82). Record batches of version 2 have headers, older sets of
//! messages none.
//!
//! Keys and values are passed over unread; so are batches that are compressed, whose records are counted by what the batch
//! says of them.

use super::read::Reader;
use crate::model::Linked;
use crate::protocols::context;

/// Bytes of a batch that its length does not count: the offset of its first record, and the length.
const FRONT: usize = 12;
/// The form of batches that are read.
const MAGIC: u8 = 2;
/// Of a batch's attributes: how it is compressed, and that it holds marks of transactions.
const COMPRESSION: i16 = 0x07;
const CONTROL: i16 = 0x20;
/// The header that links.
const HEADER: &[u8] = b"traceparent";

/// What the records of a PRODUCE carry, by what stands behind its header.
pub(super) fn sent(version: i16, mut body: Reader<'_>) -> Linked {
    let mut linked = Linked::default();
    // What was not captured links nothing.
    let _ = topics(version, &mut body, &mut linked);
    linked
}

fn topics(version: i16, body: &mut Reader<'_>, linked: &mut Linked) -> Option<()> {
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

/// Reads the batches of one partition, and passes over them; `None` where they were not captured to their end.
pub(super) fn batches(body: &mut Reader<'_>, linked: &mut Linked) -> Option<()> {
    let (mut rest, whole) = body.blob_as_far()?;
    // The last may be cut by a broker: a consumer drops it then, and asks again.
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
    let mut front = Reader::new(batch, false);
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

/// The value of a record's header, if it has one, and only one (W3C Trace Context §3.2).
fn header(record: &[u8]) -> Option<&[u8]> {
    let mut record = Reader::new(record, false);
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
#[path = "records_tests.rs"]
mod tests;
