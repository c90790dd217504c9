//! Queues that libraries keep in lists: who asks for the next element, who puts one in, and what names one.
//!
//! Streams and sorted sets are not read: there, an element is not one job. Of scripts, those of `BullMQ` are (`bullmq.rs`).

use smallvec::SmallVec;

use super::bullmq;
use super::read::{Read, header, string};
use crate::jobs::{self, JobEvent, LISTED};

/// Keys whose elements are jobs even if the command that takes one does not wait.
const QUEUES: [&[u8]; 2] = [b"rq:queue:", b"resque:queue:"];
/// Key of RQ's description of a job, before its id.
const RQ_JOB: &[u8] = b"rq:job:";
/// Longest name of a queue that is remembered until the reply comes, bytes.
const QUEUE: usize = 256;

/// A message in parts is put together up to this length, so that it shows what it does with a queue, bytes.
pub(super) const WHOLE: usize = 2048;

/// What a command does with a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum QueueCommand {
    /// Nothing.
    #[default]
    None,
    /// Waits for an element of one of several lists: key and element make up the reply.
    Pop,
    /// Moves an element to another list, and waits for one: the reply is the element.
    Move,
    /// The same without waiting: counts for the queues of libraries that ask again and again.
    Take,
    /// Adds elements.
    Push,
    /// Reads a hash, which may describe a job.
    Describe,
    /// Runs a script, which may take an element.
    Script,
}

impl QueueCommand {
    /// By name.
    pub(super) fn of(command: &str) -> Self {
        match command {
            "BLPOP" | "BRPOP" => Self::Pop,
            "BLMOVE" | "BRPOPLPUSH" => Self::Move,
            "LPOP" | "RPOP" | "LMOVE" | "RPOPLPUSH" => Self::Take,
            "LPUSH" | "RPUSH" => Self::Push,
            "HGETALL" => Self::Describe,
            "EVAL" | "EVALSHA" | "FCALL" => Self::Script,
            _ => Self::None,
        }
    }
}

/// What the reply to a request may contain.
#[derive(Debug, Default)]
pub(super) enum Awaited {
    /// Nothing of a job.
    #[default]
    Nothing,
    /// A list's name and an element of it.
    Pair,
    /// An element of this list.
    Element(Box<[u8]>),
    /// The description of the job with this element.
    Description(u64),
    /// A job of this queue of `BullMQ`.
    BullJob(Box<[u8]>),
    /// The id of a job that was added to this queue of `BullMQ`.
    BullId(u64),
}

/// Reads a request's words after the first, of which there are `count`, at `at`: what it shows, and what its reply may.
pub(super) fn request(command: QueueCommand, bytes: &[u8], at: usize, count: u64) -> (Option<JobEvent>, Awaited) {
    if command == QueueCommand::Script {
        return bullmq::request(bytes, at).unwrap_or((Some(JobEvent::TakesOther), Awaited::Nothing));
    }
    let none = (None, Awaited::Nothing);
    let mut at = at;
    let mut next = || {
        let (found, len, after) = got(string(bytes, at))?;
        at = after;
        Some((found, len))
    };
    if command == QueueCommand::None || count == 0 {
        return none;
    }
    let Some((first, len)) = next().filter(|(first, len)| first.len() as u64 == *len) else { return none };
    let Some(queue) = jobs::hash(first, len) else { return none };
    match command {
        QueueCommand::Pop => {
            // The last word is the timeout.
            let others = (2..count).map_while(|_| next()).filter_map(|(key, len)| jobs::hash(key, len));
            let queues = [queue].into_iter().chain(others).take(LISTED).collect();
            (Some(JobEvent::Asks(queues)), Awaited::Pair)
        }
        QueueCommand::Move | QueueCommand::Take => {
            let waits = command == QueueCommand::Move;
            let is_queue = waits || (QUEUES.iter().any(|prefix| first.starts_with(prefix)) && count <= 4);
            // LPOP and RPOP with a count reply with a list.
            let second = if count > 1 { next() } else { None };
            let single = waits || count != 2 || second.is_some_and(|(word, _)| !word.iter().all(u8::is_ascii_digit));
            // A list that is moved to itself shows its element, and keeps it: such a list holds a result.
            let shows = second.is_some_and(|(to, _)| to == first);
            if shows || !is_queue || !single || first.len() > QUEUE {
                return (Some(JobEvent::TakesOther), Awaited::Nothing);
            }
            (Some(JobEvent::Asks(SmallVec::from_slice(&[queue]))), Awaited::Element(first.into()))
        }
        QueueCommand::Push => {
            let elements = (1..count).take(LISTED).map_while(|_| next());
            let elements: SmallVec<[u64; 2]> = elements.filter_map(|(element, len)| jobs::hash(element, len)).collect();
            (Some(JobEvent::Pushed { queue, elements }), Awaited::Nothing)
        }
        QueueCommand::Describe => {
            let id = first.strip_prefix(RQ_JOB).and_then(|id| jobs::hash(id, id.len() as u64));
            (None, id.map_or(Awaited::Nothing, Awaited::Description))
        }
        QueueCommand::None | QueueCommand::Script => none,
    }
}

