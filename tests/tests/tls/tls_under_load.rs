//! TLS probes come and go while programs of every library are under load at once: no request fails, and each agent sees
//! text of every program; and nothing stays behind in their code.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::{Process, descendants};
use tracer_tests::tls::certificate;
use tracer_tests::workload::{built, source};
use tracer_tests::{begin, changed_code, figure, find, free_port, go, scratch, tls_servers};

/// How often an agent starts and ends.
const AGENTS: u32 = 3;

/// A client that asks, ends, and is started again until all stop.
struct Load<'a> {
    name: &'static str,
    /// The service whose text is to be seen: the server, or the client where that has another library.
    traced: &'static str,
    library: &'static str,
    command: Box<dyn Fn() -> Command + Sync + 'a>,
    /// How many requests were answered, by what the client printed; `None` if one failed.
    answered: fn(&str) -> Option<u64>,
}

impl Load<'_> {
    /// The number of answered requests. Panics if one is not.
    fn run(&self, stop: &AtomicBool) -> u64 {
        let mut all = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut command = (self.command)();
            let ended = outcome(command.env("OTEL_SERVICE_NAME", format!("{}-client", self.name)), self.name);
            assert_eq!(ended.code, Some(0), "{}: {}{}", self.name, ended.out, ended.err);
            let answered = (self.answered)(&ended.out);
            all += answered.unwrap_or_else(|| panic!("{}: {}{}", self.name, ended.out, ended.err));
        }
        all
    }

    /// Whether the agent has text of it: handshakes and round trips are all that it has else.
    fn is_seen(&self, agent: &Agent) -> bool {
        let classes = agent.json("/api/v1/classes?limit=1000");
        let mut classes = classes["classes"].as_array().into_iter().flatten();
        classes.any(|class| {
            let is_counted = class["count"].as_u64().is_some_and(|count| count > 0);
            class["service_name"] == self.traced && class["protocol"] != "tls" && is_counted
        })
    }
}

/// Stops the loads also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The number in a line `BEGIN: NUMBER...`.
fn number(text: &str, begin: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(begin))?;
    line.trim_start().split(|other: char| !other.is_ascii_digit()).next()?.parse().ok()
}

fn h2load_answered(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("requests:"))?;
    line.contains(" 0 failed, 0 errored, 0 timeout").then(|| number(text, "requests:"))?
}

fn pgbench_answered(text: &str) -> Option<u64> {
    let failed = number(text, "number of failed transactions:")?;
    (failed == 0).then(|| number(text, "number of transactions actually processed:"))?
}

/// Requests of a client that ends with an error unless each of them is answered.
const EACH: u64 = 400;

const EACH_IS_ANSWERED: fn(&str) -> Option<u64> = |_| Some(EACH);

fn h2load<'a>(name: &'static str, url: String, options: &'static [&'static str]) -> Load<'a> {
    let command = move || {
        let mut command = Command::new("h2load");
        command.args(["-D", "2", "-c", "2"]).args(options).arg(&url);
        command
    };
    Load { name, traced: name, library: "OpenSSL", command: Box::new(command), answered: h2load_answered }
}

/// A program that is a server and clients, as [`tracer_tests::tls_pair`] has them.
fn pair<'a>(
    name: &'static str,
    library: &'static str,
    run: Vec<String>,
    dir: &Path,
    more: &'static [&'static str],
) -> (Process, Load<'a>) {
    let program = move || {
        let mut command = Command::new(&run[0]);
        command.args(&run[1..]);
        command
    };
    let (certificate, key) = certificate(dir);
    let mut serve = program();
    serve.arg("serve").args([&certificate, &key]).arg(dir.join("served.log")).env("OTEL_SERVICE_NAME", name);
    let mut server = Process::start(name, &mut serve, &dir.join(format!("{name}.log")));
    let port = server.line("PORT", Duration::from_secs(20)).trim().to_owned();
    let each = (EACH / 4).to_string();
    let command = move || {
        let mut command = program();
        command.args(["ask", &port, "load", "1.3", "4", &each]).args(more);
        command
    };
    (server, Load { name, traced: name, library, command: Box::new(command), answered: EACH_IS_ANSWERED })
}

