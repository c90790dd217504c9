//! The history's files, read by DuckDB and by ClickHouse with the statements of `docs/history.md`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracer_results::history::directory::{Directory, Options, RealDisk};
use tracer_results::history::rows::{ClassRow, EdgeRow, FindingRow, GoalRow, HostRow, Seconds, WindowRows};
use tracer_results::history::status::Status;
use tracer_tests::go::unpacked;
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, scratch};

/// 2026-11-24T07:00:00Z.
const START_S: u64 = 1_795_503_600;
/// From then until the third day: two days are over.
const HOURS: u64 = 60;
const WINDOWS_AN_HOUR: u64 = 2;
/// Request classes: milliseconds of CPU, and of duration, of each of their requests.
const CLASSES: [(&str, f64, u64); 3] = [("GET /cart", 1.5, 5), ("GET /home", 0.25, 1), ("POST /order", 4.0, 40)];

/// Requests of a class in the window with this number.
fn requests(class: usize, window: u64) -> u64 {
    10 * (class as u64 + 1) + window % 7
}

/// Requests of PostgreSQL: who made them, for which first request, how many for each of that, and milliseconds of CPU of each.
const CALLS: [(&str, usize, u64, f64); 2] = [("GET /home", 1, 1, 0.25), ("POST /order", 2, 2, 0.5)];

/// Callers and callees: orders are first requests, and PostgreSQL serves two classes of the shop.
fn edges(nth: u64, row: &EdgeRow) -> Vec<EdgeRow> {
    let (name, cpu_ms, _) = CLASSES[2];
    let count = requests(2, nth);
    let orders = EdgeRow {
        service_name: "shop".into(),
        request_class: name.into(),
        root: "class".into(),
        root_service: "shop".into(),
        root_class: name.into(),
        count: count as i64,
        root_count: count,
        cpu_s: Seconds(count as f64 * cpu_ms / 1000.0),
        ..row.clone()
    };
    let called = |(caller, class, each, cpu_ms): &(&str, usize, u64, f64)| {
        let count = requests(*class, nth) * each;
        EdgeRow {
            service_name: "postgres".into(),
            request_class: "SELECT".into(),
            caller_service: "shop".into(),
            caller_class: (*caller).into(),
            root: "class".into(),
            root_service: "shop".into(),
            root_class: (*caller).into(),
            count: count as i64,
            cpu_s: Seconds(count as f64 * cpu_ms / 1000.0),
            ..row.clone()
        }
    };
    std::iter::once(orders).chain(CALLS.iter().map(called)).collect()
}

fn window(nth: u64) -> WindowRows {
    let start_ns = (START_S + nth * 3600 / WINDOWS_AN_HOUR) * 1_000_000_000;
    let host: Arc<str> = "web-1".into();
    let class = |(index, (name, cpu_ms, duration_ms)): (usize, &(&str, f64, u64))| {
        let count = requests(index, nth);
        let mut row = ClassRow {
            start_ns,
            length_s: 10.0,
            host: Arc::clone(&host),
            service_name: "shop".into(),
            request_class: (*name).into(),
            side: "server".into(),
            protocol: "http".into(),
            count,
            cpu_s: count as f64 * cpu_ms / 1000.0,
            duration_s: (count * duration_ms) as f64 / 1000.0,
            ..ClassRow::default()
        };
        row.duration_histogram.add(duration_ms * 1_000_000, count as u32);
        row
    };
    let edge =
        EdgeRow { start_ns, length_s: 10.0, host: Arc::clone(&host), side: "server".into(), ..EdgeRow::default() };
    let goal = GoalRow {
        start_ns,
        length_s: 10.0,
        host: Arc::clone(&host),
        service_class: "gold".into(),
        service_name: "shop".into(),
        goal: "p99".into(),
        goal_s: 0.05,
        count: requests(2, nth),
        attained: requests(2, nth) - nth % 2,
        missed: nth % 2,
        ..GoalRow::default()
    };
    WindowRows {
        edges: edges(nth, &edge),
        goals: vec![goal],
        host: HostRow { start_ns, length_s: 10.0, host: Arc::clone(&host), cores: 2.0, ..HostRow::default() },
        classes: CLASSES.iter().enumerate().map(class).collect(),
        findings: findings(nth, start_ns, &host),
        ..WindowRows::default()
    }
}

/// Windows in which something was found. It is published two windows later, and its end one later.
const FOUND: std::ops::Range<u64> = 12..20;

