//! Stacks of servers and runtimes as the distribution, or their own toolchain, builds them: how many are walked to their
//! outermost frame, and how many of their steps `perf record --call-graph dwarf` takes, too, in the same run.
//!
//! A row is a line `| program | … |` of the table in `docs/profiling.md`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment};
use tracer_common::unwind::Outcome;
use tracer_model::decode::{self, Record};
use tracer_results::record::{FrameKind, RecordingReader};
use tracer_tests::agent::Agent;
use tracer_tests::call_pairs::{CallPairs, FunctionStarts, Mappings, Place};
use tracer_tests::mariadb::MariaDb;
use tracer_tests::nginx::Nginx;
use tracer_tests::perf::Perf;
use tracer_tests::php::{self, Php};
use tracer_tests::postgresql::{PASSWORD, Postgres, programs};
use tracer_tests::process::{Process, cpu_s, descendants};
use tracer_tests::redis::Redis;
use tracer_tests::workload::{source, wait_for_listener};
use tracer_tests::{begin, find, free_port, go, load, say, scratch, wait};

/// Samples per second and CPU, of both.
const HERTZ: u32 = 397;
/// CPU that a program uses before it is judged, while its tables are made, and while it is.
const WARM_UP_S: f64 = 1.0;
const JUDGED_S: f64 = 6.0;
/// How long that may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a program is expected to do.
struct Expected {
    /// Share of its stacks that are complete, and of the compared steps that perf takes, too.
    complete: f64,
    agreement: f64,
    /// How perf walks.
    method: &'static str,
    /// Frames from the innermost on whose steps are not compared, and whether perf may end too early.
    skipped: usize,
    early: bool,
    /// Whether all its stacks begin where the program does: it has one thread.
    one_thread: bool,
}

/// perf copies 32 KiB of stack with each sample, so that deep stacks are whole, and walks it by the same unwind information.
const USUAL: Expected =
    Expected { complete: 0.99, agreement: 0.99, method: "dwarf,32768", skipped: 0, early: false, one_thread: false };
const RUST: Expected = Expected { one_thread: true, ..USUAL };
/// The compiler writes no unwind information for `main` then, and perf ends there.
const PANIC_ABORT: Expected = Expected { early: true, ..RUST };
/// Go has no unwind information that perf reads. By frame pointers it passes over the caller of the interrupted function where that
/// has no frame of its own, or has not made it yet; and from `runtime.mcall`, which never returns, it goes on to the goroutine
/// that was left, which may run elsewhere by now: Go's own walks end there, as ours do.
const GO: Expected = Expected { agreement: 0.95, method: "fp", skipped: 1, ..USUAL };

/// What the agent saw of some processes.
#[derive(Default)]
struct Walked {
    stacks: Vec<Vec<Place>>,
    complete: u64,
    /// Numbers of those that are incomplete, by reason.
    incomplete: BTreeMap<&'static str, u64>,
    /// Their last frames.
    ends: BTreeMap<String, u64>,
}

/// Reads a recording: stacks of user code of these processes from `begin` to `end`.
fn walked(recording: &Path, processes: &[(u32, Mappings)], begin: u64, end: u64) -> Walked {
    let mut reader = RecordingReader::open(recording).unwrap_or_else(|error| panic!("{error}"));
    let mut walked = Walked::default();
    loop {
        let (kind, bytes) = reader.next_frame().unwrap_or_else(|error| panic!("{error}"));
        if kind == FrameKind::End {
            return walked;
        }
        if kind != FrameKind::Record {
            continue;
        }
        let Ok(Record::Sample { sample, user, .. }) = decode::record(bytes) else { continue };
        let Some((_, mappings)) = processes.iter().find(|(pid, _)| *pid == sample.header.tgid) else { continue };
        if user.is_empty() || !(begin..=end).contains(&sample.header.nanos) {
            continue;
        }
        match Outcome::from_number(sample.outcome.into()) {
            Some(Outcome::Complete | Outcome::ChainEnd) => walked.complete += 1,
            Some(other) => {
                *walked.incomplete.entry(other.name()).or_default() += 1;
                let last: Vec<_> = user.iter().rev().take(2).map(|address| mappings.place(*address)).collect();
                *walked.ends.entry(format!("{}: {last:x?}", other.name())).or_default() += 1;
            }
            None => panic!("{sample:?}"),
        }
        let call = |(nth, address): (usize, &u64)| if nth == 0 { *address } else { address - 1 };
        walked.stacks.push(user.iter().enumerate().map(call).map(|call| mappings.place(call)).collect());
    }
}

