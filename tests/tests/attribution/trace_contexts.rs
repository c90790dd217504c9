//! The pinned map `traces_ctx_v1`: read as any profiler reads it, while real servers hold requests, it says which request each
//! thread holds, and nothing once the request is over; and what becomes of it when others made it, or nothing can be pinned.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::bpf::PinnedMap;
use tracer_tests::http::Connection;
use tracer_tests::postgresql::{self, Postgres};
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, say, scale, scratch, wait};

const LIMIT: Duration = Duration::from_secs(30);
/// Type of maps that evict, and of those that do not.
const LRU_HASH: u32 = 9;
const HASH: u32 = 1;

/// A BPF file system of the test's own.
struct Bpffs(PathBuf);

impl Bpffs {
    fn mount(dir: &Path) -> Self {
        let path = dir.join("bpf");
        std::fs::create_dir(&path).expect("a directory");
        let done = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&path).output().expect("mount");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Self(path)
    }

    fn pin(&self) -> PathBuf {
        self.0.join("otel/traces_ctx_v1")
    }

    fn agent(&self, dir: &Path) -> Agent {
        let file = dir.join("tracer.toml");
        let text = format!("[profiles]\npublish_trace_context = true\nbpffs = \"{}\"\n", self.0.display());
        std::fs::write(&file, text).expect("a file");
        Agent::start(dir, &["--config", &file.display().to_string()])
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// What one thread was shown to hold: ids, and when that was first and last seen.
#[derive(Clone, Debug)]
struct Shown {
    ids: [u8; 24],
    first: Instant,
    last: Instant,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Reads the map all the time until `over`, and gives what it showed of each thread of these processes, in order.
fn watch(map: &PinnedMap<24>, pids: &[u32], over: &AtomicBool) -> BTreeMap<u32, Vec<Shown>> {
    let mut shown: BTreeMap<u32, Vec<Shown>> = BTreeMap::new();
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        for (key, ids) in map.entries() {
            if !pids.is_empty() && !pids.contains(&((key >> 32) as u32)) {
                continue;
            }
            let of_thread = shown.entry(key as u32).or_default();
            match of_thread.last_mut().filter(|latest| latest.ids == ids) {
                Some(latest) => latest.last = now,
                None => of_thread.push(Shown { ids, first: now, last: now }),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    shown
}

/// A request, whose trace id is `trace`: when it was sent and answered, and the thread that served it.
fn ask(address: SocketAddr, millis: u64, trace: u128) -> (Instant, Instant, u32) {
    let mut connection = Connection::open(address).expect("a connection");
    let request =
        format!("GET /hold/{millis} HTTP/1.1\r\nHost: a\r\ntraceparent: 00-{trace:032x}-00000000000000aa-01\r\n\r\n");
    let sent = Instant::now();
    let reply = connection.send(request.as_bytes()).and_then(|()| connection.reply("GET")).expect("a reply");
    (sent, Instant::now(), reply.text().parse().expect("a thread id"))
}

fn served(dir: &Path, count: usize, wanted: impl Fn(&Span) -> bool + Copy) -> Vec<Span> {
    let mut spans = Tail::new(&dir.join("agent.ndjson"));
    spans.until(count, LIMIT, wanted);
    spans.read().iter().filter(|span| wanted(span)).cloned().collect()
}

#[test]
fn each_thread_shows_the_request_it_holds_and_none_afterwards() {
    let Some(_turn) = begin("trace_contexts", &["python3", "mount"]) else { return };
    let dir = scratch();
    let bpffs = Bpffs::mount(dir.path());
    let server = Server::python("held", dir.path());
    let agent = bpffs.agent(dir.path());
    let map = PinnedMap::<24>::open(&bpffs.pin()).expect("the pinned map");
    let pid = server.process.pid();
    // Its first request is identified late.
    ask(server.address, 0, 1);

    let over = AtomicBool::new(false);
    let (asked, shown) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&map, &[pid], &over));
        let clients: Vec<_> = (0..8u64)
            .map(|client| {
                let address = server.address;
                scope.spawn(move || {
                    // A new connection, and so a new thread, each time.
                    let one = |nth: u64| {
                        let trace = u128::from(client * 100 + nth + 1000);
                        (trace, ask(address, 150 + client * 40 + nth * 10, trace))
                    };
                    (0..5).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        let asked: Vec<_> = clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
        wait("an empty map", LIMIT, || map.entries().is_empty().then_some(()));
        over.store(true, Ordering::Relaxed);
        (asked, watcher.join().expect("the watcher"))
    });
    let spans = served(dir.path(), asked.len(), |span| span.service == "held" && span.server && span.path != "/hold/0");
    let by_trace: HashMap<&str, &Span> = spans.iter().map(|span| (span.trace.as_str(), span)).collect();
    assert_eq!(by_trace.len(), asked.len(), "{spans:?}");
    let (mut late, mut left) = (Duration::ZERO, Duration::ZERO);
    for (trace, (sent, answered, tid)) in &asked {
        let span = by_trace[format!("{trace:032x}").as_str()];
        let ids = format!("{}{}", span.trace, span.id);
        let seen: Vec<&Shown> = shown.get(tid).into_iter().flatten().filter(|shown| hex(&shown.ids) == ids).collect();
        // Thread ids come again; entries with other ids must be of other times.
        let other = |other: &&Shown| hex(&other.ids) != ids && other.last > *sent && other.first < *answered;
        let wrong: Vec<&Shown> = shown.get(tid).into_iter().flatten().filter(other).collect();
        assert!(seen.len() == 1 && wrong.is_empty(), "thread {tid}, span {ids}: {:?}", shown.get(tid));
        late = late.max(seen[0].first.saturating_duration_since(*sent));
        left = left.max(seen[0].last.saturating_duration_since(*answered));
    }
    say(&format!(
        "trace contexts: of {} requests on {} threads each was shown, at most {late:?} late, and {left:?} after its answer",
        asked.len(),
        shown.len()
    ));
    figure("trace contexts, latest", &format!("{:.1} ms", late.as_secs_f64() * 1e3));
    figure("trace contexts, longest after the answer", &format!("{:.1} ms", left.as_secs_f64() * 1e3));
    let most = Duration::from_secs_f64(0.1 / scale());
    assert!(late < most && left < most, "{late:?} {left:?}");
    assert!(agent.metrics().sum("tracer_table_entries", &[("table", "trace_contexts")]) < 0.5);
    agent.stop();
    assert!(!bpffs.pin().exists() && !bpffs.pin().parent().expect("a directory").exists());
}

#[test]
fn sessions_of_postgresql_show_their_statements() {
    let Some(_turn) = begin("trace_contexts of PostgreSQL", &["mount"]) else { return };
    if postgresql::programs().is_none() {
        return say("SKIPPED: needs PostgreSQL");
    }
    let dir = scratch();
    let bpffs = Bpffs::mount(dir.path());
    let server = Postgres::start(dir.path());
    let agent = bpffs.agent(dir.path());
    let map = PinnedMap::<24>::open(&bpffs.pin()).expect("the pinned map");
    let over = AtomicBool::new(false);
    let (pids, shown) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&map, &[], &over));
        let session = |_| {
            let mut psql = server.psql();
            psql.args(["-t", "-A", "-c", "select pg_backend_pid()", "-c", "select pg_sleep(0.6)"]);
            scope.spawn(move || {
                let out = psql.output().expect("psql");
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                let first = text.lines().next().and_then(|line| line.parse::<u32>().ok());
                first.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&out.stderr)))
            })
        };
        let sessions: Vec<_> = (0..3).map(session).collect();
        let pids: Vec<u32> = sessions.into_iter().map(|session| session.join().expect("a session")).collect();
        wait("an empty map", LIMIT, || map.entries().is_empty().then_some(()));
        over.store(true, Ordering::Relaxed);
        (pids, watcher.join().expect("the watcher"))
    });
    let slept = |span: &Span| span.server && span.protocol == "postgresql" && span.duration_s > 0.5;
    let spans = served(dir.path(), 3, slept);
    for pid in pids {
        let span = spans.iter().find(|span| span.pid == pid).unwrap_or_else(|| panic!("no span of {pid}: {spans:?}"));
        let ids = format!("{}{}", span.trace, span.id);
        let seen = shown.get(&pid).into_iter().flatten().find(|shown| hex(&shown.ids) == ids);
        let seen = seen.unwrap_or_else(|| panic!("{pid}: {ids}: {:?}", shown.get(&pid)));
        let held = (seen.last - seen.first).as_secs_f64();
        assert!((held - span.duration_s).abs() < 0.1 / scale(), "{held} s of {} s", span.duration_s);
    }
    agent.stop();
}

