//! `cargo xtask demo --hosts`: a request's way over three hosts with address translation between them, an agent on each
//! that sees only its own host, and the one tree they build from it.
//!
//! Hosts are network namespaces around a router ([`Star`]): nginx on the first, the application on the second, Redis
//! and PostgreSQL on the third; the client is at the router. Every edge between hosts is compared with facts the agents
//! do not use: see [`super::edges`].

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tracer_tests::star::{Nat, Star};

use super::edges::{self, Edges};
use super::{alive, open_to_all, stop_on_signals, stopped, tree};
use crate::http;
use crate::postgres::Cluster;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

const APPLICATION: &str = include_str!("../../../demo/hosts.py");
const NGINX: &str = include_str!("../../../demo/nginx.conf");
/// The hosts, in order.
const HOSTS: [&str; 3] = ["web", "shop", "data"];
const WEB: u8 = 1;
const SHOP: u8 = 2;
const DATA: u8 = 3;
/// Ports, free because the hosts are ours.
const RELAY: u16 = 9465;
const CONSOLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9464);
const FRONT: u16 = 8080;
const GUNICORN: u16 = 8000;
const REDIS: u16 = 6379;
const POSTGRES: u16 = 5432;
/// Concurrent clients; each opens a connection per order.
const CLIENTS: u64 = 8;
/// Largest order number; numbers wrap after it.
const LARGEST: u64 = 20_000;
/// How long agents may take to find each other, and to report the rest after the load.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host's agent and the file it writes spans to.
struct Agent {
    child: SupervisedChild,
    spans: PathBuf,
    dir: PathBuf,
}

/// Runs the demo as root with the agent's binary `tracer`.
pub(super) fn run(tracer: &Path, seconds: u64, once: bool) -> Result<()> {
    stop_on_signals();
    let dir =
        tempfile::Builder::new().prefix("tracer-demo-").tempdir().context("cannot create a temporary directory")?;
    open_to_all(dir.path())?;
    shell::progress("making three hosts; the router between them translates both addresses of every connection");
    let star = Star::new("tracer-demo", DATA, Nat { destination: true, source: true }, RELAY)
        .context("cannot make network namespaces")?;
    let programs = programs(&star, dir.path())?;
    let mut agents = Vec::new();
    for (host, name) in (1..).zip(HOSTS) {
        agents.push(agent(&star, host, name, tracer, dir.path())?);
    }
    meet(&star, &mut agents)?;
    shell::progress(format!("the agents have found each other; ordering for {seconds} s"));
    let shown = watch(&star, &mut agents, seconds, once);
    for agent in agents {
        agent.child.end()?;
    }
    drop(programs);
    drop(star);
    shell::progress("everything is stopped, the hosts are gone");
    shown
}

