//! `cargo xtask vm`: tests the agent on other kernels, in guests: Debian's kernels, this build's binary and truth
//! tests.
//!
//! Everything is unpacked below the build directory; this machine's package configuration stays untouched. Guests are
//! emulated: their time measurements mean nothing, but their events are the kernel's own.

pub(crate) mod archive;
mod guest;
mod image;
mod instruction_clock;
mod kernels;
mod machine;
mod pair;
mod preempted;
mod report;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::kernel_tests::Selection;
use crate::packages::{self, Need};
use crate::programs::{self, Table};
use crate::{build_ebpf, doc_tables, shell};
use guest::Boot;
use kernels::{SOURCES, Source};
use machine::{Built, Machine};
use report::Outcome;

pub(crate) use instruction_clock::{NANOS_AN_INSTRUCTION, run as figures_by_instructions};

/// `cargo xtask vm`.
#[derive(Args)]
pub(crate) struct Options {
    /// Kernels to boot, by name: 5.10, 6.1, 6.12, 6.18, stable, candidate. All when not given.
    #[arg(long, value_delimiter = ',')]
    kernel: Vec<String>,
    /// Processor of the guests.
    #[arg(long, value_enum, default_value = "x86_64")]
    arch: Machine,
    /// Every test for guests (the default).
    #[arg(long, conflicts_with_all = ["smoke", "load"])]
    full: bool,
    /// Only the quick tests.
    #[arg(long, conflicts_with = "load")]
    smoke: bool,
    /// No tests: only load the programs and run their self-test.
    #[arg(long)]
    load: bool,
    /// Instead: boot these two kernels at once, joined by a wire, an agent and a program in each; every request that
    /// crosses the wire must be linked to the call that caused it.
    #[arg(long, value_delimiter = ',', num_args = 0..=2, default_missing_value = "6.1,6.12",
          conflicts_with_all = ["smoke", "load", "full", "kernel", "arch", "test", "record"])]
    pair: Option<Vec<String>>,
    /// Instead: boot these kernels (6.18 if none is named) with this kind of preemption, and load probes of every kind for
    /// `--minutes`: nothing may go wrong in the kernel, and every request must be counted.
    #[arg(long, value_enum, value_name = "KIND",
          conflicts_with_all = ["smoke", "load", "full", "pair", "arch", "test", "record", "docs"])]
    preempt: Option<preempted::Kind>,
    /// How long `--preempt` loads them.
    #[arg(long, default_value_t = 60, requires = "preempt")]
    minutes: u64,
    /// These tests instead, as `file:filter` (cpu:, redis:commands); the result is not kept for docs/kernels.md.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["smoke", "load", "full"])]
    test: Vec<String>,
    /// More words for the guests' kernel command line.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Record these kernels' figures of the programs in xtask/programs.toml, instead of comparing with it.
    #[arg(long)]
    record: bool,
    /// Write the tables into docs/kernels.md: the last result of every kernel.
    #[arg(long)]
    docs: bool,
}

/// Kernels that tracing refuses; the tests there check the refusal.
const REFUSED: &[&str] = &["5.10"];
/// Most time for one guest: on a busy host all tests take more than ten minutes, and each has its own limit.
const LIMIT: Duration = Duration::from_secs(1500);
/// Most time for one test in it.
const TEST_LIMIT: Duration = Duration::from_secs(300);
/// Share of the usual load that tests generate in a guest.
const SCALE: &str = "0.05";
/// Tests of a quick run, `file:filter`.
const SMOKE: &[&str] = &["access_log:every_logged", "edges:every_way", "matrix:tcp_over_ipv4", "queues:"];
/// Kernels without the newer hooks: emulated, they take a minute or more to verify the substitute programs at each
/// start of an agent; and what a quick run leaves out there.
const SLOW: &[&str] = &["6.1"];
const SLOW_WITHOUT: &str = "queues:";
/// Additional tests of a full run.
const FULL: &[&str] = &[
    "matrix:",
    "cpu:",
    "flame:",
    "links:nginx",
    "lifecycle:signals",
    "log_lines:lines_of_a_c",
    "redis:commands",
    "doctor:",
];
/// C programs of the tests, compiled here.
const WORKLOADS: &[&str] = &["burn", "declared", "log_lines", "matrix", "origin", "storm"];

impl Options {
    /// A quick run of these kernels.
    pub(crate) fn smoke_of(kernel: Vec<String>) -> Self {
        Self {
            kernel,
            arch: Machine::X86,
            full: false,
            smoke: true,
            load: false,
            pair: None,
            preempt: None,
            minutes: 0,
            test: Vec::new(),
            append: String::new(),
            record: false,
            docs: false,
        }
    }
}

