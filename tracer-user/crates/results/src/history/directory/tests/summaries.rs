//! Hours and days say what their windows say, whatever happens to the agent between two writes.

use super::*;
use crate::history::rows::Seconds;
use crate::history::summary::{DAY_S, HOUR_S as HOUR};

const S: u64 = 1_000_000_000;

/// A window whose classes differ in everything that is added up.
fn varied(start_s: u64) -> WindowRows {
    let mut window = window(start_s, 3);
    let seed = start_s % 977 + 1;
    for (n, class) in window.classes.iter_mut().enumerate() {
        let k = seed * (n as u64 + 1);
        class.length_s = 600.0;
        (class.count, class.errors, class.calls) = (k, k % 7, 2 * k);
        class.duration_histogram.add(k * 100_000, 1);
        class.duration_histogram.add(1_000_000_000, (k % 50) as u32);
        let seconds = k as f64 / 8.0;
        (class.duration_s, class.cpu_s, class.cpu_s_squared) = (seconds, seconds / 2.0, seconds * seconds);
        (class.runqueue_s, class.blocked_s, class.queue_s, class.downstream_s) = (0.25, 0.5, 0.125, seconds / 4.0);
        (class.count_by_size, class.cpu_s_by_size) = ([k, 1, 2], [seconds, 0.5, 0.25]);
    }
    let edge = |n: u64| EdgeRow {
        start_ns: window.host.start_ns,
        length_s: 600.0,
        request_class: "GET /0".into(),
        caller_service: format!("caller {}", (start_s / 600 + n) % 4).into(),
        root: if n == 0 { "open" } else { "class" }.into(),
        // What is open may be less than nothing.
        count: if n == 0 { 3 - (seed % 7) as i64 } else { seed as i64 },
        errors: n as i64,
        root_count: n,
        duration_s: Seconds(seed as f64 / 8.0),
        cpu_s: Seconds(seed as f64 / 16.0),
        ..EdgeRow::default()
    };
    window.edges = (0..3).map(edge).collect();
    let goal = GoalRow {
        start_ns: window.host.start_ns,
        length_s: 600.0,
        service_class: "gold".into(),
        goal: "p99".into(),
        // Declared anew on the way.
        goal_s: if start_s % 14_400 < 7200 { 0.25 } else { 0.5 },
        count: seed + 2,
        unfinished: 1,
        attained: seed,
        missed: 1,
        windows_attained: seed % 2,
        ..GoalRow::default()
    };
    window.goals = vec![goal];
    window.host = HostRow { length_s: 600.0, busy_s: seed as f64, idle_s: 1.0, events_lost: seed, ..window.host };
    window
}

/// What is added up of a class in a period. Values are eighths, so sums of them are exact.
type Sums = BTreeMap<(u64, String), Vec<f64>>;

fn sums<'a>(rows: impl IntoIterator<Item = &'a ClassRow>, period_s: u64) -> Sums {
    let mut sums = Sums::new();
    for row in rows {
        let period = row.start_ns / (period_s * S);
        let mut values = vec![row.duration_s, row.cpu_s, row.cpu_s_squared, row.runqueue_s, row.blocked_s, row.queue_s];
        values.push(row.downstream_s);
        values.extend([row.count, row.errors, row.calls].map(|n| n as f64));
        values.extend(row.count_by_size.map(|n| n as f64));
        values.extend(row.cpu_s_by_size);
        values.extend(row.duration_histogram.0.map(f64::from));
        let sum = sums.entry((period, row.request_class.to_string())).or_insert_with(|| vec![0.0; values.len()]);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sums
}

/// The same of edges and goals, as text: whose, and in which period.
fn other_sums<'a>(
    edges: impl IntoIterator<Item = &'a EdgeRow>,
    goals: impl IntoIterator<Item = &'a GoalRow>,
    period_s: u64,
) -> Sums {
    let mut sums = Sums::new();
    let mut add = |start_ns: u64, name: String, values: Vec<f64>| {
        let sum = sums.entry((start_ns / (period_s * S), name)).or_insert_with(|| vec![0.0; values.len()]);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    };
    for row in edges {
        let counts = [row.count as f64, row.errors as f64, row.root_count as f64];
        add(
            row.start_ns,
            format!("{} {}", row.caller_service, row.root),
            [counts, [row.duration_s.0, row.cpu_s.0, 0.0]].concat(),
        );
    }
    for row in goals {
        let counts = [row.count, row.unfinished, row.attained, row.missed, row.windows_attained].map(|n| n as f64);
        add(row.start_ns, format!("{} {}", row.service_class, row.goal_s), counts.to_vec());
    }
    sums
}

