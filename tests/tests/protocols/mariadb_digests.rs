//! MariaDB: compares statements, errors and times with its performance_schema, which identifies statements by digest.

use std::collections::BTreeMap;
use std::process::Command;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::mariadb::MariaDb;
use tracer_tests::spans::{self, Span};
use tracer_tests::{begin, figure, find, peers, say, scale, scratch, secrets};

const SECRETS: [&str; 4] = ["planted-password", "planted_user", "planted-literal", "planted-parameter"];

/// Tables that only the statements of one class name, and that class.
const CLASSES: [(&str, &str); 9] = [
    ("t_read", "SELECT t_read"),
    ("t_long", "SELECT t_long"),
    ("t_written", "INSERT t_written"),
    ("t_changed", "UPDATE t_changed"),
    ("t_gone", "DELETE t_gone"),
    ("t_slept", "SELECT t_slept"),
    ("t_twice", "INSERT t_twice"),
    ("t_wrong", "SELECT t_wrong"),
    ("t_burnt", "SELECT t_burnt"),
];

const SETUP: &str = "
CREATE TABLE t_read (id INT PRIMARY KEY, owner VARCHAR(200)); CREATE TABLE t_long (a LONGTEXT);
CREATE TABLE t_written (a LONGTEXT); CREATE TABLE t_changed (id INT PRIMARY KEY, n INT); CREATE TABLE t_gone (id INT);
CREATE TABLE t_slept AS SELECT 1 AS a; CREATE TABLE t_twice (id INT PRIMARY KEY); CREATE TABLE t_wrong (id INT);
CREATE TABLE t_burnt AS SELECT 1 AS a; CREATE TABLE t_first (n INT); CREATE TABLE t_second (n INT);
CREATE TABLE t_prepared (id INT PRIMARY KEY, n INT);
INSERT INTO t_read VALUES (1, 'planted-literal'); INSERT INTO t_long VALUES (REPEAT('planted-literal', 20000));
INSERT INTO t_changed VALUES (1, 1); INSERT INTO t_twice VALUES (1); INSERT INTO t_second VALUES (1);
INSERT INTO t_prepared VALUES (1, 1); TRUNCATE TABLE performance_schema.events_statements_summary_by_digest;
TRUNCATE TABLE performance_schema.events_statements_summary_global_by_event_name;
";

/// Sessions of PyMySQL.
const PYTHON: &str = r#"
import sys, threading, pymysql
from pymysql.constants import CLIENT
port, scale = int(sys.argv[1]), float(sys.argv[2])
def session():
    c = pymysql.connect(host="127.0.0.1", port=port, user="planted_user", password="planted-password",
        database="planted_db", autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS)
    u = c.cursor()
    def ask(*what):
        try:
            u.execute(*what)
            u.fetchall()
            while u.nextset():
                u.fetchall()
        except pymysql.Error:
            pass
    for i in range(int(150 * scale) + 5):
        ask("SELECT owner FROM t_read WHERE id = %s AND owner <> 'planted-literal'", (i,))
        ask("UPDATE t_changed SET n = n + %s WHERE id = 1", (i,))
        ask("INSERT INTO t_twice VALUES (1)")
        ask("SELECT nosuch FROM t_wrong WHERE id = %s", ("planted-parameter",))
        ask("INSERT INTO t_first VALUES (%s); SELECT n FROM t_second", (i,))
    for i in range(int(40 * scale) + 5):
        ask("SELECT a FROM t_long")
        ask("INSERT INTO t_written VALUES (%s)", ("planted-parameter" * (1 + 2000 * (i % 5)),))
        ask("DELETE FROM t_gone WHERE id = %s", (i,))
    for i in range(15):
        ask("SELECT SLEEP(0.02) FROM t_slept")
    return ask
