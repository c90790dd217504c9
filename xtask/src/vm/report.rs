//! The guests' results as tables: kernel × feature, and kernel × truth.
//!
//! The last result of every kernel stays beside the build, so that separate runs of single kernels can make up the
//! tables of docs/kernels.md; a row from an older build than the newest is marked.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::guest::Boot;
use super::kernels::SOURCES;
use super::machine::Machine;
use crate::programs;

/// One kernel's result.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// The kernel's name in the matrix.
    pub(super) kernel: String,
    /// Its own version.
    pub(super) version: String,
    /// The output of `tracer doctor --json`.
    pub(super) doctor: Value,
    /// Figures the tests measured, by name.
    pub(super) figures: BTreeMap<String, String>,
    /// Tests that passed, and all that should run; whether the run was full.
    pub(super) passed: usize,
    pub(super) tests: usize,
    pub(super) full: bool,
    /// Why the first try was discarded, if there was a second.
    pub(super) retried: Option<String>,
    /// Refusal was expected, and happened.
    pub(super) refused: bool,
    /// Everything met its expectation.
    pub(super) good: bool,
    /// Seconds the guest ran.
    pub(super) seconds: f64,
    /// Identifies the build.
    pub(super) build: String,
}

impl Outcome {
    /// The outcome of a finished boot.
    pub(super) fn new(kernel: &str, package: &str, boot: &Boot) -> Self {
        Self {
            kernel: kernel.to_owned(),
            version: if boot.version.is_empty() { package.to_owned() } else { boot.version.clone() },
            doctor: boot.doctor.clone(),
            figures: boot.figures.clone(),
            passed: boot.tests.iter().filter(|(_, ok)| *ok).count(),
            seconds: boot.took.as_secs_f64(),
            ..Self::default()
        }
    }

    fn json(&self) -> Value {
        json!({
            "kernel": self.kernel, "version": self.version, "doctor": self.doctor, "figures": self.figures,
            "passed": self.passed, "tests": self.tests, "full": self.full, "retried": self.retried,
            "refused": self.refused, "good": self.good, "seconds": self.seconds, "build": self.build,
        })
    }

    fn parse(value: &Value) -> Option<Self> {
        let text = |key: &str| Some(value[key].as_str()?.to_owned());
        let number = |key: &str| Some(value[key].as_u64()? as usize);
        let figures = value["figures"].as_object()?.iter();
        Some(Self {
            kernel: text("kernel")?,
            version: text("version")?,
            doctor: value["doctor"].clone(),
            figures: figures.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect(),
            passed: number("passed")?,
            tests: number("tests")?,
            full: value["full"].as_bool()?,
            retried: text("retried"),
            refused: value["refused"].as_bool()?,
            good: value["good"].as_bool()?,
            seconds: value["seconds"].as_f64()?,
            build: text("build")?,
        })
    }