#[test]
fn a_map_of_others_is_used_or_left_alone() {
    let Some(_turn) = begin("trace_contexts of others", &["python3", "mount"]) else { return };
    let dir = scratch();
    let server = Server::python("held", dir.path());
    let bpffs = Bpffs::mount(dir.path());
    std::fs::create_dir(bpffs.pin().parent().expect("a directory")).expect("a directory");

    // A profiler that started first made it; it stays, without the agent's entries.
    let map = PinnedMap::<24>::create(LRU_HASH, &bpffs.pin()).expect("a map");
    let agent = bpffs.agent(dir.path());
    let holds = |millis: u64, trace: u128| {
        let address = server.address;
        std::thread::spawn(move || ask(address, millis, trace))
    };
    holds(0, 1).join().expect("a request");
    let request = holds(3000, 2);
    let ids = wait("its entry", LIMIT, || map.entries().first().map(|(_, ids)| *ids));
    assert_eq!(hex(&ids[..16]), format!("{:032x}", 2));
    let ended = agent.stop();
    assert!(map.entries().is_empty() && bpffs.pin().exists(), "{}", ended.output);
    request.join().expect("a request");
    std::fs::remove_file(bpffs.pin()).expect("the pin");

    // A killed agent leaves its own; the next one clears it, and removes it when it ends.
    let agent = bpffs.agent(dir.path());
    holds(0, 3).join().expect("a request");
    let request = holds(3000, 4);
    let map = PinnedMap::<24>::open(&bpffs.pin()).expect("the pinned map");
    wait("its entry", LIMIT, || map.entries().first().map(drop));
    agent.end(libc::SIGKILL);
    request.join().expect("a request");
    assert_eq!(map.entries().len(), 1, "what a killed agent left");
    let agent = bpffs.agent(dir.path());
    assert!(map.entries().is_empty());
    agent.stop();
    assert!(!bpffs.pin().exists());
    let _ = std::fs::create_dir(bpffs.pin().parent().expect("a directory"));

    // A map of another shape stays as it is, and the agent goes on.
    for (kind, what) in
        [(HASH, "a map of type 1 with keys of 8 and values of 24 bytes"), (LRU_HASH, "values of 40 bytes")]
    {
        let strange = if kind == HASH {
            PinnedMap::<24>::create(kind, &bpffs.pin()).expect("a map").write(7, [7; 24])
        } else {
            PinnedMap::<40>::create(kind, &bpffs.pin()).expect("a map").write(7, [7; 40])
        };
        strange.expect("an element");
        let agent = bpffs.agent(dir.path());
        let note = agent.output();
        assert!(note.contains("trace contexts are not published") && note.contains(what), "{note}");
        let degraded = agent.json("/api/v1/health")["degraded"].to_string();
        assert!(degraded.contains("trace contexts are not published"), "{degraded}");
        holds(0, 5).join().expect("a request");
        agent.stop();
        assert!(bpffs.pin().exists());
        std::fs::remove_file(bpffs.pin()).expect("the pin");
    }

    // No BPF file system.
    let nowhere = Bpffs(dir.path().join("nowhere"));
    let agent = nowhere.agent(dir.path());
    let note = agent.output();
    assert!(note.contains("no BPF file system is mounted at") && note.contains("mount -t bpf bpf"), "{note}");
    agent.stop();
}
