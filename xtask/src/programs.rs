//! What kernels make of the BPF programs: verified instructions, machine code, load time; compared with the committed
//! table `xtask/programs.toml`, which `cargo xtask vm --load --record` rewrites.
//!
//! The counts depend on the kernel's verifier, so each kernel has a section. A program that grows much costs start-up
//! time on every host, and the next kernel may refuse one that nears a million.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cross;
use crate::shell::{self, Root};

/// Acceptable growth: a factor, and a number of instructions below which the factor means nothing.
const FACTOR: f64 = 1.25;
const SMALL: u64 = 500;
/// The verifier refuses at a million; other kernels walk up to half as much again.
const MOST: u64 = 500_000;
/// Programs that may take more. `header` is loaded on request only and refused by name elsewhere; kernels before 6.4 walk
/// it twice, because they track no precise values across calls (6.12: 410 000).
const MORE: &[(&str, u64)] = &[("header", 900_000)];

const HEAD: &str = "\
# What each kernel's verifier made of the programs: instructions walked, bytes of machine code, and (for information,
# under emulation) milliseconds to load. Written by `cargo xtask vm --load --record`; compared by every `cargo xtask vm`
# and, for the running kernel, by `cargo xtask test`.
";

/// One program in one kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    /// Function in the object.
    pub(crate) name: String,
    /// Instructions the verifier walked.
    pub(crate) verified: u64,
    /// Bytes of machine code; 0 if interpreted.
    pub(crate) jited: u64,
    /// Milliseconds loading took.
    pub(crate) load_ms: f64,
}

