//! Context that propagates down a transaction besides its id: its trace flags, its `tracestate`, the baggage
//! members the operator chose, and its service class. A request takes it from its own headers, else from its parent, on
//! this host or (as the caller's agent reports) on another; a call takes it from the request that caused it.

use std::sync::Arc;

use tracer_model::{ClassId, DimensionValues, PropagatedContext, ServiceId, Side, TraceFlags};
use tracer_protocols::Conventions;
use tracer_protocols::context::Carrier;

use crate::engine::Engine;
use crate::open_span::OpenSpan;
use crate::slot::Slot;

impl Engine {
    /// Fills in what the span's own headers do not say from its parent. Repeated whenever more may be known.
    pub fn inherit(&mut self, slot: Slot) {
        let Some(live) = self.world.spans.get(slot) else { return };
        let of = |above: &OpenSpan| (above.rare.trace_flags, above.rare.passed.clone());
        let (trace_flags, passed) = match live.side {
            Side::Client => self.verdict(live).sure().and_then(|parent| self.world.spans.get(parent)).map(of),
            // It named another parent, which is unknown here.
            Side::Server if live.rare.remote_parent.is_some() => None,
            Side::Server => {
                let here = live.server.caller.and_then(|(call, _)| self.world.spans.get(call)).map(of);
                here.or_else(|| {
                    let given = &live.rare.relay.as_ref()?.given.as_ref()?.context;
                    Some((given.trace_flags, given.carried.clone()))
                })
            }
        }
        .unwrap_or_default();
        if trace_flags.is_none() && passed.is_none() {
            return;
        }
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        live.rare.trace_flags = live.named_flags().or(trace_flags).or(live.rare.trace_flags);
        live.rare.passed = match (live.rare.passed.take(), passed) {
            (Some(own), Some(above)) => Some(over(own, &above, live.rare.service_class_fixed)),
            (own, above) => own.or(above),
        };
    }

    /// The rules of this host give the request a service class, unless its context has one.
    pub fn set_ruled_class(&mut self, slot: Slot, service_class: &Arc<str>) {
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        let passed = live.rare.passed.get_or_insert_default();
        if passed.service_class.is_empty() {
            Arc::make_mut(passed).service_class = Arc::clone(service_class);
        }
    }

    /// Who calls, as far as known by now.
    pub fn caller_of(&self, slot: Slot) -> Option<Caller> {
        let live = self.world.spans.get(slot)?;
        if let Some(call) = live.server.caller.and_then(|(call, _)| self.world.spans.get(call)) {
            let request = self.verdict(call).sure().and_then(|parent| self.world.spans.get(parent));
            let class = request.and_then(|request| request.class);
            return Some(Caller { service: Some(call.service), remote: Arc::clone(&self.world.empty), class });
        }
        let given = &live.rare.relay.as_ref()?.given.as_ref()?.context;
        Some(Caller { service: None, remote: Arc::clone(&given.service), class: None })
    }

    /// Sets what a request has of the declared dimensions.
    pub fn set_dimensions(&mut self, slot: Slot, dimensions: DimensionValues) {
        if let Some(live) = self.world.spans.get_mut(slot) {
            live.has_dimensions(dimensions);
        }
    }

    /// What the request has that serves with the call that caused this one, on this host.
    pub fn dimensions_of_caller(&self, slot: Slot) -> DimensionValues {
        let live = self.world.spans.get(slot);
        let call = live.and_then(|live| self.world.spans.get(live.server.caller?.0));
        let request = call.and_then(|call| self.world.spans.get(self.verdict(call).sure()?));
        request.map(|request| request.rare.dimensions).unwrap_or_default()
    }

