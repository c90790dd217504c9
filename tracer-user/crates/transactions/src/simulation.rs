//! A small host of which everything is known: threads of two services, their connections, requests, calls and CPU.
//!
//! [`Host::run`] plays a valid history, decided by a string of choices, and writes down the records the kernel would
//! send and the truth behind them. `simulation_tests.rs` spoils the records and holds the engine against the truth.

use std::collections::HashMap;

use tracer_common::event::{
    ENTITY_BITS, FAMILY_INET, Header, Kind, OP_TX, OPEN_MIDSTREAM, Op, Open, STATE_OWN, State, TASK_EDGE_CREATED,
    THREAD_STATS_DEAD, TaskEdge, ThreadCounters, ThreadStats, WAKE_RESULT, Wake, tcp_state,
};
use tracer_common::runtime::KIND_PYTHON;
use tracer_model::decode::Record;
use tracer_model::{Nanos, Side};

use self::moving::front;

/// A source of decisions: the bytes a test was given, then zeros. Shrinking them gives a smaller history.
#[derive(Debug)]
pub(super) struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter() }
    }

    /// A number less than `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.bytes.next().copied().unwrap_or(0)) % bound.max(1)
    }

    /// Whether something happens that happens once in `n`.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
}

/// A record that owns its bytes.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    Op(Op, Vec<u8>),
    Open(Open),
    State(State),
    ThreadStats(ThreadStats),
    Wake(Wake),
    TaskEdge(TaskEdge),
    /// Records before this time are missing.
    Lost(Nanos),
}

impl Sent {
    /// As the engine takes it; `None`: the record is lost.
    pub(super) fn record(&self) -> Option<Record<'_>> {
        Some(match self {
            Self::Op(op, head) => Record::Op { op: *op, head, tail: &[], fragments: &[] },
            Self::Open(open) => Record::Open(*open),
            Self::State(state) => Record::State(*state),
            Self::ThreadStats(stats) => Record::ThreadStats(*stats),
            Self::Wake(wake) => Record::Wake(*wake),
            Self::TaskEdge(task_edge) => Record::TaskEdge(*task_edge),
            Self::Lost(_) => return None,
        })
    }

    /// When it was made.
    pub(super) fn nanos(&self) -> Nanos {
        match self {
            Self::Op(op, _) => op.header.nanos,
            Self::Open(open) => open.header.nanos,
            Self::State(state) => state.header.nanos,
            Self::ThreadStats(stats) => stats.header.nanos,
            Self::Wake(wake) => wake.header.nanos,
            Self::TaskEdge(task_edge) => task_edge.header.nanos,
            Self::Lost(at) => *at,
        }
    }

    /// For whoever reads why a property failed.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Op(op, head) => {
                let way = if op.header.flags & OP_TX != 0 { "sends" } else { "reads" };
                let text = String::from_utf8_lossy(head);
                let ThreadCounters { reads, polls, .. } = op.counters;
                let (tid, nth, cookie) = (op.header.tid, op.nth, op.cookie);
                let first = text.lines().next().unwrap_or_default();
                let (task, edge_seq) = (op.entity & 0xffff, op.edge_seq);
                format!(
                    "{tid} {way} #{nth} on {cookie} at {}, reads {reads}, polls {polls}, task {task} after {edge_seq}: {first}\n",
                    op.pos
                )
            }
            Self::Open(open) => format!("{} opens {}, flags {}\n", open.header.tid, open.cookie, open.header.flags),
            Self::State(state) => format!("{} state {} of {}\n", state.header.tid, state.new, state.cookie),
            Self::TaskEdge(task_edge) => {
                format!("{} made by {} #{}\n", task_edge.child & 0xffff, task_edge.parent & 0xffff, task_edge.nth)
            }
            Self::Lost(at) => format!("something is lost before {at}\n"),
            Self::ThreadStats(stats) => format!("{} stats {}\n", stats.header.tid, stats.header.flags),
            Self::Wake(wake) => {
                let Wake { header, wakee, nth, slept_at, given_at, given_by, .. } = wake;
                let (tid, at) = (header.tid, header.nanos);
                format!(
                    "{tid} wakes {wakee} #{nth} at {at}, which slept at {slept_at}; given {given_at} by {given_by}\n"
                )
            }
        }
    }
}

