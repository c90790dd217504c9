//! Disturbs agents' own connections while the traced ones go on: cuts them off from each other, restarts them, sends
//! garbage and floods to their ports. No edge is ever wrong, no request fails, and all edges come back without help.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, PROGRAMS, agents, as_before, connected, during, none_wrong, refused};
use tracer_tests::hosts::{Hosts, Nat, RELAY};
use tracer_tests::spans::{self, Span};
use tracer_tests::vitals::Vitals;
use tracer_tests::{begin, figure, say, scratch, wait};

/// How long the agents are cut off from each other.
const CUT: Duration = Duration::from_secs(10);
/// Most time until all are connected again.
const AGAIN: Duration = Duration::from_secs(2);
/// Most memory growth of an agent in total, bytes.
const GROWTH: f64 = 64e6;

#[test]
fn recovery() {
    let Some(_turn) = begin("recovery", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, Nat { destination: true, source: true });
    let chain = Chain::start(&hosts, dir.path());
    let mut agents = agents(&hosts, dir.path(), true);
    connected(&hosts, &agents);
    as_before(&hosts, &chain, &agents, "before");
    let memory: Vec<f64> = agents.iter_mut().map(|agent| Vitals::of(agent.process().pid()).rss).collect();

    partition(&hosts, &chain, &agents);
    as_before(&hosts, &chain, &agents, "healed");
    let kept = restart(&hosts, &chain, &mut agents, dir.path());
    as_before(&hosts, &chain, &agents, "restarted");
    let hostile = hostile(&hosts, &chain, &agents);
    let mut spans = as_before(&hosts, &chain, &agents, "last");

    for (agent, before) in agents.iter_mut().zip(&memory) {
        let now = Vitals::of(agent.process().pid()).rss;
        assert!(now <= before + GROWTH, "an agent grew from {before} to {now} bytes");
    }
    // All spans, those of the ended agent included.
    spans.extend(spans::read(&kept));
    for prefix in hostile {
        assert!(none_wrong(&spans, &prefix) > 0, "{prefix}: a flood at one port stopped everything");
    }
    for prefix in ["cut", "anew"] {
        let found: Vec<&Span> = spans.iter().filter(|span| span.path.starts_with(&format!("/hop/{prefix}"))).collect();
        assert!(!found.is_empty(), "{prefix}: no span");
        let mut rounds: Vec<&str> = found.iter().filter_map(|span| span.path.get(5..)?.split('-').next()).collect();
        rounds.sort_unstable();
        rounds.dedup();
        let matched: u64 = rounds.iter().map(|round| none_wrong(&spans, round)).sum();
        say(&format!("{prefix}: {} loads, {matched} edges matched, none wrong", rounds.len()));
    }
    for agent in agents {
        agent.stop();
    }
}

/// Cuts the agents off from each other for a while.
fn partition(hosts: &Hosts, chain: &Chain, agents: &[Agent]) {
    let (took, _) = during(hosts, chain, "cut", || {
        hosts.cut(true);
        let begun = Instant::now();
        // The agents must notice: otherwise there would be nothing to recover.
        wait("agents to lose each other", CUT, || {
            let peers = hosts.inside(1, || agents[0].json("/api/v1/peers"));
            let peers = peers["peers"].as_array().expect("peers");
            peers.iter().all(|peer| peer["state"] == "down").then_some(())
        });
        std::thread::sleep(CUT.saturating_sub(begun.elapsed()));
        hosts.cut(false);
        let healed = Instant::now();
        connected(hosts, agents);
        healed.elapsed()
    });
    figure("recovery after a partition of 10 s", &format!("{:.2} s", took.as_secs_f64()));
    assert!(took < AGAIN, "all sessions are up {took:?} after the partition");
}

/// One agent ends and another starts in its place; returns the first one's file.
fn restart(hosts: &Hosts, chain: &Chain, agents: &mut Vec<Agent>, dir: &Path) -> std::path::PathBuf {
    let ((took, kept), _) = during(hosts, chain, "anew", || {
        let first = agents.remove(2);
        let kept = first.transactions.clone();
        first.stop();
        agents.insert(2, hosts.agent(3, "application-host-again", dir, true, &["--hertz", "0"]));
        let begun = Instant::now();
        connected(hosts, agents);
        (begun.elapsed(), kept)
    });
    figure("recovery after an agent's restart", &format!("{:.2} s", took.as_secs_f64()));
    assert!(took < AGAIN, "found {took:?} after it was ready");
    kept
}

/// Garbage, and more connections than allowed, at an agent's port while requests go on.
fn hostile(hosts: &Hosts, chain: &Chain, agents: &[Agent]) -> Vec<String> {
    let before = refused(hosts, agents);
    let ((), prefixes) = during(hosts, chain, "hostile", || {
        // From the router's address, so that no agent's own address gets blocked.
        hosts.inside(0, || {
            let mut open = Vec::new();
            for n in 0..600u32 {
                let Ok(mut stream) = TcpStream::connect((hosts.own(3), RELAY)) else { continue };
                let bytes: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(n | 1) >> 3) as u8).collect();
                // The agent may have closed it already, as it should.
                let _ = stream.write_all(&bytes);
                open.push(stream);
            }
        });
        wait("garbage to be refused", Duration::from_secs(10), || {
            (refused(hosts, agents) > before + 100).then_some(())
        });
    });
    connected(hosts, agents);
    figure("connections with garbage refused", &(refused(hosts, agents) - before).to_string());
    prefixes
}
