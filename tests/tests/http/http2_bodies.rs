//! HTTP/2 requests with bodies, short and longer than what is captured, one at a time and many at once: compares the
//! spans with h2load's report and nginx's access log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::http2::{Loaded, Nghttpd, h2load_by};
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, free_port, peers, say, scale, scratch};

/// Bytes of a body, connections, concurrent streams, requests per second on each (0: unlimited), total requests.
const CASES: [(usize, u32, u32, u32, u64); 4] =
    [(200, 2, 10, 400, 2_000), (1_000, 2, 10, 0, 1_000), (100_000, 2, 1, 50, 100), (100_000, 2, 10, 0, 200)];

/// Whether one operation can hold frames of several bodies, some of which begin beyond the captured part (8 KiB).
fn beyond(size: usize, streams: u32) -> bool {
    streams > 1 && size * streams as usize > 7_500
}

fn load(dir: &Path, address: SocketAddr, path: &str, case: (usize, u32, u32, u32, u64)) -> Loaded {
    let (size, connections, streams, rate, requests) = case;
    let body = dir.join(format!("body-{size}"));
    std::fs::write(&body, vec![b'b'; size]).expect("a body");
    let prepare = |program| {
        let mut command = Command::new(program);
        command.arg("-d").arg(&body);
        command
    };
    let requests = ((requests as f64 * scale()) as u64).max(20);
    h2load_by(prepare, address, requests, (connections, streams, rate), &[path])
}