/// Places orders, shows the result, and continues until Ctrl-C if wanted.
fn watch(star: &Star, agents: &mut [Agent], seconds: u64, once: bool) -> Result<()> {
    let load = Load::default();
    thread::scope(|scope| {
        let over = Over(&load.over);
        for _ in 0..CLIENTS {
            scope.spawn(|| load.client(star));
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until && !stopped() {
            agents.iter_mut().try_for_each(|agent| alive(&mut agent.child, &agent.dir))?;
            thread::sleep(Duration::from_millis(100));
        }
        load.paused.store(true, Ordering::Relaxed);
        if stopped() {
            if once {
                bail!("interrupted before there were figures");
            }
            return Ok(());
        }
        let shown = show(&load, agents);
        if !once && shown.is_ok() {
            load.paused.store(false, Ordering::Relaxed);
            shell::progress("still running; Ctrl-C ends everything. What an agent has to say:");
            for host in 1..=DATA {
                let words = star.enter(host)?.join(" ");
                shell::progress(format!("  {words} curl -s http://{CONSOLE}/api/v1/peers"));
            }
            while !stopped() {
                agents.iter_mut().try_for_each(|agent| alive(&mut agent.child, &agent.dir))?;
                thread::sleep(Duration::from_millis(100));
            }
        }
        drop(over);
        shown
    })
}

/// Ends the load when dropped, for any reason: a scope waits for its threads.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The clients' loop.
#[derive(Default)]
struct Load {
    next: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    open: AtomicU64,
    paused: AtomicBool,
    over: AtomicBool,
}

impl Load {
    fn client(&self, star: &Star) {
        let front = SocketAddr::from((star.address(WEB), FRONT));
        let orders = || {
            while !self.over.load(Ordering::Relaxed) && !stopped() {
                self.open.fetch_add(1, Ordering::SeqCst);
                if self.paused.load(Ordering::SeqCst) {
                    self.open.fetch_sub(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(50));
                    continue;
                }
                let number = 1 + self.next.fetch_add(1, Ordering::Relaxed) % LARGEST;
                let reply = http::get(front, &format!("/order/{number}"));
                let counted = if reply.is_ok_and(|reply| reply.status == 200) { &self.answered } else { &self.failed };
                counted.fetch_add(1, Ordering::Relaxed);
                self.open.fetch_sub(1, Ordering::SeqCst);
                // Keeps the machine busy but not saturated: 8 clients place some hundred orders per second.
                thread::sleep(Duration::from_millis(20 + number % 100));
            }
        };
        if let Err(error) = star.inside(0, orders) {
            shell::progress(format!("a client cannot order: {error}"));
        }
    }

    /// Answered orders, once none is open.
    fn answered(&self) -> u64 {
        let until = Instant::now() + PATIENCE;
        while self.open.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        self.answered.load(Ordering::Relaxed)
    }
}

/// Prints one tree and the sums; fails unless every edge is present and right.
fn show(load: &Load, agents: &mut [Agent]) -> Result<()> {
    let answered = load.answered();
    let failed = load.failed.load(Ordering::Relaxed);
    if answered == 0 || failed > 0 {
        bail!("{answered} orders were answered, {failed} were not");
    }
    shell::progress(format!("{answered} orders were answered; waiting for the agents' last words of them"));
    let until = Instant::now() + PATIENCE;
    let (spans, edges) = loop {
        let mut spans = Vec::new();
        for agent in agents.iter_mut() {
            alive(&mut agent.child, &agent.dir)?;
            spans.extend(read(&agent.spans)?);
        }
        let edges = Edges::of(&spans, answered);
        if edges.is_all() || stopped() || Instant::now() > until {
            break (spans, edges);
        }
        thread::sleep(Duration::from_millis(500));
    };
    let one = edges::whole(&spans).context("no order is one tree across three hosts")?;
    shell::print("");
    let id = one.first().and_then(|span| span["trace_id"].as_str()).unwrap_or("?");
    shell::print(format!("One order, from the client's request to the database: three hosts, one tree ({id})"));
    shell::print("");
    tree::print(&one);
    shell::print("");
    shell::print(format!("orders: {answered} answered, {} whole trees", edges.whole));
    shell::print(format!("edges: {} matched, {} unmatched, {} wrong", edges.matched, edges.unmatched, edges.wrong));
    if !edges.is_all() {
        bail!("not every edge between hosts was found");
    }
    Ok(())
}

/// Spans an agent has written; leaves a line that is not complete yet.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let span = |line| serde_json::from_str(line).with_context(|| format!("{}: not JSON", path.display()));
    whole.lines().map(span).collect()
}

