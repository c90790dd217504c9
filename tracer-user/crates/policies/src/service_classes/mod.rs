//! Service classes: which policy a request gets, the CPU priority of the thread that serves it, and the network priority
//! of its reply.
//!
//! [`ServiceClasses`] says which class a request has. [`decision`] decides, purely, which threads run at another
//! priority and for how long; [`lever`] changes them on a thread of its own and owns every change; [`journal`] lets the
//! next start undo what a killed agent left. [`feedback`] decides, purely, how far classes are lowered so that more
//! important ones reach their goals. [`network`] decides, purely, which connections send with another priority. [`limits`]
//! decides, purely, which requests are ended, and [`reset`] resets their connections.

pub mod decision;
pub mod feedback;
pub mod hours;
pub mod journal;
pub mod lever;
pub mod limits;
pub mod network;
pub mod reset;
pub mod thread_priority;

use std::sync::Arc;
use std::time::Duration;

use hours::WeeklyHours;
use tracer_transactions::classes::rules::{Glob, HeaderMatch};

/// Most service classes.
pub const CLASSES_MAX: usize = 32;
/// Most rules of all service classes.
pub const RULES_MAX: usize = 256;

/// What a service class should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// 99 % of its requests take at most this long.
    P99(Duration),
    /// 95 % of them do.
    P95(Duration),
    /// They take this long on average.
    Mean(Duration),
    /// Whatever is left over: nothing is promised.
    Discretionary,
}

impl Goal {
    /// Its key in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::P99(_) => "p99",
            Self::P95(_) => "p95",
            Self::Mean(_) => "mean",
            Self::Discretionary => "discretionary",
        }
    }

    /// The response time to reach; `None` if nothing is promised.
    pub fn time(self) -> Option<Duration> {
        match self {
            Self::P99(time) | Self::P95(time) | Self::Mean(time) => Some(time),
            Self::Discretionary => None,
        }
    }
}

/// Priority of what serves a class: its threads, or the packets of its replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Below what the application asked for.
    Low,
    /// As the application asked for: nothing is changed.
    #[default]
    Normal,
    /// Above it.
    High,
}

impl Priority {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// One service class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceClass {
    /// Its name.
    pub name: Arc<str>,
    /// 1 is the most important.
    pub importance: u32,
    /// What it should reach.
    pub goal: Goal,
    /// CPU priority of the threads that serve it.
    pub cpu: Priority,
    /// Between normal and low, as more important classes need it ([`feedback`]); `cpu` is normal then.
    pub auto: bool,
    /// Priority of the packets that its replies are sent with.
    pub network: Priority,
    /// Beyond which its requests are ended.
    pub limits: limits::RequestLimits,
    /// `FILE:LINE` of its name.
    pub place: Box<str>,
}

impl ServiceClass {
    /// Whether threads that serve it may get another priority.
    pub fn changes_threads(&self) -> bool {
        self.auto || self.cpu != Priority::Normal
    }

    /// CPU priority as the configuration names it.
    pub fn cpu_name(&self) -> &'static str {
        if self.auto { "auto" } else { self.cpu.name() }
    }
}

/// One rule: every given condition must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Index of its class.
    pub class: usize,
    /// Service that serves the request.
    pub service: Option<Glob>,
    /// Request class.
    pub request_class: Option<Glob>,
    /// Host the request names.
    pub host: Option<Glob>,
    /// Service of the caller, on this host or, through the relay, on another.
    pub caller: Option<Glob>,
    /// Request class that the caller serves with this call, on this host.
    pub caller_class: Option<Glob>,
    /// User of a call of a declared function.
    pub user: Option<Glob>,
    /// A header of the request.
    pub header: Option<HeaderMatch>,
    /// When it begins, local time.
    pub time: Option<WeeklyHours>,
    /// `FILE:LINE` where it begins.
    pub place: Box<str>,
}

