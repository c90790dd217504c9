//! The measurements as written to a file. It keeps raw runs; everything else is computed from them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Version of the file format; other versions are refused.
const SCHEMA: u32 = 1;

/// One run of load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Answered operations.
    pub(super) operations: u64,
    /// Length of the run, seconds.
    pub(super) seconds: f64,
    /// Latencies, microseconds: median, 99th and 99.9th percentile.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    /// CPU of the measured program, nanoseconds.
    pub(super) cpu_ns: u64,
}

impl Sample {
    /// Operations per second.
    pub(super) fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// CPU of the measured program, nanoseconds per operation.
    pub(super) fn cpu_per_operation(&self) -> f64 {
        self.cpu_ns as f64 / self.operations as f64
    }

    /// CPU of the measured program, in hundredths of a core.
    pub(super) fn cpu_points(&self) -> f64 {
        self.cpu_ns as f64 / self.seconds / 1e7
    }
}

/// Two runs side by side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pair {
    /// The variant of one of the runs: [`AGENT`], [`FLOOR`], [`NOTHING`] or a peer.
    pub(super) variant: String,
    /// Whether the base run came first.
    pub(super) base_first: bool,
    /// The run without the variant.
    pub(super) base: Sample,
    /// The run with it.
    pub(super) with: Sample,
}

/// The agent.
pub(super) const AGENT: &str = "agent";
/// Empty programs on the agent's hooks.
pub(super) const FLOOR: &str = "floor";
/// The control: both runs without anything.
pub(super) const NOTHING: &str = "nothing";

/// One slice of load with the agent and kernel statistics on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Slice {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    /// CPU the agent used until it had caught up, nanoseconds.
    pub(super) agent_cpu_ns: u64,
    /// Time and runs of all its programs, by the kernel's statistics, including the statistics' own cost.
    pub(super) bpf_ns: u64,
    pub(super) bpf_runs: u64,
}

/// One program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) runs: u64,
    /// Includes the statistics' own cost.
    pub(super) nanos: u64,
}

/// The agent's own cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Cost {
    pub(super) slices: Vec<Slice>,
    pub(super) programs: Vec<Program>,
    /// Time of empty programs on the same hooks under the same load, nanoseconds per operation, less the cost of
    /// statistics: the effect of cold caches alone.
    pub(super) floor_ns: f64,
    /// Resident memory, megabytes: the peak at readiness, then at readiness and after the load; and the peak by then.
    pub(super) start_peak_mb: f64,
    pub(super) steady_mb: f64,
    pub(super) load_mb: f64,
    pub(super) load_peak_mb: f64,
    /// Events received, and those lost by reason.
    pub(super) events: f64,
    pub(super) lost: BTreeMap<String, f64>,
}

impl Cost {
    /// Adds what was measured of another process of the same build: of its memory the greatest.
    fn add(&mut self, other: Self) {
        self.slices.extend(other.slices);
        for program in other.programs {
            match self.programs.iter_mut().find(|own| own.name == program.name) {
                Some(own) => (own.runs, own.nanos) = (own.runs + program.runs, own.nanos + program.nanos),
                None => self.programs.push(program),
            }
        }
        self.start_peak_mb = self.start_peak_mb.max(other.start_peak_mb);
        self.steady_mb = self.steady_mb.max(other.steady_mb);
        self.load_mb = self.load_mb.max(other.load_mb);
        self.load_peak_mb = self.load_peak_mb.max(other.load_peak_mb);
        self.events += other.events;
        for (reason, count) in other.lost {
            *self.lost.entry(reason).or_default() += count;
        }
    }

    pub(super) fn operations(&self) -> f64 {
        self.slices.iter().map(|slice| slice.operations as f64).sum()
    }

    /// BPF time per operation in each slice, nanoseconds, less the cost of statistics.
    pub(super) fn bpf_per_operation(&self) -> Vec<f64> {
        self.slices
            .iter()
            .map(|slice| without_statistics(slice.bpf_ns, slice.bpf_runs) / slice.operations as f64)
            .collect()
    }

