//! How the agent starts and ends, and its messages when it cannot.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::{self, Agent, Outcome};
use tracer_tests::workload::Server;
use tracer_tests::{Numbers, Turn, begin, bpf, figure, http, load, say, scale, scratch, spans, wait};

#[test]
fn signals_detach_within_a_second_and_a_kill_leaves_nothing() {
    let Some(_turn) = begin("lifecycle_signals", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    // Under load, so that a busy agent is ended.
    let stop = Arc::new(AtomicBool::new(false));
    let load = {
        let (address, stop) = (server.address, Arc::clone(&stop));
        std::thread::spawn(move || {
            let (mut good, mut bad) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let more = load::until(address, 2, &["/a/d200"], Instant::now() + Duration::from_secs(1));
                (good, bad) = (good + more.0, bad + more.1);
            }
            (good, bad)
        })
    };
    // Kernels without this function take two grace periods for each probe of a TLS library, one after the other (docs/limits.md).
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("the kernel's symbols");
    let side_by_side = symbols.lines().any(|line| line.ends_with(" uprobe_unregister_nosync"));
    let ways = [("off", 1), ("auto", if side_by_side { 1 } else { 5 })];
    let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGKILL];
    for ((tls, seconds), signal) in ways.into_iter().flat_map(|way| signals.map(|signal| (way, signal))) {
        let before = bpf::programs();
        let agent = Agent::start(dir.path(), &["--tls", tls]);
        assert!(bpf::programs().len() > before.len());
        let listen = agent.listen;
        let ended = agent.end(signal);
        say(&format!("signal {signal}, tls {tls}: {} after {:.0} ms", ended.status, ended.took.as_secs_f64() * 1e3));
        assert!(ended.took < Duration::from_secs(seconds).div_f64(scale().max(0.2)), "{tls}: {:?}", ended.took);
        assert!(signal == libc::SIGKILL || ended.status.success(), "{}:\n{}", ended.status, ended.output);
        // The kernel frees programs after a grace period of its own.
        wait("the kernel to free the programs", Duration::from_secs(30), || (bpf::programs() == before).then_some(()));
        let left = bpf::programs().difference(&before).count();
        figure(&format!("left after signal {signal}, tls {tls}"), &format!("{left} programs"));
        drop(std::net::TcpListener::bind(listen).expect("the console's port is free again"));
    }
    stop.store(true, Ordering::Relaxed);
    let (good, bad) = load.join().expect("load");
    assert!(good as f64 > 1000.0 * scale() && bad == 0, "the traced server: {good} good, {bad} bad");
}

fn says(outcome: &Outcome, code: i32, needles: &[&str]) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    for needle in needles {
        assert!(outcome.err.contains(needle) || outcome.out.contains(needle), "{needle}: {outcome:?}");
    }
    assert!(!outcome.err.contains("panicked"), "{outcome:?}");
}

#[test]
fn wrong_configuration_is_named_by_line() {
    let Some(_turn) = begin("lifecycle_config", &[]) else { return };
    let dir = scratch();
    let file = dir.path().join("tracer.toml");
    let path = file.to_str().expect("path");
    for (text, place, expected) in [
        ("[agent]\nlisten = \"x\"\n", "tracer.toml:2:", "expected an address and a port"),
        ("[agent\n", "tracer.toml:1:", "expected `]`"),
        ("[agent]\n[clases]\n", "tracer.toml:2:", "expected one of"),
        ("\n[sampling]\nhertz = -1\n", "tracer.toml:3:", "expected"),
        ("[transactions]\ngrace = \"2 hours\"\n", "tracer.toml:2:", "expected a time"),
        ("[[class]]\nname = \"a\"\nstatus = [\"ten\"]\n", "tracer.toml:3:", "expected"),
    ] {
        std::fs::write(&file, text).expect("a file");
        says(&agent::command(&["check-config", path]), 2, &[place, expected]);
        says(&agent::command(&["run", "--config", path]), 2, &[place, expected]);
    }
    let mut numbers = Numbers::new(11);
    for _ in 0..40 {
        let bytes: Vec<u8> = (0..numbers.below(300)).map(|_| numbers.below(256) as u8).collect();
        std::fs::write(&file, bytes).expect("a file");
        let outcome = agent::command(&["check-config", path]);
        assert!(matches!(outcome.code, Some(0 | 2)) && !outcome.err.contains("panicked"), "{outcome:?}");
    }
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/tracer.toml");
    says(&agent::command(&["check-config", own]), 0, &[]);
    says(&agent::command(&["check-config", "/nonexistent"]), 2, &["/nonexistent"]);
}

