//! What classes had within one window, by caller and root: the rows of the history's table of edges.
//!
//! A span is counted for its class when it is reported; who called it, and its root, may be known in a later window. So the
//! rows of a class are what became known in the window, and one row is what is open: what was counted and charged less what
//! became known, which may be less than nothing. Together they are what the class had, exactly.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Cost, ServiceId, Side, Span};

use super::book::Sums;
use super::names::RootId;
use super::resolution::Charge;

/// The other end of a span, where that is no class or service of this host, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExternalPeerId(u64);

impl ExternalPeerId {
    /// One that found no number of its own.
    const OTHER: Self = Self(u64::MAX);
}

/// What an [`ExternalPeerId`] stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExternalPeer {
    /// A host with an agent, and the service there; empty: not known.
    Remote(Arc<str>, Arc<str>),
    /// Address and port; without an address a UNIX socket.
    Address(Arc<str>, u16),
    /// Of those that found no number of their own.
    Other,
}

/// Who made the requests, or the calls, of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Caller {
    /// Not known.
    #[default]
    Unknown,
    /// A request of this class.
    Request(ClassId),
    /// The program whose calls have this class: for no request, or it is not certain for which.
    Program(ClassId),
    /// A program on another host.
    Remote(ExternalPeerId),
    /// Callers without rows of their own.
    Other,
}

/// Who answers calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Callee {
    /// The spans are no calls, or it is not known.
    #[default]
    Unknown,
    /// A service of this host.
    Service(ServiceId),
    /// What is elsewhere.
    External(ExternalPeerId),
}

/// Both ends of a span as far as it says itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpanEnds {
    /// Of a call: its own program, until the request that made it is known.
    pub(super) caller: Caller,
    pub(super) callee: Callee,
    pub(super) is_call: bool,
}

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeKey {
    /// The class whose spans they are.
    pub class: ClassId,
    /// Who made them.
    pub caller: Caller,
    /// Who answers.
    pub callee: Callee,
    /// The root; `None`: not known yet, nor is the caller.
    pub root: Option<RootId>,
}

/// Sums of a row, nanoseconds. Those of what is open may be less than nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeSums {
    /// Spans.
    pub count: i64,
    /// Of these, requests that are roots.
    pub first: u64,
    /// Failed ones.
    pub errors: i64,
    /// First byte to last byte.
    pub duration: i64,
    /// Before that: arrived, not yet read.
    pub queue: i64,
    /// While at least one downstream call was open.
    pub downstream: i64,
    /// On CPU.
    pub cpu: i64,
    /// Runnable, waiting for a CPU.
    pub runqueue: i64,
    /// Blocked while holding the request.
    pub blocked: i64,
}

impl EdgeSums {
    fn add(&mut self, sums: &Sums) {
        self.first += sums.first;
        self.move_by(sums, 1);
    }

    /// Adds everything but the number of roots `times`, once or less once.
    fn move_by(&mut self, sums: &Sums, times: i64) {
        let by = |nanos: u64| times * nanos as i64;
        self.count += by(sums.count);
        self.errors += by(sums.errors);
        self.duration += by(sums.duration);
        self.queue += by(sums.queue);
        self.downstream += by(sums.downstream);
        self.cpu += by(sums.cost.cpu);
        self.runqueue += by(sums.cost.runq);
        self.blocked += by(sums.cost.blocked);
    }
}

/// The window that is open.
#[derive(Debug)]
pub(super) struct Edges {
    rows: FxHashMap<EdgeKey, EdgeSums>,
    /// Of each class, what has no row.
    open: FxHashMap<ClassId, EdgeSums>,
    limit: usize,
    refused: u64,
    /// Those with a number, and the number of the first.
    peers: Vec<ExternalPeer>,
    first_peer: u64,
    /// The last window filled the table: it is cleared once that window's rows have their names.
    was_full: bool,
    peer_ids: FxHashMap<ExternalPeer, ExternalPeerId>,
    peers_limit: usize,
    peers_refused: u64,
}

impl Edges {
    /// At most so many rows, and one a class for what finds no room; so many other ends elsewhere.
    pub(super) fn new(limit: usize, peers_limit: usize) -> Self {
        Self {
            rows: FxHashMap::default(),
            open: FxHashMap::default(),
            limit,
            refused: 0,
            peers: Vec::new(),
            first_peer: 0,
            was_full: false,
            peer_ids: FxHashMap::default(),
            peers_limit,
            peers_refused: 0,
        }
    }