/// What a reply shows, as far as it is captured.
pub(super) fn reply(awaited: &Awaited, bytes: &[u8]) -> Option<JobEvent> {
    match awaited {
        Awaited::Nothing => None,
        Awaited::Pair => {
            let Read::Got((Some(2), at)) = header(bytes, 0, b'*') else { return None };
            let (queue, len, at) = got(string(bytes, at))?;
            element(queue.get(..usize::try_from(len).ok()?)?, bytes, at)
        }
        Awaited::Element(queue) => element(queue, bytes, 0),
        Awaited::Description(element) => {
            described(bytes).map(|name| JobEvent::Named { element: *element, name: name.into() })
        }
        Awaited::BullJob(queue) => bullmq::job(queue, bytes),
        Awaited::BullId(queue) => bullmq::added(*queue, bytes),
    }
}

fn element(queue: &[u8], bytes: &[u8], at: usize) -> Option<JobEvent> {
    let (found, len, _) = got(string(bytes, at))?;
    jobs::taken(queue, found, len).map(JobEvent::Taken)
}

/// What was read, if it was.
pub(super) fn got<T>(read: Read<T>) -> Option<T> {
    match read {
        Read::Got(found) => Some(found),
        Read::Short | Read::Bad => None,
    }
}

/// The function that an RQ job calls: its description without the arguments. A caller may describe a job otherwise: then it
/// has no name.
fn described(bytes: &[u8]) -> Option<&str> {
    let (fields, mut at) = match (header(bytes, 0, b'*'), header(bytes, 0, b'%')) {
        (Read::Got((Some(count), at)), _) => (count / 2, at),
        (_, Read::Got((Some(count), at))) => (count, at),
        _ => return None,
    };
    for _ in 0..fields {
        let (key, _, after) = got(string(bytes, at))?;
        let (value, _, next) = got(string(bytes, after))?;
        if key == b"description" {
            let end = value.iter().position(|byte| *byte == b'(')?;
            return jobs::dotted(value.get(..end)?);
        }
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_names_a_job_only_if_it_is_a_call() {
        for (description, expected) in [
            ("app.tasks.count(0, 'planted-value')", Some("app.tasks.count")),
            ("app.Report._run()", Some("app.Report._run")),
            ("planted.value", None),
            ("planted", None),
            ("planted(1)", None),
            ("planted value.x(1)", None),
            ("planted-value.x(1)", None),
            ("4711.planted(1)", None),
            (".planted(1)", None),
        ] {
            let hash = format!("*2\r\n$11\r\ndescription\r\n${}\r\n{description}\r\n", description.len());
            assert_eq!(described(hash.as_bytes()), expected, "{description}");
        }
        // The parenthesis is not captured.
        assert_eq!(described(b"*2\r\n$11\r\ndescription\r\n$900\r\nplanted.value"), None);
    }
}
