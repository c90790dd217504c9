//! The budget of series with real programs: more request classes and processes than `/metrics` has room for.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::http::{Connection, get};
use tracer_tests::load::{self, Request};
use tracer_tests::metrics::Metrics;
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, say, scale, scratch, wait};

/// The limit of the tests: the smallest.
const LIMIT: usize = 2_000;
/// Processes without requests.
const QUIET: usize = 60;
/// Paths of the server, each a class.
const CLASSES: usize = 400;

fn config(dir: &Path, text: &str) -> String {
    let path = dir.join("tracer.toml");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("a path").to_owned()
}

/// A word that is no number, for a path that is a class of its own.
fn word(n: usize) -> String {
    let letter = |n: usize| char::from(b"aeioulnrst"[n % 10]);
    format!("/{}{}{}{}", letter(n / 1000), letter(n / 100), letter(n / 10), letter(n))
}

/// The answer to a scrape with these headers: head and body.
fn scrape(agent: &Agent, headers: &str) -> (String, Vec<u8>) {
    let mut connection = Connection::open(agent.listen).expect("a connection");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n", agent.listen);
    connection.send(request.as_bytes()).expect("a request");
    let reply = connection.reply("GET").expect("a reply");
    assert_eq!(reply.status, 200);
    (reply.head, reply.body)
}

/// Requests by class.
fn by_class(metrics: &Metrics) -> HashMap<String, f64> {
    let mut counts = HashMap::new();
    for series in metrics.of("tracer_requests_total", &[("service_name", "origin")]) {
        *counts.entry(series.labels["request_class"].clone()).or_insert(0.0) += series.value;
    }
    counts
}

