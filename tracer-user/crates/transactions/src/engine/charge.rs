//! Charges CPU time, waiting and stack samples to requests.
//!
//! Two consecutive records of a thread delimit an interval of work. The thread's last wait for work splits it: the part
//! before the wait belongs to the previous target, the part after it to the target of the operation that ends the
//! interval. A thread that holds one request works for it until the reply is complete, whatever it waits for meanwhile.

use std::sync::Arc;

use tracer_common::event::{
    Header, OFF_CPU_UNINTERRUPTIBLE, OffCpu, Op, SAMPLE_AD_HOC, SAMPLE_COUNTED, SAMPLE_KERNEL_THREAD, Sample,
    ThreadStats, WaitEnd, Wake,
};
use tracer_common::off_cpu::{self, Reason};
use tracer_common::unwind::Outcome;
use tracer_model::{
    Cost, DimensionValues, Direction, Interpreted, Nanos, Owner, Side, SpanId, StackSample, Wait, WakerStack,
};
use tracer_protocols::ExchangeEvent;

use crate::charges::{ChargedCosts, less};
use crate::engine::{Engine, verdicts};
use crate::open_span::OpenSpan;
use crate::output::Output;
use crate::process_costs::ProcessWork;
use crate::slot::Slot;
use crate::strategies::after_reply;
use crate::thread::{HELD_SAMPLES, IntervalOwner, PENDING_SAMPLES, Pending, ReadInterval, Target};

/// The operations of a thread that does socket I/O charge it; counter reports count only after this long without one,
/// nanoseconds.
const QUIET: Nanos = 2_000_000_000;
/// Samples a span keeps until it has a class.
pub(super) const SPAN_SAMPLES: usize = 512;

