//! Files that users name for writing and reading: the agent neither waits for them, whatever they are, nor touches other
//! users' files, and ends within a second.

use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use tracer_tests::agent::{self, Agent, Outcome};
use tracer_tests::faults;
use tracer_tests::workload::Server;
use tracer_tests::{begin, load, say, scale, scratch, wait};

/// A user that is not the agent's.
const OTHER_USER: u32 = 65534;

fn fifo(path: &Path) {
    let name = std::ffi::CString::new(path.to_str().expect("a path")).expect("a path");
    // SAFETY: a valid string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// Runs the agent with these arguments, which it refuses before it touches the kernel.
fn refused(arguments: &[&str], code: i32, needles: &[&str]) {
    let began = Instant::now();
    let outcome: Outcome = agent::command(arguments);
    assert!(began.elapsed() < Duration::from_secs(5).div_f64(scale().max(0.2)), "{arguments:?}: {outcome:?}");
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {outcome:?}");
    for needle in needles {
        assert!(outcome.err.contains(needle), "{arguments:?}: {needle}: {outcome:?}");
    }
}

#[test]
fn what_cannot_be_written_safely_is_refused() {
    let Some(_turn) = begin("outputs_refused", &[]) else { return };
    let dir = scratch();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let precious = dir.path().join("precious");
    std::fs::write(&precious, "precious").expect("a file");
    symlink("precious", at("link")).expect("a link");
    // What an unprivileged user has, and may replace at any time.
    for name in ["theirs", "home"] {
        std::fs::create_dir(at(name)).expect("a directory");
        chown(at(name), Some(OTHER_USER), None).expect("root");
    }
    symlink(&precious, at("home/link")).expect("a link");
    symlink(dir.path(), at("home/dir")).expect("a link");
    fifo(Path::new(&at("fifo")));
    let run = |option: &str, file: &str, needle: &str| {
        let listen = format!("127.0.0.1:{}", tracer_tests::free_port());
        refused(&["run", "--listen", &listen, option, file], 1, &[file, needle]);
    };
    for option in ["--transactions", "--record"] {
        run(option, &at("home/new"), "user 65534's");
        run(option, &at("home/dir/new"), "user 65534's");
    }
    run("--transactions", &at("link"), "symbolic link");
    run("--transactions", &at("home/link"), "user 65534's");
    run("--transactions", &at("fifo"), "start its reader first");
    run("--transactions", "/dev/zero", "of devices only");
    run("--record", &at("link"), "exists");
    run("--record", &at("fifo"), "exists");
    run("--save-transactions", &at("theirs"), "user 65534's");
    symlink("/var", at("var")).expect("a link");
    run("--save-transactions", &at("var"), "symbolic link");
    run("--save-transactions", &at("fifo"), "");
    assert_eq!(std::fs::read_to_string(&precious).expect("a file"), "precious");
    assert!(std::fs::read_dir(at("home")).expect("a directory").count() == 2, "nothing was made there");
}

#[test]
fn what_cannot_be_read_is_refused_at_once() {
    let Some(_turn) = begin("inputs_refused", &[]) else { return };
    let dir = scratch();
    let path = dir.path().join("fifo");
    fifo(&path);
    let huge = dir.path().join("huge");
    std::fs::File::create(&huge).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    for (file, needle) in [
        ("/dev/zero", "regular file"),
        (path.to_str().expect("a path"), "regular file"),
        (huge.to_str().expect("a path"), "at most 1024 KiB"),
    ] {
        refused(&["check-config", file], 2, &[file, needle]);
        refused(&["run", "--config", file], 2, &[file, needle]);
    }
    refused(&["replay", "/dev/zero"], 1, &["/dev/zero"]);
    refused(&["replay", path.to_str().expect("a path")], 1, &["tracer record"]);
    // What nothing can come of.
    let mut gone = std::process::Command::new("true").spawn().expect("true");
    gone.wait().expect("its end");
    let pid = gone.id().to_string();
    refused(&["run", "--pid", &pid], 2, &["there is no process", &pid]);
    refused(&["run", "--hertz", "10001"], 2, &["--hertz", "10000"]);
}

/// A file of an earlier run, which the file system would write out when it is closed.
#[test]
fn a_signal_ends_the_agent_within_a_second_whatever_it_writes_to() {
    let Some(_turn) = begin("outputs_end", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    for (what, signal) in [("file", libc::SIGINT), ("file", libc::SIGTERM), ("pipe", libc::SIGTERM)] {
        let path = dir.path().join(what);
        let pipe = (what == "pipe").then(|| {
            fifo(&path);
            // Never read. Without O_NONBLOCK it would wait for a writer.
            std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("a pipe")
        });
        if pipe.is_none() {
            std::fs::write(&path, vec![b'x'; 64 << 20]).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("its mode");
        }
        // The kernel takes its time to remove probes of TLS libraries (docs/limits.md).
        let arguments =
            ["--hertz=0", "--tls=off", "--port", &port, "--service", "no-such-service", "--service", "origin"];
        let agent = Agent::launch_writing("agent", dir.path(), &path, &arguments, |_| ()).ready();
        let plans = faults::plans("ending", 4, 500);
        let sent: usize = plans.iter().map(Vec::len).sum();
        load::run(server.address, plans);
        wait("every request to be traced", Duration::from_secs(30), || {
            let classes = agent.json("/api/v1/classes");
            let counts = classes["classes"].as_array()?.iter().filter_map(|class| class["count"].as_u64());
            (counts.sum::<u64>() >= sent as u64).then_some(())
        });
        let listen = agent.listen;
        let ended = agent.end(signal);
        say(&format!("{what}, signal {signal}: ended after {:?}", ended.took));
        drop(TcpListener::bind(listen).expect("the console's port is free"));
        assert!(ended.took < Duration::from_secs(1).div_f64(scale().max(0.2)), "{:?}\n{}", ended.took, ended.output);
        assert!(ended.status.success(), "{}: {}", ended.status, ended.output);
        assert!(ended.output.contains("'no-such-service'") && !ended.output.contains("'origin'"), "{}", ended.output);
        // Who pressed Ctrl-C wants to see what there was.
        let summary = ended.output.contains("capture ratio") && ended.output.contains("GET /ending");
        assert_eq!(summary, signal == libc::SIGINT, "{}", ended.output);
        assert_eq!(ended.output.contains("were not written before the end"), pipe.is_some(), "{}", ended.output);
        let about = std::fs::metadata(&path).expect("what it wrote");
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        assert!(about.len() < 64 << 20, "it was begun anew");
    }
}
