//! Books of PostgreSQL, MariaDB and Redis from events of their processes.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn facts(pid: u32, parent: u32, line: &[&str]) -> ProcessFacts {
    ProcessFacts {
        pid,
        parent,
        exe: "/usr/lib/postgresql/15/bin/postgres".into(),
        cmdline: line.iter().map(ToString::to_string).collect(),
        ..ProcessFacts::default()
    }
}

const SERVER: &[&str] = &["/usr/lib/postgresql/15/bin/postgres", "-D", "/data"];

fn server() -> Subsystems {
    let mut books = Subsystems::default();
    books.process(10, &facts(10, 1, SERVER), "postgres");
    for (child, title) in [(11, "postgres: 15/main: checkpointer "), (12, "postgres: 15/main: walwriter ")] {
        books.forked(10, child);
        books.process(child, &facts(child, 10, &[title]), "postgres");
    }
    books
}

fn only(books: &Subsystems) -> BookView {
    let mut views = books.views();
    assert_eq!(views.len(), 1);
    views.remove(0)
}

fn components(view: &BookView) -> Vec<(&'static str, f64)> {
    view.components.iter().map(|one| (one.name, one.cpu_s)).collect()
}

fn users(view: &BookView) -> Vec<(&str, &str, f64, u64, u64)> {
    let known = view.users.iter().filter(|user| user.cpu_s > 0.0);
    known.map(|user| (&*user.user, &*user.database, user.cpu_s, user.sessions, user.ended)).collect()
}

#[test]
fn users_sessions_and_components() {
    let mut books = server();
    let class = ClassId(3);
    // A session: forked, its title is the server's until it is set, then the server accepts it.
    books.forked(10, 20);
    books.process(20, &facts(20, 10, SERVER), "postgres");
    books.spend(20, ProcessWork::Other, SECOND);
    books.session(20, 5, "alice", "shop");
    books.spend(20, ProcessWork::Request(Some(class)), 5 * SECOND);
    // An older one, known by its title, with a worker that computes for it.
    books.process(21, &facts(21, 10, &["postgres: 15/main: bob shop 127.0.0.1(5) idle"]), "postgres");
    books.spend(21, ProcessWork::Request(None), 2 * SECOND);
    books.forked(10, 22);
    books.title(22, "postgres: 15/main: parallel worker for PID 21 ");
    books.spend(22, ProcessWork::Other, SECOND);
    books.spend(11, ProcessWork::Other, SECOND / 2);
    books.spend(10, ProcessWork::Other, SECOND / 4);
    // One that ends has no program any more.
    books.process(20, &ProcessFacts { pid: 20, ..ProcessFacts::default() }, "postgres");
    // A command of the archiver's.
    books.forked(12, 30);
    books.executed(30);
    books.spend(30, ProcessWork::Other, SECOND / 8);
    // The record of a fork comes late: nothing is counted twice.
    books.forked(10, 23);
    books.session(23, 6, "carol", "shop");
    books.forked(10, 23);
    books.spend(23, ProcessWork::Other, SECOND / 16);
    books.gone(23);
    // Another program is none of its business.
    books.spend(99, ProcessWork::Other, SECOND);

    let view = only(&books);
    let carol = ("carol", "shop", 0.0625, 0, 1);
    assert_eq!(users(&view), [("alice", "shop", 6.0, 1, 0), ("bob", "shop", 3.0, 1, 0), carol]);
    let alice = view.users.iter().find(|user| user.user == "alice").unwrap();
    assert_eq!((alice.requests_s, alice.connection_s, &alice.classes), (5.0, 1.0, &vec![(class, 5.0)]));
    let expected = [
        ("requests", 7.0),
        ("connection handling", 1.0625),
        ("parallel workers", 1.0),
        ("checkpointer", 0.5),
        ("postmaster", 0.25),
        ("started programs", 0.125),
    ];
    assert_eq!(components(&view), expected);
    assert_eq!((view.instance.as_str(), view.pid, view.processes), ("/data", 10, 7));
    assert_eq!(view.sessions.iter().map(|one| one.pid).collect::<Vec<_>>(), [20, 21]);
    // Ends change no sum.
    for pid in [22, 20, 21, 30, 11] {
        books.gone(pid);
    }
    let view = only(&books);
    assert_eq!(users(&view), [("alice", "shop", 6.0, 0, 1), ("bob", "shop", 3.0, 0, 1), carol]);
    assert_eq!(components(&view), expected);
    let sum: f64 = view.components.iter().map(|one| one.cpu_s).sum();
    assert!((sum - view.cpu_s).abs() < 1e-9 && (sum - 9.9375).abs() < 1e-9);
}

