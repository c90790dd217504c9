//! One socket: its connection parser, addresses and spans.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use smallvec::SmallVec;
use tracer_common::event::{
    FAMILY_INET, FAMILY_INET6, FAMILY_UNIX, NetworkPath, OPEN_MIDSTREAM, OPEN_QUEUED, Op, Open, ROLE_ACTIVE,
    ROLE_PASSIVE,
};
use tracer_model::{Direction, Nanos, Opening, Side};
use tracer_protocols::ActiveState;

use super::cause::Cause;
use super::closed_by::ClosedBy;
use super::endpoints::Endpoints;
use super::network::opening;
use super::plaintext::Plaintext;
use super::relayed::Contact;
use super::slot::Slot;

/// Consecutive calls of one task remembered per connection.
const SENT: usize = 32;

/// One socket.
#[derive(Debug)]
pub struct Connection {
    /// The connection parser.
    pub talk: ActiveState,
    /// State needed only while the connection is in use.
    busy: Option<Box<Busy>>,
    /// The kernel reported its opening only: no bytes moved yet, and perhaps never will.
    pub announced: bool,
    /// This end has shut down its sending direction.
    pub shut: bool,
    /// It closed and is about to be forgotten.
    pub closing: bool,
    /// Whether a request has begun on it.
    pub used: bool,
    /// The thread that made every call on it; 0: none yet, [`SEVERAL`]: more than one.
    pub asker: u32,
    /// Process that last used it.
    pub tgid: u32,
    /// Time of the last operation.
    pub last: Nanos,
    /// Bytes that arrived before this time arrived before the accept: the accept time, if seen, else the first
    /// operation's.
    queued_until: Nanos,
    /// Whether the accept itself was seen.
    accept_seen: bool,
    /// Last capture policy sent to the kernel, without its positions: head sizes and verdict.
    pub asked: (u16, u16, u8),
    /// Local port.
    pub local_port: u16,
    /// Remote port.
    pub peer_port: u16,
    /// Remote address and its family.
    remote: [u8; 16],
    family: u16,
    /// Initial TCP sequence numbers of the local and remote end; zero for UNIX and UDP.
    pub isn: (u32, u32),
    /// Sequence number of position 0 per direction (receive, send), and whether it is known.
    base: [u32; 2],
    based: [bool; 2],
    /// Whether another agent reports on it.
    pub contact: Contact,
    /// Details of a non-TCP socket.
    kind: Option<Box<SocketDetails>>,
    /// The connection is encrypted, and its text is known.
    pub(super) plain: Option<Box<Plaintext>>,
    /// The same before its first text, which may never come.
    pub(super) before_text: Option<Box<Plaintext>>,
    /// Nothing can be made of its text.
    pub(super) no_text: bool,
}

/// Details of a non-TCP socket.
#[derive(Debug)]
enum SocketDetails {
    /// UNIX: kernel addresses of this end and the other.
    Unix(u64, u64),
    /// UDP: local address and network namespace.
    Datagrams(Place),
}

/// Value of [`Connection::asker`]: more than one thread.
pub const SEVERAL: u32 = u32::MAX;

/// Local address and network namespace of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The local address, if the socket is bound to one.
    pub address: Option<IpAddr>,
    /// Network namespace (inode number).
    pub netns: u32,
}

/// State a connection has only while in use.
#[derive(Debug, Default)]
struct Busy {
    /// Open spans by exchange number, oldest first.
    spans: VecDeque<(u64, Slot)>,
    /// The span that began last.
    newest: Option<Slot>,
    /// What its spans share.
    endpoints: Option<Arc<Endpoints>>,
    /// The request in whose group it was opened, for the connection's first call; and the thread, if it ran one request
    /// at a time.
    opener: Option<(Slot, Option<u32>)>,
    /// Cause of the current round trip, if this end sends the requests.
    round_trip: Option<Box<Cause>>,
    /// When its process connected it, and when the other end answered; 0: not seen.
    connect: (Nanos, Nanos),
    /// When it began to send what it sends, and what TCP had measured before that; `None`: it received last.
    sends_from: Option<(Nanos, NetworkPath)>,
    /// What TCP had measured by the last operation.
    path: Option<NetworkPath>,
    /// Positions the kernel was asked to skip to.
    skips: (u64, u64),
    /// The process that closed it, while requests were open or because it ended.
    closed_by: Option<ClosedBy>,
    /// The task that sent last (0: unknown), and the first few calls it sent since another task did.
    sender: u64,
    sent: SmallVec<[Slot; 2]>,
}

