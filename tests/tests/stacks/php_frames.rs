//! PHP's functions in flame graphs: the chains of functions that a program is known to run, in their order, with their lines and
//! their shares of the CPU, in PHP's own server and in PHP-FPM.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::folded::{self, Stacks, function, named, since};
use tracer_tests::interpreted::{self, SAMPLES, ask};
use tracer_tests::nginx::Nginx;
use tracer_tests::php::{self, Php};
use tracer_tests::process::Process;
use tracer_tests::workload::{source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, say, scratch, wait};

/// Samples a second and CPU.
const HERTZ: f64 = 499.0;

/// A route, the functions below the program's own code, the line that each of them but the last is at, and what PHP's own function
/// stands between them.
struct Chain {
    path: &'static str,
    functions: &'static [&'static str],
    between: &'static str,
}

const CHAINS: &[Chain] = &[
    Chain { path: "/burn", functions: &["{main}", "a", "b", "c"], between: "" },
    Chain { path: "/callback", functions: &["{main}", "by_key", "Key::of", "c"], between: "usort (PHP)" },
    Chain { path: "/generator", functions: &["{main}", "consumer", "producer", "c"], between: "" },
    Chain { path: "/closure", functions: &["{main}", "closed", "{closure}", "c"], between: "" },
];

/// Functions that `c` calls, to know when it is over.
const INNER: &[&str] = &["used"];

/// Lines with the mark of a function's call, or with its definition.
fn is_line_of(text: &str, name: &str, line: u32, running: bool) -> bool {
    let Some(found) = text.lines().nth(line as usize - 1) else { return false };
    if running {
        return found.contains(&format!("// line: {name} "));
    }
    let bare = name.rsplit(':').next().unwrap_or(name);
    match name {
        // A file's own code has no definition.
        "{main}" => line == 1,
        "{closure}" => found.contains("function ()"),
        _ => found.contains(&format!("function {bare}(")),
    }
}

/// Weight of stacks: all with a function of the route, those with the whole chain, those of them with the right lines.
#[derive(Debug, Default)]
struct Judged {
    all: f64,
    right: f64,
    lines: f64,
    wrong: Vec<String>,
}

impl Chain {
    fn judge(&self, stacks: &Stacks, text: &str, running: bool) -> Judged {
        let mut judged = Judged::default();
        for (stack, weight) in stacks {
            let frames: Vec<&str> = stack.split(';').skip(1).collect();
            let functions: Vec<(&str, u32)> =
                frames.iter().filter_map(|frame| function(frame)).filter(|(name, _)| !INNER.contains(name)).collect();
            // Reading the request and answering it runs no function of the route; all else must.
            if !functions.iter().any(|(name, _)| *name == self.functions[1]) {
                continue;
            }
            judged.all += weight;
            let names: Vec<&str> = functions.iter().map(|(name, _)| *name).collect();
            let between = frames.iter().position(|frame| *frame == self.between);
            let is_between = self.between.is_empty()
                || between.is_some_and(|at| {
                    let of = |name| frames.iter().position(|frame| function(frame).is_some_and(|(own, _)| own == name));
                    of(self.functions[1]) < Some(at) && Some(at) < of(self.functions[2])
                });
            if names != self.functions || !is_between {
                judged.wrong.push(format!("{weight} {stack}"));
                continue;
            }
            judged.right += weight;
            let (callers, last) = functions.split_at(functions.len() - 1);
            let lines = callers.iter().all(|(name, line)| is_line_of(text, name, *line, running))
                && last.iter().all(|(name, line)| running || is_line_of(text, name, *line, running));
            if lines {
                judged.lines += weight;
            } else {
                judged.wrong.push(format!("{weight} LINES {stack}"));
            }
        }
        judged
    }
}

fn stacks(agent: &Agent, service: &str, path: &str, kind: &str) -> Stacks {
    folded::stacks(agent, service, path, kind, HERTZ)
}

/// Asks for all `paths` in turn until each has enough samples that know of unwind tables and functions; their stacks from before
/// that.
fn load_until_sampled(agent: &Agent, service: &str, address: SocketAddr, paths: &[&str]) -> Vec<Stacks> {
    let all = || paths.iter().map(|path| stacks(agent, service, path, "cpu")).collect();
    interpreted::load_until_sampled(address, paths, ".php:", all)
}

fn agent(dir: &Path, mode: &str) -> Agent {
    let config = dir.join("tracer.toml");
    std::fs::write(&config, format!("[sampling]\nphp = \"{mode}\"\n")).expect("a file");
    let (hertz, config) = (format!("--hertz={HERTZ}"), config.display().to_string());
    Agent::start(dir, &["--nice=-10", &hertz, "--overhead-budget=100%", "--config", &config])
}

