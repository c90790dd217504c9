//! PostgreSQL's notifications: unsolicited messages of the server, to idle clients and in the middle of replies, are
//! not statements, and neither end nor fail one. Compared with the server's own log.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tracer_tests::agent::Agent;
use tracer_tests::postgresql::{Logged, Postgres, programs};
use tracer_tests::spans::{self, Span};
use tracer_tests::{begin, figure, find, peers, say, scale, scratch, secrets};

const SECRETS: [&str; 5] =
    ["planted-password", "planted_user", "planted-channel", "planted-payload", "planted-literal"];

/// Queries carry their expected class in a comment: `/*=CLASS=*/`.
const MARK: [&str; 2] = ["/*=", "=*/"];

const SETUP: &str = "CREATE TABLE asked AS SELECT 1 AS a; CREATE TABLE busy AS SELECT 1 AS a; CREATE TABLE long AS SELECT 1 AS a; \
    CREATE TABLE piped AS SELECT 1 AS a; CREATE TABLE own AS SELECT 1 AS a; CREATE TABLE notified AS SELECT 1 AS a;";

/// A session that listens from its beginning, one that has listened since before the agent started, and one that
/// notifies them. Prints how many notifications each got and should have got.
const PYTHON: &str = r#"
import json, select, sys, threading, time, psycopg
scale = float(sys.argv[1])
class Listener:
    def __init__(self):
        self.c = psycopg.connect(autocommit=True, prepare_threshold=3)
        self.got, self.due = 0, 0
        self.c.add_notify_handler(lambda one: self.more())
    def more(self):
        self.got += 1
    def idle(self, count):
        """Waits for so many while nothing is asked."""
        self.due += count
        end = time.monotonic() + 30
        while self.got < self.due:
            if not select.select([self.c.fileno()], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit(f"{self.got} of {self.due} notifications")
            self.c.pgconn.consume_input()
            while self.c.pgconn.notifies():
                self.more()
    def ask(self, sql, *arguments, count=0):
        """Asks while so many come."""
        self.due += count
        rows = self.c.execute(sql, *arguments).fetchall()
        self.idle(0)
        return rows
early = Listener()
early.c.execute('LISTEN "planted-channel"')
early.c.execute("SELECT 1").fetchall()
print("ready", flush=True)
sys.stdin.readline()
other = psycopg.connect(autocommit=True)
def notify(payload, count=1):
    with other.transaction():
        for i in range(count):
            # Equal ones of a transaction would come once.
            other.execute("/*=SELECT notified=*/ SELECT pg_notify('planted-channel', %s) FROM notified", (payload and f"{payload}{i}",), prepare=False)
def later(seconds, payload, count=1):
    timer = threading.Timer(seconds, notify, (payload, count))
    timer.start()
    return timer
late = Listener()
late.c.execute('/*=LISTEN=*/ LISTEN "planted-channel"')
both = (early, late)
def idle(count):
    for one in both:
        one.idle(count)
for n in range(int(20 * scale) + 2):
    # Nothing is asked: none, one, some, more than is captured; then a query as any other.
    for payload, count in (("", 1), ("planted-payload", 1), ("planted-payload", 5), ("planted-payload" * 400, 1), ("planted-payload" * 400, 60 if n % 10 == 0 else 3)):
        notify(payload, count)
        idle(count)
        for one in both:
            one.ask("/*=SELECT asked=*/ SELECT a FROM asked WHERE a < %s", (5,))
for n in range(int(10 * scale) + 2):
    # While a query runs: they stand before the end of its reply, which is short, long, or an error.
    for one in both:
        two = early if one is late else late
        timer = later(0.01, "planted-payload" if n % 2 else "planted-payload" * 300, 1 + n % 3)
        one.ask("/*=SELECT busy=*/ SELECT pg_sleep(0.03) FROM busy", count=1 + n % 3)
        timer.join()
        two.idle(1 + n % 3)
        # Without a payload one ends as an error does.
        timer = later(0.01, "planted-payload" if n % 2 else "")
        rows = one.ask("/*=SELECT long=*/ SELECT pg_sleep(0.0001), repeat('planted-literal', 50) FROM long, generate_series(1, 300)", count=1)
        assert len(rows) == 300
        timer.join()
        two.idle(1)
        timer = later(0.01, "")
        one.due += 1
        try:
            one.c.execute("/*=SELECT busy=*/ SELECT pg_sleep(0.03), 1 / (a - 1) FROM busy")
        except psycopg.errors.DivisionByZero:
            pass
        timer.join()
        idle(0)
        two.idle(1)
        timer = later(0.01, "planted-payload")
        one.due += 1
        with one.c.cursor() as cursor:
            with cursor.copy("/*=COPY SELECT long=*/ COPY (SELECT pg_sleep(0.0001), repeat('planted-literal', 50) FROM long, generate_series(1, 300)) TO STDOUT") as copy:
                for row in copy:
                    pass
        timer.join()
        idle(0)
        two.idle(1)
for n in range(int(10 * scale) + 2):
    # Between the statements of a pipeline that is long enough for them to come.
    for one in both:
        two = early if one is late else late
        timer = later(0.01, "planted-payload", 3)
        one.due += 3
        with one.c.pipeline() as pipeline:
            for i in range(5):
                one.c.execute("/*=SELECT piped=*/ SELECT pg_sleep(0.01) FROM piped WHERE a < %s", (5,))
                pipeline.sync()
        timer.join()
        one.idle(0)
        two.idle(3)
    # In a transaction they wait for its end.
    for one in both:
        two = early if one is late else late
        one.ask("/*=SELECT asked=*/ SELECT a FROM asked WHERE a < %s", (5,))
        with one.c.transaction():
            one.c.execute("/*=SELECT busy=*/ SELECT a FROM busy WHERE a = 2")
            notify("planted-payload", 2)
            one.c.execute("/*=SELECT busy=*/ SELECT a FROM busy WHERE a = 3")
        one.idle(2)
        two.idle(2)
    # A session's own.
    for one in both:
        two = early if one is late else late
        one.ask("/*=SELECT own=*/ SELECT pg_notify('planted-channel', 'planted-payload') FROM own", count=1)
        two.idle(1)
print(json.dumps({"got": [one.got for one in both], "due": [one.due for one in both]}))
"#;

/// The class a query's text expects.
fn marked(sql: &str) -> Option<&str> {
    Some(sql.split_once(MARK[0])?.1.split_once(MARK[1])?.0)
}

/// Statements the server ran to their end or to an error, by class and error.
fn truth(log: &[Logged]) -> BTreeMap<(String, String), u64> {
    let mut all = BTreeMap::new();
    for one in log {
        let ran = matches!(one.step.as_str(), "statement" | "execute") || one.error.is_some();
        if let Some(class) = marked(&one.sql).filter(|_| ran) {
            *all.entry((class.to_owned(), one.error.clone().unwrap_or_default())).or_default() += 1;
        }
    }
    all
}

#[test]
fn notifications_are_no_statements() {
    let Some(_turn) = begin("postgresql_notify", &["python3", "setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED postgresql_notify: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let done = server.psql().args(["-c", SETUP]).status().expect("psql");
    assert!(done.success());
    let mut run = Command::new(find("python3").expect("python3"));
    server.tell(&mut run);
    run.args(["-c", PYTHON, &scale().to_string()]).env("OTEL_SERVICE_NAME", "python-client");
    let mut client = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut lines = BufReader::new(client.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let before = server.log().len();
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10", "--max-cpu", "400%"]);
    client.stdin.take().expect("its input").write_all(b"go\n").expect("go");
    let counts = lines.next().expect("what it got").expect("text");
    assert!(client.wait().expect("python3").success());
    let counts: serde_json::Value = serde_json::from_str(&counts).expect("JSON");
    assert_eq!(counts["got"], counts["due"], "notifications were not delivered");
    let notified: u64 = counts["got"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).sum();
    assert!(notified > 100, "{counts}");
    let metrics = peers::settled(&agent);
    let lost = metrics.lost();
    let log = server.log().split_off(before);
    let file = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &SECRETS, "SELECT notified");
    let all = spans::read(&file);
    let expected = truth(&log);
    for side in [true, false] {
        let mut found: BTreeMap<(String, String), u64> = BTreeMap::new();
        let mut others: BTreeMap<&str, u64> = BTreeMap::new();
        for span in all.iter().filter(|span| span.server == side) {
            if expected.keys().any(|(class, _)| *class == span.class) {
                // An unfinished statement has that as its error.
                *found.entry((span.class.clone(), span.error.clone())).or_default() += 1;
            } else {
                *others.entry(&span.class).or_default() += 1;
            }
        }
        say(&format!("server {side}: {found:?}, others {others:?}; lost {lost:?}"));
        assert_eq!(found, expected, "server {side}; lost {lost:?}");
        // Statements psycopg sends on its own; nothing else, named or not.
        let own = ["CONNECT", "BEGIN", "COMMIT", "SYNC"];
        let known = |class: &str| own.contains(&class) || class.starts_with("PREPARE SELECT ");
        assert!(others.keys().all(|class| known(class)), "{others:?}");
    }
    let unpaired = metrics.sum("tracer_attribution_gaps_total", &[("reason", "reply_without_request")]);
    assert!(unpaired < 0.5, "{unpaired} replies without requests");
    durations(&log, &all);
    let count: u64 = expected.values().sum();
    figure("postgresql, beside notifications", &format!("{count} of {count} at both ends, {notified} notifications"));
}

/// Compares medians of each class of simple queries with the server's own.
fn durations(log: &[Logged], all: &[Span]) {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    for class in ["SELECT busy", "SELECT asked", "SELECT long", "COPY SELECT long"] {
        let served = all.iter().filter(|span| span.server && span.class == class && span.error.is_empty());
        let ours = median(served.map(|span| span.duration_s).collect());
        let lines = log.iter().filter(|line| marked(&line.sql) == Some(class));
        let steps = ["statement", "execute"];
        let theirs =
            median(lines.filter(|l| steps.contains(&l.step.as_str())).filter_map(|line| line.duration_s).collect());
        say(&format!("median of {class}: {:.2} ms, logged {:.2} ms", ours * 1e3, theirs * 1e3));
        assert!(scale() < 1.0 || (ours - theirs).abs() <= 1e-3 + 0.02 * theirs, "{class}: {ours} and {theirs}");
    }
}
