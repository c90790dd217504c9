//! Which request caused which call in servers and gateways as operators run them: verifies every reported edge by an id
//! that their application or configuration passed on.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::spans::{Span, Tail, parents, report_parents};
use tracer_tests::truth::{Application, Floors, Mode, decided, disproved, judge_before, strays};
use tracer_tests::workload::{Server, source};
use tracer_tests::{Numbers, begin, figure, find, php, say, scratch};

/// A kind of `tree_served.py`, which needs `program`.
struct Served {
    /// The service's name.
    name: &'static str,
    /// For python3: which kind.
    arguments: &'static [&'static str],
    program: &'static str,
    title: &'static str,
    /// Least share of right calls over kept connections, and over new ones.
    floors: [Floors; 2],
    /// The same for calls made after the reply, if it can make some.
    late: Option<Floors>,
}

fn judge(served: &Served) {
    judge_as(served.name, served);
}

fn judge_as(test: &str, served: &Served) {
    let Some(_turn) = begin(&format!("transactions_{test}"), &["python3", "cc", served.program]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let application = Application {
        name: served.name,
        program: "python3",
        arguments: served.arguments,
        source: "tree_served.py",
        java: false,
        title: served.title,
    };
    let [same, new] = served.floors;
    let mut modes = vec![
        Mode::by_load("same", "calls by kept connections", same),
        Mode::by_load("new", "calls by new connections", new),
    ];
    if let Some(late) = served.late {
        modes.push(Mode::by_load("late", "after the reply, kept connections", late));
        modes.push(Mode::by_load("latenew", "after the reply, new connections", late));
    }
    judge_before(&upstream, dir.path(), &application, &modes, "");
}

#[test]
fn gunicorn_sync() {
    judge(&Served {
        name: "gunicornsync",
        arguments: &["-u", "-X", "served=gunicorn-sync"],
        program: "gunicorn",
        title: "gunicorn, sync",
        floors: [[0.999; 4]; 2],
        late: Some([0.99; 4]),
    });
}

#[test]
fn gunicorn_gthread() {
    judge(&Served {
        name: "gunicorngthread",
        arguments: &["-u", "-X", "served=gunicorn-gthread"],
        program: "gunicorn",
        title: "gunicorn, gthread",
        floors: [[0.999; 4]; 2],
        // Its threads wait for the interpreter's lock, which looks like a wait for the next request: how often depends on
        // the host. With one client half of these calls were orphans once; a wrong parent fails at any share.
        late: Some([0.0, 0.8, 0.8, 0.8]),
    });
}

#[test]
fn gunicorn_gevent() {
    judge(&Served {
        name: "gunicorngevent",
        arguments: &["-u", "-X", "served=gunicorn-gevent"],
        program: "gunicorn",
        title: "gunicorn, gevent",
        // Its second process may serve its first requests before its runtime is known.
        floors: [[0.97; 4]; 2],
        late: None,
    });
}

#[test]
fn nginx() {
    // It overwrites its environment with its title: its program identifies it.
    judge(&Served {
        name: "nginx",
        arguments: &["-u", "-X", "served=nginx"],
        program: "nginx",
        title: "nginx, proxying",
        floors: [[0.999; 4]; 2],
        late: None,
    });
}

#[test]
fn haproxy() {
    // It reads from all ready connections first, and then makes all their calls: the sent bytes show which request each
    // belongs to.
    judge(&Served {
        name: "haproxyfront",
        arguments: &["-u", "-X", "served=haproxy"],
        program: "haproxy",
        title: "HAProxy, two threads",
        floors: [[0.95, 0.7, 0.01, 0.0]; 2],
        late: None,
    });
}

#[test]
fn apache_prefork() {
    judge(&Served {
        name: "apacheprefork",
        arguments: &["-u", "-X", "served=apache-prefork"],
        program: "apache2",
        title: "Apache, prefork, proxying",
        floors: [[0.999; 4]; 2],
        late: None,
    });
}

#[test]
fn apache_worker() {
    judge(&Served {
        name: "apacheworker",
        arguments: &["-u", "-X", "served=apache-worker"],
        program: "apache2",
        title: "Apache, worker, proxying",
        floors: [[0.999; 4]; 2],
        late: None,
    });
}

#[test]
fn apache_event() {
    judge(&Served {
        name: "apacheevent",
        arguments: &["-u", "-X", "served=apache-event"],
        program: "apache2",
        title: "Apache, event, proxying",
        floors: [[0.999; 4]; 2],
        late: None,
    });
}

/// Its threads make one call at a time by HTTP/2, each on a connection of its own.
#[test]
fn apache_to_http2() {
    let Some(_turn) = begin("transactions_apache_h2c", &["python3", "apache2", "node"]) else { return };
    let dir = scratch();
    let mut command = Command::new(find("node").expect("node"));
    let upstream = Server::start("origin", dir.path(), command.arg(source("origin_h2.js")));
    judge_forwarded(dir.path(), "apache_h2c", &upstream, &["miss"], 0.9);
}

/// Other threads fetch than those that read requests.
#[test]
fn varnish() {
    let Some(_turn) = begin("transactions_varnish", &["python3", "varnishd", "cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    judge_forwarded(dir.path(), "varnish", &upstream, &["miss", "pass"], 0.0);
}

/// Requests that a kind of `tree_served.py` forwards with the target they came with: calls have the right parent or none, a
/// trace id for each transaction, and no reason that other spans disprove. `floor`: least share with the right parent.
fn judge_forwarded(dir: &Path, kind: &'static str, upstream: &Server, modes: &[&str], floor: f64) {
    let agent = Agent::start(dir, &["--nice=-10", "--max-cpu", "400%"]);
    let python = find("python3").expect("python3");
    let mut command = Command::new(python);
    command.args(["-u", "-X", &format!("served={kind}")]).arg(source("tree_served.py"));
    let front = Server::start(kind, dir, command.env("UPSTREAM_PORT", upstream.address.port().to_string()));
    let mut tail = Tail::new(&agent.transactions);
    let mut sent = Vec::new();
    for (mode, connections) in modes.iter().flat_map(|mode| [(mode, 1), (mode, 32)]) {
        let mut numbers = Numbers::new(connections);
        let name = format!("{mode}{connections}");
        let mut one = |c, r| Request::get(format!("/{mode}/{name}/c{c}r{r}/d{}", numbers.below(6_000)));
        let plans = (0..connections).map(|c| (0..640 / connections.max(4)).map(|r| one(c, r)).collect()).collect();
        let loaded = load::run(front.address, plans);
        assert!(loaded.broken().is_empty(), "{name}: {:?}", loaded.broken().first());
        sent.push((name, loaded.answers.len()));
    }
    let all: usize = sent.iter().map(|(_, answers)| answers).sum();
    for server in [true, false] {
        let of = |span: &Span| span.server == server && span.service == kind;
        assert_eq!(tail.until(all, Duration::from_secs(30), of), all, "{kind}: {:?}", agent.metrics().lost());
    }
    decided(&agent);
    agent.stop();
    tail.read();
    for (name, answers) in sent {
        let of = |span: &&Span| span.path.split('/').nth(2) == Some(name.as_str());
        let calls = || tail.spans.iter().filter(of).filter(|span| !span.server && span.service == kind);
        let (total, right, wrong, sure) = report_parents(&format!("{kind}, {name}"), &parents(&tail.spans, calls()));
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for call in calls().filter(|call| call.parent.is_none()) {
            *reasons.entry(&call.evidence).or_default() += 1;
        }
        say(&format!("  without a parent: {reasons:?}"));
        assert_eq!((total, wrong, sure), (answers as u64, 0, 0), "{kind}, {name}: calls, wrong parents");
        assert!(right as f64 >= floor * total as f64, "{kind}, {name}: {right} of {total}");
        figure(&format!("{kind}, {name}"), &format!("{right} of {total} linked"));
    }
    let faults = [strays(&tail.spans), disproved(&tail.spans)].concat();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn puma() {
    judge(&Served {
        name: "puma",
        arguments: &["-u", "-X", "served=puma"],
        program: "puma",
        title: "Puma, 8 threads",
        floors: [[0.98; 4]; 2],
        late: None,
    });
}

#[test]
fn php_fpm() {
    judge_php("phpfpm", "served=php", "PHP-FPM behind nginx");
}

#[test]
fn php_fpm_over_tcp() {
    judge_php("phpfpmtcp", "served=php-tcp", "PHP-FPM behind nginx, TCP");
}

#[test]
fn php_fpm_behind_apache_over_tcp() {
    let Some(_) = find("apache2") else {
        return say("SKIPPED php_fpm_behind_apache_over_tcp: needs the program apache2");
    };
    judge_php("phpfpmapache", "served=php-apache", "PHP-FPM behind Apache, TCP");
}

/// PHP-FPM overwrites its environment with its title, which identifies it. Its program's name includes the version.
fn judge_php(test: &'static str, kind: &'static str, title: &'static str) {
    let program = php::program().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let arguments = Box::leak(Box::new(["-u", "-X", kind]));
    judge_as(
        test,
        &Served {
            name: "php-fpm",
            arguments,
            program: program.map_or("php-fpm", |name| Box::leak(name.into_boxed_str())),
            title,
            floors: [[0.999; 4]; 2],
            late: Some([0.99; 4]),
        },
    );
}
