//! Reads failures from replies: an error number, located differently in each API. Of several topics and partitions, the
//! first failed one captured counts. The records of a FETCH reply come after the same numbers.

use tracer_model::Linked;

use super::read::KafkaReader;
use super::{CREATE_TOPICS, DELETE_TOPICS, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, PRODUCE};
use super::{names, records};

const FIND_COORDINATOR: i16 = 10;
const JOIN_GROUP: i16 = 11;

/// APIs whose reply begins with an error, and the version from which the throttle time precedes it.
const AT_THE_FRONT: &[(i16, i16)] = &[
    (JOIN_GROUP, 2),
    (12, 1),
    (13, 1),
    (14, 1),
    (16, 1),
    (17, i16::MAX),
    (18, i16::MAX),
    (22, 0),
    (25, 0),
    (26, 0),
    (29, 0),
    (36, i16::MAX),
    (38, i16::MAX),
    (39, i16::MAX),
    (40, i16::MAX),
    (41, i16::MAX),
    (43, 0),
    (45, 0),
    (46, 0),
    (47, i16::MAX),
    (48, 0),
    (50, 0),
    (57, 0),
    (60, 0),
    (62, 0),
    (63, 0),
    (64, 0),
    (66, 0),
    (67, 0),
    (68, 0),
    (71, 0),
    (72, 0),
    (74, 0),
    (76, 0),
    (78, 0),
    (79, 0),
    (88, 0),
];

/// Content of a reply.
#[derive(Debug, Default)]
pub(super) struct ReplyOutcome {
    /// The first failure.
    pub(super) failure: Option<&'static str>,
    /// Links carried by its records.
    pub(super) linked: Linked,
}

impl ReplyOutcome {
    fn check(&mut self, number: i16) {
        self.failure = self.failure.or_else(|| names::error(number));
    }
}

/// Reads a reply after its header.
pub(super) fn outcome(api: i16, version: i16, body: KafkaReader<'_>) -> ReplyOutcome {
    let mut outcome = ReplyOutcome::default();
    // Uncaptured fields are simply missing.
    let _ = read(api, version, body, &mut outcome);
    outcome
}

/// Reads as far as captured.
fn read(api: i16, version: i16, mut body: KafkaReader<'_>, outcome: &mut ReplyOutcome) -> Option<()> {
    if let Some((_, paused)) = AT_THE_FRONT.iter().find(|(known, _)| *known == api) {
        body.skip(if version >= *paused { 4 } else { 0 })?;
        outcome.check(body.short()?);
        return Some(());
    }
    match api {
        PRODUCE => {
            for _ in 0..body.count()? {
                body.topic(version >= 13)?;
                for _ in 0..body.count()? {
                    body.skip(4)?;
                    outcome.check(body.short()?);
                    body.skip(8)?;
                    body.skip(if version >= 2 { 8 } else { 0 })?;
                    body.skip(if version >= 5 { 8 } else { 0 })?;
                    if version >= 8 {
                        for _ in 0..body.count()? {
                            body.skip(4)?;
                            body.text()?;
                            body.tags()?;
                        }
                        body.text()?;
                    }
                    body.tags()?;
                }
                body.tags()?;
            }
        }
        FETCH => {
            body.skip(if version >= 1 { 4 } else { 0 })?;
            if version >= 7 {
                outcome.check(body.short()?);
                body.skip(4)?;
            }
            for _ in 0..body.count()? {
                body.topic(version >= 13)?;
                for _ in 0..body.count()? {
                    body.skip(4)?;
                    outcome.check(body.short()?);
                    body.skip(8)?;
                    body.skip(if version >= 5 { 8 } else { 0 })?;
                    if version >= 4 {
                        body.skip(8)?;
                        for _ in 0..body.count()? {
                            body.skip(16)?;
                            body.tags()?;
                        }
                    }
                    body.skip(if version >= 11 { 4 } else { 0 })?;
                    records::batches(&mut body, &mut outcome.linked)?;
                    body.tags()?;
                }
                body.tags()?;
            }
        }
        LIST_OFFSETS | OFFSET_COMMIT => {
            let paused = if api == LIST_OFFSETS { 2 } else { 3 };
            body.skip(if version >= paused { 4 } else { 0 })?;
            for _ in 0..body.count()? {
                body.topic(api == OFFSET_COMMIT && version >= 10)?;
                for _ in 0..body.count()? {
                    body.skip(4)?;
                    outcome.check(body.short()?);
                    match (api, version) {
                        (OFFSET_COMMIT, _) => {}
                        // Offsets, as many as requested.
                        (_, 0) => {
                            let len = body.count()?.checked_mul(8)?;
                            body.skip(len)?;
                        }
                        (_, version) => body.skip(if version >= 4 { 20 } else { 16 })?,
                    }
                    body.tags()?;
                }
                body.tags()?;
            }
        }
        METADATA => {
            body.skip(if version >= 3 { 4 } else { 0 })?;
            for _ in 0..body.count()? {
                body.skip(4)?;
                body.text()?;
                body.skip(4)?;
                if version >= 1 {
                    body.text()?;
                }
                body.tags()?;
            }
            if version >= 2 {
                body.text()?;
            }
            body.skip(if version >= 1 { 4 } else { 0 })?;
            if body.count()? > 0 {
                outcome.check(body.short()?);
            }
        }
        CREATE_TOPICS | DELETE_TOPICS => {
            let paused = if api == CREATE_TOPICS { 2 } else { 1 };
            body.skip(if version >= paused { 4 } else { 0 })?;
            if body.count()? > 0 {
                body.text()?;
                let by_id = version >= if api == CREATE_TOPICS { 7 } else { 6 };
                body.skip(if by_id { 16 } else { 0 })?;
                outcome.check(body.short()?);
            }
        }
        FIND_COORDINATOR => {
            body.skip(if version >= 1 { 4 } else { 0 })?;
            if version >= 4 {
                if body.count()? == 0 {
                    return Some(());
                }
                body.text()?;
                body.skip(4)?;
                body.text()?;
                body.skip(4)?;
            }
            outcome.check(body.short()?);
        }
        _ => {}
    }
    Some(())
}
