//! `tracer-fleet/verdicts.py` on a local Spark cluster of two workers: the findings are those of `tracer verdicts`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_results::history::directory::{Directory, Options, RealDisk};
use tracer_results::history::rows::{ClassRow, HostRow, Identity, ServiceRow, WindowRows};
use tracer_results::history::status::Status;
use tracer_tests::agent::{binary, command, outcome};
use tracer_tests::process::Process;
use tracer_tests::{begin, figure, find, say, scratch};

/// Where the package pyspark is (`TRACER_PYSPARK`).
const PYSPARK: &str = "TRACER_PYSPARK";
const HOSTS: [(&str, f64); 3] = [("web-1", 1.6), ("web-2", 1.0), ("db", 1.3)];

/// Window `n` of a host whose class `/b` costs `times` as much from the hundredth on.
fn window(host: &str, n: u64, times: f64) -> WindowRows {
    let (start_ns, length_s) = ((1_795_503_600 + n * 10) * 1_000_000_000, 10.0);
    let class = |name: &str| {
        let noise = 1.0 + 0.02 * ((n * 7 % 11) as f64 / 5.0 - 1.0);
        let cpu_s = noise * if name == "/b" && n >= 100 { times } else { 1.0 };
        ClassRow {
            start_ns,
            length_s,
            host: host.into(),
            service_name: "shop".into(),
            request_class: name.into(),
            side: "server".into(),
            protocol: "http".into(),
            identity: Identity(7),
            count: 100,
            count_by_size: [0, 100, 0],
            cpu_s,
            cpu_s_by_size: [0.0, cpu_s, 0.0],
            cpu_s_squared: 0.012,
            ..ClassRow::default()
        }
    };
    let classes: Vec<ClassRow> = ["/a", "/b", "/c", "/d"].map(class).to_vec();
    let host_row = HostRow {
        start_ns,
        length_s,
        host: host.into(),
        cores: 4.0,
        busy_s: classes.iter().map(|row| row.cpu_s).sum::<f64>() + 1.0,
        class_rows: 4,
        service_rows: 1,
        ..HostRow::default()
    };
    let service = ServiceRow {
        start_ns,
        length_s,
        host: host.into(),
        service_name: "shop".into(),
        identity: Identity(7),
        entry: 1,
        overhead_s: 0.1,
        ..ServiceRow::default()
    };
    WindowRows { host: host_row, classes, services: vec![service], ..WindowRows::default() }
}

fn write(dir: &Path, host: &str, times: f64) {
    let (dir, max_size, max_age) = (dir.to_owned(), 1 << 30, Duration::from_secs(1 << 30));
    let (hourly_max_age, daily_max_age) = (max_age, max_age);
    let options =
        Options { dir, host: host.to_owned(), max_size, max_age, hourly_max_age, daily_max_age, upload: false };
    let mut directory = Directory::open(options, Arc::new(Status::default()), Box::new(RealDisk)).expect("a directory");
    for n in 0..400 {
        directory.append(&window(host, n, times)).expect("a window");
    }
    directory.finish();
}

/// By host and number; without what an order of floats could change.
fn sorted(text: &str) -> Vec<Value> {
    let mut all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    all.sort_by_key(|one| (one["host"].as_str().unwrap_or_default().to_owned(), one["id"].as_u64()));
    all
}

#[test]
fn the_jobs_own_tests() {
    let Some(_turn) = begin("fleet_spark", &["python3"]) else { return };
    let mut tests = Command::new(find("python3").expect("checked"));
    tests.args(["-B", "-m", "unittest", "discover", "."]);
    tests.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tracer-fleet"));
    let done = outcome(&mut tests, "unittest");
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("\nOK"), "{}", done.err);
}

#[test]
fn two_workers_find_what_the_agent_finds() {
    let Some(_turn) = begin("fleet_spark", &["java", "python3"]) else { return };
    let Some(package) = std::env::var_os(PYSPARK) else {
        return say("SKIPPED fleet_spark: needs TRACER_PYSPARK, a directory with the package pyspark");
    };
    let dir = scratch();
    let history = dir.path().join("history");
    for (host, times) in HOSTS {
        write(&history, host, times);
    }
    let place = history.to_str().expect("text");
    let truth = command(&["verdicts", "--json", "--history", place]);
    assert_eq!(truth.code, Some(0), "{}", truth.err);
    let truth = sorted(&truth.out);
    let changes: Vec<&Value> = truth.iter().filter(|one| one["kind"] == "application_change").collect();
    assert_eq!(changes.iter().map(|one| &one["host"]).collect::<Vec<_>>(), ["db", "web-1"], "{truth:?}");

    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tracer-fleet/verdicts.py");
    let python = find("python3").expect("checked");
    let mut spark = Command::new(&python);
    spark.arg(job).args(["--history", place, "--tracer"]).arg(binary());
    spark.env("PYTHONPATH", &package).env("PYSPARK_PYTHON", &python).current_dir(dir.path());
    spark
        .env(
            "PYSPARK_SUBMIT_ARGS",
            "--master local-cluster[2,1,1024] --conf spark.ui.showConsoleProgress=false pyspark-shell",
        )
        .env("SPARK_LOCAL_IP", "127.0.0.1");
    let begun = Instant::now();
    let log = dir.path().join("spark.log");
    let mut process = Process::start("spark", &mut spark, &log);
    let status = process.wait(Duration::from_secs(300));
    assert!(status.success(), "{}", process.output());
    let found: Vec<String> = process.output().lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect();
    let found = sorted(&found.join("\n"));
    assert_eq!(found.len(), truth.len(), "{found:?}");
    for (one, other) in truth.iter().zip(&found) {
        for name in
            ["host", "id", "kind", "service_name", "request_classes", "since_ns", "found_ns", "change_ratio", "summary"]
        {
            assert_eq!(one[name], other[name], "{name}");
        }
        assert_eq!(one["until_ns"], other["until_ns"]);
    }
    figure(
        "findings by Spark",
        &format!("{} of {} hosts in {:.0} s", found.len(), HOSTS.len(), begun.elapsed().as_secs_f64()),
    );
}
