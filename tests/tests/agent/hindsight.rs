//! `[hindsight]`: a recording of the last seconds, asked for afterwards, gives the spans that were reported then.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::{Agent, binary};
use tracer_tests::http::Connection;
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{Span, span};
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, scratch};

/// What is kept.
const KEPT: Duration = Duration::from_secs(2);
/// Requests of this time are whole in it: the first ones of what is kept may have begun before.
const WHOLE: Duration = Duration::from_millis(1500);
/// Requests of the time before this are not to be in the recording: segments are a second long.
const GONE: Duration = Duration::from_secs(4);

/// What a span has of its request and of its cause, by service, side and path.
type Reported =
    BTreeMap<(String, bool, String), (i64, String, Option<u16>, Option<String>, Option<(String, bool, String)>)>;

fn reported(spans: &[Span]) -> Reported {
    let key = |span: &Span| (span.service.clone(), span.server, span.path.clone());
    let by_id: BTreeMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    let report = |span: &Span| {
        let parent = span.parent.as_deref().and_then(|id| by_id.get(id)).map(|parent| key(parent));
        // Whether a call begins a transaction may be known by what its thread did before.
        let grade = parent.as_ref().map(|_| span.grade.clone());
        (span.start_ns, format!("{:.9} {:.9}", span.duration_s, span.cpu_s), span.status, grade, parent)
    };
    spans.iter().map(|span| (key(span), report(span))).collect()
}

fn by_path(reported: Reported) -> BTreeMap<String, Reported> {
    let mut paths: BTreeMap<String, Reported> = BTreeMap::new();
    for (key, report) in reported {
        paths.entry(key.2.clone()).or_default().insert(key, report);
    }
    paths
}

fn read(path: &std::path::Path) -> Vec<Span> {
    fs::read_to_string(path).expect("spans").lines().map(span).collect()
}

/// Asks for a recording; where it is.
fn written(agent: &Agent, token: &str) -> String {
    let answer: Value = serde_json::from_str(&agent.change("POST", "/api/v1/hindsight", token, "")).expect("JSON");
    answer["path"].as_str().expect("a path").to_owned()
}

#[test]
fn a_recording_of_the_last_seconds_gives_their_spans() {
    let Some(_turn) = begin("hindsight", &["nginx", "cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let nginx = Nginx::start(dir.path(), "", &format!("location / {{ proxy_pass http://{}; }}", origin.address));
    let (config, token_file) = (dir.path().join("tracer.toml"), dir.path().join("token"));
    let kept = dir.path().join("kept");
    let text = format!("[hindsight]\ndir = \"{}\"\ntime = \"{}s\"\n", kept.display(), KEPT.as_secs());
    fs::write(&config, text).expect("a configuration");
    let path = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let agent = Agent::start(dir.path(), &["--config", &path(&config), "--token-file", &path(&token_file)]);
    // Both connections are older than what is kept.
    let mut connection = Connection::open(nginx.address).expect("a connection");
    let mut sent = Vec::new();
    let began = Instant::now();
    while began.elapsed() < GONE + KEPT
        || agent.metrics().sum("tracer_hindsight_seconds", &[]) < KEPT.as_secs_f64()
        || sent.len() < 200
    {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", agent.output());
        for _ in 0..20 {
            sent.push((Instant::now(), format!("/r{}/d500", sent.len())));
            let path = &sent.last().expect("one").1;
            assert_eq!(connection.ask("GET", path).expect("a reply").status, 200);
        }
    }
    let token = fs::read_to_string(&token_file).expect("a token");
    let (asked, file) = (Instant::now(), written(&agent, token.trim()));
    let live = agent.transactions.clone();
    agent.stop();

    let replayed = dir.path().join("replayed.jsonl");
    let output = Command::new(binary()).args(["replay", &file, "--transactions"]).arg(&replayed).output();
    let output = output.expect("a replay");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (live, replayed) = (by_path(reported(&read(&live))), by_path(reported(&read(&replayed))));
    let (mut same, mut wrong) = (0, Vec::new());
    for (at, path) in &sent {
        let of = |paths: &BTreeMap<String, Reported>| paths.get(path).cloned().unwrap_or_default();
        let (age, live, replayed) = (asked - *at, of(&live), of(&replayed));
        assert!(live.len() >= 3, "{path}: {live:?}");
        if age < WHOLE {
            if live == replayed {
                same += 1;
            } else {
                wrong.push(format!("{path}, {age:?} before: {live:?} and in the recording {replayed:?}"));
            }
        } else if age > GONE && !replayed.is_empty() {
            wrong.push(format!("{path}, {age:?} before, is in the recording"));
        }
    }
    figure("requests of the last seconds, live and replayed alike", &format!("{same} of {}", same + wrong.len()));
    assert!(same >= 50 && wrong.is_empty(), "{same} alike; {} not: {:#?}", wrong.len(), wrong.first());
}
