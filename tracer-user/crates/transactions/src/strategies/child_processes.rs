//! Calls of processes that were forked for a request: CGI programs, `subprocess`, `exec()`, shell commands and what
//! these run in turn.
//!
//! A process belongs to the request that the forking thread held alone. That is not enough for a parent: the first
//! request that needs a pool of worker processes forks workers that then work for all requests. A pool's worker outlives
//! the request; a process that works for one request ends before the answer, because the thread waits for it. So a call
//! gets its parent when its process has ended and the same thread has answered. A process that ends soon after the
//! answer worked for the request, too (started, and not waited for). One that lives longer, or serves requests itself,
//! proves nothing.
//!
//! Where a runtime's task forks (asyncio, gevent, Go, tokio), the request is the one that the task turns out to answer, and the
//! rest holds likewise; such a parent is *confirmed* at best.
//!
//! Where the request is not known (Node.js' callbacks, threads with several requests), a call of the child has no
//! parent, and does not certainly begin a transaction either.

use rustc_hash::FxHashMap;
use tracer_common::event::{Exec, Fork, Op, ThreadStats};
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_model::{Nanos, Side};

use crate::cause::{CallState, Candidate, Cause, ShownBy};
use crate::combine::Vote;
use crate::evidence::{Doubt, Evidence};
use crate::open_span::{CallTime, OpenSpan};
use crate::request_mobility;
use crate::slot::{Slot, SpanRef};
use crate::task_identity::{is_named, is_unique};
use crate::task_table::{Id, TaskTable, Works};
use crate::world::World;

/// A process seems to end this long after it has woken its parent, nanoseconds: the kernel cleans up first.
const TEARDOWN: Nanos = 20_000_000;
/// A process that ends within this time after the request worked for it, nanoseconds.
const SOON: Nanos = 1_000_000_000;
/// A program that runs this long after its process was forked is a service of its own, nanoseconds: what a container
/// runtime or a supervisor starts.
const INDEPENDENT: Nanos = 60_000_000_000;
/// How long an ended process is remembered, nanoseconds: longer than its calls wait for evidence.
const REMEMBERED: Nanos = 15_000_000_000;
/// Limit of calls that wait for the end of their process.
const WAITING: usize = 1024;
/// Limit of the processes that one request is known to have forked: calls of others, made once it is reported, have no parent.
const CHILDREN: usize = 1024;

/// The request that a thread held alone when it forked.
#[derive(Clone, Copy, Debug)]
struct ForkingRequest {
    request: Slot,
    kept: SpanRef,
    /// The thread; 0: a task forked, which is the evidence.
    tid: u32,
    /// Other threads of its process held requests, and it was not known whether these stay on their threads.
    others_open: bool,
    /// What remains of it once it is reported.
    over: Option<Answered>,
}

/// How a request that forked a process ended.
#[derive(Clone, Copy, Debug)]
struct Answered {
    /// When its answer began, and when it ended; 0: not yet.
    first: Nanos,
    end: Nanos,
    /// The thread that forked held no other request meanwhile, and answered it.
    alone: bool,
}

/// A forked process.
#[derive(Clone, Copy, Debug)]
struct ChildProcess {
    /// The process that forked it, or its first ancestor that is not such a process.
    server: u32,
    /// When that was forked.
    forked: Nanos,
    /// When it ended; 0: it runs.
    ended: Nanos,
    /// It executed a program.
    executed: bool,
    request: Option<ForkingRequest>,
    /// The interval of the task that forked it; 0: none, or it is settled what it shows.
    task: Id,
}

/// Forked processes that may work for a request.
#[derive(Debug, Default)]
pub(crate) struct ChildProcesses {
    processes: FxHashMap<u32, ChildProcess>,
    /// Calls that are not decided.
    calls: Vec<Slot>,
    reached: u64,
}

impl ChildProcesses {
    /// Use of the table.
    pub(crate) fn table_use(&self, limit: usize) -> TableUse {
        TableUse::new(self.processes.len(), limit, self.reached)
    }

    /// Forgets processes that ended a while ago.
    pub(crate) fn tick(&mut self, now: Nanos) {
        self.processes.retain(|_, child| child.ended == 0 || child.ended.saturating_add(REMEMBERED) > now);
        self.processes.shrink_excess();
        self.calls.shrink_excess();
    }
}

/// What is known of the parent of a child's call.
enum Verdict {
    Wait,
    Certain,
    Confirmed,
    Doubt(Doubt),
}

