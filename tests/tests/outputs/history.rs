//! `--history DIR`: what its files say, also after the agent was killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::http;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, scratch, wait};
use tracer_user::history::parquet_file;
use tracer_user::history::rows::{ClassRow, HistoryRow, HostRow};

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

fn rows<R: HistoryRow>(dir: &Path) -> Vec<R> {
    let files = files(&dir.join(format!("kind={}", R::KIND)));
    files.iter().flat_map(|path| parquet_file::read(File::open(path).expect("a file")).expect("a whole file")).collect()
}

/// Rows of the requests as their server sees them.
fn served(dir: &Path) -> Vec<ClassRow> {
    rows::<ClassRow>(dir).into_iter().filter(|row| &*row.side == "server").collect()
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
    std::fs::write(&config, "[history]\nwindow = \"1s\"\n").expect("a file");
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
