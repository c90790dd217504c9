//! Which lines make calls. The kernel side reports the stack of a thread that begins to send on a connection it opened; the call
//! that began with that send takes it, and counts for its class and stack.
//!
//! In the same way the stack of a thread that throws an exception waits for the end of the request that it was thrown for.
//!
//! The line that makes a call is that of the innermost function of the application: what is further in, of libraries, drivers
//! and runtimes, is the same for all calls. Whose a function is, [`CodeOwners`] say, as for hotspots. Where no function of
//! the application is in a stack, that of the process's own program stands in for it, if there is one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use tracer_common::event::{CallStack, THROWN};
use tracer_common::unwind::Outcome;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_model::{CallSite, CodePlace, Interpreted, Nanos, Span};

use super::hotspots::{CodeOrigin, CodeOwners, Stacks};
use super::naming::Stack;
use super::{Frame, FrameOrigin, Profiles, StackOf, StoredStack};

/// How long a stack waits for the end of its call, nanoseconds.
const KEPT: Nanos = 120_000_000_000;
/// For how long a stack with names is recognised by its addresses, nanoseconds: code that was made while running may be other code
/// after a while.
const RECOGNISED: Nanos = 600_000_000_000;
/// One part of this many of the stacks that may be open are.
const RECOGNISED_PART: usize = 4;
/// Text of a TLS library is reported when the library is called or returns; its bytes are sent in between. Most time that a send
/// may be before the text, nanoseconds.
const BEFORE_TEXT: Nanos = 1_000_000;
/// Most places of exceptions whose stacks keep their names.
const RECENT: usize = 1024;
/// Most frames of the stack of an exception that are shown.
const WHOLE: usize = 64;
/// Most stacks, and callers, shown of one place.
const SHOWN: usize = 3;
const CALLERS: usize = 5;

/// A send that may have begun a call.
#[derive(Clone, Copy, Debug)]
struct Sent {
    tid: u32,
    stack: u32,
}

/// Stacks of sends whose calls have not ended, and places of those that have.
#[derive(Debug)]
pub(super) struct CallSites {
    /// By connection and time of the send.
    open: BTreeMap<(u64, Nanos), Sent>,
    /// The same, oldest first; some are gone from `open`.
    order: VecDeque<(u64, Nanos)>,
    most: usize,
    /// Places by stack, for the spans that share them.
    sites: FxHashMap<u32, Arc<CallSite>>,
    /// Stacks that have names and are recognised by their addresses, oldest first, with the time they were named.
    recognised: VecDeque<(Nanos, Arc<Stack>)>,
    /// Of exceptions: the stacks of the last places, which no period has.
    recent: VecDeque<u32>,
    /// Stacks that a call took, that none took, and those that were not kept because there were too many.
    joined: u64,
    unused: u64,
    refused: u64,
    /// Those of `unused` that made room for others.
    evicted: u64,
}

