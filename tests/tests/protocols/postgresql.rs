//! PostgreSQL: compares statements, errors and durations with the server's own log, CPU with the scheduler's, and
//! checks that no secret shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::late_errors::check;
use tracer_tests::metrics::Metrics;
use tracer_tests::postgresql::{Logged, Postgres, programs};
use tracer_tests::spans::{self, Span};
use tracer_tests::statements::{errors as errors_of, marked, settled};
use tracer_tests::{begin, figure, find, say, scale, scratch};

const SERVICE: &str = "postgres";
/// Secrets that must not show anywhere.
const SECRETS: [&str; 8] = [
    "planted-password",
    "planted_user",
    "planted-literal",
    "planted-parameter",
    "planted-copy",
    "planted-notice",
    "planted-channel",
    "plantedstatement",
];

const SETUP: &str = "
CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance int);
CREATE TABLE audit (id serial, what text);
CREATE TABLE bulk (what text);
INSERT INTO accounts SELECT i, 'planted-literal', 0 FROM generate_series(1, 2000) i;
";

/// psql's input: simple queries, several in one, COPY both ways, errors of many kinds.
const PSQL: &[&str] = &[
    "/*=SELECT accounts=*/ SELECT owner FROM accounts WHERE id = 5 AND owner <> 'planted-literal'",
    "/*=BEGIN; UPDATE accounts; INSERT audit; COMMIT=*/ BEGIN; UPDATE accounts SET balance = 1 WHERE id = 1; \
     INSERT INTO audit (what) VALUES ('planted-literal'); COMMIT",
    "/*=BATCH INSERT audit=*/ INSERT INTO audit (what) VALUES ('a'); INSERT INTO audit (what) VALUES ($$planted-literal$$);",
    "/*=SELECT accounts SELECT audit=*/ WITH x AS (SELECT * FROM accounts) SELECT count(*) FROM x, audit a",
    "/*=SELECT SELECT accounts audit=*/ SELECT * FROM (SELECT a.id FROM accounts a JOIN audit b ON a.id = b.id) s",
    "/*=INSERT audit SELECT accounts=*/ INSERT INTO audit (what) SELECT owner FROM accounts LIMIT 3",
    "/*=DELETE audit=*/ DELETE FROM audit WHERE id > 1000000",
    "/*=SELECT accounts=*/ SELECT id, repeat(owner, 40) FROM accounts",
    "/*=SELECT=*/ SELECT 1/0",
    "/*=SELECT nosuch=*/ SELECT * FROM nosuch WHERE a = 'planted-literal'",
    "/*=_OTHER=*/ plantedstatement 'planted-literal'",
    "/*=INSERT accounts=*/ INSERT INTO accounts VALUES (1, 'planted-literal', 0)",
    "/*=SELECT accounts=*/ SELECT 100 / (15 - id) FROM accounts WHERE id < 99 ORDER BY id",
    "/*=DO=*/ DO $$ BEGIN RAISE NOTICE 'planted-notice'; RAISE EXCEPTION 'planted-notice' USING ERRCODE = 'PLNTD'; END $$",
    "/*=DO=*/ DO $$ BEGIN RAISE NOTICE 'planted-notice'; END $$",
    "/*=SET=*/ SET application_name = 'planted-literal'",
    "/*=ALTER ROLE=*/ ALTER ROLE planted_user PASSWORD 'planted-password'",
    "/*=COPY accounts=*/ COPY accounts TO STDOUT",
    "/*=COPY SELECT accounts=*/ COPY (SELECT id FROM accounts) TO STDOUT",
];

/// A session of psycopg (3): prepared statements, a pipeline that fails, COPY, cursors, LISTEN, CANCEL.
const PSYCOPG: &str = r#"
import sys, threading, psycopg
scale = float(sys.argv[1])
c = psycopg.connect(autocommit=True, prepare_threshold=3)
for i in range(int(400 * scale)):
    c.execute("/*=UPDATE accounts=*/ UPDATE accounts SET balance = balance + 1 WHERE id = %s AND owner <> %s", (i % 100 + 1, "planted-parameter"))
    c.execute("/*=SELECT accounts=*/ SELECT balance FROM accounts WHERE id = %s", (i,)).fetchall()