#[test]
fn more_classes_and_processes_than_series_stay_in_the_sums() {
    let Some(_turn) = begin("series_budget", &["cc", "sh"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let quiet: Vec<Process> = (0..QUIET)
        .map(|index| {
            let name = format!("quiet-{index}");
            let mut command = Command::new("sh");
            command.args(["-c", "while sleep 0.2; do :; done"]).env("OTEL_SERVICE_NAME", &name);
            Process::start(&name, &mut command, &dir.path().join(format!("{name}.log")))
        })
        .collect();
    let text = format!(
        "[limits]\nmax_series = {LIMIT}\nseries_idle = \"10s\"\n[classes]\nmax_per_service = 5000\nlearn_after = 5000\n"
    );
    // Half a second of full load at a time can take more than a core of the agent, which then keeps no transactions; what
    // is tested here is its series.
    let agent = Agent::start(dir.path(), &["--max-cpu", "400%", "--config", &config(dir.path(), &text)]);
    let targets: Vec<String> = (0..CLASSES).map(word).collect();
    let plan: Vec<Request> = targets.iter().map(|target| Request::get(target.clone())).collect();
    let loaded = load::run(server.address, vec![plan]);
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let served = |metrics: &Metrics| metrics.sum("tracer_requests_total", &[]);
    let full = wait("every request counted", Duration::from_secs(30), || {
        let metrics = agent.metrics();
        // Other programs of the host may serve requests, too.
        (served(&metrics) >= CLASSES as f64 && metrics.sum("tracer_series_folded", &[("kind", "class")]) > 0.0)
            .then_some(metrics)
    });
    let series = full.0.len();
    assert!(series <= LIMIT, "{series} series");
    assert!((full.sum("tracer_series", &[]) - series as f64).abs() < 0.5, "{series} series");
    let other = full.sum("tracer_requests_total", &[("service_name", "_other")]);
    let own: f64 = by_class(&full).values().sum();
    assert!(other > 0.0 && own > 0.0, "{other} requests folded, {own} not");
    assert!((other + own - CLASSES as f64).abs() < 0.5 || served(&full) > CLASSES as f64, "{other} and {own}");
    // Processes without requests share one series, and CPU adds up with what the host counted.
    let cpu = "tracer_service_cpu_seconds_total";
    let sum_of_services = |metrics: &Metrics| metrics.sum(cpu, &[]);
    let of_host = |metrics: &Metrics| {
        ["requests", "overhead"]
            .map(|kind| metrics.sum("tracer_host_cpu_seconds_total", &[("kind", kind)]))
            .iter()
            .sum()
    };
    assert!(!full.of(cpu, &[]).any(|series| series.labels["service_name"].starts_with("quiet-")));
    let shared = full.of(cpu, &[("service_name", "_no_requests")]).count();
    assert_eq!(shared, 1, "series of processes without requests");
    assert!(full.sum("tracer_series_folded", &[("kind", "service"), ("reason", "no_requests")]) >= QUIET as f64);
    // The host's figures are set once a second, those of services more often: soon after that they agree.
    let (services, host) = wait("CPU of services and of the host to agree", Duration::from_secs(30), || {
        let metrics = agent.metrics();
        let (services, host): (f64, f64) = (sum_of_services(&metrics), of_host(&metrics));
        (host > 0.0 && (services - host).abs() <= 0.01 + host * 0.005).then_some((services, host))
    });
    let took = full.sum("tracer_scrape_duration_seconds", &[]);
    // A class that goes on; the others become idle and leave.
    let (kept, gone) = (by_class(&full), by_class(&full));
    let mut classes: Vec<&String> = kept.keys().collect();
    classes.sort();
    let target = |class: &str| class.trim_start_matches("GET ").to_owned();
    let (busy, returning) = (target(classes[0]), classes[1].clone());
    let mut requests = 0;
    let idle = wait("idle classes to leave", Duration::from_secs((90.0 / scale()) as u64), || {
        requests += load::until(server.address, 1, &[&busy], Instant::now() + Duration::from_millis(500)).0;
        let metrics = agent.metrics();
        (!by_class(&metrics).contains_key(&returning)).then_some(metrics)
    });
    let expired = idle
        .0
        .iter()
        .filter(|series| series.labels.get("service_name").is_some_and(|service| service.starts_with("_expired-")));
    assert!(expired.count() > 0 && idle.sum("tracer_series_expired_total", &[]) > 0.0);
    assert!(idle.0.len() < series, "{} series, {series} before", idle.0.len());
    assert!(served(&idle) >= served(&full), "{} requests, {} before", served(&idle), served(&full));
    // It comes back with what it had.
    let back = wait("the class to return", Duration::from_secs((60.0 / scale()) as u64), || {
        load::until(server.address, 1, &[&target(&returning)], Instant::now() + Duration::from_millis(300));
        by_class(&agent.metrics()).get(&returning).copied().filter(|count| *count > gone[&returning])
    });
    figure("series", &format!("{series}"));
    say(&format!(
        "series: {series} of {LIMIT} with {CLASSES} classes and {QUIET} quiet processes: {own} requests of their own, \
         {other} folded; {} once idle; a scrape took {:.1} ms; CPU of services {services:.3} s, of the host {host:.3} s; \
         {returning} left with {} requests and came back with {back}",
        idle.0.len(),
        took * 1e3,
        gone[&returning],
    ));
    // Formats: exemplars name a transaction that the agent knows; gzip unpacks to the same.
    let of_class = format!("request_class=\"GET {busy}\"");
    let transaction = wait("a transaction of an exemplar", Duration::from_secs(30), || {
        load::until(server.address, 1, &[&busy], Instant::now() + Duration::from_millis(50));
        let (head, body) = scrape(&agent, "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
        assert!(head.to_lowercase().contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
        let open = String::from_utf8(body).expect("text");
        assert!(open.ends_with("\n# EOF\n"), "no end");
        // The newest one: the transactions of rarely used buckets may be forgotten.
        let at = |line: &&str| line.rsplit(' ').next().and_then(|at| at.parse::<f64>().ok()).unwrap_or(0.0);
        let exemplars = open.lines().filter(|line| line.contains(&of_class) && line.contains("# {trace_id=\""));
        let newest = exemplars.max_by(|a, b| at(a).total_cmp(&at(b)))?;
        let trace = newest.split("trace_id=\"").nth(1)?.split('"').next()?;
        let reply = get(agent.listen, &format!("/api/v1/transactions/{trace}")).expect("an answer");
        (reply.status == 200).then(|| reply.text())
    });
    assert!(transaction.contains(&busy), "{transaction}");
    let (head, body) = scrape(&agent, "Accept-Encoding: gzip\r\n");
    assert!(head.to_lowercase().contains("content-encoding: gzip") && body.starts_with(&[0x1f, 0x8b]), "{head}");
    let packed = dir.path().join("metrics.gz");
    std::fs::write(&packed, &body).expect("a file");
    let unpacked = Command::new("gzip").arg("-dc").arg(&packed).output().expect("gzip");
    assert!(unpacked.status.success() && unpacked.stdout.len() > body.len() * 4, "{} bytes", unpacked.stdout.len());
    Metrics::parse(&String::from_utf8(unpacked.stdout).expect("text"));
    drop(quiet);
    agent.stop();
}

#[test]
fn a_scrape_at_the_limit_is_quick() {
    let Some(_turn) = begin("series_scrape", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let text = "[classes]\nmax_per_service = 5000\nlearn_after = 5000\n";
    let agent = Agent::start(dir.path(), &["--config", &config(dir.path(), text)]);
    let plan: Vec<Request> = (0..700).map(|n| Request::get(word(n))).collect();
    let loaded = load::run(server.address, vec![plan]);
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let metrics = wait("the budget to be used up", Duration::from_secs(30), || {
        let metrics = agent.metrics();
        (metrics.sum("tracer_series_folded", &[("reason", "limit")]) > 0.0).then_some(metrics)
    });
    let series = metrics.0.len();
    let limit = metrics.sum("tracer_series_limit", &[]);
    assert!(series as f64 <= limit && series as f64 > limit * 0.85, "{series} series of {limit}");
    // The best of some: other programs take CPU, too.
    let (mut took, mut whole) = (f64::MAX, f64::MAX);
    for _ in 0..20 {
        let begun = Instant::now();
        let (_, body) = scrape(&agent, "Accept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n");
        whole = whole.min(begun.elapsed().as_secs_f64());
        took = took.min(agent.metrics().sum("tracer_scrape_duration_seconds", &[]));
        assert!(body.len() < 1_000_000, "{} bytes", body.len());
    }
    figure("scrape of 10 000 series", &format!("{:.1} ms", whole * 1e3));
    say(&format!(
        "series: {series} of {limit}; gathered in {:.1} ms, compressed and read in {:.1} ms",
        took * 1e3,
        whole * 1e3
    ));
    // A build without optimisation takes ten times as long.
    let optimised = !tracer_tests::agent::binary().components().any(|part| part.as_os_str() == "debug");
    let most = if optimised { 0.050 } else { 0.500 } / scale();
    assert!(whole <= most, "{whole} s for {series} series");
    agent.stop();
}
