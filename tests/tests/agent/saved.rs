//! `--save-transactions`: which transactions are saved, and that they equal the reported ones.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http;
use tracer_tests::spans::remove_place;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, say, scratch, wait};

/// Requests that wait for 40 to 44 ms, among many without a wait.
const SLOW: usize = 5;
const FAST: usize = 500;

/// Complete lines so far: the last line may still be being written.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Every line of every file, in the order the files were begun.
fn saved(dir: &Path) -> Vec<Value> {
    let mut files: Vec<_> = std::fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().flat_map(|path| lines(path)).collect()
}

fn paths(line: &Value) -> Vec<String> {
    let spans = line["spans"].as_array().expect("spans");
    spans.iter().filter_map(|span| span["attributes"]["url.path"].as_str().map(str::to_owned)).collect()
}

#[test]
fn the_slowest_are_saved_whole() {
    let Some(_turn) = begin("saved", &["cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let keep = dir.path().join("kept/here");
    let port = origin.address.port().to_string();
    let arguments = ["--port", &port, "--save-transactions", keep.to_str().expect("text")];
    let agent = Agent::start(dir.path(), &arguments);
    let mut connection = http::Connection::open(origin.address).expect("a connection");
    let slow: Vec<String> = (0..SLOW).map(|n| format!("/slow{n}/d{}", 40_000 + 1000 * n)).collect();
    for nth in 0..FAST {
        connection.ask("GET", &format!("/fast/{nth}")).expect("a reply");
        if nth % (FAST / SLOW) == 0 {
            connection.ask("GET", &slow[nth / (FAST / SLOW)]).expect("a reply");
        }
    }
    wait("the slow ones to be saved", Duration::from_secs(30), || {
        let all: HashSet<String> = saved(&keep).iter().flat_map(paths).collect();
        slow.iter().all(|path| all.contains(path)).then_some(())
    });
    // Counted at the next tick.
    wait("what was written to be counted", Duration::from_secs(10), || {
        let written = agent.metrics().sum("tracer_saved_transactions_total", &[("outcome", "written")]);
        (written as usize == saved(&keep).len()).then_some(())
    });
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&keep), 0o700);
    let file = std::fs::read_dir(&keep).expect("a directory").flatten().next().expect("a file").path();
    assert_eq!(mode(&file), 0o600);

    let reported = agent.transactions.clone();
    agent.stop();
    let all = saved(&keep);
    assert!(std::fs::read_to_string(&file).expect("a file").ends_with('\n'), "nothing half written is left");
    let ids: HashSet<&str> = all.iter().filter_map(|line| line["trace_id"].as_str()).collect();
    // At most thirty per class: ten slow, ten failed, ten sampled; both ends have their classes.
    figure("saved transactions", &format!("{} of {}", ids.len(), SLOW + FAST));
    say(&format!("saved: {} lines of {} transactions, of {} requests", all.len(), ids.len(), SLOW + FAST));
    assert!(ids.len() < FAST / 2, "a few of many: {}", ids.len());
    // Saved transactions equal the reported ones, field by field and completely, but for names that came later.
    let mut by_trace: HashMap<String, Vec<Value>> = HashMap::new();
    for span in lines(&reported) {
        by_trace.entry(span["trace_id"].as_str().expect("an id").to_owned()).or_default().push(span);
    }
    let last: HashMap<&str, &Value> =
        all.iter().map(|line| (line["trace_id"].as_str().expect("an id"), line)).collect();
    for (id, line) in last {
        let mut spans = by_trace.remove(id).expect("a transaction that was reported");
        let mut kept = line["spans"].as_array().expect("spans").clone();
        for spans in [&mut spans, &mut kept] {
            spans.sort_by_key(|span| span["span_id"].to_string());
            spans.iter_mut().for_each(remove_place);
        }
        assert_eq!(kept, spans, "{id}");
    }
}
