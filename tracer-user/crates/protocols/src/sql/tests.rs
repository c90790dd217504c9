//! Statements and their expected summaries.

use proptest::prelude::*;

use super::*;

fn pg(sql: &str) -> String {
    let Summary { operation, text } = summarize(sql.as_bytes(), false, Dialect::PostgreSql);
    format!("{operation}: {text}")
}

fn my(sql: &str) -> String {
    let Summary { operation, text } = summarize(sql.as_bytes(), false, Dialect::MySql);
    format!("{operation}: {text}")
}

#[test]
fn statements() {
    for (sql, expected) in [
        ("SELECT 1", "SELECT: SELECT"),
        ("select * from Accounts where id = 5", "SELECT: SELECT accounts"),
        (
            "SELECT * FROM public.\"Big Table\" b, c AS x JOIN d ON d.id = f(b.id, 1), e",
            "SELECT: SELECT public.Big_Table c d e",
        ),
        ("SELECT a FROM t1 AS a, t1 AS b", "SELECT: SELECT t1"),
        (
            "SELECT order_date FROM (SELECT * FROM orders o JOIN customers c ON o.c = c.id)",
            "SELECT: SELECT SELECT orders customers",
        ),
        ("SELECT * FROM (a JOIN b USING (id)) JOIN c ON true", "SELECT: SELECT a b c"),
        ("SELECT extract(year FROM d), trim(both 'x' FROM y) FROM t", "SELECT: SELECT t"),
        ("SELECT * FROM generate_series(1, 10) g, t", "SELECT: SELECT t"),
        ("SELECT a IS DISTINCT FROM b FROM t", "SELECT: SELECT t"),
        ("SELECT x FROM t WHERE y IN (SELECT z FROM u) FOR UPDATE", "SELECT: SELECT t SELECT u"),
        ("SELECT a FROM t UNION ALL SELECT a FROM u ORDER BY 1", "SELECT: SELECT t SELECT u"),
        ("INSERT INTO t(a, b) VALUES (1, 'x;y') ON CONFLICT DO UPDATE SET a = 1 RETURNING id", "INSERT: INSERT t"),
        ("INSERT INTO shipping SELECT * FROM orders", "INSERT: INSERT shipping SELECT orders"),
        ("UPDATE ONLY t SET a = 1 FROM u WHERE t.x = u.x", "UPDATE: UPDATE t u"),
        ("DELETE FROM t USING u WHERE true", "DELETE: DELETE t u"),
        ("MERGE INTO t USING u ON t.x = u.x WHEN MATCHED THEN UPDATE SET a = 1", "MERGE: MERGE t u"),
        (
            "WITH x AS (SELECT * FROM a), y(c) AS MATERIALIZED (SELECT 1 FROM x) SELECT * FROM x, y, b",
            "SELECT: SELECT a SELECT SELECT b",
        ),
        ("WITH m AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM m", "INSERT: DELETE a INSERT b SELECT"),
        ("WITH RECURSIVE r AS (SELECT 1) SELECT * FROM r", "SELECT: SELECT SELECT"),
        ("COPY t (a, b) FROM STDIN", "COPY: COPY t"),
        ("COPY (SELECT * FROM t) TO STDOUT", "COPY: COPY SELECT t"),
        ("TRUNCATE TABLE a, b CASCADE", "TRUNCATE: TRUNCATE a b"),
        ("CREATE TEMP TABLE IF NOT EXISTS tmp_20240131 (a int DEFAULT 5, b text)", "CREATE TABLE: CREATE TABLE tmp_?"),
        ("CREATE TABLE t AS SELECT * FROM u", "CREATE TABLE: CREATE TABLE t SELECT u"),
        ("CREATE UNIQUE INDEX i ON t (a)", "CREATE INDEX: CREATE INDEX t"),
        ("ALTER TABLE t ADD COLUMN x int", "ALTER TABLE: ALTER TABLE t"),
        ("DROP TABLE IF EXISTS a, b", "DROP TABLE: DROP TABLE a b"),
        ("CREATE USER bob PASSWORD 'hunter2'", "CREATE USER: CREATE USER"),
        ("CREATE FUNCTION f() RETURNS int AS $x$ SELECT 1; $x$ LANGUAGE sql", "CREATE FUNCTION: CREATE FUNCTION"),
        ("REFRESH MATERIALIZED VIEW CONCURRENTLY mv", "REFRESH MATERIALIZED VIEW: REFRESH MATERIALIZED VIEW mv"),
        ("EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM t", "EXPLAIN: EXPLAIN SELECT t"),
        ("EXPLAIN ANALYZE UPDATE t SET a = 1", "EXPLAIN: EXPLAIN UPDATE t"),
        ("PREPARE p (int) AS INSERT INTO t VALUES ($1)", "PREPARE: PREPARE INSERT t"),
        ("DECLARE c CURSOR FOR SELECT * FROM t", "DECLARE: DECLARE SELECT t"),
        ("EXECUTE p('secret')", "EXECUTE: EXECUTE"),
        ("SET my.setting = hunter2", "SET: SET"),
        ("begin", "BEGIN: BEGIN"),
        ("LISTEN channel", "LISTEN: LISTEN"),
        ("VALUES (1)", "VALUES: VALUES"),
        (
            "-- SELECT a\n/* x /* y */ z */ SELECT 'FROM a', $$ FROM b $$, $t$ FROM $$ c $t$, E'\\' FROM d' FROM e",
            "SELECT: SELECT e",
        ),
        ("hunter2", "_OTHER: _OTHER"),
        ("'x", "_OTHER: _OTHER"),
        ("(SELECT 1 FROM a) UNION (SELECT 1 FROM b)", "SELECT: SELECT a SELECT b"),
        ("", "_EMPTY: _EMPTY"),
        (" ; ;", "_EMPTY: _EMPTY"),
        ("SELECT a FROM t1; SELECT b FROM t2;", "BATCH SELECT: SELECT t1; SELECT t2"),
        ("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)", "BATCH INSERT: BATCH INSERT t"),
        ("BEGIN; UPDATE t SET a = 1; COMMIT", "BATCH: BEGIN; UPDATE t; COMMIT"),
        ("SELECT * FROM events_2024_01_31, oauth2", "SELECT: SELECT events_?_?_? oauth2"),
    ] {
        assert_eq!(pg(sql), expected, "{sql}");
    }
}

