//! Rows of a window that other parts of the pipeline know: callers and callees, what service classes reached, and findings.

use std::sync::Arc;

use tracer_model::text::printable;
use tracer_model::{ProtocolId, Side};
use tracer_results::analysis::announced::FindingEvent;
use tracer_results::analysis::finding::Finding;
use tracer_results::analysis::window::Window;
use tracer_results::history::rows::{EdgeRow, FindingRow, GoalRow, Seconds};
use tracer_results::metrics::{GoalKey, GoalSums};
use tracer_transactions::roots::{Callee, Caller, EdgeKey, EdgeSums, ExternalPeer, RowRoot};

use super::Pipeline;

/// What had no room for a name of its own.
const OTHER: &str = "_other";

fn seconds(nanos: i64) -> Seconds {
    Seconds(nanos as f64 / 1e9)
}

/// Names of the other end of an edge; empty: not known, or it has none.
#[derive(Debug, Default)]
struct EndNames {
    host: Arc<str>,
    service: Arc<str>,
    class: Arc<str>,
    address: Arc<str>,
}

impl EndNames {
    fn of_peer(peer: ExternalPeer) -> Self {
        match peer {
            ExternalPeer::Remote(host, service) => Self { host, service, ..Self::default() },
            ExternalPeer::Address(address, port) => Self { address: address_name(&address, port), ..Self::default() },
            ExternalPeer::Other => Self { address: OTHER.into(), ..Self::default() },
        }
    }
}

/// An address as the API shows it.
fn address_name(address: &str, port: u16) -> Arc<str> {
    match (address.is_empty(), port) {
        (true, 0) => "unix socket".into(),
        (true, _) => format!("port {port}").into(),
        (false, _) => format!("{}:{port}", printable(address)).into(),
    }
}

impl Pipeline {
    /// From here on every window also becomes rows for files. `host` is the host's name.
    pub fn collect_rows(&mut self, host: &str) {
        self.history.collect_rows(host);
        self.roots.collect_edges();
        self.attainment.collect_windows();
    }

    /// The first window begins: what was counted before it is in none.
    pub(super) fn begin_windows(&mut self) {
        self.roots.take_edges();
        self.attainment.take_window();
    }

    /// Adds the rows of a window that has just ended.
    pub(super) fn add_window_rows(&mut self, window: &Window) {
        let (edges, goals) = (self.roots.take_edges(), self.attainment.take_window());
        let Some(host) = self.history.rows_of() else { return };
        let (start_ns, length_s) = (window.start_ns, window.length_s);
        let edges = edges.iter().filter_map(|(key, sums)| {
            let row = self.edge_row(*key, sums)?;
            Some(EdgeRow { start_ns, length_s, host: Arc::clone(&host), ..row })
        });
        let edges = edges.collect();
        let goals = goals.iter().map(|(key, sums)| {
            let row = self.goal_row(key, sums);
            GoalRow { start_ns, length_s, host: Arc::clone(&host), ..row }
        });
        let goals = goals.collect();
        self.history.add_rows(edges, goals);
    }

    /// Adds the findings that were published or ended with a window that has just ended. Findings of earlier runs have their rows.
    pub(super) fn add_finding_rows(&mut self, window: &Window) {
        let Some(host) = self.history.rows_of() else { return };
        let mut rows = Vec::new();
        self.findings_kept.news(self.detector.own_findings(), |event, finding| {
            rows.extend(finding_rows(event, finding).map(|row| FindingRow {
                start_ns: window.start_ns,
                length_s: window.length_s,
                host: Arc::clone(&host),
                ..row
            }));
            true
        });
        self.history.add_findings(rows);
    }