/// Guests with everything they need: nothing is compiled from here on.
pub(crate) struct Guests {
    options: Options,
    chosen: Vec<&'static Source>,
    tests: Vec<String>,
    parts: Parts,
}

/// Boots every requested kernel, prints the table, fails if one fell short.
pub(crate) fn run(way: Option<Way>, options: Options) -> Result<()> {
    Guests::prepare(way, options)?.run()
}

impl Guests {
    /// Installs packages, builds the agent and the tests, and makes the disk.
    pub(crate) fn prepare(way: Option<Way>, options: Options) -> Result<Self> {
        let machine = options.arch;
        let offered: Vec<&Source> = SOURCES.iter().filter(|s| machine == Machine::X86 || s.arm64).collect();
        let default = if options.preempt.is_some() { vec![preempted::KERNEL.to_owned()] } else { Vec::new() };
        let named = options.pair.as_ref().unwrap_or(&options.kernel);
        let named = if named.is_empty() { &default } else { named };
        if let Some(unknown) = named.iter().find(|k| !offered.iter().any(|s| s.name == **k)) {
            let names: Vec<&str> = offered.iter().map(|s| s.name).collect();
            bail!("no kernel '{unknown}' is known for this processor; expected some of {}", names.join(", "));
        }
        let chosen: Vec<&Source> =
            offered.into_iter().filter(|s| named.is_empty() || named.iter().any(|k| k == s.name)).collect();
        packages::install(&[Need::Guests])?;
        build_ebpf::ready(way)?;
        let tests = tests(&options);
        let of_tests = tests.iter().filter_map(|test| test.split_once(':')).map(|(file, _)| file);
        let named: BTreeSet<&str> = match (&options.pair, options.preempt) {
            (Some(_), _) => [pair::FILE].into(),
            (_, Some(_)) => [preempted::FILE].into(),
            _ => of_tests.collect(),
        };
        let names = named.into_iter().map(str::to_owned).collect();
        let built = machine.build(way, &Selection::Files { names, and_library: false })?;
        let base = shell::target_dir()?.join(machine.dir());
        fs::create_dir_all(&base).with_context(|| format!("cannot create {}", base.display()))?;
        let qemu = image::Qemu::ready(&base, machine)?;
        let root = image::root(&base, machine)?;
        let mut files = files(&base, &built)?;
        if options.preempt.is_some() {
            files.extend(preempted::files(&base)?);
        }
        let parts = Parts { base, qemu, root, files, append: options.append.clone() };
        Ok(Self { options, chosen, tests, parts })
    }

    /// Boots them.
    pub(crate) fn run(self) -> Result<()> {
        let Self { options, chosen, tests, parts } = self;
        let machine = options.arch;
        if options.pair.is_some() {
            return pair::run(&parts, machine, &chosen, options.docs);
        }
        if let Some(kind) = options.preempt {
            return preempted::run(&parts, &chosen, kind, options.minutes);
        }
        // Of all processors together, because one table shows them.
        let results = shell::target_dir()?.join(Machine::X86.dir()).join("results");
        let build = fingerprint()?;
        let mut recorded = Table::read()?;
        let mut failed = Vec::new();
        let mut outcomes = Vec::new();
        let left_out = |source: &Source, test: &str| {
            REFUSED.contains(&source.name) || (options.smoke && SLOW.contains(&source.name) && test == SLOW_WITHOUT)
        };
        let wanted =
            |source: &Source| -> Vec<String> { tests.iter().filter(|test| !left_out(source, test)).cloned().collect() };
        // A guest keeps one core busy; whole sets of tests need the machine to themselves.
        let alone = !(options.smoke || options.load);
        let together = if alone { 1 } else { std::thread::available_parallelism().map_or(1, std::num::NonZero::get) };
        let mut first = Vec::new();
        for some in chosen.chunks(together) {
            let images = some.iter().map(|source| kernels::image(source, machine, &parts.base));
            let images = images.collect::<Result<Vec<_>>>()?;
            let boots: Vec<Result<Boot>> = std::thread::scope(|scope| {
                let parts = &parts;
                let start = |(source, (kernel, _)): (&&'static Source, &'_ (PathBuf, String))| {
                    let (source, kernel, tests) = (*source, kernel.clone(), wanted(source));
                    scope.spawn(move || parts.boot(&kernel, source, &tests))
                };
                let threads: Vec<_> = some.iter().zip(&images).map(start).collect();
                let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
                joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
            });
            first.extend(images.into_iter().zip(boots));
        }
        for (source, ((kernel, package), boot)) in chosen.into_iter().zip(first) {
            let (wanted, mut boot) = (wanted(source), boot?);
            let mut retried = None;
            // On a busy machine, an emulated guest can panic or run out of time; report that and try once more.
            if let Err(why) = verdict(source, &boot, &wanted) {
                let first = parts.base.join(format!("{}.first.log", source.name));
                fs::rename(&boot.log, &first).with_context(|| format!("cannot keep {}", first.display()))?;
                shell::progress(format!("{}: {why:#} (its console: {}); once more", source.name, first.display()));
                retried = Some(format!("{why:#}"));
                boot = parts.boot(&kernel, source, &wanted)?;
            }
            let verdict = verdict(source, &boot, &wanted);
            let mut outcome = Outcome::new(&machine.kernel(source.name), &package, &boot);
            if let Err(why) = &verdict {
                eprintln!(
                    "error: kernel {}: {why:#}; its console: {}\n{}",
                    source.name,
                    boot.log.display(),
                    tail(&boot.log)
                );
                failed.push(source.name);
            }
            if !REFUSED.contains(&source.name) {
                let faults = counts(&mut recorded, options.record, &outcome);
                if !faults.is_empty() {
                    eprintln!(
                        "error: kernel {}: {}; if that is meant: `cargo xtask vm --load --record`",
                        source.name,
                        faults.join("; ")
                    );
                    failed.push(source.name);
                }
            }
            outcome = Outcome {
                tests: wanted.len(),
                full: !options.smoke && !options.load && options.test.is_empty(),
                retried,
                refused: REFUSED.contains(&source.name),
                good: verdict.is_ok(),
                build: build.clone(),
                ..outcome
            };
            if !options.load && options.test.is_empty() {
                outcome.keep(&results)?;
            }
            outcomes.push(outcome);
        }
        shell::print(report::tables(&outcomes, &build));
        if options.record {
            recorded.write()?;
        }
        if options.docs {
            doc_tables::put("vm", &report::tables(&report::all(&results), &build))?;
        }
        failed.dedup();
        if !failed.is_empty() {
            bail!("kernels that fell short: {}", failed.join(", "));
        }
        Ok(())
    }
}

