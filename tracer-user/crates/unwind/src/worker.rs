//! The thread that makes unwind tables when the kernel side asks for them.
//!
//! All tables of a machine are a second of work, and stacks are incomplete until it is done: the thread does it at the
//! agent's own priority. Where there is more, it goes on at the lowest: somebody may make new programs all the time. That of a large
//! file is made on another thread, one at a time.

use std::fs;
use std::hash::RandomState;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use object::ReadCache;
use tracer_common::unwind::{FileEntry, FileKey, JIT_CODE, Rule, TableRequest};
use tracer_host::guard::self_process::{self, thread_cpu};
use tracer_host::guard::tables::TableUse;
use tracer_kernel::loader::monotonic;
use tracer_kernel::unwind::Tables;

use super::bounded_file::BoundedFile;
use super::compile::{Table, compile};
use super::image::{Image, NoTable};
use super::java::JavaProcesses;
use super::large_table::{LARGE, LargeTable, LargeTableJob};
use super::request_queue::{OpenResult, RequestQueue};
use super::store::{Bounds, Maps, Store};

/// Priority while the thread works more than it may: the lowest.
const NICE: i32 = 19;
/// CPU that large tables may take at the agent's own priority, and all others: this much at once, and this share of the time.
const PROMPT: Duration = Duration::from_secs(1);
const PROMPT_SHARE: f64 = 0.01;
/// Between two looks at what has to be freed, and at what was not used for long.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(60);
/// Between two looks at whether a large table is made.
const LARGE_TABLE_POLL: Duration = Duration::from_millis(20);
/// Largest file that is opened, bytes.
const FILE_BYTES: u64 = 8 << 30;

impl Maps for Tables {
    fn grow(&mut self, chunk: u32) -> Result<(), String> {
        Tables::grow(self, chunk)
    }

    fn write(&mut self, at: u32, words: &[u32]) {
        Tables::write(self, at, words);
    }

    fn set_rule(&mut self, number: u32, rule: Rule) -> Result<(), String> {
        Tables::set_rule(self, number, rule)
    }

    fn set_file(&mut self, key: FileKey, entry: FileEntry) -> Result<(), String> {
        Tables::set_file(self, key, entry)
    }

    fn forget(&mut self, key: FileKey) {
        Tables::forget(self, key);
    }

    fn used(&self, key: FileKey) -> Option<u32> {
        Tables::used(self, key)
    }
}

/// Figures of the thread, for metrics.
#[derive(Debug, Default)]
pub struct Figures {
    bytes: AtomicU64,
    bytes_limit: AtomicU64,
    files: AtomicU64,
    rules: AtomicU64,
    evicted: AtomicU64,
    refused: AtomicU64,
    rules_refused: AtomicU64,
    made: AtomicU64,
    nanos: AtomicU64,
    waiting: AtomicU64,
}

impl Figures {
    /// Files whose tables were asked for and are not made.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes of tables.
    pub fn bytes(&self) -> TableUse {
        let of = |value: &AtomicU64| value.load(Ordering::Relaxed);
        TableUse { entries: of(&self.bytes), limit: of(&self.bytes_limit), reached: of(&self.refused) }
    }

    /// Files known to the kernel side.
    pub fn files(&self) -> TableUse {
        let of = |value: &AtomicU64| value.load(Ordering::Relaxed);
        TableUse {
            entries: of(&self.files),
            limit: u64::from(tracer_common::unwind::FILES),
            reached: of(&self.evicted),
        }
    }

    /// Different rules.
    pub fn rules(&self) -> TableUse {
        let of = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let limit = u64::from(tracer_common::unwind::RULES);
        TableUse { entries: of(&self.rules), limit, reached: of(&self.rules_refused) }
    }

    /// Tables made so far, and the time that took, nanoseconds.
    pub fn made(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed))
    }
}

