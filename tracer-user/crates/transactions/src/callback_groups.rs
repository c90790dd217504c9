//! Spans that event-loop callbacks tie together, and the requests among them.
//!
//! A callback that reads the reply of one call and sends another call or an answer ties the two spans together. Spans
//! tied to exactly one request were done for that request; spans tied to several are ambiguous. Implemented as a
//! disjoint set with union by rank: a node lives as long as its span or any node below it.

use tracer_model::Nanos;

use super::slot::{Slot, SpanRef};

/// A span's node in the forest. Each span releases it exactly once ([`CallbackGroups::untie`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackGroup(u32);

/// A request, and what remains of it once it is reported.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The request.
    pub slot: Slot,
    /// When it was read.
    pub since: Nanos,
    /// Span id, trace id, service and class.
    pub kept: SpanRef,
}

/// The owner of a group of tied spans.
#[derive(Clone, Copy, Debug)]
pub enum GroupOwner {
    /// No request seen.
    Untied,
    /// One request's.
    One(Asker),
    /// Several requests.
    Several,
}

#[derive(Debug)]
struct Entry {
    /// Parent node; at a root, the node itself.
    above: u32,
    /// References: 1 for the node's own unreported span, plus 1 per direct child.
    holds: u32,
    rank: u8,
    /// At a root: the owner of the tree.
    whose: GroupOwner,
    /// At a root: number of spans that have not ended.
    open: u32,
}

/// All groups.
#[derive(Debug, Default)]
pub struct CallbackGroups {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl CallbackGroups {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a node for a span owned by `whose`.
    pub fn group_membership(&mut self, whose: GroupOwner) -> CallbackGroup {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        let entry = Entry { above: index, holds: 1, rank: 0, whose, open: 1 };
        match self.entries.get_mut(index as usize) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        CallbackGroup(index)
    }

    fn root(&self, callback_group: CallbackGroup) -> u32 {
        let mut index = callback_group.0;
        while let Some(entry) = self.entries.get(index as usize) {
            if entry.above == index {
                break;
            }
            index = entry.above;
        }
        index
    }

    /// Ties two spans together.
    pub fn join(&mut self, one: CallbackGroup, other: CallbackGroup) {
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
            (GroupOwner::Untied, whose) | (whose, GroupOwner::Untied) => whose,
            (GroupOwner::One(one), GroupOwner::One(other)) if one.slot == other.slot => GroupOwner::One(one),
            _ => GroupOwner::Several,
        };
    }

    /// Whether the spans are tied together.
    pub fn are_tied(&self, one: CallbackGroup, other: CallbackGroup) -> bool {
        self.root(one) == self.root(other)
    }

    /// The owner of the group.
    pub fn whose(&self, callback_group: CallbackGroup) -> GroupOwner {
        self.entries.get(self.root(callback_group) as usize).map_or(GroupOwner::Untied, |entry| entry.whose)
    }

    /// Whether this span or any span tied to it has not ended.
    pub fn is_open(&self, callback_group: CallbackGroup) -> bool {
        self.entries.get(self.root(callback_group) as usize).is_some_and(|entry| entry.open > 0)
    }

    /// Updates what is known of the owning request.
    pub fn keep(&mut self, callback_group: CallbackGroup, slot: Slot, kept: SpanRef) {
        let root = self.root(callback_group);
        if let Some(Entry { whose: GroupOwner::One(asker), .. }) = self.entries.get_mut(root as usize)
            && asker.slot == slot
        {
            asker.kept = kept;
        }
    }

    /// The span has ended.
    pub fn over(&mut self, callback_group: CallbackGroup) {
        let root = self.root(callback_group);
        if let Some(entry) = self.entries.get_mut(root as usize) {
            entry.open = entry.open.saturating_sub(1);
        }
    }

    /// Releases the memory of a past peak.
    pub fn shrink_excess(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// The span is reported: frees its node as soon as no child refers to it.
    pub fn untie(&mut self, callback_group: CallbackGroup) {
        let mut index = callback_group.0;
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
    use tracer_model::{ServiceId, SpanId, TraceId};

    fn asker(number: u32) -> Asker {
        let kept = (SpanId(number.into()), TraceId(1), ServiceId(0), None);
        Asker { slot: Slot::numbered(number), since: 1, kept }
    }

    #[test]
    fn a_group_tied_to_one_request_is_owned_and_one_tied_to_two_is_not() {
        let (first, second) = (asker(1), asker(2));
        let mut callback_groups = CallbackGroups::default();
        let request = callback_groups.group_membership(GroupOwner::One(first));
        let calls: Vec<CallbackGroup> = (0..4).map(|_| callback_groups.group_membership(GroupOwner::Untied)).collect();
        callback_groups.join(calls[0], calls[1]);
        assert!(matches!(callback_groups.whose(calls[0]), GroupOwner::Untied));
        callback_groups.join(calls[1], request);
        assert!(matches!(callback_groups.whose(calls[0]), GroupOwner::One(asker) if asker.slot == first.slot));
        let other = callback_groups.group_membership(GroupOwner::One(second));
        callback_groups.join(other, calls[2]);
        callback_groups.join(calls[2], calls[0]);
        for callback_group in [request, other, calls[0], calls[1], calls[2]] {
            assert!(matches!(callback_groups.whose(callback_group), GroupOwner::Several));
        }
        assert!(matches!(callback_groups.whose(calls[3]), GroupOwner::Untied), "it is tied to none of them");
    }

    #[test]
    fn knots_go_with_the_last_that_needs_them() {
        let first = asker(1);
        let mut callback_groups = CallbackGroups::default();
        // In any order of ends, the remaining nodes still know their owner.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let all: Vec<CallbackGroup> = (0..4)
                .map(|index| {
                    callback_groups.group_membership(if index == 2 {
                        GroupOwner::One(first)
                    } else {
                        GroupOwner::Untied
                    })
                })
                .collect();
            callback_groups.join(all[0], all[1]);
            callback_groups.join(all[2], all[3]);
            callback_groups.join(all[1], all[3]);
            for (done, index) in order.into_iter().enumerate() {
                callback_groups.over(all[index]);
                for left in &order[done..] {
                    assert!(
                        matches!(callback_groups.whose(all[*left]), GroupOwner::One(asker) if asker.slot == first.slot)
                    );
                    assert_eq!(callback_groups.is_open(all[*left]), done < 3);
                }
                callback_groups.untie(all[index]);
            }
            assert!(callback_groups.is_empty());
        }
        assert!(callback_groups.entries.len() <= 4, "places are used again");
    }
}
