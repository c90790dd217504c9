//! MariaDB: compares statements with the server's general log, errors with what its clients received, durations with
//! its slow query log, CPU with the scheduler's, and checks that no secret shows.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::late_errors::check;
use tracer_tests::mariadb::MariaDb;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::statements::{errors as errors_of, marked, settled};
use tracer_tests::{begin, figure, find, say, scale, scratch, wait};

const SERVICE: &str = "mariadbd";
/// Secrets that must not show anywhere.
const SECRETS: [&str; 6] =
    ["planted-password", "planted_user", "planted-literal", "planted-parameter", "planted-file", "plantedstatement"];

/// The client's input, one query each; [`CLIENT_ERRORS`] has the kinds of their errors.
const CLIENT: &[&str] = &[
    "/*=CREATE TABLE accounts=*/ CREATE TABLE accounts (id INT PRIMARY KEY, owner VARCHAR(200), balance INT)",
    "/*=CREATE TABLE audit=*/ CREATE TABLE audit (id INT AUTO_INCREMENT PRIMARY KEY, what LONGTEXT)",
    "/*=INSERT accounts SELECT SELECT=*/ INSERT INTO accounts SELECT seq, 'planted-literal', 0 FROM (SELECT 1 AS seq) s",
    "/*=SELECT accounts=*/ SELECT owner FROM `accounts` WHERE id = 1 AND owner <> \"planted-literal\"",
    "/*=BEGIN; UPDATE accounts; INSERT audit; COMMIT=*/ BEGIN; UPDATE accounts SET balance = 1; INSERT INTO audit (what) \
     VALUES ('planted-literal'); COMMIT",
    "/*=BATCH SELECT accounts=*/ SELECT * FROM accounts; SELECT id FROM accounts WHERE owner = \"planted-literal\"",
    "/*=INSERT accounts=*/ INSERT INTO accounts VALUES (1, 'planted-literal', 0)",
    "/*=SELECT nosuch=*/ SELECT * FROM nosuch WHERE a = 'planted-literal'",
    "/*=_OTHER=*/ plantedstatement 'planted-literal'",
    "/*=DO=*/ DO LENGTH('planted-literal')",
    "/*=CREATE USER=*/ CREATE USER bob IDENTIFIED BY 'planted-password'",
    "/*=SHOW=*/ SHOW TABLES",
    "/*=DELETE audit accounts=*/ DELETE audit FROM audit JOIN accounts ON audit.id = accounts.id WHERE audit.id > 1000",
];
const CLIENT_ERRORS: [(&str, u64); 3] = [("1062", 1), ("1146", 1), ("1064", 1)];

/// A session of PyMySQL: text, several statements in one, a file, long results, errors, CPU.
const PYMYSQL: &str = r#"
import sys, pymysql
from pymysql.constants import CLIENT
port, scale, server, file = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
def connect(**more):
    return pymysql.connect(host="127.0.0.1", port=port, user="planted_user", password="planted-password",
        database="planted_db", autocommit=True, local_infile=True, client_flag=CLIENT.MULTI_STATEMENTS, **more)
c = connect()
u = c.cursor()
for i in range(int(500 * scale)):
    u.execute("/*=REPLACE accounts=*/ REPLACE INTO accounts VALUES (%s, %s, 0)", (i + 2, "planted-parameter"))
    u.execute("/*=SELECT accounts=*/ SELECT balance FROM accounts WHERE id = %s", (i,))
    u.fetchall()
for i in range(40):
    u.execute("/*=SELECT accounts=*/ SELECT a.id, REPEAT(a.owner, 8) FROM accounts a")
    u.fetchall()
for i in range(30):
    u.execute("/*=UPDATE accounts; SELECT accounts=*/ UPDATE accounts SET balance = balance + 1 WHERE id = 5; SELECT * FROM accounts WHERE id = 5")
    while u.nextset():
        u.fetchall()
for i in range(20):
    u.execute("/*=INSERT audit=*/ INSERT INTO audit (what) VALUES (%s)", ("planted-parameter" * 20000,))
with open(file, "w") as f:
    f.writelines(f"{i}\tplanted-file\n" for i in range(10000, 30000))
u.execute("/*=LOAD=*/ LOAD DATA LOCAL INFILE %s INTO TABLE audit", (file,))
for i in range(10):
    c.ping()
c.select_db("planted_db")
for i in range(15):
    u.execute("/*=SELECT slow=*/ SELECT SLEEP(0.02) FROM slow")
    u.fetchall()
