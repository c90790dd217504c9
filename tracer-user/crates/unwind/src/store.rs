//! The tables the kernel side has: which files they are of, where they lie, and which go when there is no room.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_common::unwind::{
    CHUNK_WORDS, CHUNKS, FILE_FRAME_POINTERS, FILE_REFUSED, FILE_TABLE, FILES, FileEntry, FileKey, Rule,
};

use super::compile::{Rules, Table};
use super::space::{Extent, Space};

/// Words of rows that are taken together, at least: a page has 60 on average.
const EXTENT_WORDS: usize = 16 * 1024;
/// A walk that found a table is over long after that.
const GRACE: Duration = Duration::from_secs(2);
/// A file whose table was refused may ask again after this.
const AGAIN: Duration = Duration::from_secs(10);
/// Tables used within the last so many units of the clock do not go for others; a unit is about a second.
const IN_USE: u32 = 10;
/// Tables that were not used for so long go by themselves.
const UNUSED: u32 = 900;
/// Most files known; the map has room for those that wait besides.
const KNOWN: usize = FILES as usize * 7 / 8;

/// What the kernel side reads. Implemented by its maps, and by memory in tests.
pub(super) trait Maps {
    /// Adds a chunk to the arena.
    fn grow(&mut self, chunk: u32) -> Result<(), String>;
    /// Writes words of the arena.
    fn write(&mut self, at: u32, words: &[u32]);
    /// Writes a rule.
    fn set_rule(&mut self, number: u32, rule: Rule) -> Result<(), String>;
    /// Says what is known of a file.
    fn set_file(&mut self, key: FileKey, entry: FileEntry) -> Result<(), String>;
    /// Forgets a file: it is asked for again.
    fn forget(&mut self, key: FileKey);
    /// When a file was used last.
    fn used(&self, key: FileKey) -> Option<u32>;
}

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most bytes of tables, rounded up to whole chunks.
    pub bytes: u64,
}

/// A table in the arena.
#[derive(Debug)]
struct Loaded {
    extents: Vec<Extent>,
    directory: u32,
    pages: u32,
    from: u64,
    /// Files that have it.
    files: usize,
}

/// What a known file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// The table with this identity.
    Table(u64),
    /// None: frame pointers.
    FramePointers,
    /// None was to be had, and when it was tried.
    Refused(Instant),
}

/// All tables.
#[derive(Debug)]
pub(super) struct Store {
    most_chunks: u32,
    space: Space,
    rules: Rules,
    rules_written: usize,
    tables: FxHashMap<u64, Loaded>,
    files: HashMap<FileKey, Has>,
    /// Extents a walk may still read, by when they went.
    leaving: Vec<(Instant, Extent)>,
    /// Tables that went for others, and those that found no room.
    pub(super) evicted: u64,
    pub(super) refused: u64,
}

impl Store {
    pub(super) fn new(bounds: Bounds) -> Self {
        let chunk = u64::from(CHUNK_WORDS) * 4;
        Self {
            most_chunks: bounds.bytes.div_ceil(chunk).clamp(1, u64::from(CHUNKS)) as u32,
            space: Space::default(),
            rules: Rules::new(),
            rules_written: 0,
            tables: FxHashMap::default(),
            files: HashMap::new(),
            leaving: Vec::new(),
            evicted: 0,
            refused: 0,
        }
    }

    /// Every rule so far.
    pub(super) fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Different rules.
    pub(super) fn rules_known(&self) -> u64 {
        self.rules.all().len() as u64
    }

    /// Rules that found no room.
    pub(super) fn rules_refused(&self) -> u64 {
        self.rules.refused
    }

