//! `cargo xtask differential BASE`: which spans another commit's engine gives from the same recordings.
//!
//! It builds `tracer` at BASE and as it stands here, replays every recording of a directory through both, fresh and in
//! copies spoilt by seed (records dropped, doubled, swapped), and compares the spans. A change of the engine that shall
//! change no result proves it here; one that shall, shows which results it changes.

mod compare;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, bail};
use clap::Args;
use tracer_tests::recording::Recording;

use crate::build_ebpf::Way;
use crate::kernel_tests::{self, Selection};
use crate::shell;
use crate::tally::Tally;
use crate::test;
use crate::{wheels, workloads};
use compare::Comparison;

/// Spoilt copies of a recording, unless another number is asked for.
const COPIES: u64 = 10;
/// Differences that are printed in full for a recording.
const SHOWN: usize = 5;
/// Most seconds for one program of tests while recording.
const SECONDS: u32 = 1200;
/// Where small recordings are, and how many records each has.
const SMALL: &str = "tests/recordings";
const RECORDS: usize = 2000;
/// Ends of file names: recordings as the agent writes them, and compressed ones.
const PLAIN: &str = "tracer";
const COMPRESSED: &str = "tracer.gz";

/// Whether a build is a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Optimised {
    No,
    Yes,
}

/// `cargo xtask differential`.
#[derive(Args)]
pub(crate) struct Options {
    /// The commit to compare with: any name git knows.
    #[arg(value_name = "BASE", required_unless_present_any = ["record", "reduce", "accept"])]
    base: Option<String>,
    /// Directory of recordings (`*.tracer`, `*.tracer.gz`).
    #[arg(long, value_name = "DIR", default_value = "target/recordings")]
    recordings: PathBuf,
    /// Spoilt copies replayed of each recording, beside the fresh one.
    #[arg(long, default_value_t = COPIES)]
    copies: u64,
    /// Make the recordings: run the truth tests of transactions (those whose program's or test's name contains a FILTER)
    /// with agents that record, and keep the files compressed in the directory. Needs root.
    #[arg(long, num_args = 0.., value_name = "FILTER", conflicts_with_all = ["base", "copies"])]
    record: Option<Vec<String>>,
    /// Make small recordings of those in the directory, for `tests/recordings/`: what a test's programs did in their first
    /// records, without anything of this machine. Then accept what this work tree gives of them.
    #[arg(long, conflicts_with_all = ["base", "copies", "record"])]
    reduce: bool,
    /// Accept what this work tree gives of the recordings in `tests/recordings/`: look at what changed, and commit it.
    #[arg(long, conflicts_with_all = ["base", "copies", "record", "recordings"])]
    accept: bool,
}

/// Makes recordings, or compares; fails if any span differs.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    let dir = shell::root().join(&options.recordings);
    if let Some(filters) = &options.record {
        return record(way, &dir, filters);
    }
    if options.reduce {
        reduce(&dir)?;
    }
    if options.reduce || options.accept {
        return accept(way);
    }
    let base = options.base.as_deref().unwrap_or_default();
    let files = recordings(&dir)?;
    if files.is_empty() {
        bail!("{} has no recordings; `cargo xtask differential --record` makes them", dir.display());
    }
    let place = shell::target_dir()?.join("differential");
    let built = [base_binary(&place, base, Optimised::No)?, own_binary(&place, Optimised::No)?];
    let work =
        tempfile::Builder::new().prefix("tracer-differential-").tempdir().context("cannot create a directory")?;
    let mut total = Comparison::default();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fresh = Recording::read(&unpacked(file, work.path())?).map_err(Error::msg)?;
        let mut of_file = Comparison::default();
        for seed in 0..=options.copies {
            // Seed 0 is the recording as it is.
            let copy = work.path().join("copy.tracer");
            fresh.spoilt(seed).write(&copy).map_err(Error::msg)?;
            let [before, after] = [replay(&built[0], &copy)?, replay(&built[1], &copy)?];
            of_file.add(&compare::compare(&before, &after)?, &format!("{name}, seed {seed}"));
        }
        shell::print(of_file.row(&name));
        for example in of_file.examples.iter().take(SHOWN) {
            shell::print(example);
        }
        total.merge(&of_file);
    }
    shell::print(total.row("all"));
    if total.differs() {
        bail!("spans differ from those of {base}: explain each kind of difference, or mend it");
    }
    Ok(())
}

/// Recordings of a directory by name.
pub(crate) fn recordings(dir: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", dir.display()))?.path();
        let name = path.to_string_lossy();
        if [PLAIN, COMPRESSED].iter().any(|end| name.ends_with(&format!(".{end}"))) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A recording as the agent wrote it; a compressed one is unpacked into `work`.
pub(crate) fn unpacked(file: &Path, work: &Path) -> Result<PathBuf> {
    if !file.to_string_lossy().ends_with(COMPRESSED) {
        return Ok(file.to_path_buf());
    }
    let plain = work.join("fresh.tracer");
    fs::write(&plain, shell::bytes(Command::new("gzip").arg("-dc").arg("--").arg(file))?)
        .with_context(|| format!("cannot write {}", plain.display()))?;
    Ok(plain)
}

/// The spans `tracer` gives from a recording, one JSON object a line.
fn replay(tracer: &Path, recording: &Path) -> Result<String> {
    let spans = recording.with_extension("ndjson");
    // A spoilt copy ends as it should, so a replay that fails is a defect of that build.
    shell::output(Command::new(tracer).arg("replay").arg(recording).arg("--transactions").arg(&spans))?;
    let text = fs::read_to_string(&spans).with_context(|| format!("cannot read {}", spans.display()))?;
    fs::remove_file(&spans).with_context(|| format!("cannot remove {}", spans.display()))?;
    Ok(text)
}

/// A work tree below `place` with the commit `base`, which stays for the next comparison.
pub(crate) fn checked_out(place: &Path, base: &str) -> Result<PathBuf> {
    let commit =
        shell::output(git().args(["rev-parse", "--verify", "--end-of-options"]).arg(format!("{base}^{{commit}}")))?;
    let commit = commit.trim();
    let tree = place.join("tree");
    if tree.join("Cargo.toml").is_file() {
        shell::output(git().arg("-C").arg(&tree).args(["checkout", "--quiet", "--force", "--detach", commit]))?;
    } else {
        fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
        shell::output(git().args(["worktree", "prune"]))?;
        shell::output(git().args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&tree).arg(commit))?;
    }
    Ok(tree)
}