    /// Declared calls are parts of requests, which have rows: they have none, as in the table of classes.
    fn edge_row(&self, key: EdgeKey, sums: &EdgeSums) -> Option<EdgeRow> {
        let info = self.names.class(key.class).filter(|info| info.protocol != ProtocolId::Declared)?;
        let caller = self.caller_names(key.caller);
        let callee = self.callee_names(key.callee);
        let (root, names) = match key.root.map(|root| self.roots.root(root)) {
            None | Some(RowRoot::Open) => ("open", None),
            Some(RowRoot::Class(service, class)) => ("class", Some((service, class))),
            Some(RowRoot::Unknown) => ("unknown", None),
            Some(RowRoot::Other) => ("other", None),
        };
        let (root_service, root_class) = names.unwrap_or_default();
        let is_call = info.side == Side::Client;
        Some(EdgeRow {
            service_name: Arc::clone(&info.service_name),
            request_class: Arc::clone(&info.name),
            side: info.side.name().into(),
            protocol: info.protocol.name().into(),
            // Calls are this service's, also where the request that made them is not known.
            caller_service: if is_call && key.root.is_some() { Arc::clone(&info.service_name) } else { caller.service },
            caller_class: caller.class,
            callee_service: callee.service,
            peer_host: if is_call { callee.host } else { caller.host },
            peer: callee.address,
            root: root.into(),
            root_service,
            root_class,
            count: sums.count,
            root_count: sums.first,
            errors: sums.errors,
            duration_s: seconds(sums.duration),
            queue_s: seconds(sums.queue),
            cpu_s: seconds(sums.cpu),
            runqueue_s: seconds(sums.runqueue),
            blocked_s: seconds(sums.blocked),
            downstream_s: seconds(sums.downstream),
            ..EdgeRow::default()
        })
    }

    fn caller_names(&self, caller: Caller) -> EndNames {
        match caller {
            Caller::Unknown => EndNames::default(),
            Caller::Request(class) => self.names.class(class).map_or_else(EndNames::default, |info| EndNames {
                service: Arc::clone(&info.service_name),
                class: Arc::clone(&info.name),
                ..EndNames::default()
            }),
            Caller::Program(class) => self.names.class(class).map_or_else(EndNames::default, |info| EndNames {
                service: Arc::clone(&info.service_name),
                ..EndNames::default()
            }),
            Caller::Remote(peer) => EndNames::of_peer(self.roots.external_peer(peer)),
            Caller::Other => EndNames { service: OTHER.into(), ..EndNames::default() },
        }
    }

    fn callee_names(&self, callee: Callee) -> EndNames {
        match callee {
            Callee::Unknown => EndNames::default(),
            Callee::Service(service) => EndNames { service: self.names.service(service), ..EndNames::default() },
            Callee::External(peer) => EndNames::of_peer(self.roots.external_peer(peer)),
        }
    }

    fn goal_row(&self, key: &GoalKey, sums: &GoalSums) -> GoalRow {
        let reached = sums.reached(key.goal);
        GoalRow {
            service_class: Arc::clone(&key.class),
            service_name: self.names.service(key.service),
            importance: u64::from(key.importance),
            goal: key.goal.name().into(),
            goal_s: key.goal.time().map_or(0.0, |time| time.as_secs_f64()),
            count: sums.count,
            errors: sums.errors,
            unfinished: sums.unfinished,
            attained: sums.attained,
            missed: sums.missed,
            response_s: sums.response as f64 / 1e9,
            cpu_s: sums.cpu as f64 / 1e9,
            windows_attained: u64::from(reached == Some(true)),
            windows_missed: u64::from(reached == Some(false)),
            ..GoalRow::default()
        }
    }
}

/// A row for each class that a finding names; one, without a class, where it names none.
fn finding_rows(event: FindingEvent, finding: &Finding) -> impl Iterator<Item = FindingRow> {
    let row = FindingRow {
        id: finding.id,
        event: event.name().into(),
        finding: finding.kind.name().into(),
        service_name: finding.service_name.as_str().into(),
        resource: finding.resource.into(),
        cause: finding.cause.words().into(),
        since_ns: finding.since_ns,
        until_ns: finding.until_ns.unwrap_or(0),
        found_ns: finding.opened_ns,
        change_ratio: finding.change_ratio,
        confidence: finding.confidence,
        ..FindingRow::default()
    };
    let names = finding.request_classes.iter().map(String::as_str);
    let none = finding.request_classes.is_empty().then_some("");
    names.chain(none).map(move |name| FindingRow { request_class: name.into(), ..row.clone() })
}
