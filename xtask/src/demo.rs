//! `cargo xtask demo`: a small web shop under load on this machine, traced, and what the agent reports about it; with
//! `--hosts` over several hosts.

mod edges;
mod hosts;
mod incident;
mod policies;
mod regression;
mod report;
mod shop;
mod tree;

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::http;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;
use crate::{build, build_ebpf, setup};

/// Where the agent listens if the port is free.
const CONSOLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// `cargo xtask demo`.
#[derive(Args)]
pub(crate) struct Options {
    /// End after printing instead of running until Ctrl-C.
    #[arg(long)]
    once: bool,
    /// Seconds of load before the figures are printed.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Over this many hosts (network namespaces, removed at the end) with address translation between them, an agent on
    /// each: prints one order as a tree across all of them, and how many edges between hosts were found, missed and
    /// wrong.
    #[arg(long, value_name = "3", value_parser = clap::value_parser!(u8).range(3..=3))]
    hosts: Option<u8>,
    /// Let one class of request get dearer while everything runs, and wait until the agent says which, since when and by how
    /// much; fails if it does not. Windows of a second.
    #[arg(long, conflicts_with = "hosts")]
    regression: bool,
    /// Let a lock be held, a function throw and a statement get slow while everything runs, each in a class of its own, and ask
    /// the agent what an engineer on call would: fails if it does not name the place.
    #[arg(long, conflicts_with_all = ["hosts", "regression"])]
    incident: bool,
    /// Two service classes and a declared function of one server compete for one CPU: prints how each class reaches its
    /// goal without and with --enforce on, for this many --seconds each.
    #[arg(long, conflicts_with_all = ["hosts", "regression", "incident"])]
    policies: bool,
    /// The agent's binary, when sudo restarts this program as root.
    #[arg(long, hide = true)]
    tracer: Option<PathBuf>,
}

/// Runs the demo. Every process ends with this one, however it ends; the temporary directory is removed.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    let tracer = if let Some(tracer) = &options.tracer {
        tracer.clone()
    } else {
        setup::programs()?;
        build_ebpf::ready(way)?;
        build::tracer(way, true)?
    };
    if options.hosts.is_some() || options.policies {
        return as_root(&tracer, options);
    }
    let root = Root::obtain("load eBPF programs")?;
    stop_on_signals();

    // Readable for the servers' unprivileged users.
    let dir =
        tempfile::Builder::new().prefix("tracer-demo-").tempdir().context("cannot create a temporary directory")?;
    open_to_all(dir.path())?;
    let shop = shop::start(dir.path())?;
    shell::progress(format!(
        "the shop answers on http://{}/ and https://{}/ (nginx, gunicorn with two services, PostgreSQL, Redis)",
        shop.front, shop.secure
    ));
    // Before the agent: connections and processes older than it are traced too.
    let load = shop::load(dir.path(), &shop)?;
    let more = if options.regression {
        regression::arguments(dir.path())?
    } else if options.incident {
        incident::arguments(dir.path())?
    } else {
        Vec::new()
    };
    let (mut agent, console) = start_agent(root, &tracer, dir.path(), &more)?;

    let shown = if options.regression {
        regression::watch(&mut agent, dir.path(), console, options.once)
    } else if options.incident {
        incident::watch(&mut agent, dir.path(), console, options.once)
    } else {
        watch(&mut agent, dir.path(), console, options)
    };
    // The load first, so that no request meets a stopped server; then the agent.
    drop(load);
    let ended = agent.end();
    drop(shop);
    shell::progress("everything is stopped");
    shown.and(ended.map(drop))
}

