//! Units of work that are not yet reported, in a slab of bounded size.

use std::sync::Arc;

use smallvec::SmallVec;

use super::entities::Answer;
use super::knots::Knot;
use super::relayed::Relayed;
use super::rivals::Rivals;
use super::tags::Tagged;
use crate::model::{
    Accepted, Carried, ClassId, Cost, Grade, Linked, Nanos, Outcome, ServiceId, Side, StackSample, TraceId, UnitId,
};
use crate::protocols::Request;

/// Names a live unit; goes stale, detectably, when the unit is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    index: u32,
    generation: u32,
}

#[cfg(test)]
impl Slot {
    /// A name of its own, of no unit.
    pub(super) fn numbered(index: u32) -> Self {
        Self { index, generation: u32::MAX }
    }
}

/// What later evidence said of a call's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Nothing yet.
    None,
    /// The group that read the call's reply began the answer of this request.
    For(Slot),
    /// Two groups that read it answered different requests.
    Split,
}

/// Who caused a call, as far as is known.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// The request in whose group (or on whose thread) the call was made.
    pub candidate: Option<Slot>,
    /// Whether the candidate's thread ran one request at a time, which makes it certain.
    pub alone: bool,
    /// Evidence from the other side.
    pub vote: Vote,
    /// Where the candidate comes from, for people.
    pub evidence: &'static str,
    /// Ids of the candidate, kept for when it is reported first.
    pub kept: Option<Kept>,
    /// Made by a thread that held no request: who waits for its result may yet be seen.
    pub open: bool,
    /// The thread that waited for its result was.
    pub handed: Option<Handed>,
    /// That thread.
    pub by: u32,
    /// Of a process whose tasks share threads: only what tells its task decides.
    pub tasked: bool,
    /// It waits for what its task turns out to work for.
    pub waits: bool,
    /// Its task told.
    pub told: bool,
    /// Its task handed what came of it to another one, which decides.
    pub passed: bool,
    /// The task that it is of by now, where it is seen which wakes which; 0 not known.
    pub task: u64,
    /// What makes that doubtful.
    pub doubt: Option<&'static str>,
    /// Of tasks that mostly do at once what they were woken for: what its callback group says counts until its task tells.
    pub grouped: bool,
}

impl Cause {
    /// Nobody, as far as is known.
    pub fn none(evidence: &'static str) -> Self {
        Self {
            candidate: None,
            alone: false,
            vote: Vote::None,
            evidence,
            kept: None,
            open: false,
            handed: None,
            by: 0,
            tasked: false,
            waits: false,
            told: false,
            passed: false,
            task: 0,
            doubt: None,
            grouped: false,
        }
    }
}

/// What is remembered of a unit that may be reported: its id, transaction, service and class.
pub type Kept = (UnitId, TraceId, ServiceId, Option<ClassId>);

/// How it was seen who waited for a call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Why it may have been somebody else.
    pub doubt: Option<&'static str>,
    /// The futex at which who holds the request was woken; 0: it was not.
    pub futex: u64,
    /// How many calls its thread had made since the result before, where this one is only known to be of the same job
    /// because jobs of its process make so many; 1 where that is not needed.
    pub calls: usize,
}

impl Cause {
    /// Of what the end that accepted the connection sends unasked: a message that was brought to it earlier, by somebody
    /// whom nothing but the message itself can name.
    pub(super) fn delivered() -> Self {
        Self { alone: true, ..Self::none("a delivery: linked by what the message carries") }
    }
}

/// What a unit of an event loop is tied to.
#[derive(Clone, Copy, Debug)]
pub struct Tie {
    /// Its place among those that callbacks tie together.
    pub knot: Knot,
    /// Client side: sent in the very callback that read its request.
    pub direct: bool,
    /// Whether every way a callback ends was seen by then.
    pub sure: bool,
}

/// How long jobs of a request waited for threads of pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolQueue {
    /// Sum of those that are known, nanoseconds.
    known: u64,
    /// How many there were, and of how many it is known.
    jobs: u32,
    sure: u32,
}

impl PoolQueue {
    /// Another job, and how long it waited if that is certain.
    pub fn job(&mut self, waited: Option<u64>) {
        self.jobs = self.jobs.saturating_add(1);
        if let Some(waited) = waited {
            self.known = self.known.saturating_add(waited);
            self.sure += 1;
        }
    }