fn start(dir: &Path, port: u16) -> Agent {
    Agent::start(dir, &["--port", &port.to_string(), "--nice=-10", "--max-cpu", "400%"])
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

/// Compares the spans of `loaded` at both ends of `port`. Where frames began beyond the fronts of operations, the
/// kernel side may exceptionally have lost some: missing spans must have been counted, and present ones must be right.
/// Elsewhere all must be present.
fn compare(title: &str, agent: Agent, port: u16, loaded: &Loaded, all_there: bool) -> Vec<Span> {
    let mut tail = Tail::new(&agent.transactions);
    if all_there {
        for server in [true, false] {
            let count = loaded.done as usize;
            tail.until(count, Duration::from_secs(20), |span| span.server == server && span.port == port);
        }
    }
    let metrics = peers::settled(&agent);
    tail.read();
    let missed = metrics.sum("tracer_attribution_gaps_total", &[("reason", "parser_gap_bytes")]);
    let lost = metrics.lost();
    agent.stop();
    let spans: Vec<Span> = tail.spans.into_iter().filter(|span| span.port == port).collect();
    for side in [true, false] {
        let of = || spans.iter().filter(|span| span.server == side);
        let named = || of().filter(|span| span.method == "POST" && span.outcome == "complete");
        let body = named().fold(0, |sum: u64, span| sum.saturating_add(span.body));
        let found = Loaded {
            done: named().count() as u64,
            ok: named().filter(|span| span.status.is_some_and(|status| status / 100 == 2)).count() as u64,
            refused: named().filter(|span| span.status.is_some_and(|status| status / 100 == 4)).count() as u64,
            data: body,
            mean_s: mean(named().map(|span| span.duration_s)),
        };
        say(&format!(
            "{title}, server {side}: {} spans, whole and named {} of {}, {:.3} ms on average, h2load {:.3} ms; \
             {missed} bytes not read, lost {lost:?}",
            of().count(),
            found.done,
            loaded.done,
            found.mean_s * 1e3,
            loaded.mean_s * 1e3
        ));
        figure(&format!("{title}, server {side}"), &format!("{} of {}", found.done, loaded.done));
        if all_there {
            assert_eq!(of().count() as u64, loaded.done, "{title}, server {side}; lost {lost:?}");
            assert_eq!(Loaded { mean_s: 0.0, ..found }, Loaded { mean_s: 0.0, ..*loaded }, "{title}, server {side}");
            // At the client's end: h2load's measured time.
            let bound = 1e-3 + 0.02 * loaded.mean_s;
            let close = side || scale() < 1.0 || (found.mean_s - loaded.mean_s).abs() <= bound;
            assert!(close, "{title}: {} and {} seconds", found.mean_s, loaded.mean_s);
        } else {
            assert!(of().count() as u64 <= loaded.done, "{title}, server {side}: more than there were");
            assert!(found.done == loaded.done || missed > 0.0, "{title}, server {side}: {found:?} of {loaded:?}");
            assert!(found.done * 100 >= loaded.done * 95, "{title}, server {side}: {found:?} of {loaded:?}");
            let wrong = named().find(|span| span.status.is_none_or(|status| status / 100 != 2));
            assert!(wrong.is_none(), "{title}, server {side}: {wrong:?}");
        }
    }
    spans
}

#[test]
fn nghttpd_is_sent_what_h2load_reports() {
    let Some(_turn) = begin("h2load bodies", &["nghttpd", "h2load"]) else { return };
    let dir = scratch();
    std::fs::create_dir(dir.path().join("www")).expect("www");
    std::fs::write(dir.path().join("www/small"), vec![b'x'; 200]).expect("a file");
    for case in CASES {
        let (size, _, streams, rate, _) = case;
        let server = Nghttpd::start(dir.path());
        let port = server.address.port();
        let agent = start(dir.path(), port);
        let loaded = load(dir.path(), server.address, "/small", case);
        assert_eq!((loaded.ok, loaded.data), (loaded.done, loaded.done * 200));
        let title = format!("POST of {size} bytes to nghttpd, {streams} at once, rate {rate}");
        let spans = compare(&title, agent, port, &loaded, !beyond(size, streams));
        assert!(spans.iter().all(|span| ["", "/small"].contains(&span.path.as_str())), "{title}");
    }
}

#[test]
fn nginx_logs_the_bodies_it_was_sent() {
    let Some(_turn) = begin("nginx h2c bodies", &["nginx", "h2load", "cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let port = free_port();
    let nginx = Nginx::start(
        dir.path(),
        &format!(
            "server {{ listen 127.0.0.1:{port} http2; location /up/ {{ proxy_pass http://{}; }} }}",
            origin.address
        ),
        "",
    );
    let mut before = 0;
    for (n, case) in CASES.into_iter().enumerate() {
        let (size, _, streams, rate, _) = case;
        let agent = start(dir.path(), port);
        let path = format!("/up/case{n}/d2000");
        let loaded = load(dir.path(), SocketAddr::from(([127, 0, 0, 1], port)), &path, case);
        let title = format!("POST of {size} bytes to nginx, {streams} at once, rate {rate}");
        let whole = !beyond(size, streams);
        let spans = compare(&title, agent, port, &loaded, whole);
        let logged = tracer_tests::wait("the access log to be complete", Duration::from_secs(20), || {
            let logged = nginx.logged();
            (logged.len() as u64 >= before + loaded.done).then_some(logged)
        });
        let logged = logged.into_iter().skip(before as usize).collect::<Vec<_>>();
        before += loaded.done;
        let mut expected = BTreeMap::new();
        for line in &logged {
            *expected.entry(format!("{} {} {} {}", line.method, line.path(), line.status, line.body)).or_insert(0) += 1;
        }
        let mut found = BTreeMap::new();
        let served = || spans.iter().filter(|span| span.server && span.outcome == "complete" && !span.path.is_empty());
        for span in served() {
            let line = format!("{} {} {} {}", span.method, span.path, span.status.unwrap_or(0), span.body);
            *found.entry(line).or_insert(0) += 1;
        }
        if whole {
            assert_eq!(found, expected, "{title}");
            let (ours, theirs) =
                (mean(served().map(|span| span.duration_s)), mean(logged.iter().map(|line| line.duration_s)));
            say(&format!("  {:.3} ms on average, nginx logged {:.3} ms", ours * 1e3, theirs * 1e3));
            // The log has a resolution of a millisecond.
            assert!(scale() < 1.0 || (ours - theirs).abs() <= 1e-3 + 0.02 * theirs, "{title}: {ours} and {theirs}");
        } else {
            assert!(found.keys().all(|line| expected.contains_key(line)), "{title}: {found:?} and {expected:?}");
        }
    }
}