#[test]
fn the_other_dialect() {
    for (sql, expected) in [
        ("SELECT * FROM `My Table` WHERE a = \"x FROM y\"", "SELECT: SELECT My_Table"),
        ("SELECT 'it\\'s FROM x' FROM db.Users # FROM z", "SELECT: SELECT db.Users"),
        ("INSERT IGNORE t SET a = 1", "INSERT: INSERT t"),
        ("INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE a = 2", "INSERT: INSERT t"),
        ("REPLACE INTO t VALUES (1)", "REPLACE: REPLACE t"),
        ("/*!40101 SET NAMES utf8 */", "SET: SET"),
        ("/* comment */ SELECT 1", "SELECT: SELECT"),
        ("LOAD DATA LOCAL INFILE 'x' INTO TABLE t", "LOAD: LOAD"),
        ("SELECT 5--1 FROM t", "SELECT: SELECT t"),
        ("UPDATE a JOIN b ON a.x = b.x SET a.y = 'z'", "UPDATE: UPDATE a b"),
        ("DELETE a FROM a JOIN b ON a.x = b.x", "DELETE: DELETE a b"),
        ("CALL proc(1)", "CALL: CALL proc"),
        ("SHOW VARIABLES LIKE 'x'", "SHOW: SHOW"),
        ("SET PASSWORD = 'hunter2'; SELECT 1", "BATCH: SET; SELECT"),
    ] {
        assert_eq!(my(sql), expected, "{sql}");
    }
}