    /// Stores it, unless it is of a quick run and there is a full run of the same build.
    pub(super) fn keep(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        if !self.full && kept(dir, &self.kernel).is_some_and(|old| old.full && old.build == self.build) {
            return Ok(());
        }
        let path = dir.join(format!("{}.json", self.kernel));
        fs::write(&path, self.json().to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn kept(dir: &Path, kernel: &str) -> Option<Outcome> {
    let text = fs::read_to_string(dir.join(format!("{kernel}.json"))).ok()?;
    Outcome::parse(&serde_json::from_str(&text).ok()?)
}

/// The last results of every kernel, oldest kernel first.
pub(super) fn all(dir: &Path) -> Vec<Outcome> {
    let names = [Machine::X86, Machine::Arm64].into_iter().flat_map(|m| SOURCES.iter().map(move |s| m.kernel(s.name)));
    names.filter_map(|name| kept(dir, &name)).collect()
}

/// Both tables, and what limits a feature that is not full.
pub(super) fn tables(outcomes: &[Outcome], build: &str) -> String {
    format!("{}\n{}\n{}", features(outcomes), notes(outcomes), truths(outcomes, build))
}

/// One feature of a kernel, as reported by doctor.
fn feature<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a Value> {
    outcome.doctor["features"].as_array()?.iter().find(|feature| feature["name"] == name)
}

/// Rows are kernels, columns features.
fn features(outcomes: &[Outcome]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for outcome in outcomes.iter().filter(|o| !o.refused) {
        let all = outcome.doctor["features"].as_array().into_iter().flatten();
        for name in all.filter_map(|feature| feature["name"].as_str()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let mut table = format!("| kernel | {} |\n| --- |{}\n", names.join(" | "), " --- |".repeat(names.len()));
    for outcome in outcomes {
        let cells = names.iter().map(|name| match feature(outcome, name) {
            _ if outcome.refused => "refused",
            Some(feature) => feature["state"].as_str().unwrap_or("?"),
            None => "–",
        });
        table.push_str(&format!("| {} | {} |\n", outcome.kernel, cells.collect::<Vec<_>>().join(" | ")));
    }
    table
}

/// The explanation of every word other than `full`, and where it applies.
fn notes(outcomes: &[Outcome]) -> String {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for outcome in outcomes {
        for feature in outcome.doctor["features"].as_array().into_iter().flatten() {
            let word = |key: &str| feature[key].as_str().unwrap_or_default();
            if word("state") == "full" {
                continue;
            }
            let note = format!("{} {}: {}; so {}", word("name"), word("state"), word("detail"), word("consequence"));
            match found.iter_mut().find(|(text, _)| *text == note) {
                Some((_, kernels)) => kernels.push(&outcome.kernel),
                None => found.push((note, vec![&outcome.kernel])),
            }
        }
    }
    let everywhere = outcomes.iter().filter(|o| !o.refused).count();
    found.iter().fold(String::new(), |text, (note, kernels)| {
        let place = if kernels.len() == everywhere { "everywhere".into() } else { kernels.join(", ") };
        text + &format!("- {place}: {note}.\n")
    })
}

/// Columns of the second table: heading, and the test's figure.
const TRUTHS: &[(&str, &[&str])] = &[
    ("access log: requests right", &["requests"]),
    ("every way to ask and answer: right", &["edges"]),
    ("socket operations: ends (tcp4 / tcp6 / unix)", &["ends tcp4", "ends tcp6", "ends unix"]),
    ("Redis: commands right", &["redis commands"]),
    ("chains whole", &["whole chains"]),
    ("classes: requests counted, CPU against the threads' own", &["classes"]),
    ("capture ratio", &["capture ratio"]),
    ("flame graph: own function", &["flame alpha", "flame beta"]),
    ("left after TERM / INT / KILL", &["left after signal 15", "left after signal 2", "left after signal 9"]),
];

/// Rows are kernels, columns figures measured there.
fn truths(outcomes: &[Outcome], build: &str) -> String {
    let measured = |names: &[&str]| names.iter().any(|n| outcomes.iter().any(|o| o.figures.contains_key(*n)));
    let columns: Vec<_> = TRUTHS.iter().filter(|(_, names)| measured(names)).collect();
    let heads = columns.iter().fold(String::new(), |text, (head, _)| text + &format!(" {head} |"));
    let mut table = format!(
        "| kernel | version | tests passed |{heads} most instructions verified | load | guest |\n| --- | --- | --- |{} ---: | ---: | ---: |\n",
        " --- |".repeat(columns.len())
    );
    for outcome in outcomes {
        let cell = |names: &[&str]| {
            let values: Vec<&str> = names.iter().filter_map(|n| outcome.figures.get(*n).map(String::as_str)).collect();
            if values.is_empty() { "–".to_owned() } else { values.join(" / ") }
        };
        let cells = columns.iter().fold(String::new(), |text, (_, names)| text + &format!(" {} |", cell(names)));
        let programs = programs::of(&outcome.doctor);
        let most = programs.iter().max_by_key(|p| p.verified).map(|p| format!("{} ({})", p.verified, p.name));
        let load: f64 = programs.iter().map(|p| p.load_ms).sum();
        let older = if outcome.build == build { "" } else { " (an earlier build)" };
        table.push_str(&format!(
            "| {} | {}{older} | {} |{cells} {} | {} | {:.0} s |\n",
            outcome.kernel,
            outcome.version,
            tests(outcome),
            most.unwrap_or_else(|| "–".into()),
            if programs.is_empty() { "–".into() } else { format!("{:.1} s", load / 1e3) },
            outcome.seconds
        ));
    }
    table
}

fn tests(outcome: &Outcome) -> String {
    let again = outcome.retried.as_ref().map_or_else(String::new, |why| {
        // Keep it a table cell, not a log.
        let why: String = why.chars().take(80).map(|c| if c == '|' || c.is_control() { ' ' } else { c }).collect();
        format!(", second try ({})", why.trim())
    });
    if outcome.refused {
        return format!("{}{again}", if outcome.good { "refused, as it should be" } else { "not refused" });
    }
    if outcome.tests == 0 {
        return format!("–{again}");
    }
    let kind = if outcome.full { "" } else { " quick ones" };
    format!("{} of {}{kind}{again}", outcome.passed, outcome.tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kernel: &str, state: &str) -> Outcome {
        Outcome {
            kernel: kernel.into(),
            version: format!("{kernel}.1"),
            doctor: json!({
                "features": [{ "name": "socket hooks", "state": state, "detail": "exits", "consequence": "x", "remedy": "" }],
                "programs": [{ "program": "tx", "attached": true, "verified_instructions": 7, "load_ms": 1500.0 }],
            }),
            figures: [("requests".to_owned(), "9 of 9".to_owned())].into(),
            passed: 3,
            tests: 3,
            good: true,
            build: "b".into(),
            ..Outcome::default()
        }
    }

    #[test]
    fn tables_say_what_was_found_and_where() {
        let refused =
            Outcome { refused: true, retried: Some("its kernel panicked|\n".into()), ..outcome("5.10", "missing") };
        let old = Outcome { build: "a".into(), full: true, ..outcome("6.1", "degraded") };
        let text = tables(&[refused, old, outcome("6.12", "full")], "b");
        for line in [
            "| kernel | socket hooks |",
            "| 5.10 | refused |",
            "| 6.1 | degraded |",
            "- 6.1: socket hooks degraded: exits; so x.",
            "| 5.10 | 5.10.1 | refused, as it should be, second try (its kernel panicked) | 9 of 9 | 7 (tx) | 1.5 s | 0 s |",
            "| 6.1 | 6.1.1 (an earlier build) | 3 of 3 | 9 of 9 | 7 (tx) | 1.5 s | 0 s |",
            "| 6.12 | 6.12.1 | 3 of 3 quick ones | 9 of 9 | 7 (tx) | 1.5 s | 0 s |",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line}\n{text}");
        }
    }

    #[test]
    fn results_are_kept_and_a_quick_one_does_not_replace_a_full_one_of_the_same_build() {
        let dir = tempfile::tempdir().expect("dir");
        let full = Outcome { full: true, ..outcome("6.1", "degraded") };
        full.keep(dir.path()).expect("kept");
        outcome("6.1", "full").keep(dir.path()).expect("kept");
        assert_eq!(all(dir.path()), std::slice::from_ref(&full));
        let newer = Outcome { build: "c".into(), ..outcome("6.1", "full") };
        newer.keep(dir.path()).expect("kept");
        assert_eq!(all(dir.path()), [newer]);
    }
}
