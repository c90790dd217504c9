//! Which root reported spans have. Spans are reported in any order: a span whose parent is not reported yet waits for it,
//! with everything that waits for the span.

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Nanos, SpanId};

use super::RootLink;
use super::book::Sums;
use super::edges::{Caller, SpanEnds};
use super::names::RootId;

/// How long a charge waits at least before it is given up, nanoseconds; at most twice as long. The request above may go on
/// for that long.
const PATIENCE: Nanos = 600_000_000_000;

/// What a span came to, and for which class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) class: ClassId,
    /// Caller and callee; not known of work that is charged after the report, before its span is found.
    pub(super) ends: SpanEnds,
    pub(super) sums: Sums,
}

impl Charge {
    /// That of a request that is a root.
    fn of_root(self) -> Self {
        Self { sums: Sums { first: self.sums.count, ..self.sums }, ..self }
    }

    fn called_by(self, caller: Caller) -> Self {
        Self { ends: SpanEnds { caller, ..self.ends }, ..self }
    }

    /// What its span is to those below it.
    fn caller_below(&self) -> Caller {
        if self.ends.is_call { self.ends.caller } else { Caller::Request(self.class) }
    }
}

/// The root of a reported span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanRoot {
    /// A call for no request: what serves it is a root.
    Begins,
    /// This one.
    Root(RootId),
}

impl SpanRoot {
    /// That of the span itself.
    fn root(self) -> RootId {
        match self {
            Self::Begins => RootId::UNKNOWN,
            Self::Root(root) => root,
        }
    }

    /// That of a span below it, which is called `own` if it is a root.
    fn below(self, own: RootId) -> Self {
        match self {
            Self::Begins => Self::Root(own),
            Self::Root(root) => Self::Root(root),
        }
    }
}

/// What is known of a reported span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolvedSpan {
    pub(super) root: SpanRoot,
    /// Who called it, and what it is to those below it.
    caller: Caller,
    caller_below: Caller,
}

impl ResolvedSpan {
    fn new(root: SpanRoot, charge: &Charge) -> Self {
        Self { root, caller: charge.ends.caller, caller_below: charge.caller_below() }
    }
}

/// A charge that waits for the root of another span, or of its own.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    span: SpanId,
    own: RootId,
    charge: Charge,
}

impl Waiter {
    /// Its charge, now that what is above is known.
    fn charge_below(&self, above: ResolvedSpan) -> Charge {
        let charge = self.charge.called_by(above.caller_below);
        if above.root == SpanRoot::Begins { charge.of_root() } else { charge }
    }
}

/// Waiters by the span that they wait for.
#[derive(Debug, Default)]
struct Waiting {
    of: FxHashMap<SpanId, SmallVec<[Waiter; 1]>>,
    len: usize,
}

/// Reported spans, and charges that wait. Both in two generations: when the younger one is full, the older one goes.
#[derive(Debug)]
pub(super) struct Resolution {
    young: FxHashMap<SpanId, ResolvedSpan>,
    old: FxHashMap<SpanId, ResolvedSpan>,
    limit: usize,
    forgotten: u64,
    waiting: Waiting,
    waiting_long: Waiting,
    waiting_most: usize,
    given_up: u64,
    /// When waiting charges last became old.
    aged: Nanos,
}

