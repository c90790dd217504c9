//! What request classes cost by the class of the request that began the transaction: its *root*.
//!
//! The root of a request is the first request of its transaction that a service on a traced host served. Every span whose
//! parent is certain or confirmed has its parent's root, whichever of the two is reported first. A request whose caller is
//! not traced is its own root, and so is one that a program calls which serves no requests itself. A call with an ambiguous
//! parent or none has no root, nor has what is below it.
//!
//! Everything that is charged to a class is in exactly one row of the class: that of a root, *no root*, *other* (roots that
//! found no place of their own), or *open* (charged to requests whose root is not known yet). So the rows of a class always
//! add up to the class. A request's charge moves out of *open* as soon as the request and all above it are reported.

mod book;
mod edges;
mod names;
mod resolution;

use std::sync::Arc;

use book::Book;
use edges::{Edges, SpanEnds};
use names::RootNames;
use resolution::{Charge, Resolution, SpanRoot};
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{ClassId, Cost, Names, Nanos, Owner, Span, SpanId};

pub use book::Sums;
pub use edges::{Callee, Caller, EdgeKey, EdgeSums, ExternalPeer, ExternalPeerId};
pub use names::RootId;

/// Most names of roots.
const NAMES: usize = 16_384;
/// Most rows: a class and a root each.
const ROWS: usize = 32_768;
/// Reported spans whose root is remembered, for spans below them that are reported later.
const REPORTED: usize = 65_536;
/// Charges that wait until the root of their span is known.
const WAITING: usize = 32_768;
/// Most rows of edges in a window, and most other ends elsewhere.
const EDGES: usize = 1024;
const PEERS: usize = 1024;

/// What a reported span says about its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootLink {
    /// It is the root.
    First,
    /// It has that of this span, which may be reported later.
    Below(SpanId),
    /// A call for no request: the request at its other end is a root, the call itself has none.
    Begins,
    /// It has this one, which another host's agent named.
    Named(RootId),
    /// It has none: its parent is not certain, or not known.
    Unknown,
}

/// The root of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowRoot {
    /// A request class, by service and name.
    Class(Arc<str>, Arc<str>),
    /// No root is known, and none will be.
    Unknown,
    /// Roots without rows of their own.
    Other,
    /// Not known yet.
    Open,
}

/// What one class cost for one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootRow {
    /// The class.
    pub class: ClassId,
    /// The root.
    pub root: RowRoot,
    /// Since the start.
    pub sums: Sums,
}

/// What is known of a span's root by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownRoot {
    /// The request at the other end of this call is a root.
    Begins,
    /// A request class, by service and name.
    Class(Arc<str>, Arc<str>),
    /// None.
    Unknown,
}

/// The books of roots.
#[derive(Debug)]
pub struct Roots {
    names: RootNames,
    resolution: Resolution,
    book: Book,
    /// Rows of the window that is open, if there are windows.
    edges: Option<Edges>,
    memory: u64,
    /// Charges whose root became known, on their way to the book.
    found: Vec<(RootId, Charge)>,
}