impl CallSites {
    /// Nothing, for at most `most` open calls.
    pub(super) fn within(most: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            order: VecDeque::new(),
            most,
            sites: FxHashMap::default(),
            recognised: VecDeque::new(),
            recent: VecDeque::new(),
            joined: 0,
            unused: 0,
            refused: 0,
            evicted: 0,
        }
    }

    /// Keeps at most `most` from now on.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        self.make_room(0);
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.open.len(), self.most, self.evicted)
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.order.pop_front() else { return false };
        self.unused += u64::from(self.open.remove(&oldest).is_some());
        true
    }

    /// Makes room for so many more.
    fn make_room(&mut self, more: usize) {
        while self.open.len() + more > self.most {
            let before = self.unused;
            if !self.drop_oldest() {
                return;
            }
            self.evicted += self.unused - before;
        }
    }

    fn add(&mut self, at: (u64, Nanos), sent: Sent) {
        self.make_room(1);
        if self.most == 0 {
            self.refused += 1;
            return;
        }
        self.order.push_back(at);
        self.unused += u64::from(self.open.insert(at, sent).is_some());
        if self.order.len() > 2 * self.most {
            self.order.retain(|at| self.open.contains_key(at));
        }
    }

    /// The stack of the send with which a call began.
    fn take(&mut self, span: &Span) -> Option<u32> {
        let exact = (span.cookie, span.start);
        let at = if self.open.contains_key(&exact) {
            exact
        } else if span.encrypted {
            // The same thread's send next to the text.
            let until = if span.first_reply == 0 { span.end } else { span.first_reply };
            let range = (span.cookie, span.start.saturating_sub(BEFORE_TEXT))..=(span.cookie, until.max(span.start));
            let of_thread = self.open.range(range).filter(|(_, sent)| sent.tid == span.tid);
            of_thread.map(|(at, _)| *at).min_by_key(|(_, nanos)| nanos.abs_diff(span.start))?
        } else {
            return None;
        };
        self.joined += 1;
        self.open.remove(&at).map(|sent| sent.stack)
    }

    /// A stack has names, and is recognised by its addresses from now on.
    pub(super) fn remember(&mut self, stack: Arc<Stack>, now: Nanos) {
        self.recognised.push_back((now, stack));
    }

    /// Forgets stacks of calls that were not seen to end; stacks that are not to be recognised any more.
    pub(super) fn tick(&mut self, now: Nanos) -> Vec<Arc<Stack>> {
        while self.order.front().is_some_and(|(_, nanos)| nanos.saturating_add(KEPT) <= now) {
            self.drop_oldest();
        }
        self.order.shrink_excess();
        self.sites.shrink_excess();
        let mut outdated = Vec::new();
        while let Some((since, _)) = self.recognised.front()
            && (since.saturating_add(RECOGNISED) <= now || self.recognised.len() > self.most / RECOGNISED_PART)
        {
            outdated.extend(self.recognised.pop_front().map(|(_, stack)| stack));
        }
        self.recognised.shrink_excess();
        outdated
    }

    /// The stack of a thread that threw an exception then.
    fn take_thrown(&mut self, (tid, at): (u32, Nanos)) -> Option<u32> {
        let Sent { stack, .. } = self.open.remove(&(thrown_by(tid), at))?;
        self.joined += 1;
        if !self.sites.contains_key(&stack) {
            self.recent.push_back(stack);
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        }
        Some(stack)
    }

    /// A stack has names; `whole`: all of it is wanted.
    pub(super) fn named(&self, stack: u32, frames: &[Frame], owners: &CodeOwners, whole: bool) {
        if let Some(site) = self.sites.get(&stack) {
            settle(site, frames, owners, whole);
        }
    }

    /// Adds the ids of all stacks that are needed.
    pub(super) fn used(&self, ids: &mut FxHashSet<u32>) {
        ids.extend(self.open.values().map(|sent| sent.stack));
        ids.extend(&self.recent);
    }

    /// Only these stacks are left.
    pub(super) fn forget_unused(&mut self, ids: &FxHashSet<u32>) {
        self.sites.retain(|id, _| ids.contains(id));
    }

    /// Stacks turned out to be others: the id of each, and that of the other.
    pub(super) fn same(&mut self, ids: &FxHashMap<u32, u32>) {
        for sent in self.open.values_mut() {
            sent.stack = ids.get(&sent.stack).copied().unwrap_or(sent.stack);
        }
        for stack in &mut self.recent {
            *stack = ids.get(stack).copied().unwrap_or(*stack);
        }
        self.sites.retain(|id, _| !ids.contains_key(id));
    }
}

impl Profiles {
    /// A thread began to send on a connection that it opened.
    pub fn call_sent(&mut self, call: &CallStack, user: &[u64], interpreted: &Interpreted) {
        self.now = self.now.max(call.header.nanos);
        if user.is_empty() && interpreted.frames.is_empty() {
            self.calls.unused += 1;
            return;
        }
        let outcome = Outcome::from_number(u32::from(call.outcome)).unwrap_or_default();
        let of = StackOf { lines: true, ..StackOf::default() };
        let stack = self.stack(call.header.tgid, (user, outcome), interpreted, of);
        let kept = if self.part == 0 { None } else { self.keep(stack) };
        let (sites, of) = match call.cookie {
            THROWN => (&mut self.thrown, thrown_by(call.header.tid)),
            cookie => (&mut self.calls, cookie),
        };
        match kept {
            Some(stack) => sites.add((of, call.header.nanos), Sent { tid: call.header.tid, stack }),
            None => sites.refused += 1,
        }
    }

