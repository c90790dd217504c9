//! Scripted servers of `workloads/peer.py`: compares their own request counts with the agent's spans.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::agent::{Agent, outcome};
use crate::metrics::Metrics;
use crate::spans::{self, Span};
use crate::workload::{self, Server};
use crate::{figure, find, say, scale, wait};

/// Requests of one class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// How often.
    pub count: u64,
    /// Failures, by kind.
    pub errors: BTreeMap<String, u64>,
    /// How long each took, seconds.
    pub seconds: Vec<f64>,
}

/// Classes by name.
pub type Classes = BTreeMap<String, Class>;

/// A scripted server.
#[derive(Debug)]
pub struct Peer {
    /// The server.
    pub server: Server,
    truth: PathBuf,
}

impl Peer {
    /// Starts `workloads/SCRIPT.py` in `dir`.
    pub fn start(script: &str, dir: &Path) -> Self {
        let truth = dir.join(format!("{script}.json"));
        let python = find("python3").unwrap_or_else(|| panic!("no python3"));
        let mut command = Command::new(python);
        command.arg("-u").arg(workload::source(&format!("{script}.py"))).arg(&truth);
        Self { server: Server::start(script, dir, &mut command), truth }
    }

    /// Runs a Python client, service `python-client`, with the server's port and the scale as arguments; returns its
    /// output.
    pub fn client(&self, script: &str) -> String {
        let mut run = Command::new(find("python3").unwrap_or_else(|| panic!("no python3")));
        run.args(["-c", script, &self.server.address.port().to_string(), &scale().to_string()]);
        let done = outcome(run.env("OTEL_SERVICE_NAME", "python-client"), "the client");
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        done.out
    }

    /// Its own counts, once every connection is closed.
    pub fn truth(&self) -> Classes {
        let status = wait("the server's last connection", Duration::from_secs(20), || {
            let text = std::fs::read_to_string(&self.truth).ok()?;
            let value: Value = serde_json::from_str(&text).ok()?;
            (value["open"] == 0 && value["served"].as_u64() > Some(0)).then_some(value)
        });
        classes(&status["classes"])
    }
}

/// Parses classes of a JSON object by name: `count`, `errors`, `seconds`.
pub fn classes(value: &Value) -> Classes {
    let class = |value: &Value| Class {
        count: value["count"].as_u64().unwrap_or_default(),
        errors: value["errors"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, count)| (name.clone(), count.as_u64().unwrap_or_default()))
            .collect(),
        seconds: value["seconds"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect(),
    };
    value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), class(value))).collect()
}

/// Renames a class; merges it into an existing one of that name.
pub fn rename(classes: &mut Classes, from: &str, to: &str) {
    if let Some(old) = classes.remove(from) {
        let new = classes.entry(to.to_owned()).or_default();
        new.count += old.count;
        new.seconds.extend(old.seconds);
        for (kind, count) in old.errors {
            *new.errors.entry(kind).or_default() += count;
        }
    }
}

/// Sums spans by class.
pub fn seen<'a>(spans: impl Iterator<Item = &'a Span>) -> Classes {
    let mut classes = Classes::new();
    for span in spans {
        let class = classes.entry(span.class.clone()).or_default();
        class.count += 1;
        class.seconds.push(span.duration_s);
        if !span.error.is_empty() {
            *class.errors.entry(span.error.clone()).or_default() += 1;
        }
    }
    classes
}

/// Waits until no more spans come; returns the metrics.
pub fn settled(agent: &Agent) -> Metrics {
    let mut tail = spans::Tail::new(&agent.transactions);
    let mut last = 0;
    wait("the last spans", Duration::from_secs(60), || {
        let now = tail.read().len();
        let still = now > 0 && now == std::mem::replace(&mut last, now);
        std::thread::sleep(Duration::from_millis(1500));
        still.then(|| agent.metrics())
    })
}

/// Compares `protocol`'s spans at both ends with `truth`, and their medians with those of `served` and `called`, which
/// may lack classes; writes figures. Spans missing at the client's end must have been counted as lost: a client puts
/// all its data into one send, and bytes far behind a long message are not captured.
pub fn compare(protocol: &str, spans: &Path, truth: &Classes, called: &Classes, lost: &[(String, f64)]) {
    let spans: Vec<Span> = spans::read(spans).into_iter().filter(|span| span.protocol == protocol).collect();
    let ends = [true, false].map(|server| seen(spans.iter().filter(|span| span.server == server)));
    let wanted: u64 = truth.values().map(|class| class.count).sum();
    for (name, class) in truth {
        let of = |side: usize| ends[side].get(name).map_or(0, |class| class.count);
        say(&format!("  {name:<40} {:>7} {:>7} {:>7}", class.count, of(0), of(1)));
    }
    say(&format!("lost: {lost:?}"));
    let counts = |classes: &Classes| -> BTreeMap<String, (u64, BTreeMap<String, u64>)> {
        classes.iter().map(|(name, class)| (name.clone(), (class.count, class.errors.clone()))).collect()
    };
    assert_eq!(counts(&ends[0]), counts(truth), "served and what the server counted; lost: {lost:?}");
    let mut whole = counts(&ends[1]);
    let mut missing = 0;
    for (name, (count, errors)) in counts(truth) {
        let seen = whole.entry(name).or_default();
        if seen.0 < count {
            missing += count - seen.0;
            *seen = (count, errors);
        }
    }
    assert_eq!(whole, counts(truth), "called and what the server counted; lost: {lost:?}");
    let counted: f64 =
        lost.iter().filter(|(reason, _)| reason == "reply_without_request").map(|(_, count)| count).sum();
    assert!(missing as f64 <= counted, "{missing} calls are missing; lost: {lost:?}");
    let unfinished: Vec<&Span> = spans.iter().filter(|span| span.outcome != "complete").collect();
    assert!(unfinished.is_empty(), "{} are not complete: {:?}", unfinished.len(), unfinished.first());
    figure(
        &format!("{protocol} requests"),
        &format!("{wanted} served and {} called of {wanted}, {missing} counted as lost", wanted - missing),
    );
    let worst = [("served", &ends[0], truth), ("called", &ends[1], called)].map(|(which, end, truth)| {
        let differences = truth.iter().filter(|(_, class)| class.seconds.len() >= 10).map(|(name, class)| {
            let (theirs, ours) = (median(&class.seconds), median(&end[name].seconds));
            say(&format!("  median of {name:<30} {which}: {:.3} ms, reported {:.3} ms", ours * 1e3, theirs * 1e3));
            if scale() >= 1.0 {
                assert!((ours - theirs).abs() <= 1e-3 + theirs * 0.02, "{which} {name}: {ours} and {theirs}");
            }
            (ours - theirs).abs()
        });
        let differences: Vec<f64> = differences.collect();
        assert!(differences.len() >= 3, "{which}: {truth:?}");
        format!(
            "{which} {:.3} ms of {} classes",
            differences.iter().copied().fold(0.0, f64::max) * 1e3,
            differences.len()
        )
    });
    figure(&format!("{protocol} medians differ by at most"), &worst.join(", "));
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
