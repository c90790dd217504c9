//! Off-CPU flame graphs per class: each shows the function its route waits in, why, and as much as the class was blocked.

use std::time::{Duration, Instant};

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::postgresql::{Postgres, programs};
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{begin, explained, figure, http, load, say, scale, scratch, wait};

/// Classes, the function each waits in, and the reason shown.
const ROUTES: [(&str, &str, &str); 3] = [
    ("sleep", "wait_in_sleep", "[off CPU: sleep]"),
    ("lock", "wait_for_lock", "[off CPU: futex]"),
    ("read", "wait_for_peer", "[off CPU: socket]"),
];
const RUN_QUEUE: &str = "[off CPU: run queue]";

/// Seconds of the stacks that `fits` selects, from folded text in microseconds.
fn seconds(folded: &str, fits: impl Fn(&str) -> bool) -> f64 {
    let lines = folded.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(stack, _)| fits(stack));
    lines.map(|(_, micros)| micros.parse::<f64>().expect("a number")).sum::<f64>() / 1e6
}

#[test]
fn each_class_waits_in_its_own_function() {
    let Some(_turn) = begin("off_cpu", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("waits", dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "6400%"]);
    let paths = ["/sleep", "/lock", "/read"];
    let (good, bad) = load::until(server.address, 1, &paths, Instant::now() + Duration::from_secs(10));
    assert!(bad == 0 && good as f64 > 200.0 * scale(), "{good} good, {bad} bad");
    let truth = http::get(server.address, "/truth").expect("the server's own books");
    let truth: serde_json::Value = serde_json::from_slice(&truth.body).expect("JSON");

    let of = |class: &str, kind: &str| {
        agent.text(&format!("/profile.folded?service=waits&class=GET%20%2F{class}&kind={kind}"))
    };
    let named = || ROUTES.iter().all(|(class, function, _)| of(class, "offcpu").contains(function));
    wait("stacks with names", Duration::from_secs(30), || named().then_some(()));
    // Sums are passed on once a second.
    let name = "tracer_request_blocked_seconds_total";
    let total = |name: &str, class: &str| {
        agent.metrics().sum(name, &[("service_name", "waits"), ("request_class", &format!("GET /{class}"))])
    };
    let mut before = -1.0;
    wait("the last request's costs", Duration::from_secs(30), || {
        std::thread::sleep(Duration::from_secs(2));
        let now: f64 = ROUTES.iter().map(|(class, ..)| total(name, class)).sum();
        let calm = (now - before).abs() < 1e-9;
        before = now;
        calm.then_some(())
    });
    for (class, function, reason) in ROUTES {
        let folded = of(class, "offcpu");
        let slept = seconds(&folded, |stack| !stack.ends_with(RUN_QUEUE));
        let here = seconds(&folded, |stack| stack.contains(function) && stack.ends_with(reason));
        let others = ROUTES.iter().filter(|(_, other, _)| *other != function);
        let wrong: f64 = others.map(|(_, other, _)| seconds(&folded, |stack| stack.contains(other))).sum();
        let blocked = total(name, class);
        let clock = truth[format!("/{class}")]["nanos"].as_f64().expect("a number") / 1e9;
        let whole = format!(
            "{slept:.3} s in stacks, {here:.3} s of them in {function} for {reason}, {wrong:.3} s elsewhere; blocked {blocked:.3} s; by the clock {clock:.3} s"
        );
        say(&format!("off CPU {class}: {whole}"));
        figure(&format!("off CPU {class}"), &format!("{:.2} % of blocked", 100.0 * slept / blocked));
        // A skipped operation can move one wait to another class.
        let skipped = explained(&agent.metrics().lost()) * 0.01;
        assert!((slept - blocked).abs() < 0.03 * blocked + skipped, "{class}: {whole}\n{folded}");
        // The first stacks of a program have no unwind tables yet.
        let walked = seconds(&folded, |stack| !stack.ends_with(RUN_QUEUE) && !stack.contains("[stack incomplete"));
        assert!(walked > 0.2 * slept && here > 0.95 * walked, "{class}: {walked:.3} s walked; {whole}\n{folded}");
        assert!(wrong <= 0.01 * slept + skipped, "{class}: {whole}\n{folded}");
        // What the clock saw includes the run queue.
        assert!(slept < clock * 1.03 + skipped, "{class}: {whole}");
        // On the CPU it does next to nothing; both together are more than either.
        let wall = seconds(&of(class, "wall"), |_| true);
        assert!(wall >= seconds(&of(class, "offcpu"), |_| true) * 0.999, "{class}: {wall} s of both");
        assert!(!of(class, "cpu").contains("[off CPU"), "{class}");
    }
    let svg = agent.text("/flamegraph.svg?service=waits&class=GET%20%2Flock&kind=offcpu");
    assert!(svg.contains("wait_for_lock") && svg.contains("off CPU: futex") && svg.contains(" s off the CPU"), "{svg}");
    agent.stop();
}