impl Connection {
    /// A connection whose opening was not seen.
    pub fn unknown(midstream: bool) -> Box<Self> {
        Box::new(Self {
            talk: ActiveState::new(midstream),
            busy: None,
            announced: false,
            shut: false,
            closing: false,
            asker: 0,
            used: false,
            tgid: 0,
            last: 0,
            queued_until: 0,
            accept_seen: false,
            asked: (0, 0, 0),
            local_port: 0,
            peer_port: 0,
            remote: [0; 16],
            family: 0,
            isn: (0, 0),
            base: [0; 2],
            based: [false; 2],
            contact: Contact::Unknown,
            kind: None,
            plain: None,
            before_text: None,
            no_text: false,
        })
    }

    /// Takes over what the kernel reports at first sight. `timed`: report round trips whatever the protocol.
    pub fn opened(&mut self, open: &Open, timed: bool) {
        if open.header.flags & OPEN_MIDSTREAM != 0 {
            self.talk = ActiveState::new(true);
            (self.plain, self.before_text, self.no_text) = (None, None, false);
        }
        let side = match open.role {
            ROLE_PASSIVE => Some(Side::Server),
            ROLE_ACTIVE => Some(Side::Client),
            _ => None,
        };
        self.talk.awake().opened(side, timed);
        self.announced = false;
        self.tgid = open.header.tgid;
        self.last = self.last.max(open.header.nanos);
        self.accept_seen = open.accepted != 0;
        self.queued_until = match (open.header.flags & OPEN_QUEUED, open.accepted) {
            (0, _) => 0,
            (_, 0) => open.header.nanos,
            (_, at) => at,
        };
        self.local_port = open.local_port;
        self.peer_port = open.remote_port;
        (self.remote, self.family) = (open.remote, open.family);
        if open.remote_port == 0 && open.family != FAMILY_UNIX {
            // A datagram socket may have no fixed peer.
            self.family = 0;
        }
        if let Some(busy) = &mut self.busy {
            busy.endpoints = None;
        }
        if let Some(busy) = self.busy.as_deref_mut().filter(|busy| busy.connect.0 != 0) {
            busy.connect.1 = open.established;
        }
        self.isn = (open.isn_local, open.isn_remote);
        let own = || address(open.family, open.local).filter(|own| !own.is_unspecified());
        // Two initial sequence numbers of 0 practically never occur in TCP.
        let datagrams = matches!(open.family, FAMILY_INET | FAMILY_INET6) && self.isn == (0, 0);
        let kind = if open.family == FAMILY_UNIX && open.peer != 0 {
            Some(SocketDetails::Unix(open.sk, open.peer))
        } else {
            datagrams.then(|| SocketDetails::Datagrams(Place { address: own(), netns: open.netns }))
        };
        self.kind = kind.map(Box::new);
    }

    /// TCP sequence number of stream position `pos`.
    pub fn seq(&self, dir: Direction, pos: u64) -> Option<u32> {
        if let Some(plain) = &self.plain {
            return plain.seq(dir, pos);
        }
        let way = usize::from(dir == Direction::Tx);
        self.based[way].then(|| self.base[way].wrapping_add(pos as u32))
    }

    /// Sets the sequence number of position 0 in a direction.
    pub fn set_base(&mut self, dir: Direction, base: u32) {
        let way = usize::from(dir == Direction::Tx);
        (self.base[way], self.based[way]) = (base, true);
    }

    /// Its process connects it.
    pub fn connects(&mut self, at: Nanos) {
        self.busy().connect = (at, 0);
    }

    /// Bytes are sent. Segments may be sent again before the send returns, so what counts is what TCP had measured before: at the
    /// last operation, or at the connection's beginning.
    pub(super) fn sends_on(&mut self, at: Nanos, pos: u64, path: NetworkPath) {
        if path.rtt == 0 {
            return;
        }
        let busy = self.busy();
        let before = match busy.path {
            Some(before) => before,
            None if pos == 0 => NetworkPath { retransmits: 0, ..path },
            None => path,
        };
        busy.sends_from.get_or_insert((at, before));
        busy.path = Some(path);
    }

