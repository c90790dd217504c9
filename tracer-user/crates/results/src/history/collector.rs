//! Adds up spans and costs until a window is over.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_model::{
    ClassId, ClassInfo, Cost, Grade, HostCpu, Names, Nanos, Owner, ProtocolId, ServiceId, Side, Sink, Span, SpanId,
};

use super::durations::Durations;
use super::identity::Identities;
use super::recent::{Point, Recent, WINDOWS};
use super::rows::{ClassRow, EdgeRow, FindingRow, GoalRow, HostRow, Identity, ServiceRow, WindowRows};
use crate::analysis::window::{ClassWindow, STRATA, ServiceWindow, Window};

/// Classes in one window; spans of further ones are counted as left out.
const CLASSES: usize = 2000;
/// Payload sizes a class shows before they are distinguished, and the quantiles at which.
const SIZES: usize = 64;
const QUANTILES: [f64; STRATA - 1] = [0.35, 0.9];
/// Services that count as serving; beyond it a service's CPU counts as foreign.
const SERVING: usize = 4096;

/// Requests of a window whose callers are looked for, and callees of one service that are remembered.
const CALLED: usize = 1024;
const CALLEES: usize = 32;

/// Sums over the spans of a class. Nanoseconds.
#[derive(Clone, Debug, Default)]
struct Totals {
    count: [u32; STRATA],
    cpu: [u64; STRATA],
    cpu_squared: f64,
    errors: u32,
    roots: u32,
    ambiguous: u32,
    duration: u64,
    queue: u64,
    runqueue: u64,
    blocked: u64,
    /// Blocked other than for calls.
    blocked_own: u64,
    downstream: u64,
    calls: u64,
    durations: Durations,
}

impl Totals {
    fn requests(&self) -> u32 {
        self.count.iter().sum()
    }
}

/// Where a class's payload sizes are divided: fixed once it has shown enough of them, so that windows compare.
#[derive(Clone, Debug)]
enum Sizes {
    Learning(Vec<u64>),
    Fixed([u64; STRATA - 1]),
}

impl Sizes {
    fn stratum(&mut self, size: u64) -> usize {
        match self {
            Self::Fixed([small, _]) if size < *small => 0,
            Self::Fixed([_, large]) if size > *large => 2,
            Self::Fixed(_) => 1,
            Self::Learning(sizes) => {
                sizes.push(size);
                if sizes.len() >= SIZES {
                    sizes.sort_unstable();
                    let at = |share: f64| sizes[((sizes.len() - 1) as f64 * share) as usize];
                    *self = Self::Fixed(QUANTILES.map(at));
                }
                1
            }
        }
    }
}

/// What the system says of a window: CPU since tracing began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host {
    /// CPU by kind.
    pub cpu: HostCpu,
    /// Operations seen, and lost, since tracing began.
    pub operations: u64,
    /// See `operations`.
    pub lost: u64,
}

/// The window that is open, and the recent ones.
#[derive(Debug)]
pub struct Collector {
    length: Nanos,
    began: Nanos,
    host: Host,
    classes: FxHashMap<ClassId, Totals>,
    sizes: FxHashMap<ClassId, Sizes>,
    overhead: FxHashMap<ServiceId, u64>,
    /// Services that serve requests, and those that only make calls.
    serving: FxHashMap<ServiceId, Side>,
    /// Services that answered calls of this window, by the call's span; and callees by caller.
    called: FxHashMap<SpanId, ServiceId>,
    callees: FxHashMap<ServiceId, Vec<ServiceId>>,
    /// Calls to a service whose callers are known, and how many of these callers serve no requests: load enters there.
    entered: FxHashMap<ServiceId, (u32, u32)>,
    /// What services run.
    pub identities: Identities,
    /// Recent windows.
    pub recent: Recent,
    /// Spans that are in no window because it had too many classes.
    left_out: u64,
    /// Name of the host, if rows are wanted.
    rows_of: Option<Arc<str>>,
    /// Those of the window that was ended last.
    rows: Option<WindowRows>,
    /// Whether no window follows.
    ending: bool,
    /// Start of the first window, nanoseconds since the epoch.
    run_ns: u64,
}