/// Which span: its side and its path, which no other request has.
pub(super) type Name = (Side, String);

/// What happened.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Every span there was, and which one caused it.
    pub(super) spans: HashMap<Name, Option<Name>>,
    /// Spans of threads that run one request at a time.
    pub(super) serial: Vec<Name>,
    /// Calls of tasks.
    pub(super) tasked: Vec<Name>,
    /// CPU that all threads used together, nanoseconds.
    pub(super) cpu: u64,
}

const FRONT: u32 = 1;
const BACK: u32 = 2;
/// A front service whose only thread runs several requests at once, and that thread.
const LOOPS: u32 = 3;
const LOOP: u32 = 50;

/// A front service whose threads go on with any request, and the first of these threads.
const MOVES: u32 = 4;
const MOVING: u32 = 60;

/// Threads of the front service's pool, which work for those that run one request at a time.
const POOL: [u32; 2] = [80, 81];

/// One end of a connection that this host's kernel reports.
#[derive(Clone, Copy, Debug)]
struct ConnectionEnd {
    cookie: u64,
    rx: u64,
    tx: u64,
    opened: bool,
    own: u32,
    remote: u32,
    /// The task that reads it, where there are tasks.
    reader: u64,
}

/// A connection from the front to the back service, and the thread that serves it.
#[derive(Clone, Copy, Debug)]
struct Link {
    client: usize,
    server: usize,
    served_by: u32,
}

/// One request and how far it is.
#[derive(Debug)]
struct Job {
    path: String,
    end: usize,
    calls: usize,
    link: Option<usize>,
    step: Step,
    aborted: bool,
    /// It was answered, and its thread makes one more call for it.
    late: bool,
    /// The thread of the pool that makes its call.
    worker: Option<u32>,
    /// The task that answers it, and the one that makes its call, where there are tasks.
    task: u64,
    child: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    Send,
    Serve,
    Collect,
    Answer,
    Done,
}

#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    counters: ThreadCounters,
    nth: u32,
    tgid: u32,
    /// When it fell asleep to wait for another; when another gave it work, and who.
    slept: Nanos,
    given: (Nanos, u32),
    /// The request it works for.
    busy: u32,
}

/// The host.
#[derive(Debug)]
pub(super) struct Host<'a> {
    choices: Choices<'a>,
    nanos: Nanos,
    next: u64,
    ends: Vec<ConnectionEnd>,
    links: Vec<Link>,
    /// Links and idle client connections.
    free_links: Vec<usize>,
    free_ends: Vec<usize>,
    threads: HashMap<u32, Runs>,
    /// Clients may go away in the middle of their request.
    aborts: bool,
    /// An idle event loop may make calls of its own.
    timers: bool,
    /// The loop runs tasks, which go on in any order; how many were made, names that are free, and who acts.
    tasks: bool,
    edge_seq: u32,
    names: Vec<u64>,
    acting: u64,
    pub(super) sent: Vec<Sent>,
    pub(super) truth: Truth,
}

