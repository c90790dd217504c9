//! The agent under test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http;
use crate::metrics::Metrics;
use crate::process::Process;

/// Limit for the agent to become ready.
const READY: Duration = Duration::from_secs(60);
/// Limit for the agent to end, where the test does not measure that.
const END: Duration = Duration::from_secs(30);

/// Path of the agent's binary: `TRACER_BIN`, else `release/tracer` of the target directory this test was built in.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TRACER_BIN") {
        return path.into();
    }
    // target/PROFILE/deps/this-test
    let own = std::env::current_exe().unwrap_or_else(|error| panic!("this program's path: {error}"));
    let target = own.ancestors().nth(3).unwrap_or(Path::new("target"));
    target.join("release/tracer")
}

/// Where an agent called `name` records, for `cargo xtask differential --record`: a file of its own in the directory
/// `TRACER_RECORDINGS`, named by program and test.
fn recording(name: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("TRACER_RECORDINGS")?);
    let program = std::env::current_exe().ok()?;
    let program = program.file_stem()?.to_string_lossy().into_owned();
    // target/PROFILE/deps/NAME-HASH
    let program = program.rsplit_once('-').map_or(program.as_str(), |(name, _)| name);
    // The harness names the thread by the test.
    let test = std::thread::current().name().unwrap_or("main").replace("::", "-");
    let file = |n: u32| dir.join(format!("{program}-{test}-{name}-{n}.tracer"));
    (1..1000).map(file).find(|file| !file.exists())
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    /// Address of its console.
    pub listen: SocketAddr,
    /// File of finished spans.
    pub transactions: PathBuf,
}

/// How an agent ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// From the signal to the end.
    pub took: Duration,
    /// Its output.
    pub output: String,
}

impl Agent {
    /// Starts `tracer run` with `arguments`, with its files in `dir`, and waits until it is ready.
    pub fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_named("agent", dir, arguments)
    }

    /// The same with its own name, for tests with several agents.
    pub fn start_named(name: &str, dir: &Path, arguments: &[&str]) -> Self {
        Self::launch(name, dir, arguments).ready()
    }

    /// Waits until it is ready; panics if it ends before.
    #[must_use]
    pub fn ready(mut self) -> Self {
        // An emulated processor takes a minute or two to verify programs.
        let limit = if crate::scale() < 1.0 { READY * 5 } else { READY };
        let end = Instant::now() + limit;
        loop {
            let ended = self.process.ended();
            assert!(ended.is_none(), "the agent ended ({ended:?}) before it was ready:\n{}", self.output());
            let answer = http::get(self.listen, "/readyz").map(|reply| (reply.status, reply.text()));
            if matches!(answer, Ok((200, _))) {
                return self;
            }
            assert!(Instant::now() < end, "the agent is not ready after {limit:?}: {answer:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts it without waiting.
    pub fn launch(name: &str, dir: &Path, arguments: &[&str]) -> Self {
        Self::launch_with(name, dir, arguments, |_| ())
    }

    /// The same; `prepare` changes the command before the start: environment, limits.
    pub fn launch_with(name: &str, dir: &Path, arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let transactions = dir.join(format!("{name}.ndjson"));
        Self::launch_writing(name, dir, &transactions, arguments, prepare)
    }

    /// The same with the transactions file elsewhere.
    pub fn launch_writing(
        name: &str,
        dir: &Path,
        transactions: &Path,
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(binary());
        prepare(&mut command);
        Self::launch_by(command, name, dir, transactions, arguments)
    }

    /// The same with a command that runs the agent's binary as another user.
    pub fn launch_by(mut command: Command, name: &str, dir: &Path, transactions: &Path, arguments: &[&str]) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        command.arg("run").args(["--listen", &listen.to_string()]);
        // Whoever asks for some of the requests does not ask for every span.
        if !arguments.contains(&"--detail") {
            command.arg("--transactions").arg(transactions);
        }
        // An emulated processor is some thirty times slower: work that takes one real core no time must not cause load
        // shedding.
        if crate::scale() < 1.0 && !arguments.contains(&"--max-cpu") {
            command.args(["--max-cpu", "6400%"]);
        }
        // Likewise samples there are some thirty times as dear.
        if crate::scale() < 1.0 && !arguments.contains(&"--overhead-budget") {
            command.args(["--overhead-budget", "100%"]);
        }
        if let Some(file) = recording(name) {
            command.arg("--record").arg(file);
        }
        command.args(arguments).current_dir(dir);
        let process = Process::start(name, &mut command, &dir.join(format!("{name}.log")));
        Self { process, listen, transactions: transactions.into() }
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its output on both streams so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Requests a page of its console; panics unless it answers 200.
    pub fn text(&self, target: &str) -> String {
        let reply =
            http::get(self.listen, target).unwrap_or_else(|error| panic!("{target}: {error}\n{}", self.output()));
        assert_eq!(reply.status, 200, "{target}: {}", reply.text());
        reply.text()
    }

    /// Requests JSON from its API.
    pub fn json(&self, target: &str) -> Value {
        let text = self.text(target);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{target}: {error}: {text}"))
    }

    /// Asks its API for a change, with the token; panics unless it answers 200.
    pub fn change(&self, method: &str, target: &str, token: &str, body: &str) -> String {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.listen,
            body.len()
        );
        let mut client = http::Connection::open(self.listen).expect("the console");
        client.send(request.as_bytes()).expect("a request");
        let reply = client.reply(method).expect("a reply");
        assert_eq!(reply.status, 200, "{method} {target}: {}", reply.text());
        reply.text()
    }

    /// Its metrics now.
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.text("/metrics"))
    }

    /// Ends it with `signal`.
    pub fn end(mut self, signal: i32) -> Ended {
        let begin = Instant::now();
        self.process.signal(signal);
        let status = self.process.wait(END);
        Ended { status, took: begin.elapsed(), output: self.output() }
    }

    /// Ends it with SIGTERM and expects success.
    pub fn stop(self) -> Ended {
        let ended = self.end(libc::SIGTERM);
        assert!(ended.status.success(), "the agent ended with {}:\n{}", ended.status, ended.output);
        assert!(!ended.output.contains("panicked"), "the agent panicked:\n{}", ended.output);
        ended
    }
}

/// Runs the agent's binary to its end with `arguments`.
pub fn command(arguments: &[&str]) -> Outcome {
    outcome(Command::new(binary()).args(arguments), &arguments.join(" "))
}

/// The result of a finished command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to its end; panics after a minute, or after five in an emulated guest, whose kernel takes one of them
/// to verify programs.
pub fn outcome(command: &mut Command, name: &str) -> Outcome {
    let dir = crate::scratch();
    let out = dir.path().join("out");
    let err = dir.path().join("err");
    let create =
        |path: &Path| std::fs::File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    command.stdin(std::process::Stdio::null()).stdout(create(&out)).stderr(create(&err));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    let limit = Duration::from_secs(if crate::scale() < 1.0 { 300 } else { 60 });
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap_or_else(|error| panic!("{name}: {error}")) {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name} still runs after {limit:?}: {}", std::fs::read_to_string(&err).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    Outcome { code: status.code(), out: read(&out), err: read(&err) }
}