impl Engine {
    /// Charges the interval that ends with a socket operation on `span`'s connection. `after`: the thread still works
    /// for a request it has already answered. `answered`: the operation ends, or goes on with, the reply to the one request
    /// that its thread held before it.
    pub(super) fn charge_op(
        &mut self,
        op: &Op,
        (dir, span): (Direction, Option<Slot>),
        (after, answered): (bool, bool),
        out: &mut Vec<Output>,
    ) {
        let header = &op.header;
        let of_connection = self.world.connections.get(&op.cookie).and_then(|known| known.side());
        // Where either end may send requests, the exchange decides which side this is.
        let side = span.and_then(|slot| self.world.spans.get(slot)).map(|live| live.side).or(of_connection);
        // A call counts for the request that caused it.
        let owner = span.map_or(Target::Overhead, |slot| match self.world.spans.get(slot) {
            Some(live) if live.side == Side::Client => match verdicts::charged_at_once(&self.world, live) {
                Some(parent) => Target::of(&self.world.spans, parent),
                // Follows the call once its parent is known.
                None if live.client.cause.candidate.is_some()
                    || live.client.cause.awaits_others()
                    || live.rare.group_membership.is_some() =>
                {
                    Target::Span { slot, class: None, service: live.service }
                }
                None => Target::Overhead,
            },
            _ => Target::of(&self.world.spans, slot),
        });
        let is_guess = matches!(owner, Target::Span { slot, .. } if self.world.spans.get(slot).is_some_and(|live| live.side == Side::Client));
        let after = after_reply::target_after(&self.world, header.tid).filter(|_| after);
        let Some(thread) = self.world.thread(header.tid, header.tgid, header.nanos) else { return };
        let holder = thread.holder();
        let known = thread.known;
        let delta = thread.advance(&op.counters);
        thread.known = true;
        thread.last_op = header.nanos;
        thread.polls_at_op = op.counters.polls;
        thread.charged_at = header.nanos;
        let last = thread.last;
        // One receive has one group: that of what it carried first.
        let has_group = thread.is_further_piece(op) && thread.group.current(&op.counters).is_some();
        if dir == Direction::Rx && !has_group {
            thread.group = read_group(op, side, span);
        }
        let multiplexer = thread.several();
        // Excludes a request that this operation just read: the thread did not work for it before.
        let held = holder.filter(|slot| {
            !(dir == Direction::Rx && Some(*slot) == span && last != Target::of(&self.world.spans, *slot))
        });
        let held = held.map(|slot| Target::of(&self.world.spans, slot));
        let mut first = delta.before;
        let mut second = delta.after;
        if !known {
            // The interval began before tracing or before the thread was seen: the CPU is unattributed, the waiting is
            // dropped.
            first = Cost { cpu: first.cpu, ..Cost::default() };
            second = Cost { cpu: second.cpu, ..Cost::default() };
        }
        let asleep_for_it = held.is_some() || answered;
        // Operations after a reply belong to the answered request.
        let owner = after.filter(|_| held.is_none()).unwrap_or(owner);
        let held = held.or(after);
        let (before, after) = match held {
            Some(holder) => (holder, if owner == Target::Overhead { holder } else { owner }),
            // On a thread that works for one request after the other, an uncertain parent of this call does not change
            // the target of earlier work.
            None if dir == Direction::Tx
                && !delta.waited
                && owner != Target::Overhead
                && (multiplexer || !is_guess || last == Target::Overhead) =>
            {
                (owner, owner)
            }
            None => (last, owner),
        };
        if multiplexer || !asleep_for_it {
            // The thread slept for lack of work or until any request came: charge no request.
            first.blocked = 0;
            second.blocked = 0;
        }
        // Run-queue time before the request's first byte arrived is not the request's.
        if let Some(live) = span.filter(|_| dir == Direction::Rx).and_then(|slot| self.world.spans.get(slot))
            && live.side == Side::Server
            && live.arrived != 0
            && live.start == header.nanos
        {
            second.runq = second.runq.min(header.nanos.saturating_sub(live.arrived));
        }
        let (before, after) = if known { (before, after) } else { (Target::Overhead, owner) };
        if is_guess && before == owner && last != owner {
            self.note_before_send(span, last, first);
        }
        let split = if delta.waited { delta.wait_end } else { header.nanos };
        // All blocked time of the interval is in its last part.
        let sleeper = match (multiplexer || !asleep_for_it, delta.waited) {
            (true, _) => Target::Overhead,
            (false, true) => after,
            (false, false) => before,
        };
        self.charge_with(header.tid, header.tgid, (before, sleeper), first, split, out);
        if delta.waited {
            self.charge_with(header.tid, header.tgid, (after, sleeper), second, header.nanos, out);
        }
        if let Some(thread) = self.world.threads.get_mut(&header.tid) {
            thread.last = if owner == Target::Overhead { held.unwrap_or(Target::Overhead) } else { owner };
        }
    }

    /// A call is charged for what its thread did since its last operation, by which it worked for `last`. If no parent of the call is
    /// found, that work was not the call's: it is charged as it would have been, had another operation ended it.
    fn note_before_send(&mut self, call: Option<Slot>, last: Target, cost: Cost) {
        if let Some(live) = call.and_then(|slot| self.world.spans.get_mut(slot))
            && last != Target::Overhead
        {
            live.client.before_send = Some((last, cost));
        }
    }

    /// Requests whose streams the connection's latest send carried bytes of, if there are several.
    pub(super) fn together(&self, cookie: u64) -> Vec<Slot> {
        let Some(connection) = self.world.connections.get(&cookie) else { return Vec::new() };
        let touched = connection.talk.touched();
        if touched.len() < 2 {
            return Vec::new();
        }
        let spans = touched.iter().filter_map(|exchange| connection.span(*exchange));
        let mut served: Vec<Slot> =
            spans.filter(|slot| self.world.spans.get(*slot).is_some_and(|live| live.side == Side::Server)).collect();
        if served.len() < 2 {
            served.clear();
        }
        served
    }

