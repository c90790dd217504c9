//! uwsgi and SCGI between nginx and uWSGI, over TCP and UNIX sockets: compares paths, statuses and durations with
//! nginx's and uWSGI's access logs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::uwsgi::Uwsgi;
use tracer_tests::{Numbers, begin, figure, say, scale, scratch, secrets, wait};

const CONNECTIONS: usize = 4;
const EACH: usize = 150;
const SECRETS: [&str; 4] = ["planted-query", "planted-body", "planted-answer", "planted-note"];
/// Destinations of requests: the protocol, and its transport.
const PLACES: [(&str, &str); 4] = [("ut", "uwsgi"), ("uu", "uwsgi"), ("st", "scgi"), ("su", "scgi")];
/// Actions of the application.
const NAMES: [&str; 9] = ["ok", "post", "big", "slow", "parts", "moved", "fail", "silent", "missing"];

fn nginx(dir: &Path, server: &Uwsgi) -> Nginx {
    // As in nginx's own parameter files.
    let variables = |kind: &str| {
        [
            ("QUERY_STRING", "$query_string"),
            ("REQUEST_METHOD", "$request_method"),
            ("CONTENT_TYPE", "$content_type"),
            ("CONTENT_LENGTH", "$content_length"),
            ("REQUEST_URI", "$request_uri"),
            ("PATH_INFO", "$document_uri"),
            ("SERVER_PROTOCOL", "$server_protocol"),
            ("REMOTE_ADDR", "$remote_addr"),
            ("SERVER_PORT", "$server_port"),
            ("SERVER_NAME", "$server_name"),
        ]
        .map(|(name, value)| format!("{kind}_param {name} {value};"))
        .join("\n")
    };
    let http = format!("{}\n{}", variables("uwsgi"), variables("scgi"));
    let (socket, scgi_socket) = (server.socket.display(), server.scgi_socket.display());
    let places = format!(
        "location /ut/ {{ uwsgi_pass {}; }}\nlocation /uu/ {{ uwsgi_pass unix:{socket}; }}\n\
         location /st/ {{ scgi_pass {}; }}\nlocation /su/ {{ scgi_pass unix:{scgi_socket}; }}",
        server.address, server.scgi_address
    );
    Nginx::start(dir, &http, &places)
}

fn plan(connection: usize) -> Vec<Request> {
    let mut numbers = Numbers::new(connection as u64 + 1);
    let each = (EACH as f64 * scale()) as usize;
    (0..each)
        .map(|_| {
            let (place, _) = PLACES[numbers.below(4) as usize];
            let name = NAMES[numbers.below(NAMES.len() as u64) as usize];
            let mut request = Request::get(format!("/{place}/{name}?q=planted-query"));
            if name == "post" {
                request.method = "POST";
                request.body = b"planted-body".repeat(numbers.below(5000) as usize);
            }
            request.pause = Duration::from_micros(numbers.below(8000)).div_f64(scale());
            request
        })
        .collect()
}

/// The key of a request in logs.
type Kind = (String, String, u16);

fn count(kinds: impl Iterator<Item = Kind>) -> BTreeMap<Kind, u64> {
    let mut counts = BTreeMap::new();
    kinds.for_each(|kind| *counts.entry(kind).or_default() += 1);
    counts
}

