//! Flame graphs per class: each shows the function its route burns CPU in, and only that.

use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::workload::Server;
use tracer_tests::{begin, explained, figure, http, load, say, scale, scratch, wait};

/// Sampled weight of stacks that contain `function`, and of all; from folded text.
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

/// CPU that a request burns in its own function, milliseconds. Both together last longer than a period of 99 Hz: with as long as
/// one the clock could go in step with the requests, and find one of them more often than its share.
const ALPHA_MS: f64 = 7.7;
const BETA_MS: f64 = 3.3;

/// Least share of a guest's flame graph for its own function: of the class with the longer burn, and of the one with
/// the shorter if the longer has `alpha`. A request's time outside its burn (the kernel, the C library, this agent's
/// programs) grows with the emulator's slowness and is the same for both: the longer class shows how much it is.
fn least_in_a_guest(alpha: f64) -> (f64, f64) {
    let besides = ALPHA_MS * (1.0 / alpha - 1.0);
    (0.65, (BETA_MS / (BETA_MS + besides) - 0.05).max(0.5))
}

#[test]
fn the_longer_burn_says_how_much_the_shorter_may_lack() {
    // Measured in guests: both shares on five kernels.
    for (alpha, beta) in [(0.800, 0.703), (0.837, 0.737), (0.865, 0.806), (0.805, 0.666), (0.817, 0.663)] {
        let (least_alpha, least_beta) = least_in_a_guest(alpha);
        assert!(alpha > least_alpha && beta > least_beta, "{alpha} {beta}: {least_beta}");
    }
    // Half of the shorter beside a longer that lacks little is a fault.
    assert!(least_in_a_guest(0.86).1 > 0.65);
}

#[test]
fn each_class_burns_in_its_own_function() {
    let Some(_turn) = begin("flame", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    for (class, millis) in [("alpha", ALPHA_MS), ("beta", BETA_MS)] {
        let set = http::get(server.address, &format!("/set/{class}/{:.0}", 1e3 * millis)).expect("a reply");
        assert_eq!(set.status, 200);
    }
    // The default rate; 10 s give some 2000 samples of two busy CPUs.
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let (good, bad) = load::until(server.address, 2, &["/alpha", "/beta"], Instant::now() + Duration::from_secs(10));
    assert!(bad == 0 && good as f64 > 1000.0 * scale(), "{good} good, {bad} bad");

    let of = |class: &str| agent.text(&format!("/profile.folded?service=burn&class=GET%20%2F{class}"));
    // Addresses are symbolised in the background.
    let (alpha, beta) = wait("stacks with names", Duration::from_secs(20), || {
        let (alpha, beta) = (of("alpha"), of("beta"));
        (alpha.contains("burn_alpha") && beta.contains("burn_beta")).then_some((alpha, beta))
    });
    let in_guest = least_in_a_guest({
        let (inside, all) = weights(&alpha, "burn_alpha");
        inside / all
    });
    let least = if scale() < 1.0 { in_guest } else { (0.95, 0.95) };
    for (class, text, own, other) in
        [("alpha", &alpha, "burn_alpha", "burn_beta"), ("beta", &beta, "burn_beta", "burn_alpha")]
    {
        let ((inside, all), (wrong, _)) = (weights(text, own), weights(text, other));
        figure(
            &format!("flame {class}"),
            &format!("{:.1} %, other {:.1} %", 100.0 * inside / all, 100.0 * wrong / all),
        );
        say(&format!("flame {class}: {own} {:.1} %, {other} {:.1} %", 100.0 * inside / all, 100.0 * wrong / all));
        let least = if class == "alpha" { least.0 } else { least.1 };
        assert!(inside / all > least, "{class}: {own} is {inside} of {all}, not {least}\n{text}");
        // If an operation was skipped, the CPU until the next one can be charged to the request before: a burn of one
        // class to the other's share of half as many requests.
        let skipped = explained(&agent.metrics().lost()) * ALPHA_MS / (good as f64 / 2.0 * BETA_MS);
        assert!(wrong / all < 0.005 + skipped, "{class}: {other} is {wrong} of {all}\n{text}");
    }
    // Equally often: the two functions share the service's CPU 70 to 30.
    let whole = agent.text("/profile.folded?service=burn");
    let share = weights(&whole, "burn_alpha").0 / (weights(&whole, "burn_alpha").0 + weights(&whole, "burn_beta").0);
    say(&format!("flame: burn_alpha has {:.1} % of both, 70 % expected", 100.0 * share));
    // An emulator that waits for its turn lets time pass without computing: a burst it interrupts yields one sample,
    // however long it was.
    let within = if scale() < 1.0 { 0.50..=0.85 } else { 0.65..=0.75 };
    assert!(within.contains(&share), "{share}");

    let svg = agent.text("/flamegraph.svg?service=burn&class=GET%20%2Falpha");
    assert!(svg.contains("<svg") && svg.contains("burn_alpha"));
    // The graph matches the stacks: after a skipped operation, it may include some of the other class.
    assert!(!svg.contains("burn_beta") || explained(&agent.metrics().lost()) > 0.0);
    agent.stop();
}