    /// Thread and process of an open request, if that thread certainly serves it and nothing else.
    pub fn serves_alone(&self, slot: Slot) -> Option<(u32, u32)> {
        let live =
            self.world.spans.get(slot).filter(|live| live.side == Side::Server && live.end == 0 && live.alone)?;
        // A task can go on on another thread.
        if live.read_as != 0 || live.multiplexed || self.world.processes.interleaving.contains(&live.pid) {
            return None;
        }
        let thread = self.world.threads.get(&live.tid)?;
        let alone = thread.tgid == live.pid && thread.died == 0 && thread.lap.is_none() && thread.open.len() == 1;
        (alone && thread.holder() == Some(slot)).then_some((live.tid, live.pid))
    }
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its service, on this host.
    pub service: Option<ServiceId>,
    /// Its service by name, on another host.
    pub remote: Arc<str>,
    /// Class of the request that it serves with this call, on this host.
    pub class: Option<ClassId>,
}

/// Merges field by field: the span's own value wins over its parent's. Of the service class only one that a rule for
/// the class fixes: it is decided at the first tier.
fn over(own: Arc<PropagatedContext>, above: &Arc<PropagatedContext>, fixed: bool) -> Arc<PropagatedContext> {
    let takes_class = !above.service_class.is_empty()
        && own.service_class != above.service_class
        && (own.service_class.is_empty() || !fixed);
    let adds = (own.state.is_empty() && !above.state.is_empty())
        || (own.baggage.is_empty() && !above.baggage.is_empty())
        || takes_class;
    if !adds {
        return own;
    }
    let PropagatedContext { mut state, mut baggage, mut service_class } = Arc::unwrap_or_clone(own);
    if state.is_empty() {
        state.clone_from(&above.state);
    }
    if baggage.is_empty() {
        baggage.clone_from(&above.baggage);
    }
    if takes_class {
        service_class.clone_from(&above.service_class);
    }
    Arc::new(PropagatedContext { state, baggage, service_class })
}

impl OpenSpan {
    /// The trace flags of its own header. A message's context is its producer's.
    fn named_flags(&self) -> Option<TraceFlags> {
        let own = self.side == Side::Server && self.protocol.conventions() != Conventions::Messaging;
        // A session's context is that of its upgrade, at both ends.
        let context = self.request.traceparent.filter(|context| own || context.carrier == Carrier::Session)?;
        Some(TraceFlags::new(context.flags))
    }

    /// Takes the span's own context when it begins.
    pub(super) fn begin_passing(&mut self) {
        if let Some(carried) = self.request.carried.take() {
            self.rare.passed = Some(Arc::from(carried));
        }
        let came = || self.rare.inband.filter(|inband| self.side == Side::Server && inband.parent.is_some());
        let flags = self.named_flags().or_else(|| came().map(|inband| TraceFlags::new(inband.flags)));
        if flags.is_some() {
            self.rare.trace_flags = flags;
        }
    }

    /// A rule of this host sets the service class, overriding the propagated one.
    pub fn set_service_class(&mut self, service_class: &Arc<str>) {
        self.rare.service_class_fixed = true;
        let passed = self.rare.passed.get_or_insert_default();
        if passed.service_class != *service_class {
            Arc::make_mut(passed).service_class = Arc::clone(service_class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_unit_says_itself_goes_first() {
        let carried = |state: &str, tenant: &str, class: &str| {
            let baggage = if tenant.is_empty() { Vec::new() } else { vec![("tenant".into(), tenant.into())] };
            Arc::new(PropagatedContext { state: state.into(), baggage, service_class: class.into() })
        };
        for (own, above, fixed, expected) in [
            (("a=1", "", ""), ("b=2", "t", "gold"), false, ("a=1", "t", "gold")),
            (("", "own", ""), ("b=2", "t", ""), false, ("b=2", "own", "")),
            (("a=1", "own", "own"), ("b=2", "t", "gold"), true, ("a=1", "own", "own")),
            // A rule decided before the context was known.
            (("a=1", "own", "own"), ("b=2", "t", "gold"), false, ("a=1", "own", "gold")),
            (("", "", "own"), ("", "", ""), false, ("", "", "own")),
            (("a=1", "", ""), ("", "", ""), false, ("a=1", "", "")),
        ] {
            let of = |(state, tenant, class)| carried(state, tenant, class);
            assert_eq!(over(of(own), &of(above), fixed), of(expected));
        }
    }
}
