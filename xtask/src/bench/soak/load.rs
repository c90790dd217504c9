//! The soak's load: requests on kept connections, connections torn down midway, short processes, and readers of the
//! agent's console, some of which never read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::agent::free_address;
use crate::http;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

/// The path requested on kept connections: these requests are counted.
pub(super) const PATH: &str = "/soak.html";
/// The path requested on connections that are torn down.
const ABORTED: &str = "/aborted.html";
/// Connections that stay, and the pause before each of their requests: some 2000 a second together.
const CONNECTIONS: usize = 8;
const PAUSE: Duration = Duration::from_millis(4);
/// Most failure reasons to report.
const REASONS: usize = 16;
/// Requests after which a connection is closed and reopened.
const LIFE: u64 = 1000;

/// A web server of its own.
pub(super) struct Nginx {
    pub(super) address: SocketAddr,
    _child: SupervisedChild,
}

impl Nginx {
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let base = dir.join("soak-nginx");
        fs::create_dir_all(base.join("www")).context("cannot create a directory")?;
        for page in [PATH, ABORTED] {
            fs::write(base.join("www").join(page.trim_start_matches('/')), "x".repeat(612)).context("cannot write")?;
        }
        let text = base.display().to_string();
        let configuration = format!(
            "daemon off;\nuser root;\nworker_processes 2;\npid {text}/pid;\nerror_log {text}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{ access_log off; sendfile on; keepalive_requests 100000000;\n\
             server {{ listen {address}; root {text}/www; }} }}\n"
        );
        let file = base.join("nginx.conf");
        fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
        let program = shell::find("nginx").context("nginx is not installed; run `cargo xtask setup`")?;
        let args =
            ["-p", &text, "-e", &format!("{text}/error.log"), "-c", &file.display().to_string()].map(str::to_owned);
        let child = SupervisedChild::start(Root::Already, &program, &args, &[], &base.join("log"))?;
        let until = Instant::now() + Duration::from_secs(10);
        while !http::get(address, ABORTED).is_ok_and(|reply| reply.status == 200) {
            if Instant::now() > until {
                bail!("nginx does not answer: {}", fs::read_to_string(base.join("error.log")).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { address, _child: child })
    }
}

/// The result of the load.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Answered requests on kept connections.
    pub(super) good: u64,
    /// Unanswered requests on them.
    pub(super) bad: u64,
    /// Why, and how many of each.
    pub(super) why: Vec<(String, u64)>,
    /// Connections torn down.
    pub(super) aborted: u64,
    /// Processes started and ended.
    pub(super) processes: u64,
    /// Pages of the console read.
    pub(super) pages: u64,
}

#[derive(Default)]
struct Counts {
    over: AtomicBool,
    good: AtomicU64,
    bad: AtomicU64,
    aborted: AtomicU64,
    processes: AtomicU64,
    pages: AtomicU64,
    why: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    /// Records why a request failed.
    fn failed(&self, error: &Error) {
        self.bad.fetch_add(1, Ordering::Relaxed);
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        let text = error.to_string();
        if why.len() < REASONS || why.contains_key(&text) {
            *why.entry(text).or_default() += 1;
        }
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }
}

/// A running load.
pub(super) struct Load {
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start(server: SocketAddr, console: SocketAddr) -> Self {
        let counts = Arc::new(Counts::default());
        let mut threads = Vec::new();
        let mut start = |work: fn(&Counts, SocketAddr), address| {
            let counts = Arc::clone(&counts);
            threads.push(std::thread::spawn(move || work(&counts, address)));
        };
        for _ in 0..CONNECTIONS {
            start(stay, server);
        }
        start(abort, server);
        start(processes, server);
        start(read_console, console);
        start(never_read, console);
        Self { counts, threads }
    }

    /// Ends it.
    pub(super) fn end(self) -> Result<Done> {
        self.counts.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a thread of the load panicked");
            }
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        Ok(Done {
            good: of(&counts.good),
            bad: of(&counts.bad),
            aborted: of(&counts.aborted),
            processes: of(&counts.processes),
            pages: of(&counts.pages),
            why: counts.why.lock().unwrap_or_else(PoisonError::into_inner).clone().into_iter().collect(),
        })
    }
}

/// One request and its whole reply of known length.
fn exchange(stream: &mut TcpStream, path: &str) -> std::io::Result<()> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: soak\r\n\r\n").as_bytes())?;
    let (mut reply, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let n = match stream.read(&mut chunk) {
            // The exit of a child, and the load has many, interrupts a read with a timeout.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        reply.extend_from_slice(chunk.get(..n).unwrap_or_default());
        let head = reply.windows(4).position(|four| four == b"\r\n\r\n");
        if head.is_some_and(|head| reply.len() >= head + 4 + 612) {
            if reply.starts_with(b"HTTP/1.1 200") {
                return Ok(());
            }
            let first = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
            return Err(Error::other(String::from_utf8_lossy(first.get(..first.len().min(60)).unwrap_or_default())));
        }
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

fn stay(counts: &Counts, address: SocketAddr) {
    let mut kept = None;
    let mut asked = 0u64;
    while counts.goes_on() {
        std::thread::sleep(PAUSE);
        asked += 1;
        if asked.is_multiple_of(LIFE) {
            kept = None;
        }
        let answered = kept.take().map_or_else(|| connect(address), Ok).and_then(|mut stream| {
            exchange(&mut stream, PATH)?;
            Ok(stream)
        });
        match answered {
            Ok(stream) => {
                kept = Some(stream);
                counts.good.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => counts.failed(&error),
        }
    }
}

/// Opens connections and drops them in the middle of a request, of a reply, or before sending anything.
fn abort(counts: &Counts, address: SocketAddr) {
    let whole = format!("GET {ABORTED} HTTP/1.1\r\nHost: soak\r\n\r\n");
    for turn in 0usize.. {
        if !counts.goes_on() {
            return;
        }
        if let Ok(mut stream) = connect(address) {
            let length = [0, 9, whole.len(), whole.len()].get(turn % 4).copied().unwrap_or(0);
            let sent = stream.write_all(whole.as_bytes().get(..length).unwrap_or_default());
            if turn % 4 == 3 && sent.is_ok() {
                let _ = stream.read(&mut [0; 10]);
            }
            counts.aborted.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes(counts: &Counts, _: SocketAddr) {
    while counts.goes_on() {
        let done = Command::new("true").stdin(Stdio::null()).stdout(Stdio::null()).status();
        counts.processes.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn read_console(counts: &Counts, console: SocketAddr) {
    let pages =
        ["/metrics", "/", "/api/v1/classes", "/api/v1/transactions?limit=100", "/profile.folded", "/flamegraph.svg"];
    for page in pages.iter().cycle() {
        if !counts.goes_on() {
            return;
        }
        let read = http::get(console, page).is_ok_and(|reply| reply.status == 200);
        counts.pages.fetch_add(u64::from(read), Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Readers that request more than any buffer holds and read nothing.
fn never_read(counts: &Counts, console: SocketAddr) {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {console}\r\n\r\n").repeat(50);
    let mut silent = Vec::new();
    while counts.goes_on() {
        if let Ok(mut stream) = connect(console) {
            let _ = stream.write_all(request.as_bytes());
            silent.push(stream);
        }
        if silent.len() > 8 {
            silent.remove(0);
        }
        std::thread::sleep(Duration::from_secs(2));
    }
}
