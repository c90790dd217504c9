//! Sums by class and root.

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Cost, Outcome, Span};

use super::names::RootId;
use super::resolution::Charge;

/// Most roots with a row of their own in one class.
pub(super) const ROOTS_OF_CLASS: usize = 64;

/// What spans came to. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Spans.
    pub count: u64,
    /// Of these, requests that are roots. Known with the root, so a class's own sum has none.
    pub first: u64,
    /// Failed ones.
    pub errors: u64,
    /// Those of which the agent saw neither the end nor a status of failure; not errors.
    pub unfinished: u64,
    /// First byte to last byte.
    pub duration: u64,
    /// Before that: arrived, not yet read.
    pub queue: u64,
    /// While at least one downstream call was open.
    pub downstream: u64,
    /// CPU and waiting.
    pub cost: Cost,
}

impl Sums {
    /// Those of one span, with its cost as of its report.
    pub fn of(span: &Span) -> Self {
        Self {
            count: 1,
            first: 0,
            errors: u64::from(span.error),
            unfinished: u64::from(!span.error && span.outcome == Outcome::Unfinished),
            duration: span.duration(),
            queue: span.queue(),
            downstream: span.downstream,
            cost: span.cost,
        }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.first += other.first;
        self.errors += other.errors;
        self.unfinished += other.unfinished;
        self.duration += other.duration;
        self.queue += other.queue;
        self.downstream += other.downstream;
        self.cost.add(other.cost);
    }

    /// Takes `other` off, which is a part of it.
    fn subtract(&mut self, other: &Self) {
        let less = |sum: &mut u64, part: u64| *sum = sum.saturating_sub(part);
        less(&mut self.count, other.count);
        less(&mut self.errors, other.errors);
        less(&mut self.unfinished, other.unfinished);
        less(&mut self.duration, other.duration);
        less(&mut self.queue, other.queue);
        less(&mut self.downstream, other.downstream);
        less(&mut self.cost.cpu, other.cost.cpu);
        less(&mut self.cost.runq, other.cost.runq);
        less(&mut self.cost.blocked, other.cost.blocked);
        less(&mut self.cost.switches, other.cost.switches);
    }
}

/// One class.
#[derive(Debug, Default)]
struct ClassSums {
    /// Everything charged to it.
    total: Sums,
    /// Roots with rows of their own.
    roots: Vec<RootId>,
}

/// All sums.
#[derive(Debug)]
pub(super) struct Book {
    classes: Vec<ClassSums>,
    rows: FxHashMap<(ClassId, RootId), Sums>,
    /// Costs of spans whose root is known. The class gets a part of each with the next costs that are passed on, and the
    /// rows must not have it before: they would add up to more than the class.
    moves: FxHashMap<(ClassId, RootId), Cost>,
    limit: usize,
    evicted: u64,
}

impl Book {
    pub(super) fn new(limit: usize) -> Self {
        Self { classes: Vec::new(), rows: FxHashMap::default(), moves: FxHashMap::default(), limit, evicted: 0 }
    }

    fn class(&mut self, class: ClassId) -> Option<&mut ClassSums> {
        let index = class.0 as usize;
        if self.classes.len() <= index {
            self.classes.resize_with(index + 1, ClassSums::default);
        }
        self.classes.get_mut(index)
    }

    /// The class has one span more.
    pub(super) fn count(&mut self, class: ClassId, sums: &Sums) {
        if let Some(class) = self.class(class) {
            class.total.add(sums);
        }
    }

    /// The class is charged.
    pub(super) fn cost(&mut self, class: ClassId, cost: Cost) {
        if let Some(class) = self.class(class) {
            class.total.cost.add(cost);
        }
    }

    /// A part of what the class has belongs to `root`.
    pub(super) fn place(&mut self, root: RootId, charge: &Charge) {
        if charge.sums.cost != Cost::default() {
            self.moves.entry((charge.class, root)).or_default().add(charge.sums.cost);
        }
        self.add(charge.class, root, &Sums { cost: Cost::default(), ..charge.sums });
    }

    /// All costs charged so far were passed on.
    pub(super) fn settle(&mut self) {
        for ((class, root), cost) in std::mem::take(&mut self.moves) {
            self.add(class, root, &Sums { cost, ..Sums::default() });
        }
    }

    fn add(&mut self, class: ClassId, root: RootId, sums: &Sums) {
        if *sums == Sums::default() {
            return;
        }
        if let Some(row) = self.rows.get_mut(&(class, root)) {
            row.add(sums);
            return;
        }
        let root = if root.is_class() { self.admit(class, root) } else { root };
        self.rows.entry((class, root)).or_default().add(sums);
    }

    /// Gives a root a row of the class. Where there is no room, the row with the fewest requests goes into that of others.
    fn admit(&mut self, class: ClassId, root: RootId) -> RootId {
        let full = self.rows.len() >= self.limit;
        let rows = &self.rows;
        let count = |root: RootId| rows.get(&(class, root)).map_or(0, |sums| sums.count);
        let Some(of_class) = self.classes.get_mut(class.0 as usize) else { return RootId::OTHER };
        if full || of_class.roots.len() >= ROOTS_OF_CLASS {
            self.evicted += 1;
            let least = of_class.roots.iter().enumerate().min_by_key(|(_, root)| count(**root));
            let Some((at, least)) = least.map(|(at, root)| (at, *root)) else { return RootId::OTHER };
            of_class.roots.swap_remove(at);
            of_class.roots.push(root);
            if let Some(sums) = self.rows.remove(&(class, least)) {
                self.rows.entry((class, RootId::OTHER)).or_default().add(&sums);
            }
        } else {
            of_class.roots.push(root);
        }
        root
    }

    /// Rows by class and root.
    pub(super) fn rows(&self) -> impl Iterator<Item = (ClassId, RootId, Sums)> + '_ {
        self.rows.iter().map(|((class, root), sums)| (*class, *root, *sums))
    }

    /// What classes have that no row has yet.
    pub(super) fn open(&self) -> impl Iterator<Item = (ClassId, Sums)> + use<> {
        let mut open: Vec<Sums> = self.classes.iter().map(|class| class.total).collect();
        for ((class, _), sums) in &self.rows {
            if let Some(open) = open.get_mut(class.0 as usize) {
                open.subtract(sums);
            }
        }
        let all = open.into_iter().enumerate().map(|(index, sums)| (ClassId(index as u32), sums));
        all.filter(|(_, sums)| *sums != Sums::default())
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.rows.len(), self.limit, self.evicted)
    }
}
