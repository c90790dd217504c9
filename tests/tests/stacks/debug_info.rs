//! Functions that the compiler inlined, and lines, by debug information: in the program, compressed or not, and in a compressed file
//! of its own that is found by build id or beside the program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::workload::{compile_optimised, source};
use tracer_tests::{begin, figure, find, free_port, http, scratch, wait};

/// How long samples and names may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

fn run(program: &str, prepare: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(find(program).unwrap_or_else(|| panic!("no {program}")));
    prepare(&mut command);
    let done = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Moves the debug information of `program` into a compressed file below `directory`, by its build id.
fn set_apart(program: &Path, directory: &Path) {
    let notes = run("readelf", |command| _ = command.arg("-n").arg(program));
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id");
    let (first, rest) = id.trim().split_at(2);
    let place = directory.join(".build-id").join(first);
    std::fs::create_dir_all(&place).unwrap_or_else(|error| panic!("{error}"));
    let file = place.join(format!("{rest}.debug"));
    let keep = ["--only-keep-debug", "--compress-debug-sections=zlib"];
    run("objcopy", |command| _ = command.args(keep).arg(program).arg(&file));
    // Linked by a name that is nowhere: only the build id leads to it.
    let named = program.with_extension("debug");
    std::fs::copy(&file, &named).unwrap_or_else(|error| panic!("{error}"));
    run("objcopy", |command| {
        _ = command.arg("--strip-all").arg(format!("--add-gnu-debuglink={}", named.display())).arg(program);
    });
    std::fs::remove_file(&named).unwrap_or_else(|error| panic!("{error}"));
}

/// Moves the debug information of `program` into a file beside it, compressed by zstd. Without a build id: that of other copies leads
/// to a file that is not this one's.
fn set_beside(program: &Path) {
    let file = program.with_extension("debug");
    run("objcopy", |command| _ = command.arg("--remove-section=.note.gnu.build-id").arg(program));
    let keep = ["--only-keep-debug", "--compress-debug-sections=zstd"];
    run("objcopy", |command| _ = command.args(keep).arg(program).arg(&file));
    run("objcopy", |command| {
        _ = command.arg("--strip-all").arg(format!("--add-gnu-debuglink={}", file.display())).arg(program);
    });
}

#[test]
fn inlined_functions_and_their_lines_are_shown() {
    let Some(_turn) = begin("debug information", &["cc", "objcopy", "readelf"]) else { return };
    let dir = scratch();
    let debug = dir.path().join("debug");
    let whole = compile_optimised(dir.path(), "inlined");
    let copy = |name: &str| {
        let path = dir.path().join(name);
        std::fs::copy(&whole, &path).unwrap_or_else(|error| panic!("{error}"));
        path
    };
    let (apart, beside, packed) = (copy("apart"), copy("beside"), copy("packed"));
    set_apart(&apart, &debug);
    set_beside(&beside);
    run("objcopy", |command| _ = command.arg("--compress-debug-sections=zstd").arg(&packed));
    let sections = run("readelf", |command| _ = command.args(["-t", "-W"]).arg(&packed));
    assert!(sections.contains("ZSTD"), "{sections}");
    let config = dir.path().join("tracer.toml");
    let text = format!("[profiles]\nlines = true\ndebug_dirs = [\"{}\"]\n", debug.display());
    std::fs::write(&config, text).unwrap_or_else(|error| panic!("{error}"));
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", &config.display().to_string()]);
    let start = |name: &str, program: &Path| {
        let mut command = Command::new(program);
        command.env("OTEL_SERVICE_NAME", name);
        Process::start(name, &mut command, &dir.path().join(format!("{name}.log")))
    };
    let programs = [("whole", &whole), ("apart", &apart), ("beside", &beside), ("packed", &packed)];
    let running = programs.map(|(name, program)| start(name, program));

    let text = std::fs::read_to_string(source("inlined.c")).expect("its source");
    let line = |mark: &str| 1 + text.lines().position(|line| line.contains(mark)).expect("a mark");
    let (hot, call) = (line("/* HOT */"), line("/* CALL */"));
    let (outer, inlined) =
        (format!(";outer (workloads/inlined.c:{call});"), format!("inlined_hot (workloads/inlined.c:{hot})"));
    for service in programs.map(|(name, _)| name) {
        let folded = || agent.text("/profile.folded");
        // Time in all stacks of user code that have names, in those with the function that was inlined below its caller, and in
        // its hot line.
        let sums = || {
            let (mut all, mut inside, mut hottest) = (0.0, 0.0, 0.0);
            for (stack, micros) in folded().lines().filter_map(|line| line.rsplit_once(' ')) {
                if stack.split(';').next() != Some(service) || !stack.contains("outer") {
                    continue;
                }
                let micros: f64 = micros.parse().expect("a number");
                all += micros;
                inside += if stack.contains(&format!("{outer}inlined_hot (")) { micros } else { 0.0 };
                hottest += if stack.contains(&inlined) { micros } else { 0.0 };
            }
            (all >= 1e6).then_some((all, inside, hottest))
        };
        let (all, inside, hottest) = wait(&format!("{service}: samples of a second\n{}", folded()), PATIENCE, sums);
        figure(
            &format!("debug information, {service}"),
            &format!(
                "{:.1} % in the inlined function, {:.1} % on its line",
                100.0 * inside / all,
                100.0 * hottest / all
            ),
        );
        // The loop's own line takes the rest, 11 to 35 % of a second of samples on one machine.
        assert!(inside / all > 0.95 && hottest / all > 0.5, "{service}: {inside} {hottest} of {all}\n{}", folded());
        // One row for the line of the function, whoever it was inlined into.
        let rows = agent.json(&format!("/api/v1/hotspots?service={service}"));
        assert_eq!(rows["functions"][0]["function"], inlined, "{rows}");
    }
    drop(running);
    agent.stop();
}

/// The build id of a program, in hexadecimal digits.
fn build_id(program: &Path) -> String {
    let notes = run("readelf", |command| _ = command.arg("-n").arg(program));
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id");
    id.trim().to_owned()
}

#[test]
fn lines_of_a_stripped_program_come_from_debuginfod() {
    let Some(_turn) = begin("debuginfod", &["cc", "objcopy", "readelf", "debuginfod"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "inlined");
    let [served, nowhere, cache] = ["served", "nowhere", "cache"].map(|name| dir.path().join(name));
    std::fs::create_dir(&served).expect("a directory");
    run("objcopy", |command| _ = command.arg("--only-keep-debug").arg(&program).arg(served.join("inlined.debug")));
    // Nothing in the program leads to its debug file but the build id.
    run("objcopy", |command| _ = command.arg("--strip-all").arg(&program));
    let (id, port) = (build_id(&program), free_port());
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut command = Command::new(find("debuginfod").expect("debuginfod"));
    command.args(["-F", "-d", ":memory:", "-p", &port.to_string()]).arg(&served).env_remove("DEBUGINFOD_URLS");
    let server = Process::start("debuginfod", &mut command, &dir.path().join("debuginfod.log"));
    let path = format!("/buildid/{id}/debuginfo");
    wait("the server's index", PATIENCE, || {
        http::get(address, &path).is_ok_and(|reply| reply.status == 200).then_some(())
    });

    let config = dir.path().join("tracer.toml");
    let text = format!(
        "[profiles]\nlines = true\ndebug_dirs = [\"{}\"]\ndebuginfod = [\"http://{address}\"]\ndebuginfod_cache = \"{}\"\n",
        nowhere.display(),
        cache.display()
    );
    std::fs::write(&config, text).expect("a file");
    let mut command = Command::new(&program);
    command.env("OTEL_SERVICE_NAME", "stripped");
    let running = Process::start("stripped", &mut command, &dir.path().join("stripped.log"));
    let text = std::fs::read_to_string(source("inlined.c")).expect("its source");
    let line = |mark: &str| 1 + text.lines().position(|line| line.contains(mark)).expect("a mark");
    let (hot, call) = (line("/* HOT */"), line("/* CALL */"));
    let inside = format!(";outer (workloads/inlined.c:{call});inlined_hot (workloads/inlined.c:{hot})");
    // The second time from what the first fetched: the server is gone.
    let mut server = Some(server);
    for first in [true, false] {
        let agent = Agent::start(dir.path(), &["--nice=-10", "--config", &config.display().to_string()]);
        let share = || {
            let (mut all, mut named) = (0.0, 0.0);
            let folded = agent.text("/profile.folded?since=10s");
            for (stack, micros) in folded.lines().filter_map(|line| line.rsplit_once(' ')) {
                if stack.split(';').next() == Some("stripped") {
                    let micros: f64 = micros.parse().expect("a number");
                    all += micros;
                    named += if stack.contains(&inside) { micros } else { 0.0 };
                }
            }
            (all > 1e6 && named > 0.8 * all).then_some(named / all)
        };
        let share = wait("lines of the stripped program", PATIENCE, share);
        figure(
            &format!("debuginfod, first {first}"),
            &format!("{:.1} % of the samples have their line", 100.0 * share),
        );
        let count = |outcome: &str| agent.metrics().sum("tracer_debuginfod_requests_total", &[("outcome", outcome)]);
        // Its C library is asked for, too, and not served.
        let counted = || {
            let counted = [count("fetched"), count("failed") + count("missing")];
            (counted[0] >= f64::from(first) && counted[1] > 0.0).then_some(counted)
        };
        let [fetched, others] = wait("the C library to be asked for", PATIENCE, counted);
        assert!((fetched - f64::from(first)).abs() < 0.5, "{fetched} fetched, {others} not");
        assert!(agent.metrics().sum("tracer_debuginfod_cache_bytes", &[]) > 1000.0);
        agent.stop();
        drop(server.take());
    }
    let (head, rest) = id.split_at(2);
    assert!(cache.join(".build-id").join(head).join(format!("{rest}.debug")).exists());
    drop(running);
}
