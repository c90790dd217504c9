//! Books of PostgreSQL: users with known shares of work against what the kernel says of the processes that served them, and the
//! whole against all processes of the server; beside them what the server says of itself.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::postgresql::{Postgres, programs};
use tracer_tests::process::Process;
use tracer_tests::{begin, figure, find, say, scale, scratch, wait};

/// Sessions of two users, one of which begins before the agent. Prints `READY`, and once it finds the file GO works: bob once,
/// alice three times as much, carol in sessions that end at once. Then prints what the kernel says of the processes that served
/// alice and bob, by the user, while they still live.
const CLIENT: &str = r#"
import os, sys, time, psycopg
go, scale = sys.argv[1], float(sys.argv[2])
def session(user, database):
    c = psycopg.connect(user=user, dbname=database, password="pw", autocommit=True)
    return user, c, c.execute("SELECT pg_backend_pid()").fetchone()[0]
def used(pid):
    return int(open(f"/proc/{pid}/schedstat").read().split()[0]) / 1e9
sessions = [session("alice", "shop")]
early = used(sessions[0][2])
print("READY", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
sessions += [session("alice", "shop"), session("bob", "shop"), session("bob", "shop")]
work = {"alice": 3, "bob": 1}
for _ in range(int(12 * scale) or 1):
    for user, c, _ in sessions:
        for _ in range(work[user]):
            c.execute("SELECT count(*), sum(n + n) FROM generate_series(1, 100000) n").fetchone()
            c.execute("SELECT max(n::text) FROM generate_series(1, 5000) n").fetchone()
for _ in range(20):
    _, c, _ = session("carol", "postgres")
    c.execute("SELECT sum(n) FROM generate_series(1, 30000) n").fetchone()
    c.close()
try:
    psycopg.connect(user="mallory", dbname="shop", password="pw")
except psycopg.Error:
    pass
sums = {}
for user, _, pid in sessions:
    sums[user] = sums.get(user, 0) + used(pid)
print("SUMS", sums["alice"] - early, sums["bob"], flush=True)
time.sleep(600)
"#;

fn python(server: &Postgres, dir: &Path, go: &Path) -> Process {
    let mut command = Command::new(find("python3").expect("python3"));
    server.tell(&mut command);
    command.args(["-c", CLIENT]).arg(go).arg(scale().to_string());
    Process::start("client", &mut command, &dir.join("client.log"))
}

/// The book of the server.
fn book(agent: &Agent, server: &Postgres) -> Option<Value> {
    let answer = agent.json("/api/v1/subsystems");
    let data = server.data.to_str().expect("a path");
    answer["subsystems"].as_array()?.iter().find(|one| one["instance"] == data).cloned()
}

fn of<'a>(book: &'a Value, user: &str) -> &'a Value {
    let users = book["users"].as_array().expect("users");
    users.iter().find(|one| one["user"] == user).unwrap_or_else(|| panic!("no {user}: {book}"))
}