#[test]
fn what_cannot_run_says_why() {
    let Some(_turn) = begin("lifecycle_refusals", &["unshare", "umount"]) else { return };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    says(&agent::command(&["run", "--listen", &address]), 1, &["in use", &address, "--listen"]);

    // As user nobody, who must be able to reach the binary.
    let dir = scratch();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let copy = dir.path().join("tracer");
    std::fs::copy(agent::binary(), &copy).expect("a copy");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    for what in ["run", "doctor"] {
        let mut command = Command::new(&copy);
        command.arg(what).uid(65534).gid(65534).current_dir("/");
        says(&agent::outcome(&mut command, what), 77, &["root", "CAP_BPF"]);
    }

    // A mount namespace in which something is unmounted.
    let within = |unmounted: &str, arguments: &str| {
        let script = format!("{unmounted}; exec {} {arguments}", agent::binary().display());
        agent::outcome(Command::new("unshare").args(["-m", "sh", "-c", &script]), arguments)
    };
    for what in ["run", "doctor"] {
        says(&within("umount -l /sys", what), 77, &["/sys/kernel/btf/vmlinux", "BTF"]);
    }
    let quiet = "for m in /sys/fs/bpf /sys/kernel/tracing /sys/kernel/debug; do umount -l $m 2>/dev/null; done";
    says(&within(quiet, "doctor"), 0, &["TCP sockets"]);
}

#[test]
fn recordings_that_are_not_whole_are_refused_or_read_to_where_they_are() {
    let Some(_turn) = begin("lifecycle_recordings", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let file = dir.path().join("recording");
    let path = file.to_str().expect("path").to_owned();
    let agent = Agent::start(dir.path(), &["--record", &path]);
    load::until(server.address, 2, &["/a", "/b"], Instant::now() + Duration::from_secs(1));
    agent.stop();
    assert_eq!(std::fs::metadata(&file).expect("recording").permissions().mode() & 0o777, 0o600);
    let whole = std::fs::read(&file).expect("recording");
    says(&agent::command(&["replay", &path]), 0, &["GET /a"]);

    let mut numbers = Numbers::new(5);
    let broken = dir.path().join("broken");
    let name = broken.to_str().expect("path");
    for turn in 0..30 {
        let mut bytes = whole.clone();
        let at = numbers.below(bytes.len() as u64) as usize;
        if turn % 2 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << numbers.below(8);
        }
        std::fs::write(&broken, &bytes).expect("a file");
        let outcome = agent::command(&["replay", name]);
        // The byte may be irrelevant; if the error is noticed, the message names its position.
        assert!(matches!(outcome.code, Some(0 | 1)) && !outcome.err.contains("panicked"), "{outcome:?}");
        assert!(outcome.code == Some(0) || outcome.err.contains("broken"), "{outcome:?}");
        assert!(turn % 2 == 1 || outcome.code == Some(1), "cut at {at}: {outcome:?}");
    }
    std::fs::write(&broken, b"GIF89a").expect("a file");
    says(&agent::command(&["replay", name]), 1, &["tracer record"]);
}

fn noise(address: SocketAddr, connections: u64, numbers: &mut Numbers) {
    for _ in 0..connections {
        let mut bytes: Vec<u8> = match numbers.below(4) {
            0 => b"GET /evil HTTP/1.1\r\nContent-Length: 18446744073709551615\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec(),
            1 => b"POST /evil HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n".to_vec(),
            2 => [b"GET /".to_vec(), vec![b'a'; numbers.below(70_000) as usize]].concat(),
            _ => Vec::new(),
        };
        bytes.extend((0..numbers.below(4000)).map(|_| numbers.below(256) as u8));
        let Ok(mut connection) = http::Connection::open(address) else { continue };
        // The server may close at any byte, and should.
        let _ = connection.send(&bytes);
        let _ = connection.finish();
        let _ = connection.head();
    }
}

#[test]
fn hostile_bytes_disturb_neither_the_agent_nor_the_traced() {
    let Some(_turn): Option<Turn> = begin("lifecycle_hostile", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let mut numbers = Numbers::new(17);
    // The traced server, then the agent's own console.
    noise(server.address, 300, &mut numbers);
    noise(agent.listen, 300, &mut numbers);
    let loaded = load::run(
        server.address,
        (0..4).map(|c| (0..50).map(|r| load::Request::get(format!("/after/c{c}r{r}"))).collect()).collect(),
    );
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let mut tail = spans::Tail::new(&agent.transactions);
    let seen = tail.until(200, Duration::from_secs(10), |span| span.server && span.path.starts_with("/after/"));
    assert_eq!(seen, 200);
    assert_eq!(http::get(agent.listen, "/readyz").expect("console").status, 200);
    agent.stop();
}
