//! Callers and callees on all hosts, for the map of services and for lists.
//!
//! An edge between two traced ends is in the rows of the end that serves, whichever host the caller is on; one that leads to
//! something that is not traced is in the rows of the calls.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tracer_results::history::layout;
use tracer_results::history::rows::EdgeRow;

use super::STEP_S;

/// Edges of all hosts together; those beyond it are counted.
pub(super) const EDGES: usize = 5000;
/// What the history calls callers and addresses without names of their own.
const OTHER: &str = "_other";

/// Both ends of an edge; empty: not known. Services have their host before them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EdgeName {
    caller: String,
    caller_class: String,
    call_class: String,
    protocol: String,
    callee: String,
    callee_class: String,
    peer: String,
}

impl EdgeName {
    /// The edge that a row of `host` is a part of, if it is one by itself.
    pub(super) fn of(host: &str, row: &EdgeRow) -> Option<Self> {
        let on = |host: &str, service: &str| format!("{host}/{service}");
        let names = |caller: String, callee: (&str, &str), peer: &str| Self {
            caller,
            caller_class: row.caller_class.to_string(),
            call_class: row.request_class.to_string(),
            protocol: row.protocol.to_string(),
            callee: callee.0.to_owned(),
            callee_class: callee.1.to_owned(),
            peer: peer.to_owned(),
        };
        let is_named = |name: &str| !name.is_empty() && name != OTHER;
        if &*row.side == "server" {
            let caller = Some(&*row.caller_service).filter(|caller| is_named(caller))?;
            // Named as its agent names it; hosts here are named as their files are.
            let caller_host =
                if row.peer_host.is_empty() { host.to_owned() } else { layout::host_part(&row.peer_host) };
            let callee = on(host, &row.service_name);
            return Some(names(on(&caller_host, caller), (&callee, &row.request_class), ""));
        }
        let is_outside = row.callee_service.is_empty() && row.peer_host.is_empty() && is_named(&row.peer);
        is_outside.then(|| names(on(host, &row.service_name), ("", ""), &row.peer))
    }
}

/// Calls along an edge.
#[derive(Debug, Default)]
pub(super) struct EdgeFigures {
    calls: u64,
    errors: u64,
    duration_s: f64,
    /// Number of the newest step with calls, these, and those of the step before.
    step: u64,
    in_step: u64,
    before: u64,
}

impl EdgeFigures {
    pub(super) fn add(&mut self, row: &EdgeRow) {
        let count = u64::try_from(row.count).unwrap_or(0);
        let step = row.start_ns / 1_000_000_000 / STEP_S;
        if step != self.step {
            self.before = if step == self.step + 1 { self.in_step } else { 0 };
            (self.step, self.in_step) = (step, 0);
        }
        self.in_step += count;
        self.calls += count;
        self.errors += u64::try_from(row.errors).unwrap_or(0);
        self.duration_s += row.duration_s.0;
    }

    /// Calls a second in the last step of the host's that is over; of the first one before it is, as of classes.
    fn rate_per_s(&self, newest_step: u64) -> f64 {
        let count = match newest_step.checked_sub(self.step) {
            Some(0) if self.calls == self.in_step => self.in_step,
            Some(0) => self.before,
            Some(1) => self.in_step,
            _ => 0,
        };
        count as f64 / STEP_S as f64
    }
}

/// Those of one host's rows.
pub(super) type HostEdges = BTreeMap<EdgeName, EdgeFigures>;

/// `GET /api/v1/edges` of hosts with their newest step, the most calls first; only those of `service`, if that is given.
pub(super) fn edges<'a>(hosts: impl Iterator<Item = (&'a HostEdges, u64)>, service: Option<&str>) -> Value {
    let mut rows: Vec<(u64, Value)> = Vec::new();
    for (edges, newest_step) in hosts {
        let of = |name: &EdgeName| service.is_none_or(|service| name.caller == service || name.callee == service);
        rows.extend(edges.iter().filter(|(name, _)| of(name)).map(|(name, figures)| {
            let or_null = |text: &String| (!text.is_empty()).then(|| text.clone());
            let row = json!({
                "caller_service": name.caller, "caller_class": or_null(&name.caller_class),
                "call_class": name.call_class, "protocol": name.protocol,
                "callee_service": or_null(&name.callee), "callee_class": or_null(&name.callee_class),
                "peer": or_null(&name.peer), "calls": figures.calls, "errors": figures.errors,
                "mean_s": (figures.calls > 0).then(|| figures.duration_s / figures.calls as f64),
                "rate_per_s": figures.rate_per_s(newest_step),
            });
            (figures.calls, row)
        }));
    }
    rows.sort_by_key(|(calls, _)| std::cmp::Reverse(*calls));
    json!({ "edges": rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>(), "next_cursor": null })
}
