//! Requests that a proxy forwards unchanged (HAProxy, nginx, Envoy): the call's content identifies the request.
//!
//! HAProxy reads everything that arrived on its connections and forwards it afterwards, on connections it reuses or
//! opens later: neither order nor callbacks link the two. But a proxy sends what it read. If exactly one unanswered
//! request of a thread has a call's method and target, the call was made for it; the reply confirms that if it came
//! before the answer and has the same status. Identical requests stay ambiguous, and so do two calls that match one
//! request.
//!
//! This holds for proxies only: an application may call `/users/5` for one request while another client requests
//! `/users/5` from it. A process counts as a proxy while its calls match requests that are open at the time.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use tracer_common::event::Op;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::{Nanos, ProtocolId};
use tracer_protocols::{Conventions, Request};

use crate::cause::{Candidate, Forwarded};
use crate::combine::Vote;
use crate::evidence::{Doubt, Evidence};
use crate::open_span::{OpenSpan, Slab};
use crate::request_mobility;
use crate::slot::Slot;
use crate::task_identity::is_looped;
use crate::thread::Thread;
use crate::world::World;

/// Matching calls a process needs to count as a proxy.
const SEEN: u32 = 8;
/// A process counts as a proxy while at most one in this many of its calls matches no open request.
const OWN_CALLS: u32 = 500;
/// Calls counted per process before the counts are halved.
const COUNTED: u32 = 8192;
/// Calls remembered per request.
const FORWARDS: usize = 4;
/// Open requests remembered per thread and fingerprint; more are only counted. Two are ambiguous already, and the long
/// pipelines that some protocols send would be searched from end to end for each of their requests.
const ALIKE: usize = 16;

/// Statistics of a process's calls.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    /// Calls that match exactly one open request, and calls that match none. For callback groups: calls whose two sides
    /// name the same request, and calls whose sides differ.
    alike: u32,
    own: u32,
}

impl Calls {
    fn count(&mut self, alike: bool) {
        if self.alike.saturating_add(self.own) >= COUNTED {
            (self.alike, self.own) = (self.alike / 2, self.own / 2);
        }
        *(if alike { &mut self.alike } else { &mut self.own }) += 1;
    }

    fn is_usual(self) -> bool {
        self.alike >= SEEN && self.is_consistent()
    }

    fn is_consistent(self) -> bool {
        self.own.saturating_mul(OWN_CALLS) <= self.alike
    }
}

/// How often the two sides of a process's calls name the same request.
#[derive(Clone, Copy, Debug, Default)]
struct Sides {
    all: Calls,
    /// Of these, calls with one pending read at both sides.
    one_pending_read: Calls,
}

/// Requests of a thread with one fingerprint.
#[derive(Debug, Default)]
struct Alike {
    /// At most [`ALIKE`].
    listed: SmallVec<[Slot; 2]>,
    /// Further ones that are open, answered or not.
    unlisted: usize,
}

impl Alike {
    fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.unlisted == 0
    }

    /// The only one.
    fn one(&self) -> Option<Slot> {
        match self.listed[..] {
            [slot] if self.unlisted == 0 => Some(slot),
            _ => None,
        }
    }
}

/// Open requests by fingerprint, and statistics of the processes that may forward them.
#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    /// By thread and fingerprint.
    requests: FxHashMap<(u32, u64), Alike>,
    processes: FxHashMap<u32, Calls>,
    /// How often the two sides of calls name the same request, by process.
    sides: FxHashMap<u32, Sides>,
}

impl Forwarding {
    /// Requests of thread `tid` with this fingerprint; those listed have no answer yet.
    fn open(&mut self, tid: u32, fingerprint: u64, spans: &Slab) -> Option<&Alike> {
        let alike = self.requests.get_mut(&(tid, fingerprint))?;
        alike.listed.retain(|slot| spans.get(*slot).is_some_and(|live| live.end == 0 && live.first_reply == 0));
        Some(alike).filter(|alike| !alike.is_empty()).map(|alike| &*alike)
    }

    /// Adds a request; whether it is listed.
    fn add(&mut self, key: (u32, u64), slot: Slot) -> bool {
        // Bounded by the number of open spans: each removes its own entry.
        let alike = self.requests.entry(key).or_default();
        let listed = alike.listed.len() < ALIKE;
        if listed {
            alike.listed.push(slot);
        } else {
            alike.unlisted += 1;
        }
        listed
    }

    fn remove(&mut self, key: (u32, u64), slot: Slot, listed: bool) {
        if let Some(alike) = self.requests.get_mut(&key) {
            if listed {
                alike.listed.retain(|other| *other != slot);
            } else {
                alike.unlisted = alike.unlisted.saturating_sub(1);
            }
            if alike.is_empty() {
                self.requests.remove(&key);
            }
        }
    }

