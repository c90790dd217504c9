//! What TCP measured of calls, how their connections were opened, and connects that failed.

use tracer_common::event::{FAMILY_INET, Header, Kind, NetworkPath, Open, ROLE_ACTIVE, State, tcp_state};
use tracer_model::decode::Record;
use tracer_model::{FailedConnect, Network, Opening, ServiceId};

use super::{GET, Host, Limits, OK};

fn path(rtt: u32, retransmits: u32) -> NetworkPath {
    NetworkPath { rtt, rtt_min: 90, retransmits, reserved: 0 }
}

impl Host {
    /// A connect of socket `cookie` that takes `nanos`.
    fn connects(&mut self, cookie: u64, nanos: u64) -> &mut Self {
        self.state(cookie, tcp_state::SYN_SENT);
        self.nanos += nanos;
        let header = Header { kind: Kind::Open as u8, nanos: self.nanos + 40, tgid: 1, tid: 1, ..Header::default() };
        let (established, role) = (self.nanos, ROLE_ACTIVE);
        let open = Open { header, cookie, established, role, family: FAMILY_INET, isn_local: 1, ..Open::default() };
        self.nanos += 50;
        self.engine.record(&Record::Open(open), &mut self.out);
        self
    }
}

#[test]
fn a_call_has_its_connect_and_the_retransmits_during_it() {
    let mut host = Host::new(Limits::default());
    host.connects(5, 700);
    // The first two were sent again before the send returned, or to connect.
    host.path = path(100, 3);
    host.sends(1, 5, GET);
    host.path = path(120, 5);
    host.reads(1, 5, OK);
    host.sends(1, 5, GET).reads(1, 5, OK);
    let spans = host.finish();
    let figures: Vec<_> =
        spans.iter().map(|(live, _)| (live.network.latest(), live.client.opening.as_deref().copied())).collect();
    let network = |retransmits| Some(Network { rtt_us: 120, rtt_min_us: 90, retransmits: Some(retransmits) });
    let opening = Opening { connect: 1_000, established: 1_700, ..Opening::default() };
    assert_eq!(figures, [(network(5), Some(opening)), (network(0), None)]);
}

#[test]
fn a_call_that_never_ends_has_what_the_close_shows() {
    let mut host = Host::new(Limits::default());
    host.path = path(100, 0);
    host.connects(5, 700).sends(1, 5, GET);
    let (nanos, path) = (host.nanos, path(100, 6));
    let header = Header { kind: Kind::State as u8, nanos, tgid: 1, ..Header::default() };
    let state = State { header, cookie: 5, new: tcp_state::FIN_WAIT1, path, ..State::default() };
    host.engine.record(&Record::State(state), &mut host.out);
    let (live, _) = host.finish().remove(0);
    assert_eq!(live.network.latest().and_then(|network| network.retransmits), Some(6));
}

#[test]
fn connects_that_fail_are_counted_by_cause_and_idle_closes_are_not() {
    let mut host = Host::new(Limits::default());
    let ends = |host: &mut Host, cookie, old, error| {
        let header = Header { kind: Kind::State as u8, nanos: host.nanos, ..Header::default() };
        let (new, remote_port) = (tcp_state::CLOSE, 5432);
        let state = State { header, cookie, old, new, error, remote_port, ..State::default() };
        host.engine.record(&Record::State(state), &mut host.out);
    };
    for cookie in [1, 2] {
        host.state(cookie, tcp_state::SYN_SENT);
        ends(&mut host, cookie, tcp_state::SYN_SENT, libc::ECONNREFUSED as u16);
    }
    host.connects(3, 10).sends(1, 3, GET).reads(1, 3, OK);
    ends(&mut host, 3, tcp_state::CLOSE_WAIT, libc::ECONNRESET as u16);
    // Of a process that is not traced.
    ends(&mut host, 4, tcp_state::SYN_SENT, 0);
    let refused = FailedConnect { service: ServiceId(1), port: 5432, error: libc::ECONNREFUSED as u16 };
    assert_eq!(host.engine.take_failed_connects().into_iter().collect::<Vec<_>>(), [(refused, 2)]);
    assert!(host.engine.take_failed_connects().is_empty());
}
