//! Makes the table of a large file on a thread of its own: that may take seconds, and on a busy host at the lowest priority many, in
//! which the tables of other programs must not wait.

use std::fs::File;
use std::hash::RandomState;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use object::ReadCache;
use rustc_hash::FxHashSet;
use tracer_common::unwind::FileKey;
use tracer_host::guard::self_process::{set_nice, thread_cpu};

use super::bounded_file::BoundedFile;
use super::compile::{Rules, Table, compile};
use super::image::{Image, NoTable};

/// Files of so many bytes are large.
pub(super) const LARGE: u64 = 8 << 20;

/// What became of a large file.
#[derive(Debug)]
pub(super) struct LargeTable {
    /// What tells its table from others; and the table with its rules, unless one with this identity was known before.
    pub(super) made: Result<(u64, Option<(Table, Rules)>), NoTable>,
    /// CPU that it took.
    pub(super) cpu: Duration,
}

/// The thread ended without a table.
#[derive(Debug)]
pub(super) struct ThreadEnded;

/// A large table that is being made.
#[derive(Debug)]
pub(super) struct LargeTableJob {
    pub(super) key: FileKey,
    done: Receiver<LargeTable>,
}

impl LargeTableJob {
    /// Starts to make the table of `file`, at the priority `nice`. `known`: tables that need not be made.
    pub(super) fn start(
        key: FileKey,
        file: File,
        keys: RandomState,
        known: FxHashSet<u64>,
        nice: i32,
    ) -> std::io::Result<Self> {
        let (sender, done) = channel();
        std::thread::Builder::new().name("tracer-unwind-l".into()).spawn(move || {
            if let Err(error) = set_nice(nice) {
                log::debug!("{error}: a large unwind table is made at the priority in force");
            }
            let before = thread_cpu();
            let made = make(file, &keys, &known);
            let cpu = Duration::from_nanos(thread_cpu().saturating_sub(before));
            // The receiver is gone when the agent ends.
            let _ = sender.send(LargeTable { made, cpu });
        })?;
        Ok(Self { key, done })
    }

    /// The table, once it is made.
    pub(super) fn done(&self) -> Option<Result<LargeTable, ThreadEnded>> {
        match self.done.try_recv() {
            Ok(table) => Some(Ok(table)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ThreadEnded)),
        }
    }
}

fn make(file: File, keys: &RandomState, known: &FxHashSet<u64>) -> Result<(u64, Option<(Table, Rules)>), NoTable> {
    let cache = ReadCache::new(BoundedFile::new(file));
    let image = Image::parse(&cache)?;
    let identity = image.identity(keys);
    if known.contains(&identity) {
        return Ok((identity, None));
    }
    let mut rules = Rules::new();
    compile(&image, &mut rules).map(|table| (identity, Some((table, rules))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The usual priority: at a lower one it would not come to an end on a busy machine.
    const NICE: i32 = 0;

    fn wait(job: &LargeTableJob) -> LargeTable {
        let end = std::time::Instant::now() + Duration::from_secs(300);
        loop {
            if let Some(table) = job.done() {
                return table.expect("its thread did not panic");
            }
            assert!(std::time::Instant::now() < end, "no table within five minutes");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_table_from_another_thread_is_the_same() {
        let file = || File::open("/proc/self/exe").expect("this program");
        let (key, keys) = (FileKey { inode: 1, ..FileKey::default() }, RandomState::new());
        let job = LargeTableJob::start(key, file(), keys.clone(), FxHashSet::default(), NICE).expect("a thread");
        let (identity, made) = wait(&job).made.expect("it has unwind information");
        let (mut table, own) = made.expect("it was not known");
        // Rules of other files came before.
        let mut all = Rules::new();
        for cfa in [200, 201, 202] {
            all.number(tracer_common::unwind::Rule { cfa, ..tracer_common::unwind::Rule::default() });
        }
        table.renumber(&own, &mut all);
        let cache = ReadCache::new(BoundedFile::new(file()));
        let image = Image::parse(&cache).expect("it has unwind information");
        let mut again = Rules::new();
        let expected = compile(&image, &mut again).expect("a table");
        assert_eq!((identity, table.pages == expected.pages), (image.identity(&keys), true));
        let rule = |rules: &Rules, row: u32| (row >> 16, rules.all()[(row & 0xffff) as usize]);
        assert!(
            table.rows.iter().map(|row| rule(&all, *row)).eq(expected.rows.iter().map(|row| rule(&again, *row))),
            "the rules are those of its rows"
        );
        let known = FxHashSet::from_iter([identity]);
        let job = LargeTableJob::start(key, file(), keys, known, NICE).expect("a thread");
        let (same, made) = wait(&job).made.expect("it has unwind information");
        assert!(same == identity && made.is_none(), "a copy of a known file is not read again");
    }
}
