//! Findings about real processes: a class that gets dearer, a load that doubles, a process that burns CPU beside the service.
//! Windows of a second; the server knows what its handlers cost.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tracer_results::history::rows::FindingRow;
use tracer_tests::agent::{self, Agent};
use tracer_tests::collector;
use tracer_tests::findings::{
    self, Load, WARM, check_contract, findings, now_ns, wait_for_more_windows, wait_for_windows,
};
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, http, say, scratch, wait};

/// Requests a second of each class. Together less than a fifth of a core.
const RATES: [(&str, f64); 4] = [("/light", 20.0), ("/medium", 10.0), ("/beta", 15.0), ("/alpha", 8.0)];
/// A change is found within so many windows.
const WITHIN_S: f64 = 12.0;

/// Receives what the agent posts: one body a connection.
struct Receiver {
    address: SocketAddr,
    bodies: mpsc::Receiver<Value>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (send, bodies) = mpsc::channel();
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let (mut length, mut line) = (0, String::new());
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    let lower = line.to_ascii_lowercase();
                    length = lower
                        .strip_prefix("content-length:")
                        .map_or(length, |text| text.trim().parse().expect("a length"));
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).expect("a body");
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                reader.get_mut().write_all(answer).expect("an answer");
                let _ = send.send(serde_json::from_slice(&body).expect("JSON"));
            }
        });
        Self { address, bodies }
    }
}

