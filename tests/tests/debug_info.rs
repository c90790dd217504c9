//! Functions that the compiler inlined, and lines, by debug information: in the program, and in a compressed file of its own that
//! is found by build id.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::workload::{compile_optimised, source};
use tracer_tests::{begin, figure, find, scratch, wait};

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

#[test]
fn inlined_functions_and_their_lines_are_shown() {
    let Some(_turn) = begin("debug information", &["cc", "objcopy", "readelf"]) else { return };
    let dir = scratch();
    let debug = dir.path().join("debug");
    let whole = compile_optimised(dir.path(), "inlined");
    let apart = dir.path().join("apart");
    std::fs::copy(&whole, &apart).unwrap_or_else(|error| panic!("{error}"));
    set_apart(&apart, &debug);
    let config = dir.path().join("tracer.toml");
    let text = format!("[profiles]\nlines = true\ndebug_dirs = [\"{}\"]\n", debug.display());
    std::fs::write(&config, text).unwrap_or_else(|error| panic!("{error}"));
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", &config.display().to_string()]);
    let start = |name: &str, program: &Path| {
        let mut command = Command::new(program);
        command.env("OTEL_SERVICE_NAME", name);
        Process::start(name, &mut command, &dir.path().join(format!("{name}.log")))
    };
    let running = [start("whole", &whole), start("apart", &apart)];

    let text = std::fs::read_to_string(source("inlined.c")).expect("its source");
    let line = |mark: &str| 1 + text.lines().position(|line| line.contains(mark)).expect("a mark");
    let (hot, call) = (line("/* HOT */"), line("/* CALL */"));
    let (outer, inlined) =
        (format!(";outer (workloads/inlined.c:{call});"), format!("inlined_hot (workloads/inlined.c:{hot})"));
    for service in ["whole", "apart"] {
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
        assert!(inside / all > 0.95 && hottest / all > 0.8, "{service}: {inside} {hottest} of {all}\n{}", folded());
        // One row for the line of the function, whoever it was inlined into.
        let rows = agent.json(&format!("/api/v1/hotspots?service={service}"));
        assert_eq!(rows["functions"][0]["function"], inlined, "{rows}");
    }
    drop(running);
    agent.stop();
}
