//! What was charged since it was last taken: to classes, to services' overhead, and the same by process.

use tracer_model::{ClassId, Cost, ServiceId};

use super::process_costs::ProcessCosts;

/// Costs of classes and overhead of services since last taken.
pub(super) type ChargedCosts = (Vec<(u32, Cost)>, Vec<(ServiceId, Cost)>);

/// CPU and waiting that was charged. Ids are dense and bounded by the numbers of classes and services.
#[derive(Debug, Default)]
pub(super) struct Charges {
    classes: Vec<Cost>,
    overhead: Vec<Cost>,
    /// The same CPU by process.
    pub(super) processes: ProcessCosts,
}

impl Charges {
    /// A class is charged.
    pub(super) fn charge_class(&mut self, class: ClassId, cost: Cost) {
        add(&mut self.classes, class.0, cost);
    }

    /// A service is charged, and none of its classes.
    pub(super) fn charge_overhead(&mut self, service: ServiceId, cost: Cost) {
        add(&mut self.overhead, service.0, cost);
    }

    /// What was charged since last taken.
    pub(super) fn take(&mut self) -> ChargedCosts {
        let classes = taken(&mut self.classes);
        (classes, taken(&mut self.overhead).into_iter().map(|(i, cost)| (ServiceId(i), cost)).collect())
    }
}

/// Takes the costs that are not zero, each with its index.
fn taken(costs: &mut [Cost]) -> Vec<(u32, Cost)> {
    costs
        .iter_mut()
        .enumerate()
        .filter(|(_, cost)| **cost != Cost::default())
        .map(|(i, cost)| (i as u32, std::mem::take(cost)))
        .collect()
}

/// Adds to the element `index`, growing the list.
fn add(costs: &mut Vec<Cost>, index: u32, cost: Cost) {
    let index = index as usize;
    if costs.len() <= index {
        costs.resize(index + 1, Cost::default());
    }
    if let Some(sum) = costs.get_mut(index) {
        sum.add(cost);
    }
}

/// `a` − `b`, field by field, saturating.
pub(super) fn less(a: Cost, b: Cost) -> Cost {
    Cost {
        cpu: a.cpu.saturating_sub(b.cpu),
        runq: a.runq.saturating_sub(b.runq),
        blocked: a.blocked.saturating_sub(b.blocked),
        switches: a.switches.saturating_sub(b.switches),
    }
}

/// The smaller of both, field by field.
pub(super) fn least(a: Cost, b: Cost) -> Cost {
    Cost {
        cpu: a.cpu.min(b.cpu),
        runq: a.runq.min(b.runq),
        blocked: a.blocked.min(b.blocked),
        switches: a.switches.min(b.switches),
    }
}