    /// All together, nanoseconds; `None` where there was none, or one of which it is not certain.
    pub fn sum(&self) -> Option<u64> {
        (self.jobs != 0 && self.jobs == self.sure).then_some(self.known)
    }
}

/// A unit of work in progress or in its grace time.
#[derive(Debug)]
pub struct Live {
    /// Its id.
    pub id: UnitId,
    /// Transaction id of its own making or from a `traceparent`; a parent on this host overrides it.
    pub trace: TraceId,
    /// Parent named by a `traceparent`.
    pub remote_parent: Option<UnitId>,
    /// The call on this host that is this request's other end (server side).
    pub caller: Option<(Slot, UnitId)>,
    /// The request on this host that is this call's other end (client side).
    pub callee: Option<Slot>,
    /// Entry or exit port.
    pub side: Side,
    /// Protocol name.
    pub protocol: &'static str,
    /// Service of the process.
    pub service: ServiceId,
    /// Its class, once given.
    pub class: Option<ClassId>,
    /// What the request said.
    pub request: Box<Request>,
    /// Socket.
    pub cookie: u64,
    /// Number of the exchange on it.
    pub exchange: u64,
    /// Process and thread.
    pub pid: u32,
    /// Thread that read or sent the request.
    pub tid: u32,
    /// Local port.
    pub local_port: u16,
    /// Remote address as text.
    pub peer: Arc<str>,
    /// Remote port.
    pub peer_port: u16,
    /// First byte in the socket, 0 unknown.
    pub arrived: Nanos,
    /// Whether its connection was accepted by then.
    pub accepted: Accepted,
    /// How long its jobs waited for threads.
    pub pool_queue: PoolQueue,
    /// First byte read or sent.
    pub start: Nanos,
    /// First byte of the reply, 0 none.
    pub first_reply: Nanos,
    /// End, 0 while open.
    pub end: Nanos,
    /// Request bytes.
    pub request_bytes: u64,
    /// Reply bytes.
    pub reply_bytes: u64,
    /// Reply bytes after the head.
    pub reply_body_bytes: Option<u64>,
    /// Status, when there was a reply; 0 where the protocol has none.
    pub status: Option<u16>,
    /// Kind of failure, where the reply said it by a word.
    pub failure: Option<&'static str>,
    /// What the messages carry that it brings.
    pub linked: Option<Box<Linked>>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Charged so far.
    pub cost: Cost,
    /// Part of `cost` already given to the class's sums.
    pub posted: Cost,
    /// Samples waiting for a class.
    pub samples: Vec<StackSample>,
    /// Calls made: start and end.
    pub calls: Vec<(Nanos, Nanos)>,
    /// Client side: who caused it.
    pub cause: Cause,
    /// Client side: the request that the maker of its task answered, not believed yet.
    pub lent: Option<Box<Answer>>,
    /// Client side: another task sent by its connection since, so its own serves no connection.
    pub passed_on: bool,
    /// The task whose operation it begins with, as records say it; 0 = none, or not known which.
    pub read_as: u64,
    /// What it is tied to, where an event loop whose callbacks are told apart did it.
    pub tie: Option<Tie>,
    /// Server side: calls of other threads that may be its.
    pub helped: SmallVec<[Slot; 1]>,
    /// Client side, of HTTP/2: when its reply came, no other thread had made a call by its connection.
    pub sole: bool,
    /// Client side: several that were woken after its reply came, until it is known which of them took it.
    pub rivals: Option<Box<Rivals>>,
    /// Server side: how often its thread was woken by others of its process that work for others, or made a call.
    pub stirs: u32,
    /// The same when its answer began.
    pub answered_after: Option<u32>,
    /// Server side: the thread that answered it, 0 none yet.
    pub answered_by: u32,
    /// Server side: whether its thread ran one request at a time throughout.
    pub alone: bool,
    /// Server side: answered by one operation with others, which shared what they cost together.
    pub batch: bool,
    /// Server side: bytes of it went together with those of other streams, and so did their cost, in even shares.
    pub shared: bool,
    /// Its connection carries several at once.
    pub multiplexed: bool,
    /// Server side: sockets on which a turn was begun for it, the first few.
    pub turns: Vec<u64>,
    /// Times its report was put off.
    pub deferred: u8,
    /// What it has to do with another host.
    pub relay: Option<Box<Relayed>>,
    /// Its context in band.
    pub tag: Option<Tagged>,
    /// Whether its transaction is sampled, where somebody said so.
    pub sampled: Option<bool>,
    /// What else came down its transaction; see `passed.rs`.
    pub passed: Option<Arc<Carried>>,
}

