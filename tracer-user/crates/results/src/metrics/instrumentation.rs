//! Graded instrumentation.

use prometheus::Gauge;
use tracer_policies::instrumentation::{Action, View};

use super::Metrics;
use super::families::{Families, vec};
use super::totals::Totals;

/// Its families.
#[derive(Debug)]
pub(super) struct InstrumentationFamilies {
    functions: Gauge,
    cost: Gauge,
    budget: Gauge,
    decisions: Totals,
}

impl InstrumentationFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let gauge = |name: &str, help: &str| vec(r, Gauge::new(name, help));
        Self {
            functions: gauge(
                "tracer_instrumented_functions",
                "Hotspots that are traced as functions without being declared.",
            ),
            cost: gauge(
                "tracer_instrumentation_cost_ratio",
                "CPU that their probes take, by their calls and what a probe costs on this host, divided by the CPU of the host.",
            ),
            budget: gauge(
                "tracer_instrumentation_budget_ratio",
                "CPU that their probes may take, divided by the CPU of the host; 0: hotspots are not instrumented.",
            ),
            decisions: Totals::new(
                r,
                "tracer_instrumentation_decisions_total",
                "Decisions about hotspots: added (it is traced from then on), removed, refused (it cannot be traced).",
                "action",
            ),
        }
    }
}

impl Metrics {
    /// What is instrumented.
    pub fn set_instrumentation(&self, view: &View) {
        let families = &self.instrumentation;
        families.functions.set(view.functions.iter().filter(|one| one.is_traced()).count() as f64);
        families.cost.set(view.cost);
        families.budget.set(view.budget);
        families.decisions.set_all(Action::ALL.iter().zip(view.counts).map(|(action, count)| (action.name(), count)));
    }
}
