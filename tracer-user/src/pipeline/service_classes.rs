//! The service class of a request: decided when it begins, from the context it came with, else by the rules; and the
//! threads that certainly serve one.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use tracer_common::event::Fork;
use tracer_host::guard::tables::TableUse;
use tracer_host::local_time;
use tracer_model::{Nanos, Side};
use tracer_policies::service_classes::decision::Serving;
use tracer_policies::service_classes::limits::{ConnectionId, OpenRequest};
use tracer_policies::service_classes::network::SendingRequest;
use tracer_policies::service_classes::{Enforcement, Facts, Mode, ServiceClass, ServiceClasses};
use tracer_transactions::finished_call::FinishedCall;
use tracer_transactions::slot::Slot;

use super::Pipeline;
use super::classes::provisional;

/// Most open requests whose threads are watched.
const WATCHED: usize = 8192;
/// How long after the last such request more are expected, nanoseconds.
const EXPECTED: Nanos = 1_000_000_000;

/// A request whose thread or connection may get another priority, or that may be ended.
#[derive(Clone, Copy, Debug)]
struct Watched {
    seen: Seen,
    /// Its connection's socket, its class and its beginning: it may be reported before it is looked at.
    sending: SendingRequest,
}

/// What was seen of the thread of a watched request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Seen {
    /// Nothing yet: the request has just begun.
    #[default]
    Nothing,
    /// It may serve others, too.
    Shared,
    /// It served this request alone.
    Alone,
}

/// Requests that were never a thread's only one, by service class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unserved {
    /// Over before their thread was looked at: some milliseconds.
    pub brief: u64,
    /// Their thread serves several requests at once, runs tasks, or records of it were lost.
    pub shared_thread: u64,
    /// Too many requests of service classes were open.
    pub limit: u64,
}

/// State of the service classes.
#[derive(Debug)]
pub(super) struct Policies {
    pub(super) classes: Arc<ServiceClasses>,
    /// Whether threads, and whether packets, may get another priority, and whether requests may be ended.
    threads: bool,
    packets: bool,
    ends: bool,
    /// Open requests of classes for which something may be done.
    watched: HashMap<Slot, Watched>,
    unserved: Vec<Unserved>,
    /// When the latest of them began.
    latest: Nanos,
    reached: u64,
    /// Threads made while such requests are open: maker, thread, its process.
    forks: Vec<(u32, u32, u32)>,
    /// The minute since the epoch that was last looked up, and which minute of the week that is.
    minute: Cell<(i64, Option<u16>)>,
}

/// Most such threads between two drains; what is missed is found later.
const FORKS: usize = 4096;

impl Policies {
    pub(super) fn new(classes: &Arc<ServiceClasses>, mode: Mode) -> Self {
        Self {
            classes: Arc::clone(classes),
            threads: mode != Mode::Off && classes.changes_priorities(),
            packets: mode != Mode::Off && classes.changes_network(),
            ends: mode != Mode::Off && classes.ends_requests(),
            watched: HashMap::new(),
            unserved: vec![Unserved::default(); classes.classes.len()],
            latest: 0,
            reached: 0,
            forks: Vec::new(),
            minute: Cell::new((i64::MIN, None)),
        }
    }

    /// Other classes are declared. Open requests keep the class they have, and nothing is done for them any more.
    pub(super) fn replace(&mut self, classes: &Arc<ServiceClasses>, mode: Mode) {
        let counted = |class: &ServiceClass| self.unserved.get(self.classes.index(&class.name)?).copied();
        self.unserved = classes.classes.iter().map(|class| counted(class).unwrap_or_default()).collect();
        self.classes = Arc::clone(classes);
        self.threads = mode != Mode::Off && classes.changes_priorities();
        self.packets = mode != Mode::Off && classes.changes_network();
        self.ends = mode != Mode::Off && classes.ends_requests();
        self.watched.clear();
    }