/// Judges every chain, and the shares of the CPU of the route with two.
fn judge(agent: &Agent, service: &str, address: SocketAddr, running: bool) {
    let text = std::fs::read_to_string(source("frames.php")).expect("the program");
    let paths: Vec<&str> = CHAINS.iter().map(|chain| chain.path).chain(["/shares"]).collect();
    let before = load_until_sampled(agent, service, address, &paths);
    for (chain, before) in CHAINS.iter().zip(&before) {
        let all = named(before, || stacks(agent, service, chain.path, "cpu"));
        let judged = chain.judge(&all, &text, running);
        let (right, lines) = (100.0 * judged.right / judged.all, 100.0 * judged.lines / judged.all);
        let sum: f64 = all.values().sum();
        let what = format!(
            "{right:.2} % have the chain, {lines:.2} % the right lines, of {:.0} samples below it and {sum:.0} in all",
            judged.all
        );
        say(&format!("{service} {}: {what}", chain.path));
        figure(&format!("{service} {}", chain.path), &what);
        let some: String = judged.wrong.iter().take(12).flat_map(|line| [line, "\n"]).collect();
        assert!(judged.right >= 0.99 * judged.all && judged.lines >= 0.99 * judged.right, "{what}\n{some}");
        // The request and its answer take a few milliseconds of CPU where the route takes 200.
        assert!(judged.all >= 0.94 * sum, "{what}\n{all:?}");
    }
    let shares = named(before.last().expect("one a path"), || stacks(agent, service, "/shares", "cpu"));
    let below = |name: &str| {
        let has = |stack: &str| stack.split(';').filter_map(function).any(|(own, _)| own == name);
        shares.iter().filter(|(stack, _)| has(stack)).map(|(_, weight)| weight).sum::<f64>()
    };
    let (most, least) = (below("most"), below("least"));
    let share = 100.0 * most / (most + least);
    let what = format!("{share:.1} % of {:.0} samples below the function that uses 75 %", most + least);
    say(&format!("{service} shares: {what}"));
    figure(&format!("{service} shares"), &what);
    assert!((share - 75.0).abs() <= 5.0 && most + least >= 0.9 * SAMPLES, "{what}\n{shares:?}");
    let waits = stacks(agent, service, "/sleep", "offcpu");
    ask(address, &["/sleep"], 30);
    wait("the sleeps", Duration::from_secs(20), || {
        let slept: f64 = since(&stacks(agent, service, "/sleep", "offcpu"), &waits).values().sum();
        (slept > 100_000.0).then_some(())
    });
    let asleep = named(&waits, || stacks(agent, service, "/sleep", "offcpu"));
    let slept = |fits: &dyn Fn(&str) -> bool| {
        let sleeps = asleep.iter().filter(|(stack, _)| stack.ends_with("[off CPU: sleep]") && fits(stack));
        sleeps.map(|(_, micros)| micros).sum::<f64>()
    };
    let is_right = |stack: &str| {
        let names: Vec<&str> = stack.split(';').filter_map(function).map(|(name, _)| name).collect();
        names == ["{main}", "waiter", "sleeper"]
    };
    let (all, right) = (slept(&|_| true), slept(&is_right));
    assert!(all > 50_000.0 && right >= 0.99 * all, "{right} of {all}: {asleep:?}");
}

/// PHP's walks of the whole machine that ended badly, and all.
fn walks(agent: &Agent) -> (f64, f64) {
    let metrics = agent.metrics();
    let of = |outcome: &str| metrics.sum("tracer_php_stack_walks_total", &[("outcome", outcome)]);
    let bad = ["unreadable", "wrong_thread_state", "too_deep", "unknown_version", "unsupported"];
    (bad.into_iter().map(of).sum(), metrics.sum("tracer_php_stack_walks_total", &[]))
}

#[test]
fn a_program_shows_its_functions_with_their_lines() {
    let Some(_turn) = begin("php frames", &["php"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path(), "lines");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find("php").expect("php"));
    command.args(["-n", "-S", &address.to_string()]).arg(source("frames.php")).env("OTEL_SERVICE_NAME", "phpframes");
    let mut server = Process::start("php", &mut command, &dir.path().join("php.log"));
    wait_for_listener(&mut server, address);
    judge(&agent, "phpframes", address, true);
    let (bad, all) = walks(&agent);
    assert!(all > 1000.0 && bad <= 0.005 * all, "{bad} of {all} walks:\n{}", agent.text("/metrics"));
    agent.stop();
}

#[test]
fn php_fpm_shows_its_functions() {
    let Some(_turn) = begin("php frames fpm", &["nginx"]) else { return };
    if php::program().is_none() {
        say("SKIPPED php frames fpm: needs PHP-FPM");
        return;
    }
    let dir = scratch();
    let agent = agent(dir.path(), "functions");
    let php = Php::start(dir.path());
    let server = format!(
        "location / {{ fastcgi_pass {}; fastcgi_param SCRIPT_FILENAME {}; fastcgi_param REQUEST_METHOD GET; \
         fastcgi_param SCRIPT_NAME $uri; fastcgi_param REQUEST_URI $uri; }}",
        php.address,
        source("frames.php").display()
    );
    let nginx = Nginx::start(dir.path(), "", &server);
    judge(&agent, "php-fpm", nginx.address, false);
    agent.stop();
}
