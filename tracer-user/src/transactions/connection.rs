//! One socket: its conversation, its addresses and the units on it.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tracer_common::event::{FAMILY_INET, FAMILY_INET6, FAMILY_UNIX, OPEN_MIDSTREAM, Open, ROLE_ACTIVE, ROLE_PASSIVE};

use super::live::{Cause, Slot};
use crate::model::{Direction, Nanos, Side};
use crate::protocols::Conversation;

/// One socket.
#[derive(Debug)]
pub struct Connection {
    /// What its bytes say.
    pub conversation: Conversation,
    /// Live units by exchange number, oldest first.
    pub units: VecDeque<(u64, Slot)>,
    /// The unit that began last on it.
    pub newest: Option<Slot>,
    /// The request in whose group it was opened, for its first call; and the thread, if that ran one at a time.
    pub opener: Option<(Slot, Option<u32>)>,
    /// Only its being opened was told: nothing was sent or received on it yet, and perhaps never is.
    pub announced: bool,
    /// It closed, and is forgotten soon.
    pub closing: bool,
    /// Who caused the turn under way, where this end asks.
    pub turn: Option<Box<Cause>>,
    /// Whether a call was already made on it.
    pub used: bool,
    /// Process that last used it.
    pub tgid: u32,
    /// Last operation.
    pub last: Nanos,
    /// Last wish sent to the kernel: positions to skip to and head sizes.
    pub asked: (u64, u64, u16, u16, u8),
    /// Local port.
    pub local_port: u16,
    /// Remote port.
    pub peer_port: u16,
    /// Remote address as text; empty for UNIX.
    pub peer: Arc<str>,
    /// Ends of the connection as TCP numbers them, local and remote; zero for UNIX.
    pub isn: (u32, u32),
    /// Sequence number of position 0 of each direction (receive, send), once seen.
    pub base: (Option<u32>, Option<u32>),
    /// UNIX: kernel addresses of this end and the other.
    pub unix: Option<(u64, u64)>,
}

impl Connection {
    /// A connection whose opening was not seen.
    pub fn unknown(midstream: bool, empty: &Arc<str>) -> Self {
        Self {
            conversation: Conversation::new(midstream),
            units: VecDeque::new(),
            newest: None,
            opener: None,
            announced: false,
            closing: false,
            turn: None,
            used: false,
            tgid: 0,
            last: 0,
            asked: (0, 0, 0, 0, 0),
            local_port: 0,
            peer_port: 0,
            peer: Arc::clone(empty),
            isn: (0, 0),
            base: (None, None),
            unix: None,
        }
    }

    /// Takes over what the kernel said at first sight; `timed`: turns are wanted whatever is spoken.
    pub fn opened(&mut self, open: &Open, timed: bool, empty: &Arc<str>) {
        if open.header.flags & OPEN_MIDSTREAM != 0 {
            self.conversation = Conversation::new(true);
        }
        let side = match open.role {
            ROLE_PASSIVE => Some(Side::Server),
            ROLE_ACTIVE => Some(Side::Client),
            _ => None,
        };
        self.conversation.opened(side, timed);
        self.announced = false;
        self.tgid = open.header.tgid;
        self.last = open.header.nanos;
        self.local_port = open.local_port;
        self.peer_port = open.remote_port;
        // A datagram socket may have no peer of its own.
        let address = address(open).filter(|_| open.remote_port != 0);
        self.peer = address.map_or_else(|| Arc::clone(empty), Arc::from);
        self.isn = (open.isn_local, open.isn_remote);
        self.unix = (open.family == FAMILY_UNIX && open.peer != 0).then_some((open.sk, open.peer));
    }

    /// TCP sequence number of stream position `pos`.
    pub fn seq(&self, dir: Direction, pos: u64) -> Option<u32> {
        let base = match dir {
            Direction::Rx => self.base.0,
            Direction::Tx => self.base.1,
        };
        base.map(|base| base.wrapping_add(pos as u32))
    }

    /// The live unit of an exchange.
    pub fn unit(&self, exchange: u64) -> Option<Slot> {
        self.units.iter().find(|(number, _)| *number == exchange).map(|(_, slot)| *slot)
    }

    /// Which side of its requests this socket is, once its bytes said so.
    pub fn side(&self) -> Option<Side> {
        self.conversation.side()
    }
}

fn address(open: &Open) -> Option<String> {
    match open.family {
        FAMILY_INET => {
            let [a, b, c, d, ..] = open.remote;
            Some(Ipv4Addr::new(a, b, c, d).to_string())
        }
        FAMILY_INET6 => {
            let address = Ipv6Addr::from(open.remote);
            Some(address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string()))
        }
        _ => None,
    }
}