/// What rules look at. Empty caller: not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// Service that serves the request.
    pub service: &'a str,
    /// Its request class; before its answer the provisional one.
    pub request_class: &'a str,
    /// Host it names, where known.
    pub host: Option<&'a str>,
    /// Service of the caller.
    pub caller: Option<&'a str>,
    /// Request class that the caller serves.
    pub caller_class: Option<&'a str>,
    /// Its user, where it is a call of a declared function that says so.
    pub user: Option<&'a str>,
    /// Values of headers, by index in `header_names`.
    pub headers: &'a [(u16, Box<str>)],
    /// Names of headers that rules look at, lower case.
    pub header_names: &'a [Box<str>],
    /// When it began: the minute of the week, from Monday 00:00 local time, where a rule wants it.
    pub minute: Option<u16>,
}

impl Rule {
    fn names(&self) -> [Option<&Glob>; 6] {
        let Self { service, request_class, host, caller, caller_class, user, .. } = self;
        [service, request_class, host, caller, caller_class, user].map(Option::as_ref)
    }

    fn fits(&self, facts: &Facts<'_>) -> bool {
        let Facts { service, request_class, host, caller, caller_class, user, headers, header_names, minute } = *facts;
        let given = [Some(service), Some(request_class), host, caller, caller_class, user];
        let mut both = self.names().into_iter().zip(given);
        both.all(|(wanted, given)| wanted.is_none_or(|wanted| given.is_some_and(|given| wanted.fits(given))))
            && self.header.as_ref().is_none_or(|header| header.fits(headers, header_names))
            && self.time.is_none_or(|time| minute.is_some_and(|minute| time.contain(minute)))
    }

    /// Whether no condition is given.
    pub fn is_empty(&self) -> bool {
        self.names().iter().all(Option::is_none) && self.header.is_none() && self.time.is_none()
    }

    /// Whether it certainly matches every request that `later` matches, so that `later` never decides.
    pub fn covers(&self, later: &Self) -> bool {
        let mut both = self.names().into_iter().zip(later.names());
        both.all(|(own, later)| own.is_none() || own == later)
            && (self.header.is_none() || self.header == later.header)
            && self.time.is_none_or(|time| later.time.is_some_and(|later| time.cover(later)))
    }
}

/// All service classes of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceClasses {
    /// In the order of the file.
    pub classes: Vec<ServiceClass>,
    /// In the order of the file: the first that matches decides.
    pub rules: Vec<Rule>,
}

impl ServiceClasses {
    /// Whether none is configured.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Index of the class of this name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|class| *class.name == *name)
    }

    /// Index of the class that the first matching rule gives.
    pub fn decide(&self, facts: &Facts<'_>) -> Option<usize> {
        self.rules.iter().find(|rule| rule.fits(facts)).map(|rule| rule.class)
    }

    /// Whether a rule looks at the host that requests name.
    pub fn wants_host(&self) -> bool {
        self.rules.iter().any(|rule| rule.host.is_some())
    }

    /// Names of the headers that rules look at, lower case.
    pub fn header_names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter_map(|rule| rule.header.as_ref()).map(|header| &*header.name)
    }

    /// Whether a rule looks at the time.
    pub fn wants_time(&self) -> bool {
        self.rules.iter().any(|rule| rule.time.is_some())
    }

    /// Whether a rule looks at request classes.
    pub fn wants_request_class(&self) -> bool {
        self.rules.iter().any(|rule| rule.request_class.is_some())
    }

    /// Whether a class changes priorities of threads.
    pub fn changes_priorities(&self) -> bool {
        self.classes.iter().any(ServiceClass::changes_threads)
    }

    /// Whether requests of a class may be ended.
    pub fn ends_requests(&self) -> bool {
        self.classes.iter().any(|class| !class.limits.is_empty())
    }

    /// Whether a class changes priorities of packets.
    pub fn changes_network(&self) -> bool {
        self.classes.iter().any(|class| class.network != Priority::Normal)
    }
}

/// Whether priorities are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Nothing is decided or changed; goals are still measured.
    Off,
    /// Everything is decided and counted, nothing is changed.
    #[default]
    DryRun,
    /// Priorities are changed.
    On,
}

