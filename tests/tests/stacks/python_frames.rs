//! Python's functions in flame graphs: the chains of functions that a program is known to run, in their order, with their
//! lines, on the CPU and off it, for every version at hand.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_common::interpreter::{FRAME_VERSION_SHIFT, InterpretedFrame, PYTHON_INDEX, fold};
use tracer_runtimes::process_memory::MemoryFile;
use tracer_runtimes::python_code;
use tracer_tests::agent::Agent;
use tracer_tests::folded::{self, Stacks, function, named};
use tracer_tests::interpreted::{self, ask};
use tracer_tests::process::Process;
use tracer_tests::workload::{Server, source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, python, say, scratch};

/// Samples a second and CPU.
const HERTZ: f64 = 499.0;

/// The folded stacks of a class.
fn stacks(agent: &Agent, service: &str, path: &str, kind: &str) -> Stacks {
    folded::stacks(agent, service, path, kind, HERTZ)
}

/// The line with a mark, or on which a function is defined.
fn line_of(text: &str, mark: &str) -> u32 {
    let at = text.lines().position(|line| line.contains(mark)).unwrap_or_else(|| panic!("no {mark}"));
    at as u32 + 1
}

/// The functions below a route's handler, and the lines that callers are at.
struct Chain {
    path: &'static str,
    functions: &'static [(&'static str, &'static str)],
    /// Native frames may stand on top; these stand on most.
    top: &'static str,
}

const CHAINS: &[Chain] = &[
    Chain { path: "/burn", functions: &[("a", "a calls"), ("b", "b calls"), ("c", "c ")], top: "" },
    Chain {
        path: "/generator",
        functions: &[
            ("consumer", "consumer asks"),
            ("producer", "producer yields"),
            ("nested", "nested calls"),
            ("c", "c "),
        ],
        top: "",
    },
    Chain {
        path: "/callback",
        functions: &[("by_key", "by_key sorts"), ("Key.of", "Key.of calls"), ("c", "c ")],
        top: "",
    },
    Chain {
        path: "/made",
        functions: &[("maker", "maker makes"), ("Made.__init__", "Made calls"), ("c", "c ")],
        top: "",
    },
    Chain { path: "/extension", functions: &[("squeeze", "squeeze calls")], top: "deflate" },
    Chain { path: "/asyncio", functions: &[("outer", "outer awaits"), ("inner", "inner calls"), ("c", "c ")], top: "" },
];

/// Functions of the servers that read requests, find the route and answer.
const SERVERS: [&str; 3] = ["handle_one_request", "ThreadWorker.handle", "ThreadWorker.handle_request"];

/// Weight of stacks: all within a route's function, those in the server's own functions around it, those with the whole chain,
/// and of those the ones with every line right and those with the wanted native frames on top.
#[derive(Debug, Default)]
struct Judged {
    all: f64,
    around: f64,
    right: f64,
    lines: f64,
    top: f64,
    wrong: Vec<String>,
}

impl Chain {
    fn judge(&self, stacks: &Stacks, text: &str, qualified: bool, running: bool) -> Judged {
        let mut judged = Judged::default();
        let name = |name: &'static str| if qualified { name } else { name.rsplit('.').next().unwrap_or(name) };
        for (stack, weight) in stacks {
            let frames: Vec<&str> = stack.split(';').skip(1).collect();
            // A thread on its way into the kernel or out of it may have no user stack.
            if frames.iter().all(|frame| frame.ends_with("_[k]")) {
                continue;
            }
            let functions: Vec<(&str, u32)> = frames.iter().filter_map(|frame| function(frame)).collect();
            let bare = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
            let has = |wanted: &str| functions.iter().any(|(found, _)| bare(found) == bare(wanted));
            // Of a function that a library calls before it runs the chain, the time until then is around it, too.
            let routes = CHAINS.iter().map(|chain| chain.functions[0].0);
            if !routes.into_iter().any(has) && SERVERS.into_iter().any(has) {
                judged.around += weight;
                continue;
            }
            judged.all += weight;
            let begin = functions.len().saturating_sub(self.functions.len());
            let last = functions.get(begin..).unwrap_or_default();
            let is_right = last.len() == self.functions.len()
                && last.iter().zip(self.functions).all(|((found, _), (wanted, _))| *found == name(wanted));
            if !is_right {
                judged.wrong.push(format!("{weight} {stack}"));
                continue;
            }
            judged.right += weight;
            let on_line = |line: u32, mark: &str, function: &str| {
                if running {
                    // The innermost function has several lines.
                    let marks = text.lines().enumerate().filter(|(_, text)| text.contains(&format!("# line: {mark}")));
                    let inner = mark.ends_with(' ');
                    let mut lines = marks.map(|(at, _)| at as u32 + 1);
                    if inner {
                        let all: Vec<u32> = lines.collect();
                        all.iter().min().is_some_and(|first| line >= first - 2)
                            && all.iter().max().is_some_and(|last| line <= last + 1)
                    } else {
                        lines.any(|wanted| wanted == line)
                    }
                } else {
                    let bare = function.rsplit('.').next().unwrap_or(function);
                    text.lines().nth(line as usize - 1).is_some_and(|text| text.contains(&format!("def {bare}(")))
                }
            };
            let lines =
                last.iter().zip(self.functions).all(|((_, line), (function, mark))| on_line(*line, mark, function));
            let last_function = frames.iter().rposition(|frame| function(frame).is_some()).unwrap_or_default();
            let top = self.top.is_empty() || frames[last_function + 1..].iter().any(|frame| frame.contains(self.top));
            judged.top += if top { *weight } else { 0.0 };
            if lines {
                judged.lines += weight;
            } else {
                judged.wrong.push(format!("{weight} LINES {stack}"));
            }
        }
        judged
    }
}

