//! Jobs that workers take from queues which a database keeps (Sidekiq, Resque, RQ, Celery and BullMQ over Redis).
//!
//! A protocol reports five things ([`JobEvent`]): a client asks for a job, or may take something else, a reply gives it one, a request puts jobs into
//! a queue, and a reply names the job behind an id. Queues and elements are compared by hashes; of an element only the
//! name of its job leaves the parser, if it looks like one of a class or a function.

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use rustc_hash::FxHasher;
use smallvec::SmallVec;

use super::messaging;

/// Longest part of an element that tells it from others, bytes: replies are carried that far in any case.
pub(super) const COMPARED: usize = 512;
/// Most queues of one request, or elements that it puts into one, that are looked at.
pub const LISTED: usize = 32;
/// Longest name of a job, bytes.
const NAME: usize = 128;
/// What libraries put before the names of their queues.
const PREFIXES: [&str; 4] = ["rq:queue:", "resque:queue:", "queues:", "queue:"];

/// What a message shows of the jobs in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// The request asks for the next job of any of these queues.
    Asks(SmallVec<[u64; 4]>),
    /// The request may take something else: an element of a list that holds no jobs, or what a script takes.
    TakesOther,
    /// The reply contains a job.
    Taken(Box<TakenJob>),
    /// The request puts elements into a queue.
    Pushed {
        /// The queue.
        queue: u64,
        /// The elements.
        elements: SmallVec<[u64; 2]>,
    },
    /// The reply names the job whose element is only an id.
    Named {
        /// The element.
        element: u64,
        /// The name.
        name: Arc<str>,
    },
}

/// A job that a client took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenJob {
    /// Where it was.
    pub queue: u64,
    /// Its element in the queue.
    pub element: u64,
    /// The queue if a library keeps it, and the job's name if the element has it.
    pub name: Arc<str>,
    /// The library's workers hand their jobs to a pool: the thread that takes a job does not do it.
    pub handed_over: bool,
}

/// Hash of a queue's name or an element, of which `bytes` are captured, `len` long as a whole; `None` if too little is
/// captured.
pub(super) fn hash(bytes: &[u8], len: u64) -> Option<u64> {
    let compared = usize::try_from(len).unwrap_or(usize::MAX).min(COMPARED);
    let mut hasher = FxHasher::default();
    (bytes.get(..compared)?, len).hash(&mut hasher);
    Some(hasher.finish())
}

/// A job that `element` describes, from `queue`.
pub(super) fn taken(queue: &[u8], element: &[u8], len: u64) -> Option<Box<TakenJob>> {
    let described = describe(element);
    let is_library = described.handed_over || described.name.is_some();
    Some(Box::new(TakenJob {
        queue: hash(queue, queue.len() as u64)?,
        element: hash(element, len)?,
        name: joined(&named(queue, is_library), described.name),
        handed_over: described.handed_over,
    }))
}

/// A job that is not described by its element (`id`), from the queue with this key, which people know by this name; its library keeps the
/// job's name beside. A name that may be data, or a text, is none.
pub(super) fn taken_from(
    (key, queue): (&[u8], &[u8]),
    (id, len): (&[u8], u64),
    name: Option<&[u8]>,
) -> Option<Box<TakenJob>> {
    let begins = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_word = |text: &&str| text.split(['.', ':', '-']).all(|part| is_identifier(part, begins));
    Some(Box::new(TakenJob {
        queue: hash(key, key.len() as u64)?,
        element: hash(id, len)?,
        name: joined(&messaging::text(queue).replace(' ', "_"), name.and_then(text).filter(is_word)),
        // An event loop takes it.
        handed_over: true,
    }))
}

/// The name of a queue as people know it, if a library keeps it: the key of another list may be data. A space separates it
/// from the job's name.
fn named(queue: &[u8], is_library: bool) -> String {
    let text = messaging::text(queue);
    match PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        Some(name) => name.replace(' ', "_"),
        None if is_library => text.replace(' ', "_"),
        None => String::new(),
    }
}