/// Attached programs, from the output of `tracer doctor --json`.
pub(crate) fn of(doctor: &Value) -> Vec<Program> {
    let all = doctor["programs"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .filter(|program| program["attached"] == true)
        .filter_map(|program| {
            Some(Program {
                name: program["program"].as_str()?.to_owned(),
                verified: program["verified_instructions"].as_u64()?,
                jited: program["jited_bytes"].as_u64().unwrap_or(0),
                load_ms: program["load_ms"].as_f64().unwrap_or(0.0),
            })
        })
        .collect()
}

/// Programs on a stack that all threads of a CPU share although they can run twice on it: what the agent refused to attach
/// at a uprobe for that, and what several programs tail-call.
pub(crate) fn on_shared_stacks(doctor: &Value) -> Vec<String> {
    let all = doctor["programs"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .filter(|program| program["private_stack"] == true)
        .filter(|program| program["attached"] == false || program["when"] == "called")
        .map(|program| {
            format!("{}: the kernel gave it a private stack", program["program"].as_str().unwrap_or_default())
        })
        .collect()
}

/// The record of one kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Section {
    version: String,
    programs: Vec<Program>,
}

/// The committed table, by the matrix's kernel names.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Table(BTreeMap<String, Section>);

impl Table {
    /// Reads the committed table; empty if there is none yet.
    pub(crate) fn read() -> Result<Self> {
        let path = path();
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("{}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse().context("not TOML")?;
        let mut sections = BTreeMap::new();
        for (kernel, section) in table {
            let mut found = Section::default();
            for (name, value) in section.as_table().with_context(|| format!("{kernel} is no section"))? {
                if name == "version" {
                    value.as_str().unwrap_or_default().clone_into(&mut found.version);
                    continue;
                }
                let number =
                    |key: &str| value.get(key).and_then(toml::Value::as_integer).and_then(|n| n.try_into().ok());
                let (Some(verified), Some(jited)) = (number("verified"), number("jited")) else {
                    bail!("{kernel}: {name} needs `verified` and `jited`");
                };
                let load_ms = number("load_ms").unwrap_or(0u64) as f64;
                found.programs.push(Program { name: name.clone(), verified, jited, load_ms });
            }
            sections.insert(kernel, found);
        }
        Ok(Self(sections))
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (kernel, section) in &self.0 {
            text.push_str(&format!("\n[\"{kernel}\"]\nversion = \"{}\"\n", section.version));
            for Program { name, verified, jited, load_ms } in &section.programs {
                let load_ms = load_ms.round();
                text.push_str(&format!("{name} = {{ verified = {verified}, jited = {jited}, load_ms = {load_ms} }}\n"));
            }
        }
        text
    }

    /// Records the programs' current figures on `kernel`.
    pub(crate) fn record(&mut self, kernel: &str, version: &str, programs: &[Program]) {
        let mut programs = programs.to_vec();
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        self.0.insert(kernel.to_owned(), Section { version: version.to_owned(), programs });
    }

    /// Writes the committed file.
    pub(crate) fn write(&self) -> Result<()> {
        fs::write(path(), self.text()).with_context(|| format!("cannot write {}", path().display()))
    }

    /// The record of a kernel in the matrix.
    pub(crate) fn of(&self, kernel: &str) -> Option<&Section> {
        self.0.get(kernel)
    }

    /// The record for a kernel that may not be in the matrix: the section of the same series (6.18), else each
    /// program's largest count anywhere.
    fn fitting(&self, release: &str, processor: &str) -> Section {
        let other = |kernel: &str| kernel.ends_with("-arm64") != (processor == cross::RUST);
        let sections = || self.0.iter().filter(|(kernel, _)| !other(kernel)).map(|(_, section)| section);
        let series = |text: &str| text.split(['.', '-', '+']).take(2).map(str::to_owned).collect::<Vec<_>>();
        if let Some(same) = sections().find(|section| series(&section.version) == series(release)) {
            return same.clone();
        }
        let mut largest: BTreeMap<&str, &Program> = BTreeMap::new();
        for program in sections().flat_map(|section| &section.programs) {
            let entry = largest.entry(&program.name).or_insert(program);
            if program.verified > entry.verified {
                *entry = program;
            }
        }
        Section { version: "of all kernels".into(), programs: largest.into_values().cloned().collect() }
    }
}

fn path() -> PathBuf {
    shell::root().join("xtask/programs.toml")
}

/// Compares `now` with the record: returns a readable table, and the reasons why it is not acceptable.
pub(crate) fn compare(recorded: Option<&Section>, now: &[Program]) -> (String, Vec<String>) {
    let mut table = String::from("program           verified   recorded   change    bytes     load\n");
    let mut faults = Vec::new();
    for program in now {
        let Program { name, verified, jited, load_ms } = program;
        let before = recorded.and_then(|s| s.programs.iter().find(|p| p.name == *name)).map(|p| p.verified);
        let (was, change) = match before {
            Some(before) => (before.to_string(), format!("{:+.1} %", change(before, *verified))),
            None => ("-".into(), "new".into()),
        };
        table.push_str(&format!("{name:<15} {verified:>10} {was:>10} {change:>8} {jited:>8} {load_ms:>5.0} ms\n"));
        if let Some(before) = before.filter(|before| grew(*before, *verified)) {
            faults.push(format!("{name}: {verified} instructions verified, {before} recorded"));
        }
        let most = MORE.iter().find(|(more, _)| more == name).map_or(MOST, |(_, most)| *most);
        if *verified > most {
            faults.push(format!("{name}: {verified} instructions verified, of a million that kernels allow"));
        }
    }
    (table, faults)
}

fn change(before: u64, now: u64) -> f64 {
    100.0 * (now as f64 / before.max(1) as f64 - 1.0)
}

fn grew(before: u64, now: u64) -> bool {
    now as f64 > before as f64 * FACTOR && now > before + SMALL
}

/// Compares the running kernel's counts, with the release binary.
pub(crate) fn here(root: Root) -> Result<()> {
    let binary = shell::target_dir()?.join("release/tracer");
    let mut command = root.command(&binary);
    let text = shell::output(command.args(["doctor", "--json"]))?;
    let doctor: Value = serde_json::from_str(&text).context("`tracer doctor --json` printed something else")?;
    let release = doctor["kernel"].as_str().unwrap_or_default();
    let now = of(&doctor);
    if now.is_empty() {
        bail!("`tracer doctor --json` names no program: {text}");
    }
    let section = Table::read()?.fitting(release, std::env::consts::ARCH);
    let (table, mut faults) = compare(Some(&section), &now);
    faults.extend(on_shared_stacks(&doctor));
    shell::print(format!("programs on Linux {release}, recorded: {}\n{table}", section.version));
    if !faults.is_empty() {
        bail!("{}; if that is meant: `cargo xtask vm --load --record`", faults.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, verified: u64) -> Program {
        Program { name: name.into(), verified, jited: 2 * verified, load_ms: 3.0 }
    }

    fn table() -> Table {
        let mut table = Table::default();
        table.record("6.1", "6.1.0-56-cloud-amd64", &[program("tx", 110_000), program("fork", 90)]);
        table.record("stable", "7.2.13+deb14-cloud-amd64", &[program("tx", 80_000)]);
        table.record("6.12-arm64", "6.12.117+deb12-cloud-arm64", &[program("tx", 500_000)]);
        table
    }

    #[test]
    fn the_table_reads_back() {
        let table = table();
        assert_eq!(Table::parse(&table.text()).expect("our own text"), table);
        assert!(Table::parse("[\"6.1\"]\ntx = 7\n").is_err());
        let committed = Table::read().expect("the committed table");
        for kernel in ["6.1", "6.12", "6.18", "stable", "candidate"] {
            assert!(committed.of(kernel).is_some_and(|section| !section.programs.is_empty()), "{kernel}");
        }
    }

    #[test]
    fn growth_is_named_and_small_changes_are_not() {
        let table = table();
        let faults = |now: &[Program]| compare(table.of("6.1"), now).1;
        assert_eq!(faults(&[program("tx", 120_000), program("fork", 400), program("new", 7)]), Vec::<String>::new());
        let grown = faults(&[program("tx", 140_000), program("fork", 700)]);
        assert!(grown.len() == 2 && grown[0].starts_with("tx: 140000"), "{grown:?}");
        let near = compare(None, &[program("new", 600_000)]).1;
        assert!(near.len() == 1 && near[0].contains("a million"), "{near:?}");
    }

    #[test]
    fn a_kernel_outside_of_the_matrix_is_compared_with_its_series_or_the_worst() {
        let table = table();
        let fitting = |release: &str, processor: &str| table.fitting(release, processor).programs;
        assert_eq!(fitting("7.2.99-vendor", "x86_64"), [program("tx", 80_000)]);
        assert_eq!(fitting("6.12.9", "x86_64"), [program("fork", 90), program("tx", 110_000)]);
        assert_eq!(fitting("6.12.9", "aarch64"), [program("tx", 500_000)]);
    }

    #[test]
    fn what_doctor_says_is_understood() {
        let doctor = serde_json::json!({ "programs": [
            { "program": "tx", "attached": true, "verified_instructions": 5, "jited_bytes": 9, "load_ms": 1.5 },
            { "program": "rx", "attached": false, "verified_instructions": null, "jited_bytes": null, "load_ms": 0.0 },
        ] });
        assert_eq!(of(&doctor), [Program { name: "tx".into(), verified: 5, jited: 9, load_ms: 1.5 }]);
        assert_eq!(of(&Value::Null), []);
        assert_eq!(on_shared_stacks(&doctor), Vec::<String>::new());
    }

    #[test]
    fn a_program_on_a_shared_stack_is_a_fault_where_it_can_run_twice() {
        let program = |name: &str, when: &str, attached: bool, private: Option<bool>| {
            serde_json::json!({
                "program": name, "when": when, "attached": attached, "private_stack": private,
            })
        };
        let doctor = serde_json::json!({ "programs": [
            program("off_cpu", "needed", true, Some(true)),
            program("node_timers", "needed", false, Some(true)),
            program("frames_tx", "called", true, Some(true)),
            program("frames_rx", "called", true, Some(false)),
            program("go_ready", "needed", true, None),
        ] });
        let faults = on_shared_stacks(&doctor);
        assert!(
            faults.len() == 2 && faults[0].starts_with("node_timers") && faults[1].starts_with("frames_tx"),
            "{faults:?}"
        );
    }
}
