//! Requests and calls that are open now.

use rustc_hash::FxHashMap;
use tracer_model::{Side, TraceId};

use crate::engine::{Engine, verdicts};
use crate::open_span::OpenSpan;
use crate::slot::Slot;

/// An open request, or an open call that belongs to none.
#[derive(Debug)]
pub struct RunningSpan<'a> {
    /// The span so far.
    pub span: &'a OpenSpan,
    /// The trace id it has so far; evidence that comes later may change it.
    pub trace: TraceId,
    /// Whether its thread works for it and for no other request: then the thread's state is the request's.
    pub has_thread: bool,
    /// Open calls it made, as far as known.
    pub calls: Vec<RunningCall<'a>>,
}

/// An open call of an open request.
#[derive(Debug)]
pub struct RunningCall<'a> {
    /// The call so far.
    pub span: &'a OpenSpan,
    /// Whether its parent is certain already.
    pub certain: bool,
}

fn is_open(span: &OpenSpan) -> bool {
    span.end == 0 && span.outcome.is_none()
}

impl Engine {
    /// Open requests with their open calls, and open calls of no open request; in no particular order.
    pub fn running(&self) -> Vec<RunningSpan<'_>> {
        let open = || {
            self.world
                .spans
                .slots()
                .filter_map(|slot| Some((slot, self.world.spans.get(slot).filter(|span| is_open(span))?)))
        };
        let mut rows: FxHashMap<Slot, RunningSpan<'_>> = open()
            .filter(|(_, span)| span.side == Side::Server)
            .map(|(slot, span)| {
                let has_thread = self.thread_of(slot).is_some();
                (slot, RunningSpan { span, trace: self.trace_so_far(span), has_thread, calls: Vec::new() })
            })
            .collect();
        let mut others = Vec::new();
        for (_, span) in open().filter(|(_, span)| span.side == Side::Client) {
            let certain = verdicts::charged_at_once(&self.world, span).is_some();
            match span.client.cause.request().and_then(|request| rows.get_mut(&request)) {
                Some(request) => request.calls.push(RunningCall { span, certain }),
                None => others.push(RunningSpan {
                    span,
                    trace: self.trace_so_far(span),
                    has_thread: false,
                    calls: Vec::new(),
                }),
            }
        }
        others.extend(rows.into_values());
        others
    }
}