/// Name of a queue and of a job in it.
pub fn joined(queue: &str, job: Option<&str>) -> Arc<str> {
    job.map_or_else(|| Arc::from(queue), |job| Arc::from(format!("{queue} {job}")))
}

/// `bytes` as the name of a Python function with its module; `None` if it is not one. A word without a dot may be anything.
pub(super) fn dotted(bytes: &[u8]) -> Option<&str> {
    let begins = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let text = text(bytes)?;
    (text.contains('.') && text.split('.').all(|part| is_identifier(part, begins))).then_some(text)
}

/// `bytes` as the name of a Ruby class; `None` if it is not one.
fn constant(bytes: &[u8]) -> Option<&str> {
    let text = text(bytes)?;
    text.split("::").all(|part| is_identifier(part, |byte| byte.is_ascii_uppercase())).then_some(text)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.len() <= NAME)
}

fn is_identifier(part: &str, begins: impl Fn(u8) -> bool) -> bool {
    part.bytes().next().is_some_and(begins) && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// What an element says of its job.
#[derive(Debug, Default, PartialEq, Eq)]
struct Described<'a> {
    name: Option<&'a str>,
    handed_over: bool,
}

/// Reads an element as Sidekiq and Resque (`args`, `class`, and the class that it wraps) or Celery (`task` of the headers)
/// write it. It may be cut. Other programs' elements have a `class`, too, which may be data: that of an article, say.
fn describe(element: &[u8]) -> Described<'_> {
    let mut found = Described::default();
    if element.first() != Some(&b'{') {
        return found;
    }
    let (mut class, mut wrapped, mut has_args) = (None, None, false);
    members(element, |inside, key, value| match (inside, key, value) {
        (b"", b"args", Value::Array) => has_args = true,
        (b"", b"class", Value::Text(value)) => class = constant(value),
        (b"", b"wrapped", Value::Text(value)) => wrapped = constant(value),
        (b"headers", b"task", Value::Text(value)) => found = Described { name: dotted(value), handed_over: true },
        _ => {}
    });
    if has_args && !found.handed_over {
        found.name = wrapped.or(class);
    }
    found
}

/// The value of a member.
enum Value<'a> {
    Text(&'a [u8]),
    Array,
}

/// Members of a JSON object that are strings or arrays, and those of the objects in it: the member that contains them
/// (empty: none), key and value. Strings with escapes are left out.
fn members<'a>(json: &'a [u8], mut found: impl FnMut(&'a [u8], &'a [u8], Value<'a>)) {
    let (mut depth, mut inside, mut key): (u32, &[u8], Option<&[u8]>) = (0, b"", None);
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                if let Some(key) = key.filter(|_| depth == 1 && *byte == b'[') {
                    found(b"", key, Value::Array);
                }
                depth += 1;
                // Objects in an array belong to no member.
                inside = if depth == 2 && *byte == b'{' { key.take().unwrap_or(b"[") } else { inside };
                inside = if depth == 2 && *byte == b'[' { b"[" } else { inside };
                key = None;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                inside = if depth <= 1 { b"" } else { inside };
                key = None;
            }
            b',' => key = None,
            b'"' => {
                let Some((text, escaped, after)) = string(json, at) else { return };
                at = after;
                let rest = json.get(at..).unwrap_or_default();
                if rest.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':') {
                    key = (depth <= 2 && !escaped).then_some(text);
                } else if let Some(key) = key.take().filter(|_| depth <= 2 && !escaped) {
                    found(if depth == 1 { b"" } else { inside }, key, Value::Text(text));
                }
            }
            _ => {}
        }
    }
}