    /// Agent CPU in each slice, seconds per million operations.
    pub(super) fn agent_per_million(&self) -> Vec<f64> {
        self.slices.iter().map(|slice| slice.agent_cpu_ns as f64 / slice.operations as f64 / 1e3).collect()
    }

    /// Agent CPU in each slice, in hundredths of a core.
    pub(super) fn agent_points(&self) -> Vec<f64> {
        self.slices.iter().map(|slice| slice.agent_cpu_ns as f64 / slice.seconds / 1e7).collect()
    }

    pub(super) fn all_lost(&self) -> f64 {
        self.lost.values().sum()
    }
}

/// Nanoseconds that kernel statistics add to each run of a program (measured with empty programs).
pub(super) const STATISTICS_NS: f64 = 40.0;

/// Time of runs less the cost of statistics, nanoseconds.
pub(super) fn without_statistics(nanos: u64, runs: u64) -> f64 {
    (nanos as f64 - runs as f64 * STATISTICS_NS).max(0.0)
}

/// One case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Case {
    /// As `--case` takes it.
    pub(super) name: String,
    pub(super) title: String,
    /// The counted operation: `request`, `query`, …
    pub(super) operation: String,
    /// The rate is fixed; only CPU and latency can differ.
    pub(super) fixed_rate: bool,
    pub(super) pairs: Vec<Pair>,
    /// Events lost while pairs ran, by reason: real-time load and server may starve the agent there.
    pub(super) lost_in_pairs: BTreeMap<String, f64>,
    pub(super) cost: Option<Cost>,
    /// What could not run here, and why.
    pub(super) refused: BTreeMap<String, String>,
}

impl Case {
    /// Pairs of one variant.
    pub(super) fn of<'a>(&'a self, variant: &'a str) -> impl Iterator<Item = &'a Pair> {
        self.pairs.iter().filter(move |pair| pair.variant == variant)
    }

    /// Adds another measurement of the same case and build.
    pub(super) fn add(&mut self, more: Self) {
        let pairs = std::mem::take(&mut self.pairs);
        let mut lost = std::mem::take(&mut self.lost_in_pairs);
        let cost = self.cost.take();
        *self = more;
        self.pairs.splice(0..0, pairs);
        for (reason, count) in &mut self.lost_in_pairs {
            *count += lost.remove(reason).unwrap_or_default();
        }
        self.lost_in_pairs.append(&mut lost);
        if let (Some(sum), Some(before)) = (&mut self.cost, cost) {
            sum.add(before);
        }
    }

    /// Variants in order of their first pair.
    pub(super) fn variants(&self) -> Vec<&str> {
        let mut seen: Vec<&str> = Vec::new();
        for pair in &self.pairs {
            if !seen.contains(&pair.variant.as_str()) {
                seen.push(&pair.variant);
            }
        }
        seen
    }
}

/// A whole run of `bench`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) schema: u32,
    /// Commit of the tree; `+` if it had changes.
    pub(super) commit: String,
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) cores: usize,
    /// Seconds since the epoch.
    pub(super) began: u64,
    pub(super) seconds: f64,
    /// Empty programs in the floor.
    pub(super) floor_programs: usize,
    pub(super) cases: Vec<Case>,
}