#[test]
fn a_class_that_costs_half_more_is_named_within_twelve_windows() {
    let Some(_turn) = begin("findings", &["cc", "rotel-agent"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let load = Load::start(&server, &RATES, 0);
    let receiver = Receiver::start();
    let (collector, [_, endpoint]) = collector::start(dir.path(), "logs");
    let history = dir.path().join("history");
    let kept = format!("\n[history]\nwindow = \"1s\"\ndir = \"{}\"", history.display());
    let analysis = format!("webhook = \"http://{}/findings\"{kept}", receiver.address);
    let otlp = format!("http://{endpoint}");
    let agent = findings::agent(dir.path(), &analysis, &["--otlp", &otlp, "--otlp-signals", "logs"]);
    wait_for_windows(&agent, "GET /medium", WARM);
    let early = findings(&agent);
    assert!(early.iter().all(|one| one["kind"] != "application_change"), "{early:?}");
    let changed = now_ns();
    assert_eq!(http::get(server.address, "/set/medium/7500").expect("a reply").status, 200);
    let one = wait("the change to be found", Duration::from_secs(40), || {
        findings(&agent).into_iter().find(|one| one["kind"] == "application_change")
    });
    let all = findings(&agent);
    check_contract(&all);
    let seconds = |name: &str| (one[name].as_f64().expect("an instant") - changed) / 1e9;
    figure("findings: seconds until found", &format!("{:.1}", seconds("found_ns")));
    figure("findings: ratio of 1.5", &format!("{:.3}", one["change_ratio"].as_f64().unwrap_or_default()));
    assert_eq!(one["service_name"], "burn", "{one}");
    assert_eq!(one["request_classes"], serde_json::json!(["GET /medium"]), "{one}");
    assert_eq!(one["resource"], "cpu", "{one}");
    // It is published at the end of a window, and the change falls into one.
    assert!(seconds("found_ns") <= WITHIN_S + 2.0, "found after {:.1} s: {one}", seconds("found_ns"));
    assert!(seconds("since_ns").abs() <= 3.0, "since {:.1} s: {one}", seconds("since_ns"));
    let ratio = one["change_ratio"].as_f64().expect("a ratio");
    assert!((1.35..1.65).contains(&ratio), "{one}");
    assert!(agent.metrics().sum("tracer_findings_total", &[("kind", "application_change")]) >= 1.0);
    let posted = wait("the finding to be posted", Duration::from_secs(10), || {
        receiver.bodies.try_iter().find(|body| body["finding"]["id"] == one["id"])
    });
    assert_eq!((&posted["event"], &posted["finding"]["kind"]), (&"opened".into(), &one["kind"]), "{posted}");
    // And a collector has it as a log record.
    let printed = wait("the collector to print the finding", Duration::from_secs(20), || {
        let printed = collector.output();
        printed.contains(one["summary"].as_str().expect("words")).then_some(printed)
    });
    for word in ["tracer.finding.opened", "application_change", "tracer.finding.change_ratio", "GET /medium", "WARN"] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
    // Counted once a second.
    wait("the record to be counted", Duration::from_secs(20), || {
        (agent.metrics().sum("tracer_otlp_log_records_total", &[("outcome", "sent")]) >= 1.0).then_some(())
    });

    // Its evidence, and the profile against the one before.
    let id = one["id"].as_u64().expect("an id");
    let evidence = agent.json(&format!("/api/v1/findings/{id}"));
    let length = |value: &Value| value.as_array().map_or(0, Vec::len);
    let t = length(&evidence["windows"]["t"]);
    assert!(t >= WARM, "{evidence}");
    for name in ["utilisation", "foreign", "steal", "requests", "cost", "expected"] {
        assert_eq!(length(&evidence["windows"][name]), t, "{name}");
    }
    assert_eq!(length(&evidence["regression"]["cpu_s"]), t);
    let classes = evidence["regression"]["classes"].as_array().expect("classes").clone();
    let medium = classes.iter().find(|row| row["request_class"] == "GET /medium").expect("the class");
    let each = |name: &str| medium[name].as_f64().expect("seconds");
    assert!((0.0047..0.0062).contains(&each("measured_before_s")), "{medium}");
    let since = one["since_ns"].as_u64().expect("an instant");
    wait("a profile of the time after", Duration::from_secs(40), || {
        let until = now_ns() as u64;
        let folded = agent.text(&format!(
            "/profile.folded?service=burn&class=GET%20/medium&from_ns={since}&until_ns={until}&before_until_ns={since}"
        ));
        // Three columns: stack, before, after; the burnt CPU is in one function.
        let burnt = folded.lines().filter(|line| line.contains("burn_class")).filter_map(|line| {
            let mut numbers = line.rsplit(' ').filter_map(|text| text.parse::<f64>().ok());
            Some((numbers.next()?, numbers.next()?))
        });
        let (after, before) = burnt.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (after >= 30.0 && before >= 10.0).then_some((before, after))
    });
    assert!(load.end() > 500);
    let found = findings(&agent);
    agent.stop();
    // What was published is in the history, a row for each class.
    let rows = crate::history::rows::<FindingRow>(&history);
    for one in &found {
        let of = |row: &&FindingRow| &*row.event == "opened" && Some(row.id) == one["id"].as_u64();
        let rows: Vec<&FindingRow> = rows.iter().filter(of).collect();
        let classes = one["request_classes"].as_array().expect("classes");
        assert_eq!(rows.len(), classes.len().max(1), "{one}: {rows:?}");
        for row in rows {
            let is_named = if classes.is_empty() {
                row.request_class.is_empty()
            } else {
                classes.contains(&(*row.request_class).into())
            };
            assert!(is_named, "{one}: {row:?}");
            assert_eq!(
                (&one["kind"], &one["service_name"]),
                (&(*row.finding).into(), &(*row.service_name).into()),
                "{row:?}"
            );
            assert_eq!((&one["since_ns"], &one["found_ns"]), (&row.since_ns.into(), &row.found_ns.into()), "{row:?}");
        }
    }
    // The same from the files, by the same analysis.
    let config = dir.path().join("tracer.toml");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let verdicts = agent::command(&["verdicts", "--json", "--history", &text(&history), "--config", &text(&config)]);
    assert_eq!(verdicts.code, Some(0), "{}", verdicts.err);
    let again: Vec<Value> = verdicts.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for one in &found {
        let other = again.iter().find(|other| other["id"] == one["id"]).unwrap_or_else(|| panic!("{one}: {again:?}"));
        for name in ["kind", "service_name", "request_classes", "resource", "since_ns", "found_ns", "cause", "summary"]
        {
            assert_eq!(one[name], other[name], "{name}: {one} {other}");
        }
    }
    figure("findings: the same from the history", &found.len().to_string());
    // And the next run of the agent still shows it; what it was based on is gone.
    let agent = Agent::start(dir.path(), &["--config", &text(&config), "--port", "1"]);
    let past = wait("findings of the run before", Duration::from_secs(20), || {
        findings(&agent).into_iter().find(|other| other["kind"] == "application_change")
    });
    assert_eq!((&past["since_ns"], &past["request_classes"]), (&one["since_ns"], &one["request_classes"]), "{past}");
    assert!(past["until_ns"].is_u64(), "{past}");
    let target = format!("/api/v1/findings/{}", past["id"]);
    assert_eq!(http::get(agent.listen, &target).expect("a reply").status, 404);
    agent.stop();
}

#[test]
fn a_load_that_doubles_is_at_most_a_workload_change() {
    let Some(_turn) = begin("findings", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let load = Load::start(&server, &RATES, 0);
    let agent = findings::agent(dir.path(), "", &[]);
    wait_for_windows(&agent, "GET /medium", WARM);
    load.times(|_| 2.0);
    let news = wait("the load to be noticed", Duration::from_secs(40), || {
        findings(&agent).into_iter().find(|one| one["kind"] == "workload_change")
    });
    assert_eq!(news["service_name"], "burn");
    // Also later there is no other finding about the service.
    wait_for_more_windows(&agent, "GET /medium", 20);
    let all = findings(&agent);
    check_contract(&all);
    let own: Vec<&Value> = all.iter().filter(|one| one["service_name"] == "burn").collect();
    assert!(own.iter().all(|one| one["kind"] == "workload_change"), "{own:?}");
    load.end();
    agent.stop();
}

#[test]
fn a_process_that_burns_cpu_is_the_environment() {
    let Some(_turn) = begin("findings", &["cc"]) else { return };
    if let Some(reason) = findings::busy_host() {
        say(&format!("SKIPPED findings: {reason}"));
        return;
    }
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let load = Load::start(&server, &RATES, 0);
    let agent = findings::agent(dir.path(), "", &[]);
    wait_for_windows(&agent, "GET /medium", WARM);
    let mut shell = Command::new("sh");
    shell.args(["-c", "while :; do :; done"]);
    let burner = Process::start("burner", &mut shell, &dir.path().join("burner.log"));
    let found = wait("the burner to be found", Duration::from_secs(40), || {
        let all = findings(&agent);
        all.into_iter().find(|one| one["kind"] == "environment" || one["kind"] == "anomaly")
    });
    assert_eq!(found["service_name"], "", "{found}");
    wait_for_more_windows(&agent, "GET /medium", 20);
    let all = findings(&agent);
    check_contract(&all);
    assert!(all.iter().all(|one| one["kind"] != "application_change"), "{all:?}");
    drop(burner);
    wait("its end to be found", Duration::from_secs(40), || {
        let all = findings(&agent);
        all.into_iter().any(|one| one["id"] == found["id"] && !one["until_ns"].is_null()).then_some(())
    });
    load.end();
    agent.stop();
}
