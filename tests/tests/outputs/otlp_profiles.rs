//! Profiles as a receiver reads them that knows OpenTelemetry's own messages: each class has its functions, its time and its waits as
//! the agent's flame graphs have them, once, whatever the collector does meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::go::unpacked;
use tracer_tests::process::Process;
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, find, load, say, scratch, wait};

/// What a class is known to run or to wait in: service, path, type of profile, function.
const CLASSES: [(&str, &str, &str, &str); 4] = [
    ("burn", "alpha", "cpu", "burn_alpha"),
    ("burn", "beta", "cpu", "burn_beta"),
    ("waits", "sleep", "off_cpu", "wait_in_sleep"),
    ("waits", "lock", "off_cpu", "wait_for_lock"),
];
/// How long the load runs: two intervals and a part of one.
const LOAD: Duration = Duration::from_secs(23);

/// Starts the receiver, which answers `busy` requests with 503 first.
fn receiver(dir: &Path, busy: usize) -> Server {
    let wheels = [
        ("opentelemetry-proto-", "opentelemetry/proto/profiles/v1development/profiles_pb2.py"),
        ("protobuf-", "google/protobuf/message.py"),
    ];
    let library = |(begin, file): (&str, &str)| {
        let found = Path::new(unpacked(begin, file));
        assert!(found.is_file(), "no {begin}* at {}: `cargo xtask test` fetches it", found.display());
        found.ancestors().nth(file.split('/').count()).expect("its directory").to_owned()
    };
    let libraries = std::env::join_paths(wheels.map(library)).expect("directories");
    let mut command = Command::new(find("python3").expect("Python"));
    command.arg("-u").arg(source("otlp_profiles.py")).arg(busy.to_string()).env("PYTHONPATH", libraries);
    Server::start("receiver", dir, &mut command)
}

/// The requests that were received.
fn received(receiver: &Process) -> Vec<Value> {
    let output = receiver.output();
    // The last one may be under way.
    let lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let all = lines.filter_map(|line| line.strip_prefix("REQUEST ")).map(serde_json::from_str);
    all.map(|request| request.unwrap_or_else(|error| panic!("{error}:\n{output}"))).collect()
}

/// Time by stack.
type Stacks = BTreeMap<String, f64>;

/// Nanoseconds by stack of a class in all requests, written as in folded text.
fn exported(requests: &[Value], service: &str, class: &str, kind: &str) -> Stacks {
    let mut found = Stacks::new();
    for profile in requests.iter().flat_map(|request| request["profiles"].as_array().expect("a list")) {
        if profile["resource"]["service.name"] != service || profile["type"][0] != kind {
            continue;
        }
        for sample in profile["samples"].as_array().expect("a list") {
            let attributes = &sample["attributes"];
            if attributes["tracer.request_class"] != class {
                continue;
            }
            assert_eq!(attributes["network.protocol.name"], "http", "{sample}");
            let frames = sample["frames"].as_array().expect("a list").iter().map(|frame| {
                let name = frame["function"].as_str().expect("a name").replace(';', ":");
                if frame["type"] == "kernel" { format!("{name}_[k]") } else { name }
            });
            let stack = std::iter::once(service.to_owned()).chain(frames).collect::<Vec<_>>().join(";");
            *found.entry(stack).or_default() += sample["value"].as_f64().expect("a number");
        }
    }
    found
}

/// The same by the agent, from folded text in microseconds.
fn folded(agent: &Agent, service: &str, path: &str, kind: &str) -> Stacks {
    let kind = kind.replace('_', "");
    let text = agent.text(&format!("/profile.folded?service={service}&class=GET%20%2F{path}&kind={kind}"));
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines.map(|(stack, micros)| (stack.to_owned(), micros.parse::<f64>().expect("a number") * 1e3)).collect()
}

fn sum(stacks: &Stacks) -> f64 {
    stacks.values().sum()
}

/// Time of the stacks with a function.
fn within(stacks: &Stacks, function: &str) -> f64 {
    stacks.iter().filter(|(stack, _)| stack.split(';').any(|frame| frame == function)).map(|(_, nanos)| nanos).sum()
}