/// The first of what was found wrong, for people.
fn some(wrong: &[String]) -> String {
    wrong.iter().take(12).flat_map(|line| [line, "\n"]).collect()
}

/// Asks for all `paths` in turn until each of the first `judged` has enough samples that know of unwind tables and functions;
/// their stacks from before that.
fn load_until_sampled(agent: &Agent, service: &str, address: SocketAddr, paths: &[&str], judged: usize) -> Vec<Stacks> {
    let all = || paths.iter().take(judged).map(|path| stacks(agent, service, path, "cpu")).collect();
    interpreted::load_until_sampled(address, paths, ".py:", all)
}

fn agent(dir: &Path, mode: &str) -> Agent {
    let config = dir.join("tracer.toml");
    std::fs::write(&config, format!("[sampling]\npython = \"{mode}\"\n")).expect("a file");
    let (hertz, config) = (format!("--hertz={HERTZ}"), config.display().to_string());
    Agent::start(dir, &["--nice=-10", &hertz, "--overhead-budget=100%", "--config", &config])
}

/// Asks for every route of a program, and judges its stacks.
fn judge(agent: &Agent, service: &str, address: SocketAddr, version: &str) {
    let text = std::fs::read_to_string(source("frames.py")).expect("the program");
    let minor: u32 = version.strip_prefix("3.").and_then(|minor| minor.parse().ok()).expect("a version");
    let paths: Vec<&str> = CHAINS.iter().map(|chain| chain.path).chain(["/sleep"]).collect();
    let before = load_until_sampled(agent, service, address, &paths, CHAINS.len());
    for (chain, before) in CHAINS.iter().zip(&before) {
        let all = named(before, || stacks(agent, service, chain.path, "cpu"));
        let judged = chain.judge(&all, &text, minor >= 11, true);
        let share = |part: f64| 100.0 * part / judged.all;
        let what = format!(
            "{:.2} % have the chain, {:.2} % the right lines, of {:.0} samples, and {:.0} around it",
            share(judged.right),
            share(judged.lines),
            judged.all,
            judged.around
        );
        say(&format!("Python {version} {}: {what}", chain.path));
        figure(&format!("Python {version} {}", chain.path), &what);
        assert!(share(judged.right) >= 99.0, "{version} {}: {what}\n{}", chain.path, some(&judged.wrong));
        // Reading the request and answering it takes a few milliseconds of CPU where the route takes 200.
        assert!(share(judged.around) <= 6.0, "{version} {}: {what}", chain.path);
        assert!(judged.lines >= 0.995 * judged.right, "{version} {}: {what}\n{}", chain.path, some(&judged.wrong));
        // Memory comes and goes, too. The unstable release's libraries are stripped, and nothing names their own functions.
        let is_stripped = minor >= 14;
        assert!(
            is_stripped || judged.top >= 0.8 * judged.right,
            "{version} {}: {:.0} with {}",
            chain.path,
            judged.top,
            chain.top
        );
    }
    let waits = stacks(agent, service, "/sleep", "offcpu");
    ask(address, &["/sleep"], 30);
    let all = named(&waits, || stacks(agent, service, "/sleep", "offcpu"));
    let sum = |fits: &dyn Fn(&str) -> bool| {
        all.iter().filter(|(stack, _)| fits(stack)).map(|(_, micros)| micros).sum::<f64>()
    };
    let slept = sum(&|stack| stack.ends_with("[off CPU: sleep]"));
    let (waiter, sleeper) = (line_of(&text, "# line: waiter calls"), line_of(&text, "# line: sleeper sleeps"));
    let wanted = [format!("waiter (workloads/frames.py:{waiter})"), format!("sleeper (workloads/frames.py:{sleeper})")];
    let right = sum(&|stack| {
        let functions: Vec<&str> = stack.split(';').filter(|frame| function(frame).is_some()).collect();
        functions.ends_with(&[wanted[0].as_str(), wanted[1].as_str()]) && stack.ends_with("[off CPU: sleep]")
    });
    let what = format!("{:.2} % of {:.3} s asleep have the chain", 100.0 * right / slept, slept / 1e6);
    figure(&format!("Python {version} off CPU"), &what);
    assert!(slept > 50_000.0 && right >= 0.99 * slept, "{version}: {what}\n{all:?}");
    judge_lock(agent, service, address, version, &text);
}