    /// Both ends of a span.
    pub(super) fn ends(&mut self, span: &Span) -> SpanEnds {
        if span.side == Side::Server {
            let remote = span.remote.as_deref().filter(|remote| remote.end.is_none());
            let peer = remote.map(|remote| ExternalPeer::Remote(Arc::clone(&remote.host), Arc::clone(&remote.service)));
            let caller = peer.map_or(Caller::Unknown, |peer| Caller::Remote(self.peer_id(peer)));
            return SpanEnds { caller, ..SpanEnds::default() };
        }
        let callee = match (span.callee, span.remote.as_deref()) {
            (Some(service), _) => Callee::Service(service),
            (None, Some(remote)) => Callee::External(
                self.peer_id(ExternalPeer::Remote(Arc::clone(&remote.host), Arc::clone(&remote.service))),
            ),
            (None, None) => {
                Callee::External(self.peer_id(ExternalPeer::Address(Arc::clone(&span.peer), span.peer_port)))
            }
        };
        SpanEnds { caller: Caller::Program(span.class), callee, is_call: true }
    }

    fn peer_id(&mut self, peer: ExternalPeer) -> ExternalPeerId {
        if std::mem::take(&mut self.was_full) {
            // No number is given twice: charges that wait for their root may have an older one.
            self.first_peer += self.peers.len() as u64;
            self.peers.clear();
            self.peer_ids.clear();
        }
        if let Some(id) = self.peer_ids.get(&peer) {
            return *id;
        }
        if self.peers.len() >= self.peers_limit {
            self.peers_refused += 1;
            return ExternalPeerId::OTHER;
        }
        let id = ExternalPeerId(self.first_peer + self.peers.len() as u64);
        self.peers.push(peer.clone());
        self.peer_ids.insert(peer, id);
        id
    }

    /// What a number stands for.
    pub(super) fn peer(&self, id: ExternalPeerId) -> ExternalPeer {
        let index = id.0.checked_sub(self.first_peer).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.peers.get(index)).cloned().unwrap_or(ExternalPeer::Other)
    }

    /// The class has one span more.
    pub(super) fn count(&mut self, class: ClassId, sums: &Sums) {
        self.open.entry(class).or_default().move_by(sums, 1);
    }

    /// The class is charged.
    pub(super) fn cost(&mut self, class: ClassId, cost: Cost) {
        self.count(class, &Sums { cost, ..Sums::default() });
    }

    /// Caller and root of a part of what the class has are known.
    pub(super) fn know(&mut self, root: RootId, charge: &Charge) {
        if charge.sums == Sums::default() {
            return;
        }
        self.open.entry(charge.class).or_default().move_by(&charge.sums, -1);
        let SpanEnds { caller, callee, .. } = charge.ends;
        let mut key = EdgeKey { class: charge.class, caller, callee, root: Some(root) };
        if self.rows.len() >= self.limit && !self.rows.contains_key(&key) {
            self.refused += 1;
            key = EdgeKey { caller: Caller::Other, callee: Callee::Unknown, root: Some(RootId::OTHER), ..key };
        }
        self.rows.entry(key).or_default().add(&charge.sums);
    }

    /// Ends the window: its rows in a fixed order, with those of what is open. Name their peers before the next span is reported.
    pub(super) fn take(&mut self) -> Vec<(EdgeKey, EdgeSums)> {
        let key = |class| EdgeKey { class, caller: Caller::Unknown, callee: Callee::Unknown, root: None };
        let open = self.open.drain().filter(|(_, sums)| *sums != EdgeSums::default());
        let mut rows: Vec<(EdgeKey, EdgeSums)> = open.map(|(class, sums)| (key(class), sums)).collect();
        rows.extend(self.rows.drain());
        rows.sort_unstable_by_key(|(key, _)| *key);
        self.was_full = self.peers.len() >= self.peers_limit;
        rows
    }

    /// Rows of the window that is open, and other ends elsewhere.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        [
            TableUse::new(self.rows.len(), self.limit, self.refused),
            TableUse::new(self.peers.len(), self.peers_limit, self.peers_refused),
        ]
    }
}