impl ChildProcesses {
    /// A process was forked. Returns whether a thread did so for the request it holds.
    pub(crate) fn forked(&mut self, world: &mut World, tasks: &mut TaskTable, fork: &Fork) -> bool {
        let (header, child) = (&fork.header, fork.child_tgid);
        if child == header.tgid {
            return false;
        }
        world.now = world.now.max(header.nanos);
        let above = self.processes.get(&header.tgid).filter(|above| {
            // A program that has run for long is a service of its own, and so is what it forks.
            let independent = above.executed && header.nanos.saturating_sub(above.forked) > INDEPENDENT;
            !independent && !world.processes.serving.contains_key(&header.tgid)
        });
        let above = above.copied();
        let mut entry = above.map_or_else(
            || ChildProcess {
                server: header.tgid,
                forked: header.nanos,
                ended: 0,
                executed: false,
                request: request_at_fork(world, tasks, fork),
                task: 0,
            },
            |above| ChildProcess { ended: 0, executed: false, ..above },
        );
        let by_thread = above.is_none() && entry.request.is_some();
        if above.is_none() && entry.request.is_none() && is_named(fork.entity) {
            let spans = &world.spans;
            entry.task = tasks.forks(fork, |slot| spans.get(slot).is_none_or(|live| live.end != 0));
        }
        if let Some(live) = entry.request.and_then(|forking| world.spans.get_mut(forking.request)) {
            self.reached += u64::from(!has_child(live, child));
        }
        self.add_child(world, child, entry);
        by_thread
    }

    /// A thread forked `child` for the request it holds, and that may have been for another thread's.
    pub(crate) fn others_are_open(&mut self, child: u32) {
        if let Some(forking) = self.processes.get_mut(&child).and_then(|child| child.request.as_mut()) {
            forking.others_open = true;
        }
    }

    fn add_child(&mut self, world: &World, child: u32, entry: ChildProcess) {
        let limit = world.limits.processes;
        let ChildProcesses { processes, reached, .. } = self;
        if processes.len() >= limit && !processes.contains_key(&child) {
            *reached += 1;
            processes.retain(|_, child| child.ended == 0);
            if processes.len() >= limit {
                processes.clear();
            }
        }
        processes.insert(child, entry);
    }

    /// A process that is met for the first time runs the program of its parent: it was forked, perhaps before tracing began.
    pub(crate) fn was_forked(&mut self, world: &World, child: u32, parent: u32) {
        if parent == 0 || self.processes.contains_key(&child) {
            return;
        }
        let entry = ChildProcess { server: parent, forked: 0, ended: 0, executed: false, request: None, task: 0 };
        self.add_child(world, child, entry);
    }

    /// A process executed another program.
    pub(crate) fn executed(&mut self, world: &mut World, exec: &Exec) {
        let tgid = exec.header.tgid;
        let (serving, workers) = (&world.processes.serving, &world.processes.queue_workers);
        if let Some(child) = self.processes.get_mut(&tgid) {
            child.executed = true;
            // A thread that executes takes the place of the first one, which ends before it.
            if child.ended <= exec.header.nanos {
                child.ended = 0;
            }
            if child.request.is_none() && !serving.contains_key(&child.server) && !workers.contains(child.server) {
                self.processes.remove(&tgid);
            }
        }
    }

    /// A thread ended.
    pub(crate) fn process_ended(&mut self, stats: &ThreadStats) {
        if stats.header.tid == stats.header.tgid
            && let Some(child) = self.processes.get_mut(&stats.header.tgid)
            && child.ended == 0
        {
            child.ended = stats.header.nanos.max(1);
        }
    }

    /// The cause of a call of a forked process; `None` if it is a process like others.
    pub(crate) fn cause(&self, world: &World, op: &Op) -> Option<Cause> {
        let (tgid, now) = (op.header.tgid, op.header.nanos);
        let child = self.processes.get(&tgid).filter(|child| child.ended == 0 || now <= child.ended)?;
        // Its own requests decide.
        if world.processes.serving.contains_key(&tgid) {
            return None;
        }
        let independent = child.executed && now.saturating_sub(child.forked) > INDEPENDENT;
        let undecided = |evidence| Cause { shown_by: ShownBy::Process, ..Cause::none(evidence) };
        if child.task != 0 && child.request.is_none() && !independent {
            return Some(Cause { state: CallState::AwaitsProcess, ..undecided(Evidence::ForkUndecided) });
        }
        let Some(forking @ ForkingRequest { request, kept, .. }) = child.request else {
            if independent {
                return None;
            }
            // A queue's worker may fork a process for each job.
            let of_worker = world.processes.queue_workers.contains(child.server).then_some(Evidence::OfJob);
            let of_server = world.processes.serving.contains_key(&child.server).then_some(Evidence::ForkOfServer);
            return of_worker.or(of_server).map(undecided);
        };
        let answered = answered_forking(world, &forking);
        if answered.is_none_or(|answered| answered.end != 0 && now > answered.end.saturating_add(SOON)) {
            return (!independent).then(|| undecided(Evidence::ForkOutlived));
        }
        let kept = world.spans.get(request).map_or(kept, OpenSpan::kept);
        let cause = Cause::of(request, kept, Evidence::ForkUndecided);
        Some(Cause { shown_by: ShownBy::Process, state: CallState::AwaitsProcess, ..cause })
    }

