//! Log lines, and the request that each was written for.

use tracer_common::event::{ENTITY_BITS, Header, Kind};
use tracer_common::log_write::LogWrite;
use tracer_common::runtime::{KIND_NODE, KIND_PYTHON};
use tracer_model::LogLine;

use super::exceptions::goroutine;
use super::{GET, Host, Limits, OK};
use crate::held_request::HeldRequest;

impl Host {
    /// A thread writes a line: `r` for a request, with which it is kept; `?` for one of several; `-` for none.
    fn logs(&mut self, tid: u32, text: &str) -> char {
        let header = Header { kind: Kind::LogWrite as u8, nanos: self.nanos, tgid: 1, tid, ..Header::default() };
        let counters = *self.counters.entry(tid).or_default();
        let write = LogWrite { header, entity: self.entity, counters, ..LogWrite::default() };
        match self.engine.held_request(&write) {
            HeldRequest::Request(slot) => {
                let nanos = self.nanos;
                let line = LogLine { nanos, file: text.into(), offset: None, bytes: 1, text: None, cut: false };
                assert!(self.engine.keep_log_line(slot, line));
                'r'
            }
            HeldRequest::Ambiguous => '?',
            HeldRequest::NoRequest => '-',
        }
    }

    /// The lines of each request, in the order in which these began.
    fn logged(&mut self) -> Vec<String> {
        let lines = |lines: &tracer_model::LogLines| {
            let texts: Vec<&str> = lines.lines.iter().map(|line| &*line.file).collect();
            texts.join(" ")
        };
        let spans = self.finish();
        spans.iter().map(|(live, _)| live.rare.log_lines.as_deref().map_or_else(String::new, lines)).collect()
    }
}

#[test]
fn a_thread_writes_for_the_request_it_holds_and_for_what_it_has_just_answered() {
    let mut host = Host::new(Limits::default());
    assert_eq!(host.opens(1, (0, 0)).logs(10, "before"), '-');
    host.reads(10, 1, GET);
    assert_eq!((host.logs(10, "a"), host.logs(11, "other")), ('r', '-'));
    host.sends(10, 1, OK);
    assert_eq!(host.logs(10, "access"), 'r');
    host.waits(10, true);
    assert_eq!(host.logs(10, "idle"), '-');
    host.reads(10, 1, GET);
    assert_eq!(host.logs(10, "b"), 'r');
    host.sends(10, 1, OK);
    assert_eq!(host.logged(), ["a access", "b"]);
}

#[test]
fn a_thread_with_several_requests_writes_for_none_of_them() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(10, 1, GET).waits(10, true).reads(10, 2, GET);
    assert_eq!(host.logs(10, "either"), '?');
    host.sends(10, 1, OK);
    // It has one left, and may work for the other still.
    assert_eq!(host.logs(10, "left"), '?');
    host.sends(10, 2, OK);
    assert_eq!(host.logged(), ["", ""]);
}

#[test]
fn what_was_lost_makes_a_thread_doubtful() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(10, 1, GET);
    host.recorded(0, |host| {
        host.sends(10, 1, OK).reads(10, 2, GET);
    });
    // The next operation shows the gap.
    host.moves(1, 10, 3, true, 0, "x");
    assert_ne!(host.logs(10, "whose"), 'r');
}

#[test]
fn a_goroutine_writes_for_what_it_read_on_whichever_thread() {
    let mut host = Host::with_two_goroutines();
    host.entity = goroutine(5);
    assert_eq!(host.logs(11, "five"), 'r');
    // One that read nothing, and a thread of the process without a goroutine.
    for (entity, expected) in [(goroutine(7), '-'), (goroutine(0), '-'), (0, '?')] {
        host.entity = entity;
        assert_eq!(host.logs(10, "other"), expected, "{entity:x}");
    }
    host.entity = goroutine(5);
    host.sends(11, 1, OK);
    assert_eq!(host.logs(11, "after"), '-');
    assert_eq!(host.logged(), ["five", ""]);
}

#[test]
fn a_context_of_python_writes_for_what_was_read_in_it() {
    let named = |number| u64::from(KIND_PYTHON) << ENTITY_BITS | number;
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0));
    host.entity = named(5);
    host.reads(10, 1, GET);
    host.entity = named(6);
    host.reads(10, 2, GET);
    for (entity, expected) in [(named(5), 'r'), (named(6), 'r'), (named(9), '?'), (named(0), '?')] {
        host.entity = entity;
        assert_eq!(host.logs(10, &format!("{}", entity & 15)), expected);
    }
    assert_eq!(host.logged(), ["5", "6"]);
    // A context that is not the one that read the only request: a timer's, perhaps.
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0));
    host.entity = named(5);
    host.reads(10, 1, GET);
    host.entity = named(8);
    assert_eq!(host.logs(10, "timer"), '?');
}

#[test]
fn callbacks_that_nothing_tells_apart_write_for_nobody() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(10, 1, GET);
    host.entity = u64::from(KIND_NODE) << ENTITY_BITS;
    assert_eq!(host.logs(10, "timer"), '?');
}
