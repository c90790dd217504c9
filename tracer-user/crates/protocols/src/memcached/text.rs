//! The text protocol: lines of words, some followed by values.

use memchr::memchr;

use super::{OTHER, length, mark, named};
use crate::{Body, Detected, ExpectedReply, Reply, Request, Step, Walked};

/// Longest line waited for: the server gives up on a command of this length without a line end.
const LINE: usize = 8 * 1024;
/// Longest value accepted: the server's largest item size.
const VALUE_MOST: u64 = 1 << 30;
/// Longest key.
const KEY: usize = 250;

/// Commands without a value.
const PLAIN: &[&str] = &[
    "get",
    "gets",
    "gat",
    "gats",
    "delete",
    "incr",
    "decr",
    "touch",
    "mg",
    "md",
    "ma",
    "me",
    "mn",
    "stats",
    "version",
    "verbosity",
    "flush_all",
    "cache_memlimit",
    "slabs",
    "lru",
    "lru_crawler",
    "watch",
    "shutdown",
    "quit",
];
/// Commands with a value, whose length is the fifth word.
const STORES: &[&str] = &["set", "add", "replace", "append", "prepend", "cas"];
/// The meta command with a value, whose length is the third word.
const META_STORE: &str = "ms";
/// Commands whose first argument is a key.
const KEYED: &[&str] = &["get", "gets", "delete", "incr", "decr", "touch", "mg", "md", "ma", "me"];

/// Commands that always have a reply, unless they say `noreply`, whose first two letters are one of few.
const COUNTED: &[&str] =
    &["get", "gets", "gat", "gats", "delete", "touch", "set", "add", "replace", "append", "prepend", "cas"];

/// First words of single-line replies.
const LINES: &[&str] = &[
    "STORED",
    "NOT_STORED",
    "EXISTS",
    "NOT_FOUND",
    "DELETED",
    "TOUCHED",
    "OK",
    "VERSION",
    "END",
    "RESET",
    "HD",
    "EN",
    "NF",
    "NS",
    "EX",
    "MN",
    "ME",
    "BADCLASS",
    "NOSPARE",
    "NOTFULL",
    "UNSAFE",
    "SAME",
];
/// First words of single-line replies that are failures.
const FAILURES: &[&str] = &["ERROR", "CLIENT_ERROR", "SERVER_ERROR", "BUSY"];
/// First words of the lines of a list, which END ends.
const LISTS: &[&str] = &["VALUE", "STAT", "ITEM", "PREFIX"];

/// Whether `front`, the first bytes of a request, name a command whose exchanges can be counted by the fronts of their messages.
pub fn is_counted_by_front(front: &[u8]) -> bool {
    let end = memchr(b' ', front);
    let name = end.and_then(|end| front.get(..end));
    name.is_some_and(|name| listed(COUNTED, name).is_some())
}

/// The failure that a reply's first two letters show.
pub fn failure_by_front(front: &[u8]) -> Option<&'static str> {
    let letters = front.get(..2)?;
    FAILURES.iter().find(|failure| failure.as_bytes().starts_with(letters)).copied()
}

/// All commands.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PLAIN.iter().chain(STORES).chain([&META_STORE]).copied()
}