    /// Files known.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// Bytes of tables, and most there can be.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let chunk = u64::from(CHUNK_WORDS) * 4;
        let leaving: u64 = self.leaving.iter().map(|(_, extent)| u64::from(extent.words) * 4).sum();
        let used = u64::from(self.space.chunks()) * chunk - self.space.free_words() * 4 - leaving;
        (used, u64::from(self.most_chunks) * chunk)
    }

    /// Whether the kernel side has an entry for a file.
    pub(super) fn knows(&self, key: FileKey) -> bool {
        self.files.contains_key(&key)
    }

    /// Whether there is a table with this identity.
    pub(super) fn has(&self, identity: u64) -> bool {
        self.tables.contains_key(&identity)
    }

    /// Identities of all tables.
    pub(super) fn identities(&self) -> FxHashSet<u64> {
        self.tables.keys().copied().collect()
    }

    /// The file has the table with this identity, which is there.
    pub(super) fn share(&mut self, maps: &mut impl Maps, key: FileKey, identity: u64, now: u32) -> Result<(), String> {
        let Some(loaded) = self.tables.get_mut(&identity) else { return Ok(()) };
        let Loaded { directory, pages, from, .. } = *loaded;
        loaded.files += 1;
        self.set(
            maps,
            key,
            Has::Table(identity),
            FileEntry { state: FILE_TABLE, directory, pages, used: now, from, ..FileEntry::default() },
        )
    }

    /// Puts a table into the arena, and the file to it. `at` and `now` are the same moment.
    pub(super) fn put(
        &mut self,
        maps: &mut impl Maps,
        key: FileKey,
        identity: u64,
        table: &Table,
        (at, now): (Instant, u32),
    ) -> Result<(), String> {
        let Some(loaded) = self.write(maps, table, (at, now))? else {
            self.refused += 1;
            return self.refuse(maps, key, (at, now));
        };
        self.tables.insert(identity, loaded);
        self.share(maps, key, identity, now)
    }

    /// The file has no table and never will: frame pointers.
    pub(super) fn without(&mut self, maps: &mut impl Maps, key: FileKey, now: u32) -> Result<(), String> {
        let entry = FileEntry { state: FILE_FRAME_POINTERS, used: now, ..FileEntry::default() };
        self.set(maps, key, Has::FramePointers, entry)
    }

    /// The file's table cannot be made now.
    pub(super) fn refuse(
        &mut self,
        maps: &mut impl Maps,
        key: FileKey,
        (at, now): (Instant, u32),
    ) -> Result<(), String> {
        self.set(maps, key, Has::Refused(at), FileEntry { state: FILE_REFUSED, used: now, ..FileEntry::default() })
    }

    fn set(&mut self, maps: &mut impl Maps, key: FileKey, has: Has, entry: FileEntry) -> Result<(), String> {
        let before = self.files.insert(key, has);
        if let Some(Has::Table(identity)) = before {
            self.leave(identity, Instant::now());
        }
        maps.set_file(key, entry).inspect_err(|_| {
            self.files.remove(&key);
            if let Has::Table(identity) = has {
                self.leave(identity, Instant::now());
            }
        })
    }

    /// Writes rows, directory and rules; `None` when there is no room.
    fn write(
        &mut self,
        maps: &mut impl Maps,
        table: &Table,
        (at, now): (Instant, u32),
    ) -> Result<Option<Loaded>, String> {
        // Rows of many pages together; each piece lies in one chunk.
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        let (mut first, mut words) = (0, 0);
        for page in 0..table.pages.len() {
            words += table.page(page).len();
            if words >= EXTENT_WORDS || page + 1 == table.pages.len() {
                pieces.push((first, page + 1));
                (first, words) = (page + 1, 0);
            }
        }
        let rows = |(from, to): &(usize, usize)| {
            let begin = table.pages.get(*from).map_or(0, |first| *first as usize);
            let end = table.pages.get(*to).map_or(table.rows.len(), |first| *first as usize);
            table.rows.get(begin..end).unwrap_or_default()
        };
        let mut sizes: Vec<u32> = pieces.iter().map(|piece| rows(piece).len() as u32).collect();
        sizes.push(table.pages.len() as u32 * 2);
        let Some(extents) = self.take(maps, &sizes, (at, now)) else { return Ok(None) };
        let mut directory = Vec::with_capacity(table.pages.len() * 2);
        for (piece, extent) in pieces.iter().zip(&extents) {
            maps.write(extent.at, rows(piece));
            let mut index = extent.at;
            for page in piece.0..piece.1 {
                let rows = table.page(page).len() as u32;
                directory.extend([index, rows]);
                index += rows;
            }
        }
        let place = extents.last().map_or(0, |extent| extent.at);
        maps.write(place, &directory);
        // Whoever finds the table finds its rules.
        for (number, rule) in self.rules.all().iter().enumerate().skip(self.rules_written) {
            maps.set_rule(number as u32, *rule)?;
        }
        self.rules_written = self.rules.all().len();
        Ok(Some(Loaded { extents, directory: place, pages: table.pages.len() as u32, from: table.from, files: 0 }))
    }

    /// Takes extents of these sizes, all or none; where there is no room, what is not in use begins to leave.
    fn take(&mut self, maps: &mut impl Maps, sizes: &[u32], (at, now): (Instant, u32)) -> Option<Vec<Extent>> {
        let mut taken = Vec::with_capacity(sizes.len());
        for size in sizes {
            if *size > CHUNK_WORDS {
                break;
            }
            let mut extent = self.space.take(*size);
            if extent.is_none() && self.space.chunks() < self.most_chunks {
                match maps.grow(self.space.chunks()) {
                    Ok(()) => self.space.grow(),
                    Err(why) => log::warn!("unwind tables: no more memory: {why}"),
                }
                extent = self.space.take(*size);
            }
            let Some(extent) = extent else { break };
            taken.push(extent);
        }
        if taken.len() == sizes.len() {
            return Some(taken);
        }
        for extent in taken {
            self.space.give_back(extent);
        }
        let needed: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        self.evict(maps, needed, IN_USE, (at, now));
        None
    }

    /// Lets go of the tables that were not used for longest, until `words` have become free; none that was used in the
    /// last `idle` units of the clock.
    fn evict(&mut self, maps: &mut impl Maps, words: u64, idle: u32, (at, now): (Instant, u32)) {
        let mut freed = 0;
        for (age, key) in self.by_age(maps, now) {
            if freed >= words || age < idle {
                break;
            }
            freed += self.forget(maps, key, at);
            self.evicted += 1;
        }
    }

    /// Files by how long they were not used, the longest first.
    fn by_age(&self, maps: &impl Maps, now: u32) -> Vec<(u32, FileKey)> {
        let age = |key: &FileKey| (now.wrapping_sub(maps.used(*key).unwrap_or(0)), *key);
        let mut all: Vec<(u32, FileKey)> =
            self.files.iter().filter(|(key, _)| **key != FileKey::default()).map(|(key, _)| age(key)).collect();
        // Clocks of other CPUs may be ahead.
        for (age, _) in &mut all {
            *age = if *age > u32::MAX / 2 { 0 } else { *age };
        }
        all.sort_unstable_by_key(|(age, key)| (std::cmp::Reverse(*age), key.inode));
        all
    }

    /// Forgets a file; the words that become free with it.
    pub(super) fn forget(&mut self, maps: &mut impl Maps, key: FileKey, at: Instant) -> u64 {
        maps.forget(key);
        match self.files.remove(&key) {
            Some(Has::Table(identity)) => self.leave(identity, at),
            _ => 0,
        }
    }

    /// One file less has the table; the words that become free with the last one.
    fn leave(&mut self, identity: u64, at: Instant) -> u64 {
        let Some(loaded) = self.tables.get_mut(&identity) else { return 0 };
        loaded.files = loaded.files.saturating_sub(1);
        if loaded.files > 0 {
            return 0;
        }
        let Some(loaded) = self.tables.remove(&identity) else { return 0 };
        let words = loaded.extents.iter().map(|extent| u64::from(extent.words)).sum();
        self.leaving.extend(loaded.extents.into_iter().map(|extent| (at, extent)));
        words
    }

    /// Frees unused tables, and lets refused files ask again.
    pub(super) fn tick(&mut self, maps: &mut impl Maps, (at, now): (Instant, u32)) {
        let space = &mut self.space;
        self.leaving.retain(|(since, extent)| {
            let over = at.saturating_duration_since(*since) >= GRACE;
            if over {
                space.give_back(*extent);
            }
            !over
        });
        let due = |has: &Has| matches!(has, Has::Refused(since) if at.saturating_duration_since(*since) >= AGAIN);
        let again: Vec<FileKey> = self.files.iter().filter(|(_, has)| due(has)).map(|(key, _)| *key).collect();
        for key in again {
            self.forget(maps, key, at);
        }
        if self.files.len() > KNOWN {
            for (_, key) in self.by_age(maps, now).into_iter().take(KNOWN / 8) {
                self.forget(maps, key, at);
                self.evicted += 1;
            }
        }
    }

    /// Lets go of what was not used for long.
    pub(super) fn drop_unused(&mut self, maps: &mut impl Maps, (at, now): (Instant, u32)) {
        self.evict(maps, u64::MAX, UNUSED, (at, now));
    }
}

#[cfg(test)]
pub(super) mod tests;