#[test]
fn cut_statements_name_no_pieces() {
    let cut = |sql: &str| summarize(sql.as_bytes(), true, Dialect::PostgreSql).text.to_string();
    assert_eq!(cut("SELECT * FROM acc"), "SELECT");
    assert_eq!(cut("SELECT * FROM acc "), "SELECT acc");
    assert_eq!(cut("SELECT * FROM a.b"), "SELECT");
    assert_eq!(cut("SELECT * FROM \"acc"), "SELECT");
    assert_eq!(cut("SEL"), "_EMPTY");
}

#[test]
fn summaries_are_bounded() {
    let tables: Vec<String> = ('a'..='z').flat_map(|a| ('a'..='z').map(move |b| format!("{a}{b}table"))).collect();
    for sql in [
        format!("SELECT * FROM {}", tables.join(", ")),
        format!("SELECT * FROM {};", tables.join("; SELECT * FROM ")),
        "(".repeat(4000),
        "SELECT (".repeat(500),
        format!("SELECT * FROM {}", "x".repeat(4000)),
        "/*".repeat(3000),
        "WITH a AS (".repeat(300),
    ] {
        let summary = summarize(sql.as_bytes(), false, Dialect::PostgreSql);
        assert!(summary.text.len() <= SUMMARY_LIMIT + 6, "{summary:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_have_a_summary(sql in proptest::collection::vec(any::<u8>(), 0..300), cut: bool) {
        for dialect in [Dialect::PostgreSql, Dialect::MySql] {
            prop_assert!(summarize(&sql, cut, dialect).text.len() <= SUMMARY_LIMIT + 6);
        }
    }

    #[test]
    fn any_words_have_a_summary(
        words in proptest::collection::vec(
            prop_oneof![
                Just("SELECT"), Just("FROM"), Just("("), Just(")"), Just(","), Just("a.b"), Just("\"q\""), Just("WITH"),
                Just("AS"), Just("INSERT INTO"), Just(";"), Just("JOIN"), Just("UPDATE"), Just("SET"), Just("'x'"),
                Just("EXPLAIN"), Just("CREATE"), Just("TABLE"), Just("USING"), Just("DELETE"), Just("$$"), Just("/*"),
            ],
            0..60,
        ),
    ) {
        for dialect in [Dialect::PostgreSql, Dialect::MySql] {
            prop_assert!(summarize(words.join(" ").as_bytes(), false, dialect).text.len() <= SUMMARY_LIMIT + 6);
        }
    }

    #[test]
    fn literals_never_show(secret in "[a-zA-Z]{12,20}[0-9]{2}", place in 0usize..10, cut in 0usize..200) {
        let sql = [
            format!("SELECT * FROM t WHERE a = '{secret}'"),
            format!("INSERT INTO t VALUES ('{secret}', E'\\'{secret}', $${secret}$$, $x${secret}$x$)"),
            format!("ALTER USER u PASSWORD '{secret}'"),
            format!("CREATE ROLE {secret} LOGIN PASSWORD '{secret}'"),
            format!("SET SESSION my.{secret} = {secret}"),
            secret.clone(),
            format!("/* {secret} */ SELECT 1 -- {secret}"),
            format!("COPY t FROM PROGRAM 'curl {secret}'"),
            format!("SELECT f('{secret}') FROM dblink('password={secret}', 'FROM {secret}')"),
            format!("EXECUTE p('{secret}'); NOTIFY c, '{secret}'"),
        ][place].clone();
        let front = &sql.as_bytes()[..cut.min(sql.len())];
        for dialect in [Dialect::PostgreSql, Dialect::MySql] {
            let events = format!("{:?}", summarize(front, front.len() < sql.len(), dialect)).to_lowercase();
            prop_assert!(!events.contains(&secret.to_lowercase()), "{}", events);
        }
    }
}