    /// Divides what an operation cost evenly. The operation charged it to the first of `slots`, whose cost was `had`
    /// before.
    pub(super) fn spread(&mut self, slots: &[Slot], had: Option<Cost>) {
        let ([first, _, ..], Some(had)) = (slots, had) else { return };
        let Some(live) = self.world.spans.get_mut(*first) else { return };
        let mut rest = less(live.cost, had);
        live.cost = had;
        for (slot, left) in slots.iter().zip((1..=slots.len() as u64).rev()) {
            let part = Cost {
                cpu: rest.cpu / left,
                runq: rest.runq / left,
                blocked: rest.blocked / left,
                switches: rest.switches / left,
            };
            rest = less(rest, part);
            if let Some(live) = self.world.spans.get_mut(*slot) {
                live.cost.add(part);
                live.shared = true;
            }
        }
    }

    /// Requests that one operation answers on a connection, if there are several.
    pub(super) fn batch(&self, cookie: u64, events: &[ExchangeEvent]) -> Vec<Slot> {
        let done = events
            .iter()
            .filter_map(|word| if let ExchangeEvent::Done { exchange, .. } = word { Some(*exchange) } else { None });
        if done.clone().nth(1).is_none() {
            return Vec::new();
        }
        let Some(connection) = self.world.connections.get(&cookie) else { return Vec::new() };
        done.filter_map(|exchange| connection.span(exchange)).collect()
    }

    /// Divides the cost of requests that were answered at once evenly: nothing shows their shares, and the request that
    /// was read first must not appear to have cost it all.
    pub(super) fn share(&mut self, slots: &[Slot]) {
        let served = |live: &&OpenSpan| live.side == Side::Server;
        let mut sum = Cost::default();
        let mut count = 0;
        for live in slots.iter().filter_map(|slot| self.world.spans.get(*slot)).filter(served) {
            // Costs already posted to a class stay there.
            sum.add(less(live.cost, live.rare.posted));
            count += 1;
        }
        if count < 2 {
            return;
        }
        for slot in slots {
            let Some(live) = self.world.spans.get_mut(*slot).filter(|live| live.side == Side::Server) else { continue };
            let part = |whole: u64| whole / count;
            let cost = Cost {
                cpu: part(sum.cpu),
                runq: part(sum.runq),
                blocked: part(sum.blocked),
                switches: part(sum.switches),
            };
            sum = less(sum, cost);
            count = (count - 1).max(1);
            live.cost = live.rare.posted;
            live.cost.add(cost);
            live.batch = true;
        }
    }

    /// Charges what a thread's counter report shows when its operations do not.
    pub(super) fn charge_thread_stats(&mut self, stats: &ThreadStats, dead: bool, out: &mut Vec<Output>) {
        let header = &stats.header;
        let Some(thread) = self.world.thread(header.tid, header.tgid, header.nanos) else { return };
        let quiet = header.nanos.saturating_sub(thread.charged_at) > QUIET;
        if thread.last_op != 0 && !dead && !quiet {
            return;
        }
        let delta = thread.advance(&stats.counters);
        let holder = thread.holder();
        let last = thread.last;
        let fresh = header.nanos.saturating_sub(thread.last_op) <= QUIET;
        thread.known = true;
        thread.charged_at = header.nanos;
        if let Some(slot) = holder {
            let target = Target::of(&self.world.spans, slot);
            self.charge_with(header.tid, header.tgid, (target, target), delta.whole(), header.nanos, out);
            return;
        }
        if let Some(target) =
            after_reply::target_after_tick(&mut self.world, header.tid, header.tid == header.tgid, &stats.counters)
        {
            let cost = Cost { blocked: 0, ..delta.whole() };
            self.charge(header.tid, header.tgid, target, cost, header.nanos, out);
            return;
        }
        let before = if delta.waited || (dead && fresh) { last } else { Target::Overhead };
        let cpu = |cost: Cost| Cost { blocked: 0, ..cost };
        let split = if delta.waited { delta.wait_end } else { header.nanos };
        self.charge(header.tid, header.tgid, before, cpu(delta.before), split, out);
        if delta.waited {
            self.charge(header.tid, header.tgid, Target::Overhead, cpu(delta.after), header.nanos, out);
            if let Some(thread) = self.world.threads.get_mut(&header.tid) {
                thread.last = Target::Overhead;
            }
        }
    }