/// The running thread; it ends when this is dropped.
pub struct Unwinder {
    figures: Arc<Figures>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Unwinder {
    /// Starts the thread, which has the priority `nice` as its caller does. `java`: also for code that Java's virtual machine
    /// makes.
    pub fn start(tables: Tables, bounds: Bounds, nice: i32, java: bool) -> std::io::Result<Self> {
        let (figures, ending) = (Arc::new(Figures::default()), Arc::new(AtomicBool::new(false)));
        let mut worker = Worker {
            tables,
            store: Store::new(bounds),
            nice,
            late: false,
            pace: Pace::new(),
            large_pace: Pace::new(),
            requests: RequestQueue::default(),
            large: None,
            java: JavaProcesses::new(java),
            keys: RandomState::new(),
            figures: Arc::clone(&figures),
            ending: Arc::clone(&ending),
        };
        let thread = std::thread::Builder::new().name("tracer-unwind".into()).spawn(move || worker.run())?;
        Ok(Self { figures, ending, thread: Some(thread) })
    }

    /// Figures so far.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }
}

impl Drop for Unwinder {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        // It looks up once a second at least; whoever ends does not wait for a file on a disk that hangs.
        drop(self.thread.take());
    }
}

/// How much was worked lately.
#[derive(Debug)]
struct Pace {
    spent: Duration,
    at: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { spent: Duration::ZERO, at: Instant::now() }
    }

    /// Whether that is more than is done promptly, `worked` included.
    fn spend(&mut self, worked: Duration, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).mul_f64(PROMPT_SHARE);
        self.at = now;
        self.spent = self.spent.saturating_sub(earned) + worked;
        self.spent > PROMPT
    }
}

struct Worker {
    tables: Tables,
    store: Store,
    /// The agent's own priority, whether the lowest is in force, and what decides. Large tables have an account of their own: what
    /// they take leaves others prompt.
    nice: i32,
    late: bool,
    pace: Pace,
    large_pace: Pace,
    /// Not served yet.
    requests: RequestQueue,
    /// The large file whose table is being made.
    large: Option<LargeTableJob>,
    java: JavaProcesses,
    keys: RandomState,
    figures: Arc<Figures>,
    ending: Arc<AtomicBool>,
}

/// This moment, by two clocks: the second one is that of [`FileEntry::used`].
fn moment() -> (Instant, u32) {
    (Instant::now(), (monotonic() >> 30) as u32)
}

impl Worker {
    fn run(&mut self) {
        self.vdso();
        let mut unused = Instant::now();
        while !self.ending.load(Ordering::Relaxed) {
            while let Some((request, file)) = self.next() {
                // The one that is made now counts, too.
                self.show(1);
                self.serve(&request, file);
            }
            self.store.tick(&mut self.tables, moment());
            let (begin, before) = (thread_cpu(), self.java.made());
            self.java.tick(&mut self.store, &mut self.tables, &self.keys, moment());
            self.count(worked(begin), self.java.made() - before);
            if unused.elapsed() >= LATER {
                unused = Instant::now();
                self.store.drop_unused(&mut self.tables, moment());
            }
            self.show(0);
            let longest = if self.large.is_some() { LARGE_TABLE_POLL } else { SOON };
            let wait = self.java.until_next(longest) + Duration::from_millis(1);
            self.tables.wait(wait.as_millis() as i32);
        }
    }

    /// The request that comes next, of those that have not been served, and its file.
    fn next(&mut self) -> Option<(TableRequest, Option<OpenResult>)> {
        self.finish_large();
        while let Some(request) = self.tables.request() {
            self.requests.push(request, open);
        }
        self.requests.refresh(Instant::now(), |key| self.tables.waiting(key));
        self.requests.pop(self.large.is_none())
    }