    /// Its text begins: the handshake was for that.
    pub(super) fn text_begins(&mut self) {
        self.used = false;
        if let Some(busy) = &mut self.busy {
            (busy.sends_from, busy.path) = (None, None);
        }
    }

    /// Bytes were received.
    pub(super) fn receives_on(&mut self, path: NetworkPath) {
        if path.rtt != 0 {
            let busy = self.busy();
            (busy.sends_from, busy.path) = (None, Some(path));
        }
    }

    /// What TCP had measured before its current sends began, if they began at `at`.
    pub(super) fn path_at(&self, at: Nanos) -> Option<NetworkPath> {
        self.busy.as_ref()?.sends_from.filter(|(from, _)| *from == at).map(|(_, path)| path)
    }

    /// How it was opened, as far as that was seen.
    pub(super) fn opening(&self) -> Option<Box<Opening>> {
        let (connect, established) = self.busy.as_ref().map_or((0, 0), |busy| busy.connect);
        opening(connect, established, self.plain.as_ref().map_or((0, 0), |plain| plain.handshake()))
    }

    /// The request in whose group it was opened, for the connection's first call; and the thread, if it ran one request
    /// at a time.
    pub fn opener(&self) -> Option<(Slot, Option<u32>)> {
        self.busy.as_ref()?.opener
    }

    /// Sets the opener; `None`: opened in no request's group.
    pub fn set_opener(&mut self, opener: Option<(Slot, Option<u32>)>) {
        if opener.is_some() || self.busy.is_some() {
            self.busy().opener = opener;
        }
    }

    /// Cause of the current round trip, if this end sends the requests.
    pub fn round_trip(&self) -> Option<&Cause> {
        self.busy.as_ref()?.round_trip.as_deref()
    }

    /// A round trip begins.
    pub fn set_turn(&mut self, cause: Cause) {
        self.busy().round_trip = Some(Box::new(cause));
    }

    /// A round trip ends: takes its cause.
    pub fn take_round_trip(&mut self) -> Option<Box<Cause>> {
        self.busy.as_mut()?.round_trip.take()
    }

    /// Positions (receive, send) the kernel was last asked to skip to.
    pub fn skips(&self) -> (u64, u64) {
        self.busy.as_ref().map_or((0, 0), |busy| busy.skips)
    }

    /// The kernel is asked to skip to these.
    pub fn set_skips(&mut self, skips: (u64, u64)) {
        if skips != (0, 0) || self.busy.is_some() {
            self.busy().skips = skips;
        }
    }

    /// Task `sender` sends a call. Returns the calls of the previous sender if that was another task.
    pub fn sends(&mut self, sender: u64, call: Slot) -> SmallVec<[Slot; 2]> {
        let busy = self.busy();
        let before = std::mem::replace(&mut busy.sender, sender);
        let sent = if before == sender { SmallVec::new() } else { std::mem::take(&mut busy.sent) };
        if busy.sent.len() < SENT {
            busy.sent.push(call);
        }
        sent
    }

    /// The remote address, if it may be another host's.
    pub fn remote_address(&self) -> Option<IpAddr> {
        address(self.family, self.remote).filter(|remote| !remote.is_loopback() && !remote.is_unspecified())
    }

    /// UNIX: kernel addresses of this end and the other.
    pub fn unix(&self) -> Option<(u64, u64)> {
        match self.kind.as_deref()? {
            SocketDetails::Unix(own, peer) => Some((*own, *peer)),
            SocketDetails::Datagrams(_) => None,
        }
    }

    /// UDP: local address and network namespace.
    pub fn place(&self) -> Option<Place> {
        match self.kind.as_deref()? {
            SocketDetails::Unix(..) => None,
            SocketDetails::Datagrams(place) => Some(*place),
        }
    }

    /// Destination of a datagram sent on it.
    pub fn sent_to(&self, op: &Op) -> Option<(IpAddr, u16)> {
        match op.remote() {
            Some((family, remote, port)) => Some((address(family, remote)?, port)),
            None => Some((address(self.family, self.remote)?, self.peer_port)),
        }
        .filter(|(_, port)| *port != 0)
    }

