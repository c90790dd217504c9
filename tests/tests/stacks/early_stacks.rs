//! Stacks are whole from the first samples on, on a host whose CPUs are busy with compilers: Redis' and Python's, by an agent of usual
//! priority that starts beside them.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::redis::Redis;
use tracer_tests::{begin, figure, find, scratch, wait};

/// Samples per second and CPU.
const HERTZ: f64 = 99.0;
/// The first samples of each program, by which it is judged: half a minute's where it has a tenth of a CPU's time.
const SAMPLES: f64 = 250.0;
/// Compilers that run at any time.
const COMPILERS: usize = 4;
/// How long the samples may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(180);

/// Takes a compiler a second or two, and is read with 30 MB of its own code.
const UNIT: &str = "#include <functional>\n#include <iostream>\n#include <map>\n#include <regex>\n\
    template <int N> int matches(std::map<std::string, int>& all) {\n\
    std::regex pattern(\"a+b*\");\nall[std::to_string(N)] = std::regex_match(\"aaab\", pattern);\nreturn matches<N - 1>(all);\n}\n\
    template <> int matches<0>(std::map<std::string, int>&) { return 0; }\n\
    int main() { std::map<std::string, int> all; return matches<40>(all); }\n";

/// What never ends and uses the CPU, under the C library's allocator and the interpreter's loop.
const SUMS: &str = "import json, re\n\
    def sums(n):\n    return sorted(json.dumps({'a': [n] * 50}) for _ in range(200)) if n < 10 else re.sub('a+', 'b', 'aaab' * n)\n\
    while True:\n    for n in range(50): sums(n)\n";

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Samples of a service with a user stack: all so far, and those that say at their root that they are not whole.
#[derive(Clone, Copy, Debug, Default)]
struct Stacks {
    all: f64,
    incomplete: f64,
}

impl Stacks {
    /// Of each service.
    fn of<const N: usize>(agent: &Agent, services: [&str; N]) -> [Self; N] {
        let mut sums = [Self::default(); N];
        for line in agent.text("/profile.folded").lines() {
            let (stack, micros) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not folded: {line}"));
            let micros: f64 = micros.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
            let mut frames = stack.split(';');
            let (service, root) = (frames.next().unwrap_or_default(), frames.next().unwrap_or("[no stack]"));
            let Some(at) = services.iter().position(|name| *name == service) else { continue };
            if root.ends_with("_[k]") || root == "[no stack]" {
                continue;
            }
            sums[at].all += micros * HERTZ / 1e6;
            sums[at].incomplete += if root.starts_with("[stack incomplete") { micros * HERTZ / 1e6 } else { 0.0 };
        }
        sums
    }
}

/// Ends the load, also where a check panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The first samples of each service, looked at whenever some hundred more stacks were walked: reading them keeps the agent busy.
fn first<const N: usize>(agent: &Agent, services: [&str; N]) -> [Stacks; N] {
    let mut due = 0.0;
    wait(&format!("{SAMPLES} samples of each of {}", services.join(", ")), PATIENCE, || {
        let walks = agent.metrics().sum("tracer_stack_walks_total", &[]);
        if walks < due {
            return None;
        }
        due = walks + 400.0;
        let stacks = Stacks::of(agent, services);
        stacks.iter().all(|stacks| stacks.all >= SAMPLES).then_some(stacks)
    })
}

#[test]
fn stacks_are_whole_from_the_start_beside_compilers() {
    let Some(_turn) = begin("early stacks", &["redis-server", "python3", "g++"]) else { return };
    let dir = scratch();
    let redis = Redis::start(dir.path());
    let program = dir.path().join("sums.py");
    write(&program, SUMS);
    let interpreter = find("python3").unwrap_or_default();
    let _python = Process::start("python", Command::new(interpreter).arg(&program), &dir.path().join("python.log"));
    let unit = dir.path().join("unit.cc");
    write(&unit, UNIT);
    let compile = |number: usize| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do g++ -O2 -c \"$0\" -o /dev/null; done"]).arg(&unit);
        Process::start("g++", &mut command, &dir.path().join(format!("compiler-{number}.log")))
    };
    let _compilers: Vec<Process> = (0..COMPILERS).map(compile).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Over(&over);
        scope.spawn(|| {
            let mut client = redis.client();
            while !over.load(Ordering::Relaxed) {
                client.ask(&["EVAL", "for i = 1, 20000 do redis.call('SET', 'k' .. i % 100, i) end return 1", "0"]);
            }
        });
        // The budget would take fewer samples on a slow machine.
        let agent = Agent::start(dir.path(), &["--hertz=99", "--overhead-budget=100%"]);
        let services = ["redis-server", "sums"];
        for (service, stacks) in services.into_iter().zip(first(&agent, services)) {
            let share = 100.0 * stacks.incomplete / stacks.all;
            let text = format!("{share:.1} % not whole of the first {:.0} samples", stacks.all);
            figure(&format!("early stacks of {service}"), &text);
            let folded = || agent.text(&format!("/profile.folded?service={service}"));
            assert!(stacks.incomplete <= 0.02 * stacks.all, "{service}: {stacks:?}\n{}", folded());
        }
        agent.stop();
    });
}