/// Seconds that processes have used by `/proc`.
fn check(books: &mut Subsystems, seconds: &[(u32, u64)]) {
    let processes = seconds.iter().map(|(pid, seconds)| (*pid, ProcessCpu { own: seconds * SECOND, children: 0 }));
    books.checked(0, &processes.collect::<Vec<_>>());
}

#[test]
fn the_ratio_is_of_the_time_between_checks() {
    let mut books = server();
    books.spend(11, ProcessWork::Other, SECOND);
    assert_eq!(only(&books).capture_ratio, None);
    assert_eq!(
        books.to_check(),
        [(0, vec![10, 11, 12])].map(|(index, mut list)| {
            list.sort_unstable();
            (index, list)
        })
    );
    check(&mut books, &[(10, 60), (11, 41)]);
    books.spend(11, ProcessWork::Other, 99 * SECOND);
    check(&mut books, &[(10, 60), (11, 141)]);
    assert_eq!(only(&books).capture_ratio, Some(0.99));
    // A session that slept since before the agent began wakes up: what it used then is none of the book's.
    books.process(21, &facts(21, 10, &["postgres: 15/main: bob shop 127.0.0.1(5) idle"]), "postgres");
    check(&mut books, &[(10, 60), (11, 141), (21, 700)]);
    assert_eq!(only(&books).capture_ratio, Some(0.99));
    // The server is started again: the book goes on.
    for pid in [11, 12, 21, 10] {
        books.gone(pid);
    }
    books.process(40, &facts(40, 1, SERVER), "postgres");
    books.forked(40, 41);
    books.session(41, 5, "alice", "shop");
    books.spend(41, ProcessWork::Other, SECOND);
    check(&mut books, &[(40, 4), (41, 1)]);
    books.spend(41, ProcessWork::Other, SECOND);
    check(&mut books, &[(40, 4), (41, 2)]);
    let view = only_open(&books);
    assert_eq!((view.pid, view.capture_ratio), (40, Some(100.0 / 101.0)));
    assert_eq!(users(&view), [("alice", "shop", 2.0, 1, 0)]);
}

/// The instance that has a place: the other one has given its processes to it.
fn only_open(books: &Subsystems) -> BookView {
    let mut views: Vec<BookView> = books.views().into_iter().filter(|view| view.pid != 0).collect();
    assert_eq!(views.len(), 1);
    views.remove(0)
}

#[test]
fn a_child_seen_first_names_its_server() {
    let mut books = Subsystems::default();
    books.process(21, &facts(21, 10, &["postgres: 15/main: bob shop 127.0.0.1(5) idle"]), "postgres");
    let mut wanted = books.wanted_titles();
    wanted.sort_unstable();
    assert_eq!(wanted, [10]);
    books.title(10, "/usr/lib/postgresql/15/bin/postgres -D /data");
    assert_eq!(books.wanted_titles(), Vec::<u32>::new());
    assert_eq!((only(&books).instance.as_str(), only(&books).pid), ("/data", 10));
    // Not what somebody else is called.
    books.process(50, &ProcessFacts { exe: "/bin/sh".into(), ..facts(50, 1, SERVER) }, "sh");
    assert_eq!(only(&books).processes, 2);
}

#[test]
fn everything_is_bounded() {
    let mut books = server();
    for n in 0..300u32 {
        books.forked(10, 1000 + n);
        books.session(1000 + n, u64::from(n), &format!("u{n}"), "d");
        books.spend(1000 + n, ProcessWork::Request(Some(ClassId(n))), SECOND);
    }
    let view = only(&books);
    assert_eq!(view.users.len(), 256);
    assert!((view.users.iter().map(|user| user.cpu_s).sum::<f64>() - 300.0).abs() < 1e-9);
    for n in 0..100u32 {
        books.process(5000 + n, &facts(5000 + n, 1, &["postgres", "-D", &format!("/d{n}")]), "postgres");
    }
    assert_eq!(books.views().len(), INSTANCES);
    // An instance that ended makes room.
    books.gone(5000);
    books.process(9000, &facts(9000, 1, &["postgres", "-D", "/new"]), "postgres");
    assert!(books.views().iter().any(|view| view.instance == "/new"));
    assert_eq!(books.take_removed().collect::<Vec<_>>(), [("postgresql", "/d0".to_owned())]);
    assert!(books.table_use().iter().all(|used| used.reached > 0));
}