for n in range(10):
    with c.pipeline():
        for i in range(30):
            c.execute("/*=INSERT bulk=*/ INSERT INTO bulk (what) VALUES (%s)", ("planted-parameter" * (1 + 40 * (i % 7)),))
for n in (60, 1000):
    c.cursor().executemany("/*=INSERT bulk=*/ INSERT INTO bulk (what) VALUES (%s)", [("planted-parameter",)] * n)
try:
    with c.pipeline():
        c.execute("/*=INSERT audit=*/ INSERT INTO audit (what) VALUES (%s)", ("planted-parameter",))
        # Fails once the others are sent: an error that comes sooner keeps psycopg from sending them.
        c.execute("/*=INSERT accounts=*/ INSERT INTO accounts VALUES (1 + length(pg_sleep(0.2)::text), %s, 0)", ("planted-parameter",))
        c.execute("/*=DELETE accounts=*/ DELETE FROM accounts WHERE owner = %s", ("planted-parameter",))
        c.execute("/*=DELETE accounts=*/ DELETE FROM accounts WHERE owner = %s", ("planted-parameter",))
except psycopg.Error:
    pass
with c.cursor() as cursor:
    with cursor.copy("/*=COPY audit=*/ COPY audit (what) FROM STDIN") as copy:
        for i in range(20000):
            copy.write_row(("planted-copy",))
    with cursor.copy("/*=COPY audit=*/ COPY audit TO STDOUT") as copy:
        for row in copy:
            pass
with c.transaction():
    with c.cursor("planted_cursor") as cursor:
        cursor.execute("/*=DECLARE SELECT accounts=*/ SELECT * FROM accounts")
        while cursor.fetchmany(700):
            pass
c.execute("LISTEN \"planted-channel\"")
other = psycopg.connect(autocommit=True)
for i in range(20):
    other.execute("/*=SELECT=*/ SELECT pg_notify(%s, 'planted-notice')", ("planted-channel",))
    c.execute("/*=SELECT=*/ SELECT 1").fetchall()
timer = threading.Timer(0.3, c.cancel)
timer.start()
try:
    c.execute("/*=SELECT=*/ SELECT pg_sleep(20)")
except psycopg.errors.QueryCanceled:
    pass
timer.join()
for i in range(15):
    c.execute("/*=SELECT slow=*/ SELECT pg_sleep(0.02), count(*) FROM slow")
for i in range(10):
    try:
        psycopg.connect(password="planted-wrong")
    except psycopg.OperationalError:
        pass
"#;

/// psycopg2: simple queries, and large objects by function calls.
const PSYCOPG2: &str = r#"
import psycopg2
c = psycopg2.connect("")
for i in range(50):
    u = c.cursor()
    u.execute("/*=INSERT audit=*/ INSERT INTO audit (what) VALUES (%s)", ("planted-parameter",))
    c.commit()
lo = c.lobject()
lo.write("planted-parameter")
lo.close()
c.commit()
"#;

/// Burns CPU in one session, and prints the scheduler's figure for it.
const BURN: &str = r#"
import psycopg
c = psycopg.connect(autocommit=True)
pid = c.info.backend_pid
ran = lambda: int(open(f"/proc/{pid}/schedstat").read().split()[0])
c.execute("/*=SELECT=*/ SELECT 1").fetchall()
before = ran()
for i in range(12):
    c.execute("/*=SELECT SELECT burnt=*/ SELECT sum(i * i) FROM (SELECT generate_series(1, 400000)::bigint AS i) g, burnt").fetchall()
c.execute("/*=SELECT=*/ SELECT 1").fetchall()
print(pid, ran() - before)
"#;

fn start(dir: &Path, port: u16) -> Agent {
    Agent::start(dir, &["--port", &port.to_string(), "--nice=-10"])
}

