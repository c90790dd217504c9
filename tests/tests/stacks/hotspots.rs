//! Hotspots: where a library is hot, the application's function that called it is named; shares are those of the flame graph,
//! and of the service's other classes.

use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http::Connection;
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, http, load, say, scratch, wait};

/// Weight of stacks whose innermost frame below the kernel's `is` selects, and of all; from folded text.
fn share(folded: &str, is: impl Fn(&str) -> bool) -> f64 {
    let (mut own, mut all) = (0.0, 0.0);
    for (stack, micros) in folded.lines().filter_map(|line| line.rsplit_once(' ')) {
        let weight: f64 = micros.parse().expect("a number");
        all += weight;
        own += if is(stack.rsplit(';').next().unwrap_or_default()) { weight } else { 0.0 };
    }
    own / all
}

fn functions(agent: &Agent, query: &str) -> Vec<Value> {
    let reply = http::get(agent.listen, &format!("/api/v1/hotspots?{query}"));
    let json =
        reply.ok().filter(|reply| reply.status == 200).and_then(|reply| serde_json::from_str(&reply.text()).ok());
    json.and_then(|json: Value| json["functions"].as_array().cloned()).unwrap_or_default()
}

/// What counts of each row.
fn table(rows: &[Value]) -> String {
    let line = |row: &Value| {
        let [function, code, own, all] = ["function", "code", "self_s", "total_s"].map(|name| &row[name]);
        format!("{function} {} {code} {own} {all} {}\n", row["file"], row["called_by"])
    };
    rows.iter().map(line).collect()
}