impl Collector {
    /// A collector of windows of `length` nanoseconds, within a share of `memory` bytes.
    pub fn new(length: Nanos, memory: u64) -> Self {
        Self {
            length: length.max(1_000_000_000),
            began: 0,
            host: Host::default(),
            classes: FxHashMap::default(),
            sizes: FxHashMap::default(),
            overhead: FxHashMap::default(),
            serving: FxHashMap::default(),
            called: FxHashMap::default(),
            callees: FxHashMap::default(),
            entered: FxHashMap::default(),
            identities: Identities::default(),
            recent: Recent::for_memory(memory),
            left_out: 0,
            rows_of: None,
            rows: None,
            ending: false,
            run_ns: 0,
        }
    }

    /// From here on every window also becomes rows for files. `host` is the host's name.
    pub fn collect_rows(&mut self, host: &str) {
        self.rows_of = Some(host.into());
    }

    /// The name of the host, if windows become rows.
    pub fn rows_of(&self) -> Option<Arc<str>> {
        self.rows_of.clone()
    }

    /// Adds what others counted in the window that was ended last.
    pub fn add_rows(&mut self, edges: Vec<EdgeRow>, goals: Vec<GoalRow>) {
        let Some(rows) = &mut self.rows else { return };
        (rows.host.edge_rows, rows.host.goal_rows) = (edges.len() as u64, goals.len() as u64);
        (rows.edges, rows.goals) = (edges, goals);
    }

    /// Adds findings that were published or ended with the window that was ended last.
    pub fn add_findings(&mut self, findings: Vec<FindingRow>) {
        if let Some(rows) = &mut self.rows {
            rows.findings = findings;
        }
    }

    /// Whether the first window has begun.
    pub fn is_begun(&self) -> bool {
        self.began != 0
    }

    /// The rows of the window that was ended last, once.
    pub fn take_rows(&mut self) -> Option<WindowRows> {
        self.rows.take()
    }

    /// The next window is the last, and shorter.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// See [`Collector::end`].
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Length of a window, nanoseconds.
    pub fn length(&self) -> Nanos {
        self.length
    }

