//! Open spans by slot, and the memory of reported ones.

use tracer_model::Side;

use super::{BlankParts, NewSpan, OpenSpan};
use crate::slot::Slot;

/// Most reported requests and most calls whose memory is kept for others: as many as are reported at once under load.
const SPARE: usize = 512;

/// Open spans by slot. A span takes a quarter to one kilobyte and lives for some milliseconds: a table of pointers
/// stays small whatever the past peak, and a span's memory is free again once it is reported.
#[derive(Debug, Default)]
pub struct Slab {
    entries: Vec<(u32, Option<Box<OpenSpan>>)>,
    free: Vec<u32>,
    used: usize,
    /// Reported spans, the last one on top, with the memory of their parts, cleared: it is in the processor's caches, unlike
    /// what the allocator would give.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    spare_requests: Vec<Box<OpenSpan>>,
    /// The same of calls, whose parts are others.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    spare_calls: Vec<Box<OpenSpan>>,
}

impl Slab {
    /// Number of spans.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// A span in memory of its own, or in that of one that was given back.
    pub(crate) fn begin(&mut self, begins: NewSpan) -> Box<OpenSpan> {
        match self.spare_of(begins.side).pop() {
            Some(mut spare) => {
                let parts = spare.take_parts();
                *spare = OpenSpan::new(begins, parts);
                spare
            }
            None => Box::new(OpenSpan::new(begins, BlankParts::default())),
        }
    }

    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    fn spare_of(&mut self, side: Side) -> &mut Vec<Box<OpenSpan>> {
        match side {
            Side::Server => &mut self.spare_requests,
            Side::Client => &mut self.spare_calls,
        }
    }

    /// The span was reported: others may have its memory.
    pub fn give_back(&mut self, mut live: Box<OpenSpan>) {
        let spare = self.spare_of(live.side);
        if spare.len() < SPARE {
            live.clear_parts();
            spare.push(live);
        }
    }

    /// Frees half of the memory that is kept for others.
    pub fn shrink(&mut self) {
        for spare in [&mut self.spare_requests, &mut self.spare_calls] {
            spare.truncate(spare.len() / 2);
        }
    }

    /// Adds a span.
    pub fn insert(&mut self, live: Box<OpenSpan>) -> Slot {
        self.used += 1;
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            entry.1 = Some(live);
            return Slot { index, generation: entry.0 };
        }
        self.entries.push((0, Some(live)));
        Slot { index: (self.entries.len() - 1) as u32, generation: 0 }
    }

    /// The span, if it is still open.
    pub fn get(&self, slot: Slot) -> Option<&OpenSpan> {
        let (generation, live) = self.entries.get(slot.index as usize)?;
        if *generation == slot.generation { live.as_deref() } else { None }
    }

    /// The span, if it is still open.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut OpenSpan> {
        let (generation, live) = self.entries.get_mut(slot.index as usize)?;
        if *generation == slot.generation { live.as_deref_mut() } else { None }
    }

    /// Removes the span; its slot goes stale.
    pub fn remove(&mut self, slot: Slot) -> Option<Box<OpenSpan>> {
        let (generation, live) = self.entries.get_mut(slot.index as usize)?;
        if *generation != slot.generation {
            return None;
        }
        let live = live.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(slot.index);
        self.used -= 1;
        Some(live)
    }

    /// Slots of all open spans.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, (_, live))| live.is_some())
            .map(|(index, (generation, _))| Slot { index: index as u32, generation: *generation })
    }
}