for i in range(7):
    try:
        u.execute("/*=SELECT accounts=*/ SELECT nosuch FROM accounts WHERE owner = %s", ("planted-parameter",))
    except pymysql.Error:
        pass
for i in range(5):
    try:
        connect().cursor().execute("/*=CALL nosuch=*/ CALL nosuch(%s)", ("planted-parameter",))
    except pymysql.Error:
        pass
for i in range(6):
    try:
        pymysql.connect(host="127.0.0.1", port=port, user="planted_user", password="planted-wrong")
    except pymysql.Error:
        pass
u.execute("SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()")
tid = u.fetchone()[0]
ran = lambda: int(open(f"/proc/{server}/task/{tid}/schedstat").read().split()[0])
before = ran()
for i in range(10):
    u.execute("/*=SELECT burnt=*/ SELECT BENCHMARK(1500000, SHA1(a)) FROM burnt")
    u.fetchall()
print(ran() - before)
"#;
const PYMYSQL_ERRORS: [(&str, u64); 3] = [("1054", 7), ("1305", 5), ("1045", 6)];

/// A session of DBD::MariaDB that prepares on the server.
const PERL: &str = r#"
use DBI;
my ($port, $scale) = @ARGV;
my $c = DBI->connect("DBI:MariaDB:database=planted_db;host=127.0.0.1;port=$port", "planted_user", "planted-password",
    { RaiseError => 0, PrintError => 0, AutoCommit => 1, mariadb_server_prepare => 1 }) or die DBI->errstr;
my $read = $c->prepare("/*=SELECT accounts=*/ SELECT owner, balance FROM accounts WHERE id = ?");
my $write = $c->prepare("/*=UPDATE accounts=*/ UPDATE accounts SET balance = ?, owner = ? WHERE id = ?");
my $twice = $c->prepare("/*=INSERT accounts=*/ INSERT INTO accounts VALUES (?, ?, 0)");
for my $i (1 .. 400 * $scale) {
    $read->execute($i); 1 while $read->fetchrow_arrayref;
    $write->execute($i, "planted-parameter" x (1 + $i % 9), $i);
}
$twice->execute(1, "planted-parameter") for 1 .. 8;
for my $i (1 .. 50) {
    my $once = $c->prepare("/*=SELECT accounts=*/ SELECT id, owner FROM accounts WHERE owner <> ? LIMIT 300");
    $once->execute("planted-literal"); 1 while $once->fetchrow_arrayref;
    $once->finish;
}
"#;
const PERL_ERRORS: [(&str, u64); 1] = [("1062", 8)];

fn python(server: &MariaDb, dir: &Path) -> f64 {
    let mut run = Command::new(find("python3").expect("python3"));
    run.args(["-c", PYMYSQL, &server.address.port().to_string(), &scale().to_string()]);
    run.arg(server.process.pid().to_string()).arg(dir.join("file")).env("OTEL_SERVICE_NAME", "python-client");
    let done = outcome(&mut run, "PyMySQL");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    done.out.trim().parse::<f64>().expect("CPU") / 1e9
}

fn load(server: &MariaDb, dir: &Path) -> f64 {
    for sql in CLIENT {
        let done = outcome(server.client().args(["--delimiter=//", "-e", sql]), "mariadb");
        assert!(done.code.is_some_and(|code| code <= 1), "{}{}", done.out, done.err);
    }
    let burnt = python(server, dir);
    let mut perl = Command::new(find("perl").expect("perl"));
    perl.args(["-e", PERL, &server.address.port().to_string(), &scale().to_string()]);
    let done = outcome(&mut perl, "DBD::MariaDB");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    // Compressed sessions are not read.
    let done =
        outcome(server.client().args(["--compress", "-e", "/*=SELECT unseen=*/ SELECT * FROM unseen"]), "mariadb");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    burnt
}