    /// Puts the large table where walks find it, once it is made.
    fn finish_large(&mut self) {
        let Some((key, done)) = self.large.as_ref().and_then(|job| Some((job.key, job.done()?))) else { return };
        self.large = None;
        let Ok(LargeTable { made, cpu }) = done else {
            log::warn!("no unwind table for a file of {} bytes: its thread ended", key.size);
            return self.tables.forget(key);
        };
        let compiled = made.map(|(identity, new)| {
            let table = new.map(|(mut table, own)| {
                table.renumber(&own, self.store.rules());
                table
            });
            (identity, table)
        });
        if let Err(why) = self.put(key, compiled) {
            log::warn!("no unwind table for a file of {} bytes: {why}", key.size);
            self.tables.forget(key);
        }
        log::debug!("unwind table of a file of {} bytes: {:.1} ms of CPU", key.size, cpu.as_secs_f64() * 1e3);
        self.large_pace.spend(cpu, Instant::now());
        self.made(cpu, 1);
    }

    /// Shows figures; so many tables are being made on this thread.
    fn show(&self, being_made: u64) {
        let set = |figure: &AtomicU64, value: u64| figure.store(value, Ordering::Relaxed);
        let (bytes, limit) = self.store.bytes();
        set(&self.figures.waiting, self.requests.len() as u64 + u64::from(self.large.is_some()) + being_made);
        set(&self.figures.bytes, bytes);
        set(&self.figures.bytes_limit, limit);
        set(&self.figures.files, self.store.files() as u64);
        set(&self.figures.evicted, self.store.evicted);
        set(&self.figures.refused, self.store.refused);
        set(&self.figures.rules, self.store.rules_known());
        set(&self.figures.rules_refused, self.store.rules_refused());
    }

    /// The code the kernel maps into every process. No file can be opened for it; ours is everybody's.
    fn vdso(&mut self) {
        let Some(bytes) = vdso() else { return };
        if let Err(why) = self.load(FileKey::default(), Image::parse(&*bytes)) {
            log::warn!("no unwind table for the vdso: {why}");
        }
    }