    /// A request is reported: processes that it forked may still make calls.
    pub(crate) fn reported(&mut self, request: Slot, live: &OpenSpan) {
        if !live.server.forks {
            return;
        }
        for child in &live.server.children {
            let forking = self.processes.get_mut(child).and_then(|child| child.request.as_mut());
            // The id may have become another process's.
            let Some(forking) = forking.filter(|forking| forking.request == request) else { continue };
            let alone = forking.tid == 0 || (live.alone && live.answered_by == forking.tid);
            forking.over = Some(Answered { first: live.first_reply, end: live.end.max(1), alone });
            forking.kept = live.kept();
        }
    }

    /// A call was sent: remembers it if the end of its process decides, and keeps the request until then.
    pub(crate) fn sent(&mut self, world: &mut World, slot: Slot) {
        let Some(live) = world.spans.get_mut(slot).filter(|live| live.client.cause.state == CallState::AwaitsProcess)
        else {
            return;
        };
        let request = live.client.cause.request();
        if self.calls.len() >= WAITING {
            self.reached += 1;
            live.client.cause.state = CallState::Settled;
            return;
        }
        self.calls.push(slot);
        if let Some(request) = request.and_then(|request| world.spans.get_mut(request))
            && request.server.candidate_calls.len() < WAITING
        {
            request.server.candidate_calls.push(slot);
        }
    }

    /// Decides the calls whose evidence has come.
    pub(crate) fn decide_calls(&mut self, world: &mut World, tasks: &mut TaskTable, now: Nanos) {
        if self.calls.is_empty() {
            return;
        }
        let calls = std::mem::take(&mut self.calls);
        for slot in calls {
            let Some(pid) = world.spans.get(slot).map(|live| live.pid) else { continue };
            let found = self.request_of_forking_task(world, tasks, pid);
            let Some(live) = world.spans.get(slot) else { continue };
            let verdict = self.verdict_on_child(world, live, now);
            let (start, end) = (live.start, live.end);
            let Some(live) = world.spans.get_mut(slot) else { continue };
            let cause = &mut live.client.cause;
            if let Some(forking) = found.filter(|_| cause.candidate.is_none()) {
                cause.candidate = Some(Candidate { slot: forking.request, kept: forking.kept });
                if end != 0 && matches!(verdict, Verdict::Confirmed) {
                    let time = CallTime { call: Some(slot), start, end };
                    if let Some(request) = world.spans.get_mut(forking.request) {
                        request.add_call(time);
                    }
                }
            }
            let Some(live) = world.spans.get_mut(slot) else { continue };
            let cause = &mut live.client.cause;
            match (verdict, cause.request()) {
                (Verdict::Wait, _) => {
                    self.calls.push(slot);
                    continue;
                }
                (Verdict::Certain, _) => cause.evidence = Evidence::Forked,
                (Verdict::Confirmed, Some(request)) => {
                    let evidence = if found.is_some() { Evidence::ForkedByTask } else { Evidence::ForkedAndLeft };
                    (cause.vote, cause.evidence) = (Vote::For(request), evidence);
                }
                (Verdict::Confirmed, None) => {}
                (Verdict::Doubt(why), _) => cause.doubt = Some(why),
            }
            cause.state = CallState::Settled;
        }
    }

