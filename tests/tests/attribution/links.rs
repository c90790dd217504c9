//! Calls of an event-loop proxy and of a threaded application, verified by an id in the path.

use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::spans::{self, Tail};
use tracer_tests::workload::{Server, source, wait_for_listener};
use tracer_tests::{Numbers, begin, explained, figure, find, free_port, say, scale, scratch};

const CONNECTIONS: u64 = 64;

/// Requests per connection.
fn each() -> u64 {
    (160.0 * scale()).ceil() as u64
}

fn plans(prefix: &str) -> Vec<Vec<Request>> {
    let mut numbers = Numbers::new(3);
    (0..CONNECTIONS)
        .map(|c| {
            let mut one = |r| Request {
                // Some 3000 per second: a saturated machine or agent would turn this into a test of losses.
                pause: Duration::from_micros(numbers.below(40_000)).div_f64(scale()),
                ..Request::get(format!("{prefix}/c{c}r{r}/d{}", numbers.below(8_000)))
            };
            (0..each()).map(&mut one).collect()
        })
        .collect()
}

#[test]
fn nginx_links_its_calls_to_the_requests_that_caused_them() {
    let Some(_turn) = begin("links_nginx", &["nginx", "cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let pool = format!("upstream pool {{ server {}; keepalive 16; }}", origin.address);
    let server = format!(
        "location /pooled/ {{ proxy_pass http://pool; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
         location /new/ {{ proxy_pass http://{}; }}",
        origin.address
    );
    let nginx = Nginx::start(dir.path(), &pool, &server);
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    for prefix in ["/pooled", "/new"] {
        let loaded = load::run(nginx.address, plans(prefix));
        assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    }
    let sent = (2 * CONNECTIONS * each()) as usize;
    // The load's call, nginx's request, nginx's call, the origin's request.
    let mut tail = Tail::new(&agent.transactions);
    tail.until(4 * sent, Duration::from_secs(20), |_| true);
    let lost = agent.metrics().lost();
    let explained = explained(&lost) as u64;
    let file = agent.transactions.clone();
    agent.stop();
    let all = spans::read(&file);
    for prefix in ["/pooled/", "/new/"] {
        let calls = || all.iter().filter(|u| u.service == "nginx" && !u.server && u.path.starts_with(prefix));
        let tallies = spans::parents(&all, calls());
        let (total, right, wrong, sure) = spans::report_parents(&format!("nginx {prefix} (lost {lost:?})"), &tallies);
        let expected = CONNECTIONS * each();
        assert!(total <= expected && total + explained >= expected, "{total} of {expected} calls of {prefix}");
        assert!((right + explained) * 1000 >= total * 999, "{right} of {total} right");
        assert_eq!(sure, 0, "{wrong} wrong, {sure} of them certain or confirmed");
        // One transaction holds all four spans.
        let mut traces = std::collections::HashMap::<&str, Vec<&str>>::new();
        all.iter().filter(|u| u.path.starts_with(prefix)).for_each(|u| {
            traces.entry(u.trace.as_str()).or_default().push(u.path.as_str());
        });
        let is_whole = |paths: &Vec<&str>| paths.len() == 4 && paths.iter().all(|p| *p == paths[0]);
        let whole = traces.values().filter(|paths| is_whole(paths)).count();
        figure("whole chains", &format!("{whole} of {total}"));
        say(&format!("  {whole} of {total} transactions are whole: load, nginx, call, origin"));
        for (trace, _) in traces.iter().filter(|(_, paths)| !is_whole(paths)) {
            all.iter().filter(|u| u.trace == **trace).for_each(|u| say(&format!("  not whole: {u:?}")));
        }
        assert!((whole as u64 + explained) * 1000 >= total * 999, "{whole} of {total} transactions are whole");
    }
}

#[test]
fn threads_that_hold_one_request_are_certain() {
    let Some(_turn) = begin("links_gunicorn", &["gunicorn", "python3", "cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find("gunicorn").expect("gunicorn"));
    command.args(["--worker-class=gthread", "--workers=2", "--threads=8", "--keep-alive=10", "--bind"]);
    command.arg(address.to_string()).arg("--chdir").arg(source("calls").parent().expect("a directory"));
    command.arg("calls:app").env("UPSTREAM_PORT", origin.address.port().to_string());
    command.env("OTEL_SERVICE_NAME", "calls").env("PYTHONDONTWRITEBYTECODE", "1");
    let mut app = Process::start("gunicorn", &mut command, &dir.path().join("gunicorn.log"));
    wait_for_listener(&mut app, address);
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let plans: Vec<Vec<Request>> =
        (0..16).map(|c| (0..60).map(|r| Request::get(format!("/t/c{c}r{r}/d{}", r * 20))).collect()).collect();
    let loaded = load::run(address, plans);
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let mut tail = Tail::new(&agent.transactions);
    tail.until(4 * 960, Duration::from_secs(20), |_| true);
    let file = agent.transactions.clone();
    agent.stop();
    let all = spans::read(&file);
    let tallies = spans::parents(&all, all.iter().filter(|u| u.service == "calls" && !u.server));
    let (total, right, _, sure) = spans::report_parents("gunicorn, 8 threads", &tallies);
    assert_eq!((total, sure), (960, 0));
    assert!(right * 1000 >= total * 999, "{right} of {total} right");
}
