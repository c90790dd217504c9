//! Prepared statements of a connection, by name, and the statements its portals run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::sql::Summary;

/// Most named statements, and most named portals, remembered per connection.
const LIMIT: usize = 1024;
/// Longest name remembered, in bytes.
pub(super) const NAME: usize = 256;
/// Approximate size of one, in bytes.
const EACH: usize = 32;

/// By hash of the name; `None` if the statement is unknown.
type Names = FxHashMap<u64, Option<Arc<Summary>>>;

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Statements by name. The empty name is stored separately: most clients use no other.
#[derive(Debug, Default)]
pub(super) struct Named {
    unnamed: Option<Arc<Summary>>,
    named: Option<Box<Names>>,
    refused: u32,
}

impl Named {
    /// Binds `name` to `summary`. If there is no room it is not kept, and its uses count as unnamed.
    pub(super) fn set(&mut self, name: &[u8], summary: Option<Arc<Summary>>) {
        if name.is_empty() {
            self.unnamed = summary;
            return;
        }
        let named = self.named.get_or_insert_default();
        if let Some(known) = named.get_mut(&hash(name)) {
            *known = summary;
        } else if named.len() < LIMIT && name.len() <= NAME {
            named.insert(hash(name), summary);
        } else {
            self.refused += 1;
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Arc<Summary>> {
        if name.is_empty() { self.unnamed.clone() } else { self.named.as_ref()?.get(&hash(name)).cloned().flatten() }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed = None;
        } else if let Some(named) = &mut self.named {
            named.remove(&hash(name));
        }
    }

    /// Approximate size of the named ones, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.named.as_ref().map_or(0, |named| named.len() * EACH)
    }

    pub(super) fn clear(&mut self) {
        (self.unnamed, self.named) = (None, None);
    }

    /// Shrinks excess capacity.
    pub(super) fn rest(&mut self) {
        self.named = self.named.take().filter(|named| !named.is_empty());
        if let Some(named) = &mut self.named {
            named.shrink_to_fit();
        }
    }

    /// Number of names refused for lack of room since the last call.
    pub(super) fn take_refused(&mut self) -> u64 {
        u64::from(std::mem::take(&mut self.refused))
    }
}