/// Share of these stacks that end where the program of a process begins.
fn from_entry(stacks: &[Vec<Place>], pid: u32) -> f64 {
    let bytes = std::fs::read(format!("/proc/{pid}/exe")).unwrap_or_else(|error| panic!("{error}"));
    let elf = ElfFile64::<Endianness>::parse(&*bytes).unwrap_or_else(|error| panic!("{error}"));
    let segment = elf.segments().find(|s| (s.address()..s.address() + s.size()).contains(&elf.entry()));
    let segment = segment.unwrap_or_else(|| panic!("no entry point"));
    let entry = elf.entry() - segment.address() + segment.file_range().0;
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_else(|error| panic!("{error}"));
    // The code there is some 40 bytes long.
    let begins = |stack: &&Vec<Place>| {
        matches!(stack.last(), Some(Place::Code { file, offset })
            if Path::new(&**file) == program && (entry..entry + 64).contains(offset))
    };
    stacks.iter().filter(begins).count() as f64 / stacks.len().max(1) as f64
}

/// `CLOCK_MONOTONIC`, as records have it.
fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that exists, and a structure to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Ends the load, also where a check panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Judges the stacks of `root` and its children while `work` runs over and over on a thread of its own; what they fall short
/// of, if anything.
fn judge(
    program: &str,
    load: &str,
    dir: &Path,
    root: u32,
    expected: &Expected,
    work: impl Fn() + Sync,
) -> Option<String> {
    let recording = dir.join("stacks.tracer");
    let hertz = format!("--hertz={HERTZ}");
    let file = recording.display().to_string();
    let agent = Agent::start(dir, &["--nice=-10", &hertz, "--overhead-budget=100%", "--record", &file]);
    let over = AtomicBool::new(false);
    let (theirs, processes, since, until) = std::thread::scope(|scope| {
        let _end = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work();
            }
        });
        let used = |from: f64, least: f64| (cpu_s(&descendants(root)) - from >= least).then_some(());
        let from = cpu_s(&descendants(root));
        wait(&format!("{program}: CPU"), PATIENCE, || used(from, WARM_UP_S));
        let pids = descendants(root);
        let perf = Perf::start(dir, expected.method, &pids, HERTZ);
        let (since, from) = (monotonic(), cpu_s(&pids));
        wait(&format!("{program}: CPU"), PATIENCE, || (cpu_s(&pids) - from >= JUDGED_S).then_some(()));
        let until = monotonic();
        let processes: Vec<_> = pids.into_iter().map(|pid| (pid, Mappings::of(pid))).collect();
        (perf.stop(), processes, since, until)
    });
    agent.stop();
    let ours = walked(&recording, &processes, since, until);
    let begun = if expected.one_thread { from_entry(&ours.stacks, root) } else { 1.0 };
    std::fs::remove_file(&recording).unwrap_or_else(|error| panic!("{error}"));
    let mut functions = FunctionStarts::default();
    let (mut own, mut perfs) = (CallPairs::default(), CallPairs::default());
    for stack in &ours.stacks {
        own.add(stack.get(expected.skipped..).unwrap_or_default(), &mut functions);
    }
    for stack in &theirs {
        perfs.add(stack.get(expected.skipped..).unwrap_or_default(), &mut functions);
    }
    let complete = ours.complete as f64 / own.stacks().max(1) as f64;
    let (agreement, back) = (own.compare(&perfs, expected.early), perfs.compare(&own, false));
    let compared = agreement.compared as f64 / agreement.steps.max(1) as f64;
    say(&format!(
        "| {program} ({load}) | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {:.1} / {:.1} | {} / {} |",
        100.0 * complete,
        100.0 * agreement.share(),
        100.0 * back.share(),
        100.0 * compared,
        own.depth(),
        perfs.depth(),
        own.stacks(),
        perfs.stacks()
    ));
    say(&format!("{program}: {:.1} % with steps that the code bears out", 100.0 * agreement.share_with_calls()));
    say(&format!("{program}: {agreement:?}; incomplete: {:?}", ours.incomplete));
    let mut ends: Vec<_> = ours.ends.iter().collect();
    ends.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    ends.iter().take(6).for_each(|(end, n)| say(&format!("  {n:>5} {end}")));
    say(&format!(
        "{program}: only here:\n{}\n{program}: only perf:\n{}",
        own.unknown_to(&perfs),
        perfs.unknown_to(&own)
    ));
    let enough = own.stacks() >= 500 && perfs.stacks() >= 500 && agreement.compared >= 500;
    let is_good = enough && complete >= expected.complete && begun >= 0.99 && agreement.share() >= expected.agreement;
    (!is_good).then(|| {
        let share = agreement.share();
        format!("{program}: {complete:.3} complete, {begun:.3} from the entry, {share:.3} agree, {agreement:?}")
    })
}