    /// Remote address and port as text; `None`: it has none.
    pub fn callee_address(&self) -> Option<Arc<str>> {
        let remote = address(self.family, self.remote)?;
        Some(SocketAddr::new(remote, self.peer_port).to_string().into())
    }

    /// What its spans share; `empty` is the address of a peer that has none.
    pub fn endpoints(&mut self, empty: &Arc<str>) -> Arc<Endpoints> {
        if let Some(known) = self.busy().endpoints.as_ref() {
            return Arc::clone(known);
        }
        let remote = address(self.family, self.remote);
        let made = Arc::new(Endpoints {
            local_port: self.local_port,
            peer: remote.map_or_else(|| Arc::clone(empty), |remote| Arc::from(remote.to_string())),
            peer_port: self.peer_port,
            queued_until: self.queued_until,
            accept_seen: self.accept_seen,
        });
        self.busy().endpoints = Some(Arc::clone(&made));
        made
    }

    /// Compacts an idle connection.
    pub fn rest(&mut self) {
        self.talk.rest();
        let used = self.used;
        let idle = |busy: &Busy| {
            let kept = busy.round_trip.is_some() || busy.closed_by.is_some() || (!used && busy.opener.is_some());
            busy.spans.is_empty() && !kept
        };
        if self.busy.as_deref().is_some_and(idle) {
            self.busy = None;
        }
    }

    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }

    /// The open span of an exchange.
    pub fn span(&self, exchange: u64) -> Option<Slot> {
        self.busy.as_ref()?.spans.iter().find(|(number, _)| *number == exchange).map(|(_, slot)| *slot)
    }

    /// Adds an open span. `newest`: later events may be its consequence.
    pub fn add_unit(&mut self, exchange: u64, slot: Slot, newest: bool) {
        let busy = self.busy();
        busy.spans.push_back((exchange, slot));
        if newest {
            busy.newest = Some(slot);
        }
    }

    /// The exchange ended: takes its open span.
    pub fn take_unit(&mut self, exchange: u64) -> Option<Slot> {
        let spans = &mut self.busy.as_mut()?.spans;
        let index = spans.iter().position(|(number, _)| *number == exchange)?;
        spans.remove(index).map(|(_, slot)| slot)
    }

    /// Open spans, oldest first.
    pub fn spans(&self) -> impl Iterator<Item = Slot> {
        self.busy.iter().flat_map(|busy| busy.spans.iter().map(|(_, slot)| *slot))
    }

    /// A process closes it, or ended while requests on it were open. One that lives on is remembered only while requests are open
    /// that no process left.
    pub(super) fn close_by(&mut self, who: ClosedBy) {
        if who.end.is_some() {
            self.busy().closed_by = Some(who);
        } else if let Some(busy) = &mut self.busy
            && !busy.spans.is_empty()
            && busy.closed_by.is_none_or(|known| known.end.is_none())
        {
            busy.closed_by = Some(who);
        }
    }

    /// The process that closed it.
    pub(super) fn closed_by(&self) -> Option<ClosedBy> {
        self.busy.as_ref()?.closed_by
    }

    /// Takes the oldest open span.
    pub fn pop_unit(&mut self) -> Option<Slot> {
        self.busy.as_mut()?.spans.pop_front().map(|(_, slot)| slot)
    }

    /// The span that began last, while the connection is in use.
    pub fn newest(&self) -> Option<Slot> {
        self.busy.as_ref()?.newest
    }

    /// The side this socket plays, once its bytes show it.
    pub fn side(&self) -> Option<Side> {
        self.talk.side()
    }
}

fn address(family: u16, remote: [u8; 16]) -> Option<IpAddr> {
    match family {
        FAMILY_INET => {
            let [a, b, c, d, ..] = remote;
            Some(Ipv4Addr::new(a, b, c, d).into())
        }
        FAMILY_INET6 => {
            let address = Ipv6Addr::from(remote);
            Some(address.to_ipv4_mapped().map_or_else(|| address.into(), IpAddr::V4))
        }
        _ => None,
    }
}
