//! What messages cost the agent, for every protocol there is a captured connection of (`fixtures/`): run by
//! `cargo xtask bench --parsers`. One line of JSON a protocol, and one for all.
//!
//! Each connection is played again and again as the records the kernel would have made of it. *Decode*: bytes to records
//! and nothing else, the floor. *Parse*: records to events of the connection. *Whole*: through the pipeline, with
//! its spans, classes, metrics and store. CPU time of this thread; the median of the rounds. With `--idle` only what idle
//! connections hold.

mod fixtures;
mod heap;
mod idle;

use std::process::ExitCode;

use fixtures::{Captured, Records, threads};
use heap::{Heap, counted};
use serde_json::json;
use tracer_host::process::ProcessFacts;
use tracer_model::decode;
use tracer_protocols::{ConnectionParser, Settings};
use tracer_user::config::Config;
use tracer_user::pipeline::{Introduce, Pipeline};

#[global_allocator]
static HEAP: Heap = Heap;

/// Rounds of each measurement, and about how many messages each has.
const ROUNDS: usize = 15;
const MESSAGES: u64 = 20_000;
/// Times everything is played between two looks at the clock.
const BATCH: u64 = 16;
/// Connections that are left open to see what they hold, of one protocol and of all together.
const IDLE: u64 = 20_000;
const IDLE_ALL: u64 = 100_000;

/// Protocols whose connections are for one request each: none is idle.
const ONE_EACH: [&str; 2] = ["scgi", "uwsgi"];

/// No process is known.
struct NoProcess;

impl Introduce for NoProcess {
    fn introduce(&mut self, _: u32) -> Option<ProcessFacts> {
        None
    }
}

/// What one thing cost, for each message.
struct Cost {
    nanos: f64,
    allocations: f64,
}

fn main() -> ExitCode {
    if cfg!(debug_assertions) {
        eprintln!("error: not optimised: run `cargo xtask bench --parsers`");
        return ExitCode::FAILURE;
    }
    let fixtures = match fixtures::read() {
        Ok(fixtures) => fixtures,
        Err(why) => {
            eprintln!("error: {why}\nEvery protocol is measured by what real programs sent: capture some (fixtures/).");
            return ExitCode::FAILURE;
        }
    };
    let only_idle = std::env::args().any(|argument| argument == "--idle");
    for (name, captured) in &fixtures {
        let all: Vec<&Captured> = captured.iter().collect();
        let idle = || idle::held(&all, IDLE) as f64 / IDLE as f64;
        let idle = (!ONE_EACH.contains(&&**name)).then(idle);
        if only_idle {
            say(&json!({ "protocol": name, "idle_bytes": idle }));
            continue;
        }
        let messages: u64 = captured.iter().map(|one| one.messages).sum();
        let operations: u64 = captured.iter().map(Captured::operations).sum();
        let (decode, parse, whole) = (decoded(captured), parsed(captured), piped(captured));
        say(&json!({
            "protocol": name, "connections": captured.len(), "messages": messages, "operations": operations,
            "decode_ns": decode.nanos, "parse_ns": parse.nanos, "parse_allocations": parse.allocations,
            "whole_ns": whole.nanos, "whole_allocations": whole.allocations, "idle_bytes": idle,
        }));
    }
    if only_idle {
        return ExitCode::SUCCESS;
    }
    let several = fixtures.iter().filter(|(name, _)| !ONE_EACH.contains(&&***name));
    let all: Vec<&Captured> = several.flat_map(|(_, captured)| captured).collect();
    say(&json!({ "connections": IDLE_ALL, "bytes": idle::held(&all, IDLE_ALL) }));
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "the result")]
fn say(line: &serde_json::Value) {
    println!("{line}");
}

/// CPU time of this thread, nanoseconds.
fn cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is one timespec to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Measures `work`, which is given the round, for each of about [`MESSAGES`] messages.
fn measure(captured: &[Captured], mut work: impl FnMut(&mut Times)) -> Cost {
    let each: u64 = captured.iter().map(|one| one.messages).sum();
    let times = (MESSAGES / each.max(1)).next_multiple_of(BATCH);
    let messages = (times * each) as f64;
    let mut rounds: Vec<f64> = Vec::new();
    let mut allocations = f64::MAX;
    for _ in 0..ROUNDS {
        let mut round = Times { times, ..Times::default() };
        work(&mut round);
        rounds.push(round.nanos as f64 / messages);
    }
    for _ in 0..2 {
        let mut round = Times { times, counting: true, ..Times::default() };
        work(&mut round);
        allocations = allocations.min(round.allocations as f64 / messages);
    }
    rounds.sort_by(f64::total_cmp);
    Cost { nanos: rounds.get(ROUNDS / 2).copied().unwrap_or_default(), allocations }
}

/// One round of a measurement.
#[derive(Default)]
struct Times {
    times: u64,
    counting: bool,
    nanos: u64,
    allocations: u64,
}

impl Times {
    /// Runs `work`, the part that is measured.
    fn run(&mut self, work: impl FnOnce()) {
        if self.counting {
            self.allocations += counted(work).1.allocations;
        } else {
            let began = cpu();
            work();
            self.nanos += cpu() - began;
        }
    }
}

fn decoded(captured: &[Captured]) -> Cost {
    let mut records = Records::default();
    let (mut at, mut counters) = (1 << 40, threads());
    measure(captured, |round| {
        for _ in 0..round.times / BATCH {
            records.clear();
            for cookie in 0..BATCH {
                for one in captured {
                    one.records(cookie, &mut at, &mut counters, true, &mut records);
                }
            }
            round.run(|| {
                for bytes in records.iter() {
                    let _ = std::hint::black_box(decode::record(std::hint::black_box(bytes)));
                }
            });
        }
    })
}

fn parsed(captured: &[Captured]) -> Cost {
    let (settings, mut events) = (Settings::default(), Vec::new());
    measure(captured, |round| {
        for _ in 0..round.times / BATCH {
            round.run(|| {
                for one in (0..BATCH).flat_map(|_| captured) {
                    let mut conversation = ConnectionParser::new(false);
                    one.play(&mut conversation, &settings, &mut events);
                }
            });
        }
    })
}

fn piped(captured: &[Captured]) -> Cost {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "bench");
    let mut records = Records::default();
    let (mut at, mut counters, mut cookie) = (1 << 40, threads(), 0);
    let mut ticked = at;
    measure(captured, |round| {
        for _ in 0..round.times / BATCH {
            records.clear();
            for one in (0..BATCH).flat_map(|_| captured) {
                cookie += 1;
                one.records(cookie, &mut at, &mut counters, true, &mut records);
            }
            round.run(|| {
                for bytes in records.iter() {
                    pipeline.record(bytes, &mut NoProcess);
                }
                pipeline.take_policies().for_each(drop);
                if at - ticked > 1_000_000_000 {
                    ticked = at;
                    pipeline.tick(at);
                }
            });
        }
    })
}