    /// Charges the interval that ends with a wake-up by a thread that works for another one. Its work since it last
    /// waited belongs to `owner`; what follows is unattributed until evidence shows otherwise.
    pub(super) fn charge_wake(&mut self, wake: &Wake, owner: Target, out: &mut Vec<Output>) {
        let header = &wake.header;
        let Some(thread) = self.world.threads.get_mut(&header.tid) else { return };
        let (known, last) = (thread.known, thread.last);
        let delta = thread.advance(&wake.counters);
        thread.known = true;
        thread.last = Target::Overhead;
        (thread.charged_at, thread.last_op) = (header.nanos, header.nanos);
        // Run-queue and blocked time of this thread is not the request's: the request waits for the thread.
        let cpu = |cost: Cost| Cost { cpu: cost.cpu, ..Cost::default() };
        let before = match (known, delta.waited) {
            (true, false) => owner,
            (true, true) => last,
            (false, _) => Target::Overhead,
        };
        let split = if delta.waited { delta.wait_end } else { header.nanos };
        self.charge(header.tid, header.tgid, before, cpu(delta.before), split, out);
        if delta.waited {
            self.charge(header.tid, header.tgid, owner, cpu(delta.after), header.nanos, out);
        }
    }

    /// Charges `cost`, the work of thread `tid` up to `until`, and the samples taken in it.
    fn charge(&mut self, tid: u32, tgid: u32, target: Target, cost: Cost, until: Nanos, out: &mut Vec<Output>) {
        self.charge_with(tid, tgid, (target, Target::Overhead), cost, until, out);
    }

    /// The same where time off the CPU has a target of its own, the second: the request that the thread slept for, if any.
    fn charge_with(
        &mut self,
        tid: u32,
        tgid: u32,
        (target, sleeper): (Target, Target),
        cost: Cost,
        until: Nanos,
        out: &mut Vec<Output>,
    ) {
        self.post(target, cost, tgid);
        if let Target::Span { slot, .. } = target
            && let Some(live) = self.world.spans.get_mut(self.works_for(slot))
            && live.side == Side::Server
            && live.end != 0
            && until > live.end
        {
            live.after_reply_cpu += cost.cpu;
        }
        let Some(thread) = self.world.threads.get_mut(&tid) else { return };
        thread.remember(until, target);
        for sample in thread.due(until) {
            let target = if sample.off_cpu.is_some() { sleeper } else { target };
            self.place(sample, target, tid, tgid, out);
        }
    }

    /// The request that caused the call if that is certain, else the call itself.
    fn works_for(&self, slot: Slot) -> Slot {
        let call = self.world.spans.get(slot).filter(|live| live.side == Side::Client);
        call.and_then(|call| verdicts::charged_at_once(&self.world, call)).unwrap_or(slot)
    }

    /// Adds `cost` to a span, to the class of a reported span, or to overhead.
    pub(crate) fn post(&mut self, target: Target, cost: Cost, tgid: u32) {
        if cost == Cost::default() {
            return;
        }
        let work = match target {
            Target::Span { slot, class, service } => {
                let slot = self.works_for(slot);
                if let Some(live) = self.world.spans.get_mut(slot) {
                    live.cost.add(cost);
                    if live.side == Side::Server { ProcessWork::Request(live.class) } else { ProcessWork::Other }
                } else if let Some(class) = class {
                    self.charges.charge_class(class, cost);
                    self.reported.charged(slot, class, cost);
                    ProcessWork::Request(Some(class))
                } else {
                    self.charges.charge_overhead(service, cost);
                    ProcessWork::Other
                }
            }
            Target::Overhead => {
                let service = self.world.processes.service(tgid);
                self.charges.charge_overhead(service, cost);
                ProcessWork::Other
            }
        };
        self.charges.processes.add(tgid, work, cost.cpu);
    }

