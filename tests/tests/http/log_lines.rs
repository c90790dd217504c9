//! Lines of logs: those that a server wrote for a request stand beside it, and no others do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http::{self, Connection};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::workload::{Server, compile, source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, go, operations_lost, say, scratch, wait};

/// Until lines are looked at, and until all spans are there.
const LIMIT: Duration = Duration::from_secs(30);
/// Connections at once, and requests on each.
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 50;
/// Transactions that are asked for at once.
const ASKERS: usize = 16;

/// An agent, and the token without which it shows no texts.
struct Logs {
    agent: Agent,
    token: String,
}

impl Logs {
    fn start(dir: &Path, services: &str, more: &str) -> Self {
        let (file, token) = (dir.join("tracer.toml"), dir.join("token"));
        std::fs::write(&file, format!("[logs]\nservices = [{services}]\n{more}\n")).expect("a file");
        let path = |path: &Path| path.display().to_string();
        let arguments = ["--nice=-10", "--config", &path(&file), "--token-file", &path(&token)];
        let agent = Agent::start(dir, &arguments);
        Self { agent, token: std::fs::read_to_string(&token).expect("a token").trim().to_owned() }
    }

    /// A transaction with the texts of its lines.
    fn transaction(&self, id: &str) -> Value {
        let text = self.agent.change("GET", &format!("/api/v1/transactions/{id}"), &self.token, "");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Lines of a service by what they belong to.
fn counted(agent: &Agent, service: &str, written_for: &str) -> f64 {
    let labels = [("service_name", service), ("written_for", written_for)];
    agent.metrics().sum("tracer_log_lines_total", &labels)
}

/// A client: with a connection that it keeps, or with one for each request.
struct Client {
    address: SocketAddr,
    kept: Option<Connection>,
}

impl Client {
    fn new(address: SocketAddr, keeps: bool) -> Self {
        Self { address, kept: keeps.then(|| Connection::open(address).expect("a connection")) }
    }

    fn ask(&mut self, path: &str) {
        let answer = match &mut self.kept {
            Some(kept) => kept.ask("GET", path),
            None => http::get(self.address, path),
        };
        answer.expect("an answer");
    }
}

/// What requests before the measured ones ask for.
const FIRST: &str = "work/first";

/// Sends requests until lines are looked at: that begins once the agent knows what the process runs.
fn warm_up(agent: &Agent, service: &str, mut client: Client) {
    let mut sent = 0;
    wait("a line", LIMIT, || {
        client.ask(&format!("/{FIRST}-{sent}"));
        sent += 1;
        let seen = ["request", "ambiguous", "no_request"].map(|of| counted(agent, service, of));
        (seen.iter().sum::<f64>() > 0.5).then_some(())
    });
}

/// Sends requests with several clients at once; their paths.
fn send(address: SocketAddr, routes: &[&str], clients: usize, keeps: bool) -> BTreeSet<String> {
    let of_client = |number: usize| {
        let mut client = Client::new(address, keeps);
        let path = |round: usize| format!("/{}/c{number}-r{round}", routes[round % routes.len()]);
        let paths: BTreeSet<String> = (0..ROUNDS).map(path).collect();
        for path in &paths {
            client.ask(path);
        }
        paths
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|n| scope.spawn(move || of_client(n))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    })
}

/// Transactions by path, with their lines.
type Lines = BTreeMap<String, Vec<Value>>;

/// Lines of the transactions of these paths, once all are there.
fn lines_of(logs: &Logs, service: &str, paths: &BTreeSet<String>) -> Lines {
    let (mut found, mut asked) = (Lines::new(), BTreeSet::new());
    wait("all transactions", LIMIT, || {
        let list = logs.agent.json(&format!("/api/v1/transactions?service={service}&limit=10000"));
        let ids = list["transactions"].as_array()?.iter().filter_map(|row| row["trace_id"].as_str().map(str::to_owned));
        let fresh: Vec<String> = ids.filter(|id| asked.insert(id.clone())).collect();
        // Each answer waits for the agent's next turn.
        std::thread::scope(|scope| {
            let one = |id: &String| logs.transaction(id);
            let part = fresh.len().div_ceil(ASKERS).max(1);
            let askers: Vec<_> =
                fresh.chunks(part).map(|ids| scope.spawn(move || ids.iter().map(one).collect::<Vec<_>>())).collect();
            for answer in askers.into_iter().flat_map(|asker| asker.join().expect("answers")) {
                let path = answer["spans"][0]["attributes"]["url.path"].as_str().unwrap_or_default().to_owned();
                if paths.contains(&path) {
                    found.insert(path, answer["log_lines"].as_array().cloned().unwrap_or_default());
                }
            }
        });
        (found.len() == paths.len()).then_some(())
    });
    found
}

/// What stands beside requests: of the lines that each wrote (`each` of them) those beside it, and those beside another.
fn judge(logs: Logs, service: &str, paths: &BTreeSet<String>, each: usize) -> f64 {
    let lines = lines_of(&logs, service, paths);
    let (mut right, mut wrong) = (0, Vec::new());
    for (path, lines) in &lines {
        let mut own = 0;
        for line in lines {
            let text = line["text"].as_str().unwrap_or_default();
            let Some((_, named)) = text.split_once("path=") else { continue };
            let named = named.split([' ', '"']).next().unwrap_or_default();
            if named == path { own += 1 } else { wrong.push(format!("{path}: {text}")) }
        }
        right += own.min(each);
    }
    let share = right as f64 / (paths.len() * each).max(1) as f64;
    let figures =
        ["request", "late", "ambiguous", "no_request"].map(|of| format!("{of} {}", counted(&logs.agent, service, of)));
    figure(
        &format!("log lines of {service}"),
        &format!(
            "{} requests, {right} lines right ({share:.4}), {} wrong; {}",
            paths.len(),
            wrong.len(),
            figures.join(", ")
        ),
    );
    for line in wrong.iter().take(10) {
        say(&format!("  {line}"));
    }
    let lost = logs.agent.metrics().lost();
    logs.agent.stop();
    assert!(wrong.is_empty(), "{} lines are beside another request; lost {lost:?}", wrong.len());
    if operations_lost(&lost) > 0.5 { 1.0 } else { share }
}

/// Asks a server with some clients, whose connections are kept or not: nearly all of the lines that it writes of each request (`each` of
/// them) stand beside it.
fn beside_their_requests(logs: Logs, service: &str, (address, clients, keeps): (SocketAddr, usize, bool), each: usize) {
    warm_up(&logs.agent, service, Client::new(address, keeps));
    let paths = send(address, &["work", "fail"], clients, keeps);
    let share = judge(logs, service, &paths, each);
    assert!(share >= 0.99, "{share} of the lines stand beside their requests");
}

#[test]
fn lines_of_a_c_server_stand_beside_their_requests() {
    let Some(_turn) = begin("log lines c", &["cc"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "log_lines");
    let logs = Logs::start(dir.path(), "\"logs-c\"", "max_rate = 100000");
    let (named, other) = (dir.path().join("c.log"), dir.path().join("quiet.log"));
    let server = Server::start("logs-c", dir.path(), Command::new(&program).arg(&named));
    let quiet = Server::start("quiet", dir.path(), Command::new(&program).arg(&other));
    warm_up(&logs.agent, "logs-c", Client::new(server.address, true));
    let unnamed = send(quiet.address, &["work"], 1, true);
    let mut paths = send(server.address, &["work", "fail", "secret"], CONNECTIONS, true);
    let long: BTreeSet<String> = ["/long/c9-r0".to_owned()].into();
    Client::new(server.address, false).ask("/long/c9-r0");
    // A service that is not named has none.
    assert!(lines_of(&logs, "quiet", &unnamed).values().all(Vec::is_empty));
    assert!(logs.agent.metrics().sum("tracer_log_lines_total", &[("service_name", "quiet")]) < 0.5);
    // A line of a megabyte is cut, and its place is right.
    let found = lines_of(&logs, "logs-c", &long);
    let lines = &found["/long/c9-r0"];
    let line = lines.iter().find(|line| line["text"].as_str().is_some_and(|text| text.starts_with("long path=")));
    let line = line.unwrap_or_else(|| panic!("no long line: {lines:?}"));
    assert_eq!(
        (line["bytes"].as_u64(), line["cut"].as_bool(), line["file"].as_str()),
        (Some(1 << 20), Some(true), named.to_str())
    );
    assert!(line["text"].as_str().is_some_and(|text| text.len() == 512));
    let whole = std::fs::read(&named).expect("the log");
    let at = line["offset"].as_u64().expect("an offset") as usize;
    assert!(whole[at..].starts_with(b"long path=/long/c9-r0 "), "offset {at}");
    // In the order in which they were written.
    let times: Vec<i64> = lines.iter().filter_map(|line| line["time_ns"].as_i64()).collect();
    assert!(times.is_sorted() && times.len() >= 8, "{times:?}");
    // What its name calls a secret is not shown, of what was written as it is.
    let shown = logs.agent.text("/metrics") + &serde_json::to_string(&lines_of(&logs, "logs-c", &paths)).expect("text");
    assert!(!shown.contains("planted") && shown.contains("Authorization: …"));
    assert!(whole.windows(13).any(|bytes| bytes == b"planted-token"));
    // Without the token the places are shown, and no texts.
    let list = logs.agent.json("/api/v1/transactions?service=logs-c&limit=1");
    let id = list["transactions"][0]["trace_id"].as_str().expect("a transaction");
    let open = logs.agent.json(&format!("/api/v1/transactions/{id}"));
    let lines = open["log_lines"].as_array().expect("lines");
    assert!(!lines.is_empty() && lines.iter().all(|line| line["text"].is_null() && line["bytes"].is_u64()), "{open}");
    paths.extend(long);
    // Begins, writev, standard error, parts, three of a record, and the line after the reply.
    let share = judge(logs, "logs-c", &paths, 8);
    assert!(share >= 0.99, "{share} of the lines stand beside their requests");
}

#[test]
fn lines_of_pythons_logging_stand_beside_their_requests() {
    let Some(_turn) = begin("log lines python", &["python3"]) else { return };
    let dir = scratch();
    let logs = Logs::start(dir.path(), "\"logs-python\"", "");
    let python = find("python3").expect("python3");
    let mut command = Command::new(python);
    command.arg("-u").arg(source("log_lines.py")).arg(dir.path().join("python.log"));
    let server = Server::start("logs-python", dir.path(), &mut command);
    // Two lines, to a file and to standard output each. That of http.server has the path in another form.
    beside_their_requests(logs, "logs-python", (server.address, CONNECTIONS, true), 4);
}

#[test]
fn lines_of_goroutines_stand_beside_their_requests() {
    let toolchain = go::toolchain("1.27.");
    let Some(_turn) = begin("log lines go", &[toolchain]) else { return };
    let dir = scratch();
    let program = go::build(Path::new(toolchain), dir.path(), "log_lines.go", &[]);
    let logs = Logs::start(dir.path(), "\"logs-go\"", "max_rate = 100000");
    let server = Server::start("logs-go", dir.path(), &mut Command::new(program));
    beside_their_requests(logs, "logs-go", (server.address, CONNECTIONS, true), 2);
}

#[test]
fn lines_of_javas_threads_stand_beside_their_requests() {
    let Some(_turn) = begin("log lines java", &["java", "javac"]) else { return };
    let dir = scratch();
    let done =
        Command::new(find("javac").expect("javac")).arg("-d").arg(dir.path()).arg(source("LogLines.java")).output();
    let done = done.expect("javac");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let logs = Logs::start(dir.path(), "\"logs-java\"", "");
    let mut command = Command::new(find("java").expect("java"));
    command.arg("-cp").arg(dir.path()).arg("LogLines").arg(dir.path().join("java.log"));
    let server = Server::start("logs-java", dir.path(), &mut command);
    beside_their_requests(logs, "logs-java", (server.address, CONNECTIONS, true), 2);
}

#[test]
fn lines_of_php_stand_beside_their_requests() {
    let Some(_turn) = begin("log lines php", &["php"]) else { return };
    let dir = scratch();
    let logs = Logs::start(dir.path(), "\"logs-php\"", "");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find("php").expect("php"));
    command.args(["-n", "-S", &address.to_string()]).arg(source("log_lines.php"));
    command.env("OTEL_SERVICE_NAME", "logs-php").env("LOG_FILE", dir.path().join("own.log"));
    let mut server = Process::start("php", &mut command, &dir.path().join("php.log"));
    wait_for_listener(&mut server, address);
    beside_their_requests(logs, "logs-php", (address, 1, false), 2);
}

#[test]
fn lines_of_loops_and_shared_buffers_stand_beside_no_request() {
    let Some(_turn) = begin("log lines of loops and shared buffers", &["cc", "nginx"]) else { return };
    // One buffer for all threads: the one that fills it writes the lines of others.
    let dir = scratch();
    let program = compile(dir.path(), "log_lines");
    let logs = Logs::start(dir.path(), "\"logs-shared\"", "max_rate = 100000");
    let server =
        Server::start("logs-shared", dir.path(), Command::new(&program).arg(dir.path().join("c.log")).arg("shared"));
    warm_up(&logs.agent, "logs-shared", Client::new(server.address, true));
    let paths = send(server.address, &["work"], CONNECTIONS, true);
    let share = judge(logs, "logs-shared", &paths, 1);
    assert!(share < 0.1, "{share} of the lines in a shared buffer stand beside a request");
    // nginx logs after it answered, several requests in turn on one thread.
    let dir = scratch();
    let logs = Logs::start(dir.path(), "\"nginx\"", "");
    let format = "log_format lines 'path=$uri';";
    let log = dir.path().join("lines.log");
    let server = format!("access_log {} lines; location / {{ return 200 ok; }}", log.display());
    let nginx = Nginx::start(dir.path(), format, &server);
    warm_up(&logs.agent, "nginx", Client::new(nginx.address, true));
    let paths = send(nginx.address, &["work"], CONNECTIONS, true);
    judge(logs, "nginx", &paths, 1);
}
