//! What the detector says.

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// Something deviates, and no lasting change of code, load or host explains it.
    Anomaly,
    /// Requests of a class cost more or less than before.
    ApplicationChange,
    /// Other requests, or another number of them. No alarm.
    WorkloadChange,
    /// Something outside the services: a foreign process, stolen CPU, a slower clock, a slower callee.
    Environment,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Anomaly, Self::ApplicationChange, Self::WorkloadChange, Self::Environment];

    /// As the API and metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anomaly => "anomaly",
            Self::ApplicationChange => "application_change",
            Self::WorkloadChange => "workload_change",
            Self::Environment => "environment",
        }
    }
}

/// Why the detector believes it, beyond the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Nothing more is known.
    #[default]
    None,
    /// A program, command line or script changed just before.
    NewBuild,
    /// Requests make another number of calls.
    Calls,
    /// A process outside the traced services uses CPU.
    ForeignProcess,
    /// The hypervisor takes CPU.
    Steal,
    /// One factor for all services of the host.
    WholeHost,
    /// All classes of the service moved alike.
    AllClasses,
    /// CPU went from classes to what belongs to no request.
    Unattributed,
    /// CPU outside any request grows with these requests.
    Regression,
    /// CPU of the service outside any request grew.
    Overhead,
    /// The number of requests changed.
    Load,
    /// The shares of the classes changed.
    Mix,
    /// The payload of requests changed.
    Payload,
    /// A class that was not there before.
    NewClass,
}

impl Cause {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "",
            Self::NewBuild => "since a new build or configuration",
            Self::Calls => "requests make another number of calls",
            Self::ForeignProcess => "a process that serves no traced requests uses CPU",
            Self::Steal => "the hypervisor takes CPU",
            Self::WholeHost => "one factor for all services of the host",
            Self::AllClasses => "all classes of the service alike",
            Self::Unattributed => "their CPU is now among what belongs to no request",
            Self::Regression => "CPU outside any request grows with them: unattributed work",
            Self::Overhead => "CPU of the service outside any request grew",
            Self::Load => "the number of requests changed",
            Self::Mix => "the shares of the request classes changed",
            Self::Payload => "the size of requests changed",
            Self::NewClass => "a new request class",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Counts up from 1.
    pub id: u64,
    /// What changed.
    pub kind: FindingKind,
    /// Where; empty: the whole host.
    pub service_name: String,
    /// Classes that changed; empty: all.
    pub request_classes: Vec<String>,
    /// `cpu`, `blocked`, `downstream`, `queue`, `load`, `attribution` or `environment`.
    pub resource: &'static str,
    /// The more precise cause.
    pub cause: Cause,
    /// Start of the first changed window, nanoseconds since the epoch.
    pub since_ns: u64,
    /// End of the last; `None` while it lasts.
    pub until_ns: Option<u64>,
    /// End of the window in which it was found.
    pub opened_ns: u64,
    /// Cost after ÷ cost before.
    pub change_ratio: f64,
    /// 0 to 1.
    pub confidence: f64,
    /// Window numbers of `since_ns`, of its publication and of `until_ns`.
    pub(super) since: usize,
    pub(super) opened: usize,
    pub(super) until: Option<usize>,
}

impl Finding {
    /// As the API and the webhook give it.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "id": self.id,
            "kind": self.kind.name(),
            "service_name": self.service_name,
            "request_classes": self.request_classes,
            "since_ns": self.since_ns,
            "until_ns": self.until_ns,
            "found_ns": self.opened_ns,
            "change_ratio": self.change_ratio,
            "resource": self.resource,
            "cause": self.cause.words(),
            "confidence": self.confidence,
            "summary": self.summary(),
        })
    }

    /// One for the tests of every crate.
    pub fn example(id: u64, kind: FindingKind, until_ns: Option<u64>) -> Self {
        Self {
            id,
            kind,
            service_name: "shop".into(),
            request_classes: vec!["GET /".into()],
            resource: "cpu",
            cause: Cause::NewBuild,
            since_ns: 1,
            until_ns,
            opened_ns: 2,
            change_ratio: 1.5,
            confidence: 0.9,
            since: 1,
            opened: 2,
            until: None,
        }
    }

    /// One sentence for people.
    pub fn summary(&self) -> String {
        let what = match self.resource {
            "cpu" => "CPU per request",
            "blocked" => "blocked time per request",
            "downstream" if self.cause == Cause::Calls => "calls per request",
            "downstream" => "time per downstream call",
            "queue" => "queueing time per request",
            "load" => "expected CPU",
            "attribution" => "attributed CPU per request",
            _ => "CPU of others",
        };
        let where_ = match (self.service_name.as_str(), self.request_classes.as_slice()) {
            ("", _) => "this host".to_owned(),
            (service, []) => service.to_owned(),
            (service, [one]) => format!("{service} {one}"),
            (service, [one, rest @ ..]) => format!("{service} {one} and {} more", rest.len()),
        };
        let times = match self.change_ratio {
            ratio if (ratio - 1.0).abs() < 1e-9 => String::new(),
            ratio => format!(" ×{ratio:.2}"),
        };
        let why = self.cause.words();
        let dash = if why.is_empty() { "" } else { ": " };
        format!("{where_}: {what}{times}{dash}{why}")
    }
}
