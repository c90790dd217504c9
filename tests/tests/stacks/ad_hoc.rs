//! Slow requests have flame graphs of their own: what made them slow, from their beginning, and their class's is as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, http, say, scale, scratch, wait};

/// Slow requests, and what each uses and sleeps; see `burn.c`.
const SLOW: usize = 6;
const BURN_S: f64 = 0.3;
const SLEEP_S: f64 = 0.1;
/// Of the CPUs' clocks.
const PERIOD_S: f64 = 1.0 / 99.0;
const RUN_QUEUE: &str = "[off CPU: run queue]";

/// Seconds of stacks with `function`, and of all; from folded text.
fn seconds(folded: &str, function: &str) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (stack, micros) in folded.lines().filter_map(|line| line.rsplit_once(' ')) {
        let time = micros.parse::<f64>().expect("a number") / 1e6;
        sums.1 += time;
        if stack.split(';').any(|frame| frame.contains(function)) {
            sums.0 += time;
        }
    }
    sums
}

/// Sets it when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The samples of the first profile of a file for speedscope: functions, when it began and how long it took, seconds.
fn by_time(file: &Value) -> Vec<(Vec<String>, f64, f64)> {
    let profile = &file["profiles"][0];
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let name = |frame: &Value| {
        let at = frame.as_u64().expect("a place") as usize;
        file["shared"]["frames"][at]["name"].as_str().expect("a name").to_owned()
    };
    let (samples, weights) = (list(&profile["samples"]), list(&profile["weights"]));
    assert_eq!(samples.len(), weights.len());
    let mut begins = 0.0;
    let placed = samples.iter().zip(&weights).map(|(stack, nanos)| {
        let took = nanos.as_f64().expect("a number") / 1e9;
        begins += took;
        (list(stack).iter().map(name).collect(), begins - took, took)
    });
    let all = placed.collect();
    assert!((begins - profile["endValue"].as_f64().expect("a number") / 1e9).abs() < 1e-6);
    all
}