    /// The minute of the week at `start`, local time.
    fn minute(&self, start: Nanos, wall_offset: i64) -> Option<u16> {
        let wall = i64::try_from(start).ok()?.checked_add(wall_offset)?.div_euclid(60_000_000_000);
        let (known, minute) = self.minute.get();
        if known == wall {
            return minute;
        }
        let minute = local_time::minute_of_week(wall.checked_mul(60)?);
        self.minute.set((wall, minute));
        minute
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.watched.len(), WATCHED, self.reached)
    }

    /// A thread was made, which may have inherited a changed priority.
    pub(super) fn forked(&mut self, fork: &Fork) {
        if !self.watched.is_empty() && self.forks.len() < FORKS {
            self.forks.push((fork.header.tid, fork.child_tid, fork.child_tgid));
        }
    }

    fn watch(&mut self, slot: Slot, sending: SendingRequest) {
        let class = sending.class;
        let thread = self.threads && !is_normal(&self.classes, class);
        // A request of normal priority ends that of its connection.
        let may_end = self.ends && self.classes.classes.get(class).is_some_and(|class| !class.limits.is_empty());
        if !(thread || self.packets || may_end) || self.watched.contains_key(&slot) {
            return;
        }
        self.latest = self.latest.max(sending.since);
        if self.watched.len() < WATCHED {
            self.watched.insert(slot, Watched { seen: Seen::default(), sending });
            return;
        }
        self.reached += 1;
        if let Some(unserved) = self.unserved.get_mut(class).filter(|_| thread) {
            unserved.limit += 1;
        }
    }
}

/// Whether threads that serve this class keep their priority.
fn is_normal(classes: &ServiceClasses, class: usize) -> bool {
    classes.classes.get(class).is_none_or(|class| !class.changes_threads())
}

impl Pipeline {
    /// Sets the metrics of service classes: how they reach their goals, and what was `done` for them.
    pub fn export_service_classes(&mut self, done: &Enforcement) {
        self.metrics.set_service_classes(&self.names, &self.attainment, done);
    }

    /// A request began, or more became known of its context: decides its service class.
    pub(super) fn decide_service_class(&mut self, slot: Slot) {
        if self.policies.classes.is_empty() {
            return;
        }
        self.engine.inherit(slot);
        let Some(live) = self.engine.span(slot) else { return };
        if live.side == Side::Client {
            // The other end may have been read first.
            if let Some(callee) = live.client.callee {
                self.decide_service_class(callee);
            }
            return;
        }
        let (since, cookie) = (live.start, live.cookie);
        let named = live.rare.passed.as_ref().map(|passed| Arc::clone(&passed.service_class));
        let class = match named.filter(|name| !name.is_empty()) {
            Some(name) => self.policies.classes.index(&name),
            None => self.by_rules(slot),
        };
        if let Some(class) = class {
            self.policies.watch(slot, SendingRequest { cookie, class, since, open: true });
        }
    }

    /// The class by the rules of this host.
    fn by_rules(&mut self, slot: Slot) -> Option<usize> {
        let classes = Arc::clone(&self.policies.classes);
        let caller = self.engine.caller_of(slot);
        let live = self.engine.span(slot)?;
        let request_class = match live.class.and_then(|class| self.names.class(class)) {
            Some(info) => Arc::clone(&info.name),
            None if classes.wants_request_class() => provisional(&mut self.classifier, &mut self.names, live),
            None => "".into(),
        };
        let service = self.names.service(live.service);
        let caller_class = caller.as_ref().and_then(|caller| self.names.class(caller.class?));
        let facts = Facts {
            service: &service,
            request_class: &request_class,
            host: live.request.host.as_deref(),
            caller: caller.as_ref().map(|caller| match caller.service {
                Some(service) => self.names.services.get(service.0 as usize).map_or("", |name| &**name),
                None => &*caller.remote,
            }),
            caller_class: caller_class.map(|info| &*info.name),
            user: None,
            headers: &live.request.headers,
            header_names: &self.engine.settings().headers,
            minute: classes.wants_time().then(|| self.policies.minute(live.start, self.wall_offset)).flatten(),
        };
        let class = classes.decide(&facts)?;
        self.engine.set_ruled_class(slot, &classes.classes.get(class)?.name);
        Some(class)
    }

