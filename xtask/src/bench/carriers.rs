//! `cargo xtask bench --carriers`: what in-band contexts cost, per request and on long bodies.
//!
//! Two namespaces on a virtual link, both ends seen by one agent, which runs with and without a carrier in turn: rounds
//! of all variants, every second one in reverse order; each round runs the agent without a carrier twice, to show the
//! noise. All run at normal priority, so that the agent's own work for contexts counts. BPF time is read separately,
//! with kernel statistics on.

mod wire;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::agent::Agent;
use super::results::{Program, Results, without_statistics};
use super::statistics::{median, range};
use super::table::{number, thousands};
use super::{Options, bpf, commit, measure};
use crate::build_ebpf::Way;
use crate::packages::{self, Need};
use crate::shell::{self, Root};
use crate::{build, build_ebpf, doc_tables};
use wire::{Kind, LONG, PORT, Wire};

/// Length of a run of short requests.
const RUN: Duration = Duration::from_millis(700);

/// How the agent is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Variant {
    Without,
    Again,
    Option,
    Header,
}

use Variant::{Again, Header, Option as TcpOption, Without};

const ORDER: [Variant; 4] = [Without, TcpOption, Header, Again];
const LOADS: [(Kind, &str); 4] = [
    (Kind::Kept, "requests a second, 16 kept connections"),
    (Kind::Fresh, "requests a second, a connection for each"),
    (Kind::Up, "100 MB in one request, MB/s"),
    (Kind::Down, "100 MB in one reply, MB/s"),
];

impl Variant {
    fn arguments(self, wire: &Wire) -> Vec<String> {
        // Excludes everything else on this machine.
        let mut all = vec!["--port".to_owned(), PORT.to_string()];
        match self {
            Without | Again => {}
            TcpOption => all.push("--inband-tcp-option".into()),
            Header => all.extend(["--inband-header".into(), wire.destination()]),
        }
        all
    }

    /// Contexts sent so far.
    fn contexts(self, agent: &Agent) -> Result<f64> {
        let metrics = agent.metrics()?;
        Ok(match self {
            Without | Again => 0.0,
            TcpOption => metrics.labelled("tracer_inband_total", "outcome=\"sent\""),
            Header => metrics.labelled("tracer_inband_header_requests_total", "outcome=\"injected\""),
        })
    }
}

/// One variant's result in a round: the rate of each load.
type Rates = Vec<f64>;

/// BPF time of one variant under one load.
#[derive(Debug, Default, Serialize)]
struct Spent {
    requests: u64,
    contexts: f64,
    programs: Vec<Program>,
}

impl Spent {
    /// Nanoseconds per request, less the cost of statistics.
    fn per_request(&self) -> f64 {
        self.programs.iter().map(|program| own(program, self.requests)).sum()
    }
}

fn own(program: &Program, requests: u64) -> f64 {
    without_statistics(program.nanos, program.runs) / requests as f64
}

/// All measurements, as written to the file.
#[derive(Debug, Default, Serialize)]
struct Measured {
    rounds: Vec<BTreeMap<Variant, Rates>>,
    /// By variant, for kept connections and for one connection per request.
    spent: BTreeMap<Variant, [Spent; 2]>,
}

