//! The pipeline's part of roots: what a reported span says of its transaction's first request, and what the other end of a
//! call is told of it.

use tracer_model::{Cost, Grade, Nanos, Side};
use tracer_relay::message::ContextRoot;
use tracer_transactions::engine::roots::{OpenRoot, RootAbove};
use tracer_transactions::finished_call::FinishedCall;
use tracer_transactions::open_span::OpenSpan;
use tracer_transactions::output::Verdicts;
use tracer_transactions::roots::{KnownRoot, RootLink};
use tracer_transactions::slot::Slot;

use super::relay::class_name;
use super::{Pipeline, provisional};

/// What was charged to the class of a reported span for it: at least what was passed on already.
pub(super) fn charged(live: &OpenSpan) -> Cost {
    let (cost, posted) = (live.cost, live.rare.posted);
    Cost {
        cpu: cost.cpu.max(posted.cpu),
        runq: cost.runq.max(posted.runq),
        blocked: cost.blocked.max(posted.blocked),
        switches: cost.switches.max(posted.switches),
    }
}

/// A declared call within a request has its root; one outside is its own.
pub(super) fn declared_root(call: &FinishedCall) -> RootLink {
    match (call.request, call.parent) {
        (None, None) => RootLink::First,
        (_, Some(parent)) => RootLink::Below(parent),
        (Some(_), None) => RootLink::Unknown,
    }
}

impl Pipeline {
    /// What a span that is being reported says of its root.
    pub(super) fn root_link(&mut self, live: &OpenSpan, verdicts: &Verdicts) -> RootLink {
        if live.side == Side::Client {
            return match (live.rare.remote_parent.or(verdicts.parent), verdicts.grade) {
                (Some(parent), Grade::Certain | Grade::Confirmed) => RootLink::Below(parent),
                (None, Grade::Certain) => RootLink::Begins,
                _ => RootLink::Unknown,
            };
        }
        if let Some((_, call)) = live.server.caller {
            return RootLink::Below(call);
        }
        match self.engine.root_above(live) {
            RootAbove::None | RootAbove::Said(ContextRoot::Callee) => RootLink::First,
            RootAbove::Session(upgrade) => RootLink::Below(upgrade),
            RootAbove::Said(ContextRoot::Class(service, class)) => RootLink::Named(self.roots.named(&service, &class)),
            RootAbove::Said(ContextRoot::Unknown) => RootLink::Unknown,
        }
    }

    /// What its other end is told of the root of a call.
    pub(super) fn root_of_call(&mut self, root: OpenRoot) -> ContextRoot {
        match root {
            OpenRoot::Said(said) => said,
            OpenRoot::Open(first) => self.root_named(first),
            OpenRoot::Reported(above, first) => match (self.roots.known(above), first) {
                (KnownRoot::Class(service, class), _) => ContextRoot::Class(service, class),
                (KnownRoot::Begins, Some(first)) => self.root_named(first),
                (KnownRoot::Begins, None) => ContextRoot::Callee,
                (KnownRoot::Unknown, _) => ContextRoot::Unknown,
            },
        }
    }

    /// An open request as a root: by the class that it will have, as far as that can be said.
    fn root_named(&mut self, first: Slot) -> ContextRoot {
        let Some(live) = self.engine.span(first) else { return ContextRoot::Unknown };
        let class = match live.class {
            Some(class) => class_name(&self.names, class),
            None => provisional(&mut self.classifier, &mut self.names, live),
        };
        ContextRoot::Class(self.names.service(live.service), class)
    }

    /// What a span cost that turned out to be none stays charged to its class, if it had one.
    pub(super) fn disown_root(&mut self, live: &OpenSpan) {
        if let Some(class) = live.class {
            self.roots.late(None, class, live.rare.posted);
        }
    }

    /// All costs until `now` were passed on.
    pub(super) fn settle_roots(&mut self, now: Nanos) {
        for ((span, class), cost) in self.engine.take_late_costs() {
            self.roots.late(span, class, cost);
        }
        self.roots.tick(now);
    }
}
