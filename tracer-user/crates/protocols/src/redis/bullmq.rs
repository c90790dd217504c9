//! `BullMQ`'s queues, which its scripts keep: who asks for the next job, who adds one, and what the replies contain.
//!
//! A script is known by its first two keys. The job's id stands in the replies: of the script that adds a job, and behind the job's
//! description where one is taken. Scripts that are sent as a whole (once a connection) are too long to be read.

use smallvec::SmallVec;

use super::queues::{Awaited, got};
use super::read::{Read, header, string};
use crate::jobs::{self, JobEvent};

/// Length of what names a script that the server has.
const SHA: u64 = 40;
/// Longest name of a queue, with its prefix, bytes.
const QUEUE: usize = 256;
/// Most keys of a script.
const KEYS: u64 = 32;
/// Most fields of a job's description.
const FIELDS: u64 = 64;

/// Reads the words of a request to run a script, from `at`: what it shows, and what its reply may. `None`: another script.
pub(super) fn request(bytes: &[u8], at: usize) -> Option<(Option<JobEvent>, Awaited)> {
    let (_, _, at) = got(string(bytes, at)).filter(|(_, len, _)| *len == SHA)?;
    let (count, _, at) = got(string(bytes, at))?;
    let count: u64 = std::str::from_utf8(count).ok()?.parse().ok()?;
    let (first, first_len, at) = got(string(bytes, at))?;
    let (second, second_len, _) = got(string(bytes, at))?;
    let whole = first.len() as u64 == first_len && second.len() as u64 == second_len;
    let queue = first.strip_suffix(b":wait").filter(|queue| whole && queue.len() <= QUEUE)?;
    // A prefix and a name.
    if !(2..=KEYS).contains(&count) || !queue.contains(&b':') {
        return None;
    }
    let number = jobs::hash(queue, queue.len() as u64)?;
    match second.strip_prefix(queue)? {
        // Takes a job, or ends one and takes the next.
        b":active" => Some((Some(JobEvent::Asks(SmallVec::from_slice(&[number]))), Awaited::BullJob(queue.into()))),
        b":paused" => Some((None, Awaited::BullId(number))),
        _ => None,
    }
}

/// The job that a reply contains: a list of its description and its id, among others; zeros, if there is none.
pub(super) fn job(queue: &[u8], bytes: &[u8]) -> Option<JobEvent> {
    let Read::Got((Some(2..), at)) = header(bytes, 0, b'*') else { return None };
    let Read::Got((Some(fields), mut at)) = header(bytes, at, b'*') else { return None };
    let mut name = None;
    if fields > FIELDS {
        return None;
    }
    for _ in 0..fields / 2 {
        let (key, _, after) = got(string(bytes, at))?;
        let (value, len, next) = got(string(bytes, after))?;
        if key == b"name" && value.len() as u64 == len {
            name = Some(value);
        }
        at = next;
    }
    let (id, len, _) = got(string(bytes, at))?;
    let name_of_queue = queue.rsplit(|byte| *byte == b':').next()?;
    jobs::taken_from((queue, name_of_queue), (id, len), name).map(JobEvent::Taken)
}

/// The id that a job got when it was added.
pub(super) fn added(queue: u64, bytes: &[u8]) -> Option<JobEvent> {
    let (id, len, _) = got(string(bytes, 0))?;
    Some(JobEvent::Pushed { queue, elements: SmallVec::from_slice(&[jobs::hash(id, len)?]) })
}
