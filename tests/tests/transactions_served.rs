//! Which request caused which call, inside of servers and gateways as operators run them: every reported edge against an id
//! that their application or configuration passed on.

use tracer_tests::truth::{Application, Mode, judge_before};
use tracer_tests::workload::Server;
use tracer_tests::{begin, php, scratch};

/// A kind of `tree_served.py`, which needs `program`.
struct Served {
    /// The test, and the service's name.
    name: &'static str,
    /// Of python3: which kind.
    arguments: &'static [&'static str],
    program: &'static str,
    title: &'static str,
    /// Least share that must be right with calls by connections that are kept, and by new ones.
    right: [f64; 2],
}

fn judge(served: &Served) {
    let Some(_turn) = begin(&format!("transactions_{}", served.name), &["python3", "cc", served.program]) else {
        return;
    };
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
    let [same, new] = served.right;
    let modes =
        [Mode::new("same", "calls by kept connections", same), Mode::new("new", "calls by new connections", new)];
    judge_before(&upstream, dir.path(), &application, &modes, "");
}

#[test]
fn gunicorn_sync() {
    judge(&Served {
        name: "gunicornsync",
        arguments: &["-u", "-X", "served=gunicorn-sync"],
        program: "gunicorn",
        title: "gunicorn, sync",
        right: [0.999, 0.999],
    });
}

#[test]
fn gunicorn_gthread() {
    judge(&Served {
        name: "gunicorngthread",
        arguments: &["-u", "-X", "served=gunicorn-gthread"],
        program: "gunicorn",
        title: "gunicorn, gthread",
        right: [0.999, 0.999],
    });
}

#[test]
fn gunicorn_gevent() {
    judge(&Served {
        name: "gunicorngevent",
        arguments: &["-u", "-X", "served=gunicorn-gevent"],
        program: "gunicorn",
        title: "gunicorn, gevent",
        // Its second process may serve its first requests before what runs in it is known.
        right: [0.97, 0.97],
    });
}

#[test]
fn nginx() {
    // It writes its title over its environment: it is known by its program.
    judge(&Served {
        name: "nginx",
        arguments: &["-u", "-X", "served=nginx"],
        program: "nginx",
        title: "nginx, proxying",
        right: [0.999, 0.999],
    });
}

#[test]
fn haproxy() {
    // It reads what has come in from all connections, and then makes all their calls: nothing tells whose is whose.
    judge(&Served {
        name: "haproxyfront",
        arguments: &["-u", "-X", "served=haproxy"],
        program: "haproxy",
        title: "HAProxy, two threads",
        right: [0.0, 0.0],
    });
}

#[test]
fn apache_prefork() {
    judge(&Served {
        name: "apacheprefork",
        arguments: &["-u", "-X", "served=apache-prefork"],
        program: "apache2",
        title: "Apache, prefork, proxying",
        right: [0.999, 0.999],
    });
}

#[test]
fn apache_worker() {
    judge(&Served {
        name: "apacheworker",
        arguments: &["-u", "-X", "served=apache-worker"],
        program: "apache2",
        title: "Apache, worker, proxying",
        right: [0.999, 0.999],
    });
}

#[test]
fn apache_event() {
    judge(&Served {
        name: "apacheevent",
        arguments: &["-u", "-X", "served=apache-event"],
        program: "apache2",
        title: "Apache, event, proxying",
        right: [0.999, 0.999],
    });
}

#[test]
fn puma() {
    judge(&Served {
        name: "puma",
        arguments: &["-u", "-X", "served=puma"],
        program: "puma",
        title: "Puma, 8 threads",
        right: [0.98, 0.98],
    });
}

#[test]
fn php_fpm() {
    // It writes its title over its environment: it is known by that. Its program's name has the version in it.
    let program = php::program().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    judge(&Served {
        name: "php-fpm",
        arguments: &["-u", "-X", "served=php"],
        program: program.map_or("php-fpm", |name| Box::leak(name.into_boxed_str())),
        title: "PHP-FPM behind nginx",
        right: [0.999, 0.999],
    });
}
