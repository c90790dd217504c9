//! FastCGI between nginx and PHP-FPM, over TCP and UNIX sockets: compares scripts, statuses and durations with both
//! access logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::php::{self, Php};
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::{Numbers, begin, figure, say, scale, scratch, secrets, wait};

const CONNECTIONS: usize = 6;
const EACH: usize = 150;
const SECRETS: [&str; 4] = ["planted-query", "planted-body", "planted-answer", "planted-note"];

/// Scripts, by name.
const SCRIPTS: [(&str, &str); 8] = [
    ("ok", "echo 'planted-answer';"),
    ("big", "for ($i = 0; $i < 40; $i++) { echo str_repeat('planted-answer', 700); }"),
    ("post", "echo strlen(file_get_contents('php://input'));"),
    ("fail", "http_response_code(500); echo 'planted-answer';"),
    ("moved", "header('Location: /t/ok.php?planted-query');"),
    ("slow", "usleep(20000); echo 'planted-answer';"),
    ("note", "error_log('planted-note'); echo 'planted-answer';"),
    ("early", "echo 'a'; flush(); usleep(5000); echo 'planted-answer';"),
];

fn scripts(dir: &Path) {
    for place in ["t", "u"] {
        let place = dir.join("www").join(place);
        fs::create_dir_all(&place).expect("a directory of scripts");
        for (name, text) in SCRIPTS {
            fs::write(place.join(format!("{name}.php")), format!("<?php {text}")).expect("a script");
        }
    }
}

fn nginx(dir: &Path, php: &Php) -> Nginx {
    let variables = "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\n\
        fastcgi_param QUERY_STRING $query_string;\nfastcgi_param REQUEST_METHOD $request_method;\n\
        fastcgi_param CONTENT_TYPE $content_type;\nfastcgi_param CONTENT_LENGTH $content_length;\n\
        fastcgi_param SCRIPT_NAME $fastcgi_script_name;\nfastcgi_param REQUEST_URI $request_uri;\n\
        fastcgi_param SERVER_PROTOCOL $server_protocol;";
    let upstream = format!("upstream kept {{ server {}; keepalive 1; }}\n{variables}", php.address);
    let socket = php.socket.display();
    let server = format!(
        "location /t/ {{ fastcgi_pass kept; fastcgi_keep_conn on; }}\nlocation /u/ {{ fastcgi_pass unix:{socket}; }}"
    );
    Nginx::start(dir, &upstream, &server)
}

fn plan(connection: usize) -> Vec<Request> {
    let mut numbers = Numbers::new(connection as u64 + 1);
    let each = (EACH as f64 * scale()) as usize;
    (0..each)
        .map(|_| {
            let place = ["t", "u"][numbers.below(2) as usize];
            let name = SCRIPTS.get(numbers.below(9) as usize).map_or("missing", |(name, _)| name);
            let mut request = Request::get(format!("/{place}/{name}.php?q=planted-query"));
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

fn kind(span: &Span) -> Kind {
    (span.method.clone(), span.path.clone(), span.status.unwrap_or_default())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[test]
fn scripts_are_counted_as_both_logs_do() {
    let Some(_turn) = begin("fastcgi", &["nginx"]) else { return };
    if php::program().is_none() {
        say("SKIPPED fastcgi: needs PHP-FPM");
        return;
    }
    let dir = scratch();
    scripts(dir.path());
    let php = Php::start(dir.path());
    let nginx = nginx(dir.path(), &php);
    let agent = Agent::start(dir.path(), &["--nice=-10"]);

    let loaded = load::run(nginx.address, (0..CONNECTIONS).map(plan).collect());
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken());
    let wanted = loaded.answers.len();
    let served = wait("both access logs", Duration::from_secs(20), || {
        let served = php.served();
        (served.len() >= wanted && nginx.logged().len() >= wanted).then_some(served)
    });

    let ours =
        |span: &Span| span.protocol == "fastcgi" && (span.path.starts_with("/t/") || span.path.starts_with("/u/"));
    let mut tail = Tail::new(&agent.transactions);
    tail.until(wanted * 2, Duration::from_secs(30), ours);
    let lost = agent.metrics().lost();
    let all = tail.spans.clone();
    let side = |server: bool| all.iter().filter(move |span| ours(span) && span.server == server);

    let truth = count(served.iter().map(|line| (line.method.clone(), line.script.clone(), line.status)));
    let found = count(side(true).map(kind));
    let asked = count(nginx.logged().iter().map(|line| (line.method.clone(), line.path().to_owned(), line.status)));
    let called = count(side(false).map(kind));
    for (kind, count) in &truth {
        let have = |counts: &BTreeMap<Kind, u64>| counts.get(kind).copied().unwrap_or_default();
        say(&format!(
            "  {kind:?}: PHP-FPM {count}, served {}; nginx {}, called {}",
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
        "fastcgi scripts",
        &format!("{} served and {} called of {wanted}", right(&truth, &found), right(&asked, &called)),
    );
    assert_eq!(found, truth, "served; lost: {lost:?}");
    assert_eq!(called, asked, "called; lost: {lost:?}");

    // Every script was called by a known request, graded certain or confirmed.
    let linked = side(true).filter(|span| {
        let caller = all.iter().find(|call| span.parent.as_ref() == Some(&call.id));
        caller.is_some_and(|call| !call.server && call.protocol == "fastcgi" && call.path == span.path)
    });
    let linked = linked.count();
    say(&format!("{linked} of {wanted} scripts are linked to the call that nginx made"));
    assert_eq!(linked, wanted);
    let _ = spans::report_parents("calls of nginx, by script", &spans::parents(&all, side(false)));

    // On a kept connection PHP-FPM's clock starts when the previous reply is over.
    for (method, script, status) in truth.keys().filter(|(_, script, _)| script.starts_with("/u/")) {
        let logged =
            served.iter().filter(|line| (&line.script, &line.method, &line.status) == (script, method, status));
        let logged = median(logged.map(|line| line.duration_s).collect());
        let ours = median(side(true).filter(|span| span.path == *script).map(|span| span.duration_s).collect());
        say(&format!("  {script}: {:.3} ms logged, {:.3} ms found (medians)", logged * 1e3, ours * 1e3));
        assert!(
            scale() < 1.0 || (logged - ours).abs() < 0.001 + 0.02 * logged,
            "{script}: {logged} s logged, {ours} s found"
        );
    }

    let failures = agent.metrics().sum(
        "http_server_request_duration_seconds_count",
        &[("network_protocol_name", "fastcgi"), ("http_response_status_code", "500"), ("error_type", "500")],
    );
    let failed: u64 = truth.iter().filter(|((_, _, status), _)| *status == 500).map(|(_, count)| count).sum();
    assert!((failures - failed as f64).abs() < 0.5, "{failures} failures counted, {failed} logged");
    secrets::none_shows(agent, dir.path(), &SECRETS, "/t/fail.php");
}