fn findings(nth: u64, start_ns: u64, host: &Arc<str>) -> Vec<FindingRow> {
    let at = |nth: u64| (START_S + nth * 3600 / WINDOWS_AN_HOUR) * 1_000_000_000;
    let (event, until_ns) = match nth {
        _ if nth == FOUND.start + 2 => ("opened", 0),
        _ if nth == FOUND.end + 1 => ("ended", at(FOUND.end)),
        _ => return Vec::new(),
    };
    let row = FindingRow {
        start_ns,
        host: Arc::clone(host),
        id: 1,
        event: event.into(),
        finding: "application_change".into(),
        service_name: "shop".into(),
        since_ns: at(FOUND.start),
        until_ns,
        found_ns: at(FOUND.start + 2),
        ..FindingRow::default()
    };
    // A change of the load says nothing of costs, and it lasts.
    let load = FindingRow { id: 2, finding: "workload_change".into(), until_ns: 0, ..row.clone() };
    vec![FindingRow { request_class: "GET /cart".into(), ..row.clone() }, row, load]
}

/// Statements, in their order.
fn statements(document: &str) -> Vec<&str> {
    let blocks = document.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(|block| block.split_inclusive(';')).map(str::trim).filter(|text| !text.is_empty()).collect()
}

/// An engine that is a library for Python.
struct Engine {
    /// A file of the library.
    library: &'static str,
    /// The workload that asks it.
    script: &'static str,
}