#[test]
fn statements_errors_and_durations_are_what_the_server_says() {
    let Some(_turn) = begin("mariadb", &["mariadbd", "mariadb", "python3", "perl"]) else { return };
    let dir = scratch();
    let server = MariaDb::start(dir.path());
    let setup = "CREATE TABLE slow (a INT); INSERT INTO slow VALUES (1); CREATE TABLE burnt AS SELECT 1 AS a; CREATE TABLE unseen (a INT)";
    let done = outcome(server.client().args(["-e", setup]), "mariadb");
    assert_eq!(done.code, Some(0), "{}", done.err);
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);
    let burnt = load(&server, dir.path());
    let metrics = settled(&agent, "mariadb");
    let lost = metrics.lost();
    for target in ["/", "/metrics", "/service?name=mariadbd", "/api/v1/classes", "/api/v1/transactions?limit=1000"] {
        no_secret(target, &agent.text(target));
    }
    let path = agent.transactions.clone();
    no_secret("its output", &agent.stop().output);
    no_secret("the file of spans", &std::fs::read_to_string(&path).expect("spans"));
    let spans = spans::read(&path);

    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for class in server.sent().iter().filter_map(|sql| marked(sql)) {
        *expected.entry(class.to_owned()).or_default() += 1;
    }
    assert_eq!(expected.remove("SELECT unseen"), Some(1));
    let sides = [true, false].map(|side| {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.server == side && (!side || span.service == SERVICE)) {
            *counts.entry(span.class.clone()).or_default() += 1;
        }
        counts
    });
    for (class, count) in &expected {
        let of = |side: usize| sides[side].get(class).copied().unwrap_or(0);
        say(&format!("  {class:<50} {count:>7} {:>7} {:>7}", of(0), of(1)));
    }
    let others: Vec<_> = sides[0].iter().filter(|(class, _)| !expected.contains_key(*class)).collect();
    say(&format!("others served: {others:?}; lost: {lost:?}"));
    let wanted: u64 = expected.values().sum();
    for (which, counts) in [("served", &sides[0]), ("called", &sides[1])] {
        let found: BTreeMap<_, _> =
            counts.iter().filter(|(class, _)| expected.contains_key(*class)).map(|(a, b)| (a.clone(), *b)).collect();
        assert_eq!(found, expected, "{which}; lost: {lost:?}");
        assert!(!counts.contains_key("SELECT unseen"), "{which}: what is compressed cannot be read");
    }
    figure("mariadb statements", &format!("{wanted} served and called of {wanted}"));

    let mut errors: BTreeMap<String, u64> = BTreeMap::new();
    for (code, count) in CLIENT_ERRORS.iter().chain(&PYMYSQL_ERRORS).chain(&PERL_ERRORS) {
        *errors.entry((*code).to_owned()).or_default() += count;
    }
    let found = errors_of(&metrics, "mariadb");
    say(&format!("errors: {found:?}"));
    assert_eq!(found, errors, "lost: {lost:?}");

    durations(&server.times(), &spans);
    let cpu: f64 = spans.iter().filter(|span| span.server && span.class == "SELECT burnt").map(|span| span.cpu_s).sum();
    say(&format!("CPU of a session: {burnt:.4} s used, {cpu:.4} s found for the class that burnt it"));
    if scale() >= 1.0 {
        assert!((cpu - burnt).abs() < burnt * 0.02, "{cpu} of {burnt}");
    }
}