    /// The request of the task that forked process `child`, once it is known; it is remembered.
    fn request_of_forking_task(
        &mut self,
        world: &mut World,
        tasks: &mut TaskTable,
        child: u32,
    ) -> Option<ForkingRequest> {
        let entry = self.processes.get(&child)?;
        if entry.task == 0 {
            return entry.request.filter(|forking| forking.tid == 0);
        }
        // That it is over by now says nothing about the time of the fork.
        let works = tasks.works_in(entry.task, &|_| false);
        let forked = entry.forked;
        let forking = match works {
            Works::Undecided(_) => return None,
            Works::For(answer, None) => {
                let unanswered = |live: &&mut OpenSpan| live.first_reply == 0 || live.first_reply >= forked;
                let live = world.spans.get_mut(answer.request).filter(unanswered);
                live.map(|live| {
                    self.reached += u64::from(!has_child(live, child));
                    let (request, kept) = (answer.request, live.kept());
                    ForkingRequest { request, kept, tid: 0, others_open: false, over: None }
                })
            }
            Works::For(..) | Works::Unknown(_) => None,
        };
        let entry = self.processes.get_mut(&child)?;
        (entry.task, entry.request) = (0, forking);
        forking
    }

    fn verdict_on_child(&self, world: &World, call: &OpenSpan, now: Nanos) -> Verdict {
        if world.processes.serving.contains_key(&call.pid) {
            return Verdict::Doubt(Doubt::ForkServes);
        }
        let child = self.processes.get(&call.pid);
        if child.is_some_and(|child| child.task != 0) {
            return Verdict::Wait;
        }
        let Some((child, forking)) = child.and_then(|child| Some((child, child.request?))) else {
            return Verdict::Doubt(Doubt::ForkUndecided);
        };
        let Some(request) = answered_forking(world, &forking) else { return Verdict::Doubt(Doubt::ForkUndecided) };
        let answered = if request.first == 0 { request.end } else { request.first };
        let outlives =
            request.end != 0 && request.end.saturating_add(SOON) < if child.ended == 0 { now } else { child.ended };
        match (child.ended, answered) {
            _ if outlives => Verdict::Doubt(Doubt::ForkOutlived),
            (0, _) | (_, 0) => Verdict::Wait,
            (ended, answered) if forking.tid == 0 => match sure(ended, answered, request.end) {
                Verdict::Certain => Verdict::Confirmed,
                // What ends later may be another's.
                Verdict::Confirmed => Verdict::Doubt(Doubt::ForkUndecided),
                other => other,
            },
            _ if !request.alone || world.processes.affinity.moves(child.server) => Verdict::Doubt(Doubt::ForkOfSeveral),
            _ if forking.others_open => match request_mobility::fork_is_of_thread(world, child.server, call.deferred) {
                Some(true) => sure(child.ended, answered, request.end),
                Some(false) => Verdict::Doubt(Doubt::ForkOfSeveral),
                None => Verdict::Wait,
            },
            (ended, answered) => sure(ended, answered, request.end),
        }
    }
}

/// A request forked a process; whether there was room to remember that.
fn has_child(live: &mut OpenSpan, child: u32) -> bool {
    live.server.forks = true;
    let has_room = live.server.children.len() < CHILDREN;
    if has_room {
        live.server.children.push(child);
    }
    has_room
}

/// The verdict on a process that worked for its request, by when it ended and when the answer began and ended.
fn sure(ended: Nanos, answered: Nanos, end: Nanos) -> Verdict {
    if ended <= answered.saturating_add(TEARDOWN) {
        Verdict::Certain
    } else if end == 0 {
        Verdict::Wait
    } else {
        Verdict::Confirmed
    }
}

/// The request that a forking thread holds alone.
fn request_at_fork(world: &World, tasks: &TaskTable, fork: &Fork) -> Option<ForkingRequest> {
    let header = &fork.header;
    let thread = world.threads.get(&header.tid)?;
    let live_thread = thread.tgid == header.tgid && thread.died == 0;
    // Which callback or task forked is not reported.
    if !live_thread || thread.lap.is_some() || thread.open.len() != 1 || tasks.makes_tasks(header.tgid) {
        return None;
    }
    let request = thread.holder()?;
    let live = world.spans.get(request)?;
    let alone = live.side == Side::Server && !live.multiplexed && !is_unique(live.read_as);
    // An answer that has begun may be over, and the thread at work for itself.
    let unanswered = live.first_reply == 0 && live.end == 0 && live.start <= header.nanos;
    (alone && unanswered).then(|| ForkingRequest {
        request,
        kept: live.kept(),
        tid: header.tid,
        others_open: false,
        over: None,
    })
}

/// How a request that forked a process was answered, as far as it was; `None`: it was forgotten.
fn answered_forking(world: &World, forking: &ForkingRequest) -> Option<Answered> {
    let Some(live) = world.spans.get(forking.request) else { return forking.over };
    let alone = forking.tid == 0 || (live.alone && live.answered_by == forking.tid);
    Some(Answered { first: live.first_reply, end: live.end, alone })
}
