//! Activity profiles: what a class costs by its server's own account, read back after a restart, and a rate that is unusual.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, http, say, scratch, wait};

const ROUTE: &str = "/medium";
const CLASS: &str = "GET /medium";
/// Windows of a second until the profile judges, and some more.
const WARM: u64 = 74;
/// Requests a second.
const RATE: f64 = 10.0;

fn agent(dir: &Path) -> Agent {
    let config = dir.join("tracer.toml");
    let history = dir.join("history");
    std::fs::write(&config, format!("[history]\nwindow = \"1s\"\ndir = \"{}\"\n", history.display())).expect("a file");
    Agent::start(dir, &["--config", config.to_str().expect("text"), "--nice=-10"])
}

/// Requests at a steady rate.
fn load(server: &Server, rate: f64, seconds: u64) {
    let mut connection = http::Connection::open(server.address).expect("a connection");
    let (mut next, end) = (Instant::now(), Instant::now() + Duration::from_secs(seconds));
    while next < end {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        connection.ask("GET", ROUTE).expect("a reply");
        next = (next + Duration::from_secs_f64(1.0 / rate))
            .max(Instant::now().checked_sub(Duration::from_millis(50)).unwrap_or(next));
    }
}

fn profile(agent: &Agent) -> Option<Value> {
    let answer = agent.json("/api/v1/profiles/activity");
    answer["profiles"].as_array()?.iter().find(|one| one["request_class"] == CLASS).cloned()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {value}"))
}

#[test]
fn a_profile_is_what_the_server_says_survives_a_restart_and_shows_what_is_unusual() {
    let Some(_turn) = begin("activity", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let first = agent(dir.path());
    load(&server, RATE, WARM);
    let before = wait("enough windows", Duration::from_secs(20), || {
        profile(&first).filter(|profile| number(profile, "/windows") >= 60.0)
    });
    let truth: Value =
        serde_json::from_slice(&http::get(server.address, "/truth").expect("the server's account").body).expect("JSON");
    let of = |field: &str| truth[ROUTE][field].as_f64().expect("a number");
    let own = of("whole_ns") / of("count") / 1e9;
    let (cpu, rate) = (number(&before, "/resources/cpu_s/mean"), number(&before, "/resources/rate_per_s/mean"));
    say(&format!(
        "  CPU a request: {:.3} ms by the profile, {:.3} ms by the server; {rate:.2} requests/s",
        cpu * 1e3,
        own * 1e3
    ));
    figure("CPU of an activity profile", &format!("{:+.1} %", 100.0 * (cpu / own - 1.0)));
    // What the kernel does for a request before and after the server's own clock is read counts, too.
    assert!((own * 0.95..own * 1.05 + 60e-6).contains(&cpu), "{cpu} s, {own} s");
    assert!((rate / RATE - 1.0).abs() < 0.15, "{rate}");
    assert!(before["resources"]["rate_per_s"]["deviates"].is_null(), "{before}");
    first.stop();

    // Another run begins with what is in the files.
    let second = agent(dir.path());
    load(&server, RATE, 4);
    let after = wait("the windows of the run before", Duration::from_secs(20), || {
        profile(&second).filter(|profile| number(profile, "/windows") >= 60.0)
    });
    let again = number(&after, "/resources/cpu_s/mean");
    assert!((again / cpu - 1.0).abs() < 0.05, "{again} s, {cpu} s before the restart");
    // Windows without requests count nothing, so these stay the newest.
    load(&server, 4.0 * RATE, 5);
    let unusual = wait("a rate that deviates", Duration::from_secs(5), || {
        profile(&second).filter(|profile| profile["resources"]["rate_per_s"]["deviates"] == "above")
    });
    let (recent, threshold) =
        (number(&unusual, "/resources/rate_per_s/recent"), number(&unusual, "/resources/rate_per_s/threshold"));
    say(&format!("  {recent:.1} requests/s now, threshold {threshold:.1}"));
    assert!(recent > threshold && threshold > RATE, "{unusual}");
    // Every hour that was seen, on request.
    let service = unusual["service_name"].as_str().expect("a name");
    let one = second.json(&format!("/api/v1/profiles/activity?service={service}&class=GET%20/medium"));
    assert!(one["profiles"][0]["shifts"].as_array().is_some_and(|shifts| !shifts.is_empty()), "{one}");
    second.stop();
}