/// A lock is waited for, and released, by functions that are known.
fn judge_lock(agent: &Agent, service: &str, address: SocketAddr, version: &str, text: &str) {
    let line = |mark: &str| format!("(workloads/frames.py:{})", line_of(text, mark));
    let wait = format!(";locked {};", line("# line: locked waits"));
    let release = format!(";keeper {};", line("# line: keeper releases"));
    let before = stacks(agent, service, "/lock", "wakers");
    ask(address, &["/lock"], 30);
    let all = named(&before, || stacks(agent, service, "/lock", "wakers"));
    let waits = all.iter().filter(|(stack, _)| stack.contains(&wait));
    let (mut waited, mut ended) = (0.0, 0.0);
    for (stack, micros) in waits {
        waited += micros;
        let waker = stack.split_once(";[off CPU: futex];").map_or("", |(_, waker)| waker);
        ended += if waker.contains(&release) { *micros } else { 0.0 };
    }
    let what = format!("{:.2} % of {:.3} s in a lock show who released it", 100.0 * ended / waited, waited / 1e6);
    say(&format!("Python {version}: {what}"));
    figure(&format!("Python {version} lock"), &what);
    assert!(waited > 300_000.0 && ended >= 0.99 * waited, "{version}: {what}\n{all:?}");
}

/// Python's walks of the whole machine that ended badly, and all.
fn walks(agent: &Agent) -> (f64, f64) {
    let metrics = agent.metrics();
    let of = |outcome: &str| metrics.sum("tracer_python_stack_walks_total", &[("outcome", outcome)]);
    let bad = ["unreadable", "wrong_thread_state", "too_deep"].into_iter().map(of).sum();
    (bad, metrics.sum("tracer_python_stack_walks_total", &[]))
}

/// The distribution's interpreter and those beside it, each with its version.
fn pythons() -> Vec<(String, String)> {
    let own = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists());
    let own = own.map_or_else(|| find("python3").unwrap_or_default().display().to_string(), String::from);
    let version = |program: &str| {
        let say = "import sys; print('%d.%d' % sys.version_info[:2])";
        let done =
            Command::new(program).args(["-c", say]).output().unwrap_or_else(|error| panic!("{program}: {error}"));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    let mut programs = vec![(own.clone(), version(&own))];
    programs.extend(python::others().into_iter().map(|(program, version)| (program.to_owned(), version)));
    programs
}

#[test]
fn the_usual_version_shows_its_functions_with_their_lines() {
    judge_versions("python frames", &pythons()[..1]);
}

#[test]
fn so_do_the_others() {
    judge_versions("python frames", &pythons()[1..]);
}

/// The versions that the next release of Debian will have: one that is not known fails.
#[test]
fn so_do_the_newest() {
    let newest: Vec<(String, String)> =
        python::newest().into_iter().map(|(program, version)| (program.to_owned(), version)).collect();
    if newest.is_empty() {
        say("SKIPPED python frames newest: needs the unstable release's Pythons (cargo xtask test --full)");
        return;
    }
    judge_versions("python frames newest", &newest);
}