    /// Spans that are in no window because it had too many classes.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// At `now`: ends the window if it is over. `wall_offset` is wall clock less `now`'s clock, nanoseconds.
    pub fn close(&mut self, names: &Names, now: Nanos, wall_offset: i64, host: Host) -> Option<Window> {
        if self.began == 0 {
            (self.began, self.host) = (now, host);
            self.classes.clear();
            self.overhead.clear();
            return None;
        }
        let length = now.saturating_sub(self.began);
        if length < self.length && !(self.ending && length > 0) {
            return None;
        }
        let start_ns = (self.began as i64).saturating_add(wall_offset).max(0) as u64;
        if self.run_ns == 0 {
            self.run_ns = start_ns;
        }
        let before = std::mem::replace(&mut self.host, host);
        self.began = now;
        self.called.clear();
        let length_s = seconds(length);
        let since = |of: fn(&HostCpu) -> f64| (of(&host.cpu) - of(&before.cpu)).max(0.0);
        let (operations, lost) =
            (host.operations.saturating_sub(before.operations), host.lost.saturating_sub(before.lost));
        let mut window = Window {
            start_ns,
            length_s,
            cores: f64::from(host.cpu.cpus.max(1)),
            busy_s: since(|cpu| cpu.system_busy - if cpu.steal_is_busy { cpu.steal } else { 0.0 }),
            foreign_s: 0.0,
            steal_s: since(|cpu| cpu.steal),
            loss: lost as f64 / ((operations + lost) as f64).max(1.0),
            services: self.services(names),
        };
        for (service, nanos) in self.overhead.drain() {
            let name = names.service(service);
            match window.services.iter_mut().find(|known| *known.service_name == *name) {
                Some(known) => known.overhead_s += seconds(nanos),
                None => match self.serving.get(&service) {
                    // It finished no request: all its CPU is overhead.
                    Some(Side::Server) => {
                        let (identity, starts) = self.identities.take(service);
                        let (service_name, overhead_s) = (name.to_string(), seconds(nanos));
                        let idle =
                            ServiceWindow { service_name, identity, starts, overhead_s, ..ServiceWindow::default() };
                        window.services.push(idle);
                    }
                    // A load generator, for one: its CPU goes with the load.
                    Some(Side::Client) => {}
                    None => window.foreign_s += seconds(nanos),
                },
            }
        }
        // Some were added last. In one order, findings from the files get the numbers that they have here.
        window.services.sort_by(|a, b| a.service_name.cmp(&b.service_name));
        if let Some(name) = self.rows_of.clone() {
            let (last, run_ns) = (u64::from(self.ending), self.run_ns);
            let row = HostRow { last, run_ns, ..host_row(&window, &name, &before, &host) };
            let services: Vec<_> = window.services.iter().map(|service| service_row(service, &window, &name)).collect();
            let classes = self
                .classes
                .iter()
                .filter_map(|(class, totals)| class_row(names.class(*class)?, totals, &window, &name));
            let classes: Vec<_> = classes.collect();
            let (class_rows, service_rows) = (classes.len() as u64, services.len() as u64);
            let host = HostRow { class_rows, service_rows, ..row };
            self.rows = Some(WindowRows { host, classes, services, ..WindowRows::default() });
        }
        for (class, totals) in self.classes.drain() {
            self.recent.add(class, point(&totals, start_ns, length_s));
        }
        self.recent.window(start_ns, length);
        for service in window.services.iter().filter(|service| service.identity != 0) {
            self.recent.build(&service.service_name, service.identity, (start_ns, start_ns.saturating_add(length)));
        }
        let kept = self.length.saturating_mul(WINDOWS as u64);
        self.recent.forget(start_ns.saturating_sub(kept), start_ns);
        Some(window)
    }

    /// Learns callers and callees on this host: the end of a call names the caller, the request at its other end the callee.
    fn note_call(&mut self, span: &Span) {
        match (span.side, span.parent) {
            (Side::Server, Some(call)) if self.called.len() < CALLED => {
                self.called.insert(call, span.service);
            }
            (Side::Client, _) => {
                let Some(callee) = self.called.remove(&span.id).filter(|callee| *callee != span.service) else {
                    return;
                };
                if self.entered.len() < SERVING || self.entered.contains_key(&callee) {
                    let (calls, outside) = self.entered.entry(callee).or_default();
                    if *calls >= CALLED as u32 {
                        (*calls, *outside) = (*calls / 2, *outside / 2);
                    }
                    *calls += 1;
                    *outside += u32::from(self.serving.get(&span.service) == Some(&Side::Client));
                }
                if self.callees.len() < SERVING || self.callees.contains_key(&span.service) {
                    let known = self.callees.entry(span.service).or_default();
                    if known.len() < CALLEES && !known.contains(&callee) {
                        known.push(callee);
                    }
                }
            }
            _ => {}
        }
    }

