//! Fault: readers of the console that never read their replies: they only hold a connection slot for a while.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::faults::{self, Figures};
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::Server;
use tracer_tests::{begin, bpf, http, load, say, scale, scratch, spans, wait};

#[test]
fn readers_that_never_read_cost_nothing() {
    let Some(_turn) = begin("faults_readers", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let mut agent = Agent::start(dir.path(), &["--hertz", "0", "--port", &port]);
    let pid = agent.process().pid();
    let held = bpf::held(pid);
    let before = Vitals::of(pid);
    let mut silent = Vec::new();
    for _ in 0..faults::size(200, 1000) {
        let Ok(mut stream) = TcpStream::connect_timeout(&agent.listen, Duration::from_secs(2)) else { break };
        // Many requests, so that the replies fill every buffer.
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", agent.listen);
        let _ = stream.write_all(request.repeat(50).as_bytes());
        silent.push(stream);
    }
    assert!(silent.len() >= 100, "{}", silent.len());
    // Whoever asks whether the agent is well does not wait for them.
    let begun = Instant::now();
    let health = http::get(agent.listen, "/healthz").expect("an answer");
    let answered = begun.elapsed();
    assert!(health.status == 200 && answered < Duration::from_secs(2).div_f64(scale().max(0.2)), "{answered:?}");
    let plans = faults::plans("read", 4, 200);
    let loaded = load::run(server.address, plans.clone());
    faults::reported(&agent, &plans);
    let during = Vitals::of(pid);
    // The agent disconnects readers that take nothing; then it serves others again.
    wait("the console to answer", Duration::from_secs(60), || {
        http::get(agent.listen, "/readyz").ok().filter(|reply| reply.status == 200)
    });
    let count = silent.len();
    drop(silent);
    wait("their connections to be closed", Duration::from_secs(30), || {
        (Vitals::of(pid).fds <= before.fds + 4).then_some(())
    });
    let lost = faults::operations_lost(&agent.metrics());
    let after = Vitals::of(pid);
    let file = agent.transactions.clone();
    agent.stop();
    let judged = faults::judge(&plans, &spans::read(&file));
    say(&format!(
        "readers: {count} held, /healthz after {answered:?}, {before:?}, {during:?} while they were, {after:?} after"
    ));
    assert!(during.fds < before.fds + 100 && during.rss < before.rss + 64e6, "{during:?}");
    judged.covered(lost);
    let mut figures = Figures::of("readers of /metrics that never read", format!("{count} at once"));
    figures.loaded(&loaded).judged(&judged, lost).growth(before, after).attached(bpf::left(&held)).finish();
}
