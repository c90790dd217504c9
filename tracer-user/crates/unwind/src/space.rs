//! Which words of the arena are taken.

use tracer_common::unwind::CHUNK_WORDS;

/// Words in a row, by their first index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) at: u32,
    pub(super) words: u32,
}

/// Free extents: a few per chunk, because what is taken is taken in large pieces.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Sorted, never adjacent within a chunk.
    free: Vec<Extent>,
    chunks: u32,
}

impl Space {
    /// Chunks so far.
    pub(super) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Free words.
    pub(super) fn free_words(&self) -> u64 {
        self.free.iter().map(|extent| u64::from(extent.words)).sum()
    }

    /// One chunk more.
    pub(super) fn grow(&mut self) {
        self.free.push(Extent { at: self.chunks * CHUNK_WORDS, words: CHUNK_WORDS });
        self.chunks += 1;
    }

    /// Takes `words`, rounded up to an even number, from the first extent with room.
    pub(super) fn take(&mut self, words: u32) -> Option<Extent> {
        // Directories are read by eight bytes.
        let words = words.next_multiple_of(2);
        let (place, free) = self.free.iter_mut().enumerate().find(|(_, free)| free.words >= words)?;
        let taken = Extent { at: free.at, words };
        free.at += words;
        free.words -= words;
        if free.words == 0 {
            self.free.remove(place);
        }
        Some(taken)
    }

    /// Gives an extent back.
    pub(super) fn give_back(&mut self, extent: Extent) {
        let place = self.free.partition_point(|free| free.at < extent.at);
        self.free.insert(place, extent);
        self.join(place);
        if place > 0 {
            self.join(place - 1);
        }
    }

    /// Joins an extent with the one behind it, where they touch in one chunk.
    fn join(&mut self, place: usize) {
        let Some([first, second]) = self.free.get(place..place + 2) else { return };
        if first.at + first.words == second.at && second.at % CHUNK_WORDS != 0 {
            let words = second.words;
            self.free.remove(place + 1);
            self.free[place].words += words;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut space = Space::default();
        assert_eq!(space.take(1), None);
        space.grow();
        space.grow();
        let all: Vec<Extent> = (0..8).map(|_| space.take(CHUNK_WORDS / 4 - 1).expect("room")).collect();
        assert!(all.iter().all(|extent| extent.words == CHUNK_WORDS / 4 && extent.at % 2 == 0));
        assert_eq!((space.take(1), space.free_words()), (None, 0));
        for i in [3, 0, 4, 1, 7, 2, 6, 5] {
            space.give_back(all[i]);
        }
        assert_eq!(space.free.len(), 2, "chunks stay apart: {:?}", space.free);
        assert_eq!(space.take(CHUNK_WORDS + 2), None);
        assert_eq!(space.take(CHUNK_WORDS).map(|extent| extent.at), Some(0));
    }
}
