//! `tracer top` in a real terminal (tmux): classes of a running agent, or of one of its own, by keys as a person presses them.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracer_tests::agent::{self, Agent};
use tracer_tests::workload::Server;
use tracer_tests::{begin, http, load, say, scratch, wait};

const PATIENCE: Duration = Duration::from_secs(40);

/// A terminal of its own server, which ends with it.
struct Terminal {
    server: String,
}

impl Terminal {
    fn start(arguments: &[&str]) -> Self {
        let terminal = Self { server: format!("tracer-test-{}", std::process::id()) };
        let program = agent::binary();
        let program = program.to_str().expect("a path");
        let session = ["new-session", "-d", "-x", "140", "-y", "40", program, "top", "--interval", "1s"];
        terminal.tmux(&[&session, arguments].concat());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        // No configuration of the person who runs the test.
        command.args(["-f", "/dev/null", "-L", &self.server]).args(arguments).env("TERM", "xterm-256color");
        let output = command.output().expect("tmux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits for a screen.
    fn until(&self, what: &str, shows: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if shows(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "no screen with {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Clients that ask a server for both its classes until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Load {
    fn start(server: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                load::until(server, 2, &["/alpha", "/beta"], Instant::now() + Duration::from_secs(1));
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load");
    }
}

/// Line of the screen on which `text` is first.
fn line(screen: &str, text: &str) -> Option<usize> {
    screen.lines().position(|line| line.contains(text))
}

#[test]
fn keys_lead_to_the_hottest_function() {
    let Some(_turn) = begin("top", &["cc", "tmux"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let load = Load::start(server.address);
    wait("samples", PATIENCE, || {
        // 404 until the first request is reported.
        let reply = http::get(agent.listen, "/profile.folded?service=burn").ok().filter(|reply| reply.status == 200)?;
        reply.text().contains("burn_alpha").then_some(())
    });
    let alpha_first =
        |screen: &str| line(screen, "GET /alpha").zip(line(screen, "GET /beta")).map(|(alpha, beta)| alpha < beta);
    let terminal = Terminal::start(&["--url", &format!("http://{}", agent.listen)]);
    // The one that burns more CPU stands above the other.
    terminal.until("both classes by CPU", |screen| alpha_first(screen) == Some(true));
    terminal.press("n");
    let by_name = terminal.until("the order by name", |screen| screen.contains("class▼") || screen.contains("class▲"));
    let order = alpha_first(&by_name);
    terminal.press("n");
    terminal.until("the order by name, turned", |screen| alpha_first(screen).is_some_and(|now| Some(now) != order));
    terminal.press("c");
    terminal.press("/");
    terminal.tmux(&["send-keys", "-l", "alpha"]);
    terminal.press("Enter");
    terminal.until("one class", |screen| screen.contains("GET /alpha") && !screen.contains("GET /beta"));
    terminal.press("Enter");
    let details = terminal.until("the hottest functions", |screen| screen.contains("burn_alpha"));
    say(&format!("top: {} lines with the hottest functions", details.lines().filter(|line| !line.is_empty()).count()));
    terminal.press("Escape");
    terminal.until("the list again", |screen| screen.contains("GET /alpha") && !screen.contains("burn_alpha"));
    terminal.press("Escape");
    // Without a pause behind it, the key and the next one are one with Alt.
    terminal.until("both classes", |screen| screen.contains("GET /beta"));
    terminal.press("t");
    terminal.until("a tree: classes below their service", |screen| {
        line(screen, "burn").zip(line(screen, "GET /beta")).is_some_and(|(service, class)| service < class)
    });
    terminal.press("o");
    terminal.until("a request that runs now", |screen| {
        screen.contains("running now: ") && line(screen, "GET /").is_some_and(|at| at > 2)
    });
    terminal.press("o");
    terminal.press("h");
    terminal.until("the help", |screen| screen.contains("sort by rate"));
    terminal.press("q");
    terminal.press("q");
    wait("the terminal to end with the program", PATIENCE, || {
        terminal.tmux(&["list-sessions"]).trim().is_empty().then_some(())
    });
    load.stop();
    agent.stop();
}

/// Where an agent listens by default.
const DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 9464);

#[test]
fn where_no_agent_runs_it_has_its_own() {
    let Some(_turn) = begin("top", &["cc", "tmux"]) else { return };
    let listens = || TcpStream::connect(SocketAddr::from(DEFAULT)).is_ok();
    assert!(!listens(), "an agent, or something else, is at the default address");
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let load = Load::start(server.address);
    let terminal = Terminal::start(&[]);
    terminal.until("classes", |screen| screen.contains("GET /alpha") && screen.contains("GET /beta"));
    terminal.press("q");
    let ended = || terminal.tmux(&["list-sessions"]).trim().is_empty().then_some(());
    wait("the terminal to end with the program", PATIENCE, ended);
    assert!(!listens(), "it ended before its agent did");
    // However it ends, so does its agent.
    let terminal = Terminal::start(&[]);
    terminal.until("classes", |screen| screen.contains("GET /alpha"));
    let pid = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]).trim().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
    wait("its agent to end, too", PATIENCE, || (!listens()).then_some(()));
    load.stop();
}