/// Waits until every agent is connected to both others.
fn meet(star: &Star, agents: &mut [Agent]) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    for (host, agent) in (1..).zip(agents) {
        loop {
            alive(&mut agent.child, &agent.dir)?;
            let reply = star.inside(host, || http::get(CONSOLE, "/api/v1/peers"))?;
            let text = reply.map(|reply| reply.text).unwrap_or_default();
            let peers: Value = serde_json::from_str(&text).unwrap_or_default();
            let up = |peer: &&Value| peer["direction"] == "out" && peer["state"] == "up";
            if peers["peers"].as_array().is_some_and(|peers| peers.iter().filter(up).count() == HOSTS.len() - 1) {
                break;
            }
            if stopped() {
                bail!("interrupted");
            }
            if Instant::now() > until {
                bail!("the agent of host {host} does not find the others; its peers: {text}");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Starts a host's agent under the host's name, with a key all of them share.
fn agent(star: &Star, host: u8, name: &str, tracer: &Path, dir: &Path) -> Result<Agent> {
    use std::os::unix::fs::PermissionsExt;
    let own = dir.join(name);
    fs::create_dir(&own).with_context(|| format!("cannot create {}", own.display()))?;
    let key = dir.join("key");
    if !key.exists() {
        let mut bytes = [[0; 16]; 2];
        let random = fs::File::open("/dev/urandom")
            .and_then(|mut file| bytes.iter_mut().try_for_each(|half| std::io::Read::read_exact(&mut file, half)));
        random.context("no random numbers")?;
        let [first, second] = bytes.map(u128::from_be_bytes);
        write(&key, "")?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).context("cannot keep the key from others")?;
        write(&key, &format!("{first:032x}{second:032x}"))?;
    }
    let spans = own.join("spans.ndjson");
    let place = |host: u8| SocketAddr::from((star.own(host), RELAY)).to_string();
    let mut words = star.enter(host)?.to_vec();
    // A host has its own name as well as its own network.
    let named = "echo \"$0\" >/proc/sys/kernel/hostname && exec \"$@\"";
    let unshare = shell::find("unshare").context("unshare is not installed")?.display().to_string();
    words.extend([&unshare, "--uts", "--", "/bin/sh", "-c", named, name].map(str::to_owned));
    words.extend([tracer.display().to_string(), "run".into(), "--own-netns".into()]);
    for (option, value) in [
        ("--listen", CONSOLE.to_string()),
        ("--transactions", spans.display().to_string()),
        ("--relay", place(host)),
        ("--relay-key", key.display().to_string()),
    ] {
        words.extend([option.to_owned(), value]);
    }
    for other in (1..=DATA).filter(|other| *other != host) {
        words.extend(["--relay-peer".to_owned(), place(other)]);
    }
    let child = start(&words, &[], &super::agent_log(&own))?;
    let mut agent = Agent { child, spans, dir: own };
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        alive(&mut agent.child, &agent.dir)?;
        let ready = star.inside(host, || http::get(CONSOLE, "/readyz"))?;
        if ready.as_ref().is_ok_and(|reply| reply.status == 200) {
            return Ok(agent);
        }
        if stopped() || Instant::now() > until {
            let why = ready.map_or_else(|e| format!("{e:#}"), |reply| reply.text);
            bail!("the agent of {name} is not ready: {}", why.trim());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Starts the traced programs and waits until an order can pass through them.
fn programs(star: &Star, dir: &Path) -> Result<Vec<SupervisedChild>> {
    write(&dir.join("hosts.py"), APPLICATION)?;
    let at = |host: u8, port: u16| SocketAddr::from((star.own(host), port));
    let called = |host: u8, port: u16| SocketAddr::from((star.address(host), port));
    let on = |host: u8| star.enter(host).map(|words| words.to_vec());
    let program = |name: &str| super::shop::program(name).map(|path| path.display().to_string());

    let cluster = Cluster::create(&dir.join("orders"), "shop")?.on(on(DATA)?);
    cluster.admit("10.211.0.0/16")?;
    let mut running = vec![cluster.start(at(DATA, POSTGRES), &dir.join("postgres.log"))?];

    let host = star.own(DATA).to_string();
    let mut redis = on(DATA)?;
    redis.push(program("redis-server")?);
    let port = REDIS.to_string();
    let options = ["--bind", &host, "--port", &port, "--save", "", "--daemonize", "no", "--protected-mode", "no"];
    redis.extend(options.map(str::to_owned));
    running.push(start(&redis, &[], &dir.join("redis.log"))?);

    wait_for("PostgreSQL", &mut running, dir, || {
        Ok((!cluster.is_ready(at(DATA, POSTGRES))).then(|| "it takes no connections".into()))
    })?;
    let connection =
        |address: SocketAddr| format!("host={} port={} user=shop dbname=postgres", address.ip(), address.port());
    let mut psql = on(DATA)?;
    psql.push(cluster.programs.join("psql").display().to_string());
    let table = "CREATE TABLE orders (id serial PRIMARY KEY, note text)";
    psql.extend(["-qc".to_owned(), table.to_owned(), connection(at(DATA, POSTGRES))]);
    let (first, rest) = psql.split_first().context("no words")?;
    shell::output(Command::new(first).args(rest).current_dir("/"))?;

    let mut gunicorn = on(SHOP)?;
    gunicorn.push(program("gunicorn")?);
    let (bind, chdir, heartbeat) =
        (format!("--bind={}", at(SHOP, GUNICORN)), format!("--chdir={}", dir.display()), dir.display().to_string());
    gunicorn.extend([bind, chdir, format!("--worker-tmp-dir={heartbeat}")]);
    gunicorn.extend(
        [
            "--worker-class=gthread",
            "--workers=2",
            "--threads=8",
            // Longer than the demo waits anywhere: a request on a connection that expires would be retried.
            "--keep-alive=600",
            "--graceful-timeout=3",
            "--log-level=warning",
            "--user=nobody",
            "--group=nogroup",
            "hosts:app",
        ]
        .map(str::to_owned),
    );
    let (cache, orders) = (format!("redis://{}/0", called(DATA, REDIS)), connection(called(DATA, POSTGRES)));
    let variables =
        [("OTEL_SERVICE_NAME", "shop"), ("PYTHONDONTWRITEBYTECODE", "1"), ("REDIS", &*cache), ("DATABASE", &*orders)];
    running.push(start(&gunicorn, &variables, &dir.join("shop.log"))?);

    let configuration = NGINX
        .replace("@dir@", &dir.display().to_string())
        .replace("@front@", &at(WEB, FRONT).to_string())
        .replace("@tls@", "")
        .replace("@shop@", &called(SHOP, GUNICORN).to_string())
        .replace("@user@", "user nobody nogroup;");
    let file = dir.join("nginx.conf");
    write(&file, &configuration)?;
    let mut nginx = on(WEB)?;
    nginx.push(program("nginx")?);
    let (prefix, errors) = (dir.display().to_string(), dir.join("nginx.error.log").display().to_string());
    nginx.extend(["-p", &prefix, "-e", &errors, "-c", &file.display().to_string()].map(str::to_owned));
    running.push(start(&nginx, &[], &dir.join("nginx.log"))?);

    let front = called(WEB, FRONT);
    wait_for("the shop", &mut running, dir, || {
        let reply = star.inside(0, || http::get(front, "/order/0"))?;
        Ok(match reply {
            Ok(reply) if reply.status == 200 => None,
            Ok(reply) => Some(format!("status {}", reply.status)),
            Err(error) => Some(format!("{error:#}")),
        })
    })?;
    Ok(running)
}

/// Polls until `why_not` gives no reason any more; fails if a program has ended or the wait takes too long, and shows
/// the programs' output.
fn wait_for(
    what: &str,
    running: &mut [SupervisedChild],
    dir: &Path,
    mut why_not: impl FnMut() -> Result<Option<String>>,
) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let Some(why) = why_not()? else { return Ok(()) };
        let mut ended = false;
        for process in running.iter_mut() {
            ended |= process.ended()?.is_some();
        }
        if stopped() {
            bail!("interrupted");
        }
        if ended || Instant::now() > until {
            for log in ["postgres.log", "redis.log", "shop.log", "nginx.log", "nginx.error.log"] {
                let text = fs::read_to_string(dir.join(log)).unwrap_or_default();
                text.lines().for_each(|line| eprintln!("{log}: {line}"));
            }
            bail!("{what} does not answer ({why}); the output of the programs is above");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn start(words: &[String], variables: &[(&str, &str)], log: &Path) -> Result<SupervisedChild> {
    let (program, arguments) = words.split_first().context("no program")?;
    SupervisedChild::start(Root::Already, Path::new(program), arguments, variables, log)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