fn python(server: &Postgres, script: &str) -> String {
    let mut run = Command::new(find("python3").expect("python3"));
    server.tell(&mut run);
    run.args(["-c", script, &scale().to_string()]).env("OTEL_SERVICE_NAME", "python-client");
    let done = outcome(&mut run, "python");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    done.out
}

fn pgbench(server: &Postgres, dir: &Path, script: &str, arguments: &[&str]) {
    let file = dir.join("script.sql");
    std::fs::write(&file, script).expect("the script");
    let mut run = server.program("pgbench");
    run.args(["-n", "-c", "4", "-j", "1", "-f"]).arg(&file).args(arguments).current_dir(dir);
    let done = outcome(&mut run, "pgbench");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
}

fn load(server: &Postgres, dir: &Path) {
    for sql in PSQL {
        let mut run = server.psql();
        run.args(["-o", "/dev/null", "-c", sql]);
        let done = outcome(&mut run, "psql");
        assert!(done.code.is_some_and(|code| code <= 1), "{}{}", done.out, done.err);
    }
    python(server, PSYCOPG);
    python(server, PSYCOPG2);
    let transactions = ((250.0 * scale()) as u64).to_string();
    let script = "\\set id random(1, 1000)\n\
        SELECT /*=SELECT accounts=*/ balance FROM accounts WHERE id = :id AND owner <> 'planted-literal';\n\
        UPDATE /*=UPDATE accounts=*/ accounts SET balance = :id WHERE id = :id;\n";
    for mode in ["simple", "extended", "prepared"] {
        pgbench(server, dir, script, &["-M", mode, "-t", &transactions]);
    }
    let script = "\\startpipeline\n\
        SELECT /*=SELECT accounts=*/ owner FROM accounts WHERE id = 1;\n\
        INSERT /*=INSERT audit=*/ INTO audit (what) VALUES ('planted-literal');\n\
        SELECT /*=SELECT audit=*/ count(*) FROM audit WHERE id < 5;\n\
        \\endpipeline\n";
    for mode in ["extended", "prepared"] {
        pgbench(server, dir, script, &["-M", mode, "-t", &transactions]);
    }
}

/// Requests the server ran to their end or to an error, by class; and errors by SQLSTATE.
fn truth(log: &[Logged]) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let (mut classes, mut errors) = (BTreeMap::new(), BTreeMap::new());
    for one in log {
        let ran = matches!(one.step.as_str(), "statement" | "execute");
        if let Some(class) = marked(&one.sql).filter(|_| ran || one.error.is_some()) {
            *classes.entry(class.to_owned()).or_default() += 1;
        }
        if one.step == "connection" {
            *classes.entry("CONNECT".to_owned()).or_default() += 1;
        }
        if let Some(error) = &one.error {
            *errors.entry(error.clone()).or_default() += 1;
        }
    }
    (classes, errors)
}

