//! Methods of Java in flame graphs, of machines that keep no frame pointers: whole stacks, with the chains of methods that a program is
//! known to run, in their order, compiled by each compiler and interpreted, in every version at hand.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::folded::{self, Stacks, named, since};
use tracer_tests::interpreted;
use tracer_tests::process::Process;
use tracer_tests::workload::{source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, say, scratch, wait};

/// Samples a second and CPU.
const HERTZ: f64 = 499.0;
const PATIENCE: Duration = Duration::from_secs(120);
/// Rounds of load in a row without code that was compiled just now, after which little is compiled.
const ROUNDS: u32 = 8;

/// What a method that is interpreted is shown as where it could not be read.
const INTERPRETED: &str = "[Java interpreter]";

/// The root of a stack with code that was compiled just now: what the table is made of is looked at ten times a second at most.
const COMPILED_NOW: &str = "[stack incomplete: no unwind information]";

/// A route, and the methods that it ends with, each with its number of frames. Between the sort and the comparison stand those of
/// Java's own library.
const CHAINS: &[(&str, &[(&str, usize)])] = &[
    ("/chain", &[("answer", 1), ("outer", 1), ("middle", 1), ("inner", 1), ("spin", 1)]),
    ("/recursive", &[("answer", 1), ("recursive", 1), ("deep", 41), ("spin", 1)]),
    ("/callback", &[("ByKey.compared", 1), ("spin", 1)]),
];

/// Weight of stacks: all, those of code that was compiled just now, those that reach the thread's first frame, those that end where the program spins, and of them those with
/// the whole chain.
#[derive(Debug, Default)]
struct Judged {
    all: f64,
    fresh: f64,
    complete: f64,
    spins: f64,
    right: f64,
    wrong: Vec<String>,
}

/// The methods of a stack, outermost first: what runs natively is left out.
fn methods(stack: &str) -> Vec<&str> {
    let is_java = |frame: &&str| {
        *frame == INTERPRETED || ["Frames", "java.", "jdk.", "sun."].iter().any(|of| frame.starts_with(of))
    };
    stack.split(';').skip(1).filter(is_java).collect()
}

fn judge(stacks: &Stacks, chain: &[(&str, usize)]) -> Judged {
    let wanted: Vec<&str> = chain.iter().flat_map(|(name, times)| std::iter::repeat_n(*name, *times)).collect();
    let is_method = |frame: &str, wanted: &str| {
        // A class within the class is set apart by another character.
        frame.strip_prefix("Frames").is_some_and(|name| name.get(1..) == Some(wanted))
    };
    let mut judged = Judged::default();
    for (stack, weight) in stacks {
        judged.all += weight;
        if stack.contains(COMPILED_NOW) {
            judged.fresh += weight;
            continue;
        }
        if stack.contains("[stack incomplete") {
            judged.wrong.push(format!("{weight} {stack}"));
        } else {
            judged.complete += weight;
        }
        let all = methods(stack);
        if all.last() != Some(&"Frames.spin") {
            continue;
        }
        judged.spins += weight;
        let from = all.len().saturating_sub(wanted.len());
        let last = &all[from..];
        if last.len() == wanted.len() && last.iter().zip(&wanted).all(|(frame, wanted)| is_method(frame, wanted)) {
            judged.right += weight;
        } else {
            judged.wrong.push(format!("{weight} {stack}"));
        }
    }
    judged
}