    /// The class of a call of a declared function outside any request.
    pub(super) fn service_class_of_declared(
        &self,
        call: &FinishedCall,
        name: &str,
        user: Option<&str>,
    ) -> Option<Arc<str>> {
        let service = self.names.service(call.service);
        let classes = &self.policies.classes;
        let minute = classes.wants_time().then(|| self.policies.minute(call.start, self.wall_offset)).flatten();
        let facts = Facts { service: &service, request_class: name, user, minute, ..Facts::default() };
        Some(Arc::clone(&classes.classes.get(classes.decide(&facts)?)?.name))
    }

    /// The threads that certainly serve a request of a service class alone, for [`Decision`], the connections that
    /// carry one, for [`NetworkDecision`], and the requests that are open, for [`LimitDecision`]; call it after the rings
    /// were drained.
    ///
    /// [`Decision`]: tracer_policies::service_classes::decision::Decision
    /// [`NetworkDecision`]: tracer_policies::service_classes::network::NetworkDecision
    /// [`LimitDecision`]: tracer_policies::service_classes::limits::LimitDecision
    pub fn serving(
        &mut self,
        serving: &mut Vec<Serving>,
        sending: &mut Vec<SendingRequest>,
        requests: &mut Vec<OpenRequest>,
    ) {
        let Self { engine, policies, .. } = self;
        let Policies { classes, threads, packets, ends, watched, unserved, .. } = policies;
        watched.retain(|slot, Watched { seen, sending: one }| {
            let live = engine.span(*slot);
            let name = live.and_then(|live| Some(&live.rare.passed.as_ref()?.service_class));
            let class = name.and_then(|name| classes.index(name));
            let open = live.filter(|live| live.end == 0);
            if *packets {
                one.class = class.unwrap_or(one.class);
                one.open = open.is_some() && class.is_some();
                sending.push(*one);
            }
            if let (true, Some(live), Some(class)) = (*ends, open, class) {
                requests.push(OpenRequest {
                    connection: ConnectionId {
                        cookie: live.cookie,
                        pid: live.pid,
                        ports: (live.endpoints.local_port, live.endpoints.peer_port),
                    },
                    class,
                    service: live.service,
                    since: live.start,
                    shared: live.multiplexed,
                });
            }
            if !*threads || class.is_some_and(|class| is_normal(classes, class)) {
                return open.is_some() && class.is_some();
            }
            if let (Some(live), Some(class)) = (open, class) {
                if let Some((tid, tgid)) = engine.serves_alone(*slot) {
                    *seen = Seen::Alone;
                    serving.push(Serving { tid, tgid, class, since: live.start });
                } else if *seen == Seen::Nothing {
                    *seen = Seen::Shared;
                }
                return true;
            }
            if let Some(unserved) = class.and_then(|class| unserved.get_mut(class)) {
                match seen {
                    Seen::Nothing => unserved.brief += 1,
                    Seen::Shared => unserved.shared_thread += 1,
                    Seen::Alone => {}
                }
            }
            false
        });
    }

    /// Threads made since last taken while such requests were open: maker, thread, its process.
    pub fn take_forks(&mut self) -> std::vec::Drain<'_, (u32, u32, u32)> {
        self.policies.forks.drain(..)
    }

    /// Requests that were never a thread's only one, by service class.
    pub fn unserved(&self) -> &[Unserved] {
        &self.policies.unserved
    }

    /// Whether requests whose threads may be changed are open, or were a moment ago: rings should be drained often.
    pub fn expects_service_classes(&self) -> bool {
        let policies = &self.policies;
        let lately = policies.latest != 0 && self.engine.now().saturating_sub(policies.latest) < EXPECTED;
        lately || !policies.watched.is_empty()
    }
}
