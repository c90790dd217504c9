//! The agent's own limits in practice: resource limits, load shedding and its order, the watchdog.

use std::path::Path;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{begin, bpf, http, say, scale, scratch, wait};

/// Exit code of an agent that detached itself.
const DETACHED: i32 = 3;

/// Memory of a process, bytes, without file pages: the limit applies to it.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    (kib("RssAnon").unwrap_or(0) + kib("RssShmem").unwrap_or(0)) * 1024
}

fn config(dir: &Path, text: &str) -> String {
    let path = dir.join("tracer.toml");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("a path").to_owned()
}

/// `connections` that stay open and request `each` new paths each, in words the agent cannot take for numbers.
fn flood(connections: u64, each: u64, seed: u64) -> Vec<Vec<Request>> {
    let word = |mut n: u64| {
        let mut text = String::new();
        for _ in 0..8 {
            text.push(char::from(b"aeioulnrstbcdfgh"[(n % 16) as usize]));
            n /= 16;
        }
        text
    };
    (0..connections)
        .map(|c| {
            (0..each)
                .map(|r| {
                    let n = (seed * connections + c) * each + r;
                    let target = format!("/{}/{}/{}", word(n / 97), word(n), "x".repeat((n % 1500) as usize));
                    Request { pause: Duration::from_millis(2), ..Request::get(target) }
                })
                .collect()
        })
        .collect()
}

