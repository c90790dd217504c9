//! `--history DIR`: what its files say, also after the agent was killed.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracer_results::history::parquet_file;
use tracer_results::history::rows::{ClassRow, EdgeRow, GoalRow, HistoryRow, HostRow};
use tracer_tests::agent::Agent;
use tracer_tests::http;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, scratch, wait};

const BEFORE: u64 = 200;
const AFTER: u64 = 100;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

pub(crate) fn rows<R: HistoryRow>(dir: &Path) -> Vec<R> {
    let files = files(&dir.join(format!("kind={}", R::KIND)));
    files.iter().flat_map(|path| parquet_file::read(File::open(path).expect("a file")).expect("a whole file")).collect()
}

/// Rows of the requests as their server sees them.
fn served(dir: &Path) -> Vec<ClassRow> {
    rows::<ClassRow>(dir).into_iter().filter(|row| &*row.side == "server").collect()
}

/// A window and a class.
fn whose(start_ns: u64, names: [&str; 4]) -> (u64, [String; 4]) {
    (start_ns, names.map(str::to_owned))
}

/// Edges of every class and window add up to it, and each request of the server has its caller.
fn assert_added_up(history: &Path) {
    let mut sums: HashMap<_, (i64, i64, f64)> = HashMap::new();
    let edges: Vec<EdgeRow> = rows(history);
    for row in &edges {
        let names = [&*row.service_name, &*row.request_class, &*row.side, &*row.protocol];
        let (count, errors, duration_s) = sums.entry(whose(row.start_ns, names)).or_default();
        (*count, *errors, *duration_s) = (*count + row.count, *errors + row.errors, *duration_s + row.duration_s.0);
    }
    for row in rows::<ClassRow>(history) {
        let names = [&*row.service_name, &*row.request_class, &*row.side, &*row.protocol];
        let (count, errors, duration_s) = sums.remove(&whose(row.start_ns, names)).unwrap_or_default();
        assert_eq!((count, errors), (row.count as i64, row.errors as i64), "{row:?}");
        assert!((duration_s - row.duration_s).abs() < 1e-5 * row.duration_s.max(1.0), "{duration_s} of {row:?}");
    }
    // What became known later, and CPU beside the requests of a window.
    assert!(sums.values().all(|(count, errors, _)| (*count, *errors) == (0, 0)), "{sums:?}");
    let served: Vec<&EdgeRow> = edges.iter().filter(|row| &*row.side == "server").collect();
    let open: i64 = served.iter().filter(|row| &*row.root == "open").map(|row| row.count).sum();
    assert_eq!(open, 0, "{served:?}");
    for host in rows::<HostRow>(history) {
        let of_window: Vec<&EdgeRow> = edges.iter().filter(|row| row.start_ns == host.start_ns).collect();
        assert_eq!(of_window.len() as u64, host.edge_rows, "{host:?}");
        let cpu_s: f64 = of_window.iter().map(|row| row.cpu_s.0).sum();
        assert!((cpu_s - host.requests_s).abs() < 1e-5, "{cpu_s} of {host:?}");
    }
    // The client is this test, for no request as far as is known.
    let known = served.iter().filter(|row| !row.caller_service.is_empty() && row.caller_class.is_empty());
    assert_eq!(known.map(|row| row.count).sum::<i64>(), (BEFORE + AFTER) as i64, "{served:?}");
    figure("history edges", &format!("{} rows for {} requests", edges.len(), BEFORE + AFTER));
}

fn ask(server: &Server, requests: u64) {
    let mut connection = http::Connection::open(server.address).expect("a connection");
    for nth in 0..requests {
        connection.ask("GET", &format!("/item/{nth}/d2000")).expect("a reply");
    }
}

fn written(agent: &Agent) -> u64 {
    agent.metrics().sum("tracer_history_windows_total", &[("outcome", "written")]) as u64
}

