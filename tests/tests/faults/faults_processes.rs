//! Fault: processes that live for some hundred microseconds, as many as the machine can make, and thread ends that go
//! unreported.

use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::faults::{self, Figures};
use tracer_tests::load;
use tracer_tests::metrics::Metrics;
use tracer_tests::process::Process;
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::{Server, compile};
use tracer_tests::{begin, bpf, say, scale, scratch, spans, wait};

fn level(metrics: &Metrics, what: &str) -> f64 {
    metrics.sum("tracer_table_entries", &[("table", what)])
}

/// Starts `spawn`, waits for its end and returns how many processes it made.
fn spawn(program: &std::path::Path, dir: &std::path::Path, seconds: u64) -> f64 {
    let mut process = Process::start(
        "spawn",
        Command::new(program).arg(seconds.to_string()).env("OTEL_SERVICE_NAME", "spawn"),
        &dir.join("spawn.log"),
    );
    let status = process.wait(Duration::from_secs(seconds + 60));
    assert!(status.success(), "{status}: {}", process.output());
    process.line("SPAWNED", Duration::ZERO).parse().expect("a number")
}

#[test]
fn ten_thousand_processes_a_second_add_up() {
    let Some(_turn) = begin("faults_processes", &["cc"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "spawn");
    let server = Server::c("origin", dir.path());
    let seconds = faults::size(8, 60);
    let mut agent = Agent::start(dir.path(), &[]);
    let held = bpf::held(agent.process().pid());
    spawn(&program, dir.path(), 2);
    std::thread::sleep(Duration::from_secs(2));
    let (first, before) = (agent.metrics(), Vitals::of(agent.process().pid()));

    // Requests beside them: about a thousand per second.
    let plans: Vec<_> = faults::plans("among", 4, (seconds as f64 * 200.0 * scale()) as u64)
        .into_iter()
        .map(|plan| plan.into_iter().map(|one| load::Request { pause: Duration::from_millis(4), ..one }).collect())
        .collect();
    let load = {
        let (address, plans) = (server.address, plans.clone());
        std::thread::spawn(move || load::run(address, plans))
    };
    let begun = Instant::now();
    let spawned = spawn(&program, dir.path(), seconds);
    let rate = spawned / begun.elapsed().as_secs_f64();
    let loaded = load.join().expect("load");
    faults::caught_up(&agent);
    let peak = level(&agent.metrics(), "threads");
    // Once every last record has arrived: a known thread leaves the table when it ends.
    let threads = wait("the table of threads to drain", Duration::from_secs(60), || {
        let now = level(&agent.metrics(), "threads");
        (now < level(&first, "threads") + 100.0).then_some(now)
    });
    let last = agent.metrics();
    let after = Vitals::of(agent.process().pid());
    faults::reported(&agent, &plans);
    let file = agent.transactions.clone();
    agent.stop();

    let delta = |name: &str, labels: &[(&str, &str)]| last.sum(name, labels) - first.sum(name, labels);
    let host = |kind| delta("tracer_host_cpu_seconds_total", &[("kind", kind)]);
    let attributed =
        host("requests") + host("overhead") + host("kernel") + delta("tracer_host_cpu_unreported_seconds", &[]);
    let busy = delta("tracer_host_cpu_busy_seconds_total", &[]);
    let ratio = attributed / busy;
    let lost = faults::operations_lost(&last);
    let thread_records = last.sum("tracer_events_lost_total", &[("reason", "ring_full_thread")]);
    say(&format!(
        "processes: {spawned} ({rate:.0} a second), capture ratio {ratio:.4} of {busy:.2} s, threads followed {peak}, \
         {threads} afterwards; lost {:?}, {thread_records} records of threads",
        last.lost()
    ));
    let judged = faults::judge(&plans, &spans::read(&file));
    let mut figures = Figures::of("short processes", format!("{rate:.0}/s for {seconds} s"));
    figures.loaded(&loaded).judged(&judged, lost).growth(before, after).attached(bpf::left(&held));
    figures.note(format!("capture ratio {ratio:.4}")).finish();
    judged.covered(lost);
    assert!((0.99..=1.01).contains(&ratio), "capture ratio {ratio}");
    // Symbol tables of some programs are open at any time.
    assert!(after.rss - before.rss < 96e6 && after.fds <= before.fds + 64, "{before:?} {after:?}");
    assert!(rate > 500.0 * scale(), "{rate} a second are no storm");
}

#[test]
fn unreported_ends_are_detected() {
    let Some(_turn) = begin("faults_unreported_ends", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let mut agent = Agent::start(dir.path(), &["--hertz", "0"]);
    let held = bpf::held(agent.process().pid());
    let before = Vitals::of(agent.process().pid());
    let idle = level(&agent.metrics(), "threads");
    // The server has a thread per connection; the agent learns of each.
    let connections: Vec<_> = (0..faults::size(1000, 4000))
        .map(|_| {
            let mut connection = tracer_tests::http::Connection::open(server.address).expect("a connection");
            assert_eq!(connection.ask("GET", "/held").expect("a reply").status, 200);
            connection
        })
        .collect();
    let count = connections.len();
    wait("its threads to be followed", Duration::from_secs(20), || {
        (level(&agent.metrics(), "threads") >= idle + count as f64).then_some(())
    });
    // While the agent cannot read, the ring fills up, and then the threads end.
    agent.process().signal(libc::SIGSTOP);
    let end = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    let failed = loop {
        let (good, bad) = load::until(server.address, 16, &["/fill"], Instant::now() + Duration::from_secs(2));
        sent += good + bad;
        // Some eight requests fill a kilobyte, so these fill the ring's eight megabytes many times over.
        if sent > 60_000 || bad > 0 || Instant::now() > end {
            break bad;
        }
    };
    drop(connections);
    wait("the server's threads to end", Duration::from_secs(20), || {
        (Vitals::of(server.process.pid()).threads < 20).then_some(())
    });
    agent.process().signal(libc::SIGCONT);
    faults::caught_up(&agent);
    let lost = agent.metrics().sum("tracer_events_lost_total", &[("reason", "ring_full_thread")]);
    let kept = level(&agent.metrics(), "threads");
    assert!(lost >= count as f64 / 2.0, "{lost} records of threads were lost: nothing was tested");
    // A few other programs of this machine start and end meanwhile.
    let most = count as f64 * 0.8;
    assert!(kept >= idle + most, "{kept} kept, {idle} before: nothing was tested");
    let found = wait("the threads to be found gone", Duration::from_secs(60), || {
        let metrics = agent.metrics();
        let found = metrics.sum("tracer_attribution_gaps_total", &[("reason", "thread_ends_unreported")]);
        (level(&metrics, "threads") <= kept - most && found >= most).then_some(found)
    });
    let after = Vitals::of(agent.process().pid());
    agent.stop();
    say(&format!("ends: {lost} records of threads lost, {kept} threads kept then, {found} found gone by and by"));
    let mut figures = Figures::of("ends of threads lost", format!("{count} threads"));
    figures.traced(sent, failed).growth(before, after).attached(bpf::left(&held));
    figures.note(format!("{found} found gone in /proc, table drained")).finish();
    assert!(found > 0.0);
}