/// Statements of a user and the seconds in them, as the server counts them.
fn counted(server: &Postgres, user: &str) -> (u64, f64) {
    let query = format!(
        "SELECT sum(calls) || ' ' || sum(total_exec_time) / 1000 FROM pg_stat_statements s \
         JOIN pg_roles r ON r.oid = s.userid WHERE r.rolname = '{user}' AND toplevel"
    );
    let done = server.psql().args(["-A", "-t", "-c", &query]).output().expect("psql");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let (calls, seconds) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{user}: {done:?}"));
    (calls.parse().expect("a number"), seconds.parse().expect("seconds"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field}: {value}"))
}

#[test]
fn postgresqls_users_sessions_and_processes_add_up() {
    let Some(_turn) = begin("subsystems", &["python3", "setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED subsystems: needs PostgreSQL");
    }
    let has =
        Command::new(find("python3").expect("python3")).args(["-c", "import psycopg"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        return say("SKIPPED subsystems: needs psycopg for Python");
    }
    let dir = scratch();
    let server = Postgres::start_with(dir.path(), &["shared_preload_libraries=pg_stat_statements".into()]);
    let setup = "CREATE DATABASE shop; CREATE ROLE alice LOGIN PASSWORD 'pw'; CREATE ROLE bob LOGIN PASSWORD 'pw'; \
                 CREATE ROLE carol LOGIN PASSWORD 'pw'; CREATE EXTENSION pg_stat_statements; \
                 CREATE ROLE watcher LOGIN PASSWORD 'planted-secret'; GRANT pg_monitor TO watcher";
    for statement in setup.split(';') {
        let done = server.psql().args(["-c", statement]).output().expect("psql");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let go = dir.path().join("go");
    let mut client = python(&server, dir.path(), &go);
    client.line("READY", Duration::from_secs(30));

    let (config, password) = (dir.path().join("tracer.toml"), dir.path().join("secret"));
    std::fs::write(&password, "planted-secret\n").expect("a file");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let text = format!(
        "[subsystems]\nuser_metrics = true\n[[subsystems.server]]\nsystem = \"postgresql\"\naddress = \"{}\"\n\
         user = \"watcher\"\npassword_file = \"{}\"\n",
        server.address,
        password.display()
    );
    std::fs::write(&config, text).expect("a file");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", config.to_str().expect("a path")]);
    // The book begins with the server's next activity, the check of it with that.
    server.psql().args(["-c", "SELECT 1"]).output().expect("psql");
    wait("the server's first check", Duration::from_secs(30), || {
        let book = book(&agent, &server)?;
        say(&format!("  first: {} processes, {}", book["processes"], book["pid"]));
        (number(&book, "processes") >= 4.0).then_some(())
    });
    std::thread::sleep(Duration::from_secs(6));
    std::fs::write(&go, "").expect("a file");
    let sums = client.line("SUMS", Duration::from_secs(120));
    let truth: Vec<f64> = sums.split(' ').map(|sum| sum.parse().expect("a number")).collect();
    let [alice, bob] = truth[..] else { panic!("{sums}") };

    let mut last = String::new();
    let book = wait("the books to be what the kernel says", Duration::from_secs(30), || {
        let book = book(&agent, &server)?;
        let ratio = book["capture_ratio"].as_f64()?;
        let [seen_alice, seen_bob] = ["alice", "bob"].map(|user| number(of(&book, user), "cpu_s"));
        let ended = number(of(&book, "carol"), "sessions_ended");
        let near = |seen: f64, truth: f64| (seen / truth - 1.0).abs() < 0.03;
        last = format!(
            "  alice {seen_alice:.3} of {alice:.3} s, bob {seen_bob:.3} of {bob:.3} s, carol's sessions {ended}, capture ratio {ratio:.4}"
        );
        (near(seen_alice, alice) && near(seen_bob, bob) && ended >= 20.0 && (0.97..=1.03).contains(&ratio))
            .then_some(book)
    });
    say(&last);
    assert_eq!(of(&book, "carol")["sessions_ended"], 20);
    // Alice asked for three times as much.
    let shares = number(of(&book, "alice"), "requests_cpu_s") / number(of(&book, "bob"), "requests_cpu_s");
    say(&format!("  alice's requests cost {shares:.3} times bob's"));
    assert!((2.6..=3.4).contains(&shares), "{shares}");
    figure("capture ratio of PostgreSQL", &format!("{:.4}", number(&book, "capture_ratio")));

    // Everything is in one component, and in one user's sum or a component's.
    let components: Vec<(&str, f64)> = book["components"]
        .as_array()
        .expect("components")
        .iter()
        .map(|one| (one["component"].as_str().expect("a name"), number(one, "cpu_s")))
        .collect();
    let all: f64 = components.iter().map(|(_, cpu)| cpu).sum();
    assert!((all - number(&book, "cpu_s")).abs() < 1e-6, "{components:?}");
    let named = |name: &str| components.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, cpu)| *cpu);
    assert!(named("unnamed") < 0.05 * all, "{components:?}");
    assert!(named("requests") > 0.8 * all && named("postmaster") > 0.0, "{components:?}");
    let users: f64 = book["users"].as_array().expect("users").iter().map(|user| number(user, "cpu_s")).sum();
    let of_sessions = named("requests") + named("connection handling") + named("parallel workers");
    assert!((users - of_sessions).abs() < 1e-6, "{users} {of_sessions}");
    for user in ["alice", "bob"] {
        let classes = of(&book, user)["classes"].as_array().expect("classes");
        assert!(classes.iter().any(|class| class["request_class"] == "SELECT"), "{classes:?}");
        assert_eq!(of(&book, user)["sessions"], 2);
    }
    // What the server says of itself: the same users, whose sessions stay open and whose work is over.
    let own = wait("the server's own figures of the work", Duration::from_secs(60), || {
        let book = self::book(&agent, &server)?;
        let users = book["own"]["users"].as_array()?.clone();
        let of = |user: &str| users.iter().find(|one| one["user"] == user && one["database"] == "shop").cloned();
        let (alice, bob) = (of("alice")?, of("bob")?);
        let is_all = |own: &Value, user: &str| {
            let (statements, seconds) = counted(&server, user);
            own["statements"] == statements && (number(own, "time_s") - seconds).abs() < 1e-3 && own["sessions"] == 2
        };
        (is_all(&alice, "alice") && is_all(&bob, "bob")).then_some([alice, bob])
    });
    for (own, user) in own.iter().zip(["alice", "bob"]) {
        let (time, cpu) = (number(own, "time_s"), number(of(&book, user), "requests_cpu_s"));
        say(&format!(
            "  {user}: {} statements, {time:.3} s by the server, CPU of requests {cpu:.3} s",
            own["statements"]
        ));
    }
    assert!(book["own"]["cpu_s"].is_null(), "PostgreSQL counts no CPU");
    assert!(!agent.text("/api/v1/subsystems").contains("planted-secret"));
    // Whoever the server did not accept has no name.
    let text = agent.text("/api/v1/subsystems") + &agent.text("/metrics");
    assert!(!text.contains("mallory"), "a user that was refused shows");
    let metrics = agent.metrics();
    let labels = [("system", "postgresql"), ("user", "alice"), ("database", "shop")];
    assert!(metrics.sum("tracer_subsystem_user_cpu_seconds_total", &labels) > 0.9 * alice);
    let ratio = metrics.sum("tracer_subsystem_capture_ratio", &[("system", "postgresql")]);
    assert!((0.97..=1.03).contains(&ratio), "{ratio}");
    drop(client);
    agent.stop();
}
