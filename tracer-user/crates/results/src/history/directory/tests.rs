//! Tests of the directory: killed, full, foreign, old.

use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::history::parquet_file::{VERSION_KEY, read};
use crate::history::rows::Identity;

mod bytes_a_day;
mod summaries;

/// 2026-11-24T07:00:00Z.
const HOUR_S: u64 = 1_795_503_600;

fn window(start_s: u64, classes: u64) -> WindowRows {
    let start_ns = start_s * 1_000_000_000;
    let class = |n: u64| ClassRow {
        start_ns,
        service_name: "shop".into(),
        request_class: format!("GET /{n}").into(),
        identity: Identity(n),
        count: n,
        cpu_s: 0.25,
        ..ClassRow::default()
    };
    WindowRows {
        host: HostRow { start_ns, cores: 2.0, ..HostRow::default() },
        classes: (0..classes).map(class).collect(),
        ..WindowRows::default()
    }
}

fn options(dir: &Path) -> Options {
    let (host, max_age) = ("web-1".to_owned(), Duration::from_secs(1 << 30));
    let (dir, hourly_max_age, daily_max_age) = (dir.to_owned(), max_age, max_age);
    Options { dir, host, max_size: 1 << 30, max_age, hourly_max_age, daily_max_age, upload: false }
}

/// Opens it again. A process that another test starts has the lock of the one before, too, until it executes its program.
fn open(dir: &Path) -> (Directory, Arc<Status>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = Arc::new(Status::default());
        match Directory::open(options(dir), Arc::clone(&status), Box::new(RealDisk)) {
            Err(error) if error.to_string().contains("another tracer writes") && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2));
            }
            opened => return (opened.unwrap(), status),
        }
    }
}