    /// A stack was sampled.
    pub(super) fn sample(&mut self, sample: &Sample, stack: (&[u64], &[u64], &Interpreted), out: &mut Vec<Output>) {
        let (user, kernel, interpreted) = stack;
        let header = &sample.header;
        let pending = Pending {
            nanos: header.nanos,
            weight: sample.period,
            user: user.to_vec(),
            kernel: kernel.to_vec(),
            outcome: Outcome::from_number(u32::from(sample.outcome)).unwrap_or_default(),
            interpreted: interpreted.clone(),
            off_cpu: None,
            waker: None,
            ad_hoc: header.flags & SAMPLE_AD_HOC != 0,
        };
        if header.flags & SAMPLE_KERNEL_THREAD != 0 {
            let nothing = (None, DimensionValues::default());
            out.push(Output::Sample(self::stack(pending, Owner::Kernel, nothing, header.tgid, header.tid)));
            return;
        }
        if header.flags & SAMPLE_COUNTED != 0 {
            // Its thread works for requests that nothing here knows.
            let class = self.prefixes.class(sample.cpu_nanos as u32);
            let owner = class.map_or_else(|| Owner::Overhead(self.world.processes.service(header.tgid)), Owner::Class);
            let nothing = (None, DimensionValues::default());
            out.push(Output::Sample(self::stack(pending, owner, nothing, header.tgid, header.tid)));
            return;
        }
        self.assign(pending, header, out);
    }

    /// A thread ended another's wait; the record of that wait follows.
    pub(super) fn wait_end(&mut self, end: &WaitEnd, user: &[u64], interpreted: &Interpreted) {
        let stack = WakerStack {
            pid: end.header.tgid,
            user: user.to_vec(),
            outcome: Outcome::from_number(u32::from(end.outcome)).unwrap_or_default(),
            interpreted: interpreted.clone(),
        };
        if let Some(wakee) = self.world.thread(end.wakee, end.wakee_tgid, end.header.nanos) {
            wakee.woken = Some((end.left, Arc::new(stack)));
        }
    }

    /// A thread was off the CPU while it held a request: its sleep, and its time in the run queue after that.
    pub(super) fn off_cpu(&mut self, wait: &OffCpu, user: &[u64], interpreted: &Interpreted, out: &mut Vec<Output>) {
        let uninterruptible = wait.flags & OFF_CPU_UNINTERRUPTIBLE != 0;
        let reason = off_cpu::reason(wait.syscall, wait.file, uninterruptible);
        let left = wait.header.nanos.saturating_sub(wait.run_queue).saturating_sub(wait.blocked);
        let woken = self.world.threads.get_mut(&wait.header.tid).and_then(|thread| thread.woken.take());
        let waker = woken.and_then(|(of, waker)| (of == left).then_some(waker));
        let peer = if reason == Reason::Socket { self.wait_peer(wait.socket) } else { None };
        for (nanos, reason) in [(wait.blocked, reason), (wait.run_queue, Reason::RunQueue)] {
            if nanos == 0 {
                continue;
            }
            let pending = Pending {
                nanos: wait.header.nanos,
                weight: nanos,
                user: user.to_vec(),
                kernel: Vec::new(),
                outcome: Outcome::from_number(u32::from(wait.outcome)).unwrap_or_default(),
                interpreted: interpreted.clone(),
                off_cpu: Some(Wait { reason, peer: peer.clone().filter(|_| reason == Reason::Socket) }),
                waker: waker.clone().filter(|_| reason == Reason::Futex),
                ad_hoc: false,
            };
            self.assign(pending, &wait.header, out);
        }
    }

    /// The other end of a socket that a thread waited for.
    fn wait_peer(&mut self, socket: u64) -> Option<Arc<str>> {
        let connection = self.world.connections.get_mut(&socket).filter(|_| socket != 0)?;
        match connection.side()? {
            Side::Server => Some(Arc::from(Wait::CLIENT)),
            Side::Client => connection.callee_address(),
        }
    }

