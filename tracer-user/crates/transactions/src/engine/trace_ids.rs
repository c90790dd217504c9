//! Consistent trace ids for spans that are reported one by one: a span has its parent's trace id, whichever of the two
//! is reported first.
//!
//! - The parent first: its reported trace id is remembered, and its children take it.
//! - A request whose call on this host has ended is reported after that call, for a span once written cannot be corrected
//!   in files and collectors, only in the agent's own store.
//! - A child first: the spans above it are bound to the reported trace id. If one of them gets another trace id later,
//!   the engine emits a rename where the old id was generated ([`Output::Renamed`]); otherwise the span stays in its
//!   children's transaction and names no parent of another one.
//! - A doubt about a call that comes after spans below it were reported takes its parent, not the trace id they share.
//! - A parent that may still change passes no trace id on: until then, queries get the id the call generated for
//!   itself.

use tracer_model::{Side, TraceId};

use crate::engine::Engine;
use crate::engine::report::DEPTH;
use crate::open_span::OpenSpan;
use crate::output::Output;
use crate::slot::Slot;
use crate::trace_ids::Bound;

impl Engine {
    /// The parent on this host, which may be reported already. A call that is ambiguous by now has none: it passes no id on.
    fn above(&self, live: &OpenSpan) -> Option<Slot> {
        match live.side {
            // A session's upgrade is its parent at either end.
            _ if live.rare.remote_parent.is_some() => None,
            Side::Server => live.server.caller.map(|(call, _)| call),
            Side::Client => self.sure_parent(live),
        }
    }

    /// The trace id of a span: that of the topmost request in its chain of parents.
    pub(super) fn trace(&self, live: &OpenSpan, depth: u32) -> TraceId {
        if depth == 0 {
            return live.trace;
        }
        let Some(above) = self.above(live) else { return live.trace };
        let above_it = self.world.spans.get(above);
        if let Some(bound) = above_it.and_then(|above| above.rare.reported_as) {
            return bound.trace;
        }
        match above_it {
            Some(call) if call.side == Side::Client && self.may_change(call) => call.trace,
            Some(above) => self.trace(above, depth - 1),
            None => self.reported.get(above).unwrap_or_else(|| match live.side {
                Side::Server => live.trace,
                Side::Client => self.kept(live).map_or(live.trace, |(_, trace, _, _)| trace),
            }),
        }
    }

    /// The same for use before the span is reported: its children may have been reported already, and a parent that may
    /// still change passes nothing on.
    pub fn trace_so_far(&self, live: &OpenSpan) -> TraceId {
        match live.rare.reported_as {
            Some(bound) => bound.trace,
            None if live.side == Side::Client && self.may_change(live) => live.trace,
            None => self.trace(live, DEPTH),
        }
    }

    /// A span is reported whose transaction now has id `trace`: returns the id to report, and whether it is its
    /// parent's.
    pub(super) fn leaves_with(&mut self, slot: Slot, trace: TraceId, out: &mut Vec<Output>) -> (TraceId, bool) {
        let Some(bound) = self.world.spans.get(slot).and_then(|live| live.rare.reported_as) else {
            return (trace, true);
        };
        let now = self.relays.name(bound.trace);
        if now != trace {
            if !bound.own || now != bound.trace {
                return (now, false);
            }
            self.relays.rename(self.world.now, bound.trace, trace);
        }
        if bound.trace != trace {
            out.push(Output::Renamed { was: bound.trace, trace });
        }
        (trace, true)
    }

    /// A span is reported with `trace`: binds the spans above it to that id.
    pub(super) fn bind_above(&mut self, slot: Slot, trace: TraceId) {
        let mut at = slot;
        for _ in 0..DEPTH {
            let above = self.world.spans.get(at).and_then(|live| self.above(live));
            let Some((above, live)) = above.and_then(|above| Some((above, self.world.spans.get(above)?))) else {
                return;
            };
            if live.rare.reported_as.is_some() {
                return;
            }
            let is_cut = live.side == Side::Client && self.may_change(live);
            let is_named = live.side == Side::Server && live.named_parent().is_some();
            let is_first = is_cut || (self.above(live).is_none() && !is_named);
            if let Some(live) = self.world.spans.get_mut(above) {
                live.rare.reported_as = Some(Bound { trace, own: is_first && live.trace == trace });
            }
            if is_first {
                return;
            }
            at = above;
        }
    }

    /// Remembers the trace id a span was reported with.
    pub(super) fn reported_with(&mut self, slot: Slot, trace: TraceId) {
        if self.reported.is_full() {
            let referred = self.world.spans.slots().filter_map(|slot| self.above(self.world.spans.get(slot)?));
            let referred: Vec<Slot> = referred.collect();
            self.reported.age(referred.into_iter());
        }
        if let Some(live) = self.world.spans.get(slot) {
            self.reported.young.insert(slot, (trace, live.id));
        }
    }
}
