//! What comes down a transaction beside its name: whether it is sampled, its `tracestate`, members of its baggage that the
//! operator chose, and its service class. A request has it from its own headers, else from its parent, on this host or, as the
//! caller's agent says, on another; a call has it from the request that caused it.

use std::sync::Arc;

use tracer_common::tag::SAMPLED;

use super::engine::Engine;
use super::live::{Live, Slot};
use crate::model::{Carried, Side};
use crate::protocols::{Conventions, conventions};

impl Engine {
    /// A unit takes over what its parent has, as far as it says nothing itself. Again whenever more may be known.
    pub fn inherit(&mut self, slot: Slot) {
        let Some(live) = self.units.get(slot) else { return };
        let of = |above: &Live| (above.sampled, above.passed.clone());
        let (sampled, passed) = match live.side {
            Side::Client => self.grade(live).0.and_then(|parent| self.units.get(parent)).map(of),
            // It named another parent, which is not known here.
            Side::Server if live.remote_parent.is_some() => None,
            Side::Server => {
                let here = live.caller.and_then(|(call, _)| self.units.get(call)).map(of);
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
        let Some(live) = self.units.get_mut(slot) else { return };
        live.sampled = live.named_sampled().or(sampled).or(live.sampled);
        live.passed = match (live.passed.take(), passed) {
            (Some(own), Some(above)) => Some(over(own, &above)),
            (own, above) => own.or(above),
        };
    }
}

/// What a unit says itself goes before what its parent has; each thing as a whole.
fn over(own: Arc<Carried>, above: &Arc<Carried>) -> Arc<Carried> {
    let adds = (own.state.is_empty() && !above.state.is_empty())
        || (own.baggage.is_empty() && !above.baggage.is_empty())
        || (own.service_class.is_empty() && !above.service_class.is_empty());
    if !adds {
        return own;
    }
    let Carried { mut state, mut baggage, mut service_class } = Arc::unwrap_or_clone(own);
    if state.is_empty() {
        state.clone_from(&above.state);
    }
    if baggage.is_empty() {
        baggage.clone_from(&above.baggage);
    }
    if service_class.is_empty() {
        service_class.clone_from(&above.service_class);
    }
    Arc::new(Carried { state, baggage, service_class })
}

impl Live {
    /// Whether its own header says that it is sampled. A message's context is its producer's.
    fn named_sampled(&self) -> Option<bool> {
        let own = self.side == Side::Server && conventions(self.protocol) != Conventions::Messaging;
        let context = self.request.traceparent.filter(|_| own)?;
        Some(context.flags & SAMPLED == SAMPLED)
    }

    /// What a unit says itself, when it begins.
    pub(super) fn begin_passing(&mut self) {
        self.passed = self.request.carried.take().map(Arc::from);
        let came = || self.tag.filter(|tag| self.side == Side::Server && tag.parent.is_some());
        self.sampled = self.named_sampled().or_else(|| came().map(|tag| tag.flags & SAMPLED == SAMPLED));
    }

    /// A rule of this host says of which service class it is: whatever was passed on.
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
            Arc::new(Carried { state: state.into(), baggage, service_class: class.into() })
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