#[test]
fn probes_come_and_go_under_load_of_every_library() {
    let toolchain = go::toolchain("1.27.");
    let needed = ["nginx", "apache2", "haproxy", "redis-server", "redis-benchmark", "h2load", "wget", "python3"];
    let rest = [toolchain, built("tls-pair"), "openssl", "setpriv"];
    let Some(_turn) = begin("tls_under_load", &[&needed[..], &rest[..]].concat()) else { return };
    let dir = scratch();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    let under = |name: &str| {
        let under = dir.path().join(name);
        std::fs::create_dir(&under).expect("a directory");
        under
    };
    let (own, back) = (certificate(dir.path()), free_port());
    let configuration = format!(
        "listen 127.0.0.1:{back} ssl; ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.2 TLSv1.3;
         keepalive_requests 100000;
         location / {{ return 200 \"yes\\n\"; }}",
        own.0, own.1
    );
    let nginx = Nginx::start(dir.path(), "", &configuration);
    let (apache_process, apache, _) = tls_servers::apache(&under("apache"));
    let (haproxy_process, haproxy) = tls_servers::haproxy(&under("haproxy"), back);
    let (redis_process, redis) = tls_servers::redis(&under("redis"));
    let postgresql = tls_servers::postgresql(&under("postgresql"));
    let made = outcome(postgresql.program("pgbench").args(["-i", "-q"]), "pgbench");
    assert_eq!(made.code, Some(0), "{}", made.err);
    let by_go = go::build(Path::new(toolchain), dir.path(), "tls_grpc.go", &[]).display().to_string();
    let python = find("python3").expect("python3").display().to_string();
    let asyncio = vec![python.clone(), source("tls_asyncio.py").display().to_string()];
    let (go_process, go) = pair("go", "Go's crypto/tls", vec![by_go], &under("go"), &["4"]);
    let (rustls_process, rustls) =
        pair("rustls", "rustls", vec![built("tls-pair").to_owned()], &under("rustls"), &["h1"]);
    let (asyncio_process, asyncio) = pair("asyncio", "OpenSSL over memory", asyncio, &under("asyncio"), &[]);
    let pages: Vec<String> = (0..EACH).map(|n| format!("https://127.0.0.1:{back}/{}", n % 10)).collect();
    let by_wget = || {
        let mut command = Command::new("wget");
        command.args(["-q", "--no-check-certificate", "--tries=1", "-O", "/dev/null"]).args(&pages);
        command
    };
    let by_nss = || {
        let mut command = Command::new(&python);
        command.arg(source("nss_client.py")).arg("1.3").args(&pages);
        command
    };
    let by_pgbench = || {
        let mut command = postgresql.program("pgbench");
        command.args(["-S", "-n", "-c", "2", "-T", "2"]).env("PGSSLMODE", "require");
        command
    };
    let by_redis = || {
        let mut command = Command::new("redis-benchmark");
        command.args(["--tls", "--insecure", "-p", &redis.to_string(), "-c", "4", "-n", "400", "-t", "get", "-q"]);
        command
    };
    let client = |name, library, traced, command, answered| Load { name, traced, library, command, answered };
    let loads = [
        h2load("nginx", format!("https://127.0.0.1:{back}/load"), &["--h1"]),
        h2load("apache", format!("https://127.0.0.1:{apache}/ok/load"), &["-m", "4"]),
        h2load("haproxy", format!("https://127.0.0.1:{haproxy}/load"), &["-m", "4"]),
        client("postgres", "OpenSSL", "postgres", Box::new(by_pgbench), pgbench_answered),
        client("redis", "OpenSSL", "redis-server", Box::new(by_redis), EACH_IS_ANSWERED),
        client("wget", "GnuTLS", "wget-client", Box::new(by_wget), EACH_IS_ANSWERED),
        client("nss", "NSS", "nss-client", Box::new(by_nss), EACH_IS_ANSWERED),
        go,
        rustls,
        asyncio,
    ];
    let servers = [
        &nginx.process,
        &apache_process,
        &haproxy_process,
        &redis_process,
        &postgresql.process,
        &go_process,
        &rustls_process,
        &asyncio_process,
    ];
    let servers: Vec<u32> = servers.into_iter().flat_map(|process| descendants(process.pid())).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = Stop(&stop);
        let running: Vec<_> = loads.iter().map(|load| scope.spawn(|| load.run(&stop))).collect();
        for number in 0..AGENTS {
            let agent = Agent::start_named(&format!("agent{number}"), dir.path(), &["--hertz", "0", "--nice=-10"]);
            let mut unseen: Vec<&Load<'_>> = loads.iter().collect();
            let end = Instant::now() + Duration::from_secs(120);
            while !unseen.is_empty() {
                let names: Vec<_> = unseen.iter().map(|load| load.name).collect();
                assert!(Instant::now() < end, "no text of {names:?}");
                assert!(running.iter().all(|load| !load.is_finished()), "a load has failed");
                std::thread::sleep(Duration::from_millis(200));
                unseen.retain(|load| !load.is_seen(&agent));
            }
            // Each has code of a library that is traced.
            for pid in &servers {
                assert_ne!(changed_code::of(*pid), [], "probes in process {pid}");
            }
            agent.stop();
        }
        drop(guard);
        for (load, run) in loads.iter().zip(running) {
            let answered = run.join().unwrap_or_else(|_| panic!("the load of {} failed", load.name));
            figure(&format!("{} ({})", load.name, load.library), &format!("{answered} requests, 0 failed"));
        }
    });
    for pid in servers {
        assert_eq!(changed_code::of(pid), [], "what stays behind in process {pid}");
    }
}
