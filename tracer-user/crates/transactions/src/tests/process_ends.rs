//! Requests of processes that end.

use tracer_common::event::{
    FAMILY_UNIX, Header, Kind, Open, ProcessEnd as Ended, STATE_EXITING, STATE_OWN, State, tcp_state,
};
use tracer_model::decode::Record;
use tracer_model::{Outcome, ProcessEnd};

use super::{GET, Host, Limits, OK};
use crate::output::Output;

/// Killed by signal 11, with a dump of its memory.
const SEGV: u16 = 0x8b;
const EXIT_3: u16 = 3 << 8;

impl Host {
    /// A thread of process `tgid` closes the socket; `status`: because its process exits.
    fn closes(&mut self, tgid: u32, cookie: u64, new: u8, status: Option<u16>) -> &mut Self {
        let flags = STATE_OWN | status.map_or(0, |_| STATE_EXITING);
        let header = Header { kind: Kind::State as u8, flags, nanos: self.nanos, tgid, tid: 10, ..Header::default() };
        let moved = |sends| self.positions.get(&(cookie, sends)).copied().unwrap_or_default();
        let (rx, tx, exit_status) = (moved(false), moved(true), status.unwrap_or_default());
        let state = State { header, cookie, new, rx, tx, exit_status, ..State::default() };
        self.engine.record(&Record::State(state), &mut self.out);
        self
    }

    fn process_ends(&mut self, tgid: u32, status: u16) -> &mut Self {
        let header = Header { kind: Kind::ProcessEnd as u8, nanos: self.nanos, tgid, tid: tgid, ..Header::default() };
        self.engine.record(&Record::ProcessEnd(Ended { header, status, ..Ended::default() }), &mut self.out);
        self
    }

    /// Outcome and end of the process of each span, in order of their start.
    fn ends_of_processes(&mut self) -> Vec<(Outcome, Option<ProcessEnd>)> {
        let spans = self.finish();
        spans.iter().map(|(live, _)| (live.outcome.expect("an end"), live.rare.process_end)).collect()
    }
}

#[test]
fn what_a_process_leaves_open_has_how_it_ended() {
    for (status, end) in
        [(SEGV, ProcessEnd::Signal(11)), (EXIT_3, ProcessEnd::ExitCode(3)), (0, ProcessEnd::ExitCode(0))]
    {
        let mut host = Host::new(Limits::default());
        // A request, its call, and one that was answered.
        host.opens(1, (0, 0)).reads(10, 1, GET).sends(10, 3, GET);
        host.opens(5, (0, 0)).reads(11, 5, GET).sends(11, 5, OK);
        for cookie in [1, 3, 5] {
            host.closes(1, cookie, tcp_state::FIN_WAIT1, Some(status));
        }
        let died = (Outcome::Aborted, Some(end));
        assert_eq!(host.ends_of_processes(), [died, died, (Outcome::Complete, None)], "{end:?}");
    }
}

#[test]
fn a_reset_for_unread_bytes_has_it_too_and_so_has_half_a_reply() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(10, 1, GET).closes(1, 1, tcp_state::CLOSE, Some(9));
    host.opens(2, (0, 0)).reads(11, 2, GET).sends(11, 2, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
    host.closes(1, 2, tcp_state::LAST_ACK, Some(9));
    let killed = (Outcome::Aborted, Some(ProcessEnd::Signal(9)));
    assert_eq!(host.ends_of_processes(), [killed, killed]);
}

#[test]
fn a_reply_that_ends_with_its_connection_is_whole_unless_a_signal_ended_it() {
    for (status, wanted) in [
        (0, (Outcome::Complete, None)),
        (EXIT_3, (Outcome::Complete, None)),
        (SEGV, (Outcome::Aborted, Some(ProcessEnd::Signal(11)))),
    ] {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).reads(10, 1, GET).sends(10, 1, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc");
        host.closes(1, 1, tcp_state::FIN_WAIT1, Some(status));
        assert_eq!(host.ends_of_processes(), [wanted]);
    }
}

#[test]
fn another_process_that_ends_says_nothing() {
    let mut host = Host::new(Limits::default());
    // The end of its peer resets the connection in the peer's time; a child inherited another.
    host.opens(1, (0, 0)).reads(10, 1, GET).closes(2, 1, tcp_state::CLOSE, Some(9));
    host.opens(2, (0, 0)).reads(10, 2, GET).closes(3, 2, tcp_state::FIN_WAIT1, Some(0));
    host.opens(4, (0, 0)).reads(10, 4, GET).state(4, tcp_state::CLOSE).process_ends(2, 9);
    assert_eq!(host.ends_of_processes(), [(Outcome::Aborted, None); 3]);
}

#[test]
fn a_socket_that_outlives_its_process_in_another() {
    let mut host = Host::new(Limits::default());
    // The parent closes its own descriptor last; a child answers for another that ended.
    host.opens(1, (0, 0)).reads(10, 1, GET).opens(2, (0, 0)).reads(11, 2, GET);
    host.process_ends(1, SEGV).closes(2, 1, tcp_state::FIN_WAIT1, None);
    host.moves(3, 30, 2, true, 0, OK).closes(3, 2, tcp_state::FIN_WAIT1, Some(0));
    let killed = (Outcome::Aborted, Some(ProcessEnd::Signal(11)));
    assert_eq!(host.ends_of_processes(), [killed, (Outcome::Complete, None)]);
}

#[test]
fn a_runtime_that_closes_connections_before_it_exits() {
    for (status, later, end) in [
        (EXIT_3, 100_000_000, Some(ProcessEnd::ExitCode(3))),
        (15, 100_000_000, Some(ProcessEnd::Signal(15))),
        // It drops requests and lives on.
        (EXIT_3, 3_000_000_000, None),
        // Nothing that a program does itself comes before these, or it did what it was to do.
        (9, 100_000_000, None),
        (0, 100_000_000, None),
    ] {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).reads(10, 1, GET).closes(1, 1, tcp_state::FIN_WAIT1, None);
        host.nanos += later;
        host.process_ends(1, status);
        assert_eq!(host.ends_of_processes(), [(Outcome::Aborted, end)], "{status:#x} after {later}");
    }
}

#[test]
fn a_request_dropped_a_moment_ago_waits_for_the_end_of_its_process() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(10, 1, GET).closes(1, 1, tcp_state::FIN_WAIT1, None);
    let grace = Limits::default().grace;
    let mut is_reported = |after| {
        host.engine.report(host.nanos + after, &mut host.out);
        host.out.iter().any(|output| matches!(output, Output::Finished(..)))
    };
    assert!(!is_reported(grace + 1));
    assert!(is_reported(400_000_000), "it waits for ever");
}

#[test]
fn requests_on_unix_sockets_end_with_their_process() {
    let mut host = Host::new(Limits::default());
    let header = Header { kind: Kind::Open as u8, nanos: host.nanos, tgid: 1, tid: 1, ..Header::default() };
    let open = Open { header, cookie: 1, family: FAMILY_UNIX, sk: 7, peer: 8, ..Open::default() };
    host.engine.record(&Record::Open(open), &mut host.out);
    // An idle connection of TCP's ends as its own records say.
    host.reads(10, 1, GET).opens(2, (0, 0)).reads(11, 2, GET);
    host.process_ends(1, SEGV);
    host.nanos += 30_000_000;
    host.closes(1, 2, tcp_state::FIN_WAIT1, Some(SEGV));
    let killed = (Outcome::Aborted, Some(ProcessEnd::Signal(11)));
    assert_eq!(host.ends_of_processes(), [killed, killed]);
}