impl Mode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::DryRun => "dry-run",
            Self::On => "on",
        }
    }
}

/// What is done for service classes.
#[derive(Clone, Debug, Default)]
pub struct Enforcement {
    /// Whether priorities are changed.
    pub mode: Mode,
    /// Threads whose priority is changed now; in a dry run, would be.
    pub threads: u64,
    /// Connections whose packets have another priority now; in a dry run, would have.
    pub connections: u64,
    /// By service class.
    pub actions: Vec<lever::Actions>,
    /// By service class.
    pub network: Vec<network::NetworkActions>,
    /// By service class.
    pub feedback: Vec<feedback::FeedbackActions>,
    /// By service class.
    pub ends: Vec<reset::EndActions>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(class: usize, service: Option<&str>, request_class: Option<&str>) -> Rule {
        Rule { class, service: service.map(Glob::new), request_class: request_class.map(Glob::new), ..Rule::default() }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let classes = ServiceClasses {
            classes: Vec::new(),
            rules: vec![
                rule(0, Some("shop"), Some("GET /gold*")),
                Rule { caller: Some(Glob::new("front")), ..rule(1, None, None) },
                rule(2, Some("*"), None),
            ],
        };
        let facts = |service, request_class, caller| Facts { service, request_class, caller, ..Facts::default() };
        for (facts, expected) in [
            (facts("shop", "GET /gold/{id}", None), 0),
            (facts("shop", "GET /lead", Some("front")), 1),
            (facts("shop", "GET /lead", Some("batch")), 2),
            (facts("shop", "GET /lead", None), 2),
            (facts("other", "GET /gold", None), 2),
        ] {
            assert_eq!(classes.decide(&facts), Some(expected), "{facts:?}");
        }
    }

    #[test]
    fn headers_users_and_times_decide() {
        let header = |value: &str| Some(HeaderMatch { name: "x-plan".into(), value: Glob::new(value) });
        let classes = ServiceClasses {
            classes: Vec::new(),
            rules: vec![
                Rule { header: header("gold*"), ..rule(0, Some("shop"), None) },
                Rule { user: Some(Glob::new("ann")), ..rule(1, None, None) },
                Rule { time: Some(WeeklyHours::parse("mon 08:00-10:00").unwrap()), ..rule(2, None, None) },
            ],
        };
        let names: [Box<str>; 2] = ["host".into(), "x-plan".into()];
        let facts = |header, user, minute| Facts {
            service: "shop",
            headers: header,
            header_names: &names,
            user,
            minute,
            ..Facts::default()
        };
        let plan = |value: &str| [(1u16, Box::from(value))];
        for (facts, expected) in [
            (facts(&plan("gold-1"), None, None), Some(0)),
            (facts(&plan("iron"), None, None), None),
            (facts(&[(0, "gold".into())], None, None), None),
            (facts(&[], Some("ann"), None), Some(1)),
            (facts(&[], Some("bob"), Some(8 * 60)), Some(2)),
            (facts(&[], None, Some(10 * 60)), None),
        ] {
            assert_eq!(classes.decide(&facts), expected, "{facts:?}");
        }
        assert!(classes.wants_time() && classes.header_names().eq(["x-plan"]));
        // An earlier rule with another header or fewer hours does not cover a later one.
        let [first, _, timed] = &classes.rules[..] else { panic!() };
        assert!(!first.covers(&Rule { header: header("*"), ..first.clone() }) && first.covers(first));
        assert!(!timed.covers(&rule(0, None, None)) && rule(0, None, None).covers(timed));
    }

    #[test]
    fn rules_behind_wider_ones_never_decide() {
        let gold = rule(0, Some("shop"), Some("GET /gold"));
        for (first, later, covers) in [
            (rule(0, Some("shop"), None), gold.clone(), true),
            (gold.clone(), gold.clone(), true),
            (gold.clone(), rule(1, Some("shop"), None), false),
            (rule(0, Some("other"), None), gold, false),
        ] {
            assert_eq!(first.covers(&later), covers, "{first:?} {later:?}");
        }
    }
}