/// Panics where a program fell short.
fn all_good(results: impl IntoIterator<Item = Option<String>>) {
    let short: Vec<String> = results.into_iter().flatten().collect();
    assert!(short.is_empty(), "{}", short.join("\n"));
}

fn get(address: SocketAddr, target: &str) {
    load::until(address, 1, &[target], Instant::now() + Duration::from_millis(200));
}

fn page(dir: &Path) {
    std::fs::write(dir.join("page.txt"), "text that is compressed again and again\n".repeat(2000))
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn web_servers() {
    let Some(_turn) = begin("perf agreement, web servers", &["perf", "nginx", "apache2"]) else { return };
    let nginx = {
        let dir = scratch();
        page(dir.path());
        let http = "gzip on; gzip_min_length 1; gzip_comp_level 6; gzip_types text/plain;";
        let nginx = Nginx::start(dir.path(), http, &format!("location / {{ root {}; }}", dir.path().display()));
        judge("nginx", "gzip", dir.path(), nginx.process.pid(), &USUAL, || get(nginx.address, "/page.txt"))
    };
    let apache = {
        let dir = scratch();
        page(dir.path());
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (base, modules) = (dir.path().display(), Path::new("/usr/lib/apache2/modules"));
        let wanted = ["mpm_event", "unixd", "authz_core", "filter", "deflate"];
        let mut loads = String::new();
        for name in wanted {
            let file = modules.join(format!("mod_{name}.so"));
            if file.exists() {
                loads += &["LoadModule ", name, "_module ", &file.to_string_lossy(), "\n"].concat();
            }
        }
        let text = format!(
            "{loads}ServerRoot {base}\nServerName localhost\nListen {address}\nPidFile {base}/apache.pid\n\
             ErrorLog {base}/apache.error\nMutex sem\nUser www-data\nGroup www-data\nMaxKeepAliveRequests 0\n\
             StartServers 1\nServerLimit 1\nThreadsPerChild 8\nMaxRequestWorkers 8\nDocumentRoot {base}\n\
             <Directory {base}>\nRequire all granted\nSetOutputFilter DEFLATE\n</Directory>\n"
        );
        let file = dir.path().join("apache.conf");
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(find("apache2").unwrap_or_default());
        command.arg("-DFOREGROUND").arg("-f").arg(&file);
        let mut apache = Process::start("apache2", &mut command, &dir.path().join("apache.log"));
        wait_for_listener(&mut apache, address);
        judge("Apache", "mod_deflate", dir.path(), apache.pid(), &USUAL, || get_compressed(address))
    };
    all_good([nginx, apache]);
}

/// Compressed only for who says that they take it.
fn get_compressed(address: SocketAddr) {
    let done = Command::new(find("curl").unwrap_or_default())
        .args(["-s", "-o", "/dev/null", "-H", "Accept-Encoding: gzip"])
        .arg(format!("http://{address}/page.txt?[1-100]"))
        .status();
    assert!(done.is_ok_and(|status| status.success()), "curl");
}

#[test]
fn databases() {
    let Some(_turn) = begin("perf agreement, databases", &["perf", "redis-server", "mariadbd"]) else { return };
    let redis = {
        let dir = scratch();
        let redis = Redis::start(dir.path());
        judge("Redis", "Lua", dir.path(), redis.process.pid(), &USUAL, || {
            let mut client = redis.client();
            client.ask(&["EVAL", "for i = 1, 200000 do redis.call('SET', 'k' .. i % 100, i) end return 1", "0"]);
        })
    };
    let postgres = programs().and_then(|programs| {
        let dir = scratch();
        let postgres = Postgres::start(dir.path());
        let psql = |sql: &str| {
            let mut command = Command::new(programs.join("psql"));
            command.args(["-h", "127.0.0.1", "-p", &postgres.address.port().to_string(), "-U", "planted_user"]);
            command.args(["-d", "postgres", "-c", sql]).env("PGPASSWORD", PASSWORD).env("PGOPTIONS", "-c jit=off");
            command
        };
        // One session for all of it: perf follows the processes that there are.
        let one = "SELECT sum(length(md5(i::text))), max(i::text || 'x') FROM generate_series(1, 300000) i;";
        let all = one.repeat(600);
        let file = dir.path().join("session.sql");
        std::fs::write(&file, all).unwrap_or_else(|error| panic!("{error}"));
        let mut command = psql("SELECT 1");
        command.arg("-f").arg(&file).stdout(std::process::Stdio::null());
        let session = Process::start("psql", &mut command, &dir.path().join("psql.log"));
        let done = judge("PostgreSQL", "aggregates", dir.path(), postgres.process.pid(), &USUAL, || {
            std::thread::sleep(Duration::from_millis(50));
        });
        drop(session);
        done
    });
    let mariadb = {
        let dir = scratch();
        let mariadb = MariaDb::start_with(dir.path(), &["--general-log=0", "--slow-query-log=0"]);
        let sql = "SELECT SUM(LENGTH(MD5(seq))), MAX(CONCAT(seq, 'x')) FROM seq_1_to_300000;".repeat(600);
        let file = dir.path().join("session.sql");
        std::fs::write(&file, sql).unwrap_or_else(|error| panic!("{error}"));
        let mut command = mariadb.client();
        command.arg("-e").arg(format!("source {}", file.display()));
        let session = Process::start("mariadb", &mut command, &dir.path().join("session.log"));
        let done = judge("MariaDB", "aggregates", dir.path(), mariadb.process.pid(), &USUAL, || {
            std::thread::sleep(Duration::from_millis(50));
        });
        drop(session);
        done
    };
    all_good([redis, postgres, mariadb]);
}

/// A script that runs for ever.
fn script(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
    file
}

#[test]
fn interpreters() {
    let Some(_turn) = begin("perf agreement, interpreters", &["perf", "python3", "node", "java", "javac"]) else {
        return;
    };
    let idle = || std::thread::sleep(Duration::from_millis(50));
    let run = |program: &str, load: &str, prepare: &dyn Fn(&Path) -> Command| {
        let dir = scratch();
        let process = Process::start(program, &mut prepare(dir.path()), &dir.path().join("program.log"));
        judge(program, load, dir.path(), process.pid(), &USUAL, idle)
    };
    let python = run("Python", "`json`, `re`, `sorted`", &|dir| {
        let text = "import json, re\n\
            def sums(n):\n    return sorted(json.dumps({'a': [n] * 50}) for _ in range(200)) if n < 10 else re.sub('a+', 'b', 'aaab' * n)\n\
            while True:\n    for n in range(50): sums(n)\n";
        let mut command = Command::new(find("python3").unwrap_or_default());
        command.arg(script(dir, "sums.py", text));
        command
    });
    let node = run("Node.js", "`JSON`, `zlib`, `crypto`", &|dir| {
        let text = "const zlib = require('zlib'), crypto = require('crypto');\n\
            const text = 'text that is compressed again and again\\n'.repeat(500);\n\
            function round(n) {\n  zlib.deflateSync(text); crypto.createHash('sha256').update(text + n).digest('hex');\n\
              return JSON.parse(JSON.stringify({ n, all: Array.from({ length: 200 }, (_, i) => 'x' + i) }));\n}\n\
            for (let n = 0; ; n++) round(n);\n";
        let mut command = Command::new(find("node").unwrap_or_default());
        command.arg(script(dir, "round.js", text));
        command
    });
    let java = run("Java, frame pointers", "native part: GC, `Deflater`", &|dir| {
        let mut compile = Command::new(find("javac").unwrap_or_default());
        let done = compile.arg("-d").arg(dir).arg(source("PerfAgreement.java")).status();
        assert!(done.is_ok_and(|status| status.success()), "javac");
        let mut command = Command::new(find("java").unwrap_or_default());
        command.args(["-XX:+PreserveFramePointer", "-Xmx64m", "-cp"]).arg(dir).arg("PerfAgreement");
        command
    });
    let php = php::program().and_then(|_| {
        let dir = scratch();
        let text = "<?php function key($a, $b) { return $a['n'] <=> $b['n']; }\n\
            for ($i = 0; $i < 200; $i++) {\n  $all = []; for ($n = 0; $n < 100; $n++) $all[] = ['n' => ($n * 37) % 101];\n\
              usort($all, 'key'); preg_replace('/a+b/', 'c', str_repeat('aaab', 50)); json_decode(json_encode($all), true);\n}\n";
        let file = script(dir.path(), "work.php", text);
        let php = Php::start(dir.path());
        let server = format!(
            "location / {{ fastcgi_pass {}; fastcgi_param SCRIPT_FILENAME {}; fastcgi_param REQUEST_METHOD GET; }}",
            php.address,
            file.display()
        );
        let nginx = Nginx::start(dir.path(), "", &server);
        judge("PHP-FPM", "`usort`, `preg`, `json`", dir.path(), php.process.pid(), &USUAL, || get(nginx.address, "/"))
    });
    all_good([python, node, java, php]);
}

#[test]
fn compiled_programs() {
    let Some(_turn) = begin("perf agreement, compiled programs", &["perf", "rustc"]) else { return };
    let idle = || std::thread::sleep(Duration::from_millis(50));
    let run = |program: &str, load: &str, expected: &Expected, build: &dyn Fn(&Path) -> Command| {
        let dir = scratch();
        let process = Process::start(program, &mut build(dir.path()), &dir.path().join("program.log"));
        judge(program, load, dir.path(), process.pid(), expected, idle)
    };
    let rust = |name: &str, expected: &Expected, flags: &'static [&str]| {
        run(name, "`BTreeMap`, `format!`", expected, &|dir| {
            let program = dir.join("work");
            let mut compile = Command::new(find("rustc").unwrap_or_default());
            compile.args(["--edition=2021", "-O"]).args(flags).arg("-o").arg(&program);
            let done = compile.arg(source("perf_agreement.rs")).status();
            assert!(done.is_ok_and(|status| status.success()), "rustc");
            Command::new(program)
        })
    };
    let unwind = rust("Rust", &RUST, &[]);
    let abort = rust("Rust, `panic=abort`", &PANIC_ABORT, &["-C", "panic=abort"]);
    let toolchain = Path::new(go::toolchain("1.24."));
    assert!(toolchain.exists(), "no Go 1.24 at {}: `cargo xtask setup` fetches it", toolchain.display());
    let build = |dir: &Path| Command::new(go::build(toolchain, dir, "perf_agreement.go", &[]));
    let go = run("Go 1.24", "`json`, `flate`", &GO, &build);
    all_good([unwind, abort, go]);
}