#[test]
fn every_request_is_in_the_files_whatever_ended_the_agent() {
    let Some(_turn) = begin("history", &["cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let history = dir.path().join("history");
    let config = dir.path().join("tracer.toml");
    let gold = "name = \"gold\"\nimportance = 1\ngoal = { p99 = \"1s\" }\nrules = [{ request_class = \"GET *\" }]";
    std::fs::write(&config, format!("[history]\nwindow = \"1s\"\n[[service_class]]\n{gold}\n")).expect("a file");
    let port = origin.address.port().to_string();
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (config, place) = (text(&config), text(&history));
    let arguments = ["--config", &config, "--port", &port, "--history", &place];

    let agent = Agent::start(dir.path(), &arguments);
    // The first window begins with the first tick.
    wait("the first window", Duration::from_secs(10), || (written(&agent) > 0).then_some(()));
    ask(&origin, BEFORE);
    let done = || {
        let classes = agent.json("/api/v1/classes");
        let classes = classes["classes"].as_array().expect("classes").clone();
        let counts =
            classes.iter().filter(|class| class["side"] == "server").filter_map(|class| class["count"].as_u64());
        (counts.sum::<u64>() == BEFORE).then_some(())
    };
    wait("all requests to be counted", Duration::from_secs(30), done);
    let so_far = written(&agent);
    wait("their windows to be over", Duration::from_secs(30), || (written(&agent) >= so_far + 2).then_some(()));
    let kept = written(&agent);
    agent.end(libc::SIGKILL);

    // What the killed one had not put into files is recovered, and nothing is there twice.
    let agent = Agent::start(dir.path(), &arguments);
    // Counted at the first tick.
    let recovered = wait("the journal to be recovered", Duration::from_secs(10), || {
        let recovered = agent.metrics().sum("tracer_history_windows_total", &[("outcome", "recovered")]) as u64;
        (recovered > 0).then_some(recovered)
    });
    assert!(recovered >= kept, "{recovered} windows of {kept}");
    let all = served(&history);
    assert_eq!(all.iter().map(|row| row.count).sum::<u64>(), BEFORE);
    // Stopped within a window: its part is kept too.
    ask(&origin, AFTER);
    agent.stop();
    let all = served(&history);
    assert_eq!(all.iter().map(|row| row.count).sum::<u64>(), BEFORE + AFTER);
    figure("history rows", &format!("{} for {} requests", all.len(), BEFORE + AFTER));
    for row in &all {
        assert_eq!(row.errors, 0);
        assert_eq!(row.duration_histogram.0.iter().map(|count| u64::from(*count)).sum::<u64>(), row.count);
        assert_eq!(row.count_by_size.iter().sum::<u64>(), row.count);
        // The server waits for 2 ms.
        assert!(row.duration_s >= 0.002 * row.count as f64, "{row:?}");
        assert!(row.cpu_s > 0.0 && row.cpu_s < row.duration_s, "{row:?}");
        assert!(row.identity.0 != 0 && &*row.protocol == "http", "{row:?}");
    }
    assert_added_up(&history);
    let reached = rows::<GoalRow>(&history);
    let sum = |of: fn(&GoalRow) -> u64| reached.iter().map(of).sum::<u64>();
    assert!(reached.iter().all(|row| &*row.service_class == "gold" && &*row.goal == "p99"), "{reached:?}");
    // A reply may be slow where every CPU is busy.
    assert_eq!((sum(|row| row.count), sum(|row| row.attained + row.missed)), (BEFORE + AFTER, BEFORE + AFTER));
    assert!(sum(|row| row.attained) * 2 > BEFORE + AFTER, "{reached:?}");
    let hosts = rows::<HostRow>(&history);
    assert!(hosts.len() as u64 > recovered, "{}", hosts.len());
    let mut last = 0;
    for row in &hosts {
        assert!(row.start_ns > last && row.length_s > 0.0 && row.cores >= 1.0, "{row:?}");
        assert!(row.requests_s <= row.busy_s + row.length_s, "{row:?}");
        last = row.start_ns;
    }
    let charged: f64 = hosts.iter().map(|row| row.requests_s).sum();
    let classes: f64 = rows::<ClassRow>(&history).iter().map(|row| row.cpu_s).sum();
    assert!(charged > 0.0 && classes > 0.0, "{charged} {classes}");
    let left = files(&history.join("_journal"));
    assert!(left.iter().all(|path| path.extension().is_some_and(|end| end == "lock")), "{left:?}");
}