/// Compares medians of each class with the server's own.
fn durations(times: &[(String, f64)], spans: &[Span]) {
    let mut truth: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (sql, seconds) in times {
        // The server logs each of several statements in one query by itself.
        if let Some(class) = marked(sql).filter(|class| !class.contains(';') && !class.contains("BATCH")) {
            truth.entry(class).or_default().push(*seconds);
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let mut compared = 0;
    for (class, values) in truth.iter_mut().filter(|(_, values)| values.len() >= 10) {
        let mut own: Vec<f64> =
            spans.iter().filter(|span| span.server && span.class == *class).map(|span| span.duration_s).collect();
        if own.len() != values.len() {
            continue;
        }
        let (theirs, ours) = (median(values), median(&mut own));
        say(&format!("  median of {class:<30} {:.3} ms, server's own {:.3} ms", ours * 1e3, theirs * 1e3));
        compared += 1;
        if scale() >= 1.0 {
            assert!((ours - theirs).abs() <= 1e-3 + theirs * 0.02, "{class}: {ours} and {theirs}");
        }
    }
    assert!(compared >= 4, "{truth:?}");
}

fn no_secret(place: &str, text: &str) {
    let lower = text.to_lowercase();
    for secret in SECRETS {
        assert!(!lower.contains(secret), "{secret} shows in {place}");
    }
}

/// What Debian 13's server calls itself in its greeting.
const DEBIAN_13: &str = "--version=11.8.9-MariaDB-0+deb13u1 from Debian";

/// Sessions inside TLS: one that begins before the agent and sends thirty statements for each line it reads, until that is
/// `go`; then thirty of its own, and twelve sessions.
const ENCRYPTED: &str = r#"
import ssl, sys, pymysql
port, rounds = int(sys.argv[1]), int(sys.argv[2])
def connect():
    return pymysql.connect(host="127.0.0.1", port=port, user="planted_user", password="planted-password",
        database="planted_db", autocommit=True, ssl={"ca": sys.argv[3], "check_hostname": False})
def run(c, table):
    u = c.cursor()
    for i in range(rounds):
        u.execute("/*=SELECT %s=*/ SELECT a FROM %s WHERE a <> 'planted-literal'" % (table, table))
        u.fetchall()
        try:
            u.execute("/*=SELECT nosuch=*/ SELECT a FROM nosuch")
        except pymysql.Error:
            pass
old = connect()
print("ready", flush=True)
u = old.cursor()
while sys.stdin.readline() == "early\n":
    u.execute("/*=SELECT early=*/ SELECT a FROM early")
    u.fetchall()
    print("sent", flush=True)
for i in range(30):
    u.execute("/*=SELECT kept=*/ SELECT a FROM kept")
    u.fetchall()
for i in range(12):
    c = connect()
    run(c, "encrypted")
    c.close()
c = connect().cursor()
c.execute("SHOW STATUS LIKE 'Ssl_cipher'")
print(c.fetchone()[1])
"#;

/// Spans of one side by class and error.
fn by_class(spans: &[Span], server: bool) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for span in spans.iter().filter(|span| span.server == server) {
        *counts.entry((span.class.clone(), span.error.clone())).or_default() += 1;
    }
    counts
}

/// A statement without an error, as [`by_class`] has it.
fn statement(class: &str) -> (String, String) {
    (class.to_owned(), String::new())
}

#[test]
fn a_server_with_words_in_its_version_is_seen_in_the_clear_and_inside_tls() {
    let needed = ["mariadbd", "mariadb", "python3", "openssl"];
    let Some(_turn) = begin("mariadb_tls", &needed) else { return };
    let dir = scratch();
    let (certificate, key) = tracer_tests::tls::certificate(dir.path());
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("permissions");
    let tls = [format!("--ssl-cert={certificate}"), format!("--ssl-key={key}")];
    let server = MariaDb::start_with(dir.path(), &[DEBIAN_13, &tls[0], &tls[1]]);
    let setup =
        ["plain", "early", "kept", "encrypted", "by_client"].map(|table| format!("CREATE TABLE {table} (a TEXT);"));
    let done = outcome(server.client().args(["-e", &setup.concat()]), "mariadb");
    assert_eq!(done.code, Some(0), "{}", done.err);
    let rounds = 5;
    let mut run = Command::new(find("python3").expect("python3"));
    run.args(["-c", ENCRYPTED, &server.address.port().to_string(), &rounds.to_string(), &certificate]);
    let mut python = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
    let mut input = python.stdin.take().expect("input");
    let mut output = BufReader::new(python.stdout.take().expect("output")).lines();
    let mut line = || output.next().expect("a line").expect("text");
    assert_eq!(line(), "ready");
    let agent = Agent::start(dir.path(), &["--port", &server.address.port().to_string(), "--nice=-10"]);
    let run_by_client = |table: &str, arguments: &[&str]| {
        let sql = format!("/*=SELECT {table}=*/ SELECT a FROM {table}");
        for _ in 0..6 {
            let done = outcome(server.client().args(arguments).args(["-e", &sql]), "mariadb");
            assert_eq!(done.code, Some(0), "{}", done.err);
        }
    };
    run_by_client("plain", &[]);
    run_by_client("by_client", &["--ssl"]);
    // What a connection carries before its text is known to be its own is not seen; from then on, everything is.
    let mut tail = Tail::new(&agent.transactions);
    let early = wait("a statement of the connection from before", Duration::from_secs(30), || {
        input.write_all(b"early\n").expect("early");
        assert_eq!(line(), "sent");
        std::thread::sleep(Duration::from_millis(100));
        let spans = tail.read();
        let seen = [true, false].map(|side| by_class(spans, side).get(&statement("SELECT early")).copied());
        if let [Some(served), Some(called)] = seen { Some([served, called]) } else { None }
    });
    input.write_all(b"go\n").expect("go");
    let cipher = line();
    assert!(cipher.len() > 5, "the sessions are not encrypted: {cipher:?}");
    assert!(python.wait().expect("python").success());
    let metrics = settled(&agent, "mariadb");
    let path = agent.transactions.clone();
    no_secret("its output", &agent.stop().output);
    let text = std::fs::read_to_string(&path).expect("spans");
    no_secret("the file of spans", &text);
    let with_database = text.lines().filter(|line| line.contains(r#""db.namespace":"planted_db""#)).count();
    assert!(with_database as u64 >= 2 * 12 * 2 * rounds, "spans of connections whose login was seen name its database");
    let spans = spans::read(&path);
    let mut expected: BTreeMap<(String, String), u64> = BTreeMap::new();
    for class in server.sent().iter().filter_map(|sql| marked(sql)) {
        let error = if class == "SELECT nosuch" { "1146" } else { "" };
        *expected.entry((class.to_owned(), error.to_owned())).or_default() += 1;
    }
    let sent_early = expected.remove(&statement("SELECT early")).expect("statements of the connection from before");
    assert_eq!(expected.values().sum::<u64>(), 2 * 12 * rounds + 12 + 30);
    let [served, called] = [true, false].map(|side| by_class(&spans, side));
    let lost = metrics.lost();
    say(&format!("expected {expected:?}\nserved {served:?}\ncalled {called:?}; lost {lost:?}"));
    for (class, count) in &expected {
        let found = [&served, &called].map(|side| side.get(class).copied().unwrap_or(0));
        assert_eq!(found, [*count; 2], "{class:?}; lost: {lost:?}");
    }
    let found = [&served, &called].map(|side| side[&statement("SELECT early")]);
    assert!(found.iter().all(|found| *found <= sent_early), "{found:?} of {sent_early}");
    say(&format!("connected before the agent: {early:?} statements first seen, {found:?} of {sent_early} in all"));
    // What a greeting showed is remembered inside TLS.
    let named = |class: &str| {
        let mut names: Vec<&str> =
            spans.iter().filter(|span| span.class == class).map(|span| span.protocol.as_str()).collect();
        names.dedup();
        names
    };
    for class in ["SELECT plain", "SELECT encrypted", "SELECT by_client"] {
        assert_eq!(named(class), ["mariadb"], "{class}");
    }
    assert_eq!(named("SELECT kept"), ["mysql"], "joined in its middle");
    assert_eq!([&served, &called].map(|side| side.get(&statement("CONNECT")).copied()), [Some(12 + 12 + 1); 2]);
    figure("mariadb inside TLS", &format!("{} statements at both ends", expected.values().sum::<u64>()));
}

/// Statements that fail in their last row, by the number of rows, between others that succeed: the client's count by class
/// and error. A long message does not fit into what is captured of an operation's end.
const LATE: &str = r#"
import sys, pymysql
from collections import Counter
c = pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="planted_user", password="planted-password",
    database="planted_db", autocommit=True)
u = c.cursor()
u.execute("""CREATE FUNCTION picky(i INT, last INT) RETURNS INT DETERMINISTIC BEGIN
    IF i = last THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 4567, MESSAGE_TEXT =
        'a message that is longer than what is captured of the end of an operation: planted-literal'; END IF;
    RETURN i; END""")
kinds = {
    "short": "(SELECT s.seq UNION SELECT IF(s.seq = %d, 0, s.seq))",
    "long": "picky(s.seq, %d)",
    "fine": "s.seq + 0 * %d",
}
counts = Counter()
for n, rows in {10: "ten", 100: "hundred", 1000: "thousand", 20000: "many"}.items():
    for kind, value in kinds.items():
        u.execute("CREATE VIEW %s_%s AS SELECT seq, REPEAT('x', 60) AS filler, %s AS value FROM seq_1_to_%d s"
            % (kind, rows, value % n, n))
    for i in range(6):
        for kind in kinds:
            error = ""
            try:
                u.execute("SELECT * FROM %s_%s" % (kind, rows))
                u.fetchall()
            except pymysql.Error as failed:
                error = str(failed.args[0])
            counts["SELECT %s_%s" % (kind, rows), error] += 1
for (name, error), count in counts.items():
    print(name, error or "-", count, sep="\t")
"#;

#[test]
fn a_statement_that_fails_behind_many_rows_is_no_success() {
    let Some(_turn) = begin("mariadb_late", &["mariadbd", "mariadb", "python3"]) else { return };
    let dir = scratch();
    let server = MariaDb::start(dir.path());
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);
    let done = outcome(Command::new(find("python3").expect("python3")).args(["-c", LATE, &port]), "PyMySQL");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let metrics = settled(&agent, "mariadb");
    let path = agent.transactions.clone();
    no_secret("its output", &agent.stop().output);
    let ends = check("mariadb", &done.out, &spans::read(&path), &format!("{:?}", metrics.lost()));
    for (class, ends) in ends.iter().filter(|(class, _)| class.contains("short")) {
        assert_eq!(ends.map(|ends| ends.named), [6; 2], "{class}: an error of few bytes is captured");
    }
}