/// Spans of one side by class, as far as the server logs them: without those that only begin or end something.
fn counted<'a>(spans: impl Iterator<Item = &'a Span>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for span in spans {
        *counts.entry(span.class.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn statements_errors_and_durations_are_what_the_server_logs() {
    let Some(_turn) = begin("postgresql", &["python3", "setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED postgresql: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let mut setup = server.psql();
    let done = outcome(
        setup.args(["-c", SETUP, "-c", "CREATE TABLE slow (a int)", "-c", "CREATE TABLE burnt AS SELECT 1 AS a"]),
        "psql",
    );
    assert_eq!(done.code, Some(0), "{}", done.err);
    let before = server.log().len();

    let agent = start(dir.path(), server.address.port());
    load(&server, dir.path());
    let burnt = python(&server, BURN);
    let metrics = settled(&agent, "postgresql");
    let log = server.log().split_off(before);
    let lost = metrics.lost();
    shown_nowhere(&agent, &metrics);
    let spans = spans::read(&stopped(agent, dir.path()));

    let (mut expected, mut errors) = truth(&log);
    // The server skipped these after the pipeline's second statement failed, and does not log them.
    *expected.entry("DELETE accounts".into()).or_default() += 2;
    // Refused connections are not statements in the log, but spans.
    *expected.entry("CONNECT".into()).or_default() += errors.get("28P01").copied().unwrap_or(0);
    // Statements without a mark: client libraries send them on their own.
    let marks: BTreeSet<String> = expected.keys().cloned().collect();
    let ours = |class: &str| class != "INSERT bulk" && marks.contains(class);
    let served = counted(spans.iter().filter(|span| span.server));
    let called = counted(spans.iter().filter(|span| !span.server));
    for (class, count) in &expected {
        let of = |counts: &BTreeMap<String, u64>| counts.get(class).copied().unwrap_or(0);
        say(&format!("  {class:<50} {count:>7} {:>7} {:>7}", of(&served), of(&called)));
    }
    // A process that ends before the agent has identified it has no name: sometimes a short session.
    let unnamed = spans.iter().filter(|span| span.server && span.service != SERVICE).count();
    let all = spans.iter().filter(|span| span.server).count();
    say(&format!("{unnamed} of {all} served by processes that were gone before they were asked for their name"));
    assert!(unnamed * 100 < all, "{unnamed} of {all} without the name of their service");
    let rest: Vec<_> = served.iter().filter(|(class, _)| !ours(class)).collect();
    say(&format!("others served: {rest:?}; lost: {lost:?}"));
    let right = |counts: &BTreeMap<String, u64>| -> u64 {
        expected.iter().map(|(name, count)| counts.get(name).copied().unwrap_or(0).min(*count)).sum()
    };
    let wanted: u64 = expected.values().sum();
    figure("postgresql statements", &format!("{} served and {} called of {wanted}", right(&served), right(&called)));
    let bulk = expected.remove("INSERT bulk").expect("pipelines longer than one record");
    for (side, counts) in [("served", &served), ("called", &called)] {
        let of = |class: &str| counts.get(class).copied().unwrap_or(0);
        say(&format!(
            "{side}: of {bulk} in long pipelines {} by name, {} by their answers",
            of("INSERT bulk"),
            of("_UNNAMED")
        ));
        assert_eq!((of("INSERT bulk"), of("_UNNAMED")), (bulk, 0), "{side}; lost: {lost:?}");
        let found: BTreeMap<_, _> =
            counts.iter().filter(|(class, _)| ours(class)).map(|(a, b)| (a.clone(), *b)).collect();
        assert_eq!(found, expected, "{side}; lost: {lost:?}");
    }

    // Kinds of errors.
    let found = errors_of(&metrics, "postgresql");
    let own = errors.remove("PLNTD").expect("a function's own kind");
    errors.insert("_OTHER".into(), own);
    errors.insert("pipeline_aborted".into(), 2);
    say(&format!("errors: {found:?}"));
    assert_eq!(found, errors, "lost: {lost:?}");

    durations(&log, &spans);
    cpu(&burnt, &spans);
}

/// Compares durations of each statement with the server's own, for simple queries and executions that did something.
fn durations(log: &[Logged], spans: &[Span]) {
    let mut differences = Vec::new();
    let mut by_class: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut ends: BTreeMap<(u32, &str), Vec<&Span>> = BTreeMap::new();
    for span in spans.iter().filter(|span| span.server && span.outcome == "complete") {
        ends.entry((span.pid, span.class.as_str())).or_default().push(span);
    }
    let mut lines: BTreeMap<(u32, &str), Vec<&Logged>> = BTreeMap::new();
    // A span includes parsing and binding, which the log counts in lines of their own: only simple queries have one
    // line.
    for one in log.iter().filter(|one| one.step == "statement") {
        if let Some(class) = marked(&one.sql) {
            lines.entry((one.pid, class)).or_default().push(one);
        }
    }
    for (key, lines) in &lines {
        let spans = ends.get(key).map_or(&[][..], Vec::as_slice);
        if spans.len() != lines.len() {
            // Some of them failed, or were of the other kind.
            continue;
        }
        for (line, span) in lines.iter().zip(spans) {
            let truth = line.duration_s.unwrap_or_default();
            let difference = (span.duration_s - truth).abs() - truth * 0.02;
            differences.push(difference * 1e3);
            by_class.entry(key.1).or_default().push(difference * 1e3);
        }
    }
    differences.sort_by(f64::total_cmp);
    let at = |share: f64| differences.get((differences.len() as f64 * share) as usize).copied().unwrap_or(f64::MAX);
    say(&format!(
        "durations of {} statements: |difference| less 2 %: median {:.3} ms, 99 % below {:.3} ms, most {:.3} ms",
        differences.len(),
        at(0.5),
        at(0.99),
        differences.last().copied().unwrap_or_default()
    ));
    figure("postgresql durations", &format!("{:.3} ms off in the median", at(0.5)));
    assert!(differences.len() > 500, "{by_class:?}");
    if scale() >= 1.0 {
        assert!(at(0.5) <= 1.0, "{by_class:?}");
    }
}

/// Compares a class's CPU with the scheduler's figure for its process.
fn cpu(burnt: &str, spans: &[Span]) {
    let mut words = burnt.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
    let (pid, ran) = (words.next().expect("a pid") as u32, words.next().expect("CPU") as f64 / 1e9);
    let of = |class: &str| -> f64 {
        spans.iter().filter(|span| span.server && span.pid == pid && span.class == class).map(|span| span.cpu_s).sum()
    };
    let found = of("SELECT SELECT burnt");
    say(&format!("CPU of a session: {ran:.4} s used, {found:.4} s found for the class that burnt it"));
    if scale() >= 1.0 {
        assert!((found - ran).abs() < ran * 0.02, "{found} of {ran}");
    }
}

/// Searches the running agent's output for secrets.
fn shown_nowhere(agent: &Agent, metrics: &Metrics) {
    let targets = [
        "/",
        "/metrics",
        "/service?name=postgres",
        "/api/v1/services",
        "/api/v1/classes",
        "/api/v1/health",
        "/api/v1/transactions?limit=1000",
        "/api/v1/transactions?status=error&limit=1000",
    ];
    for target in targets {
        no_secret(target, &agent.text(target));
    }
    let one = agent.json("/api/v1/transactions?status=error&service=postgres&limit=1");
    let id = one["transactions"][0]["trace_id"].as_str().expect("a failed statement").to_owned();
    for target in [format!("/api/v1/transactions/{id}"), format!("/transaction?id={id}")] {
        no_secret(&target, &agent.text(&target));
    }
    assert!(metrics.sum("tracer_requests_total", &[("protocol", "postgresql")]) > 0.0);
}

fn no_secret(place: &str, text: &str) {
    let lower = text.to_lowercase();
    for secret in SECRETS {
        assert!(!lower.contains(secret), "{secret} shows in {place}");
    }
}

/// Ends the agent and searches its files for secrets; returns the file with its spans.
fn stopped(agent: Agent, dir: &Path) -> std::path::PathBuf {
    let spans = agent.transactions.clone();
    no_secret("its output", &agent.stop().output);
    for entry in std::fs::read_dir(dir).expect("the directory").filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with("agent") {
            let text = std::fs::read(entry.path()).expect("a file of the agent's");
            no_secret(&entry.file_name().to_string_lossy(), &String::from_utf8_lossy(&text));
        }
    }
    spans
}

#[test]
fn connections_are_joined_in_their_middle_over_a_unix_socket() {
    let Some(_turn) = begin("postgresql_midstream", &["python3", "setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED postgresql_midstream: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let script = r#"
import sys, psycopg
c = psycopg.connect(autocommit=True, host=sys.argv[2], prepare_threshold=0)
c.execute("CREATE TABLE midstream_old (a int)")
c.execute("CREATE TABLE midstream_new (a int)")
for i in range(5):
    c.execute("INSERT INTO midstream_old VALUES (%s)", (i,))
print("ready", flush=True)
sys.stdin.readline()
for i in range(30):
    c.execute("INSERT INTO midstream_old VALUES (%s)", (i,))
    c.execute("INSERT INTO midstream_new VALUES (%s)", (i,))
    c.cursor().execute("SELECT * FROM midstream_new", prepare=False)
"#;
    let mut run = Command::new(find("python3").expect("python3"));
    server.tell(&mut run);
    run.args(["-c", script, "-"])
        .arg(&server.data)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = run.spawn().expect("python");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().expect("output")), &mut line)
        .expect("a line");
    assert_eq!(line, "ready\n");
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    std::io::Write::write_all(&mut child.stdin.take().expect("input"), b"go\n").expect("go");
    assert!(child.wait().expect("python").success());
    settled(&agent, "postgresql");
    let spans = spans::read(&stopped(agent, dir.path()));
    for server in [true, false] {
        let of = |class: &str| {
            let ours = |span: &&Span| span.server == server && span.class == class && span.port == 0;
            spans.iter().filter(ours).count()
        };
        // Statements prepared earlier count without a name; the first operation may lack any sign of a request.
        say(&format!(
            "server {server}: {} unnamed, {} and {} named",
            of("_UNNAMED"),
            of("INSERT midstream_new"),
            of("SELECT midstream_new")
        ));
        assert_eq!(of("INSERT midstream_old"), 0, "prepared before the agent");
        assert_eq!(of("_UNNAMED"), 30);
        assert_eq!(of("INSERT midstream_new"), 30);
        assert_eq!(of("SELECT midstream_new"), 30);
    }
}

/// Statements that fail in their last row, by the number of rows, between others that succeed: the client's count by class
/// and error. A long message does not fit into what is captured of an operation's end.
const LATE: &str = r#"
import sys, psycopg
from collections import Counter
c = psycopg.connect(autocommit=True)
c.execute("""CREATE FUNCTION picky(i int, last int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    IF i = last THEN RAISE EXCEPTION 'a message that is longer than what is captured of the end of an operation: planted-literal'
        USING ERRCODE = '22023'; END IF;
    RETURN i; END $$""")
kinds = {"short": "1 / (%d - i)", "long": "picky(i, %d)", "fine": "i + 0 * %d"}
counts = Counter()
for n, rows in {10: "ten", 100: "hundred", 1000: "thousand", 20000: "many"}.items():
    for kind, value in kinds.items():
        c.execute("CREATE VIEW %s_%s AS SELECT i, repeat('x', 60) AS filler, %s AS value FROM generate_series(1, %d) i"
            % (kind, rows, value % n, n))
    for i in range(6):
        for kind in kinds:
            for prepare in (False, True):
                error = ""
                try:
                    c.execute("SELECT * FROM %s_%s" % (kind, rows), prepare=prepare).fetchall()
                except psycopg.Error as failed:
                    error = failed.sqlstate
                counts["SELECT %s_%s" % (kind, rows), error] += 1
for (name, error), count in counts.items():
    print(name, error or "-", count, sep="\t")
"#;

#[test]
fn a_statement_that_fails_behind_many_rows_is_no_success() {
    let Some(_turn) = begin("postgresql_late", &["python3", "setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED postgresql_late: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let before = server.log().len();
    let agent = start(dir.path(), server.address.port());
    let mut run = Command::new(find("python3").expect("python3"));
    run.args(["-c", LATE]);
    server.tell(&mut run);
    let done = outcome(&mut run, "psycopg");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let metrics = settled(&agent, "postgresql");
    let logged = server.log().split_off(before).iter().filter(|one| one.error.is_some()).count();
    let told: usize = done.out.lines().filter(|line| !line.contains("\t-\t")).count() * 12;
    assert_eq!(logged, told, "the server's log and the client agree");
    let spans = spans::read(&stopped(agent, dir.path()));
    let ends = check("postgresql", &done.out, &spans, &format!("{:?}", metrics.lost()));
    for (class, ends) in &ends {
        assert_eq!(ends.map(|ends| ends.unknown), [0; 2], "{class}: what was sent before the end was captured");
    }
}