impl Live {
    /// What is remembered of it.
    pub fn kept(&self) -> Kept {
        (self.id, self.trace, self.service, self.class)
    }

    /// The call on another host that is this request's other end, as that host's agent says.
    pub fn relayed_parent(&self) -> Option<UnitId> {
        let given = self.relay.as_ref()?.given.as_ref()?;
        Some(given.context.parent)
    }

    /// Server side: its parent, by the carrier that counts most of those that name one: a header of its own, the other end
    /// on this host, another agent's word, the context it came with.
    pub fn named_parent(&self) -> Option<UnitId> {
        let here = || self.caller.map(|(_, id)| id);
        let came = || self.tag.and_then(|tag| tag.parent);
        self.remote_parent.or_else(here).or_else(|| self.relayed_parent()).or_else(came)
    }

    /// Time in which at least one call was open.
    pub fn downstream(&self) -> u64 {
        let mut calls = self.calls.clone();
        calls.sort_unstable();
        let (mut total, mut until) = (0, 0);
        for (start, end) in calls {
            let start = start.max(until);
            if end > start {
                total += end - start;
                until = end;
            }
        }
        total
    }
}

/// The call's parent, how sure that is and why.
pub fn grade(cause: &Cause) -> (Option<Slot>, Grade, &'static str) {
    if let Some(doubt) = cause.handed.and_then(|handed| handed.doubt) {
        return (cause.candidate, Grade::Ambiguous, doubt);
    }
    match (cause.candidate, cause.alone, cause.vote) {
        (Some(slot), false, Vote::For(other)) if slot == other && cause.handed.is_some() => {
            (Some(slot), Grade::Confirmed, cause.evidence)
        }
        (Some(slot), true, _) => (Some(slot), Grade::Certain, cause.evidence),
        (Some(slot), false, Vote::For(other)) if slot == other => {
            (Some(slot), Grade::Confirmed, "sent in its group, its reply answered it")
        }
        (Some(slot), false, Vote::None) => (Some(slot), Grade::Ambiguous, cause.evidence),
        (Some(slot), false, _) => (Some(slot), Grade::Ambiguous, "the two sides disagree"),
        // Nobody caused it: certain too.
        (None, true, _) => (None, Grade::Certain, cause.evidence),
        (None, false, Vote::For(slot)) => (Some(slot), Grade::Ambiguous, "only its reply answered it"),
        (None, false, Vote::Split | Vote::None) => (None, Grade::Orphan, cause.evidence),
    }
}

/// Units by slot. A unit is a kilobyte and lives for some milliseconds: a table of pointers to them is small however many
/// there once were, and their memory is free again when they are reported.
#[derive(Debug, Default)]
pub struct Slab {
    entries: Vec<(u32, Option<Box<Live>>)>,
    free: Vec<u32>,
    used: usize,
}

impl Slab {
    /// Units in it.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a unit.
    pub fn insert(&mut self, live: Box<Live>) -> Slot {
        self.used += 1;
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            entry.1 = Some(live);
            return Slot { index, generation: entry.0 };
        }
        self.entries.push((0, Some(live)));
        Slot { index: (self.entries.len() - 1) as u32, generation: 0 }
    }

    /// The unit, if it is still live.
    pub fn get(&self, slot: Slot) -> Option<&Live> {
        let (generation, live) = self.entries.get(slot.index as usize)?;
        if *generation == slot.generation { live.as_deref() } else { None }
    }

    /// The unit, if it is still live.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Live> {
        let (generation, live) = self.entries.get_mut(slot.index as usize)?;
        if *generation == slot.generation { live.as_deref_mut() } else { None }
    }

    /// Takes the unit out; its slot goes stale.
    pub fn remove(&mut self, slot: Slot) -> Option<Box<Live>> {
        let (generation, live) = self.entries.get_mut(slot.index as usize)?;
        if *generation != slot.generation {
            return None;
        }
        let live = live.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(slot.index);
        self.used -= 1;
        Some(live)
    }

    /// Every live slot.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, (_, live))| live.is_some())
            .map(|(index, (generation, _))| Slot { index: index as u32, generation: *generation })
    }
}
