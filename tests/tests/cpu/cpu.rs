//! Compares CPU per class with `RUSAGE_THREAD` inside the handler, and the host's CPU accounting with the system's.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::workload::{Server, compile};
use tracer_tests::{begin, explained, figure, http, load, say, scale, scratch, wait};

/// Seconds of load.
const LOAD: u64 = 9;
const ROUTES: [&str; 3] = ["/light", "/medium", "/heavy"];

fn truth(server: &Server) -> Value {
    let reply = http::get(server.address, "/truth").expect("the server's own books");
    serde_json::from_slice(&reply.body).expect("JSON")
}

#[test]
fn classes_cost_what_their_handlers_used_and_the_host_adds_up() {
    let Some(_turn) = begin("cpu", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let storm = compile(dir.path(), "storm");
    let agent = Agent::start(dir.path(), &["--nice=-10"]);

    let before = agent.metrics();
    let mut children = Process::start(
        "storm",
        Command::new(storm).arg(LOAD.to_string()).env("OTEL_SERVICE_NAME", "storm"),
        &dir.path().join("storm.log"),
    );
    let (good, bad) = load::until(server.address, 3, &ROUTES, Instant::now() + Duration::from_secs(LOAD));
    assert_eq!(bad, 0, "of {good} requests");
    assert!(children.wait(Duration::from_secs(20)).success(), "{}", children.output());
    let storms: f64 = children.output().trim().strip_prefix("STORM ").expect("a count").parse().expect("a number");
    // The server records a request's CPU after its reply.
    let truth = wait("the server's own books", Duration::from_secs(10), || {
        let truth = truth(&server);
        let counted: u64 = ROUTES.iter().filter_map(|route| truth[*route]["count"].as_u64()).sum();
        (counted == good).then_some(truth)
    });

    // A request's counters are complete when its thread waits for the next one.
    let name = "tracer_request_cpu_seconds_total";
    let port = server.address.port();
    let service = wait("every request to be counted", Duration::from_secs(20), || {
        let classes = agent.json("/api/v1/classes");
        let of = classes["classes"].as_array()?.iter().find(|class| {
            class["side"] == "server" && ROUTES.iter().any(|route| class["request_class"] == format!("GET {route}"))
        })?;
        let service = of["service_name"].as_str()?.to_owned();
        let sum: u64 = classes["classes"]
            .as_array()?
            .iter()
            .filter(|c| c["side"] == "server")
            .filter_map(|c| {
                ROUTES.iter().any(|route| c["request_class"] == format!("GET {route}")).then(|| c["count"].as_u64())?
            })
            .sum();
        (sum as f64 + explained(&agent.metrics().lost()) >= good as f64).then_some(service)
    });
    std::thread::sleep(Duration::from_secs(3));
    let after = agent.metrics();

    // A lost operation may belong to a request of any class, and its CPU may be charged to the one before it.
    let explained = explained(&after.lost());
    let dearest = ROUTES
        .map(|route| truth[route]["whole_ns"].as_f64().unwrap_or(0.0) / truth[route]["count"].as_f64().unwrap_or(1.0));
    let shifted = explained * dearest.into_iter().fold(0.0, f64::max) / 1e9;
    say(&format!("cpu per class, server on port {port}, {good} requests, {storms} processes beside them"));
    let (mut counted, mut worst) = (0.0, 0.0f64);
    for route in ROUTES {
        let class = format!("GET {route}");
        let labels = [("service_name", service.as_str()), ("request_class", class.as_str())];
        let traced = after.sum(name, &labels) - before.sum(name, &labels);
        let of = |field: &str| truth[route][field].as_f64().expect("a number");
        let (handler, whole, count) = (of("handler_ns") / 1e9, of("whole_ns") / 1e9, of("count"));
        let requests = after.sum("tracer_requests_total", &labels);
        say(&format!(
            "  {route:8} {requests:6.0} of {count:6.0} requests, handler {handler:8.4} s, thread {whole:8.4} s, traced {traced:8.4} s \
             (handler {:+.2} %, thread {:+.2} %)",
            100.0 * (traced / handler - 1.0),
            100.0 * (traced / whole - 1.0),
        ));
        counted += requests;
        worst = worst.max(100.0 * (traced / whole - 1.0).abs());
        assert!((requests - count).abs() < 0.5 + explained, "{route}");
        // Between reading the request and having sent the reply the thread used `whole`; sending and receiving are the
        // kernel's share, and the thread's work from then until it waits again belongs to the request as well.
        let share = (whole - handler) + count * 60e-6;
        let within = handler * 0.97 - shifted..handler * 1.03 + share + shifted;
        assert!(within.contains(&traced), "{route}: {traced} s for {handler} s, {within:?} expected");
    }

    let kinds = |m: &tracer_tests::metrics::Metrics, kind| m.sum("tracer_host_cpu_seconds_total", &[("kind", kind)]);
    let delta = |kind| kinds(&after, kind) - kinds(&before, kind);
    let unreported = |m: &tracer_tests::metrics::Metrics| m.sum("tracer_host_cpu_unreported_seconds", &[]);
    let attributed = delta("requests") + delta("overhead") + delta("kernel") + unreported(&after) - unreported(&before);
    let busy_name = "tracer_host_cpu_busy_seconds_total";
    let busy = after.sum(busy_name, &[]) - before.sum(busy_name, &[]);
    let ratio = attributed / busy;
    figure("classes", &format!("{counted:.0} of {good}, CPU off by at most {worst:.1} %"));
    figure("capture ratio", &format!("{ratio:.4}"));
    say(&format!(
        "host: requests {:.3} s, overhead {:.3} s, kernel {:.3} s, system says {busy:.3} s: capture ratio {ratio:.4} \
         (since the start {:.4})",
        delta("requests"),
        delta("overhead"),
        delta("kernel"),
        after.sum("tracer_capture_ratio", &[]),
    ));
    let skipped: Vec<_> = after.of("tracer_bpf_missed_total", &[]).filter(|program| program.value > 0.0).collect();
    say(&format!("lost {:?}, skipped {skipped:?}", after.lost()));
    // The API has each service; in the metrics those without requests share a series.
    let services = agent.json("/api/v1/services");
    let storm = services["services"].as_array().and_then(|all| all.iter().find(|one| one["service_name"] == "storm"));
    let stormed = storm.and_then(|storm| storm["cpu_overhead_s"].as_f64()).expect("CPU of the storm");
    let labels = [("service_name", "_no_requests"), ("kind", "overhead")];
    let shared = after.sum("tracer_service_cpu_seconds_total", &labels);
    assert!(shared >= stormed * 0.99, "{shared} s of services without requests, {stormed} s of the storm");
    say(&format!("storm: {stormed:.3} s traced for {storms} processes that used a millisecond each"));
    let within = if scale() < 1.0 { 0.98..=1.02 } else { 0.99..=1.01 };
    assert!(within.contains(&ratio), "capture ratio {ratio}");
    assert!(stormed > storms * 0.001, "{stormed} s for {storms} processes");
    assert!(after.sum("tracer_events_lost_total", &[("reason", "ring_full_thread")]) < 0.5, "{:?}", after.lost());
    agent.stop();
}
