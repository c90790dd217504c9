//! Whom CPU, waiting and stacks are charged to.
//!
//! Between two records of a thread lies a stretch of work, split by the last wait for work in it. What lies before the
//! wait belongs to whom the thread worked for; what lies after it, to whom the operation that ends the stretch is for.
//! A thread that holds one request works for it until the reply is done, whatever it waits for meanwhile.

use tracer_common::event::{Op, Sample, Tick, Wake};

use super::engine::{Engine, Output, read_group};
use super::live::{Live, Slot};
use super::thread::{PENDING_SAMPLES, Pending, Target};
use crate::model::{Cost, Direction, Nanos, Owner, ServiceId, Side, StackSample};
use crate::protocols::Said;

/// A thread that does socket I/O is charged by its operations; its ticks only count after this long without one.
const QUIET: Nanos = 2_000_000_000;
/// Samples a unit keeps until it has a class.
pub(super) const UNIT_SAMPLES: usize = 512;

impl Engine {
    /// Charges the stretch that ends with a socket operation on `unit`'s connection.
    pub(super) fn charge_op(&mut self, op: &Op, dir: Direction, unit: Option<Slot>, out: &mut Vec<Output>) {
        let header = &op.header;
        let of_connection = self.connections.get(&op.cookie).and_then(|known| known.side());
        // Where either end asks, it is the exchange that says which side this is.
        let side = unit.and_then(|slot| self.units.get(slot)).map(|live| live.side).or(of_connection);
        // A call works for the request it was made for.
        let owner = unit.map_or(Target::Nobody, |slot| match self.units.get(slot) {
            Some(live) if live.side == Side::Client => match live.cause.candidate {
                Some(parent) if self.units.get(parent).is_some() => Target::of(&self.units, parent),
                // It becomes whose the call becomes.
                None if live.cause.open => Target::Unit { slot, class: None, service: live.service },
                _ => Target::Nobody,
            },
            _ => Target::of(&self.units, slot),
        });
        let Some(thread) = self.thread(header.tid, header.tgid, header.nanos) else { return };
        let holder = thread.holder();
        let known = thread.known;
        let delta = thread.advance(&op.books);
        thread.known = true;
        thread.last_op = header.nanos;
        thread.charged_at = header.nanos;
        let last = thread.last;
        if dir == Direction::Rx {
            thread.group = read_group(op, side, unit);
        }
        let multiplexer = thread.several();
        // Whoever held the thread before this read: a request just read is not yet whom it worked for.
        let held = holder
            .filter(|slot| !(dir == Direction::Rx && Some(*slot) == unit && last != Target::of(&self.units, *slot)));
        let held = held.map(|slot| Target::of(&self.units, slot));
        let (before, after) = match held {
            Some(holder) => (holder, if owner == Target::Nobody { holder } else { owner }),
            None if dir == Direction::Tx && !delta.waited && owner != Target::Nobody => (owner, owner),
            None => (last, owner),
        };
        let mut first = delta.before;
        let mut second = delta.after;
        if !known {
            // Before tracing began, or before the thread was seen: nobody's, and its waiting nobody's business.
            first = Cost { cpu: first.cpu, ..Cost::default() };
            second = Cost { cpu: second.cpu, ..Cost::default() };
        }
        if multiplexer || held.is_none() {
            // Asleep for want of work, or for whoever comes first: no request's time.
            first.blocked = 0;
            second.blocked = 0;
        }
        // Before its first byte arrived nothing waited for it.
        if let Some(live) = unit.filter(|_| dir == Direction::Rx).and_then(|slot| self.units.get(slot))
            && live.side == Side::Server
            && live.arrived != 0
            && live.start == header.nanos
        {
            second.runq = second.runq.min(header.nanos.saturating_sub(live.arrived));
        }
        let (before, after) = if known { (before, after) } else { (Target::Nobody, owner) };
        let split = if delta.waited { delta.wait_end } else { header.nanos };
        self.charge(header.tid, header.tgid, before, first, split, out);
        if delta.waited {
            self.charge(header.tid, header.tgid, after, second, header.nanos, out);
        }
        if let Some(thread) = self.threads.get_mut(&header.tid) {
            thread.last = if owner == Target::Nobody { held.unwrap_or(Target::Nobody) } else { owner };
        }
    }

