//! In-band contexts: which span they belong to, and which carrier wins.

use tracer_common::event::{INBAND_HELD, INBAND_NAMED, INBAND_REFUSED, INBAND_TX, InbandContext};
use tracer_model::{SpanId, TraceId};

use super::*;
use crate::inband_context::Outcomes;

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;

impl Host {
    /// The kernel side reports a context sent or received with byte `seq` of a connection.
    fn inband(&mut self, cookie: u64, flags: u8, seq: u32, (trace, span): (u128, u64)) -> &mut Self {
        let header = Header { kind: Kind::InbandContext as u8, flags, nanos: self.nanos, ..Header::default() };
        let (trace, span) = (trace.to_be_bytes(), span.to_be_bytes());
        let inband = InbandContext { header, cookie, trace, span, seq, flags: 1, ..InbandContext::default() };
        self.engine.record(&Record::InbandContext(inband), &mut self.out);
        self
    }

    fn inband_ids(&self) -> Outcomes {
        self.engine.inband_outcomes()
    }
}

#[test]
fn a_request_has_the_parent_that_came_with_its_first_byte() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (600, 700)).inband(1, 0, 601, (TRACE, SPAN)).moves(1, 5, 1, false, 601, GET);
    host.moves(1, 5, 1, true, 701, OK);
    // No context came with the second request; the later one matches no byte that begins a request.
    host.moves(1, 5, 1, false, 601 + GET.len() as u32, GET).moves(1, 5, 1, true, 701 + OK.len() as u32, OK);
    host.inband(1, 0, 603, (TRACE, SPAN));
    let spans = host.finish();
    let [(_, first), (_, second)] = &spans[..] else { panic!("{} spans", spans.len()) };
    assert_eq!((first.parent, first.trace), (Some(SpanId(SPAN)), TraceId(TRACE)));
    assert_eq!(second.parent, None);
    assert_ne!(second.trace, TraceId(TRACE));
    assert_eq!((host.inband_ids().received, host.inband_ids().matched, host.inband_ids().contradicted), (2, 1, 0));
    host.nanos += 61_000_000_000;
    host.engine.world.now = host.nanos;
    host.engine.expire(false, &mut host.out);
    assert_eq!(host.inband_ids().unmatched, 1);
}

#[test]
fn a_call_has_the_ids_its_other_end_received() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (600, 700)).inband(1, INBAND_TX, 601, (TRACE, SPAN)).moves(3, 5, 1, true, 601, GET);
    host.moves(3, 5, 1, false, 701, OK);
    let spans = host.finish();
    assert_eq!((spans[0].0.id, spans[0].1.trace), (SpanId(SPAN), TraceId(TRACE)));
    assert_eq!((host.inband_ids().sent, host.inband_ids().renamed), (1, 0));
}

#[test]
fn calls_of_a_request_are_sent_with_its_trace_id() {
    for (named, renamed) in [(TRACE, 0), (TRACE + 1, 1)] {
        let mut host = Host::new(Limits::default());
        host.opens(1, (600, 700)).opens(2, (800, 900)).inband(1, INBAND_NAMED, 601, (named, 0));
        host.moves(1, 5, 1, false, 601, GET).works(5, 10).inband(2, INBAND_TX | INBAND_HELD, 801, (TRACE, SPAN));
        host.moves(1, 5, 2, true, 801, GET).moves(1, 5, 2, false, 901, OK).moves(1, 5, 1, true, 701, OK);
        let spans = host.finish();
        let [(request, above), (call, below)] = &spans[..] else { panic!("{} spans", spans.len()) };
        assert_eq!((above.parent, above.trace), (None, TraceId(named)));
        assert_eq!((call.id, below.parent, below.trace), (SpanId(SPAN), Some(request.id), TraceId(named)));
        assert_eq!(host.inband_ids().renamed, renamed, "the other end received another trace id");
    }
}

#[test]
fn an_orphan_joins_no_transaction() {
    let mut host = Host::new(Limits::default());
    // Another thread answered the request; the call is the sending thread's own.
    host.opens(2, (800, 900)).inband(2, INBAND_TX | INBAND_HELD, 801, (TRACE, SPAN)).moves(3, 5, 2, true, 801, GET);
    host.moves(3, 5, 2, false, 901, OK);
    let spans = host.finish();
    assert_eq!((spans[0].0.id, spans[0].1.parent), (SpanId(SPAN), None));
    assert_ne!(spans[0].1.trace, TraceId(TRACE));
    assert_eq!(host.inband_ids().renamed, 1);
}

#[test]
fn a_header_counts_more() {
    let mut host = Host::new(Limits::default());
    let text = "GET /a HTTP/1.1\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";
    host.opens(1, (600, 700)).inband(1, 0, 601, (TRACE, SPAN)).moves(1, 5, 1, false, 601, text);
    host.moves(1, 5, 1, true, 701, OK);
    let spans = host.finish();
    assert_eq!(spans[0].1.parent, Some(SpanId(0xb7ad_6b71_6920_3331)));
    assert_eq!((host.inband_ids().header, host.inband_ids().matched), (1, 0));
}

#[test]
fn another_parent_on_this_host_contradicts() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (600, 700)).opens(2, (700, 600)).moves(1, 5, 1, true, 601, GET);
    host.inband(2, 0, 601, (TRACE, SPAN)).moves(2, 6, 2, false, 601, GET);
    host.moves(2, 6, 2, true, 701, OK).moves(1, 5, 1, false, 701, OK);
    let spans = host.finish();
    let (request, verdicts) = spans.iter().find(|(live, _)| live.cookie == 2).expect("a request");
    assert_eq!(verdicts.parent, request.server.caller.map(|(_, id)| id));
    assert_eq!(host.inband_ids().contradicted, 1);
}

#[test]
fn an_invalid_context_names_no_parent() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (600, 700));
    for (flags, ids) in [(0, (0, SPAN)), (0, (TRACE, 0)), (INBAND_TX | INBAND_REFUSED, (TRACE, SPAN))] {
        host.inband(1, flags, 601, ids);
    }
    host.moves(1, 5, 1, false, 601, GET).moves(1, 5, 1, true, 701, OK);
    assert_eq!(host.finish()[0].1.parent, None);
    assert_eq!(host.inband_ids(), Outcomes { refused: 3, ..Outcomes::default() });
}

#[test]
fn those_that_wait_are_bounded() {
    let mut host = Host::new(Limits::for_memory(0));
    for seq in 0..10_000 {
        host.inband(1, 0, seq, (TRACE, SPAN));
    }
    // The oldest were dropped.
    host.opens(1, (600, 700)).moves(1, 5, 1, false, 9_999, GET);
    let fill = host.engine.table_use().inband;
    assert!(fill.entries + 1 == fill.limit && fill.limit < 10_000 && fill.limit + fill.reached == 10_000, "{fill:?}");
    assert_eq!(host.inband_ids().matched, 1);
}