    /// What services did as servers.
    fn services(&mut self, names: &Names) -> Vec<ServiceWindow> {
        let mut services: HashMap<ServiceId, (ServiceWindow, [u32; 3])> = HashMap::new();
        let entered = &self.entered;
        for (class, totals) in &self.classes {
            let Some(info) =
                names.class(*class).filter(|info| info.side == Side::Server && info.protocol != ProtocolId::Declared)
            else {
                continue;
            };
            let (window, sums) = services.entry(info.service).or_insert_with(|| {
                let (identity, starts) = self.identities.take(info.service);
                let service_name = names.service(info.service).to_string();
                let callees = self.callees.get(&info.service).into_iter().flatten();
                let callees = callees.map(|callee| names.service(*callee).to_string()).collect();
                (ServiceWindow { service_name, identity, starts, callees, ..ServiceWindow::default() }, [0; 3])
            });
            let requests = totals.requests();
            for (sum, more) in sums.iter_mut().zip([requests, totals.roots, totals.ambiguous]) {
                *sum += more;
            }
            let same = window.classes.iter().position(|class| *class.request_class == *info.name);
            let class = ClassWindow {
                request_class: info.name.to_string(),
                count: totals.count.map(f64::from),
                cpu_s: totals.cpu.map(seconds),
                cpu_s_squared: totals.cpu_squared,
                blocked_s: seconds(totals.blocked_own),
                queue_s: seconds(totals.queue + totals.runqueue),
                calls: totals.calls as f64,
                downstream_s: seconds(totals.downstream),
            };
            // Two protocols may have a class of one name.
            match same.and_then(|at| window.classes.get_mut(at)) {
                Some(known) => known.add(&class),
                None => window.classes.push(class),
            }
        }
        let finish = |(service, (mut window, [requests, roots, ambiguous])): (ServiceId, (ServiceWindow, [u32; 3]))| {
            // From another host, or from a program that serves no requests, such as a load generator.
            let (calls, outside) = entered.get(&service).copied().unwrap_or((1, 0));
            let called = f64::from(requests.saturating_sub(roots)) * f64::from(outside) / f64::from(calls.max(1));
            window.entry = (f64::from(roots) + called) * 2.0 > f64::from(requests);
            window.ambiguous = f64::from(ambiguous) / f64::from(requests.max(1));
            window.classes.sort_by(|a, b| a.request_class.cmp(&b.request_class));
            window
        };
        let mut services: Vec<ServiceWindow> = services.into_iter().map(finish).collect();
        // Where every caller is traced, no service is known to be the first.
        if services.iter().all(|service| !service.entry) {
            for service in &mut services {
                service.entry = true;
            }
        }
        services.sort_by(|a, b| a.service_name.cmp(&b.service_name));
        services
    }
}

impl Sink for Collector {
    fn span(&mut self, names: &Names, span: &Span) {
        self.spans(names, span, 1);
    }

    fn spans(&mut self, _: &Names, span: &Span, count: u64) {
        let full = self.classes.len() >= CLASSES;
        if full && !self.classes.contains_key(&span.class) {
            self.left_out += count;
            return;
        }
        if self.serving.len() < SERVING || self.serving.contains_key(&span.service) {
            let role = self.serving.entry(span.service).or_insert(span.side);
            if span.side == Side::Server {
                *role = Side::Server;
            }
        }
        self.note_call(span);
        let size = span.request_bytes.saturating_add(span.reply_bytes);
        let room = self.sizes.len() < CLASSES || self.sizes.contains_key(&span.class);
        let sizes = room.then(|| self.sizes.entry(span.class).or_insert_with(|| Sizes::Learning(Vec::new())));
        let stratum = sizes.map_or(1, |sizes| sizes.stratum(size));
        let totals = self.classes.entry(span.class).or_default();
        let Cost { cpu, runq, blocked, .. } = span.cost;
        let times = u32::try_from(count).unwrap_or(u32::MAX);
        let only_if = |it_is: bool| if it_is { times } else { 0 };
        totals.count[stratum] = totals.count[stratum].saturating_add(times);
        totals.cpu[stratum] += cpu * count;
        totals.cpu_squared += seconds(cpu) * seconds(cpu) * count as f64;
        totals.errors += only_if(span.error);
        totals.roots += only_if(span.parent.is_none());
        totals.ambiguous += only_if(matches!(span.grade, Grade::Ambiguous | Grade::Orphan));
        totals.duration += span.duration() * count;
        totals.queue += span.queue() * count;
        totals.runqueue += runq * count;
        totals.blocked += blocked * count;
        totals.blocked_own += blocked.saturating_sub(span.downstream) * count;
        totals.downstream += span.downstream * count;
        totals.calls += u64::from(span.calls) * count;
        totals.durations.add(span.duration(), times);
    }