impl Roots {
    /// For an agent that may take `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        Self {
            names: RootNames::new(scaled(NAMES, memory)),
            resolution: Resolution::new(scaled(REPORTED, memory), scaled(WAITING, memory)),
            book: Book::new(scaled(ROWS, memory)),
            edges: None,
            memory,
            found: Vec::new(),
        }
    }

    /// From here on there are windows, with rows by caller and root.
    pub fn collect_edges(&mut self) {
        self.edges = Some(Edges::new(scaled(EDGES, self.memory), scaled(PEERS, self.memory)));
    }

    /// Ends a window: what every class had since the last one, by caller and root. Call it when all costs so far were passed
    /// on.
    pub fn take_edges(&mut self) -> Vec<(EdgeKey, EdgeSums)> {
        self.edges.as_mut().map(Edges::take).unwrap_or_default()
    }

    /// What the other end of an edge is.
    pub fn external_peer(&self, id: ExternalPeerId) -> ExternalPeer {
        self.edges.as_ref().map_or(ExternalPeer::Other, |edges| edges.peer(id))
    }

    /// What a root is called.
    pub fn root(&self, root: RootId) -> RowRoot {
        match self.names.get(root) {
            Some((service, class)) => RowRoot::Class(service, class),
            None if root == RootId::OTHER => RowRoot::Other,
            None => RowRoot::Unknown,
        }
    }

    /// The id of a root that another host's agent names.
    pub fn named(&mut self, service: &Arc<str>, class: &Arc<str>) -> RootId {
        self.names.of_peer(service, class)
    }

    /// A span was reported. `charged`: what was charged to its class for it so far.
    pub fn span(&mut self, names: &Names, span: &Span, link: RootLink, charged: Cost) {
        let own = self.names.of_class(names, span.class);
        let sums = Sums { cost: Cost::default(), ..Sums::of(span) };
        self.count(span.class, &sums);
        let ends = self.edges.as_mut().map_or_else(SpanEnds::default, |edges| edges.ends(span));
        let charge = Charge { class: span.class, ends, sums: Sums { cost: charged, ..sums } };
        self.resolution.reported(span.id, link, own, charge, &mut self.found);
        self.place_found();
    }

    /// Requests of a class were counted that nothing more is known of than `span`, the same for each.
    pub fn counted(&mut self, span: &Span, count: u64) {
        let one = Sums { cost: Cost::default(), ..Sums::of(span) };
        let sums = Sums {
            count,
            errors: one.errors * count,
            unfinished: one.unfinished * count,
            duration: one.duration * count,
            queue: one.queue * count,
            ..Sums::default()
        };
        self.count(span.class, &sums);
        self.rootless(span.class, sums);
    }

    /// Such requests cost this, which was charged to their class.
    pub fn counted_cost(&mut self, class: ClassId, cost: Cost) {
        self.rootless(class, Sums { cost, ..Sums::default() });
    }

    /// The class has so much more.
    fn count(&mut self, class: ClassId, sums: &Sums) {
        self.book.count(class, sums);
        if let Some(edges) = &mut self.edges {
            edges.count(class, sums);
        }
    }

    /// Nothing will be known of where this comes from.
    fn rootless(&mut self, class: ClassId, sums: Sums) {
        self.found.push((RootId::UNKNOWN, Charge { class, ends: SpanEnds::default(), sums }));
        self.place_found();
    }

    /// Work was charged to a class for a span that is reported already.
    pub fn late(&mut self, span: Option<SpanId>, class: ClassId, cost: Cost) {
        let charge = Charge { class, ends: SpanEnds::default(), sums: Sums { cost, ..Sums::default() } };
        self.resolution.late(span, charge, &mut self.found);
        self.place_found();
    }

    fn place_found(&mut self) {
        for (root, charge) in self.found.drain(..) {
            self.book.place(root, &charge);
            if let Some(edges) = &mut self.edges {
                edges.know(root, &charge);
            }
        }
    }

    /// Costs were charged; see [`Sink::cost`](tracer_model::Sink::cost).
    pub fn cost(&mut self, owner: Owner, cost: Cost) {
        if let Owner::Class(class) = owner {
            self.book.cost(class, cost);
            if let Some(edges) = &mut self.edges {
                edges.cost(class, cost);
            }
        }
    }

    /// All costs charged until now were passed on; about once a second.
    pub fn tick(&mut self, now: Nanos) {
        self.resolution.tick(now, &mut self.found);
        self.place_found();
        self.book.settle();
    }

    /// What is known of the root of a reported span.
    pub fn known(&self, span: SpanId) -> KnownRoot {
        match self.resolution.known(span).map(|resolved| resolved.root) {
            Some(SpanRoot::Begins) => KnownRoot::Begins,
            Some(SpanRoot::Root(root)) => {
                self.names.get(root).map_or(KnownRoot::Unknown, |(service, class)| KnownRoot::Class(service, class))
            }
            None => KnownRoot::Unknown,
        }
    }

    /// Every row, in no order. Those of a class add up to what the class has.
    pub fn rows(&self) -> Vec<RootRow> {
        let rows = self.book.rows().map(|(class, root, sums)| RootRow { class, root: self.root(root), sums });
        let open = self.book.open().map(|(class, sums)| RootRow { class, root: RowRoot::Open, sums });
        rows.chain(open).collect()
    }

    /// Names, rows, reported spans that are remembered, charges that wait; rows of edges, and other ends elsewhere.
    pub fn table_use(&self) -> [TableUse; 6] {
        let [reported, waiting] = self.resolution.table_use();
        let [edges, peers] = self.edges.as_ref().map(Edges::table_use).unwrap_or_default();
        [self.names.table_use(), self.book.table_use(), reported, waiting, edges, peers]
    }
}

#[cfg(test)]
mod tests;
