//! Books of MariaDB and Redis, each of which is one process: what clients caused, against what the kernel says of the server's
//! threads; each as a user; the whole against `/proc`, and against the server's own figures (`performance_schema`, `INFO`).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::mariadb::MariaDb;
use tracer_tests::process::Process;
use tracer_tests::redis::{Redis, Value as Reply};
use tracer_tests::{begin, figure, find, say, scale, scratch, wait};

/// Two clients of MariaDB with tables of their own. Prints `READY`, and once it finds the file GO works: bob once, alice three
/// times as much. Then prints what the kernel says of the threads that `performance_schema` names as theirs.
const CLIENTS: &str = r#"
import os, sys, time, pymysql
port, server, go, scale = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
class Client:
    def __init__(self, user, table, work):
        c = pymysql.connect(host="127.0.0.1", port=port, user=user, password="planted-password",
            database="planted_db", autocommit=True)
        self.cursor, self.work = c.cursor(), work
        self.cursor.execute(f"CREATE TABLE {table} AS SELECT 1 AS n")
        self.cursor.execute("SELECT THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()")
        self.thread = self.cursor.fetchone()[0]
        self.query = f"SELECT BENCHMARK(20000, MD5(n)) FROM {table}"
    def ask(self):
        self.cursor.execute(self.query)
        self.cursor.fetchall()
    def used(self):
        return int(open(f"/proc/{server}/task/{self.thread}/schedstat").read().split()[0]) / 1e9
clients = [Client("planted_user", "t_alice", 3), Client("bob", "t_bob", 1)]
print("READY", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
early = [client.used() for client in clients]
for _ in range(int(120 * scale) or 1):
    for client in clients:
        for _ in range(client.work):
            client.ask()
print("SUMS", *(client.used() - before for client, before in zip(clients, early)), flush=True)
time.sleep(600)
"#;

/// Between two looks: each asks the server something, so that its threads report.
const PAUSE: Duration = Duration::from_millis(300);

/// The agent's book of the only server of a kind.
fn book(agent: &Agent, system: &str) -> Option<Value> {
    let answer = agent.json("/api/v1/subsystems");
    answer["subsystems"].as_array()?.iter().find(|one| one["system"] == system).cloned()
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field}: {value}"))
}

/// CPU of the requests of a user.
fn of_user(book: &Value, user: &str) -> f64 {
    let users = book["users"].as_array().expect("users").iter();
    users.filter(|one| one["user"] == user).map(|one| number(one, "requests_cpu_s")).sum()
}

/// CPU of the requests of a class, whoever's.
fn of_class(book: &Value, class: &str) -> f64 {
    let users = book["users"].as_array().expect("users");
    let classes = users.iter().filter_map(|user| user["classes"].as_array()).flatten();
    classes.filter(|one| one["request_class"] == class).map(|one| number(one, "cpu_s")).sum()
}

fn component(book: &Value, name: &str) -> f64 {
    let components = book["components"].as_array().expect("components");
    components.iter().filter(|one| one["component"] == name).map(|one| number(one, "cpu_s")).sum()
}