fn open_with(options: Options, disk: Box<dyn Disk>) -> (Directory, Arc<Status>) {
    let status = Arc::new(Status::default());
    (Directory::open(options, Arc::clone(&status), disk).unwrap(), status)
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in entries(dir, &mut { ENTRIES_MAX }) {
        if path.is_dir() { files.extend(all_files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Those of windows below the directory, or those of a table in its directory.
fn parquet_files(dir: &Path) -> Vec<PathBuf> {
    let of_windows = |path: &PathBuf| {
        let below = path.strip_prefix(dir).unwrap().display().to_string();
        !below.starts_with("kind=hourly") && !below.starts_with("kind=daily")
    };
    let parquet = |path: &PathBuf| path.extension().is_some_and(|e| e == "parquet");
    all_files(dir).into_iter().filter(parquet).filter(of_windows).collect()
}

/// All rows of a table, by time.
fn stored<R: HistoryRow>(dir: &Path) -> Vec<R> {
    stored_in(dir, R::KIND)
}

fn stored_in<R: HistoryRow>(dir: &Path, kind: &str) -> Vec<R> {
    let files = parquet_files(&dir.join(format!("kind={kind}")));
    files.into_iter().flat_map(|path| read::<R, _>(File::open(path).unwrap()).unwrap()).collect()
}

fn assert_stored(dir: &Path, windows: &[WindowRows]) {
    let hosts: Vec<HostRow> = windows.iter().map(|window| window.host.clone()).collect();
    let classes: Vec<ClassRow> = windows.iter().flat_map(|window| window.classes.clone()).collect();
    assert_eq!(stored::<HostRow>(dir), hosts);
    assert_eq!(stored::<ClassRow>(dir), classes);
}

/// As if the agent was killed: nothing is finished.
fn kill(directory: Directory) {
    drop(directory);
}

#[test]
fn windows_are_readable_at_once_and_one_file_an_hour_remains() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("history");
    let (mut directory, status) = open(&dir);
    let windows: Vec<WindowRows> = (0..400).map(|n| window(HOUR_S + n * 10, n % 3)).collect();
    directory.append(&windows[0]).unwrap();
    assert_stored(&dir, &windows[..1]);
    for window in &windows[1..] {
        directory.append(window).unwrap();
    }
    assert!(stored::<HostRow>(&dir).len() > 360);
    directory.finish();
    assert_stored(&dir, &windows);
    let names: Vec<String> =
        parquet_files(&dir).iter().map(|path| path.strip_prefix(&dir).unwrap().display().to_string()).collect();
    assert_eq!(
        names,
        [
            "kind=classes/date=2026-11-24/hour=07/web-1-20261124T070000Z.parquet",
            "kind=classes/date=2026-11-24/hour=08/web-1-20261124T080000Z.parquet",
            "kind=hosts/date=2026-11-24/hour=07/web-1-20261124T070000Z.parquet",
            "kind=hosts/date=2026-11-24/hour=08/web-1-20261124T080000Z.parquet",
        ]
    );
    assert_eq!(status.windows_written.get(), 400);
    assert!(status.bytes.get() > 0);
    // Only the lock is left of what is no result.
    assert_eq!(all_files(&dir.join(layout::JOURNALS)).len(), 1);
}

#[test]
fn killed_at_any_byte_of_a_write_at_most_that_window_is_lost() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("history");
    let windows: Vec<WindowRows> = (0..4).map(|n| window(HOUR_S + n * 10, 2)).collect();
    let (mut directory, _) = open(&dir);
    for window in &windows[..3] {
        directory.append(window).unwrap();
    }
    let journal = directory.journal_path(&directory.current.as_ref().unwrap().stem);
    let before = fs::read(&journal).unwrap().len();
    directory.append(&windows[3]).unwrap();
    let whole = fs::read(&journal).unwrap();
    kill(directory);
    // The journal's own test cuts at every byte; here every file is synced.
    for cut in (before..=whole.len()).filter(|cut| cut % 11 == 0 || *cut == before || *cut == whole.len()) {
        let dir = temp.path().join(format!("cut-{cut}"));
        let journals = dir.join(layout::JOURNALS);
        files::directory(&journals).unwrap();
        fs::write(journals.join(journal.file_name().unwrap()), &whole[..cut]).unwrap();
        let (mut directory, status) = open(&dir);
        let left = if cut == whole.len() { 4 } else { 3 };
        assert_stored(&dir, &windows[..left]);
        assert_eq!(status.windows_recovered.get(), left as u64);
        assert_eq!(status.windows_lost_torn.get(), u64::from(left == 3 && cut > before), "{cut}");
        // The next window goes on behind them.
        let next = window(HOUR_S + 40, 1);
        directory.append(&next).unwrap();
        directory.finish();
        assert_stored(&dir, &[&windows[..left], &[next]].concat());
    }
}

#[test]
fn killed_between_parquet_file_and_journal_nothing_is_there_twice() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("history");
    let windows = [window(HOUR_S, 2), window(HOUR_S + 10, 2)];
    let (mut directory, _) = open(&dir);
    for window in &windows {
        directory.append(window).unwrap();
    }
    // Both files are there, and the journal still is; a third file had begun.
    let stem = directory.current.as_ref().unwrap().stem.clone();
    kill(directory);
    let begun = dir.join(layout::JOURNALS).join(format!("classes-{stem}{}", layout::TEMPORARY));
    fs::write(&begun, b"PAR1").unwrap();
    let (directory, status) = open(&dir);
    assert_stored(&dir, &windows);
    assert!(!begun.exists() && status.windows_recovered.get() == 2);
    drop(directory);
    let (_directory, status) = open(&dir);
    assert_stored(&dir, &windows);
    assert_eq!((status.windows_recovered.get(), status.files_ignored.get()), (0, 0));
}

#[test]
fn one_agent_at_a_time() {
    let temp = tempfile::tempdir().unwrap();
    let (directory, _) = open(temp.path());
    let second =
        || Directory::open(options(temp.path()), Arc::default(), Box::new(RealDisk)).err().map(|e| e.to_string());
    assert!(second().unwrap().contains("another tracer"));
    drop(directory);
    assert_eq!(second(), None);
}

/// Takes so many more bytes.
struct Full(Arc<Mutex<usize>>);

impl Disk for Full {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let mut room = self.0.lock().unwrap();
        let fits = bytes.len().min(*room);
        *room -= fits;
        file.write_all(&bytes[..fits])?;
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn full_at_any_byte_what_was_written_stays_and_what_was_not_is_counted() {
    let temp = tempfile::tempdir().unwrap();
    let windows: Vec<WindowRows> = (0..6).map(|n| window(HOUR_S + n * 10, 2)).collect();
    let mut lost = 0;
    for room in (0..12_000).step_by(197) {
        let dir = temp.path().join(room.to_string());
        let left = Arc::new(Mutex::new(room));
        let (mut directory, status) = open_with(options(&dir), Box::new(Full(Arc::clone(&left))));
        let kept: Vec<WindowRows> = windows[..5].iter().filter(|w| directory.append(w).is_ok()).cloned().collect();
        assert_eq!(status.windows_lost_disk.get(), 5 - kept.len() as u64);
        lost += status.windows_lost_disk.get();
        // Whatever is there is whole.
        for path in parquet_files(&dir) {
            parquet_file::check(&path).unwrap();
        }
        // There is room again.
        *left.lock().unwrap() = usize::MAX;
        directory.append(&windows[5]).unwrap();
        directory.finish();
        assert_stored(&dir, &[&kept[..], &windows[5..]].concat());
        assert!(directory.pending.is_empty());
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn files_that_cannot_be_written_wait_in_the_journal() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("history");
    let (mut directory, status) = open(&dir);
    fs::write(dir.join("kind=classes"), "in the way").unwrap();
    let windows = [window(HOUR_S, 2), window(HOUR_S + 3600, 2), window(HOUR_S + 7200, 1)];
    for window in &windows[..2] {
        directory.append(window).unwrap();
    }
    assert!(status.files_failed.get() > 0 && directory.pending.len() == 1);
    assert_eq!(status.windows_lost_disk.get(), 0);
    fs::remove_file(dir.join("kind=classes")).unwrap();
    directory.append(&windows[2]).unwrap();
    directory.finish();
    assert_stored(&dir, &windows);
}

#[test]
fn files_of_others_are_left_alone_and_counted() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("history");
    let (mut directory, _) = open(&dir);
    directory.append(&window(HOUR_S, 1)).unwrap();
    directory.finish();
    drop(directory);
    let hour = dir.join("kind=classes/date=2026-11-24/hour=07");
    let whole = fs::read(hour.join("web-1-20261124T070000Z.parquet")).unwrap();
    // A later version's: one byte of the footer more.
    let at = whole.windows(VERSION_KEY.len()).position(|w| w == VERSION_KEY.as_bytes()).unwrap() + VERSION_KEY.len();
    let mut newer = whole.clone();
    let digit = newer[at..].iter().position(|byte| *byte == b'1').unwrap();
    newer[at + digit] = b'9';
    let foreign = [
        (hour.join("web-1-20261124T070100Z.parquet"), &whole[..whole.len() - 3]),
        (hour.join("web-1-20261124T070200Z.parquet"), &newer[..]),
        (hour.join("notes.txt"), b"mine"),
        (dir.join("README"), b"mine"),
        (dir.join("_journal/web-1-20261124T070300Z.journal"), b"tracer history journal 9\n"),
    ];
    // Another host's, whatever is in it.
    let other = hour.join("web-20261124T070000Z.parquet");
    fs::write(&other, "theirs").unwrap();
    for (path, bytes) in &foreign {
        fs::write(path, bytes).unwrap();
    }
    let (mut directory, status) = open_with(Options { max_size: 0, ..options(&dir) }, Box::new(RealDisk));
    assert_eq!(status.files_ignored.get(), foreign.len() as u64);
    directory.append(&window(HOUR_S + 86_400, 1)).unwrap();
    directory.finish();
    for (path, bytes) in &foreign {
        assert_eq!(fs::read(path).unwrap(), *bytes, "{}", path.display());
    }
    assert!(other.exists() && !hour.join("web-1-20261124T070000Z.parquet").exists());
}

#[test]
fn old_files_make_room() {
    let temp = tempfile::tempdir().unwrap();
    let by_age = Options { max_age: Duration::from_secs(5 * 3600), ..options(&temp.path().join("age")) };
    let (mut directory, status) = open_with(by_age.clone(), Box::new(RealDisk));
    for hour in 0..30 {
        directory.append(&window(HOUR_S + hour * 3600, 1)).unwrap();
    }
    directory.finish();
    let hosts = stored::<HostRow>(&by_age.dir);
    assert_eq!(hosts.iter().map(|row| row.start_ns / 1_000_000_000).min(), Some(HOUR_S + 24 * 3600));
    assert_eq!((hosts.len(), status.files_recycled.get()), (6, 48));
    // Empty partitions go with them.
    assert!(!by_age.dir.join("kind=hosts/date=2026-11-24").exists());
    // A clock that jumps by years does not take everything at once.
    directory.append(&window(HOUR_S + 100_000 * 3600, 1)).unwrap();
    directory.finish();
    assert_eq!(stored::<HostRow>(&by_age.dir).len(), 7 - AGED_MAX / 2);

    let (mut directory, _) = open(&temp.path().join("size"));
    directory.append(&window(HOUR_S, 1)).unwrap();
    directory.finish();
    let four = directory.bytes();
    directory.options.max_size = 3 * four;
    for hour in 1..10 {
        directory.append(&window(HOUR_S + hour * 3600, 1)).unwrap();
    }
    directory.finish();
    let hosts = stored::<HostRow>(&directory.options.dir);
    let classes = stored::<ClassRow>(&directory.options.dir);
    assert!((3..=6).contains(&hosts.len()) && (3..=6).contains(&classes.len()), "{} {}", hosts.len(), classes.len());
    assert!(hosts.iter().any(|row| row.start_ns == (HOUR_S + 9 * 3600) * 1_000_000_000));
    assert!(directory.bytes() <= 3 * four && directory.status.bytes.get() == directory.bytes());
}

#[test]
fn a_clock_that_steps_back_loses_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let (mut directory, _) = open(temp.path());
    for start_s in [HOUR_S, HOUR_S + 10, HOUR_S - 3600, HOUR_S, HOUR_S, 0] {
        directory.append(&window(start_s, 1)).unwrap();
    }
    directory.finish();
    assert_eq!(stored::<HostRow>(temp.path()).len(), 6);
    assert_eq!(parquet_files(temp.path()).len(), 8);
}
