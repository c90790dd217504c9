//! `cargo xtask bench --instructions BASE`: what the agent computes for a span, counted in instructions.
//!
//! It builds the agent at BASE and as it stands here, replays recordings through both under Valgrind's Callgrind, and prints
//! the instructions that each spends on a span, by phase, with the ratio. A replay runs everything between the rings and the
//! sinks, as a live agent does; it has no rings, no policies to write and nothing in `/proc` to read. An instruction count
//! ignores caches, but neither a busy machine nor a slow one changes it.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Error, Result, bail};
use tracer_tests::recording::Recording;

use crate::differential::{self, Optimised};
use crate::shell;

/// A phase of the agent's work: its name, and the functions (ends of their paths) that make it up with all they call, then
/// those whose share belongs to another phase.
struct Phase {
    name: &'static str,
    with: &'static [&'static str],
    without: &'static [&'static str],
}

const PARSER: &str = "connection_parser::ConnectionParser::bytes";
const ENGINE: &str = "transactions::engine::Engine::record";
const REPORT: &str = "engine::Engine>::report";
const DECODE: &str = "decode::content";
const GIVE: &str = "pipeline::Pipeline::give";
const RECORD: &str = "pipeline::Pipeline::record";
const TICK: &str = "pipeline::Pipeline::tick";
/// The end of a recording: what is open is reported.
const FINISH: &str = "pipeline::Pipeline::finish";

const PHASES: [Phase; 7] = [
    Phase { name: "all", with: &[RECORD, TICK, FINISH], without: &[] },
    Phase { name: "decode", with: &[DECODE], without: &[] },
    Phase { name: "protocols", with: &[PARSER], without: &[] },
    Phase { name: "transactions", with: &[ENGINE], without: &[PARSER] },
    Phase { name: "report", with: &[REPORT], without: &[] },
    Phase { name: "classes, sinks", with: &[GIVE], without: &[] },
    Phase { name: "allocations", with: &["__rustc::__rust_alloc"], without: &[] },
];

/// What one build spends on one recording.
struct Counted {
    /// Spans that it found.
    spans: u64,
    /// Instructions of each function with all it calls.
    functions: HashMap<String, u64>,
}

impl Counted {
    /// Instructions of a phase per span.
    fn of(&self, phase: &Phase) -> f64 {
        let sum = |names: &[&str]| -> u64 { names.iter().map(|name| self.function(name)).sum() };
        sum(phase.with).saturating_sub(sum(phase.without)) as f64 / self.spans.max(1) as f64
    }

    fn function(&self, name: &str) -> u64 {
        // A function that calls itself has an entry for each depth, the outermost the largest.
        let found = self.functions.iter().filter(|(path, _)| path.trim_end_matches("'2").ends_with(name));
        found.map(|(_, count)| *count).max().unwrap_or_default()
    }
}

/// Counts, and prints a table.
pub(super) fn run(base: &str, recordings: &Path) -> Result<()> {
    for program in ["valgrind", "callgrind_annotate"] {
        if shell::find(program).is_none() {
            bail!("{program} is not installed: install your distribution's package valgrind");
        }
    }
    let dir = shell::root().join(recordings);
    let files = differential::recordings(&dir)?;
    if files.is_empty() {
        bail!("{} has no recordings", dir.display());
    }
    let place = shell::target_dir()?.join("differential");
    let builds =
        [differential::base_binary(&place, base, Optimised::Yes)?, differential::own_binary(&place, Optimised::Yes)?];
    let work =
        tempfile::Builder::new().prefix("tracer-instructions-").tempdir().context("cannot create a directory")?;
    shell::print(format!("Instructions a span: at {base} → here (ratio).\n"));
    shell::print(format!("| recording | spans | {} |", PHASES.map(|phase| phase.name).join(" | ")));
    shell::print(format!("| --- | ---: |{}", " ---: |".repeat(PHASES.len())));
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let plain = differential::unpacked(file, work.path())?;
        // Fails here, with words, if the format's version is another.
        Recording::read(&plain).map_err(Error::msg)?;
        let mut counted = Vec::new();
        for build in &builds {
            counted.push(count(build, &plain, work.path()).with_context(|| name.clone())?);
        }
        let [before, after] = counted.as_slice() else { continue };
        let cells = PHASES.map(|phase| {
            let (before, after) = (before.of(&phase), after.of(&phase));
            format!("{before:.0} → {after:.0} ({:.3})", after / before)
        });
        shell::print(format!(
            "| {} | {} | {} |",
            name.split('.').next().unwrap_or(&name),
            after.spans,
            cells.join(" | ")
        ));
    }
    Ok(())
}

/// Replays a recording under Callgrind.
fn count(build: &Path, recording: &Path, work: &Path) -> Result<Counted> {
    let counts = work.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", counts.display()));
    command.arg(build).arg("replay").arg("--json").arg(recording);
    let spans = spans(&shell::output(&mut command)?)?;
    let mut command = Command::new("callgrind_annotate");
    command.args(["--inclusive=yes", "--threshold=100", "--auto=no", "--show-percs=no"]).arg(&counts);
    Ok(Counted { spans, functions: functions(&shell::output(&mut command)?) })
}

/// Sum of the spans of all classes that `tracer replay --json` lists.
fn spans(answer: &str) -> Result<u64> {
    let answer: serde_json::Value = serde_json::from_str(answer).context("the replay's answer is no JSON")?;
    let classes = answer["classes"].as_array().context("the replay's answer has no classes")?;
    Ok(classes.iter().filter_map(|class| class["count"].as_u64()).sum())
}

/// Lines of `callgrind_annotate`: `1,234  file:function [object]`.
fn functions(text: &str) -> HashMap<String, u64> {
    let line = |line: &str| {
        let (count, rest) = line.trim_start().split_once(' ')?;
        let count: u64 = count.replace(',', "").parse().ok()?;
        // The file is unknown (`???`) without debug information; a path of Rust has colons of its own.
        let (_, function) = rest.trim_start().split_once(':')?;
        let function = function.rsplit_once(" [").map_or(function, |(function, _)| function);
        Some((function.to_owned(), count))
    };
    let mut functions = HashMap::new();
    for (function, count) in text.lines().filter_map(line) {
        let known: &mut u64 = functions.entry(function).or_default();
        *known = count.max(*known);
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_phase_are_found_by_the_end_of_their_paths() {
        let text = "1,390,309,930 (100.0%)  PROGRAM TOTALS\n\
                    911,025,244  ???:tracer_user::pipeline::Pipeline::record [/tmp/tracer]\n  \
                    9,025,244  ???:tracer_user::pipeline::Pipeline::tick [/tmp/tracer]\n  \
                    69,352,986  ???:tracer_transactions::report::<impl tracer_transactions::engine::Engine>::report [/tmp/tracer]\n  \
                    3,100  ???:tracer_transactions::classes::Pipeline::recorded [/tmp/tracer]\n";
        let counted = Counted { spans: 1000, functions: functions(text) };
        assert_eq!(counted.of(&PHASES[0]).round() as u64, 920_050);
        assert_eq!(counted.function(REPORT), 69_352_986);
        assert_eq!(counted.function(PARSER), 0);
    }

    #[test]
    fn spans_are_those_of_all_classes() {
        assert_eq!(spans(r#"{"classes":[{"count":3,"errors":0},{"count":4}]}"#).ok(), Some(7));
        assert!(spans("{}").is_err());
    }
}