    /// The request is over that a thread threw an exception for: where that was, if its stack was taken.
    pub fn exception_ended(&mut self, thrown: (u32, Nanos)) -> Option<Arc<CallSite>> {
        let stack = self.thrown.take_thrown(thrown)?;
        let site = Arc::clone(self.thrown.sites.entry(stack).or_default());
        if let Some((StoredStack::Named(frames), ..)) = self.stacks.get(&stack) {
            settle(&site, frames, &self.owners, true);
        }
        Some(site)
    }

    /// A call ended: where it was made, if its stack was taken.
    pub fn call_ended(&mut self, span: &Span) -> Option<Arc<CallSite>> {
        let stack = self.calls.take(span)?;
        if let Some((period, most)) = self.current_period() {
            let before = period.rows();
            let is_counted = period.add_call(span.class, stack, most);
            let more = period.rows() - before;
            self.pairs += more;
            self.calls.refused += u64::from(!is_counted);
        }
        let site = Arc::clone(self.calls.sites.entry(stack).or_default());
        if let Some((StoredStack::Named(frames), ..)) = self.stacks.get(&stack) {
            settle(&site, frames, &self.owners, false);
        }
        Some(site)
    }

    /// Stacks of calls by what became of them.
    pub fn call_counts(&self) -> [(&'static str, u64); 3] {
        let CallSites { joined, unused, refused, .. } = self.calls;
        [("joined", joined), ("unused", unused), ("refused", refused)]
    }
}

/// The place of connections, for exceptions of a thread.
fn thrown_by(tid: u32) -> u64 {
    THROWN | u64::from(tid)
}

/// Says where it was; frames outermost first.
fn settle(site: &CallSite, frames: &[Frame], owners: &CodeOwners, whole: bool) {
    let named = frames.iter().rev().filter(|_| whole).take(WHOLE);
    site.settle(place(frames, owners), named.map(place_of).collect());
}

/// Whether code from this file stands for a program where no function of the application is known: no library, nothing that
/// runs others' code.
fn is_program(frame: &Frame, owners: &CodeOwners) -> bool {
    let is_library = |file: &str| file.contains(".so") || CodeOwners::is_interpreter(file);
    frame.parts().origin == FrameOrigin::Mapped
        && !owners.is_declared_third_party(frame)
        && frame.file().is_some_and(|file| !is_library(file))
}

/// The frame of the line that makes a call; frames outermost first.
fn line_of<'a>(frames: &'a [Frame], owners: &CodeOwners) -> Option<&'a Frame> {
    let named = || frames.iter().rev().filter(|frame| !frame.starts_with('['));
    named()
        .find(|frame| owners.code(frame) == CodeOrigin::Application)
        .or_else(|| named().find(|frame| is_program(frame, owners)))
}

fn place_of(frame: &Frame) -> CodePlace {
    let parts = frame.parts();
    let (file, line) = parts.source.map_or((parts.mapped, 0), |(file, line)| (Some(file), line));
    let file = file.map(|file| Arc::from(file.strip_prefix("file://").unwrap_or(file)));
    CodePlace { function: Arc::from(parts.function), file, line }
}

/// Where a call was made; frames outermost first.
pub(super) fn place(frames: &[Frame], owners: &CodeOwners) -> Option<CodePlace> {
    line_of(frames, owners).map(place_of)
}

/// A function of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerFrame {
    /// Its name.
    pub function: String,
    /// The file of its source, or of its code.
    pub file: Option<String>,
    /// The line that runs, or that of its definition; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Whose code it is.
    pub code: CodeOrigin,
}

/// A stack of calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerStack {
    /// Calls.
    pub calls: u64,
    /// Functions, outermost first.
    pub frames: Vec<CallerFrame>,
}