/// The string whose first byte is at `at`, whether it has escapes, and the position after it.
fn string(json: &[u8], at: usize) -> Option<(&[u8], bool, usize)> {
    let (mut end, mut escaped) = (at, false);
    loop {
        match json.get(end)? {
            b'"' => return Some((json.get(at..end)?, escaped, end + 1)),
            b'\\' => {
                escaped = true;
                end += 2;
            }
            _ => end += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(queue: &str, element: &str) -> (String, bool) {
        let job = taken(queue.as_bytes(), element.as_bytes(), element.len() as u64).unwrap();
        (job.name.to_string(), job.handed_over)
    }

    /// Elements as the libraries wrote them, shortened in their values only.
    #[test]
    fn elements_name_their_jobs() {
        for (queue, element, name, handed_over) in [
            // Sidekiq 6.4.
            (
                "queue:default",
                r#"{"retry":true,"queue":"default","class":"HardWorker","args":[{"class":"Secret"},"class","x"],"jid":"e2d2b6a1b6a3d0c4e5a6b7c8","created_at":1764372000.1,"enqueued_at":1764372000.1}"#,
                "default HardWorker",
                false,
            ),
            // Sidekiq 7, with the arguments first, by Active Job.
            (
                "queue:mailers",
                r#"{"retry":true,"queue":"mailers","wrapped":"App::WelcomeJob","args":[{"job_class":"x","arguments":["a\"b"]}],"class":"ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper","jid":"1"}"#,
                "mailers App::WelcomeJob",
                false,
            ),
            // Resque.
            ("resque:queue:file_serve", r#"{"class":"Archive","args":[44,"masterbrew"]}"#, "file_serve Archive", false),
            // Celery 5.
            (
                "celery",
                r#"{"body": "W1sxLCAyXSwge31d", "content-encoding": "utf-8", "content-type": "application/json", "headers": {"lang": "py", "task": "tasks.add", "id": "5a1c", "shadow": null}, "properties": {"correlation_id": "5a1c", "task": "no"}}"#,
                "celery tasks.add",
                true,
            ),
            // RQ: only the id.
            ("rq:queue:high", "7f1b1c1e-6d4b-4f0e-9a5a-0d5f3b0c2d11", "high", false),
            ("planted-list", "job17", "", false),
            ("queue:a b", r#"{"class":"no name, but words"}"#, "a_b", false),
            ("q", r#"{"class":"\u0041"}"#, "", false),
            ("q", r#"{"args":["class"],"class":"Wo"#, "", false),
            // A class that is data: no library's element, or no constant.
            ("q", r#"{"class":"PlantedName","body":"x"}"#, "", false),
            ("q", r#"{"class":"PlantedName","args":"["}"#, "", false),
            ("q", r#"{"class":"PlantedName","options":{"args":[1]}}"#, "", false),
            ("q", r#"{"class":"planted-value","args":[1]}"#, "", false),
            ("q", r#"{"class":"planted","args":[1]}"#, "", false),
            ("q", r#"{"class":"Planted::value","args":[1]}"#, "", false),
            ("q", r#"{"class":"https://planted.example/a","args":[1]}"#, "", false),
            ("q", r#"{"headers":{"task":"planted-value"},"body":"x"}"#, "q", true),
            ("q", r#"{"headers":{"task":"planted"},"body":"x"}"#, "q", true),
            ("q", r#"{"headers":{"task":"planted..value"},"body":"x"}"#, "q", true),
            ("q", r#"[{"class":"Inner"}]"#, "", false),
            ("q", r#"{"args":[{"headers":{"task":"Inner"}},{"class":"Inner"}]}"#, "", false),
        ] {
            assert_eq!(job(queue, element), (name.to_owned(), handed_over), "{element}");
        }
    }

    #[test]
    fn elements_are_compared_as_far_as_they_are_captured() {
        let long = "x".repeat(3000);
        let (whole, cut) = (hash(long.as_bytes(), 3000), hash(&long.as_bytes()[..COMPARED], 3000));
        assert_eq!((whole, whole.is_some()), (cut, true));
        assert_eq!(hash(&long.as_bytes()[..COMPARED - 1], 3000), None);
        assert_ne!(hash(b"job1", 4), hash(b"job2", 4));
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(element in proptest::collection::vec(any::<u8>(), 0..64), json in "[{}\\[\\]\"a:,\\\\]{0,40}") {
            describe(&element);
            describe(json.as_bytes());
            describe(format!("{{{json}").as_bytes());
        }
    }
}
