//! What the engine says of a transaction's first request: which it is while spans are open, and what was charged to
//! requests that are reported already. The books are in the module `roots` of a later layer.

use rustc_hash::FxHashMap;
use tracer_model::{ClassId, Cost, Grade, Side, SpanId};
use tracer_protocols::context::Carrier;
use tracer_relay::message::ContextRoot;

use crate::engine::Engine;
use crate::engine::report::DEPTH;
use crate::open_span::OpenSpan;
use crate::relayed::Contact;
use crate::slot::Slot;

/// The first request of a span's transaction, as far as known by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenRoot {
    /// An open request.
    Open(Slot),
    /// That of a reported span; if that is a call for no request, this open request.
    Reported(SpanId, Option<Slot>),
    /// What another host's agent says of it, or that nothing is known.
    Said(ContextRoot),
}

impl Engine {
    /// Takes what was charged to classes for requests that were reported already, since last taken. It is a part of
    /// [`Engine::take_costs`].
    pub fn take_late_costs(&mut self) -> FxHashMap<(Option<SpanId>, ClassId), Cost> {
        std::mem::take(&mut self.reported.late.costs)
    }

    /// The first request of the transaction that a call belongs to.
    pub fn open_root(&self, call: &OpenSpan) -> OpenRoot {
        let unknown = || OpenRoot::Said(ContextRoot::Unknown);
        let (mut call, mut below) = (call, None);
        for _ in 0..DEPTH {
            if let Some(upgrade) = call.rare.remote_parent {
                return OpenRoot::Reported(upgrade, below);
            }
            let Some(parent) = self.sure_parent(call) else {
                let verdict = self.verdict(call);
                let begins = verdict.parent.is_none() && verdict.grade == Grade::Certain;
                return match below {
                    _ if !begins => unknown(),
                    Some(first) => OpenRoot::Open(first),
                    None => OpenRoot::Said(ContextRoot::Callee),
                };
            };
            let Some(request) = self.world.spans.get(parent) else {
                return self.kept(call).map_or_else(unknown, |(id, ..)| OpenRoot::Reported(id, None));
            };
            if let Some((above, id)) = request.server.caller {
                let Some(above) = self.world.spans.get(above) else { return OpenRoot::Reported(id, Some(parent)) };
                (call, below) = (above, Some(parent));
                continue;
            }
            return match self.root_above(request) {
                RootAbove::None | RootAbove::Said(ContextRoot::Callee) => OpenRoot::Open(parent),
                RootAbove::Session(upgrade) => OpenRoot::Reported(upgrade, Some(parent)),
                RootAbove::Said(said) => OpenRoot::Said(said),
            };
        }
        unknown()
    }

    /// What is known of the root of a request whose caller is not on this host. While another agent may still say it, nothing:
    /// a request whose header names a parent does not wait for that.
    pub fn root_above(&self, live: &OpenSpan) -> RootAbove {
        let above = live.root_above();
        let Some(relay) = live.rare.relay.as_ref().filter(|_| above == RootAbove::None) else { return above };
        let has_agent = live.rare.remote_parent.is_some() && self.contact(live) == Contact::Yes;
        if self.world.now < relay.until || has_agent { RootAbove::Said(ContextRoot::Unknown) } else { above }
    }
}

/// What is known of the root of a request whose caller is not on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootAbove {
    /// No agent knows its caller: it is the first.
    None,
    /// It is a session; its root is that of its upgrade.
    Session(SpanId),
    /// What the caller's agent says; nothing, if only an in-band context came.
    Said(ContextRoot),
}

impl OpenSpan {
    /// What came with a request of another host.
    fn root_above(&self) -> RootAbove {
        let session = self.request.traceparent.is_some_and(|context| context.carrier == Carrier::Session);
        if let Some(upgrade) = self.rare.remote_parent.filter(|_| session) {
            return RootAbove::Session(upgrade);
        }
        if let Some(given) = self.rare.relay.as_ref().and_then(|relay| relay.given.as_ref()) {
            return RootAbove::Said(given.context.root.clone());
        }
        if self.side == Side::Server && self.rare.inband.is_some_and(|inband| inband.parent.is_some()) {
            return RootAbove::Said(ContextRoot::Unknown);
        }
        RootAbove::None
    }
}