/// A function of the application that called the one that makes calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// Its name.
    pub function: String,
    /// The file of its source, or of its code.
    pub file: Option<String>,
    /// The line; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Calls.
    pub calls: u64,
}

/// A place that makes calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalledFrom {
    /// The function; `null`: no function of the application is in the stacks.
    pub function: Option<String>,
    /// The file of its source, or of its code.
    pub file: Option<String>,
    /// The line; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Calls whose stack was taken.
    pub calls: u64,
    /// The same as a part of all calls whose stack was taken.
    pub share: f64,
    /// The functions of the application that called this one, those of most calls first, five at most.
    pub callers: Vec<Caller>,
    /// Its stacks, those of most calls first, three at most.
    pub stacks: Vec<CallerStack>,
    /// Further stacks.
    pub more_stacks: usize,
}

/// A text, file and line as answers have them.
fn shown(CodePlace { function, file, line }: &CodePlace) -> (String, Option<String>, Option<u32>) {
    let text = |text: &Arc<str>| text.as_ref().to_owned();
    (text(function), file.as_ref().map(text), Some(*line).filter(|line| *line != 0))
}

/// The functions of the application that called the one that makes the calls of these stacks.
fn callers(stacks: &[(u64, &[Frame])], owners: &CodeOwners) -> Vec<Caller> {
    let mut found: HashMap<CodePlace, u64> = HashMap::new();
    for (calls, frames) in stacks {
        let own = |frame: &&Frame| !frame.starts_with('[') && owners.code(frame) == CodeOrigin::Application;
        if let Some(caller) = frames.iter().rev().filter(own).nth(1) {
            *found.entry(place_of(caller)).or_default() += calls;
        }
    }
    let caller = |(place, calls): (CodePlace, u64)| {
        let (function, file, line) = shown(&place);
        Caller { function, file, line, calls }
    };
    let mut found: Vec<Caller> = found.into_iter().map(caller).collect();
    found.sort_by(|a, b| (b.calls, &a.function, a.line).cmp(&(a.calls, &b.function, b.line)));
    found.truncate(CALLERS);
    found
}

/// Calls, and the stacks that they had, each with its calls.
type Weighted<'a> = (u64, Vec<(u64, &'a [Frame])>);

/// The places that made calls with these stacks, those of most calls first, `limit` at most, and how many there are.
pub fn called_from(stacks: &Stacks, owners: &CodeOwners, limit: usize) -> (Vec<CalledFrom>, usize) {
    let mut places: HashMap<Option<CodePlace>, Weighted<'_>> = HashMap::new();
    let all: u64 = stacks.iter().map(|(_, calls, _)| calls).sum();
    for (frames, calls, _) in stacks {
        // The outermost is the process.
        let frames = frames.get(1..).unwrap_or_default();
        let (sum, of) = places.entry(place(frames, owners)).or_default();
        *sum += calls;
        of.push((*calls, frames));
    }
    let frame = |frame: &Frame| {
        let (function, file, line) = shown(&place_of(frame));
        CallerFrame { function, file, line, code: owners.code(frame) }
    };
    let found = places.len();
    let mut found_places: Vec<CalledFrom> = places
        .into_iter()
        .map(|(place, (calls, mut of))| {
            of.sort_by_key(|(calls, _)| std::cmp::Reverse(*calls));
            let stack = |(calls, frames): &(u64, &[Frame])| CallerStack {
                calls: *calls,
                frames: frames.iter().map(frame).collect(),
            };
            let (function, file, line) = place
                .as_ref()
                .map(shown)
                .map_or((None, None, None), |(function, file, line)| (Some(function), file, line));
            CalledFrom {
                function,
                file,
                line,
                calls,
                share: calls as f64 / all.max(1) as f64,
                callers: callers(&of, owners),
                stacks: of.iter().take(SHOWN).map(stack).collect(),
                more_stacks: of.len().saturating_sub(SHOWN),
            }
        })
        .collect();
    let order = |place: &CalledFrom| (std::cmp::Reverse(place.calls), place.function.clone(), place.line);
    found_places.sort_by_cached_key(order);
    found_places.truncate(limit);
    (found_places, found)
}

#[cfg(test)]
mod tests;
