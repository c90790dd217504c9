//! Tables go into the arena whole or not at all, are shared, and make room for others.

use super::*;
use crate::compile::NONE;

/// The kernel side's maps, in memory.
#[derive(Default)]
pub(crate) struct Fake {
    words: Vec<u32>,
    rules: FxHashMap<u32, Rule>,
    pub(crate) files: HashMap<FileKey, FileEntry>,
    used: HashMap<FileKey, u32>,
}

impl Maps for Fake {
    fn grow(&mut self, chunk: u32) -> Result<(), String> {
        assert_eq!(self.words.len(), (chunk * CHUNK_WORDS) as usize);
        self.words.resize(self.words.len() + CHUNK_WORDS as usize, 0);
        Ok(())
    }

    fn write(&mut self, at: u32, words: &[u32]) {
        let at = at as usize;
        assert!(words.is_empty() || at as u32 / CHUNK_WORDS == (at + words.len() - 1) as u32 / CHUNK_WORDS);
        self.words[at..at + words.len()].copy_from_slice(words);
    }

    fn set_rule(&mut self, number: u32, rule: Rule) -> Result<(), String> {
        self.rules.insert(number, rule);
        Ok(())
    }

    fn set_file(&mut self, key: FileKey, entry: FileEntry) -> Result<(), String> {
        self.files.insert(key, entry);
        Ok(())
    }

    fn forget(&mut self, key: FileKey) {
        self.files.remove(&key);
    }

    fn used(&self, key: FileKey) -> Option<u32> {
        self.used.get(&key).copied().or_else(|| self.files.get(&key).map(|entry| entry.used))
    }
}

fn key(inode: u64) -> FileKey {
    FileKey { inode, device: 1, ..FileKey::default() }
}

/// A table of `pages` pages with `rows` rows each.
fn table(pages: u32, rows: u32) -> Table {
    Table {
        from: 0x1000,
        rows: (0..pages).flat_map(|page| (0..rows).map(move |row| row << 16 | page & 0xff)).collect(),
        pages: (0..pages).map(|page| page * rows).collect(),
    }
}

/// The rows of a page as the kernel side finds them.
fn page<'a>(maps: &'a Fake, entry: &FileEntry, page: u32) -> &'a [u32] {
    let at = (entry.directory + page * 2) as usize;
    let (first, count) = (maps.words[at] as usize, maps.words[at + 1] as usize);
    &maps.words[first..first + count]
}

const MIB: u64 = 1 << 20;

#[test]
fn a_table_is_found_page_by_page() {
    let (mut store, mut maps) = (Store::new(Bounds { bytes: 8 * MIB }), Fake::default());
    let at = Instant::now();
    store.rules().refused = 0;
    let made = table(3000, 60);
    store.put(&mut maps, key(7), 70, &made, (at, 5)).unwrap();
    let entry = maps.files[&key(7)];
    assert_eq!((entry.state, entry.pages, entry.from, entry.used), (FILE_TABLE, 3000, 0x1000, 5));
    for number in [0, 1, 1500, 2999] {
        assert_eq!(page(&maps, &entry, number), made.page(number as usize), "page {number}");
    }
    assert!(
        !maps.rules.is_empty() && !maps.rules.values().any(|rule| *rule == NONE),
        "the one that stands in is there"
    );
    // The same file elsewhere: nothing more is taken.
    let before = store.bytes();
    assert!(store.has(70));
    store.share(&mut maps, key(8), 70, 6).unwrap();
    assert_eq!((store.bytes(), maps.files[&key(8)].directory), (before, entry.directory));
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let (mut store, mut maps) = (Store::new(Bounds { bytes: 2 * MIB }), Fake::default());
    let begin = Instant::now();
    // Half a chunk each: four are there.
    for inode in 0..4 {
        store.put(&mut maps, key(inode + 1), inode, &table(2000, 60), (begin, 100)).unwrap();
    }
    for (inode, used) in [(1, 150), (2, 120), (3, 160), (4, 195)] {
        maps.used.insert(key(inode), used);
    }
    store.put(&mut maps, key(9), 9, &table(2000, 60), (begin, 200)).unwrap();
    assert_eq!((maps.files[&key(9)].state, store.refused, store.evicted), (FILE_REFUSED, 1, 1));
    assert!(
        !maps.files.contains_key(&key(2)) && maps.files.contains_key(&key(1)),
        "the one that was not used for longest"
    );
    // A walk may still read it.
    store.tick(&mut maps, (begin + GRACE / 2, 201));
    assert!(store.take(&mut maps, &[CHUNK_WORDS / 4], (begin, 100)).is_none());
    store.tick(&mut maps, (begin + AGAIN, 210));
    assert!(!maps.files.contains_key(&key(9)), "it may ask again");
    store.put(&mut maps, key(9), 9, &table(2000, 60), (begin + AGAIN, 210)).unwrap();
    assert_eq!(maps.files[&key(9)].state, FILE_TABLE);
    let (used, limit) = store.bytes();
    assert!(used <= limit && limit == 2 * MIB, "{used}");
}

#[test]
fn tables_in_use_stay_and_the_newcomer_is_refused() {
    let (mut store, mut maps) = (Store::new(Bounds { bytes: MIB }), Fake::default());
    let begin = Instant::now();
    store.put(&mut maps, key(1), 1, &table(3000, 60), (begin, 100)).unwrap();
    store.put(&mut maps, key(2), 2, &table(3000, 60), (begin, 100 + IN_USE - 1)).unwrap();
    assert_eq!((maps.files[&key(1)].state, maps.files[&key(2)].state), (FILE_TABLE, FILE_REFUSED));
    assert_eq!((store.refused, store.evicted), (1, 0));
    // Larger than everything: nothing helps, and nothing breaks.
    store.put(&mut maps, key(3), 3, &table(200_000, 2), (begin, 100)).unwrap();
    assert_eq!(maps.files[&key(3)].state, FILE_REFUSED);
}

#[test]
fn unused_tables_go_and_come_back_on_demand() {
    let (mut store, mut maps) = (Store::new(Bounds { bytes: 4 * MIB }), Fake::default());
    let begin = Instant::now();
    store.put(&mut maps, FileKey::default(), 1, &table(2, 10), (begin, 1)).unwrap();
    store.put(&mut maps, key(1), 2, &table(20, 10), (begin, 1)).unwrap();
    store.without(&mut maps, key(2), 1).unwrap();
    store.share(&mut maps, key(3), 2, 1000).unwrap();
    let before = store.bytes().0;
    store.drop_unused(&mut maps, (begin, 1001));
    // The vdso stays: it has no file that could be asked for.
    let mut left: Vec<u64> = maps.files.keys().map(|key| key.inode).collect();
    left.sort_unstable();
    assert_eq!(left, [0, 3]);
    assert_eq!(store.bytes().0, before, "another file has the same table");
    store.drop_unused(&mut maps, (begin, 3000));
    store.tick(&mut maps, (begin + GRACE, 3000));
    assert!(store.bytes().0 < before && store.files() == 1);
    store.put(&mut maps, key(1), 2, &table(20, 10), (begin, 3001)).unwrap();
    assert_eq!(store.bytes().0, before);
}
