//! Units that the callbacks of an event loop tie together, and the requests among them.
//!
//! A callback that reads the reply of a call and sends another one, or writes an answer, ties the two together. What is
//! tied to one request was done for it; where two are, nothing tells which. A forest with union by rank: a knot lives as
//! long as its unit, or a knot below it, does.

use super::live::{Kept, Slot};
use crate::model::Nanos;

/// A unit's place in the forest. Its unit gives it back exactly once ([`Knots::untie`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knot(u32);

/// A request, and what is remembered of it when it is reported.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The request.
    pub slot: Slot,
    /// When it was read.
    pub since: Nanos,
    /// Its id, transaction, service and class.
    pub kept: Kept,
}

/// Whose a unit is, by what it is tied to.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    /// Nobody's that was seen.
    Nobody,
    /// One request's.
    One(Asker),
    /// Several requests meet.
    Several,
}

#[derive(Debug)]
struct Entry {
    /// Itself, at a root.
    above: u32,
    /// Its unit, while that lives, and the knots right below it.
    holds: u32,
    rank: u8,
    /// At a root: what is below it.
    whose: Whose,
    /// At a root: units that are not over.
    open: u32,
}

/// All knots.
#[derive(Debug, Default)]
pub struct Knots {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Knots {
    /// Knots there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A knot for a unit, which is `whose`.
    pub fn tie(&mut self, whose: Whose) -> Knot {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        let entry = Entry { above: index, holds: 1, rank: 0, whose, open: 1 };
        match self.entries.get_mut(index as usize) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        Knot(index)
    }

    fn root(&self, knot: Knot) -> u32 {
        let mut index = knot.0;
        while let Some(entry) = self.entries.get(index as usize) {
            if entry.above == index {
                break;
            }
            index = entry.above;
        }
        index
    }

    /// Ties two units together.
    pub fn join(&mut self, one: Knot, other: Knot) {
        let (one, other) = (self.root(one), self.root(other));
        if one == other {
            return;
        }
        let rank = |index: u32| self.entries.get(index as usize).map_or(0, |entry| entry.rank);
        let (top, below) = if rank(one) < rank(other) { (other, one) } else { (one, other) };
        let deeper = rank(one) == rank(other);
        let Some(entry) = self.entries.get_mut(below as usize) else { return };
        entry.above = top;
        let (whose, open) = (entry.whose, entry.open);
        let Some(entry) = self.entries.get_mut(top as usize) else { return };
        entry.holds += 1;
        entry.rank += u8::from(deeper);
        entry.open += open;
        entry.whose = match (entry.whose, whose) {
            (Whose::Nobody, whose) | (whose, Whose::Nobody) => whose,
            (Whose::One(one), Whose::One(other)) if one.slot == other.slot => Whose::One(one),
            _ => Whose::Several,
        };
    }

    /// Whether the units are tied together.
    pub fn are_tied(&self, one: Knot, other: Knot) -> bool {
        self.root(one) == self.root(other)
    }

    /// Whose the unit is.
    pub fn whose(&self, knot: Knot) -> Whose {
        self.entries.get(self.root(knot) as usize).map_or(Whose::Nobody, |entry| entry.whose)
    }

    /// Whether a unit that is tied to this one, or itself, is not over.
    pub fn is_open(&self, knot: Knot) -> bool {
        self.entries.get(self.root(knot) as usize).is_some_and(|entry| entry.open > 0)
    }

    /// Remembers what is known of the request by now.
    pub fn keep(&mut self, knot: Knot, slot: Slot, kept: Kept) {
        let root = self.root(knot);
        if let Some(Entry { whose: Whose::One(asker), .. }) = self.entries.get_mut(root as usize)
            && asker.slot == slot
        {
            asker.kept = kept;
        }
    }

    /// The unit is over.
    pub fn over(&mut self, knot: Knot) {
        let root = self.root(knot);
        if let Some(entry) = self.entries.get_mut(root as usize) {
            entry.open = entry.open.saturating_sub(1);
        }
    }

    /// Gives back the room that a while of many units took.
    pub fn give_back(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// The unit is reported: its knot goes as soon as none is below it.
    pub fn untie(&mut self, knot: Knot) {
        let mut index = knot.0;
        while let Some(entry) = self.entries.get_mut(index as usize) {
            entry.holds = entry.holds.saturating_sub(1);
            if entry.holds > 0 {
                return;
            }
            let above = entry.above;
            self.free.push(index);
            if above == index {
                return;
            }
            index = above;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ServiceId, TraceId, UnitId};

    fn asker(number: u32) -> Asker {
        let kept = (UnitId(number.into()), TraceId(1), ServiceId(0), None);
        Asker { slot: Slot::numbered(number), since: 1, kept }
    }

    #[test]
    fn what_is_tied_to_one_request_is_its_and_to_two_nobody_s() {
        let (first, second) = (asker(1), asker(2));
        let mut knots = Knots::default();
        let request = knots.tie(Whose::One(first));
        let calls: Vec<Knot> = (0..4).map(|_| knots.tie(Whose::Nobody)).collect();
        knots.join(calls[0], calls[1]);
        assert!(matches!(knots.whose(calls[0]), Whose::Nobody));
        knots.join(calls[1], request);
        assert!(matches!(knots.whose(calls[0]), Whose::One(asker) if asker.slot == first.slot));
        let other = knots.tie(Whose::One(second));
        knots.join(other, calls[2]);
        knots.join(calls[2], calls[0]);
        for knot in [request, other, calls[0], calls[1], calls[2]] {
            assert!(matches!(knots.whose(knot), Whose::Several));
        }
        assert!(matches!(knots.whose(calls[3]), Whose::Nobody), "it is tied to none of them");
    }

    #[test]
    fn knots_go_with_the_last_that_needs_them() {
        let first = asker(1);
        let mut knots = Knots::default();
        // In any order of their ends what is left knows whose it is.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let all: Vec<Knot> =
                (0..4).map(|index| knots.tie(if index == 2 { Whose::One(first) } else { Whose::Nobody })).collect();
            knots.join(all[0], all[1]);
            knots.join(all[2], all[3]);
            knots.join(all[1], all[3]);
            for (done, index) in order.into_iter().enumerate() {
                knots.over(all[index]);
                for left in &order[done..] {
                    assert!(matches!(knots.whose(all[*left]), Whose::One(asker) if asker.slot == first.slot));
                    assert_eq!(knots.is_open(all[*left]), done < 3);
                }
                knots.untie(all[index]);
            }
            assert!(knots.is_empty());
        }
        assert!(knots.entries.len() <= 4, "places are used again");
    }
}