/// CPU of all threads of a process, running and ended, seconds: ticks of 10 ms.
fn used(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

fn near(seen: f64, truth: f64) -> bool {
    (seen / truth - 1.0).abs() < 0.03
}

/// The book when `/proc` was read first; what it and `/proc` say then.
fn first(agent: &Agent, system: &str, pid: u32, wake: &mut dyn FnMut()) -> (Value, f64) {
    wait("the server's first check", Duration::from_secs(30), || {
        wake();
        let book = book(agent, system)?;
        (number(&book, "proc_cpu_s") > 0.0 || number(&book, "checked_cpu_s") > 0.0).then_some(())
    });
    // What threads used before is in both figures, or in neither.
    (book(agent, system).expect("a book"), used(pid))
}

fn clients(server: &MariaDb, dir: &Path, go: &Path) -> Process {
    let mut command = Command::new(find("python3").expect("python3"));
    let (port, pid) = (server.address.port().to_string(), server.process.pid().to_string());
    command.args(["-c", CLIENTS, &port, &pid]).arg(go).arg(scale().to_string());
    Process::start("clients", &mut command, &dir.join("clients.log"))
}

#[test]
fn mariadbs_clients_cost_what_their_threads_used() {
    let Some(_turn) = begin("subsystems_mariadb", &["mariadbd", "mariadb", "python3"]) else { return };
    let dir = scratch();
    let server = MariaDb::start_with(dir.path(), &["--performance-schema=ON"]);
    let pid = server.process.pid();
    // The agent asks the server, too, at its UNIX socket.
    let (config, password) = (dir.path().join("tracer.toml"), dir.path().join("secret"));
    std::fs::write(&password, "planted-secret\n").expect("a file");
    std::fs::set_permissions(&password, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let grants = "CREATE USER watcher@localhost IDENTIFIED BY 'planted-secret'; \
                  GRANT SELECT ON performance_schema.* TO watcher@localhost; \
                  CREATE USER bob@'%' IDENTIFIED BY 'planted-password'; GRANT ALL ON *.* TO bob@'%'";
    by_socket(&server, "root", "", grants);
    let text = format!(
        "[[subsystems.server]]\nsystem = \"mariadb\"\naddress = \"unix:{}\"\nuser = \"watcher\"\npassword_file = \"{}\"\n",
        server.socket().display(),
        password.display()
    );
    std::fs::write(&config, text).expect("a file");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", config.to_str().expect("text")]);
    let go = dir.path().join("go");
    let mut clients = clients(&server, dir.path(), &go);
    clients.line("READY", Duration::from_secs(30));
    let mut wake = || {
        std::thread::sleep(PAUSE);
        drop(server.client().args(["-e", "DO 1"]).output().expect("a client"));
    };
    let (before, proc_before) = first(&agent, "mariadb", pid, &mut wake);
    std::fs::write(&go, "").expect("a file");
    let sums = clients.line("SUMS", Duration::from_secs(120));
    let truth: Vec<f64> = sums.split(' ').map(|sum| sum.parse().expect("a number")).collect();
    let [alice, bob] = truth[..] else { panic!("{sums}") };
    let mut last = String::new();
    let book = wait("the book to be what the kernel says", Duration::from_secs(30), || {
        wake();
        let book = book(&agent, "mariadb")?;
        let [seen_alice, seen_bob] = ["SELECT t_alice", "SELECT t_bob"].map(|class| of_class(&book, class));
        let users = ["planted_user", "bob"].map(|user| of_user(&book, user) - of_user(&before, user));
        let (ours, proc) = (number(&book, "cpu_s") - number(&before, "cpu_s"), used(pid) - proc_before);
        let ratio = book["capture_ratio"].as_f64()?;
        last = format!(
            "  alice {seen_alice:.3} of {alice:.3} s, bob {seen_bob:.3} of {bob:.3} s; as users {:.3} and {:.3} s; all {ours:.3} of \
             {proc:.3} s by /proc, capture ratio {ratio:.4}",
            users[0], users[1]
        );
        let all = near(seen_alice, alice) && near(seen_bob, bob) && near(ours, proc);
        let all = all && near(users[0], alice) && near(users[1], bob);
        (all && (0.97..=1.03).contains(&ratio)).then_some(book)
    });
    say(&last);
    figure("capture ratio of MariaDB", &format!("{:.4}", number(&book, "capture_ratio")));
    // Everything is in one of two components.
    let parts = component(&book, "requests") + component(&book, "outside requests");
    assert!((parts - number(&book, "cpu_s")).abs() < 1e-6, "{book}");
    let shares = of_class(&book, "SELECT t_alice") / of_class(&book, "SELECT t_bob");
    assert!((2.7..=3.3).contains(&shares), "{shares}");
    let own = wait("the server's own figures of the work", Duration::from_secs(60), || {
        let own = self::book(&agent, "mariadb")?["own"].clone();
        let user = own["users"].as_array()?.iter().find(|one| one["user"] == "planted_user").cloned()?;
        let select = own["commands"].as_array()?.iter().find(|one| one["command"] == "SELECT").cloned()?;
        // Only one client is this user now, and keeps its session.
        let (statements, seconds) = counted(&server);
        let all = user["statements"] == statements && (number(&user, "time_s") - seconds).abs() < 1e-3;
        (all && user["sessions"] == 1).then_some((user, select))
    });
    let (user, select) = own;
    say(&format!(
        "  the server: {} statements of the user, {:.3} s; SELECT {:.3} s; CPU of both {:.3} s",
        user["statements"],
        number(&user, "time_s"),
        number(&select, "time_s"),
        alice + bob
    ));
    assert!(number(&select, "time_s") >= 0.97 * (alice + bob), "{select}: on the CPU all the time");
    assert!(!agent.text("/api/v1/subsystems").contains("planted-secret"));
    drop(clients);
    agent.stop();
}

/// What the server answers to this user, who comes by its UNIX socket.
fn by_socket(server: &MariaDb, user: &str, password: &str, query: &str) -> String {
    let mut client = Command::new(find("mariadb").expect("mariadb"));
    client.args(["--no-defaults", "-N", "-e", query]).arg(format!("--user={user}"));
    client.arg(format!("--password={password}")).arg(format!("--socket={}", server.socket().display()));
    let done = client.output().expect("a client");
    assert!(done.status.success(), "{done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Statements of the clients' user and the seconds in them, as the server counts them. Asked by another user.
fn counted(server: &MariaDb) -> (u64, f64) {
    let query = "SELECT SUM(COUNT_STAR), SUM(SUM_TIMER_WAIT) / 1e12 \
                 FROM performance_schema.events_statements_summary_by_user_by_event_name \
                 WHERE USER = 'planted_user' AND EVENT_NAME LIKE 'statement/sql/%'";
    let text = by_socket(server, "watcher", "planted-secret", query);
    let (calls, seconds) = text.trim().split_once('\t').unwrap_or_else(|| panic!("{text}"));
    (calls.parse().expect("a number"), seconds.parse().expect("seconds"))
}

/// CPU that Redis says it used, seconds.
fn says_used(redis: &Redis) -> f64 {
    let Reply::Text(Some(text)) = redis.client().ask(&["INFO", "cpu"]) else { panic!("no INFO cpu") };
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name}: {text}")).trim().parse::<f64>().expect("seconds")
    };
    field("used_cpu_sys") + field("used_cpu_user")
}

#[test]
fn rediss_commands_cost_what_the_server_used() {
    let Some(_turn) = begin("subsystems_redis", &["redis-server"]) else { return };
    let dir = scratch();
    let redis = Redis::start(dir.path());
    let pid = redis.process.pid();
    let mut client = redis.client();
    // 16 MB of bits, and a list that is searched to its end.
    client.ask(&["SETBIT", "bits", "134217727", "1"]);
    client.ask(&["EVAL", "for i = 1, 200000 do redis.call('RPUSH', 'list', i) end", "0"]);
    // The agent asks the server, too, as a user who may do nothing else.
    client.ask(&["ACL", "SETUSER", "watcher", "on", ">planted-password", "+info"]);
    for user in ["alice", "bob"] {
        client.ask(&["ACL", "SETUSER", user, "on", ">planted-password", "~*", "+@all"]);
    }
    let (password, config) = (dir.path().join("password"), dir.path().join("tracer.toml"));
    std::fs::write(&password, "planted-password\n").expect("a file");
    std::fs::set_permissions(&password, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let (address, password) = (redis.address, password.display());
    let server = format!("system = \"redis\"\naddress = \"{address}\"\nuser = \"watcher\"\n");
    let server = format!("[[subsystems.server]]\n{server}password_file = \"{password}\"\n");
    std::fs::write(&config, server).expect("a file");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", config.to_str().expect("text")]);
    let mut wake = || {
        std::thread::sleep(PAUSE);
        redis.client().ask(&["PING"]);
    };
    let (before, proc_before) = first(&agent, "redis", pid, &mut wake);
    wait("the server's own figures", Duration::from_secs(40), || {
        wake();
        (!book(&agent, "redis")?["own"].is_null()).then_some(())
    });
    let says_before = says_used(&redis);
    // One after the other: what the process uses meanwhile is the client's.
    let rounds = (400.0 * scale()).max(20.0) as usize;
    let phase = |login: &[&str], words: &[&str]| {
        let mut client = redis.client();
        client.ask(login);
        let begin = redis.cpu_s();
        for _ in 0..rounds {
            client.ask(words);
        }
        redis.cpu_s() - begin
    };
    let bits = phase(&["AUTH", "alice", "planted-password"], &["BITCOUNT", "bits"]);
    let search = phase(&["HELLO", "3", "AUTH", "bob", "planted-password"], &["LPOS", "list", "missing"]);
    let mut last = String::new();
    let checked = wait("the book to be what the kernel says", Duration::from_secs(30), || {
        wake();
        let book = book(&agent, "redis")?;
        let [seen_bits, seen_search] = ["BITCOUNT", "LPOS"].map(|class| of_class(&book, class));
        let [alice, bob] = ["alice", "bob"].map(|user| of_user(&book, user));
        let (ours, proc) = (number(&book, "cpu_s") - number(&before, "cpu_s"), used(pid) - proc_before);
        let says = says_used(&redis) - says_before;
        let ratio = book["capture_ratio"].as_f64()?;
        last = format!(
            "  BITCOUNT {seen_bits:.3} of {bits:.3} s, LPOS {seen_search:.3} of {search:.3} s; alice {alice:.3} s, bob {bob:.3} s; all {ours:.3} of {proc:.3} s by \
             /proc and {says:.3} s by INFO, capture ratio {ratio:.4}"
        );
        let all = near(seen_bits, bits) && near(seen_search, search) && near(ours, proc) && near(ours, says);
        let all = all && near(alice, bits) && near(bob, search);
        (all && (0.97..=1.03).contains(&ratio)).then_some(book)
    });
    say(&last);
    figure("capture ratio of Redis", &format!("{:.4}", number(&checked, "capture_ratio")));
    let own = wait("the server's own figures of the work", Duration::from_secs(60), || {
        wake();
        let own = book(&agent, "redis")?["own"].clone();
        let calls = |name: &str| {
            let commands = own["commands"].as_array().expect("commands");
            commands.iter().find(|one| one["command"] == name).map_or(0, |one| one["calls"].as_u64().expect("a number"))
        };
        let all = ["BITCOUNT", "LPOS"].map(calls) == [rounds as u64; 2];
        (all && near(number(&own, "book_cpu_s"), number(&own, "cpu_s"))).then_some(own)
    });
    say(&format!("  by INFO {:.3} s, by the book {:.3} s", number(&own, "cpu_s"), number(&own, "book_cpu_s")));
    assert!(!agent.text("/api/v1/subsystems").contains("planted-password"), "{own}");
    let calls = client.commandstats();
    assert_eq!((calls.get("BITCOUNT"), calls.get("LPOS")), (Some(&(rounds as u64)), Some(&(rounds as u64))));
    agent.stop();
}
