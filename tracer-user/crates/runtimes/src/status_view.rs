//! The runtimes of a service's processes as the service's page and the API show them.

use std::collections::BTreeMap;

use serde::Serialize;
use tracer_common::runtime::KIND_TOKIO;
use tracer_model::ServiceId;

use super::{DetectionState, Found};

/// Most different runtimes shown for all services together; more would only be further versions.
const MOST: usize = 512;

/// Whether the agent sees which task wakes which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakesSeen {
    /// No.
    No,
    /// Yes.
    Yes,
    /// No: calls have no parent without, but it would cost the process too much.
    TooCostly,
}

impl WakesSeen {
    /// Label value of `tracer_runtime_wakes_processes{state}`, and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::No => "unwatched",
            Self::Yes => "watched",
            Self::TooCostly => "too_costly",
        }
    }

    /// What it means, for people; empty where there is nothing to be said.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::No => "",
            Self::Yes => "which task wakes which is seen, too",
            Self::TooCostly => {
                "many of its calls have no parent, and to see which task wakes which would cost more than a tenth of its CPU \
                 (tokio_wakers or go_ready = true does so all the same)"
            }
        }
    }
}

/// The detection result of one process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DetectedRuntime {
    /// The runtime's name.
    pub name: &'static str,
    /// Its version, if known.
    pub version: Box<str>,
    /// Whether its tasks can be distinguished.
    pub state: DetectionState,
    /// Whether the agent sees which task wakes which.
    pub wakes: WakesSeen,
}

impl DetectedRuntime {
    /// The view of a detection result.
    pub fn of(found: &Found) -> Self {
        // tokio: only if the probes of all wakers are attached.
        let all = found.runtime.kind != KIND_TOKIO || found.runtime.at.get(1).is_some_and(|watched| *watched != 0);
        let wakes = if !found.extra.is_empty() && all { WakesSeen::Yes } else { WakesSeen::No };
        Self { name: found.name, version: found.version.as_str().into(), state: found.state, wakes }
    }
}

/// A runtime of a service's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuntimeStatus {
    /// The service; not part of the API.
    #[serde(skip)]
    pub service: ServiceId,
    /// The runtime's name, as in `tracer_runtime_processes{runtime}`.
    pub name: &'static str,
    /// Its version; empty if not known.
    pub version: Box<str>,
    /// As in `tracer_runtime_processes{state}`.
    pub state: &'static str,
    /// What the state means.
    pub meaning: &'static str,
    /// Whether the agent sees which task wakes which.
    pub wakes: bool,
    /// The same, and why not, as in `tracer_runtime_wakes_processes{state}`.
    pub wakes_state: &'static str,
    /// What that means; may be empty.
    pub wakes_meaning: &'static str,
    /// Number of processes.
    pub processes: u64,
}

/// The runtimes of processes, counted by service.
pub fn statuses<'a>(known: impl Iterator<Item = (ServiceId, &'a DetectedRuntime)>) -> Vec<RuntimeStatus> {
    let mut counts: BTreeMap<(u32, &DetectedRuntime), u64> = BTreeMap::new();
    for (service, known) in known {
        if counts.len() < MOST || counts.contains_key(&(service.0, known)) {
            *counts.entry((service.0, known)).or_default() += 1;
        }
    }
    let one = |((service, known), processes): ((u32, &DetectedRuntime), u64)| RuntimeStatus {
        service: ServiceId(service),
        name: known.name,
        version: known.version.clone(),
        state: known.state.name(),
        meaning: known.state.meaning(),
        wakes: known.wakes == WakesSeen::Yes,
        wakes_state: known.wakes.name(),
        wakes_meaning: known.wakes.meaning(),
        processes,
    };
    counts.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_service_are_counted_by_what_runs_in_them() {
        let known = |name, state| DetectedRuntime { name, version: "1".into(), state, wakes: WakesSeen::No };
        let (go, old) = (known("go", DetectionState::Known), known("go", DetectionState::UnknownVersion));
        let of = [(1, &go), (0, &go), (1, &old), (1, &go)];
        let statuses = statuses(of.into_iter().map(|(service, known)| (ServiceId(service), known)));
        let short: Vec<_> = statuses.iter().map(|one| (one.service.0, one.state, one.processes)).collect();
        assert_eq!(short, [(0, "known", 1), (1, "known", 2), (1, "unknown_version", 1)]);
    }

    #[test]
    fn there_is_a_limit() {
        let many: Vec<DetectedRuntime> = (0..2 * MOST)
            .map(|n| DetectedRuntime {
                name: "go",
                version: n.to_string().into(),
                state: DetectionState::Known,
                wakes: WakesSeen::No,
            })
            .collect();
        assert_eq!(statuses(many.iter().map(|known| (ServiceId(0), known))).len(), MOST);
    }
}