/// Builds `tracer` at another commit.
pub(crate) fn base_binary(place: &Path, base: &str, optimised: Optimised) -> Result<PathBuf> {
    let tree = checked_out(place, base)?;
    shell::progress(format!("building tracer of {base}"));
    binary(place, &tree, "base", optimised)
}

/// Builds `tracer` as it stands here.
pub(crate) fn own_binary(place: &Path, optimised: Optimised) -> Result<PathBuf> {
    shell::progress("building tracer of this work tree");
    binary(place, &shell::root(), "own", optimised)
}

/// Compiles the agent of `tree` without the kernel side, which a replay does not use. Each tree has a directory of its own: in
/// a shared one, cargo takes one tree's `tracer-common` for the other's.
fn binary(place: &Path, tree: &Path, name: &str, optimised: Optimised) -> Result<PathBuf> {
    let built = place.join(format!("build-{name}"));
    let mut command = shell::cargo();
    command.current_dir(tree).args(["build", "--locked", "--package", "tracer-user", "--bin", "tracer"]);
    command.arg("--target-dir").arg(&built);
    let profile = match optimised {
        Optimised::No => "debug",
        Optimised::Yes => {
            command.arg("--release");
            "release"
        }
    };
    shell::run(&mut command, "the compiler's own words are above")?;
    let kept = place.join(format!("tracer-{name}-{profile}"));
    fs::copy(built.join(profile).join("tracer"), &kept).with_context(|| format!("cannot write {}", kept.display()))?;
    Ok(kept)
}

fn git() -> Command {
    let mut command = Command::new("git");
    command.current_dir(shell::root());
    command
}

/// Makes a small recording of each of a directory.
fn reduce(dir: &Path) -> Result<()> {
    let kept = shell::root().join(SMALL);
    fs::create_dir_all(&kept).with_context(|| format!("cannot create {}", kept.display()))?;
    let work =
        tempfile::Builder::new().prefix("tracer-differential-").tempdir().context("cannot create a directory")?;
    for file in recordings(dir)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (program, _) = name.split_once('-').unwrap_or((&name, ""));
        let whole = Recording::read(&unpacked(&file, work.path())?).map_err(Error::msg)?;
        let Some(small) = whole.reduced(program, RECORDS) else {
            bail!("{name} was not made by a test of {program}: `cargo xtask differential --record` names files so");
        };
        // The agent's name and number, which say nothing where a test has one.
        let name = name.split_once(&format!(".{PLAIN}")).map_or(name.as_str(), |(name, _)| name);
        let plain = kept.join(format!("{}.{PLAIN}", name.trim_end_matches("-agent-1")));
        small.write(&plain).map_err(Error::msg)?;
        shell::output(Command::new("gzip").args(["-9", "--no-name", "--force", "--"]).arg(&plain))?;
    }
    Ok(())
}

/// Writes what this work tree gives of the small recordings.
fn accept(way: Option<Way>) -> Result<()> {
    let (tracer, _) = test::ready(way)?;
    let mut command = shell::cargo();
    command.args(["test", "--locked"]).args(shell::TEST_PROFILE).args(["--package", "tracer-tests"]);
    command.args(["--test", "attribution", "recordings::"]).env("TRACER_BIN", tracer).env("TRACER_ACCEPT", "1");
    shell::run(&mut command, "the test's own words are above")
}

/// Runs truth tests with agents that record.
fn record(way: Option<Way>, dir: &Path, filters: &[String]) -> Result<()> {
    let (tracer, root) = test::ready(way)?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut tally = Tally::default();
    for tests in kernel_tests::build(&Selection::All)? {
        let named = filters.iter().any(|filter| tests.name.contains(filter.as_str()));
        let traced = ["transactions", "links", "pools"].iter().any(|of| tests.name.starts_with(of));
        let wanted = if filters.is_empty() { traced } else { named };
        if !wanted {
            continue;
        }
        let mut command = root.command("env");
        command.arg(format!("TRACER_BIN={}", tracer.display()));
        command.arg(format!("TRACER_RECORDINGS={}", dir.display()));
        command.args(wheels::environment()?).arg(workloads::environment()?);
        command.arg("timeout").arg("--kill-after=10").arg(SECONDS.to_string());
        command.arg(&tests.program).args(["--test-threads=1", "--nocapture"]).args(tests.arguments(&[]));
        tally.run(command.current_dir(shell::root().join("tests")), &tests.name)?;
    }
    for file in recordings(dir)?.iter().filter(|file| !file.to_string_lossy().ends_with(COMPRESSED)) {
        shell::output(Command::new("gzip").args(["-9", "--force", "--"]).arg(file))?;
    }
    tally.print();
    if !tally.failed().is_empty() {
        bail!("tests failed while they were recorded: {}", tally.failed().join(", "));
    }
    Ok(())
}