fn judge_versions(test: &str, versions: &[(String, String)]) {
    let Some(_turn) = begin(test, &["python3"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path(), "lines");
    for (program, version) in versions {
        let service = format!("frames-{version}");
        let mut command = Command::new(program);
        let server = Server::start(&service, dir.path(), command.arg("-u").arg(source("frames.py")));
        judge(&agent, &service, server.address, version);
    }
    let (bad, all) = walks(&agent);
    assert!(all > 1000.0 && bad <= 0.005 * all, "{bad} of {all} walks:\n{}", agent.text("/metrics"));
    agent.stop();
}

/// Reads the code object of a line of `freed.py` as the agent does; the name of its file.
fn read(memory: &mut MemoryFile, minor: u32, words: &[&str]) -> Option<String> {
    let numbers: Vec<u64> = words.iter().take(5).map(|word| word.parse().expect("a number")).collect();
    let [code, words @ ..] = numbers.first_chunk::<5>().expect("an address and four words");
    let index = if minor < 11 { PYTHON_INDEX } else { 0 };
    let flags = minor << FRAME_VERSION_SHIFT | index;
    let frame = InterpretedFrame { code: *code, cookie: fold(words), at: 0, flags };
    python_code::read(memory, &frame, false).map(|code| code.file)
}

/// Freed code keeps its words in memory, while the memory of its file's name is used for another text.
#[test]
fn code_that_was_freed_has_no_name() {
    let Some(_turn) = begin("python freed code", &["python3"]) else { return };
    let dir = scratch();
    for (program, version) in pythons() {
        let mut command = Command::new(&program);
        command.arg(source("freed.py"));
        let mut process = Process::start("freed", &mut command, &dir.path().join(format!("{version}.log")));
        process.line("DONE", Duration::from_secs(20));
        let mut memory = MemoryFile::open(process.pid()).expect("its memory");
        let minor = version.strip_prefix("3.").and_then(|minor| minor.parse().ok()).expect("a version");
        let (mut held, mut freed, mut another) = (0, 0, 0);
        for line in process.output().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["held", ref rest @ ..] => {
                    let file = read(&mut memory, minor, rest);
                    assert!(file.is_some_and(|file| file.starts_with("/srv/planted/")), "{version}: {line}");
                    held += 1;
                }
                ["frozen", ref rest @ ..] => {
                    let file = read(&mut memory, minor, rest);
                    assert!(file.is_some_and(|file| file.starts_with("<frozen ")), "{version}: {line}");
                    held += 1;
                }
                ["freed", ref rest @ ..] => {
                    assert_eq!(read(&mut memory, minor, rest), None, "{version}: {line}");
                    freed += 1;
                    another += usize::from(rest.len() > 5);
                }
                _ => {}
            }
        }
        let what = format!("{held} in use have names; {freed} that were freed have none, {another} with another text");
        figure(&format!("Python {version}, freed code"), &what);
        assert!(held == 101 && another >= 50, "{version}: {what}");
    }
}

#[test]
fn a_flask_application_shows_its_functions() {
    let Some(_turn) = begin("python frames flask", &["gunicorn", "python3"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path(), "functions");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find("gunicorn").expect("gunicorn"));
    command.args(["--worker-class=gthread", "--workers=1", "--threads=2", "--bind", &address.to_string()]);
    command.arg("--chdir").arg(source("frames.py").parent().expect("a directory")).arg("frames_flask:app");
    command.env("OTEL_SERVICE_NAME", "flaskframes").env("PYTHONDONTWRITEBYTECODE", "1");
    let mut app = Process::start("gunicorn", &mut command, &dir.path().join("gunicorn.log"));
    wait_for_listener(&mut app, address);
    let text = std::fs::read_to_string(source("frames.py")).expect("the program");
    let paths = ["/burn", "/callback", "/sleep"];
    let before = load_until_sampled(&agent, "flaskframes", address, &paths, 2);
    for (path, before) in paths.iter().zip(&before) {
        let chain = CHAINS.iter().find(|chain| chain.path == *path).expect("a chain");
        let all = named(before, || stacks(&agent, "flaskframes", path, "cpu"));
        let judged = chain.judge(&all, &text, true, false);
        let what = format!(
            "{:.2} % of {:.0} samples have the chain, and {:.0} are around it",
            100.0 * judged.right / judged.all,
            judged.all,
            judged.around
        );
        figure(&format!("Flask {path}"), &what);
        assert!(judged.right >= 0.99 * judged.all, "{path}: {what}\n{}", some(&judged.wrong));
        assert!(judged.around <= 0.06 * judged.all, "{path}: {what}");
        assert!(judged.lines >= 0.99 * judged.right, "{path}: {}", some(&judged.wrong));
        // Libraries are shown with their place, and callers stand outside of what they call.
        let view = format!("{}_view (workloads/frames_flask.py:", path.trim_matches('/'));
        let inside: f64 = all
            .iter()
            .filter(|(stack, _)| {
                let flask = stack.find("Flask.wsgi_app (flask/app.py:");
                let (view, chain) =
                    (stack.find(&view), stack.find(&format!("{} (workloads/frames.py:", chain.functions[0].0)));
                flask.is_some() && flask < view && view < chain
            })
            .map(|(_, weight)| weight)
            .sum();
        assert!(inside >= 0.98 * judged.all, "{path}: {inside} of {judged:?}");
    }
    let all = named(&Stacks::new(), || stacks(&agent, "flaskframes", "/sleep", "offcpu"));
    let asleep = all.iter().filter(|(stack, _)| stack.contains("sleeper (") && stack.ends_with("[off CPU: sleep]"));
    assert!(asleep.map(|(_, micros)| micros).sum::<f64>() > 20_000.0, "{all:?}");
    let svg = agent.text("/flamegraph.svg?service=flaskframes&class=GET%20%2Fburn");
    assert!(svg.contains("burn_view (workloads/frames_flask.py:"), "{svg}");
    drop(app);
    agent.stop();
}