/// A line without its end, and its full length. `Err(true)`: the end may still come.
fn line(bytes: &[u8]) -> Result<(&[u8], usize), bool> {
    match memchr(b'\n', bytes.get(..bytes.len().min(LINE)).unwrap_or_default()) {
        Some(end) => {
            let line = bytes.get(..end).unwrap_or_default();
            Ok((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
        }
        None => Err(bytes.len() < LINE),
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

fn number(word: Option<&[u8]>) -> Option<u64> {
    let word = word.filter(|word| !word.is_empty() && word.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn listed(list: &[&'static str], word: &[u8]) -> Option<&'static str> {
    list.iter().find(|known| known.as_bytes() == word).copied()
}

/// Content of a command line.
struct CommandLine {
    name: &'static str,
    /// Bytes of the value and the line end after it.
    value: u64,
    expected: ExpectedReply,
}

fn command(line: &[u8]) -> Option<CommandLine> {
    let mut rest = words(line);
    let first = rest.next()?;
    let mut expected = ExpectedReply::default();
    if let Some(name) = listed(STORES, first) {
        let value = number(rest.nth(3)).filter(|value| *value <= VALUE_MOST)?;
        expected.silent = rest.last() == Some(b"noreply");
        return Some(CommandLine { name, value: value + 2, expected });
    }
    let meta = first == META_STORE.as_bytes();
    let value = if meta { number(rest.nth(1)).filter(|value| *value <= VALUE_MOST)? + 2 } else { 0 };
    let name = if meta { META_STORE } else { listed(PLAIN, first)? };
    match name {
        "ms" | "mg" | "md" | "ma" => {
            let flags = rest.skip(usize::from(!meta));
            for flag in flags {
                match flag.first() {
                    Some(b'q') => expected.optional = true,
                    Some(b'O') => expected.note = mark(flag, 0),
                    _ => {}
                }
            }
            if !expected.optional {
                expected.note = 0;
            }
        }
        "delete" | "incr" | "decr" | "touch" | "flush_all" | "verbosity" | "cache_memlimit" => {
            expected.silent = rest.last() == Some(b"noreply");
        }
        "quit" | "shutdown" => expected.silent = true,
        // A log stream follows its reply.
        "watch" => expected.tunnel = true,
        _ => {}
    }
    Some(CommandLine { name, value, expected })
}

/// Kind of a server's first line.
enum FirstLine {
    Line(Option<&'static str>),
    /// This many bytes follow.
    Value(u64),
    List,
}

fn answer(line: &[u8]) -> Option<FirstLine> {
    let mut rest = words(line);
    let first = rest.next()?;
    if let Some(failure) = listed(FAILURES, first) {
        return Some(FirstLine::Line(Some(failure)));
    }
    if listed(LINES, first).is_some() || number(Some(first)).is_some() {
        return Some(FirstLine::Line(None));
    }
    if first == b"VA" {
        return number(rest.next()).filter(|value| *value <= VALUE_MOST).map(|value| FirstLine::Value(value + 2));
    }
    (listed(LISTS, first).is_some() || first.starts_with(b"key=")).then_some(FirstLine::List)
}

/// Whether a line contains only characters that clients and servers send.
fn is_text(line: &[u8]) -> bool {
    // Keys may contain anything but spaces and control characters.
    line.iter().all(|byte| *byte >= b' ' && *byte != 0x7f)
}

pub(super) fn detect_text(bytes: &[u8]) -> Detected {
    let Ok((line, used)) = line(bytes) else {
        let end = bytes.iter().position(|byte| matches!(byte, b' ' | b'\r'));
        let first = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        let known = |known: &&str| match end {
            Some(_) => known.as_bytes() == first,
            None => known.as_bytes().starts_with(first),
        };
        let text = bytes.len() < LINE && is_text(bytes.strip_suffix(b"\r").unwrap_or(bytes));
        let all = PLAIN.iter().chain(STORES).chain([&META_STORE, &"VALUE", &"VA"]);
        return if text && all.clone().any(known) { Detected::NeedMore } else { Detected::No };
    };
    if !is_text(line) {
        return Detected::No;
    }
    let mut rest = words(line);
    let first = rest.next().unwrap_or_default();
    if listed(STORES, first).is_some() || first == META_STORE.as_bytes() {
        let key = rest.next().is_some_and(|key| key.len() <= KEY);
        let numbers =
            rest.clone().take(3).filter(|word| number(Some(word.strip_prefix(b"-").unwrap_or(word))).is_some());
        let enough = if first == META_STORE.as_bytes() {
            rest.clone().take(1).all(|word| number(Some(word)).is_some())
        } else {
            numbers.count() == 3
        };
        return if key && enough && command(line).is_some() { Detected::Request } else { Detected::No };
    }
    if first == b"VALUE" {
        let key = rest.next().is_some_and(|key| key.len() <= KEY);
        let numbers = rest.clone().all(|word| number(Some(word)).is_some()) && matches!(rest.count(), 2 | 3);
        return if key && numbers && used > line.len() + 1 { Detected::Reply } else { Detected::No };
    }
    // One or two words could belong to many protocols: decided together with the reply.
    match listed(PLAIN, first) {
        Some(name) if KEYED.contains(&name) && rest.next().is_none_or(|key| key.len() > KEY) => Detected::No,
        // Without a time it is beanstalkd's.
        Some("touch") if rest.next().is_none() => Detected::No,
        Some(_) => Detected::NeedMore,
        None => Detected::No,
    }
}

/// Whether a line that begins with these words is an answer to this command.
fn fits(name: &str, line: &[u8]) -> bool {
    let first = words(line).next().unwrap_or_default();
    let alone = first.len() == line.len();
    let among = |list: &[&str]| list.iter().any(|known| known.as_bytes() == first);
    match name {
        "get" | "gets" | "gat" | "gats" => among(&["VALUE", "END"]),
        "delete" => alone && among(&["DELETED", "NOT_FOUND"]),
        "incr" | "decr" => number(Some(first)).is_some() || alone && among(&["NOT_FOUND"]),
        "touch" => alone && among(&["TOUCHED", "NOT_FOUND"]),
        "stats" => among(&["STAT", "ITEM", "PREFIX"]) || alone && among(&["END", "RESET"]),
        "version" => among(&["VERSION"]),
        "mg" | "md" | "ma" | "ms" | "mn" | "me" => among(&["HD", "EN", "NF", "NS", "EX", "VA", "MN", "ME"]),
        _ if STORES.contains(&name) => alone && among(&["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"]),
        "lru_crawler" if first.starts_with(b"key=") => true,
        _ => alone && among(&["OK", "END"]) || among(&["BADCLASS", "NOSPARE", "NOTFULL", "UNSAFE", "SAME"]),
    }
}

/// The command of a request, and the first line of what may answer it.
fn exchange<'a>(request: &[u8], answer: &'a [u8]) -> Option<(&'static str, bool, &'a [u8])> {
    let (asked, _) = line(request).ok()?;
    let command = command(asked).filter(|command| !command.expected.silent)?;
    // beanstalkd has `touch` without a time, and `delete` with a job's number.
    if command.name == "touch" && words(asked).count() < 3 {
        return None;
    }
    let shared = command.name == "delete" && words(asked).count() == 2 && number(words(asked).nth(1)).is_some();
    let (line, used) = line(answer).ok()?;
    (used > line.len() + 1).then_some((command.name, shared, line))
}

/// Whether `request` and `answer` together belong to this protocol.
pub(super) fn is_answer(request: &[u8], answer: &[u8]) -> bool {
    exchange(request, answer).is_some_and(|(name, shared, line)| !shared && fits(name, line))
}

/// The same where other protocols have both.
pub(super) fn may_be_answer(request: &[u8], answer: &[u8]) -> bool {
    exchange(request, answer).is_some_and(|(name, shared, line)| {
        shared && fits(name, line) || words(line).next().is_some_and(|first| listed(FAILURES, first).is_some())
    })
}

/// Whether a reply does not answer the oldest quiet request.
pub(super) fn passes(bytes: &[u8], expected: ExpectedReply) -> Option<bool> {
    let (line, _) = line(bytes).ok()?;
    let mut rest = words(line);
    let first = rest.next().unwrap_or_default();
    if expected.note != 0 {
        let own = rest.any(|flag| flag.first() == Some(&b'O') && mark(flag, 0) == expected.note);
        // Errors do not show which request they answer.
        return Some(!own && listed(FAILURES, first).is_none());
    }
    Some((first.len() != 2 || first == b"MN") && listed(FAILURES, first).is_none())
}

/// Reads a command.
pub(super) fn request(bytes: &[u8], cut: bool) -> Step<Box<Request>> {
    match line(bytes) {
        Ok((line, used)) => {
            let found = command(line);
            if found.is_none() && !is_text(line) {
                return Step::Invalid;
            }
            let CommandLine { name, value, expected } =
                found.unwrap_or(CommandLine { name: OTHER, value: 0, expected: ExpectedReply::default() });
            Step::Head { used, message: named(name, expected), body: length(value) }
        }
        Err(true) if !cut => Step::NeedMore,
        // Many keys: named by the captured part.
        Err(_) => {
            let first = words(bytes).next().unwrap_or_default();
            let Some(name) = listed(PLAIN, first).filter(|_| first.len() < bytes.len()) else {
                return Step::Invalid;
            };
            let mut message = named(name, ExpectedReply::default());
            message.cut = true;
            Step::Head { used: bytes.len(), message, body: Body::UntilTurn }
        }
    }
}

/// Position in the lines of a list.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// The line's first bytes.
    first: [u8; 6],
    /// Bytes of the line so far.
    have: usize,
    /// Words of the line so far, and the current one's value as a number.
    word: u8,
    number: u64,
    /// A value's length, and the bytes left of the line end after it.
    value: Option<u64>,
}

impl Text {
    pub(super) fn reply(&mut self, bytes: &[u8], cut: bool, expected: ExpectedReply) -> Step<Reply> {
        let (line, used) = match line(bytes) {
            Ok(found) => found,
            Err(true) if !cut => return Step::NeedMore,
            Err(_) => return Step::Invalid,
        };
        let message = |failure| Reply { status: 0, failure, interim: false };
        match answer(line) {
            Some(FirstLine::Line(failure)) => {
                let body = if expected.tunnel && failure.is_none() { Body::Switch } else { Body::Length(0) };
                Step::Head { used, message: message(failure), body }
            }
            Some(FirstLine::Value(value)) => Step::Head { used, message: message(None), body: length(value) },
            Some(FirstLine::List) => {
                *self = Self::default();
                match self.body(bytes.get(..used).unwrap_or_default()) {
                    Walked::More(unread) => Step::Head { used, message: message(None), body: Body::Own(unread) },
                    Walked::End(_) | Walked::Lost => Step::Invalid,
                }
            }
            None => Step::Invalid,
        }
    }

    /// Takes bytes of a list.
    pub(super) fn body(&mut self, bytes: &[u8]) -> Walked {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at += 1;
            if let Some(place) = self.first.get_mut(self.have) {
                *place = *byte;
            }
            self.have += 1;
            match byte {
                b'\n' => {
                    let first = self.first.get(..self.have.min(6)).unwrap_or_default();
                    let ends = matches!(first, b"END\r\n" | b"END\n")
                        || first.starts_with(b"ERROR")
                        || first.starts_with(b"SERVER");
                    let value = if first == b"VALUE " { Some(self.value.unwrap_or(self.number)) } else { None };
                    *self = Self::default();
                    if ends {
                        return Walked::End(at);
                    }
                    let Some(value) = value else { continue };
                    if value > VALUE_MOST {
                        return Walked::Lost;
                    }
                    let left = (bytes.len() - at) as u64;
                    if value + 2 > left {
                        return Walked::More(value + 2 - left);
                    }
                    at += value as usize + 2;
                }
                b' ' => {
                    // VALUE key flags bytes cas.
                    if self.word == 3 {
                        self.value = Some(self.number);
                    }
                    self.word = self.word.saturating_add(1);
                    self.number = 0;
                }
                b'0'..=b'9' => self.number = self.number.saturating_mul(10).saturating_add(u64::from(byte - b'0')),
                _ => {}
            }
        }
        Walked::More(0)
    }

    /// Whether bytes of which only the last were captured end the list.
    pub(super) fn ends_unseen(&self, len: u64, last: &[u8]) -> bool {
        self.have == 0 && len == 5 && last.ends_with(b"END\r\n")
    }
}