impl<'a> Host<'a> {
    pub(super) fn new(choices: Choices<'a>, aborts: bool, timers: bool) -> Self {
        let mut choices = choices;
        let tasks = choices.once_in(2);
        Self {
            choices,
            aborts,
            timers,
            tasks,
            edge_seq: 0,
            names: (1..4096).rev().collect(),
            acting: 0,
            nanos: 1_000_000,
            next: 0,
            ends: Vec::new(),
            links: Vec::new(),
            free_links: Vec::new(),
            free_ends: Vec::new(),
            threads: HashMap::new(),
            sent: Vec::new(),
            truth: Truth::default(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Plays `requests` requests on `lanes` threads that run one at a time and one that runs several.
    pub(super) fn run(mut self, requests: usize, lanes: usize) -> (Vec<Sent>, Truth) {
        // Lane 0 is the event loop's.
        let mut queues: Vec<Vec<Job>> = (0..=lanes).map(|_| Vec::new()).collect();
        let mut left = requests;
        let mut lives: Vec<u32> = (0..=lanes as u32).map(|lane| if lane == 0 { LOOP } else { 10 + lane }).collect();
        for turn in 0.. {
            // In turns where nothing is chosen, so that every history ends.
            let lane = (turn + self.choices.below(lanes + 1)) % (lanes + 1);
            let wide = lane == 0;
            let active = queues[lane].iter().filter(|job| job.step != Step::Done).count();
            let room = if wide { 4 } else { 1 };
            if left > 0 && active < room && (active == 0 || self.choices.once_in(2)) {
                left -= 1;
                let job = self.arrives(wide);
                queues[lane].push(job);
            }
            let tid = lives[lane];
            let all: Vec<usize> = (0..queues[lane].len()).filter(|i| queues[lane][*i].step != Step::Done).collect();
            if all.is_empty() {
                if wide && self.timers && self.choices.once_in(4) && self.threads.contains_key(&tid) {
                    self.asks_for_itself(tid);
                }
                if left == 0 && queues.iter().flatten().all(|job| job.step == Step::Done) {
                    break;
                }
                if !wide && self.choices.once_in(8) && self.threads.contains_key(&tid) {
                    // A thread of a pool ends and another takes its place.
                    self.dies(tid);
                    lives[lane] += 100;
                }
                continue;
            }
            let job = all[self.choices.below(all.len())];
            let mut job = queues[lane].swap_remove(job);
            self.steps(tid, wide, &mut job);
            queues[lane].push(job);
            if self.choices.once_in(12) {
                self.ticks(tid);
            }
        }
        let mut tids: Vec<u32> = self.threads.keys().copied().collect();
        tids.sort_unstable();
        for tid in tids {
            self.dies(tid);
        }
        (self.sent, self.truth)
    }

    fn arrives(&mut self, wide: bool) -> Job {
        let n = self.number();
        let end = if self.choices.once_in(3) { None } else { self.free_ends.pop() };
        let end = end.unwrap_or_else(|| self.end(None));
        let name = (Side::Server, format!("/r{n}"));
        self.truth.spans.insert(name.clone(), None);
        if !wide {
            self.truth.serial.push(name.clone());
        }
        let calls = self.choices.below(3);
        let (path, step) = (name.1, Step::Read);
        Job { path, end, calls, link: None, step, aborted: false, late: false, worker: None, task: 0, child: 0 }
    }

    /// The next steps of a request, up to where its thread waits.
    fn steps(&mut self, tid: u32, wide: bool, job: &mut Job) {
        match job.step {
            Step::Read => {
                self.waits(tid, wide);
                self.reads(wide, job.end);
                self.moves(front(tid), tid, job.end, false, &request(&job.path));
                if wide && self.tasks {
                    job.task = self.makes(self.acting);
                }
                job.step = if job.calls > 0 { Step::Send } else { Step::Answer };
                // A callback that only queues the work: another one does it.
                if wide && self.choices.once_in(6) {
                    return;
                }
                self.acts(tid, wide, job);
            }
            Step::Send | Step::Answer => {
                // A task goes on after others did, without a wait in between.
                if wide && (!self.tasks || self.choices.once_in(2)) {
                    self.waits(tid, true);
                }
                self.acts(tid, wide, job);
            }
            Step::Serve => {
                let Some(link) = job.link.and_then(|link| self.links.get(link).copied()) else { return };
                let path = call_path(job);
                self.waits(link.served_by, false);
                self.moves(BACK, link.served_by, link.server, false, &request(&path));
                self.works(link.served_by);
                self.moves(BACK, link.served_by, link.server, true, &reply());
                job.step = Step::Collect;
            }
            Step::Collect => {
                let Some(link) = job.link.take() else { return };
                if let Some(worker) = job.worker.take() {
                    self.collects(worker, link);
                    self.hands_back(worker, tid);
                    job.calls -= 1;
                    job.step = if job.calls > 0 { Step::Send } else { Step::Answer };
                    return;
                }
                // A worker may wait for a reply in a poller as well.
                let polls = wide || (job.late && self.choices.once_in(2));
                self.waits(tid, polls);
                let end = self.links[link].client;
                self.reads(wide, end);
                self.moves(front(tid), tid, end, false, &reply());
                self.ends_task(std::mem::take(&mut job.child));
                self.free_links.push(link);
                if job.late {
                    self.works(tid);
                    job.step = Step::Done;
                    return;
                }
                job.calls -= 1;
                job.step = if job.calls > 0 { Step::Send } else { Step::Answer };
                if wide && self.tasks && self.choices.once_in(2) {
                    return;
                }
                self.acts(tid, wide, job);
            }
            Step::Done => {}
        }
    }

    /// Sends the next call or the answer.
    fn acts(&mut self, tid: u32, wide: bool, job: &mut Job) {
        self.works(tid);
        if self.aborts && !job.aborted && !job.late && self.choices.once_in(10) {
            job.aborted = true;
            self.closes(0, job.end);
        }
        self.acting = job.task;
        if job.step == Step::Answer && job.aborted {
            self.ends_task(job.task);
            job.step = Step::Done;
            return;
        }
        if job.step == Step::Answer {
            self.moves(front(tid), tid, job.end, true, &reply());
            self.ends_task(job.task);
            if self.choices.once_in(4) {
                self.closes(tid, job.end);
            } else {
                self.free_ends.push(job.end);
            }
            // A worker goes on for it after the reply.
            job.late = !wide && !job.aborted && self.choices.once_in(3);
            job.step = if job.late { Step::Send } else { Step::Done };
            return;
        }
        let path = call_path(job);
        let above = (Side::Server, job.path.clone());
        self.truth.spans.insert((Side::Client, path.clone()), Some(above));
        self.truth.spans.insert((Side::Server, path.clone()), Some((Side::Client, path.clone())));
        if wide && self.tasks {
            self.truth.tasked.push((Side::Client, path.clone()));
        }
        let worker = POOL[self.choices.below(POOL.len())];
        let pooled = !wide
            && !job.late
            && self.choices.once_in(3)
            && self.threads.get(&worker).is_none_or(|runs| runs.busy == 0);
        if !wide && !pooled {
            self.truth.serial.push((Side::Client, path.clone()));
        }
        let by = if pooled { self.gives(tid, worker) } else { tid };
        if wide && self.tasks && self.choices.once_in(2) {
            job.child = self.makes(job.task);
            self.acting = job.child;
        }
        let old = if self.choices.once_in(3) { None } else { self.free_links.pop() };
        let link = old.unwrap_or_else(|| self.connects(by));
        job.link = Some(link);
        let end = self.links[link].client;
        self.moves(front(by), by, end, true, &request(&path));
        job.step = Step::Serve;
        job.worker = pooled.then_some(worker);
        if pooled && self.choices.once_in(4) {
            // Detached: no request waits for it.
            self.steps(tid, false, job);
            if let Some(link) = job.link.take() {
                self.collects(worker, link);
            }
            self.threads.entry(worker).or_default().busy = 0;
            job.worker = None;
            job.calls -= 1;
            job.step = if job.calls > 0 { Step::Send } else { Step::Answer };
        }
    }

    /// `tid`, which holds a request, wakes `worker` for something to do, and sleeps until that is done.
    fn gives(&mut self, tid: u32, worker: u32) -> u32 {
        self.nanos += 100;
        let nanos = self.nanos;
        let runs = self.threads.entry(worker).or_default();
        runs.tgid = FRONT;
        runs.given = (nanos, tid);
        runs.busy = tid;
        self.threads.entry(tid).or_default().slept = nanos + 50;
        self.waits(worker, false);
        self.works(worker);
        worker
    }

    /// `worker` reads the reply of the call it made.
    fn collects(&mut self, worker: u32, link: usize) {
        self.waits(worker, false);
        let end = self.links[link].client;
        self.moves(FRONT, worker, end, false, &reply());
        self.free_links.push(link);
        self.works(worker);
    }

    /// `worker` gives `tid` the result; before or after, it lets go of a lock that another waits for.
    fn hands_back(&mut self, worker: u32, tid: u32) {
        let others = self
            .threads
            .iter()
            .filter(|(other, runs)| **other < LOOP && **other != tid && runs.tgid == FRONT && runs.busy == 0);
        let mut others: Vec<u32> = others.map(|(other, _)| *other).collect();
        others.sort_unstable();
        let locked = (!others.is_empty() && self.choices.once_in(4)).then(|| others[self.choices.below(others.len())]);
        let first = self.choices.once_in(2);
        if let Some(other) = locked.filter(|_| first) {
            self.lets_go(worker, other);
        }
        self.nanos += 100;
        let slept = self.threads.entry(tid).or_default().slept;
        self.wakes(worker, tid, slept);
        if let Some(other) = locked.filter(|_| !first) {
            self.lets_go(worker, other);
        }
        self.threads.entry(worker).or_default().busy = 0;
    }

    /// `other` came to wait for a lock that `worker` held after it had read its reply.
    fn lets_go(&mut self, worker: u32, other: u32) {
        self.nanos += 100;
        self.wakes(worker, other, self.nanos - 50);
    }

    fn wakes(&mut self, worker: u32, wakee: u32, slept_at: Nanos) {
        let runs = self.threads.entry(worker).or_default();
        runs.nth += 1;
        let (nth, (given_at, given_by), counters) = (runs.nth, runs.given, runs.counters);
        let header = Header { flags: WAKE_RESULT, ..self.header(Kind::Wake, FRONT, worker) };
        // Each waits for results at a futex of its own.
        let address = u64::from(wakee);
        let wake = Wake { header, wakee, nth, address, slept_at, given_at, given_by, counters, ..Wake::default() };
        self.sent.push(Sent::Wake(wake));
    }

    fn connects(&mut self, tid: u32) -> usize {
        let client = self.end(None);
        let server = self.end(Some(client));
        let served_by = 200 + self.links.len() as u32;
        self.links.push(Link { client, server, served_by });
        let counters = self.threads.entry(tid).or_default().counters;
        let header = Header {
            kind: Kind::State as u8,
            flags: STATE_OWN,
            nanos: self.nanos,
            tgid: front(tid),
            tid,
            ..Header::default()
        };
        let cookie = self.ends[client].cookie;
        self.sent.push(Sent::State(State { header, cookie, new: tcp_state::SYN_SENT, counters, ..State::default() }));
        self.links.len() - 1
    }

    fn end(&mut self, other: Option<usize>) -> usize {
        let cookie = self.number();
        let isn = (cookie as u32).wrapping_mul(0x9e37_79b9);
        let (own, remote) = match other.and_then(|other| self.ends.get(other)) {
            Some(other) => (other.remote, other.own),
            None => (isn, isn ^ 0x5555_5555),
        };
        self.ends.push(ConnectionEnd { cookie, rx: 0, tx: 0, opened: false, own, remote, reader: 0 });
        self.ends.len() - 1
    }

    /// A task is made by another; it may get the name of one that is no more.
    fn makes(&mut self, by: u64) -> u64 {
        let Some(name) = self.names.pop() else { return 0 };
        self.edge_seq += 1;
        let header = self.header(Kind::TaskEdge, LOOPS, LOOP);
        let (child, parent) = (entity(name), entity(by));
        self.sent.push(Sent::TaskEdge(TaskEdge {
            header,
            child,
            parent,
            nth: self.edge_seq,
            relation: TASK_EDGE_CREATED,
            ..TaskEdge::default()
        }));
        name
    }

    fn ends_task(&mut self, name: u64) {
        if name != 0 {
            self.names.push(name);
        }
    }

    /// A callback of a connection is next, which runs in a task of its own.
    fn reads(&mut self, wide: bool, end: usize) {
        if !wide || !self.tasks {
            return;
        }
        if self.ends[end].reader == 0 {
            self.ends[end].reader = self.makes(0);
        }
        self.acting = self.ends[end].reader;
    }

    fn works(&mut self, tid: u32) {
        let cpu = 1_000 * (1 + self.choices.below(50) as u64);
        self.threads.entry(tid).or_default().counters.cpu += cpu;
        self.truth.cpu += cpu;
        self.nanos += cpu;
    }

    fn waits(&mut self, tid: u32, poll: bool) {
        self.nanos += 1_000 * (1 + self.choices.below(200) as u64);
        let nanos = self.nanos;
        let counters = &mut self.threads.entry(tid).or_default().counters;
        counters.idle_cpu = counters.cpu;
        counters.idle_end = nanos;
        counters.idles += 1;
        counters.switches += 1;
        counters.polls += u32::from(poll);
    }

    fn header(&self, kind: Kind, tgid: u32, tid: u32) -> Header {
        Header { kind: kind as u8, cpu: (tid % 4) as u16, nanos: self.nanos, tgid, tid, ..Header::default() }
    }

    fn moves(&mut self, tgid: u32, tid: u32, end: usize, sends: bool, text: &str) {
        self.nanos += 10;
        let runs = self.threads.entry(tid).or_default();
        runs.tgid = tgid;
        runs.counters.reads += u32::from(!sends);
        runs.nth += 1;
        let Runs { counters, nth, .. } = *runs;
        let header = self.header(Kind::Op, tgid, tid);
        let end = &mut self.ends[end];
        if !end.opened {
            end.opened = true;
            let flags = if self.choices.once_in(16) { OPEN_MIDSTREAM } else { 0 };
            let header = Header { kind: Kind::Open as u8, flags, ..header };
            let (isn_local, isn_remote) = (end.own, end.remote);
            let open =
                Open { header, cookie: end.cookie, family: FAMILY_INET, isn_local, isn_remote, ..Open::default() };
            self.sent.push(Sent::Open(open));
        }
        let pos = if sends { &mut end.tx } else { &mut end.rx };
        let isn = if sends { end.own } else { end.remote };
        let seq = isn.wrapping_add(1).wrapping_add(*pos as u32);
        let header = Header { flags: if sends { OP_TX } else { 0 }, ..header };
        let bytes = text.len() as u32;
        let (cookie, head, pos_now) = (end.cookie, bytes as u16, *pos);
        let (entity, edge_seq) = if self.tasks && tid == LOOP { (entity(self.acting), self.edge_seq) } else { (0, 0) };
        let op =
            Op { header, cookie, pos: pos_now, bytes, seq, head, nth, entity, edge_seq, counters, ..Op::default() };
        *pos += u64::from(bytes);
        self.sent.push(Sent::Op(op, text.as_bytes().to_vec()));
    }

    fn closes(&mut self, tid: u32, end: usize) {
        // The remote end's reset shows as the last state alone.
        let states = [tcp_state::FIN_WAIT1, tcp_state::CLOSE];
        for new in states.into_iter().skip(usize::from(tid == 0)) {
            let header =
                Header { flags: if tid == 0 { 0 } else { STATE_OWN }, ..self.header(Kind::State, front(tid), tid) };
            let ConnectionEnd { cookie, rx, tx, .. } = self.ends[end];
            let counters = self.threads.get(&tid).map(|runs| runs.counters).unwrap_or_default();
            let (last_rx, last_tx) = (self.nanos, self.nanos);
            self.sent.push(Sent::State(State {
                header,
                cookie,
                rx,
                tx,
                last_rx,
                last_tx,
                new,
                counters,
                ..State::default()
            }));
            self.nanos += 100;
        }
    }

    fn tick(&mut self, tid: u32, flags: u8) {
        let Runs { counters, tgid, .. } = self.threads.get(&tid).copied().unwrap_or_default();
        let header = Header { flags, ..self.header(Kind::ThreadStats, tgid, tid) };
        self.sent.push(Sent::ThreadStats(ThreadStats { header, counters, ..ThreadStats::default() }));
    }

    fn ticks(&mut self, tid: u32) {
        self.tick(tid, 0);
    }

    fn dies(&mut self, tid: u32) {
        self.works(tid);
        self.tick(tid, THREAD_STATS_DEAD);
        self.threads.remove(&tid);
    }
}

mod moving;
mod timers;

/// The path of the next call of a request.
fn call_path(job: &Job) -> String {
    let kind = if job.late { "l" } else { "c" };
    format!("/{kind}{}-{}", &job.path[1..], job.calls)
}

/// A task as records name it.
fn entity(name: u64) -> u64 {
    (u64::from(KIND_PYTHON) << ENTITY_BITS) | name
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n")
}

fn reply() -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: a\r\n\r\nok".into()
}