#[test]
fn a_wait_for_a_call_names_whom_it_calls() {
    let Some(_turn) = begin("off_cpu_peer", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("waits", dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let peer = format!(";[off CPU: socket to {}]", server.address);
    let folded = || agent.text("/profile.folded?service=waits&class=GET%20%2Fcall&kind=offcpu");
    let (named, all) = wait("waits for calls with names", Duration::from_secs(60), || {
        load::until(server.address, 1, &["/call"], Instant::now() + Duration::from_secs(3));
        let folded = folded();
        let all = seconds(&folded, |stack| stack.contains(";wait_for_call;") && !stack.ends_with(RUN_QUEUE));
        let named = seconds(&folded, |stack| stack.contains(";wait_for_call;") && stack.ends_with(&peer));
        (all > 3.0).then_some((named, all))
    });
    say(&format!("  {named:.3} of {all:.3} s of waits for calls name {}", server.address));
    // That the connection is a call shows once its first answer was read.
    assert!(named > 0.98 * all, "{named:.3} of {all:.3} s\n{}", folded());
    agent.stop();
}

#[test]
fn time_divides_as_it_was_spent_where_few_stacks_are_taken() {
    let Some(_turn) = begin("off_cpu_share", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("waits", dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10", "--overhead-budget", "0.3%"]);
    // Until the budget has chosen how many are taken, and tables and names are there.
    let ratio = || agent.metrics().sum("tracer_off_cpu_stacks_ratio", &[]);
    let burst = |seconds| load::until(server.address, 4, &["/mixed"], Instant::now() + Duration::from_secs(seconds));
    wait("few stacks", Duration::from_secs(60), || {
        burst(2);
        (ratio() < 0.3).then_some(())
    });
    let folded = || agent.text("/profile.folded?service=waits&class=GET%20%2Fmixed&kind=offcpu");
    let truth = || {
        let books = http::get(server.address, "/truth").expect("the server's own books");
        let books: serde_json::Value = serde_json::from_slice(&books.body).expect("JSON");
        ["wait_long", "wait_short"].map(|function| books[function].as_f64().expect("a number") / 1e9)
    };
    let (good, bad) = burst(20);
    assert!(bad == 0 && good as f64 > 5000.0 * scale(), "{good} good, {bad} bad");
    let chosen = ratio();
    let [long, short] = truth();
    let all = wait("the last request's costs", Duration::from_secs(30), || {
        let all = seconds(&folded(), |stack| stack.ends_with("[off CPU: sleep]") || stack.ends_with(RUN_QUEUE));
        (all > 0.97 * (long + short)).then_some(all)
    });
    let folded = folded();
    let of = |function: &str| seconds(&folded, |stack| stack.contains(function));
    let (in_long, in_short) = (of(";wait_long;"), of(";wait_short;"));
    let whole = format!(
        "of {chosen:.3} of all waits the stack was taken; by the clock {long:.3} and {short:.3} s; {all:.3} s in stacks, {in_long:.3} and {in_short:.3} s of it by function"
    );
    say(&format!("off CPU, sampled: {whole}"));
    figure("off CPU, sampled", &whole);
    assert!(chosen < 0.5, "{whole}");
    let skipped = explained(&agent.metrics().lost()) * 0.01;
    assert!(all < 1.03 * (long + short) + skipped, "{whole}");
    // Three standard deviations of some thousand stacks, a quarter of them long.
    let share = |long: f64, short: f64| long / (long + short);
    assert!((share(in_long, in_short) - share(long, short)).abs() < 0.05, "{whole}\n{folded}");
    // All of it has its function, but for what was taken before there were tables.
    assert!(in_long + in_short > 0.9 * all, "{whole}\n{folded}");
    agent.stop();
}

#[test]
fn waits_for_a_lock_show_who_released_it() {
    let Some(_turn) = begin("off_cpu_wakers", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("waits", dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "6400%"]);
    let of = |class: &str, kind: &str| {
        agent.text(&format!("/profile.folded?service=waits&class=GET%20%2F{class}&kind={kind}"))
    };
    // Until there are tables and names.
    let burst = |connections, path, seconds| {
        load::until(server.address, connections, &[path], Instant::now() + Duration::from_secs(seconds))
    };
    wait("wakers with names", Duration::from_secs(60), || {
        burst(3, "/convoy", 1);
        of("convoy", "wakers").contains(";hold_long;").then_some(())
    });
    let holders = ["hold_long", "hold_shortly"];
    let truth = || {
        let books = http::get(server.address, "/truth").expect("the server's own books");
        let books: serde_json::Value = serde_json::from_slice(&books.body).expect("JSON");
        holders.map(|function| books[function].as_f64().expect("a number") / 1e9)
    };
    let shown = || {
        let folded = of("convoy", "wakers");
        let ended = |holder: &str| {
            let by = format!(";{holder};");
            seconds(&folded, |stack| {
                stack.split_once(";[woken by waits];").is_some_and(|(_, waker)| waker.contains(&by))
            })
        };
        (holders.map(ended), seconds(&folded, |_| true), folded)
    };
    let (before, [long, short]) = (truth(), shown().0);
    let (good, bad) = burst(3, "/convoy", 10);
    assert!(bad == 0 && good as f64 > 1000.0 * scale(), "{good} good, {bad} bad");
    let after = truth();
    let clock = [after[0] - before[0], after[1] - before[1]];
    // Names and the last request's costs come a while later.
    let ([long, short], all, folded) = wait("the last waits with names", Duration::from_secs(60), || {
        let ([now_long, now_short], all, folded) = shown();
        let new = [now_long - long, now_short - short];
        (new[0] + new[1] > 0.9 * (clock[0] + clock[1])).then_some((new, all, folded))
    });
    let whole = format!(
        "{long:.3} and {short:.3} s of waits ended by those that held for long and shortly, by the clock {:.3} and {:.3} s; {all:.3} s in all",
        clock[0], clock[1]
    );
    say(&format!("off CPU, wakers: {whole}"));
    figure("off CPU, wakers", &whole);
    let share = |[long, short]: [f64; 2]| long / (long + short);
    assert!((share([long, short]) - share(clock)).abs() < 0.03, "{whole}\n{folded}");
    // Its waits for futexes, no more and no less.
    let off_cpu = seconds(&of("convoy", "offcpu"), |stack| stack.ends_with("[off CPU: futex]"));
    assert!((all - off_cpu).abs() < 0.01 * off_cpu, "{off_cpu:.3} s; {whole}");
    // Of one lock, one thread that answers no request.
    burst(1, "/lock", 5);
    let held = wait("waits for a lock with names", Duration::from_secs(60), || {
        let folded = of("lock", "wakers");
        let held = seconds(&folded, |stack| stack.contains(";wait_for_lock;") && stack.contains(";hold;"));
        (held > 0.9 * seconds(&folded, |_| true) && held > 1.0).then_some(held)
    });
    say(&format!("  {held:.3} s of waits for the lock ended by the thread that holds it"));
    let svg = agent.text("/flamegraph.svg?service=waits&class=GET%20%2Fconvoy&kind=wakers");
    assert!(svg.contains("woken by waits") && svg.contains("hold_long") && svg.contains("wait_in_convoy"), "{svg}");
    // Functions are those of the wakers.
    let hot = agent.json("/api/v1/hotspots?service=waits&class=GET%20%2Fconvoy&kind=wakers");
    let functions = hot["functions"].as_array().expect("functions");
    assert!(functions.iter().any(|one| one["function"] == "hold_long"), "{hot}");
    assert!(functions.iter().all(|one| one["function"] != "[off CPU: futex]"), "{hot}");
    agent.stop();
}

/// A lock in memory that processes share: who waits for it is woken by another process, whose functions are its own.
#[test]
fn locks_that_processes_share_show_who_released_them() {
    let Some(_turn) = begin("off_cpu_processes", &["setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED off_cpu_processes: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start_with(dir.path(), &["log_min_duration_statement=-1".into()]);
    let agent = Agent::start(dir.path(), &["--nice=-10", "--overhead-budget=100%"]);
    let pgbench = |arguments: &[&str]| {
        let done = outcome(server.program("pgbench").args(arguments), "pgbench");
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    };
    pgbench(&["-i", "-q"]);
    let waits = || {
        let folded = agent.text("/profile.folded?service=postgres&kind=wakers");
        let acquires = |stack: &str| stack.contains(";LWLockAcquire");
        let releases = |stack: &str| {
            let waker = stack.split_once(";[off CPU: futex];[woken by postgres];").map_or("", |(_, waker)| waker);
            waker.contains(";LWLockRelease;")
        };
        (seconds(&folded, acquires), seconds(&folded, |stack| acquires(stack) && releases(stack)), folded)
    };
    let (waited, ended, folded) = wait("waits for locks with names", Duration::from_secs(90), || {
        // Transactions wait for each other's log to be written.
        pgbench(&["-N", "-c", "40", "-j", "2", "-T", "5"]);
        let (waited, ended, folded) = waits();
        (waited > 0.3).then_some((waited, ended, folded))
    });
    let whole = format!("{ended:.3} of {waited:.3} s in LWLockAcquire end by another process in LWLockRelease");
    say(&format!("  {whole}"));
    figure("off CPU, processes", &whole);
    assert!(ended > 0.95 * waited, "{whole}\n{folded}");
    agent.stop();
}

#[test]
fn a_server_behind_a_unix_socket_has_stacks_too() {
    let Some(_turn) = begin("off_cpu_unix", &["setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED off_cpu_unix: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut client = server.psql();
    client.env("PGHOST", &server.data).args(["-c", &"SELECT pg_sleep(0.05);".repeat(2000)]);
    let client = Process::start("psql", &mut client, &dir.path().join("psql.log"));
    let begin = Instant::now();
    let asleep = wait("stacks of the server's sleep", Duration::from_secs(60), || {
        let services = agent.json("/api/v1/services");
        services["services"].as_array()?.iter().find(|one| one["service_name"] == "postgres")?;
        let folded = agent.text("/profile.folded?service=postgres&kind=offcpu");
        let asleep = seconds(&folded, |stack| stack.contains(";pg_sleep;") && stack.ends_with("[off CPU: poll]"));
        (asleep >= 2.0).then_some(asleep)
    });
    let whole = begin.elapsed().as_secs_f64();
    say(&format!("  {asleep:.3} s of stacks in pg_sleep within {whole:.3} s"));
    assert!(asleep <= whole);
    drop(client);
    agent.stop();
}