    /// Places a stack at once where its owner is known; otherwise it waits for the thread's next operation.
    fn assign(&mut self, pending: Pending, header: &Header, out: &mut Vec<Output>) {
        let caught_up = self.world.caught_up;
        let Some(thread) = self.world.thread(header.tid, header.tgid, header.nanos) else {
            self.world.counters.samples_dropped += 1;
            return;
        };
        if pending.nanos <= thread.charged_at && thread.known {
            // Later events do not show the owner of an earlier sample.
            let target = thread.at(header.nanos);
            self.world.counters.samples_late += u64::from(target.is_none());
            self.place(pending, target.unwrap_or(Target::Overhead), header.tid, header.tgid, out);
            return;
        }
        thread.put_off(pending);
        let waiting = thread.pending();
        // A thread that runs several requests at once shows by its next operation which one it worked for.
        let undecided = thread.several() && !thread.open.is_empty();
        let most = if undecided { HELD_SAMPLES } else { PENDING_SAMPLES };
        if thread.last_op == 0 && waiting > 4 || waiting > most {
            // No further operation is expected, or too many samples wait: charge the held request, else overhead. That holds
            // only for the time whose operations are known: after a stall, later samples may be of requests yet to be read.
            let until = if waiting > HELD_SAMPLES { Nanos::MAX } else { caught_up };
            let target = thread.holder().map_or(Target::Overhead, |slot| Target::of(&self.world.spans, slot));
            let Some(thread) = self.world.threads.get_mut(&header.tid) else { return };
            for sample in thread.due(until) {
                self.place(sample, target, header.tid, header.tgid, out);
            }
        }
    }

    fn place(&mut self, sample: Pending, target: Target, tid: u32, tgid: u32, out: &mut Vec<Output>) {
        let none = DimensionValues::default();
        let (owner, span, dimensions) = match target {
            Target::Overhead => (Owner::Overhead(self.world.processes.service(tgid)), None, none),
            Target::Span { slot, class, service } => match self.world.spans.get_mut(self.works_for(slot)) {
                Some(live) => {
                    if let Some(class) = live.class.filter(|_| live.side == Side::Server) {
                        (Owner::Class(class), Some(live.id), live.rare.dimensions)
                    } else {
                        // Samples of its own must not keep those that count for its class from it.
                        let most = if sample.ad_hoc { SPAN_SAMPLES / 2 } else { SPAN_SAMPLES };
                        if live.rare.samples.len() < most {
                            let owner = Owner::Overhead(service);
                            let sample = stack(sample, owner, (Some(live.id), live.rare.dimensions), tgid, tid);
                            live.rare.samples.push(sample);
                        } else {
                            self.world.counters.samples_dropped += 1;
                        }
                        return;
                    }
                }
                None => (class.map_or(Owner::Overhead(service), Owner::Class), None, none),
            },
        };
        out.push(Output::Sample(stack(sample, owner, (span, dimensions), tgid, tid)));
    }

    /// Takes the costs charged since the last call, by class and by service. Open spans with a class post what they
    /// have so far.
    pub fn take_costs(&mut self) -> ChargedCosts {
        let slots: Vec<Slot> = self.world.spans.slots().collect();
        for slot in slots {
            let Some(live) = self.world.spans.get_mut(slot) else { continue };
            // Costs of a call wait until its parent is known.
            if let Some(class) = live.class.filter(|_| live.side == Side::Server) {
                let rest = less(live.cost, live.rare.posted);
                if live.rare.posted != live.cost {
                    live.rare.posted = live.cost;
                }
                self.charges.charge_class(class, rest);
            }
        }
        self.charges.take()
    }
}

fn stack(
    sample: Pending,
    owner: Owner,
    (span, dimensions): (Option<SpanId>, DimensionValues),
    pid: u32,
    tid: u32,
) -> StackSample {
    let Pending { nanos, weight, user, kernel, outcome, interpreted, off_cpu, waker, ad_hoc } = sample;
    StackSample {
        nanos,
        pid,
        tid,
        weight,
        user,
        kernel,
        outcome,
        interpreted,
        off_cpu,
        waker,
        owner,
        span,
        dimensions,
        ad_hoc,
    }
}

/// The callback group that a read starts.
fn read_group(op: &Op, side: Option<Side>, span: Option<Slot>) -> ReadInterval {
    let entity = span
        .map(|slot| if side == Some(Side::Client) { IntervalOwner::Call(slot) } else { IntervalOwner::Request(slot) });
    ReadInterval::begin(entity, &op.counters)
}
