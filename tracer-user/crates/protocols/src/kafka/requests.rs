//! The subject of requests: their first topic, if they name one.

use super::read::KafkaReader;
use super::{CREATE_TOPICS, DELETE_TOPICS, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, PRODUCE};

/// The subject of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject<'a> {
    /// Its first topic.
    pub(super) topic: Option<&'a [u8]>,
    /// Number of its topics.
    pub(super) topics: usize,
    /// No reply is wanted.
    pub(super) silent: bool,
    /// FETCH: continues a fetch session, and contains only the differences.
    pub(super) goes_on: bool,
}

/// Whether this reader knows the topics in an API's requests.
pub(super) fn has_topics(api: i16) -> bool {
    matches!(api, PRODUCE | FETCH | LIST_OFFSETS | METADATA | OFFSET_COMMIT | CREATE_TOPICS | DELETE_TOPICS)
}

/// Reads a request's subject from the bytes after its header; `None` if those were not captured.
pub(super) fn subject(api: i16, version: i16, body: KafkaReader<'_>) -> Option<Subject<'_>> {
    let mut body = body;
    let mut subject = Subject::default();
    // Later versions identify topics by id.
    let mut by_id = false;
    match api {
        PRODUCE => {
            if version >= 3 {
                body.text()?;
            }
            subject.silent = body.short()? == 0;
            body.skip(4)?;
            by_id = version >= 13;
        }
        FETCH => {
            body.skip(if version >= 15 { 8 } else { 12 })?;
            body.skip(if version >= 3 { 4 } else { 0 })?;
            body.skip(usize::from(version >= 4))?;
            if version >= 7 {
                body.skip(4)?;
                subject.goes_on = body.long()? > 0;
            }
            by_id = version >= 13;
        }
        LIST_OFFSETS => body.skip(if version >= 2 { 5 } else { 4 })?,
        OFFSET_COMMIT => {
            body.text()?;
            if version >= 1 {
                body.skip(4)?;
                body.text()?;
            }
            if version >= 7 {
                body.text()?;
            }
            body.skip(if (2..=4).contains(&version) { 8 } else { 0 })?;
            by_id = version >= 10;
        }
        METADATA | CREATE_TOPICS | DELETE_TOPICS => {}
        _ => return Some(subject),
    }
    subject.topics = body.count()?;
    if subject.topics > 0 && !by_id {
        if api == METADATA && version >= 10 {
            body.skip(16)?;
        }
        subject.topic = Some(body.text()?).filter(|topic| !topic.is_empty());
    }
    Some(subject)
}