#[test]
fn a_hot_library_names_the_function_of_the_application_that_called_it() {
    let Some(_turn) = begin("hotspots", &["cc", "python3"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let frames = Server::python("frames", dir.path());
    // Both programs are in directories that no rule names: application code by default.
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    for (address, paths) in [(server.address, &["/alpha", "/beta"][..]), (frames.address, &["/extension", "/burn"][..])]
    {
        let (good, bad) = load::until(address, 1, paths, Instant::now() + Duration::from_secs(6));
        assert!(bad == 0 && good > 4, "{good} good, {bad} bad");
    }

    // The first functions of a class, when the stacks have names.
    let of = |service: &str, class: &str, has: &str| {
        let query = format!("service={service}&class=GET%20%2F{class}&limit=100");
        wait(&format!("{service} {class}: {has}"), Duration::from_secs(30), || {
            let found = functions(&agent, &query);
            found.first()?["function"].as_str()?.contains(has).then_some(found)
        })
    };
    let alpha = of("burn", "alpha", "burn_alpha");
    let hot = &alpha[0];
    let folded = agent.text("/profile.folded?service=burn&class=GET%20%2Falpha");
    let expected = share(&folded, |frame| frame == "burn_alpha");
    let own = hot["self_share"].as_f64().expect("a number");
    say(&format!(
        "hotspots: burn_alpha {:.2} % of its class, {:.2} % by the flame graph",
        100.0 * own,
        100.0 * expected
    ));
    // Samples go on coming while both are asked for, none of this class.
    assert!((own - expected).abs() < 0.01 && hot["code"] == "application", "{hot}");
    assert!(hot["file"].as_str().is_some_and(|file| file.ends_with("/burn")), "{hot}");
    let elsewhere = |class: &str, name: &str| {
        let classes = hot["classes"].as_array().expect("a list");
        let row = classes.iter().find(|row| row["request_class"] == class);
        row.and_then(|row| row[name].as_f64()).unwrap_or_else(|| panic!("{class}: {hot}"))
    };
    assert!(elsewhere("GET /alpha", "self_share") > 0.8, "{hot}");
    assert!(elsewhere("GET /beta", "total_share") < 0.02, "{hot}");
    // What asks for the clock is the application; the clock itself is the system's.
    let clock = alpha.iter().find(|row| row["function"].as_str().is_some_and(|name| name.ends_with("clock_gettime")));
    if let Some(clock) = clock {
        assert_eq!(clock["code"], "third_party", "{clock}");
    }

    // A C extension below Python: the library is hot, and the Python function that called it is named with its file.
    let extension = of("frames", "extension", "");
    let text = std::fs::read_to_string(source("frames.py")).expect("its source");
    let line = 1 + text.lines().position(|line| line.starts_with("def squeeze(")).expect("a function");
    let caller = format!("squeeze (workloads/frames.py:{line})");
    // Pages for what it returns are the kernel's.
    let others: Vec<&Value> = extension.iter().filter(|row| row["code"] != "application").collect();
    assert!(extension[0]["code"] == "third_party", "{}", table(&extension));
    assert!(extension[0]["file"].as_str().is_some_and(|file| file.contains("libz")), "{}", table(&extension));
    let own = |rows: &[&Value]| rows.iter().filter_map(|row| row["self_s"].as_f64()).sum::<f64>();
    let named: Vec<&Value> = others.iter().filter(|row| row["called_by"][0]["function"] == *caller).copied().collect();
    let whole = own(&extension.iter().collect::<Vec<_>>());
    let (library, by_caller) = (own(&others), own(&named));
    say(&format!(
        "hotspots: libraries and the kernel {:.1} % of /extension, {:.1} % of them for {caller}",
        100.0 * library / whole,
        100.0 * by_caller / library
    ));
    figure("hotspots named callers", &format!("{:.1} %", 100.0 * by_caller / library));
    assert!(library > 0.9 * whole && by_caller > 0.95 * library, "{}", table(&extension));
    let source_file = &named[0]["called_by"][0]["file"];
    assert!(source_file.as_str().is_some_and(|file| file.ends_with("/workloads/frames.py")), "{source_file}");
    // Python's own loop is hot in the other route, for the function that adds.
    let burn = of("frames", "burn", "");
    let adds = burn
        .iter()
        .find(|row| row["function"].as_str().is_some_and(|name| name.starts_with("c (workloads/frames.py:")));
    assert!(
        adds.is_some_and(|row| row["code"] == "application" && row["total_share"].as_f64() > Some(0.9)),
        "{}",
        table(&burn)
    );

    for (query, status) in
        [("", 400), ("service=nobody", 404), ("service=burn&limit=0", 400), ("service=burn&x=1", 400)]
    {
        let reply = http::get(agent.listen, &format!("/api/v1/hotspots?{query}")).expect("an answer");
        assert_eq!(reply.status, status, "{query}: {}", reply.text());
    }
    agent.stop();
}

#[test]
fn each_tenant_has_hotspots_of_its_own() {
    let Some(_turn) = begin("hotspots by tenant", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let config = dir.path().join("tracer.toml");
    let text = "[[dimension]]\nname = \"tenant\"\nfrom = \"header:X-Tenant\"\nvalues = 2\n";
    std::fs::write(&config, text).expect("a file");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", &config.display().to_string()]);
    // One request class, in which each tenant has the server do something else.
    let mut connection = Connection::open(server.address).expect("a connection");
    let mut ask = |target: &str, tenant: Option<&str>| {
        let header = tenant.map_or_else(String::new, |tenant| format!("X-Tenant: {tenant}\r\n"));
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{header}\r\n");
        let reply = connection.send(request.as_bytes()).and_then(|()| connection.reply("GET")).expect("a reply");
        assert_eq!(reply.status, 200);
    };
    // The first request of the server's process is identified late.
    ask("/light", None);
    let (mut gold, mut iron) = (0, 0);
    for _ in 0..8 {
        for _ in 0..60 {
            ask("/mixed", Some("gold"));
            gold += 1;
        }
        ask("/mixed?slow", Some("iron"));
        iron += 1;
    }
    for _ in 0..3 {
        ask("/alpha", Some("lead"));
    }
    let known = wait("all requests", Duration::from_secs(30), || {
        let known = agent.json("/api/v1/dimensions");
        let values = known["dimensions"][0]["values"].as_array()?.clone();
        let sum: u64 = values.iter().filter_map(|row| row["requests"].as_u64()).sum();
        (sum >= gold + iron + 4).then_some(known)
    });
    let expected = [("[none]", 1), ("[other]", 3), ("gold", gold), ("iron", iron)];
    let expected = expected.map(|(value, requests)| serde_json::json!({ "value": value, "requests": requests }));
    assert_eq!(known["dimensions"][0]["values"], Value::from(expected.to_vec()), "{known}");

    let class = "service=burn&class=GET%20%2Fmixed";
    for (tenant, own, other) in [("gold", "burn_mixed", "burn_slow"), ("iron", "burn_slow", "burn_mixed")] {
        let query = format!("{class}&dimension=tenant&value={tenant}");
        let rows = wait(&format!("{own} of {tenant}"), Duration::from_secs(30), || {
            let rows = functions(&agent, &format!("{query}&limit=100"));
            (rows.first()?["function"] == own).then_some(rows)
        });
        let of = |name: &str| {
            let row = rows.iter().find(|row| row["function"] == name);
            row.and_then(|row| row["self_share"].as_f64()).unwrap_or_default()
        };
        say(&format!("hotspots of {tenant}: {own} {:.1} %, {other} {:.1} %", 100.0 * of(own), 100.0 * of(other)));
        figure(&format!("hotspots of {tenant}"), &format!("{:.1} %", 100.0 * of(own)));
        assert!(of(own) > 0.9 && of(other) < 0.01, "{}", table(&rows));
        let svg = agent.text(&format!("/flamegraph.svg?{query}"));
        assert!(svg.contains(own) && !svg.contains(other) && svg.contains(tenant));
    }
    // Both tenants together, and one compared with the other.
    let both = agent.text(&format!("/profile.folded?{class}"));
    assert!(both.contains("burn_mixed") && both.contains("burn_slow"));
    let lines = agent.text(&format!("/profile.folded?{class}&dimension=tenant&value=iron&before_value=gold"));
    let slow = lines.lines().find(|line| line.contains("burn_slow")).unwrap_or_else(|| panic!("{lines}"));
    assert!(slow.rsplit(' ').nth(1) == Some("0"), "{slow}");
    let other = agent.text("/profile.folded?service=burn&dimension=tenant&value=%5Bother%5D");
    assert!(other.contains("burn_alpha") && !other.contains("burn_mixed"), "{other}");

    // Nobody asked for values in metrics.
    let metrics = agent.text("/metrics");
    for value in ["gold", "iron", "lead"] {
        assert!(!metrics.contains(&format!("\"{value}\"")), "{value}");
    }
    for (query, status) in [
        ("dimension=tenant&value=lead", 404),
        ("dimension=area&value=gold", 404),
        ("dimension=tenant", 400),
        ("value=gold", 400),
    ] {
        let reply = http::get(agent.listen, &format!("/api/v1/hotspots?service=burn&{query}")).expect("an answer");
        assert_eq!(reply.status, status, "{query}: {}", reply.text());
    }
    agent.stop();
}