/// A server with these options, judged route by route.
fn server(agent: &Agent, dir: &Path, java: &Path, name: &str, options: &[&str]) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let service = format!("java{name}");
    let mut command = Command::new(java);
    command.arg("-XX:CompileCommand=quiet").args(options);
    command.arg("-cp").arg(dir).args(["Frames", &address.port().to_string()]).env("OTEL_SERVICE_NAME", &service);
    let mut server = Process::start("java", &mut command, &dir.join(format!("{service}.log")));
    wait_for_listener(&mut server, address);
    let stacks = |path: &str| folded::stacks(agent, &service, path, "cpu", HERTZ);
    let paths: Vec<&str> = CHAINS.iter().map(|(path, _)| *path).collect();
    // Whatever is called often is compiled, and then again by the other compiler.
    let (mut before, mut whole) = (Vec::new(), 0);
    wait("code that is compiled", PATIENCE, || {
        interpreted::ask(address, &paths, 2);
        let now: Vec<Stacks> = paths.iter().map(|path| stacks(path)).collect();
        let seen: Vec<Stacks> = now.iter().zip(&before).map(|(now, before)| since(now, before)).collect();
        before = now;
        let is_whole = |stacks: &Stacks| !stacks.is_empty() && !stacks.keys().any(|stack| stack.contains("incomplete"));
        whole = if !seen.is_empty() && seen.iter().all(is_whole) { whole + 1 } else { 0 };
        (whole == ROUNDS).then_some(())
    });
    let before = interpreted::load_until_sampled(address, &paths, "Frames.spin", || {
        paths.iter().map(|path| stacks(path)).collect()
    });
    for ((path, chain), before) in CHAINS.iter().zip(&before) {
        let all = named(before, || stacks(path));
        let judged = judge(&all, chain);
        let complete = 100.0 * judged.complete / (judged.all - judged.fresh);
        let right = 100.0 * judged.right / judged.spins;
        let what = format!(
            "{complete:.2} % complete of {:.0} samples, without {:.0} of code compiled just now; {right:.2} % of {:.0} that spin have the chain",
            judged.all - judged.fresh,
            judged.fresh,
            judged.spins
        );
        say(&format!("{service} {path}: {what}"));
        figure(&format!("{service} {path}"), &what);
        let some: String = judged.wrong.iter().take(12).flat_map(|line| [line, "\n"]).collect();
        // Eight whole rounds came before: code is seldom compiled by now.
        assert!(judged.fresh <= 0.15 * judged.all && complete >= 99.0, "{what}\n{some}");
        assert!(
            judged.spins >= 0.8 * (judged.all - judged.fresh) && judged.right >= 0.98 * judged.spins,
            "{what}\n{some}"
        );
    }
}

/// Compiles the program for the oldest version at hand.
fn compiled(dir: &Path) {
    let mut javac = Command::new(find("javac").expect("javac"));
    let done = javac.args(["--release", "17", "-d"]).arg(dir).arg(source("Frames.java")).status();
    assert!(done.is_ok_and(|status| status.success()), "javac");
}

/// Runs each of these ways of each of these machines.
fn judge_all(name: &str, machines: &[(String, PathBuf)], ways: &[(&str, &[&str])]) {
    let Some(_turn) = begin(name, &["java", "javac"]) else { return };
    let dir = scratch();
    compiled(dir.path());
    let agent = Agent::start(dir.path(), &["--hertz", "499", "--overhead-budget", "100%"]);
    for (version, java) in machines {
        for (way, options) in ways {
            server(&agent, dir.path(), java, &format!("{version}{way}"), options);
        }
    }
    agent.stop();
}

/// The distribution's machine.
fn usual() -> [(String, PathBuf); 1] {
    [(String::new(), find("java").unwrap_or_default())]
}

/// Every method has a frame of its own.
const APART: &str = "-XX:CompileCommand=dontinline,Frames*.*";

/// What was inlined stands in its place, so that the chains are the same as without.
#[test]
fn a_machine_without_frame_pointers_shows_its_methods() {
    judge_all("java frames", &usual(), &[("", &[])]);
}

#[test]
fn so_do_each_compiler_and_the_interpreter() {
    let (first, second) = ("-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation");
    let ways: [(&str, &[&str]); 6] = [
        ("apart", &[APART]),
        ("c1", &[first]),
        ("c1apart", &[first, APART]),
        ("c2", &[second]),
        ("c2apart", &[second, APART]),
        ("int", &["-Xint"]),
    ];
    judge_all("java frames, compilers", &usual(), &ways);
}

/// Those that are installed beside it.
#[test]
fn so_do_other_versions() {
    let usual = find("java").and_then(|java| java.canonicalize().ok());
    let all = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let others: BTreeSet<PathBuf> = all.filter_map(|entry| entry.path().join("bin/java").canonicalize().ok()).collect();
    let others = others.into_iter().filter(|java| Some(java) != usual.as_ref());
    let others: Vec<_> = others.enumerate().map(|(number, java)| (format!("other{number}"), java)).collect();
    if others.is_empty() {
        return say("SKIPPED so_do_other_versions: no other Java is installed");
    }
    judge_all("java frames, versions", &others, &[("", &[]), ("apart", &[APART]), ("int", &["-Xint"])]);
}