pub(super) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    packages::install(&[Need::Programs])?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    if Root::obtain("load eBPF programs and make network namespaces")? != Root::Already {
        bail!("run this as root: it makes network namespaces and reads kernel statistics of its own");
    }
    measure::statistics_off()?;
    let dir = tempfile::Builder::new().prefix("tracer-bench-").tempdir().context("cannot create a directory")?;
    let wire = Wire::new()?;
    let rounds = if options.quick { 2 } else { options.pairs };
    let mut measured = Measured::default();
    // Once as warm-up.
    for (kind, _) in LOADS {
        wire.run(kind, RUN)?;
    }
    for round in 0..rounds {
        let mut order = ORDER;
        if round % 2 == 1 {
            order.reverse();
        }
        let mut rates = BTreeMap::new();
        for variant in order {
            let agent = start(&tracer, dir.path(), variant, &wire)?;
            let each: Result<Rates> = LOADS.into_iter().map(|(kind, _)| Ok(wire.run(kind, RUN)?.0)).collect();
            rates.insert(variant, each?);
            agent.end()?;
        }
        shell::progress(format!("round {} of {rounds}: {}", round + 1, brief(&rates)));
        measured.rounds.push(rates);
    }
    let _statistics = bpf::statistics()?;
    for variant in [Without, TcpOption, Header] {
        shell::progress(format!("BPF time: {variant:?}"));
        let agent = start(&tracer, dir.path(), variant, &wire)?;
        let spent = [spent(&agent, variant, &wire, Kind::Kept)?, spent(&agent, variant, &wire, Kind::Fresh)?];
        agent.end()?;
        measured.spent.insert(variant, spent);
    }
    let output = match &options.output {
        Some(file) => file.clone(),
        None => shell::target_dir()?.join("carriers.json"),
    };
    let text = serde_json::to_string(&measured).context("results cannot be written as JSON")?;
    fs::write(&output, text).with_context(|| format!("cannot write {}", output.display()))?;
    let here = Results::here(commit());
    let origin = format!("{} on Linux {}, {} cores ({})", here.commit, here.kernel, here.cores, here.processor);
    let table = table(&origin, &measured)?;
    shell::print(&table);
    shell::progress(format!("machine-readable: {}", output.display()));
    if options.docs {
        doc_tables::put("carriers", &table)?;
    }
    Ok(())
}

fn start(tracer: &Path, dir: &Path, variant: Variant, wire: &Wire) -> Result<Agent> {
    Agent::start_with(tracer, dir, &[], &variant.arguments(wire))
}

fn spent(agent: &Agent, variant: Variant, wire: &Wire, kind: Kind) -> Result<Spent> {
    let contexts = variant.contexts(agent)?;
    let before = bpf::held_by(agent.pid())?;
    let (_, requests) = wire.run(kind, RUN)?;
    agent.calm()?;
    let after = bpf::held_by(agent.pid())?;
    let contexts = variant.contexts(agent)? - contexts;
    let programs = after.into_iter().filter_map(|last| {
        let old = before.iter().find(|usage| usage.id == last.id).cloned().unwrap_or_default();
        let (runs, nanos) = (last.runs.saturating_sub(old.runs), last.nanos.saturating_sub(old.nanos));
        (runs > 0).then_some(Program { name: last.name, runs, nanos })
    });
    Ok(Spent { requests, contexts, programs: programs.collect() })
}

/// A round's ratios.
fn brief(rates: &BTreeMap<Variant, Rates>) -> String {
    let of = |variant| {
        let pairs = rates.get(&variant).into_iter().flatten().zip(rates.get(&Without).into_iter().flatten());
        pairs.map(|(with, without)| format!("{:.3}", with / without)).collect::<Vec<_>>().join(" ")
    };
    format!("noise {}, option {}, header {}", of(Again), of(TcpOption), of(Header))
}

