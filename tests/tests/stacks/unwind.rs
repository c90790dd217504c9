//! Stacks of programs without frame pointers are walked to their outermost frame: nginx, Redis, PostgreSQL and Python as
//! the distribution builds them.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::load;
use tracer_tests::nginx::Nginx;
use tracer_tests::postgresql::{PASSWORD, Postgres, programs};
use tracer_tests::process::Process;
use tracer_tests::redis::Redis;
use tracer_tests::{begin, figure, find, scratch, wait};

/// Samples per second and CPU; a stack's time by this is how many samples it stands for.
const HERTZ: f64 = 199.0;
/// Samples a program is judged by.
const SAMPLES: f64 = 200.0;
/// How long tables and samples may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Stacks of one service: all, those that say that they are incomplete, and those with one of `outermost` at their root.
#[derive(Clone, Copy, Debug, Default)]
struct Stacks {
    all: f64,
    /// Of those, the ones that have names.
    named: f64,
    incomplete: f64,
    pending: f64,
    rooted: f64,
    frames: f64,
}

impl Stacks {
    /// Of the stacks that have user frames.
    fn of(agent: &Agent, service: &str) -> Self {
        let mut sums = Self::default();
        // Of all services: this one may not be known yet.
        let folded = agent.text("/profile.folded");
        for line in folded.lines().filter(|line| line.split(';').next() == Some(service)) {
            let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not folded: {line}"));
            let micros: f64 = count.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
            let count = micros * HERTZ / 1e6;
            let frames: Vec<&str> = stack.split(';').skip(1).collect();
            let Some(root) = frames.first() else { continue };
            if root.ends_with("_[k]") || *root == "[no stack]" {
                continue;
            }
            sums.all += count;
            let known = !frames.contains(&"[not named in time]");
            let named = if known { count } else { 0.0 };
            sums.named += named;
            sums.frames += named * frames.iter().filter(|frame| !frame.ends_with("_[k]")).count() as f64;
            sums.pending += if root.contains("table not ready") { count } else { 0.0 };
            sums.incomplete += if root.starts_with("[stack incomplete") { count } else { 0.0 };
            let outermost = |frame: &&str| OUTERMOST.iter().any(|name| frame.contains(name));
            sums.rooted += if frames.iter().take(2).any(outermost) { count } else { 0.0 };
        }
        sums
    }

    fn less(self, before: Self) -> Self {
        Self {
            all: self.all - before.all,
            named: self.named - before.named,
            incomplete: self.incomplete - before.incomplete,
            pending: self.pending - before.pending,
            rooted: self.rooted - before.rooted,
            frames: self.frames - before.frames,
        }
    }
}

/// Ends the load, also where a check panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stacks of one service, looked at whenever some hundred more were walked on the whole machine: naming them all each time
/// would keep the agent busy.
struct Looks<'a> {
    agent: &'a Agent,
    service: &'a str,
    due: f64,
}

impl Looks<'_> {
    fn next(&mut self) -> Option<Stacks> {
        let walks = self.agent.metrics().sum("tracer_stack_walks_total", &[]);
        if walks < self.due {
            return None;
        }
        self.due = walks + 200.0;
        Some(Stacks::of(self.agent, self.service))
    }
}

/// Runs `work` over and over on a thread of its own while the service's stacks are counted: first until its tables are
/// there, then until there are enough samples.
fn judge(agent: &Agent, service: &str, work: impl Fn() + Sync) -> Stacks {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work();
            }
        });
        let mut looks = Looks { agent, service, due: 0.0 };
        let mut last: Option<Stacks> = None;
        let before = wait(&format!("{service}: unwind tables"), PATIENCE, || {
            let now = looks.next()?;
            // Samples came since the last look, and none of them waited for a table.
            let since = last.map(|last| now.less(last));
            if since.is_none_or(|since| since.all >= 20.0) {
                last = Some(now);
            }
            since.filter(|since| since.all >= 20.0 && since.pending == 0.0).map(|_| now)
        });
        let stacks = wait(&format!("{service}: samples"), PATIENCE, || {
            let since = looks.next()?.less(before);
            (since.all >= SAMPLES && since.named >= 0.5 * SAMPLES).then_some(since)
        });
        let share = |part: f64| 100.0 * part / stacks.all;
        figure(
            &format!("unwind {service}"),
            &format!(
                "{:.1} % complete, {:.1} % from {}, {:.1} frames, of {} samples",
                100.0 - share(stacks.incomplete),
                100.0 * stacks.rooted / stacks.named,
                OUTERMOST.join(" or "),
                stacks.frames / stacks.named,
                stacks.all
            ),
        );
        stacks
    })
}