impl Engine {
    fn ask(&self, statement: &str) -> Vec<Vec<Value>> {
        let mut command = Command::new("python3");
        let path = Path::new(self.library).ancestors().nth(2).expect("a directory");
        command.arg(source(self.script)).env("PYTHONPATH", path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        child.stdin.take().expect("a pipe").write_all(statement.as_bytes()).expect("a statement");
        let done = child.wait_with_output().expect("an end");
        assert!(done.status.success(), "{statement}");
        serde_json::from_slice(&done.stdout).expect("rows")
    }

    /// Asks for days, classes and medians, tiers, callers, goals and clean windows, and compares with what was written.
    fn check(&self, [by_day, by_class, medians, by_tier, by_caller, goals, clean]: [&str; 7]) {
        let dir = scratch();
        let history = write_history(dir.path());
        let ask = |statement: &str| self.ask(&statement.replace("DIR", &history));

        // Every request of every window, and what it cost.
        let rows = ask(by_class);
        let read: BTreeMap<&str, &Vec<Value>> =
            rows.iter().map(|row| (row[1].as_str().expect("a name"), row)).collect();
        assert_eq!(read.len(), CLASSES.len(), "{rows:?}");
        for (index, (name, cpu_ms, duration_ms)) in CLASSES.iter().enumerate() {
            let row = read[name];
            assert_eq!((row[0].as_str(), number(&row[2])), (Some("shop"), all(index) as f64), "{row:?}");
            assert!((number(&row[3]) - cpu_ms).abs() < 1e-6, "{row:?}");
            assert!((number(&row[4]) - *duration_ms as f64).abs() < 1e-6, "{row:?}");
        }

        // Bounds of buckets are a factor of the root of two apart.
        let rows = ask(medians);
        assert_eq!(rows.len(), CLASSES.len(), "{rows:?}");
        for row in &rows {
            let (_, _, duration_ms) = CLASSES.iter().find(|class| Some(class.0) == row[0].as_str()).expect("a class");
            let ratio = number(&row[1]) / *duration_ms as f64;
            assert!((1.0..=2f64.sqrt() + 1e-9).contains(&ratio), "{row:?}");
        }

        // Days that are over, of one class.
        let of_day = |hours: std::ops::Range<u64>| {
            (hours.start * WINDOWS_AN_HOUR..hours.end * WINDOWS_AN_HOUR).map(|nth| requests(0, nth)).sum::<u64>() as f64
        };
        let rows = ask(by_day);
        let days: Vec<(String, f64)> =
            rows.iter().map(|row| (row[0].as_str().expect("a date").to_owned(), number(&row[1]))).collect();
        assert_eq!(days, [("2026-11-24".to_owned(), of_day(0..17)), ("2026-11-25".to_owned(), of_day(17..41))]);
        assert!(rows.iter().all(|row| (number(&row[2]) - CLASSES[0].1).abs() < 1e-6), "{rows:?}");

        // What an order costs in each tier, of days that are over; files keep seven digits.
        let rows = ask(by_tier);
        let tiers: Vec<(&str, &str)> =
            rows.iter().map(|row| (row[0].as_str().expect("a month"), row[1].as_str().expect("a name"))).collect();
        assert_eq!(tiers, [("2026-11", "postgres"), ("2026-11", "shop")], "{rows:?}");
        for (row, expected) in rows.iter().zip([2.0 * CALLS[1].3, CLASSES[2].1]) {
            assert!((number(&row[2]) / expected - 1.0).abs() < 1e-5, "{row:?}");
        }

        // Whose requests the database served, the largest share first.
        let used = CALLS.map(|(_, class, each, cpu_ms)| all(class) as f64 * each as f64 * cpu_ms);
        let rows = ask(by_caller);
        assert_eq!(rows.len(), CALLS.len(), "{rows:?}");
        for (row, nth) in rows.iter().zip([1, 0]) {
            let (caller, class, each, _) = CALLS[nth];
            let calls = (all(class) * each) as f64;
            let read = (row[0].as_str(), row[1].as_str(), number(&row[2]));
            assert_eq!(read, (Some("shop"), Some(caller), calls), "{row:?}");
            assert!((number(&row[3]) / (used[nth] / used.iter().sum::<f64>()) - 1.0).abs() < 1e-5, "{row:?}");
        }

        // How well a service class reached its goal, by day.
        let missed = |hours: std::ops::Range<u64>| (hours.end - hours.start) as f64 * WINDOWS_AN_HOUR as f64 / 2.0;
        let rows = ask(goals);
        assert_eq!(rows.len(), 2, "{rows:?}");
        for (row, hours) in rows.iter().zip([0..17, 17..41]) {
            assert_eq!((row[1].as_str(), number(&row[3])), (Some("gold"), missed(hours)), "{row:?}");
            let share = number(&row[2]) / (number(&row[2]) + number(&row[3]));
            assert!((number(&row[4]) - share).abs() < 1e-9, "{row:?}");
        }

        // Windows without a finding.
        let rows = ask(clean);
        assert_eq!(rows.len(), CLASSES.len(), "{rows:?}");
        for row in &rows {
            let index = CLASSES.iter().position(|class| Some(class.0) == row[0].as_str()).expect("a class");
            let in_findings: u64 = FOUND.map(|nth| requests(index, nth)).sum();
            assert!(in_findings > 0, "{row:?}");
            assert!((number(&row[1]) - (all(index) - in_findings) as f64).abs() < 1e-9, "{row:?}");
            assert!((number(&row[2]) - CLASSES[index].1).abs() < 1e-6, "{row:?}");
        }
        let sum: u64 = (0..CLASSES.len()).map(all).sum();
        figure("history engines", &format!("{sum} requests in {} windows and 2 days", HOURS * WINDOWS_AN_HOUR));
    }
}

/// Requests of a class in all windows.
fn all(class: usize) -> u64 {
    (0..HOURS * WINDOWS_AN_HOUR).map(|nth| requests(class, nth)).sum()
}

/// Writes the windows as an agent does; returns the directory.
fn write_history(dir: &Path) -> String {
    let history = dir.join("history");
    let ages = Duration::from_secs(1 << 30);
    let options = Options {
        dir: history.clone(),
        host: "web-1".to_owned(),
        max_size: 1 << 30,
        max_age: ages,
        hourly_max_age: ages,
        daily_max_age: ages,
        upload: false,
    };
    let mut directory = Directory::open(options, Arc::new(Status::default()), Box::new(RealDisk)).expect("a directory");
    for nth in 0..HOURS * WINDOWS_AN_HOUR {
        directory.append(&window(nth)).expect("a window");
    }
    directory.finish();
    history.display().to_string()
}

/// Sums of whole numbers are decimals, which DuckDB's driver turns into text.
fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok())).unwrap_or(f64::NAN)
}

/// The document without the part for ClickHouse, and that part.
fn parts() -> (String, &'static str) {
    let document = include_str!("../../../docs/history.md");
    let (before, rest) = document.split_once("\nClickHouse").expect("a part for ClickHouse");
    let (part, after) = rest.split_once("\n```\n").expect("a block of statements");
    (format!("{before}{after}"), part)
}

fn seven<'a>(found: &[&'a str]) -> [&'a str; 7] {
    found.try_into().unwrap_or_else(|_| panic!("statements of the document: {found:#?}"))
}

#[test]
fn duckdb_reads_windows_and_days_by_the_documented_statements() {
    let library = unpacked("duckdb-", "duckdb/__init__.py");
    let Some(_turn) = begin("history engines", &["python3", library]) else { return };
    let (document, _) = parts();
    Engine { library, script: "duckdb_query.py" }.check(seven(&statements(&document)));
}

#[test]
fn clickhouse_reads_windows_and_days_by_the_documented_statements() {
    let library = unpacked("chdb-core-", "chdb/__init__.py");
    let Some(_turn) = begin("history engines", &["python3", library]) else { return };
    Engine { library, script: "clickhouse_query.py" }.check(seven(&statements(parts().1)));
}
