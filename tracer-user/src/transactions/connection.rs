//! One socket: its conversation, its addresses and the units on it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smallvec::SmallVec;
use tracer_common::event::{
    FAMILY_INET, FAMILY_INET6, FAMILY_UNIX, OPEN_MIDSTREAM, OPEN_QUEUED, Op, Open, ROLE_ACTIVE, ROLE_PASSIVE,
};

use super::live::{Cause, Slot};
use super::relayed::Contact;
use crate::model::{Accepted, Direction, Nanos, Side};
use crate::protocols::Talk;

/// Calls of one task in a row that are remembered with a connection.
const SENT: usize = 32;

/// One socket.
#[derive(Debug)]
pub struct Connection {
    /// What its bytes say.
    pub talk: Talk,
    /// What it has while it is in use.
    busy: Option<Box<Busy>>,
    /// Only its being opened was told: nothing was sent or received on it yet, and perhaps never is.
    pub announced: bool,
    /// This end said that it sends no more.
    pub shut: bool,
    /// It closed, and is forgotten soon.
    pub closing: bool,
    /// Whether a call was already made on it.
    pub used: bool,
    /// Thread that made every call on it, 0 none yet; [`SEVERAL`] where several did.
    pub asker: u32,
    /// Process that last used it.
    pub tgid: u32,
    /// Last operation.
    pub last: Nanos,
    /// What arrived earlier arrived before it was accepted: that moment, where it was seen, else its first operation.
    queued_until: Nanos,
    /// The first of the two.
    accept_seen: bool,
    /// Last wish sent to the kernel, without its positions: head sizes and a verdict.
    pub asked: (u16, u16, u8),
    /// Local port.
    pub local_port: u16,
    /// Remote port.
    pub peer_port: u16,
    /// Remote address, and its family.
    remote: [u8; 16],
    family: u16,
    /// Ends of the connection as TCP numbers them, local and remote; zero for UNIX.
    pub isn: (u32, u32),
    /// Sequence number of position 0 of each direction (receive, send), and whether it was seen.
    base: [u32; 2],
    based: [bool; 2],
    /// Whether another agent speaks of it.
    pub contact: Contact,
    /// What is known of it where it is not TCP's.
    kind: Option<Box<Kind>>,
}

/// What is known of a socket that is not TCP's.
#[derive(Debug)]
enum Kind {
    /// Kernel addresses of this end and the other.
    Unix(u64, u64),
    /// UDP: where it is.
    Datagrams(Place),
}

/// Of [`Connection::asker`]: not one thread's.
pub const SEVERAL: u32 = u32::MAX;

/// Where a socket of datagrams is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its own address, where it has only one.
    pub address: Option<IpAddr>,
    /// Network namespace (inode number).
    pub netns: u32,
}

/// What only a connection has that is in use.
#[derive(Debug, Default)]
struct Busy {
    /// Live units by exchange number, oldest first.
    units: VecDeque<(u64, Slot)>,
    /// The unit that began last on it.
    newest: Option<Slot>,
    /// Remote address as text.
    peer: Option<Arc<str>>,
    /// The request in whose group it was opened, for its first call; and the thread, if that ran one at a time.
    opener: Option<(Slot, Option<u32>)>,
    /// Who caused the turn under way, where this end asks.
    turn: Option<Box<Cause>>,
    /// Positions the kernel was told to skip to.
    skips: (u64, u64),
    /// The task that sent by it last, 0 none that is known, and its calls since another did, the first few.
    sender: u64,
    sent: SmallVec<[Slot; 2]>,
}

impl Connection {
    /// A connection whose opening was not seen.
    pub fn unknown(midstream: bool) -> Box<Self> {
        Box::new(Self {
            talk: Talk::new(midstream),
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
        })
    }

    /// Takes over what the kernel said at first sight; `timed`: turns are wanted whatever is spoken.
    pub fn opened(&mut self, open: &Open, timed: bool) {
        if open.header.flags & OPEN_MIDSTREAM != 0 {
            self.talk = Talk::new(true);
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
            // A datagram socket may have no peer of its own.
            self.family = 0;
        }
        if let Some(busy) = &mut self.busy {
            busy.peer = None;
        }
        self.isn = (open.isn_local, open.isn_remote);
        let own = || address(open.family, open.local).filter(|own| !own.is_unspecified());
        // Both are never 0 of TCP, or as good as never.
        let datagrams = matches!(open.family, FAMILY_INET | FAMILY_INET6) && self.isn == (0, 0);
        let kind = if open.family == FAMILY_UNIX && open.peer != 0 {
            Some(Kind::Unix(open.sk, open.peer))
        } else {
            datagrams.then(|| Kind::Datagrams(Place { address: own(), netns: open.netns }))
        };
        self.kind = kind.map(Box::new);
    }

    /// Whether it was accepted when what was first read of a request `arrived`.
    pub fn accepted(&self, arrived: Nanos) -> Accepted {
        match (arrived < self.queued_until, self.accept_seen) {
            (false, _) => Accepted::Before,
            (true, true) => Accepted::At(self.queued_until),
            (true, false) => Accepted::Unseen,
        }
    }

    /// TCP sequence number of stream position `pos`.
    pub fn seq(&self, dir: Direction, pos: u64) -> Option<u32> {
        let way = usize::from(dir == Direction::Tx);
        self.based[way].then(|| self.base[way].wrapping_add(pos as u32))
    }

