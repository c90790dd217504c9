//! `--history s3://…`: files go to the directory first and from there to the bucket, whatever becomes of that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracer_results::history::parquet_file::read_bytes;
use tracer_results::history::rows::ClassRow;
use tracer_tests::agent::{Agent, binary, outcome};
use tracer_tests::bucket::{KEY, KEY_ID, NAME, Store};
use tracer_tests::http;
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{begin, free_port, say, scratch, wait};

const SOON: Duration = Duration::from_secs(30);

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.retain(|path| path.extension().is_some_and(|end| end == "parquet"));
    found
}

fn ask(server: &Server, requests: u64) {
    let mut connection = http::Connection::open(server.address).expect("a connection");
    for nth in 0..requests {
        connection.ask("GET", &format!("/item/{nth}/d2000")).expect("a reply");
    }
}

fn metric(agent: &Agent, outcome: &str) -> u64 {
    agent.metrics().sum("tracer_history_uploads_total", &[("outcome", outcome)]) as u64
}

fn waiting(agent: &Agent) -> u64 {
    agent.metrics().sum("tracer_history_waiting_files", &[]) as u64
}

fn counted(agent: &Agent) -> u64 {
    let classes = agent.json("/api/v1/classes");
    let classes = classes["classes"].as_array().expect("classes").clone();
    classes.iter().filter(|class| class["side"] == "server").filter_map(|class| class["count"].as_u64()).sum()
}

/// Objects below the prefix, each whole: by their names below it.
fn objects(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let names = store.names();
    let below = |name: String| name.strip_prefix("fleet/").map(str::to_owned);
    names.into_iter().filter_map(below).map(|name| (name.clone(), store.object(&format!("fleet/{name}")))).collect()
}

/// Requests in objects or files of classes.
fn requests<'a>(all: impl Iterator<Item = (&'a String, &'a Vec<u8>)>) -> u64 {
    let classes = all.filter(|(name, _)| name.starts_with("kind=classes"));
    let rows = classes.flat_map(|(name, bytes)| {
        read_bytes::<ClassRow>(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"))
    });
    rows.filter(|row| &*row.side == "server").map(|row| row.count).sum()
}