    /// The process has exited.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.processes.remove(&tgid);
        self.sides.remove(&tgid);
    }

    /// Releases the memory of tables that are mostly empty.
    pub(crate) fn shrink(&mut self) {
        self.requests.shrink_excess();
        self.processes.shrink_excess();
        self.sides.shrink_excess();
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// Hash of what a proxy leaves unchanged in a request; 0: unknown.
pub(crate) fn fingerprint(request: &Request, protocol: ProtocolId) -> u64 {
    let http = matches!(protocol.conventions(), Conventions::Http | Conventions::Rpc);
    if request.method.is_empty() || (http && request.target == 0) || (!http && request.cut) {
        return 0;
    }
    let mut hasher = FxHasher::default();
    request.method.hash(&mut hasher);
    if http {
        request.target.hash(&mut hasher);
    } else {
        (protocol, &request.path).hash(&mut hasher);
    }
    hasher.finish().max(1)
}

impl Forwarding {
    /// A thread read a request that it may forward.
    pub(crate) fn read(&mut self, world: &mut World, slot: Slot, op: &Op) {
        if is_looped(op) || world.is_tasked(op) {
            return;
        }
        let Some(live) = world.spans.get_mut(slot) else { return };
        live.in_forwarding = Some(self.add((live.tid, live.fingerprint), slot));
    }

    /// A span is reported.
    pub(crate) fn reported(&mut self, slot: Slot, live: &OpenSpan) {
        if let Some(listed) = live.in_forwarding {
            self.remove((live.tid, live.fingerprint), slot, listed);
        }
    }

    /// A call was sent: checks whether it forwards an open request.
    pub(crate) fn sent(&mut self, world: &mut World, slot: Slot, op: &Op) {
        let tid = op.header.tid;
        if is_looped(op) || world.is_tasked(op) {
            return;
        }
        let Some(call) = world.spans.get(slot).filter(|live| live.fingerprint != 0 && !live.request.expected.timed)
        else {
            return;
        };
        let (fingerprint, tgid, candidate) = (call.fingerprint, call.pid, call.client.cause.request());
        let Some(thread) = world.threads.get(&tid).filter(|thread| !thread.open.is_empty()) else { return };
        let multiplexer = thread.several();
        let several = thread.open.len() > 1;
        let nameless = self.open(tid, 0, &world.spans).is_some();
        let open = self.open(tid, fingerprint, &world.spans);
        let (one, none) = (open.and_then(Alike::one).filter(|_| !nameless), open.is_none());
        let alike: SmallVec<[Slot; 2]> = open.map(|alike| alike.listed.clone()).unwrap_or_default();
        if (one.is_some() || none)
            && (self.processes.len() < world.limits.processes || self.processes.contains_key(&tgid))
        {
            self.processes.entry(tgid).or_default().count(one.is_some());
        }
        let trusted = self.is_proxy(tgid);
        let Some(request) = one else {
            for request in &alike {
                if let Some(live) = world.spans.get_mut(*request) {
                    live.server.looks_shared = true;
                }
            }
            let other = candidate.is_some_and(|candidate| !alike.contains(&candidate));
            if trusted && multiplexer && several && other && !none {
                doubt_call(world, slot, Doubt::OtherContent);
            }
            return;
        };
        let (first, calls) = match world.spans.get_mut(request) {
            Some(live) if live.server.forwards.len() < FORWARDS && !live.server.looks_shared => {
                live.server.forwards.push(slot);
                ((live.start, live.kept()), live.server.forwards.clone())
            }
            _ => return,
        };
        if trusted
            && multiplexer
            && candidate != Some(request)
            && let Some(call) = world.spans.get_mut(slot)
        {
            let (since, kept) = first;
            call.client.cause.candidate = Some(Candidate { slot: request, kept });
            (call.client.cause.vote, call.client.cause.evidence) = (Vote::None, Evidence::Forwards);
            call.client.cause.forwarded = Some(Forwarded { since, by_group: false });
        }
        if calls.len() > 1 {
            for call in calls {
                if world.spans.get(call).is_some_and(|call| call.client.cause.forwarded.is_some()) {
                    doubt_call(world, call, Doubt::ForwardedTwice);
                }
            }
        }
    }

    /// The first byte of a request's answer was sent: checks whether it is the reply of the forwarding call.
    pub(crate) fn answered(&mut self, world: &mut World, request: Slot) {
        let Some(live) = world.spans.get(request).filter(|live| !live.server.looks_shared) else { return };
        let &[slot] = &live.server.forwards[..] else { return };
        let (since, status, tgid) = (live.start, live.status, live.pid);
        let trusted = self.is_proxy(tgid);
        let several = world.threads.get(&live.tid).is_some_and(Thread::several);
        let Some(call) = world.spans.get_mut(slot).filter(|call| !call.client.cause.is_certain()) else { return };
        if call.client.cause.request() != Some(request) || !trusted || !several {
            return;
        }
        if call.first_reply != 0 && call.status == status {
            let before = call.client.cause.forwarded.is_some_and(|forwarded| forwarded.by_group);
            let by_group = before || call.client.cause.vote == Vote::For(request);
            call.client.cause.forwarded = Some(Forwarded { since, by_group });
            (call.client.cause.vote, call.client.cause.evidence) = (Vote::For(request), Evidence::Forwards);
        } else if call.client.cause.forwarded.is_some() {
            doubt_call(world, slot, Doubt::OtherReply);
        }
    }

    /// Why a call is doubtful whose parent was found by forwarding or by its callback group.
    pub(crate) fn doubt(&self, world: &World, call: &OpenSpan) -> Option<Doubt> {
        let cause = &call.client.cause;
        let Some(Forwarded { since, by_group }) = cause.forwarded else {
            let grouped = call.rare.group_membership.is_none() && cause.taken.is_none() && !cause.is_tasked();
            let grouped = grouped && cause.evidence != Evidence::OnlySender;
            return if grouped { self.doubt_of_group(world, call) } else { None };
        };
        let doubt = self.doubt_of_forward(world, call, since)?;
        if by_group { self.doubt_of_group(world, call) } else { Some(doubt) }
    }

    /// Why it is doubtful that a call forwards the request it matches, which was read at `since`.
    fn doubt_of_forward(&self, world: &World, call: &OpenSpan, since: Nanos) -> Option<Doubt> {
        if world.processes.affinity.moves(call.pid) {
            // Another thread may have read the same request.
            return Some(Doubt::Moves);
        }
        if !self.is_proxy(call.pid) {
            return Some(Doubt::NoProxy);
        }
        world.threads.get(&call.tid).is_none_or(|thread| thread.lost_at >= since).then_some(Doubt::ThreadUnseen)
    }

    /// Why it is doubtful that a call was made for its group's request although both sides agree: they agree by chance
    /// in a process that reads several requests before it sends calls for them. Of such a process only those calls are
    /// sure at which its thread had no other pending read; and where any thread goes on with any request, these only once
    /// several calls have shown that its threads go on with what they read.
    fn doubt_of_group(&self, world: &World, call: &OpenSpan) -> Option<Doubt> {
        let sides = self.sides.get(&call.pid);
        let at_both = call.client.cause.one_pending_read.at_both();
        if world.processes.affinity.moves(call.pid) || request_mobility::may_move_unseen(world, call) {
            let sure =
                at_both && sides.is_some_and(|sides| sides.one_pending_read.is_usual() && sides.all.is_consistent());
            return (!sure).then_some(Doubt::Moves);
        }
        let sides = sides?;
        let sure = at_both && sides.one_pending_read.is_consistent();
        (!sure && !sides.all.is_consistent()).then_some(Doubt::Batches)
    }

    /// The answer of `request` began in the group of `call`'s reply: counts whether the group that sent the call names
    /// the same request. `one_pending_read`: the thread had read nothing else when it answered.
    pub(crate) fn sides_met(&mut self, world: &mut World, call: Slot, request: Slot, one_pending_read: bool) {
        let Some(live) = world
            .spans
            .get_mut(call)
            .filter(|live| live.rare.group_membership.is_none() && !live.client.cause.is_tasked())
        else {
            return;
        };
        live.client.cause.one_pending_read.answered(one_pending_read);
        let Some(candidate) = live.client.cause.request().filter(|_| !live.client.cause.is_certain()) else { return };
        let (sides, tgid) = (&mut self.sides, live.pid);
        if sides.len() < world.limits.processes || sides.contains_key(&tgid) {
            let sides = sides.entry(tgid).or_default();
            sides.all.count(candidate == request);
            if live.client.cause.one_pending_read.at_both() {
                sides.one_pending_read.count(candidate == request);
            }
        }
    }

    fn is_proxy(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|calls| calls.is_usual())
    }
}

fn doubt_call(world: &mut World, call: Slot, why: Doubt) {
    if let Some(live) = world.spans.get_mut(call).filter(|live| !live.client.cause.is_certain()) {
        live.client.cause.doubt = Some(why);
    }
}