threads = [threading.Thread(target=session) for i in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# Alone: the server's own time ends behind the reply, later where others want its CPU.
ask = session()
for i in range(10):
    ask("SELECT BENCHMARK(100000, SHA1(a)) FROM t_burnt")
"#;

/// A session that prepares on the server.
const PERL: &str = r#"
use DBI;
my ($port, $scale) = @ARGV;
my $c = DBI->connect("DBI:MariaDB:database=planted_db;host=127.0.0.1;port=$port", "planted_user", "planted-password",
    { RaiseError => 1, PrintError => 0, AutoCommit => 1, mariadb_server_prepare => 1 }) or die DBI->errstr;
my $write = $c->prepare("UPDATE t_prepared SET n = ? WHERE id = ?");
$write->execute($_, 1) for 1 .. 200 * $scale + 5;
"#;

/// The server's counts: executions, and errors.
type Counted = (u64, u64);

/// The server's answer, by rows and columns.
fn rows(server: &MariaDb, sql: &str) -> Vec<Vec<String>> {
    let done = outcome(server.client().args(["-N", "-B", "-e", sql]), "mariadb");
    assert_eq!(done.code, Some(0), "{}", done.err);
    done.out.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn counted(row: &[String]) -> (String, Counted) {
    let number = |at: usize| row[at].parse::<u64>().unwrap_or_else(|error| panic!("{error}: {row:?}"));
    (row[0].clone(), (number(1), number(2)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[test]
fn digests_say_the_same() {
    let Some(_turn) = begin("mariadb_digests", &["mariadbd", "mariadb", "python3", "perl"]) else { return };
    let dir = scratch();
    let settings = [
        "--performance-schema=ON",
        "--performance-schema-digests-size=2000",
        "--performance-schema-instrument=statement/%=ON",
        "--performance-schema-consumer-events-statements-current=ON",
        "--performance-schema-consumer-events-statements-history-long=ON",
        "--performance-schema-events-statements-history-long-size=20000",
    ];
    let server = MariaDb::start_with(dir.path(), &settings);
    let done = outcome(server.client().args(["-e", SETUP]), "mariadb");
    assert_eq!(done.code, Some(0), "{}", done.err);
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10", "--max-cpu", "400%"]);
    for (program, script) in [("python3", ["-c", PYTHON]), ("perl", ["-e", PERL])] {
        let mut run = Command::new(find(program).expect(program));
        run.args(script).args([port.clone(), scale().to_string()]).env("OTEL_SERVICE_NAME", "client");
        let done = outcome(&mut run, program);
        assert_eq!(done.code, Some(0), "{program}: {}{}", done.out, done.err);
    }
    let lost = peers::settled(&agent).lost();
    let file = agent.transactions.clone();
    // Before any query to the server about itself.
    secrets::none_shows(agent, dir.path(), &SECRETS, "SELECT t_read");
    let schema = "performance_schema";
    // Each statement's own time: it ends behind the reply, much later if other threads want the CPU by then, so means
    // prove little.
    let times = rows(
        &server,
        &format!(
            "SELECT EVENT_NAME, SUBSTRING(SQL_TEXT, 1, 60), TIMER_WAIT FROM {schema}.events_statements_history_long"
        ),
    );
    let digests = rows(
        &server,
        &format!(
            "SELECT DIGEST_TEXT, COUNT_STAR, SUM_ERRORS FROM {schema}.events_statements_summary_by_digest \
             WHERE SCHEMA_NAME = 'planted_db' AND DIGEST_TEXT IS NOT NULL"
        ),
    );
    let digests: Vec<_> = digests.iter().map(|row| counted(row)).collect();
    let commands = rows(
        &server,
        &format!(
            "SELECT EVENT_NAME, COUNT_STAR, SUM_ERRORS FROM {schema}.events_statements_summary_global_by_event_name \
             WHERE COUNT_STAR > 0"
        ),
    );
    let commands: BTreeMap<_, _> = commands.iter().map(|row| counted(row)).collect();
    let all = spans::read(&file);
    let of_table =
        |table: &str| digests.iter().filter(|(text, _)| text.contains(table)).map(|(_, all)| *all).collect::<Vec<_>>();
    // Which column of `times` identifies the class's statements.
    let check = |class: &str, (count, errors): Counted, (column, word): (usize, &str)| {
        let served: Vec<&Span> = all.iter().filter(|span| span.server && span.class == class).collect();
        let called = all.iter().filter(|span| !span.server && span.class == class).count() as u64;
        let failed = served.iter().filter(|span| !span.error.is_empty()).count() as u64;
        let ours = median(served.iter().map(|span| span.duration_s).collect());
        let theirs: Vec<f64> = times
            .iter()
            .filter(|row| row[column].contains(word) && !row[1].contains("CREATE"))
            .map(|row| row[2].parse::<f64>().unwrap_or_else(|error| panic!("{error}: {row:?}")) / 1e12)
            .collect();
        let (timed, theirs) = (theirs.len(), median(theirs));
        say(&format!(
            "  {class:<32} {count:>4} digested, {errors:>3} failed; {:>4} served, {called:>4} called, {failed:>3} failed; \
             median {:.3} ms, of {timed} timed {:.3} ms",
            served.len(),
            ours * 1e3,
            theirs * 1e3
        ));
        assert!(count > 0, "{class}: nothing was digested");
        let served = served.len() as u64;
        assert_eq!(called, served, "{class}; lost {lost:?}");
        let counted = |ours: u64, theirs: u64| (theirs..=theirs + uncounted(theirs)).contains(&ours);
        assert!(counted(served, count) && counted(failed, errors), "{class}: {served}, {failed}; lost {lost:?}");
        assert!(timed as u64 >= served, "{class}: {timed} of {served} were timed");
        assert!(scale() < 1.0 || (ours - theirs).abs() <= 1e-3 + 0.02 * theirs, "{class}: {ours} and {theirs}");
        served
    };
    let mut compared = 0;
    for (table, class) in CLASSES {
        let of = of_table(table);
        assert_eq!(of.len(), 1, "digests of {table}: {of:?}");
        compared += check(class, of[0], (1, table));
    }
    // Two statements of one query: a digest each, whatever MariaDB calls the second one.
    let of = of_table("t_first");
    assert!(of.len() == 2 && of[0].0.abs_diff(of[1].0) <= uncounted(of[0].0), "digests of two statements: {digests:?}");
    compared += check("INSERT t_first; SELECT t_second", (of[0].0.min(of[1].0), of[0].1 + of[1].1), (1, "t_first"));
    // The server counts prepared statements by command.
    let executed = commands.get("statement/com/Execute").copied().unwrap_or_else(|| panic!("{commands:?}"));
    compared += check("UPDATE t_prepared", executed, (0, "statement/com/Execute"));
    figure("mariadb digests", &format!("{compared} statements at both ends, {} kinds", CLASSES.len() + 2));
}

/// How many statements may be missing in a digest of `counted`. The server increments it without a lock: if two
/// sessions end a statement at once, one can go uncounted, 2 of 60 where statements sleep and wake together. The count
/// is also compared with its history, which has them all.
fn uncounted(counted: u64) -> u64 {
    3 + counted / 20
}