    fn serve(&mut self, request: &TableRequest, file: Option<OpenResult>) {
        let begin = thread_cpu();
        let TableRequest { key, tgid, .. } = *request;
        if key.device == JIT_CODE {
            self.java.serve(tgid, &mut self.store, &mut self.tables, &self.keys, moment());
            return self.count(worked(begin), 1);
        }
        let path = path(request);
        let done = match file.unwrap_or_else(|| open(request)) {
            Ok(Some(file)) if key.size >= LARGE => {
                let nice = if self.large_pace.spend(Duration::ZERO, Instant::now()) { NICE } else { self.nice };
                match LargeTableJob::start(key, file, self.keys.clone(), self.store.identities(), nice) {
                    Ok(job) => {
                        self.large = Some(job);
                        return;
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
            Ok(Some(file)) => {
                let cache = ReadCache::new(BoundedFile::new(file));
                self.load(key, Image::parse(&cache))
            }
            // No regular file: reading it may have effects.
            Ok(None) => self.store.without(&mut self.tables, key, moment().1),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                log::debug!("{path}: {error}");
                self.store.refuse(&mut self.tables, key, moment())
            }
            Err(error) => {
                // The process is gone, or maps something else by now. Whoever maps the file next asks again.
                log::debug!("{path}: {error}");
                self.tables.forget(key);
                Ok(())
            }
        };
        if let Err(why) = done {
            log::warn!("no unwind table for {path}: {why}");
            self.tables.forget(key);
        }
        let worked = worked(begin);
        log::debug!("unwind table of {path} ({} bytes): {:.1} ms of CPU", key.size, worked.as_secs_f64() * 1e3);
        self.count(worked, 1);
    }

    /// `worked` was spent on so many tables.
    fn count(&mut self, worked: Duration, tables: u64) {
        self.pace(worked);
        self.made(worked, tables);
    }

    fn made(&self, worked: Duration, tables: u64) {
        self.figures.made.fetch_add(tables, Ordering::Relaxed);
        self.figures.nanos.fetch_add(worked.as_nanos() as u64, Ordering::Relaxed);
    }

    /// `worked` was spent on a table: chooses the priority for the next one.
    fn pace(&mut self, worked: Duration) {
        let late = self.pace.spend(worked, Instant::now());
        if late != self.late {
            self.late = late;
            if let Err(error) = self_process::set_nice(if late { NICE } else { self.nice }) {
                log::debug!("{error}: unwind tables are made at the priority in force");
            }
        }
    }

    fn load(&mut self, key: FileKey, image: Result<Image<'_>, NoTable>) -> Result<(), String> {
        let compiled = image.and_then(|image| {
            let identity = image.identity(&self.keys);
            if self.store.has(identity) {
                return Ok((identity, None));
            }
            compile(&image, self.store.rules()).map(|table| (identity, Some(table)))
        });
        self.put(key, compiled)
    }

    /// The file has the table with this identity, which is given where it is new.
    fn put(&mut self, key: FileKey, compiled: Result<(u64, Option<Table>), NoTable>) -> Result<(), String> {
        let now = moment();
        match compiled {
            Ok((identity, _)) if self.store.has(identity) => self.store.share(&mut self.tables, key, identity, now.1),
            Ok((identity, Some(table))) => self.store.put(&mut self.tables, key, identity, &table, now),
            Ok((_, None)) => Err("it was dropped meanwhile".into()),
            Err(NoTable::Absent) => self.store.without(&mut self.tables, key, now.1),
            Err(NoTable::TooLarge) => {
                self.store.refused += 1;
                self.store.refuse(&mut self.tables, key, now)
            }
        }
    }
}

/// CPU of this thread since it had used `before`.
fn worked(before: u64) -> Duration {
    Duration::from_nanos(thread_cpu().saturating_sub(before))
}

/// Where the file of a request is found.
fn path(request: &TableRequest) -> String {
    let TableRequest { start, end, tgid, .. } = request;
    format!("/proc/{tgid}/map_files/{start:x}-{end:x}")
}

/// Opens the file of a request; code that a process made has none.
fn open(request: &TableRequest) -> OpenResult {
    if request.key.device == JIT_CODE { Ok(None) } else { open_mapped(&path(request), request.key.size) }
}

/// Opens a mapped file; `None` when it is no regular file, or too large.
fn open_mapped(path: &str, size: u64) -> OpenResult {
    // Before it is opened: opening a device can do something.
    let about = fs::metadata(path)?;
    if !about.is_file() || about.len() > FILE_BYTES {
        return Ok(None);
    }
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() != size {
        return Err(std::io::Error::new(ErrorKind::NotFound, "another file is mapped there by now"));
    }
    Ok(Some(file))
}

/// The bytes of our own vdso.
pub(super) fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16));
    let (start, end) = (start.ok()?, end.ok()?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok().filter(|bytes| *bytes <= 1 << 20)?];
    fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Rules;

    #[test]
    fn our_own_vdso_has_a_table() {
        let bytes = vdso().expect("a vdso");
        let image = Image::parse(&*bytes).expect("an ELF image");
        let mut rules = Rules::new();
        let table = compile(&image, &mut rules).expect("a table");
        assert!(table.rows.len() > 10, "{table:?}");
    }

    #[test]
    fn who_makes_new_programs_all_the_time_waits() {
        let begin = Instant::now();
        let mut pace = Pace { at: begin, ..Pace::new() };
        assert!(!pace.spend(PROMPT, begin));
        assert!(pace.spend(Duration::from_millis(1), begin));
        let later = begin + Duration::from_secs(100);
        assert!(!pace.spend(Duration::from_millis(990), later));
        assert!(pace.spend(Duration::from_millis(20), later));
    }

    #[test]
    fn only_regular_files_of_the_right_size_are_opened() {
        assert!(open_mapped("/dev/null", 0).expect("it is there").is_none());
        let exe = "/proc/self/exe";
        let size = fs::metadata(exe).expect("this program").len();
        assert!(open_mapped(exe, size).expect("it opens").is_some());
        assert_eq!(open_mapped(exe, size + 1).expect_err("another file").kind(), ErrorKind::NotFound);
    }
}