#[test]
fn detail_is_given_up_in_order_and_taken_back_and_sums_stay_whole() {
    let Some(_turn) = begin("limits_shed", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let text = "[limits]\nrestore_after = \"1s\"\n[classes]\nmax_per_service = 5000\nlearn_after = 5000\n";
    let ceiling: u64 = 64 << 20;
    let port = server.address.port().to_string();
    let arguments = ["--config", &config(dir.path(), text), "--max-memory", "64M", "--port", &port];
    let mut agent = Agent::start(dir.path(), &arguments);
    let pid = agent.process().pid();
    let idle = memory(pid);
    let before = agent.metrics();
    let level = |agent: &Agent| agent.metrics().sum("tracer_load_shedding_level", &[]) as u32;
    assert_eq!(level(&agent), 0, "{} MB when idle", idle >> 20);

    // Thousands of requests, until everything sheddable is shed, or until nothing more changes for long enough.
    let (mut levels, mut most, mut sent) = (vec![0], 0, 0u64);
    let stop = Instant::now() + Duration::from_secs(35);
    for round in 0.. {
        let plans = flood(16, (1000.0 * scale()) as u64, round);
        let address = server.address;
        sent += plans.iter().map(|plan| plan.len() as u64).sum::<u64>();
        let load = std::thread::spawn(move || load::run(address, plans));
        while !load.is_finished() {
            most = most.max(memory(pid));
            levels.push(level(&agent));
            std::thread::sleep(Duration::from_millis(100));
        }
        let loaded = load.join().expect("load");
        assert!(loaded.broken().is_empty(), "traced programs noticed: {:?}", loaded.broken().first());
        if levels.last() == Some(&4) || Instant::now() > stop {
            break;
        }
    }
    let shed = agent.json("/api/v1/health")["shed"].clone();
    levels.dedup();
    say(&format!(
        "limits: {sent} requests; idle {} MB, at most {} MB of {} MB; levels {levels:?}",
        idle >> 20,
        most >> 20,
        ceiling >> 20
    ));
    // The number of shedding steps depends on the load's speed, and on other programs whose stacks are symbolised;
    // there must be some if memory came near the limit.
    let near = most * 10 >= ceiling * 9;
    if !near {
        say("  memory stayed below nine tenths of the ceiling: nothing had to be given up");
    }
    assert!(!near || levels.iter().any(|level| *level >= 1), "{levels:?}, {} MB", most >> 20);
    let reached = levels.iter().max().map_or(0, |level| *level as usize);
    assert!(most <= ceiling, "{} MB of {} MB", most >> 20, ceiling >> 20);
    assert!(shed["meaning"].as_str().is_some_and(|text| !text.is_empty()), "{shed}");

    // The sums are complete: every request was counted, or its events were counted as lost.
    let counted = |agent: &Agent| {
        let metrics = agent.metrics();
        let of = |m: &tracer_tests::metrics::Metrics, side| {
            m.sum(&format!("http_{side}_request_duration_seconds_count"), &[])
        };
        (of(&metrics, "server") - of(&before, "server"), of(&metrics, "client") - of(&before, "client"))
    };
    let sent = sent as f64;
    let (served, called) = wait("every request to be counted", Duration::from_secs(20), || {
        let (served, called) = counted(&agent);
        let lost = agent.metrics().lost();
        let lost: f64 = lost.iter().filter(|(reason, _)| !reason.starts_with("store")).map(|(_, n)| n).sum();
        (served + lost >= sent && called + lost >= sent).then_some((served, called))
    });
    let after = agent.metrics();
    let ratio = after.sum("tracer_capture_ratio", &[]);
    say(&format!("  served {served}, called {called} of {sent}; lost {:?}; capture ratio {ratio:.4}", after.lost()));
    assert!(served <= sent && called <= sent, "none twice");
    assert!((0.99..=1.01).contains(&ratio), "capture ratio {ratio}");
    let what = ["payload", "sampling", "classes"];
    for name in what.into_iter().take(reached) {
        assert!(after.sum("tracer_load_shedding_total", &[("level", name)]) >= 1.0, "{name}");
    }
    // No table exceeds its limit.
    for unit in ["entries", "bytes"] {
        for used in after.of(&format!("tracer_table_{unit}"), &[]) {
            let table = used.labels["table"].as_str();
            let limit = after.sum(&format!("tracer_table_limit_{unit}"), &[("table", table)]);
            assert!(used.value <= limit, "{table}: {} of {limit}", used.value);
            assert_eq!(after.of("tracer_table_evictions_total", &[("table", table)]).count(), 1, "{table}");
        }
    }

    // When idle, every level is restored, one step at a time; not while memory is still short: symbolising other
    // programs on this machine takes some memory, and can cause another step.
    let short = |freed: u64| freed * 4 >= ceiling * 3;
    let mut levels = vec![level(&agent)];
    let mut freed = memory(pid);
    let end = Instant::now() + Duration::from_secs(45);
    while levels.last() != Some(&0) {
        if Instant::now() > end {
            // The flood's memory was returned all the same.
            assert!(!short(freed), "memory was not given back: {levels:?}, {} MB at least", freed >> 20);
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        freed = freed.min(memory(pid));
        let now = level(&agent);
        if levels.last() != Some(&now) {
            levels.push(now);
        }
    }
    say(&format!("  back by {levels:?}, {} MB at least, {} MB now", freed >> 20, memory(pid) >> 20));
    let slow = levels.windows(2).all(|pair| pair[0] <= pair[1] + 1);
    assert!(slow, "one step at a time: {levels:?}");
    // The agent's own log messages, in order.
    let output = agent.stop().output;
    let place = |text: &str| output.find(text).unwrap_or_else(|| panic!("{text}: {output}"));
    let steps = ["heads of messages", "19 Hz", "new request classes"].into_iter().take(reached);
    let places: Vec<usize> = steps.map(place).collect();
    assert!(places.is_sorted(), "{output}");
    // It may have gone up and down before.
    let back = levels.first() != levels.last();
    assert!(!back || output.rfind("load is shed less") > places.last().copied(), "{output}");
}

/// Stops the first thread of a child, which is the agent's pipeline, wherever it waits in the kernel: it is stuck, and the
/// others are not. Until it is killed.
fn hold(pid: u32) {
    let request = |request: libc::c_uint| {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: requests that use no memory.
        let done = unsafe { libc::ptrace(request, pid as libc::pid_t, none, none) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    request(libc::PTRACE_SEIZE);
    wait("the pipeline to be stopped where it waits", Duration::from_secs(10), || {
        request(libc::PTRACE_INTERRUPT);
        let mut status = 0;
        // SAFETY: an int.
        assert_eq!(unsafe { libc::waitpid(pid as libc::pid_t, &raw mut status, libc::__WALL) }, pid as libc::pid_t);
        assert!(libc::WIFSTOPPED(status), "{status:x}");
        // Elsewhere it may hold a lock that the others need to report the stall.
        let at = std::fs::read_to_string(format!("/proc/{pid}/syscall")).expect("a process");
        let number = at.split(' ').next().and_then(|number| number.parse::<i64>().ok());
        let waits = number.is_some_and(|number| WAITS.contains(&number));
        if !waits {
            request(libc::PTRACE_CONT);
        }
        waits.then_some(())
    });
}

/// System calls in which the pipeline waits.
const WAITS: &[libc::c_long] = &[
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

#[test]
fn a_pipeline_that_stands_still_is_detached_and_the_agent_ends() {
    let Some(_turn) = begin("limits_watchdog", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let before = bpf::programs();
    let stall = 3;
    let config = config(dir.path(), &format!("[watchdog]\nstall = \"{stall}s\"\n"));
    let port = server.address.port().to_string();
    // Other programs' requests would fill it.
    let mut agent = Agent::start(dir.path(), &["--config", &config, "--port", &port]);
    let attached = bpf::programs().len() - before.len();
    let links = bpf::links(agent.process().pid());
    assert!(attached > 5 && links > 5, "{attached} programs, {links} links");

    // A stopped agent does not count as stalled, however long.
    agent.process().signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(3 * stall));
    agent.process().signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(agent.process().ended(), None);
    assert_eq!(http::get(agent.listen, "/healthz").expect("console").status, 200);

    hold(agent.process().pid());
    let begun = Instant::now();
    let load = std::thread::spawn({
        let address = server.address;
        move || load::until(address, 2, &["/a", "/bb"], begun + Duration::from_secs(stall + 6))
    });
    let detached = wait("the watchdog to detach", Duration::from_secs(stall + 6), || {
        (bpf::links(agent.process().pid()) == 0).then(|| begun.elapsed())
    });
    // It stays a little to report the reason.
    let health = http::get(agent.listen, "/healthz").expect("console");
    let metrics = agent.metrics();
    let status = agent.process().wait(Duration::from_secs(10));
    let output = agent.output();
    let (good, bad) = load.join().expect("load");
    say(&format!("watchdog: detached after {detached:?}, ended with {status}; {good} good replies, {bad} bad"));
    assert!(health.status == 503 && health.text().contains("has not moved for 3 s"), "{}", health.text());
    assert!((metrics.sum("tracer_watchdog_detached", &[("reason", "standstill")]) - 1.0).abs() < 0.1);
    assert_eq!(status.code(), Some(DETACHED), "{output}");
    assert!(
        output.contains("watchdog: the pipeline has not moved") && output.contains("all programs are detached"),
        "{output}"
    );
    assert!(bad == 0 && good > 100, "traced programs noticed");
    assert!(detached >= Duration::from_secs(stall) && detached < Duration::from_secs(stall + 3), "{detached:?}");
    wait("the kernel to free the programs", Duration::from_secs(30), || (bpf::programs() == before).then_some(()));
}

#[test]
fn a_stuck_agent_ends_when_it_is_asked_to() {
    let Some(_turn) = begin("limits_ending", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let before = bpf::programs();
    let config = config(dir.path(), "[watchdog]\nstall = \"2s\"\n");
    let mut agent = Agent::start(dir.path(), &["--config", &config, "--nice", "5"]);
    let pid = agent.process().pid();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
    let nice = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(16)).expect("a field");
    let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("its score");
    assert_eq!((nice, score.trim()), ("5", "500"));
    let nice_of = |thread: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten();
        let found = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        let stat = found.filter(|stat| stat.contains(thread)).last().unwrap_or_else(|| panic!("no thread {thread}"));
        let field = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(16)).expect("a field");
        field.parse::<i32>().expect("a number")
    };
    // HTTP and symbolising may wait; the watchdog must not.
    assert_eq!(["tracer-http", "tracer-symbols", "tracer-watchdog"].map(nice_of), [10, 10, 0]);
    load::until(server.address, 2, &["/a"], Instant::now() + Duration::from_secs(1));
    hold(pid);
    let ended = agent.end(libc::SIGTERM);
    say(&format!("watchdog: asked to end, stuck: {:?}, {}", ended.took, ended.status));
    assert_eq!(ended.status.code(), Some(DETACHED), "{}", ended.output);
    assert!(ended.output.contains("asked to end"), "{}", ended.output);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    wait("the kernel to free the programs", Duration::from_secs(30), || (bpf::programs() == before).then_some(()));
}

#[test]
fn a_ceiling_that_cannot_be_held_detaches() {
    let Some(_turn) = begin("limits_ceiling", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let before = bpf::programs();
    // Gigabytes of spans would wait for the disk, and the pipeline with them, until that is what the watchdog ends it for.
    // A hundredth of a core: no detail given up makes thousands of requests a second that cheap.
    let arguments = ["--max-cpu", "1%"];
    let mut agent = Agent::launch_writing("agent", dir.path(), Path::new("/dev/null"), &arguments, |_| ()).ready();
    let begun = Instant::now();
    let load = std::thread::spawn({
        let address = server.address;
        move || load::until(address, 4, &["/a", "/bb"], begun + Duration::from_secs(80))
    });
    let status = agent.process().wait(Duration::from_secs(120));
    let took = begun.elapsed();
    let output = agent.output();
    let (good, bad) = load.join().expect("load");
    say(&format!("ceiling: {status} after {took:?}; {good} good replies, {bad} bad"));
    assert_eq!((status.code(), bad), (Some(DETACHED), 0), "{output}");
    assert!(output.contains("its cpu could not be brought below the ceiling"), "{output}");
    assert!(output.contains("no stacks are taken and no transactions kept"), "everything else first: {output}");
    // A minute of patience, plus the time to shed everything.
    assert!((60..85).contains(&took.as_secs()), "{took:?}");
    wait("the kernel to free the programs", Duration::from_secs(30), || (bpf::programs() == before).then_some(()));
}

/// Code made while running, named in a file of 55 MB: any user can make as many of both as there are processes.
const MADE: &str = r#"
import ctypes, mmap, os, platform, sys
allowed = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=allowed)
page.write(b"\xf3\x90\xeb\xfc" if platform.machine() == "x86_64" else b"\x00\x00\x00\x14")
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
path = f"/tmp/perf-{os.getpid()}.map"
with open(path, "w") as names:
    names.write(f"{at:x} 10 made_here\n")
    names.writelines(f"{n:x} 1 {'x' * 96}{n}\n" for n in range(500_000))
print("ready", flush=True)
ctypes.CFUNCTYPE(None)(at)()
"#;

/// Removes the file of names with the process.
struct Names {
    _process: Process,
    path: std::path::PathBuf,
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn names_that_processes_write_stay_within_the_ceiling_and_stacks_come_back() {
    let Some(_turn) = begin("limits_names", &["python3"]) else { return };
    let dir = scratch();
    let text = "[limits]\nrestore_after = \"1s\"\n";
    let ceiling: u64 = 64 << 20;
    let mut agent = Agent::start(dir.path(), &["--config", &config(dir.path(), text), "--max-memory", "64M"]);
    let pid = agent.process().pid();
    let idle = memory(pid);
    let made: Vec<Names> = (0..6)
        .map(|n| {
            let mut command = std::process::Command::new("python3");
            command.args(["-c", MADE]);
            let mut process =
                Process::start(&format!("made{n}"), &mut command, &dir.path().join(format!("made{n}.log")));
            process.line("ready", Duration::from_secs(60));
            let path = format!("/tmp/perf-{}.map", process.pid()).into();
            Names { _process: process, path }
        })
        .collect();
    let fill = |agent: &Agent| agent.metrics().sum("tracer_table_bytes", &[("table", "perf_map_bytes")]);
    let (mut most, mut read, mut folded) = (0, 0.0f64, false);
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end && !(folded && most > 0 && end - Instant::now() < Duration::from_secs(10)) {
        most = most.max(memory(pid));
        read = read.max(fill(&agent));
        folded = folded || agent.text("/profile.folded").contains("made_here");
        std::thread::sleep(Duration::from_millis(50));
    }
    let limit = agent.metrics().sum("tracer_table_limit_bytes", &[("table", "perf_map_bytes")]);
    drop(made);
    say(&format!(
        "limits: names of six processes: {} MB idle, at most {} MB of {} MB; {read:.0} of {limit:.0} bytes of names",
        idle >> 20,
        most >> 20,
        ceiling >> 20
    ));
    assert!(folded, "code made while running has its name");
    assert!(read > 0.0 && read <= limit, "{read} of {limit}");
    assert!(most <= ceiling, "{} MB of {} MB", most >> 20, ceiling >> 20);
    wait("stacks to be taken as before", Duration::from_secs(60), || {
        (agent.metrics().sum("tracer_sampling_hertz", &[]) > 98.0).then_some(())
    });
    agent.stop();
}