    fn cost(&mut self, _: &Names, owner: Owner, cost: Cost) {
        if let Owner::Overhead(service) = owner {
            *self.overhead.entry(service).or_default() += cost.cpu;
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// What the host did in a window, from its figures at both ends.
fn host_row(window: &Window, name: &Arc<str>, before: &Host, after: &Host) -> HostRow {
    let since = |of: fn(&HostCpu) -> f64| (of(&after.cpu) - of(&before.cpu)).max(0.0);
    let attributed = since(|cpu| cpu.requests + cpu.overhead + cpu.kernel + cpu.unreported);
    let busy = since(|cpu| cpu.system_busy);
    HostRow {
        start_ns: window.start_ns,
        length_s: window.length_s,
        host: Arc::clone(name),
        cores: window.cores,
        busy_s: window.busy_s,
        requests_s: since(|cpu| cpu.requests),
        overhead_s: (since(|cpu| cpu.overhead) - window.foreign_s).max(0.0),
        kernel_s: since(|cpu| cpu.kernel),
        foreign_s: window.foreign_s,
        steal_s: window.steal_s,
        idle_s: since(|cpu| cpu.idle),
        capture_ratio: if busy > 0.0 { attributed / busy } else { 1.0 },
        events_lost: after.lost.saturating_sub(before.lost),
        loss: window.loss,
        ..HostRow::default()
    }
}

/// A service in a window.
fn service_row(service: &ServiceWindow, window: &Window, host: &Arc<str>) -> ServiceRow {
    ServiceRow {
        start_ns: window.start_ns,
        length_s: window.length_s,
        host: Arc::clone(host),
        service_name: service.service_name.as_str().into(),
        identity: Identity(service.identity),
        starts: u64::from(service.starts),
        entry: u64::from(service.entry),
        callees: service.callees.join("\n").into(),
        overhead_s: service.overhead_s,
        ambiguous: service.ambiguous,
    }
}

/// What a class cost in a window.
fn class_row(info: &ClassInfo, totals: &Totals, window: &Window, host: &Arc<str>) -> Option<ClassRow> {
    let service = window.services.iter().find(|service| *service.service_name == *info.service_name);
    (totals.requests() > 0).then(|| ClassRow {
        start_ns: window.start_ns,
        length_s: window.length_s,
        host: Arc::clone(host),
        service_name: Arc::clone(&info.service_name),
        request_class: Arc::clone(&info.name),
        side: info.side.name().into(),
        protocol: info.protocol.name().into(),
        instance: Arc::default(),
        identity: Identity(service.map_or(0, |service| service.identity)),
        count: u64::from(totals.requests()),
        errors: u64::from(totals.errors),
        duration_s: seconds(totals.duration),
        duration_histogram: totals.durations.histogram(),
        cpu_s: seconds(totals.cpu.iter().sum()),
        cpu_s_squared: totals.cpu_squared,
        runqueue_s: seconds(totals.runqueue),
        blocked_s: seconds(totals.blocked_own),
        queue_s: seconds(totals.queue),
        downstream_s: seconds(totals.downstream),
        calls: totals.calls,
        count_by_size: totals.count.map(u64::from),
        cpu_s_by_size: totals.cpu.map(seconds),
    })
}

fn point(totals: &Totals, start_ns: u64, length_s: f64) -> Point {
    let n = f64::from(totals.requests()).max(1.0);
    let each = |nanos: u64| (seconds(nanos) / n) as f32;
    Point {
        start_ns,
        rate_per_s: (f64::from(totals.requests()) / length_s.max(1e-9)) as f32,
        error_rate_per_s: (f64::from(totals.errors) / length_s.max(1e-9)) as f32,
        p50_s: totals.durations.quantile(0.5) as f32,
        p95_s: totals.durations.quantile(0.95) as f32,
        p99_s: totals.durations.quantile(0.99) as f32,
        mean_s: each(totals.duration),
        cpu_s: each(totals.cpu.iter().sum()),
        queue_s: each(totals.queue),
        runqueue_s: each(totals.runqueue),
        blocked_s: each(totals.blocked),
        downstream_s: each(totals.downstream),
        length_s: length_s as f32,
        durations: totals.durations.counts(),
    }
}
