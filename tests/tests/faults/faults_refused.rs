//! Faults: the agent is refused memory, file descriptors, or storage in the kernel.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::cgroup::MemoryGroup;
use tracer_tests::faults::{self, Figures};
use tracer_tests::spans::Tail;
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::Server;
use tracer_tests::{begin, bpf, http, load, say, scratch, spans, wait};

/// Permanently limits `command` to this many open files.
fn with_files(command: &mut Command, files: u64) {
    let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
    // SAFETY: a plain system call between fork and exec; it reads a structure copied there.
    unsafe {
        command.pre_exec(move || {
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
}

#[test]
fn the_kernel_kills_the_agent_for_its_memory() {
    let Some(_turn) = begin("faults_memory", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    // Enough for a start; then less than the agent has, as when a host runs out.
    let group = MemoryGroup::new(400 << 20);
    let group = match group {
        Ok(group) => group,
        Err(why) => {
            say(&format!("SKIPPED faults_memory: no memory control group here: {why}"));
            return;
        }
    };
    let procs = group.procs();
    let mut agent = Agent::launch_with("agent", dir.path(), &["--port", &port], |command| {
        let line = std::ffi::CString::new(procs.to_str().expect("a path")).expect("a path");
        // SAFETY: system calls only, on memory made before the fork.
        unsafe {
            command.pre_exec(move || {
                let fd = libc::open(line.as_ptr(), libc::O_WRONLY);
                let done = libc::write(fd, c"0".as_ptr().cast(), 1);
                libc::close(fd);
                if done == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
    })
    .ready();
    let pid = agent.process().pid();
    let held = bpf::held(pid);
    let stop = Instant::now() + Duration::from_secs(faults::size(6, 30));
    let address = server.address;
    let load = std::thread::spawn(move || load::until(address, 8, &["/a", "/b/d100"], stop));
    std::thread::sleep(Duration::from_secs(1));
    // The agent holds more than the new limit and cannot give it back.
    let at = Vitals::of(pid);
    group.limit(8 << 20);
    let status = wait("the kernel to kill the agent", Duration::from_secs(30), || agent.process().ended());
    let left = bpf::left(&held);
    let (good, bad) = load.join().expect("load");
    say(&format!(
        "memory: {status} at {:.0} MB, {} kills, {left} objects left; {good} good, {bad} bad",
        at.rss / 1e6,
        group.killed()
    ));
    let mut figures = Figures::of("memory limit reached", "control group, killed by the kernel");
    figures.traced(good + bad, bad).attached(left);
    let file = agent.transactions.clone();
    drop(agent);
    // The kill may cut the last line, but no other.
    let written = Tail::new(&file).read().len();
    figures.note(format!("{written} spans in its file, readable")).finish();
    assert!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGKILL) && group.killed() > 0);
}

#[test]
fn file_descriptors_run_out() {
    let Some(_turn) = begin("faults_descriptors", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let mut figures = Figures::of("file descriptors exhausted", "limit 10 to 120, 200 silent readers");
    // Too few to start: reported, and nothing left behind.
    let mut refused = 0;
    let mut enough = None;
    for files in (10..=400).step_by(faults::size(50, 10)) {
        let mut agent = Agent::launch_with(&format!("agent-{files}"), dir.path(), &["--port", &port], |command| {
            with_files(command, files);
        });
        let pid = agent.process().pid();
        let mut held = bpf::Objects::new();
        let ended = wait("the agent to start or end", Duration::from_secs(30), || {
            held.extend(bpf::held(pid));
            match agent.process().ended() {
                Some(status) => Some(Some(status)),
                None => http::get(agent.listen, "/readyz").is_ok_and(|reply| reply.status == 200).then_some(None),
            }
        });
        let Some(status) = ended else {
            enough = Some((files, agent, held));
            break;
        };
        let output = agent.output();
        assert!(matches!(status.code(), Some(1 | 77)), "{files}: {status}:\n{output}");
        assert!(!output.contains("panicked") && output.contains("file"), "{files}: {output}");
        figures.attached(bpf::left(&held));
        refused += 1;
    }
    let (files, mut agent, held) = enough.expect("400 are enough");
    assert!(refused > 0, "{files} are enough already");
    // Just enough, and many competing readers: tracing goes on, and names are known.
    let before = Vitals::of(agent.process().pid());
    let silent: Vec<_> = (0..200)
        .filter_map(|_| std::net::TcpStream::connect_timeout(&agent.listen, Duration::from_millis(200)).ok())
        .collect();
    let plans = faults::plans("few", 4, 100);
    figures.loaded(&load::run(server.address, plans.clone()));
    faults::reported(&agent, &plans);
    let during = Vitals::of(agent.process().pid());
    assert!(during.fds < files as usize, "{during:?}");
    let count = silent.len();
    drop(silent);
    wait("the console to answer", Duration::from_secs(30), || http::get(agent.listen, "/readyz").ok().map(drop));
    let lost = faults::operations_lost(&agent.metrics());
    let after = Vitals::of(agent.process().pid());
    let file = agent.transactions.clone();
    agent.stop();
    let spans = spans::read(&file);
    let judged = faults::judge(&plans, &spans);
    judged.covered(lost);
    let named = spans.iter().filter(|span| span.server).all(|span| span.service == "origin");
    assert!(named, "its service could not be read: {:?}", spans.iter().find(|span| span.server));
    say(&format!(
        "descriptors: {refused} limits refused, {files} enough with {count} silent readers: {} open",
        during.fds
    ));
    figures.judged(&judged, lost).growth(before, after).attached(bpf::left(&held));
    figures.note(format!("refused with a message below {files}")).finish();
}

/// Moves this thread into a network namespace in which the kernel has no memory for socket data.
fn enter_poor_network() {
    // SAFETY: a plain system call that concerns this thread alone.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(done, 0, "unshare: {}", std::io::Error::last_os_error());
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip");
    assert!(up.success());
}

/// Memory that this thread's network namespace allows for a socket's auxiliary data, bytes.
const OPTION_MEMORY: &str = "/proc/sys/net/core/optmem_max";

fn option_memory(bytes: u32) {
    std::fs::write(OPTION_MEMORY, bytes.to_string()).unwrap_or_else(|error| panic!("{OPTION_MEMORY}: {error}"));
}

#[test]
fn storage_refused_by_the_kernel_is_counted() {
    let Some(_turn) = begin("faults_storage", &["cc", "ip"]) else { return };
    let dir = scratch();
    let program = tracer_tests::workload::compile(dir.path(), "origin");
    let mut agent = Agent::start(dir.path(), &["--hertz", "0"]);
    let held = bpf::held(agent.process().pid());
    let before = Vitals::of(agent.process().pid());
    let machine = std::fs::read_to_string(OPTION_MEMORY).expect("a setting");
    let poor = faults::plans("poor", 4, 50);
    let rich = faults::plans("rich", 4, 50);
    let (path, plans) = (dir.path().to_owned(), (poor.clone(), rich.clone()));
    // The thread and its children live in its own namespace; the machine's stays untouched.
    let worker = std::thread::spawn(move || {
        enter_poor_network();
        let server = Server::start("origin", &path, &mut Command::new(program));
        option_memory(64);
        let first = load::run(server.address, plans.0);
        option_memory(131_072);
        let second = load::run(server.address, plans.1);
        (first, second)
    });
    let (first, second) = worker.join().expect("the poor network");
    assert_eq!(std::fs::read_to_string(OPTION_MEMORY).expect("a setting"), machine);
    faults::reported(&agent, &rich);
    let metrics = agent.metrics();
    let refused = metrics.sum("tracer_events_lost_total", &[("reason", "socket_storage_refused")]);
    let after = Vitals::of(agent.process().pid());
    let file = agent.transactions.clone();
    agent.stop();
    let spans = spans::read(&file);
    let judged = faults::judge(&poor, &spans);
    say(&format!("storage: {refused} refusals counted, {} ends missing", judged.missing()));
    judged.covered(refused);
    assert_eq!(judged.missing(), 2 * judged.sent, "storage was to be had: nothing was tested: {judged:?}");
    // One per operation and per connection state that the kernel would have stored, and one per arrival.
    assert!(refused <= 8.0 * judged.sent as f64, "{refused} refusals of {} requests", judged.sent);
    faults::judge(&rich, &spans).whole();
    let mut figures = Figures::of("kernel refuses socket storage", "a network without option memory");
    figures.loaded(&first).loaded(&second).judged(&judged, refused).growth(before, after);
    figures.attached(bpf::left(&held)).note("right again once there is memory").finish();
}
