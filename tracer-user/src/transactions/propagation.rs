//! Context that propagates down a transaction besides its id: whether it is sampled, its `tracestate`, the baggage
//! members the operator chose, and its service class. A request takes it from its own headers, else from its parent, on
//! this host or (as the caller's agent reports) on another; a call takes it from the request that caused it.

use std::sync::Arc;

use tracer_common::inband_context::SAMPLED;

use super::engine::Engine;
use super::open_span::{OpenSpan, Slot};
use crate::model::{PropagatedContext, Side};
use crate::protocols::{Conventions, conventions};

impl Engine {
    /// Fills in what the span's own headers do not say from its parent. Repeated whenever more may be known.
    pub fn inherit(&mut self, slot: Slot) {
        let Some(live) = self.spans.get(slot) else { return };
        let of = |above: &OpenSpan| (above.sampled, above.passed.clone());
        let (sampled, passed) = match live.side {
            Side::Client => self.grade(live).0.and_then(|parent| self.spans.get(parent)).map(of),
            // It named another parent, which is unknown here.
            Side::Server if live.remote_parent.is_some() => None,
            Side::Server => {
                let here = live.caller.and_then(|(call, _)| self.spans.get(call)).map(of);
                here.or_else(|| {
                    let given = &live.relay.as_ref()?.given.as_ref()?.context;
                    Some((given.sampled, given.carried.clone()))
                })
            }
        }
        .unwrap_or_default();
        if sampled.is_none() && passed.is_none() {
            return;
        }
        let Some(live) = self.spans.get_mut(slot) else { return };
        live.sampled = live.named_sampled().or(sampled).or(live.sampled);
        live.passed = match (live.passed.take(), passed) {
            (Some(own), Some(above)) => Some(over(own, &above)),
            (own, above) => own.or(above),
        };
    }
}

/// Merges field by field: the span's own value wins over its parent's.
fn over(own: Arc<PropagatedContext>, above: &Arc<PropagatedContext>) -> Arc<PropagatedContext> {
    let adds = (own.state.is_empty() && !above.state.is_empty())
        || (own.baggage.is_empty() && !above.baggage.is_empty())
        || (own.service_class.is_empty() && !above.service_class.is_empty());
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
    if service_class.is_empty() {
        service_class.clone_from(&above.service_class);
    }
    Arc::new(PropagatedContext { state, baggage, service_class })
}

impl OpenSpan {
    /// The sampled flag of its own header. A message's context is its producer's.
    fn named_sampled(&self) -> Option<bool> {
        let own = self.side == Side::Server && conventions(self.protocol) != Conventions::Messaging;
        let context = self.request.traceparent.filter(|_| own)?;
        Some(context.flags & SAMPLED == SAMPLED)
    }

    /// Takes the span's own context when it begins.
    pub(super) fn begin_passing(&mut self) {
        self.passed = self.request.carried.take().map(Arc::from);
        let came = || self.inband.filter(|inband| self.side == Side::Server && inband.parent.is_some());
        self.sampled = self.named_sampled().or_else(|| came().map(|inband| inband.flags & SAMPLED == SAMPLED));
    }

    /// A rule of this host sets the service class, overriding the propagated one.
    pub fn set_service_class(&mut self, service_class: &Arc<str>) {
        let passed = self.passed.get_or_insert_default();
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
        for (own, above, expected) in [
            (("a=1", "", ""), ("b=2", "t", "gold"), ("a=1", "t", "gold")),
            (("", "own", ""), ("b=2", "t", ""), ("b=2", "own", "")),
            (("a=1", "own", "own"), ("b=2", "t", "gold"), ("a=1", "own", "own")),
            (("a=1", "", ""), ("", "", ""), ("a=1", "", "")),
        ] {
            let of = |(state, tenant, class)| carried(state, tenant, class);
            assert_eq!(over(of(own), &of(above)), of(expected));
        }
    }
}