fn assert_complete(agent: &Agent, service: &str, stacks: Stacks, frames: f64) {
    let folded = || agent.text(&format!("/profile.folded?service={service}"));
    let share = |part: f64| part / stacks.all;
    assert!(share(stacks.incomplete) <= 0.01, "{service}: {stacks:?}\n{}", folded());
    assert!(stacks.rooted / stacks.named >= 0.99, "{service}: {stacks:?}\n{}", folded());
    assert!(stacks.frames / stacks.named >= frames, "{service}: {stacks:?}\n{}", folded());
}

/// What stacks begin with. Stripped programs have no name for `_start`; then the C library's function that it calls has one.
const OUTERMOST: [&str; 4] = ["_start", "__libc_start_main", "clone", "start_thread"];

fn agent(dir: &std::path::Path) -> Agent {
    Agent::start(dir, &["--nice=-10", "--hertz=199", "--overhead-budget=100%"])
}

#[test]
fn nginx_and_redis_are_walked_to_the_end() {
    let Some(_turn) = begin("unwind servers", &["nginx", "redis-server"]) else { return };
    let dir = scratch();
    let page = "gzip on; gzip_min_length 1; gzip_comp_level 6; gzip_types text/plain;";
    std::fs::create_dir(dir.path().join("redis")).unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(dir.path().join("page.txt"), "text that is compressed again and again\n".repeat(2000))
        .unwrap_or_else(|error| panic!("{error}"));
    let nginx = Nginx::start(dir.path(), page, &format!("location / {{ root {}; }}", dir.path().display()));
    let redis = Redis::start(&dir.path().join("redis"));
    let agent = agent(dir.path());
    let get = |address: SocketAddr| {
        load::until(address, 1, &["/page.txt"], Instant::now() + Duration::from_millis(200));
    };
    let stacks = judge(&agent, "nginx", || get(nginx.address));
    assert_complete(&agent, "nginx", stacks, 6.0);
    let stacks = judge(&agent, "redis-server", || {
        let mut client = redis.client();
        client.ask(&["EVAL", "for i = 1, 200000 do redis.call('SET', 'k' .. i % 100, i) end return 1", "0"]);
    });
    assert_complete(&agent, "redis-server", stacks, 6.0);
    // What the walks came to is counted as well, over the whole machine.
    let metrics = agent.metrics();
    let walks = |outcome: &str| metrics.sum("tracer_stack_walks_total", &[("outcome", outcome)]);
    assert!(walks("complete") > SAMPLES, "{}", agent.text("/metrics"));
    assert!(walks("frame_pointers") == 0.0 && walks("table_mismatch") == 0.0, "{}", agent.text("/metrics"));
    assert!(metrics.sum("tracer_table_bytes", &[("table", "unwind_table_bytes")]) > 1e5);
    agent.stop();
}

#[test]
fn postgresql_and_python_are_walked_to_the_end() {
    let Some(_turn) = begin("unwind interpreters", &["python3"]) else { return };
    let dir = scratch();
    let program = dir.path().join("sums.py");
    let text = "import json, re\n\
        def sums(n):\n    return sorted(json.dumps({'a': [n] * 50}) for _ in range(200)) if n < 10 else re.sub('a+', 'b', 'aaab' * n)\n\
        while True:\n    for n in range(50): sums(n)\n";
    std::fs::write(&program, text).unwrap_or_else(|error| panic!("{error}"));
    let agent = agent(dir.path());
    let interpreter =
        ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| std::path::Path::new(path).exists());
    let interpreter = interpreter.map_or_else(|| find("python3").unwrap_or_default(), Into::into);
    let python = Process::start("python", Command::new(interpreter).arg(&program), &dir.path().join("python.log"));
    let stacks = judge(&agent, "sums", || std::thread::sleep(Duration::from_millis(50)));
    assert_complete(&agent, "sums", stacks, 6.0);
    drop(python);
    if programs().is_some() {
        let database = dir.path().join("postgres");
        std::fs::create_dir(&database).unwrap_or_else(|error| panic!("{error}"));
        let postgres = Postgres::start(&database);
        let sql = "SELECT sum(length(md5(i::text))) FROM generate_series(1, 4000000) i";
        let psql = programs().unwrap_or_default().join("psql");
        let stacks = judge(&agent, "postgres", || {
            let mut command = Command::new(&psql);
            command.args(["-h", "127.0.0.1", "-p", &postgres.address.port().to_string(), "-U", "planted_user"]);
            command.args(["-d", "postgres", "-c", sql]).env("PGPASSWORD", PASSWORD).env("PGOPTIONS", "-c jit=off");
            let done = command.output().unwrap_or_else(|error| panic!("psql: {error}"));
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        });
        assert_complete(&agent, "postgres", stacks, 6.0);
    }
    agent.stop();
}