/// Tests of a run, `file:filter`.
fn tests(options: &Options) -> Vec<String> {
    let all = |tests: &[&str]| tests.iter().map(|test| (*test).to_owned()).collect::<Vec<_>>();
    if options.load || !options.test.is_empty() {
        return options.test.clone();
    }
    let mut tests = all(SMOKE);
    if !options.smoke {
        tests.retain(|test| !FULL.iter().any(|whole| test.starts_with(whole)));
        tests.extend(all(FULL));
    }
    tests
}

/// Prints a kernel's figures of the programs; records them, or returns what is not acceptable.
fn counts(recorded: &mut Table, record: bool, outcome: &Outcome) -> Vec<String> {
    let now = programs::of(&outcome.doctor);
    let (table, mut faults) = programs::compare(recorded.of(&outcome.kernel), &now);
    shell::print(format!("programs on {} ({})\n{table}", outcome.kernel, outcome.version));
    if record && !now.is_empty() {
        recorded.record(&outcome.kernel, &outcome.version, &now);
        // Recording a figure too near the limit does not make it acceptable.
        faults = programs::compare(recorded.of(&outcome.kernel), &now).1;
    }
    faults.extend(programs::on_shared_stacks(&outcome.doctor));
    faults
}

/// Identifies the agent's sources of a run, whatever processor they are built for.
fn fingerprint() -> Result<String> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut list = Command::new("git");
    list.current_dir(shell::root()).args(["ls-files", "Cargo.lock", "tracer-common", "tracer-ebpf", "tracer-user"]);
    let mut hasher = DefaultHasher::new();
    for name in shell::output(&mut list)?.lines() {
        name.hash(&mut hasher);
        fs::read(shell::root().join(name)).with_context(|| format!("cannot read {name}"))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The end of a guest's output.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(40)).fold(String::new(), |text, line| text + "    " + line + "\n")
}

/// The parts of every guest in a run.
struct Parts {
    base: PathBuf,
    qemu: image::Qemu,
    /// The disk without this run's files.
    root: PathBuf,
    files: Vec<(PathBuf, String)>,
    /// More words for the kernel command line.
    append: String,
}

impl Parts {
    /// Boots one kernel and runs `tests` in it.
    fn boot(&self, kernel: &Path, source: &Source, tests: &[String]) -> Result<Boot> {
        shell::progress(format!("booting {}", source.name));
        let init = guest::init(tests, SCALE, TEST_LIMIT, "")?;
        let disk = self.disk(source.name, &init, &[])?;
        let log = self.base.join(format!("{}.log", source.name));
        let boot = guest::boot(&self.qemu, (kernel, &self.append), &disk, &[], &log, LIMIT);
        let _ = fs::remove_file(&disk);
        let boot = boot?;
        shell::progress(format!("{} ran for {:.0} s", source.name, boot.took.as_secs_f64()));
        Ok(boot)
    }

