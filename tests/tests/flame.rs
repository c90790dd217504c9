//! Flame graphs per class: each shows the function its route burns, and only that.

use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::workload::Server;
use tracer_tests::{begin, explained, figure, load, say, scale, scratch, wait};

/// Sampled weight of stacks that have `function`, and of all; of folded text.
fn weights(folded: &str, function: &str) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for line in folded.lines() {
        let (stack, weight) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not folded: {line}"));
        let weight: f64 = weight.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        sums.1 += weight;
        if stack.split(';').any(|frame| frame.contains(function)) {
            sums.0 += weight;
        }
    }
    sums
}

#[test]
fn each_class_burns_in_its_own_function() {
    let Some(_turn) = begin("flame", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    // The default rate; 30 s give some 3000 samples of two busy CPUs.
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let (good, bad) = load::until(server.address, 2, &["/alpha", "/beta"], Instant::now() + Duration::from_secs(20));
    assert!(bad == 0 && good as f64 > 1000.0 * scale(), "{good} good, {bad} bad");

    let of = |class: &str| agent.text(&format!("/profile.folded?service=burn&class=GET%20%2F{class}"));
    // Names are put to addresses in the background.
    let (alpha, beta) = wait("stacks with names", Duration::from_secs(20), || {
        let (alpha, beta) = (of("alpha"), of("beta"));
        (alpha.contains("burn_alpha") && beta.contains("burn_beta")).then_some((alpha, beta))
    });
    for (class, text, own, other) in
        [("alpha", &alpha, "burn_alpha", "burn_beta"), ("beta", &beta, "burn_beta", "burn_alpha")]
    {
        let ((inside, all), (wrong, _)) = (weights(text, own), weights(text, other));
        figure(
            &format!("flame {class}"),
            &format!("{:.1} %, other {:.1} %", 100.0 * inside / all, 100.0 * wrong / all),
        );
        say(&format!("flame {class}: {own} {:.1} %, {other} {:.1} %", 100.0 * inside / all, 100.0 * wrong / all));
        // What a request takes besides the 3 or 7 ms it burns grows with how slow an emulator is: the kernel, the C library,
        // this agent's programs. 64 % were left where all tests took half as long again as usual.
        assert!(inside / all > if scale() < 1.0 { 0.5 } else { 0.95 }, "{class}: {own} is {inside} of {all}\n{text}");
        // Of an operation that was skipped, the CPU until the next one can be charged to the request before: 7 ms of one
        // class to the other's share of half as many requests of 3 ms.
        let skipped = explained(&agent.metrics().lost()) * 7.0 / (good as f64 / 2.0 * 3.0);
        assert!(wrong / all < 0.005 + skipped, "{class}: {other} is {wrong} of {all}\n{text}");
    }
    // 7 ms of CPU against 3 ms, as often: the two functions share the service's CPU 70 to 30.
    let whole = agent.text("/profile.folded?service=burn");
    let share = weights(&whole, "burn_alpha").0 / (weights(&whole, "burn_alpha").0 + weights(&whole, "burn_beta").0);
    say(&format!("flame: burn_alpha has {:.1} % of both, 70 % expected", 100.0 * share));
    // An emulator that waits for its turn lets time pass in which nothing was computed: of a burst it cuts short there is
    // one sample, however long it was.
    let within = if scale() < 1.0 { 0.50..=0.85 } else { 0.65..=0.75 };
    assert!(within.contains(&share), "{share}");

    let svg = agent.text("/flamegraph.svg?service=burn&class=GET%20%2Falpha");
    assert!(svg.contains("<svg") && svg.contains("burn_alpha"));
    // It shows what the stacks say: of an operation that was skipped, some of the other's.
    assert!(!svg.contains("burn_beta") || explained(&agent.metrics().lost()) > 0.0);
    agent.stop();
}