#[test]
fn servers_of_one_process() {
    let mut books = Subsystems::default();
    let redis = |pid, parent, title: &str| ProcessFacts {
        exe: "/usr/bin/redis-check-rdb".into(),
        comm: "redis-server".into(),
        ..facts(pid, parent, &[title])
    };
    books.process(7, &redis(7, 1, "/usr/bin/redis-server 127.0.0.1:6379"), "redis-server");
    books.spend(7, ProcessWork::Request(Some(ClassId(1))), 3 * SECOND);
    books.spend(7, ProcessWork::Other, SECOND);
    // A save: its title comes after the fork.
    books.forked(7, 8);
    books.process(8, &redis(8, 7, "/usr/bin/redis-server 127.0.0.1:6379"), "redis-server");
    books.spend(8, ProcessWork::Other, 2 * SECOND);
    assert_eq!(books.wanted_titles(), [8]);
    books.title(8, "redis-rdb-bgsave 127.0.0.1:6379");
    let expected = [("requests", 3.0), ("background save", 2.0), ("outside requests", 1.0)];
    assert_eq!(components(&only(&books)), expected);
    assert_eq!((only(&books).system, only(&books).instance.as_str()), ("redis", "127.0.0.1:6379"));
    books.gone(8);
    books.gone(7);
    assert_eq!(components(&only(&books)), expected);
    let maria = ProcessFacts { exe: "/usr/sbin/mariadbd".into(), ..facts(20, 1, &["mariadbd", "--datadir=/data"]) };
    books.process(20, &maria, "mariadb");
    let view = books.views().pop().unwrap();
    assert_eq!((view.system, view.instance.as_str(), view.pid), ("mariadb", "/data", 20));
    // Somebody checks a file.
    books.process(30, &ProcessFacts { comm: "redis-check-rdb".into(), ..redis(30, 1, "redis-check-rdb x") }, "x");
    assert_eq!(books.views().len(), 2);
}

#[test]
fn users_of_a_server_of_one_process() {
    let mut books = Subsystems::default();
    let maria = ProcessFacts { exe: "/usr/sbin/mariadbd".into(), ..facts(20, 1, &["mariadbd", "--datadir=/data"]) };
    books.process(20, &maria, "mariadb");
    books.session(20, 100, "alice", "shop");
    books.session(20, 101, "bob", "");
    let (first, second) = (ClassId(1), ClassId(2));
    books.spend(20, ProcessWork::Request(Some(first)), 6 * SECOND);
    books.spend(20, ProcessWork::Request(Some(second)), 2 * SECOND);
    books.spend(20, ProcessWork::Other, SECOND);
    books.request(20, 100, first, 3 * SECOND);
    books.request(20, 101, first, SECOND);
    books.request(20, 101, second, 2 * SECOND);
    // Older than the agent, or another process.
    books.request(20, 102, first, SECOND);
    books.request(21, 100, first, SECOND);
    let view = only(&books);
    let alice = ("alice", "shop", 3.0, 0, 0);
    assert_eq!(users(&view), [("", "", 2.0, 0, 0), alice, ("bob", "", 3.0, 0, 0)]);
    assert_eq!(view.users.last().unwrap().classes, [(second, 2.0), (first, 1.0)]);
    assert_eq!(components(&view), [("requests", 8.0), ("outside requests", 1.0)]);
    // Another user on the same connection (`COM_CHANGE_USER`).
    books.session(20, 101, "alice", "shop");
    books.request(20, 101, first, SECOND);
    // It is restarted: the book goes on, with what is no user's.
    books.gone(20);
    books.process(30, &ProcessFacts { pid: 30, ..maria }, "mariadb");
    books.spend(30, ProcessWork::Request(Some(first)), SECOND);
    books.session(30, 200, "bob", "");
    books.request(30, 200, first, SECOND);
    let view = books.views().into_iter().find(|view| view.instance == "/data").unwrap();
    assert_eq!(users(&view), [("", "", 1.0, 0, 0), ("alice", "shop", 4.0, 0, 0), ("bob", "", 4.0, 0, 0)]);
    assert_eq!(components(&view), [("requests", 9.0), ("outside requests", 1.0)]);
}
