//! Statements a connection has prepared, by name, and what its portals run.

use rustc_hash::FxHashMap;

use crate::protocols::sql::Summary;

/// Most named statements, and most named portals, of one connection that are remembered.
const LIMIT: usize = 1024;
/// Longest name that is remembered, bytes.
pub(super) const NAME: usize = 256;
/// About what one takes besides its name, bytes.
const EACH: usize = 96;

/// What names stand for. The empty name has a place of its own: most clients use no other.
#[derive(Debug, Default)]
pub(super) struct Named {
    unnamed: Option<Summary>,
    named: FxHashMap<Box<[u8]>, Option<Summary>>,
}

impl Named {
    /// `name` stands for `summary` from now on. Where there is no room it stands for nothing, and is counted as unnamed
    /// when it is used.
    pub(super) fn set(&mut self, name: &[u8], summary: Option<Summary>) {
        if name.is_empty() {
            self.unnamed = summary;
        } else if let Some(known) = self.named.get_mut(name) {
            *known = summary;
        } else if self.named.len() < LIMIT && name.len() <= NAME {
            self.named.insert(Box::from(name), summary);
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Summary> {
        if name.is_empty() { self.unnamed.clone() } else { self.named.get(name).cloned().flatten() }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed = None;
        } else {
            self.named.remove(name);
        }
    }

    /// About how many bytes the named ones take.
    pub(super) fn bytes(&self) -> usize {
        self.named.keys().map(|name| name.len() + EACH).sum()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