/// Edges and goals of every hour and day against those of the windows, one row each.
fn assert_others_summed(dir: &Path, now_s: u64) {
    let (edges, goals) = (stored::<EdgeRow>(dir), stored::<GoalRow>(dir));
    let over = |start_ns: u64| start_ns / (DAY_S * S) < now_s / DAY_S;
    for (kinds, period_s) in [((EdgeRow::HOURLY, GoalRow::HOURLY), HOUR), ((EdgeRow::DAILY, GoalRow::DAILY), DAY_S)] {
        let (found_edges, found_goals) = (stored_in::<EdgeRow>(dir, kinds.0), stored_in::<GoalRow>(dir, kinds.1));
        let of = |start_ns: u64| period_s == HOUR || over(start_ns);
        let expected = other_sums(
            edges.iter().filter(|row| of(row.start_ns)),
            goals.iter().filter(|row| of(row.start_ns)),
            period_s,
        );
        assert_eq!(other_sums(&found_edges, &found_goals, period_s), expected, "{kinds:?}");
        assert_eq!(found_edges.len() + found_goals.len(), expected.len(), "{kinds:?}");
    }
}

/// Every hour in which a journal ended, and every day before the one of `now_s`, against the windows.
fn assert_summed(dir: &Path, now_s: u64) {
    let windows = stored::<ClassRow>(dir);
    let hours = stored_in::<ClassRow>(dir, ClassRow::HOURLY);
    assert_eq!(sums(&hours, HOUR), sums(&windows, HOUR));
    // One row an hour and class.
    assert_eq!(hours.len(), sums(&hours, HOUR).len());
    let over = |row: &&ClassRow| row.start_ns / (DAY_S * S) < now_s / DAY_S;
    let days = stored_in::<ClassRow>(dir, ClassRow::DAILY);
    assert_eq!(sums(&days, DAY_S), sums(windows.iter().filter(over), DAY_S));
    assert_eq!(days.len(), sums(&days, DAY_S).len());
    assert_others_summed(dir, now_s);

    let host_windows = stored::<HostRow>(dir);
    for (kind, period) in [(HostRow::HOURLY, HOUR), (HostRow::DAILY, DAY_S)] {
        let mut starts: Vec<u64> = Vec::new();
        for row in stored_in::<HostRow>(dir, kind) {
            let within =
                || host_windows.iter().filter(|window| window.start_ns / (period * S) * period * S == row.start_ns);
            let sum = |of: fn(&HostRow) -> f64| within().map(of).sum::<f64>();
            let same =
                |own: f64, windows: f64| assert!((own - windows).abs() < 1e-9 * windows.abs(), "{kind}: {row:?}");
            same(row.length_s, sum(|row| row.length_s));
            same(row.busy_s, sum(|row| row.busy_s));
            same(row.idle_s, sum(|row| row.idle_s));
            assert_eq!(row.events_lost, within().map(|row| row.events_lost).sum::<u64>(), "{kind}");
            starts.push(row.start_ns);
        }
        assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{starts:?}");
    }
    // A rate is a count by the time that was watched.
    let lengths: BTreeMap<u64, f64> =
        stored_in::<HostRow>(dir, HostRow::HOURLY).iter().map(|row| (row.start_ns, row.length_s)).collect();
    assert!(hours.iter().all(|row| lengths.get(&row.start_ns) == Some(&row.length_s)));
}

#[test]
fn hours_and_days_are_the_sums_of_their_windows() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("history");
    let (mut directory, _) = open(&dir);
    let mut now = HOUR_S;
    for n in 0..400 {
        now = HOUR_S + n * 600;
        directory.append(&varied(now)).unwrap();
        // Restarts within an hour: it has several files then, and one row of each class.
        if n % 37 == 5 {
            kill(directory);
            directory = open(&dir).0;
        }
        if n % 53 == 7 {
            directory.finish();
        }
    }
    directory.finish();
    assert_summed(&dir, now);
    let names: Vec<String> = all_files(&dir.join("kind=daily_classes"))
        .iter()
        .map(|path| path.strip_prefix(&dir).unwrap().display().to_string())
        .collect();
    assert_eq!(
        names,
        [
            "kind=daily_classes/date=2026-11-24/web-1-20261124T000000Z.parquet",
            "kind=daily_classes/date=2026-11-25/web-1-20261125T000000Z.parquet",
            "kind=daily_classes/date=2026-11-26/web-1-20261126T000000Z.parquet",
        ]
    );
}

/// Writes so often, and then the process is gone.
struct Dies(Arc<Mutex<u32>>);

impl Disk for Dies {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let mut left = self.0.lock().unwrap();
        if *left == 0 {
            let _ = file.write_all(&bytes[..bytes.len() / 2]);
            return Err(io::Error::other("killed"));
        }
        *left -= 1;
        RealDisk.write(file, bytes)
    }
}