impl Resolution {
    pub(super) fn new(limit: usize, waiting_most: usize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            limit,
            forgotten: 0,
            waiting: Waiting::default(),
            waiting_long: Waiting::default(),
            waiting_most,
            given_up: 0,
            aged: 0,
        }
    }

    /// The root of a reported span, if it is known and not forgotten.
    pub(super) fn known(&self, span: SpanId) -> Option<ResolvedSpan> {
        self.young.get(&span).or_else(|| self.old.get(&span)).copied()
    }

    /// A span was reported, which is called `own` if it is a root. Adds the charges whose root is known by that to `found`.
    pub(super) fn reported(
        &mut self,
        span: SpanId,
        link: RootLink,
        own: RootId,
        charge: Charge,
        found: &mut Vec<(RootId, Charge)>,
    ) {
        let charge = if link == RootLink::First { charge.of_root() } else { charge };
        let root = match link {
            RootLink::First => SpanRoot::Root(own),
            RootLink::Begins => SpanRoot::Begins,
            RootLink::Named(root) => SpanRoot::Root(root),
            RootLink::Unknown => SpanRoot::Root(RootId::UNKNOWN),
            RootLink::Below(above) => match self.known(above) {
                Some(above) => return self.below(above, &Waiter { span, own, charge }, found),
                None => return self.wait(above, Waiter { span, own, charge }, found),
            },
        };
        found.push((root.root(), charge));
        self.resolve(span, ResolvedSpan::new(root, &charge), found);
    }

    /// A reported span is below another whose root is known.
    fn below(&mut self, above: ResolvedSpan, of: &Waiter, found: &mut Vec<(RootId, Charge)>) {
        let (root, charge) = (above.root.below(of.own), of.charge_below(above));
        found.push((root.root(), charge));
        self.resolve(of.span, ResolvedSpan::new(root, &charge), found);
    }

    /// A reported span is charged once more.
    pub(super) fn late(&mut self, span: Option<SpanId>, charge: Charge, found: &mut Vec<(RootId, Charge)>) {
        let Some(span) = span else { return found.push((RootId::UNKNOWN, charge)) };
        match self.known(span) {
            Some(resolved) => found.push((resolved.root.root(), charge.called_by(resolved.caller))),
            // It waits itself.
            None => self.wait(span, Waiter { span, own: RootId::UNKNOWN, charge }, found),
        }
    }

    fn wait(&mut self, above: SpanId, waiter: Waiter, found: &mut Vec<(RootId, Charge)>) {
        if self.waiting.len >= self.waiting_most / 2 {
            self.give_up(found);
        }
        self.waiting.len += 1;
        self.waiting.of.entry(above).or_default().push(waiter);
    }

    /// The root of a span is known: passes it on to all that wait for it.
    fn resolve(&mut self, span: SpanId, resolved: ResolvedSpan, found: &mut Vec<(RootId, Charge)>) {
        let mut next: SmallVec<[(SpanId, ResolvedSpan); 4]> = smallvec![(span, resolved)];
        while let Some((span, resolved)) = next.pop() {
            self.remember(span, resolved);
            for waiting in [&mut self.waiting, &mut self.waiting_long] {
                if waiting.len == 0 {
                    continue;
                }
                let waiters = waiting.of.remove(&span).unwrap_or_default();
                waiting.len = waiting.len.saturating_sub(waiters.len());
                for waiter in waiters {
                    if waiter.span == span {
                        found.push((resolved.root.root(), waiter.charge.called_by(resolved.caller)));
                        continue;
                    }
                    let (root, charge) = (resolved.root.below(waiter.own), waiter.charge_below(resolved));
                    found.push((root.root(), charge));
                    next.push((waiter.span, ResolvedSpan::new(root, &charge)));
                }
            }
        }
    }

    fn remember(&mut self, span: SpanId, resolved: ResolvedSpan) {
        if self.young.len() >= self.limit / 2 {
            self.forgotten += self.old.len() as u64;
            // The memory of the older generation is that of the next.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.young.insert(span, resolved);
    }

    /// Charges that have waited longest have no root; those that came since wait on.
    fn give_up(&mut self, found: &mut Vec<(RootId, Charge)>) {
        let long = std::mem::replace(&mut self.waiting_long, std::mem::take(&mut self.waiting));
        self.given_up += long.len as u64;
        for waiter in long.of.into_values().flatten() {
            found.push((RootId::UNKNOWN, waiter.charge));
            self.resolve(waiter.span, ResolvedSpan::new(SpanRoot::Root(RootId::UNKNOWN), &waiter.charge), found);
        }
    }

    /// About once a second.
    pub(super) fn tick(&mut self, now: Nanos, found: &mut Vec<(RootId, Charge)>) {
        if now.saturating_sub(self.aged) >= PATIENCE {
            self.aged = now;
            self.give_up(found);
        }
    }

    /// Reported spans, and charges that wait.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        [
            TableUse::new(self.young.len() + self.old.len(), self.limit, self.forgotten),
            TableUse::new(self.waiting.len + self.waiting_long.len, self.waiting_most, self.given_up),
        ]
    }
}
