//! `/api/v1/running`: requests that hang at known places of a real server are listed while they do, with their age and what
//! their threads do, and not any more once they have been answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, scratch, wait};

/// Until all are listed, and until none is any more.
const LIMIT: Duration = Duration::from_secs(20);
/// Where requests hang, how many at each place, and what their thread is then said to do. A call's own request waits at the lock,
/// too. Only one of Python's threads runs at a time.
const PLACES: [(&str, usize, &str); 6] = [
    ("/lock", 3, "lock"),
    ("/sleep", 3, "sleep"),
    ("/cpu", 1, "running"),
    ("/child", 3, "child"),
    ("/socket", 3, "socket"),
    ("/call", 3, "socket"),
];

/// The open requests of the server by path; their class is their path here.
fn listed(agent: &Agent) -> Vec<Value> {
    let answer = agent.json("/api/v1/running?limit=10000");
    let rows = answer["running"].as_array().cloned().unwrap_or_default();
    rows.into_iter().filter(|row| row["service_name"] == "hung" && row["side"] == "server").collect()
}

fn count_by_class(rows: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row["request_class"].as_str().unwrap_or("none").to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn requests_that_hang_are_listed_with_what_they_wait_for() {
    let Some(_turn) = begin("running", &["python3", "cat"]) else { return };
    let dir = scratch();
    let server = Server::python("hung", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    // The service gets its name, and a class what is usual for it.
    assert_eq!(http::get(server.address, "/quick").expect("an answer").status, 200);

    let (begun, address) = (Instant::now(), server.address);
    let clients: Vec<_> = PLACES
        .iter()
        .flat_map(|(path, count, _)| std::iter::repeat_n(*path, *count))
        .map(|path| std::thread::spawn(move || http::get(address, path).expect("an answer").status))
        .collect();
    let mut wanted: BTreeMap<String, usize> =
        PLACES.iter().map(|(path, count, _)| (format!("GET {path}"), *count)).collect();
    // Each /call has made a request of its own.
    let calls = wanted["GET /call"];
    *wanted.get_mut("GET /lock").expect("a place") += calls;
    let state_of = |row: &Value| row["thread"]["state"].as_str().unwrap_or("none").to_owned();
    let expected = |row: &Value| {
        let class = row["request_class"].as_str().unwrap_or_default();
        PLACES.iter().find(|(path, ..)| class == format!("GET {path}")).map_or("", |(.., state)| state).to_owned()
    };
    // A sleeper wakes now and then, so its state is asked for until it is seen asleep.
    let rows = wait("all hanging requests in their places", LIMIT, || {
        let rows = listed(&agent);
        let in_place = rows.iter().all(|row| state_of(row) == expected(row));
        (count_by_class(&rows) == wanted && in_place).then_some(rows)
    });
    let oldest = begun.elapsed().as_secs_f64();
    for row in &rows {
        let age = row["age_s"].as_f64().expect("an age");
        assert!(age > 0.0 && age <= oldest + 0.05, "{row}");
        if row["request_class"] == "GET /call" {
            assert_eq!(
                (&row["calls_open"], &row["calls"][0]["request_class"]),
                (&1.into(), &"GET /lock".into()),
                "{row}"
            );
        }
    }
    figure(
        "hanging requests listed with their place",
        &format!("{} of {}", rows.len(), wanted.values().sum::<usize>()),
    );

    assert_eq!(http::get(server.address, "/release").expect("an answer").status, 200);
    for client in clients {
        assert_eq!(client.join().expect("a client"), 200);
    }
    let ended = Instant::now();
    wait("none listed any more", LIMIT, || listed(&agent).is_empty().then_some(()));
    figure("seconds until none was listed", &format!("{:.2}", ended.elapsed().as_secs_f64()));
    assert_eq!(agent.json("/api/v1/running?service=hung")["running_total"], 0);
    agent.stop();
}