impl Results {
    /// Empty results for this machine.
    pub(super) fn here(commit: String) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo");
        let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            schema: SCHEMA,
            commit,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
            cores: super::sched::cores(),
            began: std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
            ..Self::default()
        }
    }

    /// Adds the cases of another run of the same commit and kernel, in the order of `names`; the other run wins for
    /// cases in both.
    pub(super) fn join(&mut self, other: Self, names: &[&str]) -> Result<()> {
        if (&other.commit, &other.kernel) != (&self.commit, &self.kernel) {
            bail!("is of {} on Linux {}, not of {} on Linux {}", other.commit, other.kernel, self.commit, self.kernel);
        }
        self.cases.retain(|case| other.cases.iter().all(|newer| newer.name != case.name));
        self.cases.extend(other.cases);
        self.cases.sort_by_key(|case| names.iter().position(|name| *name == case.name));
        self.seconds += other.seconds;
        Ok(())
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        parse(&text).with_context(|| format!("{} is no result of `cargo xtask bench`", path.display()))
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self).context("results cannot be written as JSON")?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn parse(text: &str) -> Result<Results> {
    let results: Results = serde_json::from_str(text)?;
    if results.schema != SCHEMA {
        bail!("its form has version {}, this is {SCHEMA}: measure again with this xtask", results.schema);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_other_forms_are_refused() {
        let mut results = Results::here("abc".into());
        results.cases.push(Case { name: "a16".into(), ..Case::default() });
        let text = serde_json::to_string(&results).expect("JSON");
        assert_eq!(parse(&text).expect("own form").cases[0].name, "a16");
        results.schema = 99;
        let other = parse(&serde_json::to_string(&results).expect("JSON")).expect_err("another form");
        assert!(other.to_string().contains("version 99"), "{other}");
    }

    #[test]
    fn runs_of_one_commit_are_joined() {
        let case = |name: &str, title: &str| Case { name: name.into(), title: title.into(), ..Case::default() };
        let of = |cases: Vec<Case>| Results { commit: "abc".into(), seconds: 2.0, cases, ..Results::default() };
        let mut results = of(vec![case("b", "old"), case("c", "old")]);
        results.join(of(vec![case("c", "new"), case("a", "new")]), &["a", "b", "c"]).expect("the same commit");
        let all: Vec<_> = results.cases.iter().map(|case| (case.name.as_str(), case.title.as_str())).collect();
        assert_eq!(all, [("a", "new"), ("b", "old"), ("c", "new")]);
        assert!((results.seconds - 4.0).abs() < 1e-9);
        results.commit = "def".into();
        assert!(results.join(of(Vec::new()), &[]).is_err());
    }

    #[test]
    fn measurements_of_one_build_are_added() {
        let part = |operations, lost: &str, steady_mb| Case {
            name: "a".into(),
            pairs: vec![Pair {
                variant: AGENT.into(),
                base_first: true,
                base: Sample::default(),
                with: Sample { operations, ..Sample::default() },
            }],
            lost_in_pairs: BTreeMap::from([(lost.to_owned(), 1.0), ("both".to_owned(), 2.0)]),
            cost: Some(Cost {
                slices: vec![Slice { operations, ..Slice::default() }],
                programs: vec![Program { name: "tx".into(), runs: operations, nanos: 10 }],
                steady_mb,
                ..Cost::default()
            }),
            ..Case::default()
        };
        let mut sum = Case::default();
        sum.add(part(1, "x", 5.0));
        sum.add(part(2, "y", 4.0));
        assert_eq!(sum.pairs.iter().map(|pair| pair.with.operations).collect::<Vec<_>>(), [1, 2]);
        let lost: Vec<_> = sum.lost_in_pairs.iter().map(|(reason, count)| (reason.as_str(), *count as u64)).collect();
        assert_eq!(lost, [("both", 4), ("x", 1), ("y", 1)]);
        let cost = sum.cost.expect("a cost");
        assert_eq!((cost.slices.len(), cost.programs[0].runs, cost.programs[0].nanos), (2, 3, 20));
        assert!((cost.steady_mb - 5.0).abs() < 1e-9);
    }

    #[test]
    fn statistics_cost_is_taken_off() {
        let slice = Slice { operations: 10, seconds: 2.0, agent_cpu_ns: 40_000, bpf_ns: 3000, bpf_runs: 20 };
        let cost = Cost { slices: vec![slice], ..Cost::default() };
        assert!((cost.bpf_per_operation()[0] - 220.0).abs() < 1e-9);
        assert!((cost.agent_per_million()[0] - 4.0).abs() < 1e-9);
        assert!((cost.agent_points()[0] - 0.002).abs() < 1e-9);
    }
}