    /// A guest's own disk called `name`, with its first process and `more` files.
    fn disk(&self, name: &str, init: &str, more: &[(PathBuf, String)]) -> Result<PathBuf> {
        let first = self.base.join(format!("init-{name}"));
        fs::write(&first, init).with_context(|| format!("cannot write {}", first.display()))?;
        let mut files = self.files.clone();
        files.push((first, "/guest/init".into()));
        files.extend_from_slice(more);
        let disk = self.base.join(format!("disk-{name}.img"));
        image::with_files(&self.root, &disk, &files)?;
        Ok(disk)
    }
}

/// The agent, the test programs without their debug information, and the workloads: source and target path.
fn files(base: &Path, built: &Built) -> Result<Vec<(PathBuf, String)>> {
    let dir = base.join("files");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut files = Vec::new();
    let mut strip = |from: &Path, name: &str| -> Result<()> {
        let to = dir.join(name);
        shell::output(Command::new(format!("{}strip", built.tools)).arg("-o").arg(&to).arg(from))?;
        files.push((to, format!("/guest/{name}")));
        Ok(())
    };
    strip(&built.tracer, "tracer")?;
    let programs: BTreeSet<&Path> = built.tests.iter().map(|tests| tests.program.as_path()).collect();
    for program in programs {
        // Cargo appends a hash to the subject's name.
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((subject, _)) = name.rsplit_once('-') {
            strip(program, subject)?;
        }
    }
    for name in WORKLOADS {
        let to = dir.join(name);
        let source = shell::root().join("tests/workloads").join(format!("{name}.c"));
        let compiler = if built.tools.is_empty() { "cc".to_owned() } else { format!("{}gcc", built.tools) };
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread", "-o"]);
        shell::output(command.arg(&to).arg(source))?;
        files.push((to, format!("/guest/{name}.bin")));
    }
    for script in ["edge.py", "calls.py", "hop.py", "queues.py", "header_kept.py", "header_lent.py"] {
        files.push((shell::root().join("tests/workloads").join(script), format!("/guest/{script}")));
    }
    Ok(files)
}

fn verdict(source: &Source, boot: &Boot, tests: &[String]) -> Result<()> {
    if boot.panicked {
        bail!("its kernel panicked");
    }
    if !boot.complete {
        bail!("{}", if boot.late { "its time was over" } else { "it did not reach its end" });
    }
    let features = boot.doctor["features"].as_array().context("doctor reported nothing")?;
    let missing = features.iter().find(|feature| feature["state"] == "missing");
    if REFUSED.contains(&source.name) {
        if missing.is_none() {
            bail!("tracing was expected to be refused, and the refusal named");
        }
        return Ok(());
    }
    if let Some(feature) = missing {
        bail!("doctor: {} is missing: {}", feature["name"], feature["detail"]);
    }
    let failed: Vec<&str> = boot.tests.iter().filter(|(_, ok)| !ok).map(|(name, _)| name.as_str()).collect();
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    if boot.tests.len() != tests.len() {
        bail!("{} of {} tests ran", boot.tests.len(), tests.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> Boot {
        let doctor = serde_json::json!({ "features": [{ "name": "stacks", "state": "full" }] });
        Boot { doctor, complete: true, tests: vec![("a:b".into(), true)], ..Boot::default() }
    }

    fn judged(boot: &Boot) -> String {
        let source = SOURCES.iter().find(|s| s.name == "6.1").expect("6.1");
        verdict(source, boot, &["a:b".to_owned()]).map_or_else(|why| why.to_string(), |()| "good".into())
    }

    #[test]
    fn a_panic_is_distinguished_from_a_failed_test() {
        assert_eq!(judged(&boot()), "good");
        // A panic after the last test still counts.
        assert_eq!(judged(&Boot { panicked: true, ..boot() }), "its kernel panicked");
        assert_eq!(judged(&Boot { complete: false, late: true, ..boot() }), "its time was over");
        assert_eq!(judged(&Boot { tests: vec![("a:b".into(), false)], ..boot() }), "tests failed: a:b");
        assert_eq!(judged(&Boot { tests: vec![], ..boot() }), "0 of 1 tests ran");
        assert_eq!(judged(&Boot { doctor: serde_json::Value::Null, ..boot() }), "doctor reported nothing");
    }

    #[test]
    fn a_full_run_has_every_quick_test() {
        let of = |smoke| {
            let (kernel, test, append, arch) = (Vec::new(), Vec::new(), String::new(), Machine::X86);
            let (full, load, record, docs, pair) = (false, false, false, false, None);
            let (preempt, minutes) = (None, 0);
            tests(&Options { kernel, arch, full, smoke, load, pair, preempt, minutes, test, append, record, docs })
        };
        for test in of(true) {
            assert!(of(false).iter().any(|whole| test.starts_with(whole.as_str())), "{test}");
        }
    }
}