    /// The sequence number of its position 0 in a direction is known.
    pub fn set_base(&mut self, dir: Direction, base: u32) {
        let way = usize::from(dir == Direction::Tx);
        (self.base[way], self.based[way]) = (base, true);
    }

    /// The request in whose group it was opened, for its first call; and the thread, if that ran one at a time.
    pub fn opener(&self) -> Option<(Slot, Option<u32>)> {
        self.busy.as_ref()?.opener
    }

    /// It was opened in the group of a request, or in nobody's.
    pub fn set_opener(&mut self, opener: Option<(Slot, Option<u32>)>) {
        if opener.is_some() || self.busy.is_some() {
            self.busy().opener = opener;
        }
    }

    /// Who caused the turn under way, where this end asks.
    pub fn turn(&self) -> Option<&Cause> {
        self.busy.as_ref()?.turn.as_deref()
    }

    /// A turn begins, caused by this.
    pub fn set_turn(&mut self, cause: Cause) {
        self.busy().turn = Some(Box::new(cause));
    }

    /// Who caused the turn that is over.
    pub fn take_turn(&mut self) -> Option<Box<Cause>> {
        self.busy.as_mut()?.turn.take()
    }

    /// Positions (receive, send) the kernel was told to skip to, of late.
    pub fn skips(&self) -> (u64, u64) {
        self.busy.as_ref().map_or((0, 0), |busy| busy.skips)
    }

    /// The kernel is told to skip to these.
    pub fn set_skips(&mut self, skips: (u64, u64)) {
        if skips != (0, 0) || self.busy.is_some() {
            self.busy().skips = skips;
        }
    }

    /// The task `sender` sends a call by it. Gives the calls of the task that did so before, if that was another.
    pub fn sends(&mut self, sender: u64, call: Slot) -> SmallVec<[Slot; 2]> {
        let busy = self.busy();
        let before = std::mem::replace(&mut busy.sender, sender);
        let sent = if before == sender { SmallVec::new() } else { std::mem::take(&mut busy.sent) };
        if busy.sent.len() < SENT {
            busy.sent.push(call);
        }
        sent
    }

    /// Where its other end is, when that may be another host.
    pub fn far(&self) -> Option<IpAddr> {
        address(self.family, self.remote).filter(|far| !far.is_loopback() && !far.is_unspecified())
    }

    /// UNIX: kernel addresses of this end and the other.
    pub fn unix(&self) -> Option<(u64, u64)> {
        match self.kind.as_deref()? {
            Kind::Unix(own, peer) => Some((*own, *peer)),
            Kind::Datagrams(_) => None,
        }
    }

    /// UDP: where it is.
    pub fn place(&self) -> Option<Place> {
        match self.kind.as_deref()? {
            Kind::Unix(..) => None,
            Kind::Datagrams(place) => Some(*place),
        }
    }

    /// Where a datagram that was sent on it went.
    pub fn sent_to(&self, op: &Op) -> Option<(IpAddr, u16)> {
        match op.far() {
            Some((family, far, port)) => Some((address(family, far)?, port)),
            None => Some((address(self.family, self.remote)?, self.peer_port)),
        }
        .filter(|(_, port)| *port != 0)
    }

    /// The remote address as text; `empty` where it has none.
    pub fn peer(&mut self, empty: &Arc<str>) -> Arc<str> {
        let (family, remote) = (self.family, self.remote);
        let made = || address(family, remote).map_or_else(|| Arc::clone(empty), |far| Arc::from(far.to_string()));
        Arc::clone(self.busy().peer.get_or_insert_with(made))
    }

    /// Nothing moves on it for a while: it keeps no more than it must.
    pub fn rest(&mut self) {
        self.talk.rest();
        let used = self.used;
        let idle = |busy: &Busy| busy.units.is_empty() && busy.turn.is_none() && (used || busy.opener.is_none());
        if self.busy.as_deref().is_some_and(idle) {
            self.busy = None;
        }
    }

    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_default()
    }

    /// The live unit of an exchange.
    pub fn unit(&self, exchange: u64) -> Option<Slot> {
        self.busy.as_ref()?.units.iter().find(|(number, _)| *number == exchange).map(|(_, slot)| *slot)
    }

    /// A unit begins on it; `newest`: what follows may be its consequence.
    pub fn add_unit(&mut self, exchange: u64, slot: Slot, newest: bool) {
        let busy = self.busy();
        busy.units.push_back((exchange, slot));
        if newest {
            busy.newest = Some(slot);
        }
    }

    /// The live unit of an exchange, which is over.
    pub fn take_unit(&mut self, exchange: u64) -> Option<Slot> {
        let units = &mut self.busy.as_mut()?.units;
        let index = units.iter().position(|(number, _)| *number == exchange)?;
        units.remove(index).map(|(_, slot)| slot)
    }

    /// Its live units, oldest first.
    pub fn units(&self) -> impl Iterator<Item = Slot> {
        self.busy.iter().flat_map(|busy| busy.units.iter().map(|(_, slot)| *slot))
    }

    /// The oldest live unit, which is over.
    pub fn pop_unit(&mut self) -> Option<Slot> {
        self.busy.as_mut()?.units.pop_front().map(|(_, slot)| slot)
    }

    /// The unit that began last on it, while it is in use.
    pub fn newest(&self) -> Option<Slot> {
        self.busy.as_ref()?.newest
    }

    /// Which side of its requests this socket is, once its bytes said so.
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