/// The demos of which all runs as root: over several hosts, because creating a network namespace needs it; and of
/// service classes, because root's own configuration does.
fn as_root(tracer: &Path, options: &Options) -> Result<()> {
    let root = Root::obtain("load eBPF programs, make network namespaces and change priorities")?;
    if root == Root::Already {
        if options.policies {
            stop_on_signals();
            let dir = tempfile::Builder::new().prefix("tracer-demo-").tempdir();
            let dir = dir.context("cannot create a temporary directory")?;
            return policies::run(tracer, dir.path(), options.seconds);
        }
        return hosts::run(tracer, options.seconds, options.once);
    }
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = root.command(own);
    command.arg("demo").args(if options.policies { &["--policies"][..] } else { &["--hosts", "3"] });
    command.args(["--seconds", &options.seconds.to_string(), "--tracer"]).arg(tracer);
    if options.once {
        command.arg("--once");
    }
    // Ctrl-C also reaches the child that runs as root: it ends in order, and then this process does.
    stop_on_signals();
    shell::run(&mut command, "")
}

/// Lets the load run, prints the figures and, unless `--once` is set, waits for Ctrl-C.
fn watch(agent: &mut SupervisedChild, dir: &Path, console: SocketAddr, options: &Options) -> Result<()> {
    shell::progress(format!("tracing for {} s; console: http://{console}/", options.seconds));
    let until = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < until {
        if stopped() {
            return Ok(());
        }
        alive(agent, dir)?;
        thread::sleep(Duration::from_millis(100));
    }
    report::show(console)?;
    tree::show(console)?;
    if options.once {
        return Ok(());
    }
    until_stopped(agent, dir, console)
}

/// Waits for Ctrl-C.
fn until_stopped(agent: &mut SupervisedChild, dir: &Path, console: SocketAddr) -> Result<()> {
    shell::progress(format!("still running; console: http://{console}/ ; Ctrl-C ends everything"));
    while !stopped() {
        alive(agent, dir)?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Starts the agent and waits until every mandatory hook is attached.
fn start_agent(
    root: Root,
    tracer: &Path,
    dir: &Path,
    more: &[impl AsRef<OsStr>],
) -> Result<(SupervisedChild, SocketAddr)> {
    let console = if TcpListener::bind(CONSOLE).is_ok() { CONSOLE } else { free_address()? };
    if console != CONSOLE {
        shell::progress(format!("{CONSOLE} is in use; the console is on {console}"));
    }
    let listen = console.to_string();
    let own = ["run", "--listen", &listen].map(OsStr::new);
    let arguments: Vec<&OsStr> = own.into_iter().chain(more.iter().map(AsRef::as_ref)).collect();
    let mut agent = SupervisedChild::start(root, tracer, &arguments, &[], &agent_log(dir))?;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        alive(&mut agent, dir)?;
        if stopped() {
            bail!("interrupted");
        }
        if http::get(console, "/readyz").is_ok_and(|reply| reply.status == 200) {
            return Ok((agent, console));
        }
        if Instant::now() > until {
            let why = http::get(console, "/readyz").map_or_else(|e| format!("{e:#}"), |reply| reply.text);
            bail!("the agent is not ready after 60 s: {}; `tracer doctor` says what is missing", why.trim());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Fails with the agent's last output if it has ended.
fn alive(agent: &mut SupervisedChild, dir: &Path) -> Result<()> {
    let Some(status) = agent.ended()? else { return Ok(()) };
    let log = fs::read(agent_log(dir)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let tail: Vec<&str> = log.lines().rev().take(20).collect();
    tail.iter().rev().for_each(|line| eprintln!("tracer: {line}"));
    let hint = if status.code() == Some(77) {
        ": this kernel or these privileges cannot do it; see `tracer doctor`"
    } else {
        ""
    };
    bail!("the agent ended ({status}){hint}");
}

fn agent_log(dir: &Path) -> PathBuf {
    dir.join("tracer.log")
}

/// A free loopback address.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on 127.0.0.1")?;
    listener.local_addr().context("cannot read the address of a socket")
}

fn open_to_all(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot change permissions of {}", dir.display()))
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether a signal asked us to end.
fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

extern "C" fn note_signal(_: libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// From here on, Ctrl-C, SIGTERM and SIGHUP end the demo in order.
fn stop_on_signals() {
    let handler: extern "C" fn(libc::c_int) = note_signal;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is safe in a signal handler, and it lives forever.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
