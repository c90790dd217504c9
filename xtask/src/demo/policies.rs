//! `cargo xtask demo --policies`: two service classes and a declared function of one server, which compete for one CPU;
//! their attainment with and without enforcement.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{agent_log, alive, start_agent, stopped};
use crate::http;
use crate::shell::{self, Root, print};
use crate::supervised_child::SupervisedChild;

/// The server: also the one of the truth test.
const SERVER: &str = include_str!("../../../tests/workloads/priorities.c");
const SHARED: &str = include_str!("../../../tests/workloads/http.h");
/// Clients of bronze, each of which sends its next request at once.
const BRONZE: usize = 4;
/// Between two requests of gold.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the server may take to listen.
const START: Duration = Duration::from_secs(20);

/// Runs the server, then the agent twice: as a dry run, and enforcing.
pub(super) fn run(tracer: &Path, dir: &Path, seconds: u64) -> Result<()> {
    let program = compile(dir)?;
    let (server, address) = server(dir, &program)?;
    let config = config(dir, &program)?;
    shell::progress(format!("the server answers GET /gold and GET /bronze on http://{address}/, on one CPU"));
    let mut answers = Vec::new();
    for mode in ["dry-run", "on"] {
        if stopped() {
            break;
        }
        shell::progress(format!("--enforce {mode}: {seconds} s of load"));
        let arguments = ["--config".as_ref(), config.as_os_str(), "--enforce".as_ref(), mode.as_ref()];
        let (mut agent, console) = start_agent(Root::Already, tracer, dir, &arguments)?;
        let load = Load::start(address);
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until && !stopped() {
            alive(&mut agent, dir)?;
            thread::sleep(Duration::from_millis(100));
        }
        drop(load);
        // What is on its way is counted.
        thread::sleep(Duration::from_secs(1));
        let answer = |path: &str| -> Result<Value> {
            let reply = http::get(console, path)?;
            serde_json::from_str(&reply.text).with_context(|| format!("{path} is not JSON"))
        };
        answers.push((mode, answer("/api/v1/service-classes")?, answer("/api/v1/classes?service=shop")?));
        agent.end()?;
        // The next one has a log of its own.
        let _ = fs::rename(agent_log(dir), dir.join(format!("tracer-{mode}.log")));
    }
    drop(server);
    show(&answers)
}

fn compile(dir: &Path) -> Result<PathBuf> {
    for (name, text) in [("shop.c", SERVER), ("http.h", SHARED)] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let program = dir.join("shop");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"]).arg(&program).arg(dir.join("shop.c"));
    shell::run(&mut cc, "install a C compiler (apt install gcc)")?;
    Ok(program)
}

/// Starts the server on the last CPU alone.
fn server(dir: &Path, program: &Path) -> Result<(SupervisedChild, SocketAddr)> {
    // SAFETY: takes a constant.
    let last = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) - 1;
    let log = dir.join("shop.log");
    let program = program.display().to_string();
    let arguments = ["-c", &last.to_string(), program.as_str()];
    let mut server = SupervisedChild::start(
        Root::Already,
        Path::new("taskset"),
        &arguments,
        &[("OTEL_SERVICE_NAME", "shop")],
        &log,
    )?;
    let until = Instant::now() + START;
    loop {
        let output = fs::read_to_string(&log).unwrap_or_default();
        if let Some(port) = output.lines().find_map(|line| line.strip_prefix("PORT ")?.trim().parse().ok()) {
            return Ok((server, SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
        }
        if let Some(status) = server.ended()? {
            bail!("the server ended ({status}): {output}");
        }
        if Instant::now() > until {
            bail!("the server does not listen after {} s", START.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn config(dir: &Path, program: &Path) -> Result<PathBuf> {
    let path = dir.join("tracer.toml");
    let text = format!(
        r#"[enforcement]
state_dir = "{}"

[[transaction]]
name = "burn"
program = "{}"
function = "burn"

[[service_class]]
name = "gold"
importance = 1
goal = {{ p99 = "40ms" }}
cpu = "high"
rules = [{{ service = "shop", request_class = "GET /gold" }}]

[[service_class]]
name = "bronze"
importance = 3
goal = {{ discretionary = true }}
cpu = "low"
rules = [{{ service = "shop", request_class = "GET /bronze" }}]
"#,
        dir.join("state").display(),
        program.display()
    );
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    // Only root may change what root enforces.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    print(&text);
    Ok(path)
}

/// One client of gold that pauses between requests, and several of bronze that do not.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |path: &'static str, pause: Duration| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) && http::get(address, path).is_ok() {
                    thread::sleep(pause);
                }
            })
        };
        let mut clients = vec![client("/gold", PAUSE)];
        clients.extend((0..BRONZE).map(|_| client("/bronze", Duration::ZERO)));
        Self { stop, clients }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

fn show(answers: &[(&str, Value, Value)]) -> Result<()> {
    print("");
    print("Service classes: response times of the last minute, from the arrival of a request to its whole reply");
    print(format!(
        "{:<8} {:<7} {:>14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "enforce", "class", "goal", "p50 ms", "p99 ms", "attained", "requests", "CPU s", "applied", "would"
    ));
    let mut found = 0;
    for (mode, answer, _) in answers {
        for class in answer["service_classes"].as_array().into_iter().flatten() {
            let (name, goal) = (class["service_class"].as_str().unwrap_or("?"), &class["goal"]);
            let goal = match goal["response_s"].as_f64() {
                Some(time) => format!("{} {:.0} ms", goal["kind"].as_str().unwrap_or("?"), time * 1e3),
                None => "discretionary".into(),
            };
            for row in class["services"].as_array().into_iter().flatten() {
                found += 1;
                let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
                let attained = row["attained"].as_bool().map_or("-", |attained| if attained { "yes" } else { "no" });
                print(format!(
                    "{mode:<8} {name:<7} {goal:>14} {:>9.1} {:>9.1} {attained:>9} {:>9} {:>9.2} {:>9} {:>9}",
                    number("p50_s") * 1e3,
                    number("p99_s") * 1e3,
                    row["count"].to_string(),
                    number("cpu_s"),
                    class["actions"]["applied"].to_string(),
                    class["actions"]["would_apply"].to_string(),
                ));
            }
        }
    }
    if found == 0 {
        bail!("the agent has seen no request of a service class");
    }
    print("");
    print("The declared function burn, which both classes call twice a request");
    for (mode, _, classes) in answers {
        let mut all = classes["classes"].as_array().into_iter().flatten();
        if let Some(burn) = all.find(|class| class["protocol"] == "declared") {
            let number = |key: &str| burn[key].as_f64().unwrap_or(0.0);
            print(format!(
                "{mode:<8} {:>9} calls, p50 {:.1} ms, p99 {:.1} ms, CPU {:.1} ms each",
                burn["count"],
                number("p50_s") * 1e3,
                number("p99_s") * 1e3,
                number("cpu_s") * 1e3
            ));
        }
    }
    print("");
    Ok(())
}