#[test]
fn killed_at_any_write_sums_are_those_of_the_windows_that_are_left() {
    let temp = tempfile::tempdir().unwrap();
    // The last hour of a day, and the first of the next.
    let begin = HOUR_S - 7 * HOUR + DAY_S - HOUR;
    // A window is one write, and its files are four: every kind of write is among them.
    for writes in (0..110).step_by(5) {
        let dir = temp.path().join(writes.to_string());
        let left = Arc::new(Mutex::new(writes));
        let (mut directory, _) = open_with(options(&dir), Box::new(Dies(Arc::clone(&left))));
        for n in 0..20 {
            // After the first failure nothing is written any more, as by a process that is gone.
            let _ = directory.append(&varied(begin + n * 600));
        }
        kill(directory);
        let (mut directory, status) = open(&dir);
        let next = begin + 20 * 600;
        directory.append(&varied(next)).unwrap();
        directory.finish();
        assert_eq!(status.files_ignored.get(), 0, "{writes}");
        assert_summed(&dir, next);
        // Nothing changes when everything is read once more.
        drop(directory);
        let before = stored_in::<ClassRow>(&dir, ClassRow::DAILY);
        let (mut directory, _) = open(&dir);
        directory.make_days((next + DAY_S) as i64);
        directory.append(&varied(next + DAY_S)).unwrap();
        directory.finish();
        assert_summed(&dir, next + DAY_S);
        assert!(stored_in::<ClassRow>(&dir, ClassRow::DAILY).len() >= before.len());
    }
}

#[test]
fn a_late_hour_makes_its_day_again() {
    let temp = tempfile::tempdir().unwrap();
    let (mut directory, _) = open(temp.path());
    for start_s in [HOUR_S, HOUR_S + DAY_S, HOUR_S + 3 * HOUR, HOUR_S + DAY_S + HOUR] {
        directory.append(&varied(start_s)).unwrap();
    }
    directory.finish();
    assert_summed(temp.path(), HOUR_S + DAY_S);
    let days = stored_in::<HostRow>(temp.path(), HostRow::DAILY);
    assert_eq!(days.iter().map(|row| row.length_s).collect::<Vec<_>>(), [1200.0]);
}

#[test]
fn a_damaged_summary_is_left_alone_and_the_next_hour_has_another_file() {
    let temp = tempfile::tempdir().unwrap();
    let (mut directory, _) = open(temp.path());
    directory.append(&varied(HOUR_S)).unwrap();
    directory.finish();
    let files = all_files(&temp.path().join("kind=hourly_classes"));
    fs::write(&files[0], "mine").unwrap();
    drop(directory);
    let (mut directory, status) = open(temp.path());
    assert_eq!(status.files_ignored.get(), 1);
    directory.append(&varied(HOUR_S + HOUR)).unwrap();
    directory.finish();
    assert_eq!(fs::read(&files[0]).unwrap(), b"mine");
    let second = files[0].with_file_name("web-1-20261124T000000Z-1.parquet");
    assert_eq!(read::<ClassRow, _>(File::open(second).unwrap()).unwrap().len(), 3);
}

#[test]
fn windows_hours_and_days_have_ages_of_their_own() {
    let temp = tempfile::tempdir().unwrap();
    let days = |days: u64| Duration::from_secs(days * DAY_S);
    let ages = Options { max_age: days(2), hourly_max_age: days(5), daily_max_age: days(8), ..options(temp.path()) };
    let (mut directory, _) = open_with(ages, Box::new(RealDisk));
    for n in 0..4 * 15 {
        directory.append(&varied(HOUR_S + n * 6 * HOUR)).unwrap();
    }
    directory.finish();
    let oldest = |starts: Vec<u64>| starts.into_iter().min().map(|start_ns| start_ns / (DAY_S * S));
    let last = (HOUR_S + 59 * 6 * HOUR) / DAY_S;
    let windows = oldest(stored::<ClassRow>(temp.path()).iter().map(|row| row.start_ns).collect());
    let of = |kind| oldest(stored_in::<ClassRow>(temp.path(), kind).iter().map(|row| row.start_ns).collect());
    assert_eq!((windows, of(ClassRow::HOURLY), of(ClassRow::DAILY)), (Some(last - 2), Some(last - 4), Some(last - 7)));
    assert_eq!(directory.status.bytes.get(), directory.bytes());
}

#[test]
fn where_room_is_short_windows_go_first() {
    let temp = tempfile::tempdir().unwrap();
    let (mut directory, _) = open(temp.path());
    for n in 0..24 * 4 {
        directory.append(&varied(HOUR_S + n * HOUR)).unwrap();
    }
    let summaries = directory.bytes_of(Age::Hours) + directory.bytes_of(Age::Days);
    directory.options.max_size = 5 * summaries;
    directory.finish();
    assert!(directory.bytes() <= 5 * summaries, "{}", directory.bytes());
    assert_eq!(stored_in::<HostRow>(temp.path(), HostRow::HOURLY).len(), 24 * 4);
    assert_eq!(stored_in::<HostRow>(temp.path(), HostRow::DAILY).len(), 4);
    assert!(stored::<HostRow>(temp.path()).len() < 24 * 4);
}