#[test]
fn a_store_that_stops_dies_and_comes_back_costs_nothing_that_was_written() {
    let Some(_turn) = begin("history_bucket", &["cc", "python3"]) else { return };
    if !Store::is_there() {
        return say("SKIPPED history_bucket: needs the wheel moto");
    }
    let dir = scratch();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let store = Store::start(dir.path(), address);
    let origin = Server::c("origin", dir.path());
    let spool = dir.path().join("spool");
    let config = dir.path().join("tracer.toml");
    std::fs::write(&config, format!("[history]\nwindow = \"1s\"\nspool = \"{}\"\n", spool.display())).expect("a file");
    let (port, url) = (origin.address.port().to_string(), format!("s3://{NAME}/fleet"));
    let config = config.to_str().expect("text").to_owned();
    let arguments = ["--config", &config, "--port", &port, "--history", &url];
    let launch = || {
        let agent = Agent::launch_with("agent", dir.path(), &arguments, |command| Store::environment(command, address));
        agent.ready()
    };

    let agent = launch();
    // The first window begins with the first tick.
    let windows = || agent.metrics().sum("tracer_history_windows_total", &[("outcome", "written")]);
    wait("the first window", SOON, || (windows() > 0.0).then_some(()));
    ask(&origin, 100);
    wait("files to be in the bucket", SOON, || {
        (metric(&agent, "taken") >= 3 && waiting(&agent) == 0 && requests(objects(&store).iter()) == 100).then_some(())
    });

    // It stands still, then it dies: files wait, tracing goes on, and the agent ends in time.
    store.signal(libc::SIGSTOP);
    ask(&origin, 50);
    let written = windows();
    wait("windows to be written meanwhile", SOON, || (windows() >= written + 2.0).then_some(()));
    store.signal(libc::SIGKILL);
    drop(store);
    wait("an upload to fail", Duration::from_secs(90), || (metric(&agent, "failed") > 0).then_some(()));
    ask(&origin, 50);
    wait("all requests to be counted", SOON, || (counted(&agent) == 200).then_some(()));
    assert!(waiting(&agent) > 0 && metric(&agent, "given_up") == 0);
    let begun = Instant::now();
    let ended = agent.stop();
    assert!(ended.took < Duration::from_secs(10), "{:?}", ended.took);
    say(&format!("ended after {:.1} s without its store", begun.elapsed().as_secs_f64()));
    let local = |path: &PathBuf| {
        let name = path.strip_prefix(&spool).expect("below").to_str().expect("text").to_owned();
        (name, std::fs::read(path).expect("a file"))
    };
    let spooled: BTreeMap<String, Vec<u8>> = files(&spool).iter().map(local).collect();
    assert_eq!(requests(spooled.iter()), 200, "what was written is whole");

    // Back, and empty: the next run uploads what waited. What the lost store had taken waits no more.
    let store = Store::start(dir.path(), address);
    let agent = launch();
    wait("everything to be in the bucket", SOON, || {
        let there = objects(&store);
        // Files of an hour before, if one ended meanwhile, may have been taken by the store that is lost.
        let hour = |name: &str| name.split('/').find(|part| part.starts_with("hour=")).map(str::to_owned);
        let last = spooled.keys().next_back().and_then(|name| hour(name));
        let mut waited = spooled.iter().filter(|(name, _)| hour(name) == last);
        let all = waited.all(|(name, bytes)| there.get(name).is_some_and(|object| object == bytes));
        (all && waiting(&agent) == 0).then_some(())
    });

    // Anybody who may read the bucket can judge it, without the agents.
    let mut command = std::process::Command::new(binary());
    command.args(["verdicts", "--history", &url]);
    Store::environment(&mut command, address);
    let verdicts = outcome(&mut command, "verdicts");
    assert_eq!(verdicts.code, Some(0), "{}", verdicts.err);
    assert!(verdicts.out.contains(" windows, "), "{}", verdicts.out);

    // So does the console of all hosts.
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = std::process::Command::new(binary());
    command.args(["fleet", "--history", &url, "--listen", &listen.to_string(), "--refresh", "1s"]);
    Store::environment(&mut command, address);
    let mut fleet = Process::start("fleet", &mut command, &dir.path().join("fleet.log"));
    let asked = |target: &str| -> Option<serde_json::Value> {
        let reply = http::get(listen, target).ok().filter(|reply| reply.status == 200)?;
        serde_json::from_str(&reply.text()).ok()
    };
    // All but the last window of the first run, which is shorter and not judged.
    let classes = wait("the console to have read the bucket", SOON, || {
        assert!(fleet.ended().is_none(), "{}", fleet.output());
        let all = asked("/api/v1/classes")?["classes"].as_array()?.clone();
        all.iter().any(|one| one["side"] == "server" && one["count"].as_u64().unwrap_or(0) >= 150).then_some(all)
    });
    assert!(
        classes.iter().all(|one| one["service_name"].as_str().is_some_and(|name| name.contains('/'))),
        "{classes:?}"
    );
    // Figures of the host, from rows that the agent's own account made.
    let hosts = asked("/api/v1/hosts").expect("hosts")["hosts"].as_array().expect("hosts").clone();
    let ratio = hosts[0]["capture_ratio"].as_f64().expect("a ratio");
    assert!(hosts.len() == 1 && ratio > 0.5 && (ratio - 1.0).abs() > f64::EPSILON, "{hosts:?}");
    assert!(http::get(listen, "/").expect("a page").text().contains("data-page=\"home\""));
    fleet.signal(libc::SIGTERM);
    assert!(fleet.wait(Duration::from_secs(5)).success(), "{}", fleet.output());

    let mut shown =
        vec![fleet.output(), agent.text("/metrics"), agent.text("/api/v1/health"), verdicts.out, verdicts.err];
    shown.extend([agent.stop().output, ended.output]);
    shown.extend(files(&spool).iter().map(|path| path.display().to_string()));
    for text in &shown {
        assert!(!text.contains(KEY) && !text.contains(KEY_ID), "{text}");
    }
}
