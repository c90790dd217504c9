//! redis-server with a directory of its own, its own statistics, and a client that sends exactly the given bytes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// A running redis-server, before any command.
#[derive(Debug)]
pub struct Redis {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Redis {
    /// Starts it in `dir`, without persistence.
    pub fn start(dir: &Path) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let program = crate::find("redis-server").unwrap_or_else(|| panic!("no redis-server"));
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
        command.args(["--appendonly", "no", "--dir"]).arg(dir);
        let mut process = Process::start("redis-server", &mut command, &dir.join("redis-server.log"));
        wait_for_listener(&mut process, address);
        Self { process, address }
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// CPU its threads have used, seconds.
    pub fn cpu_s(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.pid()));
        let tasks = tasks.unwrap_or_else(|error| panic!("tasks of redis-server: {error}"));
        let ran = |path: &Path| {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|field| field.parse::<f64>().ok()).unwrap_or_default()
        };
        tasks.filter_map(Result::ok).map(|task| ran(&task.path())).sum::<f64>() / 1e9
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A line: `+OK`, `:5`, `_` and the like, with its first byte.
    Line(String),
    /// `-ERR …`, without the first byte.
    Error(String),
    /// A string; `None` is null.
    Text(Option<String>),
    /// An array, map, set or push; `None` is null.
    Array(Option<Vec<Value>>),
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// Encodes a command as clients do.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_nodelay(true).unwrap_or_else(|error| panic!("nodelay: {error}"));
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap_or_else(|error| panic!("read timeout: {error}"));
        Self { stream: BufReader::with_capacity(1 << 16, stream) }
    }

    /// Writes bytes unchanged, in one system call if the socket takes them.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap_or_else(|error| panic!("to redis-server: {error}"));
    }

    /// Sends nothing more.
    pub fn finish(&mut self) {
        let finished = self.stream.get_ref().shutdown(std::net::Shutdown::Write);
        finished.unwrap_or_else(|error| panic!("to redis-server: {error}"));
    }

    /// Sends a command and returns its reply.
    pub fn ask(&mut self, words: &[&str]) -> Value {
        self.send(&command(words));
        self.reply()
    }

    /// Reads one reply.
    pub fn reply(&mut self) -> Value {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap_or_else(|error| panic!("from redis-server: {error}"));
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        let (kind, rest) = line.split_at_checked(1).unwrap_or_else(|| panic!("redis-server hung up"));
        let count = || rest.parse::<i64>().unwrap_or_else(|error| panic!("{line}: {error}"));
        match kind {
            "-" => Value::Error(rest.to_owned()),
            "$" | "=" => Value::Text(usize::try_from(count()).ok().map(|len| self.text(len))),
            "*" | "~" | ">" | "%" => {
                let each = if kind == "%" { 2 } else { 1 };
                let values = usize::try_from(count()).ok();
                Value::Array(values.map(|count| (0..count * each).map(|_| self.reply()).collect()))
            }
            _ => Value::Line(line),
        }
    }

    fn text(&mut self, len: usize) -> String {
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes).unwrap_or_else(|error| panic!("from redis-server: {error}"));
        bytes.truncate(len);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The server's counts of commands, by the agent's names: run or rejected.
    pub fn commandstats(&mut self) -> BTreeMap<String, u64> {
        let lines = self.info("commandstats", "cmdstat_");
        let count = |fields: &BTreeMap<String, u64>| {
            ["calls", "rejected_calls"].iter().filter_map(|field| fields.get(*field)).sum()
        };
        lines.iter().map(|(name, fields)| (name.to_uppercase().replace('|', " "), count(fields))).collect()
    }

    /// The server's counts of commands that failed or were rejected, by the agent's names.
    pub fn failures(&mut self) -> BTreeMap<String, u64> {
        let lines = self.info("commandstats", "cmdstat_");
        let count = |fields: &BTreeMap<String, u64>| -> u64 {
            ["failed_calls", "rejected_calls"].iter().filter_map(|field| fields.get(*field)).sum()
        };
        let failed = lines.iter().map(|(name, fields)| (name.to_uppercase().replace('|', " "), count(fields)));
        failed.filter(|(_, count)| *count > 0).collect()
    }

    /// The server's counts of errors, by kind.
    pub fn errorstats(&mut self) -> BTreeMap<String, u64> {
        let lines = self.info("errorstats", "errorstat_");
        lines.into_iter().map(|(kind, fields)| (kind, fields.get("count").copied().unwrap_or_default())).collect()
    }

    fn info(&mut self, section: &str, prefix: &str) -> BTreeMap<String, BTreeMap<String, u64>> {
        let Value::Text(Some(text)) = self.ask(&["INFO", section]) else { panic!("no INFO {section}") };
        let fields = |text: &str| {
            let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            pairs.filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?))).collect()
        };
        text.lines()
            .filter_map(|line| line.strip_prefix(prefix)?.split_once(':'))
            .map(|(name, rest)| (name.to_owned(), fields(rest)))
            .collect()
    }
}