/// An application that fails before sending anything is a 500 to uWSGI, which closes, and a 502 to nginx: on the wire
/// the reply is missing.
fn kind(method: &str, path: &str, status: u16) -> Kind {
    let status = if path.ends_with("/silent") { 0 } else { status };
    (method.to_owned(), path.to_owned(), status)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[test]
fn requests_are_counted_as_both_logs_do() {
    let Some(_turn) = begin("gateways", &["nginx", "uwsgi"]) else { return };
    let dir = scratch();
    let application = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/application.py");
    let server = Uwsgi::start(dir.path(), &application);
    let nginx = nginx(dir.path(), &server);
    let agent = Agent::start(dir.path(), &["--nice=-10"]);

    let loaded = load::run(nginx.address, (0..CONNECTIONS).map(plan).collect());
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken());
    let wanted = loaded.answers.len();
    let served = wait("both logs", Duration::from_secs(20), || {
        let served = server.served();
        (served.len() >= wanted && nginx.logged().len() >= wanted).then_some(served)
    });

    let ours = |span: &Span| {
        let place = span.path.split('/').nth(1).unwrap_or_default();
        PLACES.contains(&(place, span.protocol.as_str()))
    };
    let mut tail = Tail::new(&agent.transactions);
    tail.until(wanted * 2, Duration::from_secs(30), ours);
    let lost = agent.metrics().lost();
    let all = tail.spans.clone();
    let side = |is_server: bool| all.iter().filter(move |span| ours(span) && span.server == is_server);
    let counted = |is_server| {
        count(side(is_server).map(|span| {
            assert_eq!(span.outcome == "aborted", span.path.ends_with("/silent"), "{span:?}");
            kind(&span.method, &span.path, span.status.unwrap_or_default())
        }))
    };

    let truth = count(served.iter().map(|line| kind(&line.method, &line.path, line.status)));
    let asked = count(nginx.logged().iter().map(|line| kind(&line.method, line.path(), line.status)));
    let (found, called) = (counted(true), counted(false));
    for (kind, count) in &truth {
        let have = |counts: &BTreeMap<Kind, u64>| counts.get(kind).copied().unwrap_or_default();
        say(&format!(
            "  {kind:?}: uWSGI {count}, served {}; nginx {}, called {}",
            have(&found),
            have(&asked),
            have(&called)
        ));
    }
    let right = |truth: &BTreeMap<Kind, u64>, found: &BTreeMap<Kind, u64>| -> u64 {
        truth.iter().map(|(kind, count)| found.get(kind).copied().unwrap_or_default().min(*count)).sum()
    };
    say(&format!("lost: {lost:?}"));
    figure(
        "uwsgi and SCGI requests",
        &format!("{} served and {} called of {wanted}", right(&truth, &found), right(&asked, &called)),
    );
    assert_eq!(found, truth, "served; lost: {lost:?}");
    assert_eq!(called, asked, "called; lost: {lost:?}");

    // Every request has a known cause, graded certain or confirmed.
    let linked = side(true).filter(|span| {
        let caller = all.iter().find(|call| span.parent.as_ref() == Some(&call.id));
        caller.is_some_and(|call| !call.server && call.protocol == span.protocol && call.path == span.path)
    });
    let linked = linked.count();
    say(&format!("{linked} of {wanted} requests are linked to the call that nginx made"));
    assert_eq!(linked, wanted);
    let _ = spans::report_parents("calls of nginx, by path", &spans::parents(&all, side(false)));

    for (method, path, status) in truth.keys() {
        let same = |line: &&tracer_tests::uwsgi::Served| {
            kind(&line.method, &line.path, line.status) == (method.clone(), path.clone(), *status)
        };
        let logged = median(served.iter().filter(same).map(|line| line.duration_s).collect());
        let ours = median(side(true).filter(|span| span.path == *path).map(|span| span.duration_s).collect());
        say(&format!("  {path}: {:.3} ms logged, {:.3} ms found (medians)", logged * 1e3, ours * 1e3));
        assert!(
            scale() < 1.0 || (logged - ours).abs() < 0.001 + 0.02 * logged,
            "{path}: {logged} s logged, {ours} s found"
        );
    }

    for protocol in ["uwsgi", "scgi"] {
        let failures = agent.metrics().sum(
            "http_server_request_duration_seconds_count",
            &[("network_protocol_name", protocol), ("http_response_status_code", "500"), ("error_type", "500")],
        );
        let of =
            |path: &str| PLACES.iter().any(|(place, name)| *name == protocol && path.split('/').nth(1) == Some(place));
        let failed: u64 =
            truth.iter().filter(|((_, path, status), _)| *status == 500 && of(path)).map(|(_, count)| count).sum();
        assert!((failures - failed as f64).abs() < 0.5, "{protocol}: {failures} failures counted, {failed} logged");
    }
    secrets::none_shows(agent, dir.path(), &SECRETS, "/ut/fail");
}