#[test]
fn a_slow_request_shows_what_made_it_slow() {
    let Some(_turn) = begin("ad_hoc", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    // Room for a clock of its own beside what this machine's samples cost.
    let agent = Agent::start(dir.path(), &["--nice=-10", "--overhead-budget", "20%", "--max-cpu", "6400%"]);
    let address = server.address;
    // A class needs a tail before anything exceeds it: requests go on all the time, a slow one now and then among them.
    let over = AtomicBool::new(false);
    let answered = || {
        // Not of the service alone: that is an error until its first request.
        let classes = agent.json("/api/v1/classes");
        let all = classes["classes"].as_array().expect("a list");
        let is_it = |class: &&Value| class["service_name"] == "burn" && class["request_class"] == "GET /mixed";
        all.iter().find(is_it).and_then(|class| class["count"].as_u64())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = http::Connection::open(address).expect("a connection");
            while !over.load(Ordering::Relaxed) {
                assert_eq!(connection.ask("GET", "/mixed").expect("an answer").status, 200);
            }
        });
        // However this ends: the scope waits for the other thread.
        let _ends = Ends(&over);
        let mut connection = http::Connection::open(address).expect("a connection");
        let mut before = 0;
        for _ in 0..SLOW {
            // Less than one in a hundred is slow, so the 99th percentile is that of the others.
            let known = |count: u64| (count >= before + 250).then_some(count);
            before = wait("more requests", Duration::from_secs(120), || answered().and_then(known));
            assert_eq!(connection.ask("GET", "/mixed?slow").expect("an answer").status, 200);
        }
    });

    let list = "/api/v1/slow-requests?service=burn&class=GET%20%2Fmixed";
    let own = |row: &Value, kind: &str| {
        let target = format!("/profile.folded?span={}&kind={kind}", row["span_id"].as_str().expect("an id"));
        // While it is asked for, it may have made room for another.
        http::get(agent.listen, &target)
            .ok()
            .filter(|reply| reply.status == 200)
            .map_or_else(String::new, |reply| reply.text())
    };
    // On a busy machine others may be slow, too; they never run that function.
    let slow = wait("slow requests with names", Duration::from_secs(40), || {
        let mut all = agent.json(list)["slow_requests"].as_array().expect("a list").clone();
        all.retain(|row| own(row, "cpu").contains("burn_slow"));
        (all.len() == SLOW).then_some(all)
    });
    let mut dense = 0;
    for row in &slow {
        let span = row["span_id"].as_str().expect("an id");
        let (here, all) = seconds(&own(row, "cpu"), "burn_slow");
        // What it waited for a CPU is this machine's doing.
        let waited = own(row, "offcpu");
        let waited: Vec<&str> = waited.lines().filter(|line| !line.contains(RUN_QUEUE)).collect();
        let waited = waited.join("\n");
        let (asleep, off) = seconds(&waited, "wait_slow");
        let one = agent.json(&format!("/api/v1/slow-requests/{span}"));
        let duration = one["duration_s"].as_f64().expect("a number");
        let taken = one["taken"].as_array().expect("a list");
        let of_kind = |kind: &str| taken.iter().filter(|sample| sample["kind"] == kind).count();
        let first = taken.iter().filter_map(|sample| sample["at_s"].as_f64()).fold(f64::MAX, f64::min);
        let half = taken.iter().filter(|sample| sample["at_s"].as_f64().is_some_and(|at| at < duration / 2.0)).count();
        dense += of_kind("thread_clock");
        let whole = format!(
            "{duration:.3} s: burn_slow {here:.3} of {all:.3} s on the CPU, wait_slow {asleep:.3} of {off:.3} s off it; {} samples of CPU clocks, {} of its own; first after {first:.3} s, {half} in its first half",
            of_kind("clock"),
            of_kind("thread_clock"),
        );
        say(&format!("ad hoc {span}: {whole}"));
        assert!(here >= 0.95 * all, "{whole}\n{}", own(row, "cpu"));
        // What it used is known, and no time counts twice where two clocks sample it. Its own clock counts CPU time exactly. How often
        // a CPU's clock meets a thread is chance, where others run besides; a sample is long when the virtual CPU stood still.
        let weight = |sample: &Value| sample["weight_s"].as_f64().unwrap_or(0.0);
        let of = |kind: &str| taken.iter().filter(|sample| sample["kind"] == kind).map(weight).collect::<Vec<_>>();
        let (own_clock, clock) = (of("thread_clock"), of("clock"));
        let used = own_clock.iter().sum::<f64>() + clock.iter().map(|weight| weight.min(PERIOD_S)).sum::<f64>();
        let chance = 3.0 * PERIOD_S * (clock.len() as f64 + 1.0).sqrt();
        assert!(own_clock.iter().sum::<f64>() < BURN_S + 0.01, "{whole}");
        assert!(used < BURN_S + chance && here > BURN_S - chance, "{used}: {whole}");
        assert!(asleep >= 0.9 * SLEEP_S && asleep >= 0.95 * off, "{whole}\n{waited}");
        assert!(first < duration / 4.0 && half >= 5, "{whole}");
        let order = by_time(&agent.json(&format!("/profile.speedscope.json?span={span}")));
        // It burns first, and sleeps then.
        let at = |function: &str| order.iter().find(|(names, ..)| names.iter().any(|name| name == function));
        let (Some((_, burnt, _)), Some((_, slept, long))) = (at("burn_slow"), at("wait_slow")) else {
            panic!("{order:?}")
        };
        assert!(burnt < slept && *long >= 0.9 * SLEEP_S && slept + long <= 1.05 * duration, "{order:?}");
        let svg = agent.text(&format!("/flamegraph.svg?span={span}"));
        assert!(svg.contains("burn_slow"), "{svg}");
        let page = agent.text(&format!("/transaction?id={}", row["trace_id"].as_str().expect("an id")));
        assert!(page.contains(&format!("/flamegraph.svg?span={span}&amp;kind=cpu")), "{page}");
    }
    figure("ad hoc dense samples", &format!("{:.0} a request", dense as f64 / SLOW as f64));

    // Its class's flame graph is by the clocks of the CPUs alone: the server's own books say what it must show.
    let truth = http::get(address, "/truth").expect("the server's own books");
    let truth: Value = serde_json::from_slice(&truth.body).expect("JSON");
    let handlers = truth["/mixed"]["handler_ns"].as_f64().expect("a number") / 1e9;
    let folded = agent.text("/profile.folded?service=burn&class=GET%20%2Fmixed");
    let (slow_s, all_s) = seconds(&folded, "burn_slow");
    let (share, expected) = (slow_s / all_s, SLOW as f64 * BURN_S / handlers);
    say(&format!(
        "ad hoc: burn_slow is {:.1} % of the class's flame graph, {:.1} % by the server's books",
        100.0 * share,
        100.0 * expected
    ));
    assert!((share - expected).abs() < 0.07, "{share} {expected}\n{folded}");

    let metrics = agent.metrics();
    let clocks = |outcome| metrics.sum("tracer_ad_hoc_clocks_total", &[("outcome", outcome)]);
    say(&format!("ad hoc: {} clocks opened, {} over budget", clocks("opened"), clocks("over_budget")));
    assert!(metrics.sum("tracer_ad_hoc_requests_total", &[]) >= SLOW as f64);
    // On an emulated processor a sample costs too much for more of them.
    if scale() >= 1.0 {
        assert!(clocks("opened") >= (SLOW - 1) as f64 && dense > SLOW * 30, "{dense}");
        assert!(metrics.sum("tracer_profiler_cpu_seconds_total", &[("part", "ad_hoc")]) > 0.0);
    }
    let unknown = http::get(agent.listen, "/profile.folded?span=00000000000000ff").expect("an answer");
    assert_eq!(unknown.status, 404);
    agent.stop();
}
