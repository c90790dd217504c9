//! The console in a real browser: pages draw themselves, sort, search, zoom, reload and fit a phone, without an error.

use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::workload::{self, Server};
use tracer_tests::{begin, find, http, load, say, scratch, wait};

#[test]
fn a_person_finds_the_code_that_burns() {
    let Some(_turn) = begin("console", &["cc", "chromium", "python3"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let address = server.address;
    // Until the browser is done: rates and charts need requests that go on.
    let until = Instant::now() + Duration::from_secs(150);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let load = std::thread::spawn(move || {
        let mut good = 0;
        while Instant::now() < until && !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            // Half the time: the agent keeps the newest transactions, and a cell of the heatmap is opened some seconds after it
            // was drawn.
            good += load::until(address, 2, &["/alpha", "/beta"], Instant::now() + Duration::from_millis(250)).0;
            std::thread::sleep(Duration::from_millis(250));
        }
        good
    });
    wait("samples of both classes", Duration::from_secs(30), || {
        // 404 until the first request is reported.
        let reply = http::get(agent.listen, "/profile.folded?service=burn").ok().filter(|reply| reply.status == 200)?;
        let folded = reply.text();
        (folded.contains("burn_alpha") && folded.contains("burn_beta")).then_some(())
    });
    let python = find("python3").unwrap_or_else(|| panic!("no python3"));
    let mut clicks = Command::new(python);
    clicks.arg(workload::source("console_clicks.py")).arg(format!("http://{}", agent.listen)).arg(dir.path());
    let done = clicks.output().unwrap_or_else(|error| panic!("console_clicks.py: {error}"));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let good = load.join().unwrap_or_else(|_| panic!("the load failed"));
    say(&format!("console: {good} requests; {}", String::from_utf8_lossy(&done.stdout).trim().replace('\n', "; ")));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    agent.stop();
}
