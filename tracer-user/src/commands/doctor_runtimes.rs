//! `tracer doctor`: which runtimes the running processes have, and whether their tasks can be distinguished.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use tracer_runtimes::maps::{Maps, name};
use tracer_runtimes::status_view::DetectedRuntime;
use tracer_runtimes::{DetectionState, Extras, recognise, unfollowed};

/// Most runtimes that are listed, most programs of each, and most processes that are looked at closely.
const LINES: usize = 64;
const PROGRAMS: usize = 8;
const PROCESSES: usize = 512;

/// A runtime as some processes have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuntimeLine {
    name: &'static str,
    version: Box<str>,
    /// Label of its state, as in `tracer_runtime_processes{state}`; `not_followed` where there is no way for any version.
    state: &'static str,
    meaning: &'static str,
}

/// Runtimes, each with its processes by program.
#[derive(Debug, Default)]
pub(super) struct Runtimes {
    lines: BTreeMap<RuntimeLine, BTreeMap<String, usize>>,
    /// Processes that were not looked at, because there are too many.
    left_out: usize,
}

impl Runtimes {
    fn add(&mut self, line: RuntimeLine, program: &str) {
        if self.lines.len() >= LINES && !self.lines.contains_key(&line) {
            self.left_out += 1;
            return;
        }
        *self.lines.entry(line).or_default().entry(program.to_owned()).or_default() += 1;
    }
}

/// What runs in a process, if it is a runtime whose requests may share threads.
fn look(pid: u32, maps: &Maps) -> Option<RuntimeLine> {
    if let Some(found) = recognise(pid, Extras::default()) {
        let DetectedRuntime { name, version, state, .. } = DetectedRuntime::of(&found);
        return Some(RuntimeLine { name, version, state: state.name(), meaning: state.meaning() });
    }
    let (name, meaning) = unfollowed(maps)?;
    Some(RuntimeLine { name, version: "".into(), state: "not_followed", meaning })
}

/// Looks at every process.
pub(super) fn find() -> Runtimes {
    let (mut found, mut looked) = (Runtimes::default(), 0);
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Threads of the kernel have no program.
        let Some(maps) = Maps::read(pid).filter(|_| pid != std::process::id()) else { continue };
        looked += 1;
        if looked > PROCESSES {
            found.left_out += 1;
        } else if let Some(line) = look(pid, &maps) {
            found.add(line, &tracer_model::text::printable(name(&maps.exe)));
        }
    }
    found
}

/// One line per runtime.
pub(super) fn text(found: &Runtimes) -> String {
    let mut text = String::from("Runtimes of running processes whose requests may share threads:");
    if found.lines.is_empty() {
        text.push_str(" none found");
    }
    text.push('\n');
    for (line, programs) in &found.lines {
        let mut users: Vec<String> =
            programs.iter().take(PROGRAMS).map(|(program, count)| format!("{program} ({count})")).collect();
        if programs.len() > PROGRAMS {
            users.push(format!("{} more programs", programs.len() - PROGRAMS));
        }
        let space = if line.version.is_empty() { "" } else { " " };
        text.push_str(&format!("  {}{space}{}: {}; in {}\n", line.name, line.version, line.meaning, users.join(", ")));
    }
    if found.left_out > 0 {
        text.push_str(&format!("  {} more processes were not looked at\n", found.left_out));
    }
    text
}

/// The same for programs.
pub(super) fn json(found: &Runtimes) -> serde_json::Value {
    let line = |(line, programs): (&RuntimeLine, &BTreeMap<String, usize>)| {
        json!({
            "runtime": line.name, "version": line.version, "state": line.state, "meaning": line.meaning,
            "distinguished": line.state == DetectionState::Known.name(), "processes": programs,
        })
    };
    found.lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_whose_tasks_are_not_distinguished_are_said() {
        let mut found = Runtimes::default();
        assert!(text(&found).contains("none found"));
        let of = |name, version: &str, state: DetectionState| RuntimeLine {
            name,
            version: version.into(),
            state: state.name(),
            meaning: state.meaning(),
        };
        found.add(of("python", "3.99", DetectionState::UnknownVersion), "uvicorn");
        found.add(of("python", "3.99", DetectionState::UnknownVersion), "uvicorn");
        found.add(of("go", "1.26.1", DetectionState::Known), "shop");
        let meaning = "no";
        found.add(RuntimeLine { name: "java", version: "".into(), state: "not_followed", meaning }, "java");
        let text = text(&found);
        assert!(text.contains("  go 1.26.1: its tasks are distinguished; in shop (1)"), "{text}");
        assert!(
            text.contains("  python 3.99: its tasks are not distinguished: where this version keeps them"),
            "{text}"
        );
        assert!(text.contains("; in uvicorn (2)") && text.contains("  java: no; in java (1)"), "{text}");
        let json = json(&found);
        let distinguished: Vec<&serde_json::Value> =
            json.as_array().unwrap().iter().map(|line| &line["distinguished"]).collect();
        assert_eq!(distinguished, [true, false, false]);
    }

    #[test]
    fn lines_are_bounded() {
        let mut found = Runtimes::default();
        for n in 0..2 * LINES {
            let version = n.to_string().into();
            found.add(RuntimeLine { name: "go", version, state: "known", meaning: "" }, "a");
        }
        assert_eq!((found.lines.len(), found.left_out), (LINES, LINES));
    }
}