#[test]
fn classes_are_exported_with_their_functions_and_times() {
    let Some(_turn) = begin("otlp_profiles", &["cc", "python3"]) else { return };
    let dir = scratch();
    let receiver = receiver(dir.path(), 1);
    let servers = ["burn", "waits"].map(|name| (name, Server::c(name, dir.path())));
    let to = format!("http://{}", receiver.address);
    let arguments =
        ["--nice=-10", "--max-cpu=6400%", "--overhead-budget=100%", "--otlp", &to, "--otlp-signals", "profiles"];
    let agent = Agent::launch_with("agent", dir.path(), &arguments, |command| {
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf").env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
        command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    })
    .ready();
    let end = Instant::now() + LOAD;
    std::thread::scope(|scope| {
        for (name, server) in &servers {
            scope.spawn(move || {
                let paths: Vec<String> =
                    CLASSES.iter().filter(|of| of.0 == *name).map(|of| format!("/{}", of.1)).collect();
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                let (good, bad) = load::until(server.address, 1, &paths, end);
                assert!(good > 100 && bad == 0, "{name}: {good} good, {bad} bad");
            });
        }
    });
    // Costs of the last requests arrive within a second or two, names soon after; then both are of the same samples.
    let flame = || CLASSES.map(|(service, path, kind, _)| folded(&agent, service, path, kind));
    let mut before = flame();
    let flames = wait("stacks with names", Duration::from_secs(60), || {
        std::thread::sleep(Duration::from_secs(3));
        let now = flame();
        let calm = now == before && !now.iter().any(|of| of.keys().any(|stack| stack.contains("[not named")));
        before.clone_from(&now);
        calm.then_some(now)
    });
    let metrics = agent.metrics();
    let outcome = |outcome| metrics.sum("tracer_otlp_profile_samples_total", &[("outcome", outcome)]);
    assert!(outcome("sent") > 0.0 && metrics.sum("tracer_otlp_retries_total", &[("signal", "profiles")]) >= 1.0);
    for lost in ["queue_full", "rejected", "failed"] {
        assert!(outcome(lost) < 0.5, "{lost}");
    }
    // What is left is exported at the end.
    agent.stop();
    let requests = received(&receiver.process);
    let profiles: Vec<&Value> = requests.iter().flat_map(|of| of["profiles"].as_array().expect("a list")).collect();
    for request in &requests {
        assert_eq!(request["wrong"], serde_json::json!([]));
        assert_eq!((&request["path"], &request["gzip"]), (&"/v1development/profiles".into(), &true.into()));
        assert!(request["bytes"].as_u64().is_some_and(|bytes| bytes < 4 << 20), "{}", request["bytes"]);
    }
    let ids: BTreeSet<&str> = profiles.iter().filter_map(|of| of["id"].as_str()).collect();
    assert_eq!(ids.len(), profiles.len(), "every profile has an id of its own");
    // Of one process profiles follow each other without overlap, and the resource is the process.
    for (name, server) in &servers {
        let of = |kind: &str| {
            let own = profiles.iter().filter(|of| of["resource"]["service.name"] == *name && of["type"][0] == kind);
            own.map(|of| (of["start"].as_u64().expect("a time"), of["duration"].as_u64().expect("a time"), *of))
                .collect::<Vec<_>>()
        };
        let all = of("cpu");
        assert!(all.len() >= 3, "{name}: {} profiles", all.len());
        for pair in all.windows(2) {
            let [(start, duration, _), (next, ..)] = pair else { unreachable!() };
            assert!(start + duration <= next + 1_000_000, "{name}: {start} + {duration}, {next}");
        }
        for (.., profile) in all.iter().chain(&of("off_cpu")) {
            let resource = &profile["resource"];
            assert_eq!(resource["process.pid"], u64::from(server.process.pid()), "{resource}");
            let instance = resource["service.instance.id"].as_str().expect("an id");
            assert!(
                instance.contains(&format!("/{}@", server.process.pid())) && !instance.ends_with("@0"),
                "{instance}"
            );
            assert_eq!(resource["process.executable.name"], *name);
            assert_eq!((&resource["telemetry.sdk.name"], &resource["os.type"]), (&"tracer".into(), &"linux".into()));
            assert_eq!(resource["deployment.environment.name"], "test");
            assert_eq!(profile["type"][1], "nanoseconds");
        }
    }
    for ((service, path, kind, function), flame) in CLASSES.into_iter().zip(&flames) {
        let found = exported(&requests, service, &format!("GET /{path}"), kind);
        let (all, flame_all) = (sum(&found), sum(flame));
        let stacks: BTreeSet<&String> = found.keys().chain(flame.keys()).collect();
        let of = |stacks: &Stacks, stack: &String| stacks.get(stack).copied().unwrap_or_default();
        let apart: f64 = stacks.iter().map(|stack| (of(&found, stack) - of(flame, stack)).abs()).sum::<f64>() / 2.0;
        let text = format!(
            "{path}: {:.3} s exported, {:.3} s in the flame graph, {:.2} % of it in other stacks; {function} {:.1} % and {:.1} %",
            all / 1e9,
            flame_all / 1e9,
            100.0 * apart / flame_all,
            100.0 * within(&found, function) / all,
            100.0 * within(flame, function) / flame_all
        );
        say(&format!("OTLP profiles, {text}"));
        figure(&format!("OTLP profiles {path}"), &format!("{:.2} % of the flame graph", 100.0 * all / flame_all));
        assert!((all / flame_all - 1.0).abs() < 0.01 && apart < 0.02 * flame_all, "{text}");
        assert!((within(&found, function) / within(flame, function) - 1.0).abs() < 0.02, "{text}");
        // Functions of the program are in its file.
        let mapped = profiles.iter().flat_map(|of| of["samples"].as_array().into_iter().flatten());
        let mut frames = mapped.flat_map(|of| of["frames"].as_array().into_iter().flatten());
        let frame = frames.find(|frame| frame["function"] == function).expect("its frame");
        assert!(frame["mapping"].as_str().is_some_and(|file| file.ends_with(&format!("/{service}"))), "{frame}");
        assert_eq!(frame["type"], "native");
    }
    let samples: usize = profiles.iter().map(|of| of["samples"].as_array().map_or(0, Vec::len)).sum();
    let bytes = |field: &str| requests.iter().filter_map(|of| of[field].as_u64()).sum::<u64>();
    say(&format!(
        "OTLP profiles: {} requests, {} profiles, {samples} stacks, {} bytes, {} compressed",
        requests.len(),
        profiles.len(),
        bytes("bytes"),
        bytes("sent_bytes")
    ));
}