    /// Requests on streams of which the latest operation of a connection, a send, carried bytes, when there are several.
    pub(super) fn together(&self, cookie: u64) -> Vec<Slot> {
        let Some(connection) = self.connections.get(&cookie) else { return Vec::new() };
        let touched = connection.talk.touched();
        if touched.len() < 2 {
            return Vec::new();
        }
        let units = touched.iter().filter_map(|exchange| connection.unit(*exchange));
        let mut served: Vec<Slot> =
            units.filter(|slot| self.units.get(*slot).is_some_and(|live| live.side == Side::Server)).collect();
        if served.len() < 2 {
            served.clear();
        }
        served
    }

    /// Divides evenly what an operation cost that was charged to the first of these, which had `had` before it.
    pub(super) fn spread(&mut self, slots: &[Slot], had: Option<Cost>) {
        let ([first, _, ..], Some(had)) = (slots, had) else { return };
        let Some(live) = self.units.get_mut(*first) else { return };
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
            if let Some(live) = self.units.get_mut(*slot) {
                live.cost.add(part);
                live.shared = true;
            }
        }
    }

    /// Requests of a connection that one operation answers, when there are several.
    pub(super) fn batch(&self, cookie: u64, said: &[Said]) -> Vec<Slot> {
        let done =
            said.iter().filter_map(|word| if let Said::Done { exchange, .. } = word { Some(*exchange) } else { None });
        if done.clone().nth(1).is_none() {
            return Vec::new();
        }
        let Some(connection) = self.connections.get(&cookie) else { return Vec::new() };
        done.filter_map(|exchange| connection.unit(exchange)).collect()
    }

    /// Divides evenly what requests cost that were answered at once: whatever of it was whose, nothing said, and the one
    /// that was read first must not seem to have cost it all.
    pub(super) fn share(&mut self, slots: &[Slot]) {
        let served = |live: &&Live| live.side == Side::Server;
        let mut sum = Cost::default();
        let mut count = 0;
        for live in slots.iter().filter_map(|slot| self.units.get(*slot)).filter(served) {
            // What was given to its class stays there.
            sum.add(less(live.cost, live.posted));
            count += 1;
        }
        if count < 2 {
            return;
        }
        for slot in slots {
            let Some(live) = self.units.get_mut(*slot).filter(|live| live.side == Side::Server) else { continue };
            let part = |whole: u64| whole / count;
            let cost = Cost {
                cpu: part(sum.cpu),
                runq: part(sum.runq),
                blocked: part(sum.blocked),
                switches: part(sum.switches),
            };
            sum = less(sum, cost);
            count = (count - 1).max(1);
            live.cost = live.posted;
            live.cost.add(cost);
            live.batch = true;
        }
    }

    /// Charges what a thread's own report shows, where its operations do not.
    pub(super) fn charge_tick(&mut self, tick: &Tick, dead: bool, out: &mut Vec<Output>) {
        let header = &tick.header;
        let Some(thread) = self.thread(header.tid, header.tgid, header.nanos) else { return };
        let quiet = header.nanos.saturating_sub(thread.charged_at) > QUIET;
        if thread.last_op != 0 && !dead && !quiet {
            return;
        }
        let delta = thread.advance(&tick.books);
        let holder = thread.holder();
        let last = thread.last;
        let fresh = header.nanos.saturating_sub(thread.last_op) <= QUIET;
        thread.known = true;
        thread.charged_at = header.nanos;
        if let Some(slot) = holder {
            let target = Target::of(&self.units, slot);
            self.charge(header.tid, header.tgid, target, delta.whole(), header.nanos, out);
            return;
        }
        let before = if delta.waited || (dead && fresh) { last } else { Target::Nobody };
        let cpu = |cost: Cost| Cost { blocked: 0, ..cost };
        let split = if delta.waited { delta.wait_end } else { header.nanos };
        self.charge(header.tid, header.tgid, before, cpu(delta.before), split, out);
        if delta.waited {
            self.charge(header.tid, header.tgid, Target::Nobody, cpu(delta.after), header.nanos, out);
            if let Some(thread) = self.threads.get_mut(&header.tid) {
                thread.last = Target::Nobody;
            }
        }
    }

    /// Charges the stretch that ends with a wake-up by a thread that works for another: what it did since it waited for
    /// work was for `owner`, what it does next is for nobody until something says so.
    pub(super) fn charge_wake(&mut self, wake: &Wake, owner: Target, out: &mut Vec<Output>) {
        let header = &wake.header;
        let Some(thread) = self.threads.get_mut(&header.tid) else { return };
        let (known, last) = (thread.known, thread.last);
        let delta = thread.advance(&wake.books);
        thread.known = true;
        thread.last = Target::Nobody;
        (thread.charged_at, thread.last_op) = (header.nanos, header.nanos);
        // Its time is not the request's, which waits for it.
        let cpu = |cost: Cost| Cost { cpu: cost.cpu, ..Cost::default() };
        let before = match (known, delta.waited) {
            (true, false) => owner,
            (true, true) => last,
            (false, _) => Target::Nobody,
        };
        let split = if delta.waited { delta.wait_end } else { header.nanos };
        self.charge(header.tid, header.tgid, before, cpu(delta.before), split, out);
        if delta.waited {
            self.charge(header.tid, header.tgid, owner, cpu(delta.after), header.nanos, out);
        }
    }

    /// Charges `cost`, the work of thread `tid` up to `until`, and the stacks taken in it.
    fn charge(&mut self, tid: u32, tgid: u32, target: Target, cost: Cost, until: Nanos, out: &mut Vec<Output>) {
        self.post(target, cost, tgid);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.remember(until, target);
        for sample in thread.due(until) {
            self.place(sample, target, tid, tgid, out);
        }
    }

    /// The request a call is made for, once that is known.
    fn works_for(&self, slot: Slot) -> Slot {
        let call = self.units.get(slot).filter(|live| live.side == Side::Client);
        call.and_then(|live| live.cause.candidate).filter(|parent| self.units.get(*parent).is_some()).unwrap_or(slot)
    }

    /// Adds `cost` to a unit, to the class of one that was reported, or to overhead.
    pub(super) fn post(&mut self, target: Target, cost: Cost, tgid: u32) {
        if cost == Cost::default() {
            return;
        }
        match target {
            Target::Unit { slot, class, service } => {
                let slot = self.works_for(slot);
                if let Some(live) = self.units.get_mut(slot) {
                    live.cost.add(cost);
                } else if let Some(class) = class {
                    add(&mut self.class_costs, class.0, cost);
                } else {
                    add(&mut self.overhead, service.0, cost);
                }
            }
            Target::Nobody => {
                let service = self.service(tgid);
                add(&mut self.overhead, service.0, cost);
            }
        }
    }

    /// A stack was sampled.
    pub(super) fn sample(&mut self, sample: &Sample, user: &[u64], kernel: &[u64], out: &mut Vec<Output>) {
        let header = &sample.header;
        let pending =
            Pending { nanos: header.nanos, weight: sample.period, user: user.to_vec(), kernel: kernel.to_vec() };
        if header.flags & 1 != 0 {
            out.push(Output::Sample(stack(pending, Owner::Kernel, None, header.tgid, header.tid)));
            return;
        }
        let Some(thread) = self.thread(header.tid, header.tgid, header.nanos) else {
            self.counters.samples_dropped += 1;
            return;
        };
        if header.nanos <= thread.charged_at && thread.known {
            // Whose it was is not guessed from what came after it.
            let target = thread.at(header.nanos);
            self.counters.samples_late += u64::from(target.is_none());
            self.place(pending, target.unwrap_or(Target::Nobody), header.tid, header.tgid, out);
            return;
        }
        if thread.last_op == 0 && thread.pending() >= 4 || thread.pending() >= PENDING_SAMPLES {
            // No operation will say more, or too many wait: the request it holds, else overhead.
            let target = thread.holder().map_or(Target::Nobody, |slot| Target::of(&self.units, slot));
            let Some(thread) = self.threads.get_mut(&header.tid) else { return };
            let all = thread.due(Nanos::MAX);
            for sample in all.into_iter().chain([pending]) {
                self.place(sample, target, header.tid, header.tgid, out);
            }
            return;
        }
        thread.put_off(pending);
    }

    fn place(&mut self, sample: Pending, target: Target, tid: u32, tgid: u32, out: &mut Vec<Output>) {
        let (owner, unit) = match target {
            Target::Nobody => (Owner::Overhead(self.service(tgid)), None),
            Target::Unit { slot, class, service } => match self.units.get_mut(self.works_for(slot)) {
                Some(live) => {
                    if let Some(class) = live.class.filter(|_| live.side == Side::Server) {
                        (Owner::Class(class), Some(live.id))
                    } else {
                        if live.samples.len() < UNIT_SAMPLES {
                            let owner = Owner::Overhead(service);
                            live.samples.push(stack(sample, owner, Some(live.id), tgid, tid));
                        } else {
                            self.counters.samples_dropped += 1;
                        }
                        return;
                    }
                }
                None => (class.map_or(Owner::Overhead(service), Owner::Class), None),
            },
        };
        out.push(Output::Sample(stack(sample, owner, unit, tgid, tid)));
    }

    /// What was charged since last asked: by class, then by service. Units with a class give what they have so far.
    pub fn take_costs(&mut self) -> Charged {
        let slots: Vec<Slot> = self.units.slots().collect();
        for slot in slots {
            let Some(live) = self.units.get_mut(slot) else { continue };
            // What calls cost is still to become somebody's.
            if let Some(class) = live.class.filter(|_| live.side == Side::Server) {
                let rest = less(live.cost, live.posted);
                live.posted = live.cost;
                add(&mut self.class_costs, class.0, rest);
            }
        }
        let take = |costs: &mut Vec<Cost>| -> Vec<(u32, Cost)> {
            costs
                .iter_mut()
                .enumerate()
                .filter(|(_, cost)| **cost != Cost::default())
                .map(|(i, cost)| (i as u32, std::mem::take(cost)))
                .collect()
        };
        let classes = take(&mut self.class_costs);
        let overhead = take(&mut self.overhead).into_iter().map(|(i, cost)| (ServiceId(i), cost)).collect();
        (classes, overhead)
    }
}

/// Costs of classes and of services' overhead since last asked.
pub(super) type Charged = (Vec<(u32, Cost)>, Vec<(ServiceId, Cost)>);

fn stack(sample: Pending, owner: Owner, unit: Option<crate::model::UnitId>, pid: u32, tid: u32) -> StackSample {
    let Pending { nanos, weight, user, kernel } = sample;
    StackSample { nanos, pid, tid, weight, user, kernel, owner, unit }
}

/// Adds to the element `index`, growing the list: ids are dense and bounded by the number of classes and services.
pub(super) fn add(costs: &mut Vec<Cost>, index: u32, cost: Cost) {
    let index = index as usize;
    if costs.len() <= index {
        costs.resize(index + 1, Cost::default());
    }
    if let Some(sum) = costs.get_mut(index) {
        sum.add(cost);
    }
}

/// `a` − `b`, part by part.
pub(super) fn less(a: Cost, b: Cost) -> Cost {
    Cost {
        cpu: a.cpu.saturating_sub(b.cpu),
        runq: a.runq.saturating_sub(b.runq),
        blocked: a.blocked.saturating_sub(b.blocked),
        switches: a.switches.saturating_sub(b.switches),
    }
}