fn table(origin: &str, measured: &Measured) -> Result<String> {
    let mut text = format!(
        "`cargo xtask bench --carriers` at {origin}: two namespaces on a virtual link, one agent that sees both ends. With the carrier / \
         without it, both with the agent; medians of {} rounds, in brackets the least and the greatest. *Noise*: without it, \
         twice.\n\n| | without | noise | TCP option | header |\n| --- | ---: | --- | --- | --- |\n",
        measured.rounds.len()
    );
    let none = [Spent::default(), Spent::default()];
    let spent = |variant| measured.spent.get(&variant).unwrap_or(&none);
    let works = |variant: Variant| spent(variant)[1].contexts > 0.0;
    if !works(TcpOption) {
        bail!("no request carried a TCP option: `tracer doctor` says why");
    }
    let refused = || "refused by the self-test here".to_owned();
    for (index, (kind, title)) in LOADS.into_iter().enumerate() {
        let rate = |round: &BTreeMap<Variant, Rates>, variant| round.get(&variant)?.get(index).copied();
        let ratio = |variant| {
            if !matches!(variant, Again) && !works(variant) {
                return refused();
            }
            let each = measured.rounds.iter().filter_map(|round| Some(rate(round, variant)? / rate(round, Without)?));
            let each: Vec<f64> = each.collect();
            let (low, high) = range(&each);
            format!("{:.3} ({low:.2}–{high:.2})", median(&each))
        };
        let base: Vec<f64> = measured.rounds.iter().filter_map(|round| rate(round, Without)).collect();
        let scale = if matches!(kind, Kind::Up | Kind::Down) { 1e6 } else { 1.0 };
        let base = thousands(median(&base) / scale);
        let _ = writeln!(text, "| {title} | {base} | {} | {} | {} |", ratio(Again), ratio(TcpOption), ratio(Header));
    }
    for (index, title) in ["kept connections", "a connection for each"].into_iter().enumerate() {
        let base = spent(Without).get(index).map_or(f64::NAN, Spent::per_request);
        let more = |variant: Variant| match spent(variant).get(index) {
            Some(spent) if works(variant) => {
                format!(
                    "{:+.0}; {:.2} contexts a request",
                    spent.per_request() - base,
                    spent.contexts / spent.requests as f64
                )
            }
            _ => refused(),
        };
        let _ = writeln!(
            text,
            "| BPF time a request, ns, {title} | {} | | {} | {} |",
            number(base),
            more(TcpOption),
            more(Header)
        );
    }
    text.push('\n');
    for (variant, name) in [(TcpOption, "TCP option"), (Header, "Header")] {
        for (index, title) in ["kept connections", "a connection for each"].into_iter().enumerate() {
            let Some(spent) = spent(variant).get(index).filter(|_| works(variant)) else { continue };
            let own: Vec<String> = spent
                .programs
                .iter()
                .filter(|program| program.name.starts_with("inband") || program.name.starts_with("header"))
                .map(|program| {
                    let each = without_statistics(program.nanos, program.runs) / program.runs as f64;
                    let runs = program.runs as f64 / spent.requests as f64;
                    format!("`{}` {} ns × {}", program.name, number(each), number(runs))
                })
                .collect();
            let _ = writeln!(text, "- {name}, {title}: {}.", own.join(", "));
        }
    }
    let _ = writeln!(
        text,
        "\nBPF time is that of all the agent's programs at both ends, less the kernel's statistics. A long body has {} bytes.",
        thousands(LONG as f64)
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, runs: u64, nanos: u64) -> Program {
        Program { name: name.into(), runs, nanos }
    }

    fn measured(header: f64) -> Measured {
        let spent = |contexts: f64, programs: &[Program]| {
            [0, 1].map(|_| Spent { requests: 100, contexts, programs: programs.to_vec() })
        };
        let tx = program("tx", 200, 28_000);
        let rates = |by: f64| vec![1000.0 * by, 500.0 * by, 2e9 * by, 3e9 * by];
        let round = BTreeMap::from([
            (Without, rates(1.0)),
            (Again, rates(1.01)),
            (TcpOption, rates(0.9)),
            (Header, rates(0.8)),
        ]);
        Measured {
            rounds: vec![round],
            spent: BTreeMap::from([
                (Without, spent(0.0, std::slice::from_ref(&tx))),
                (TcpOption, spent(100.0, &[tx.clone(), program("inband", 400, 56_000)])),
                (Header, spent(header, &[tx, program("header", 100, 34_000)])),
            ]),
        }
    }

    #[test]
    fn the_table_says_what_was_measured() {
        let text = table("abc", &measured(50.0)).expect("a table");
        for wanted in [
            "| requests a second, 16 kept connections | 1 000 | 1.010 (1.01–1.01) | 0.900 (0.90–0.90) | 0.800 (0.80–0.80) |",
            "| 100 MB in one request, MB/s | 2 000 |",
            "| BPF time a request, ns, kept connections | 200 | | +400; 1.00 contexts a request | +300; 0.50 contexts a request |",
            "- TCP option, kept connections: `inband` 100 ns × 4.00.",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }

    #[test]
    fn what_does_not_work_has_no_figures() {
        let text = table("abc", &measured(0.0)).expect("a table");
        assert!(text.contains("| refused by the self-test here |") && !text.contains("0.800"), "{text}");
        let mut none = measured(0.0);
        none.spent.clear();
        assert!(table("abc", &none).is_err());
    }
}
