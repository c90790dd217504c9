//! `cargo xtask bench --against`: two builds in one run, so that both see the same machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cases::Case;
use super::floor::Hooks;
use super::measure::Bench;
use super::results::{self, Results};
use super::{commit, compare};
use crate::{differential, shell};

/// The binary to compare with: a file, or a commit's build in a work tree of its own.
pub(super) fn build(against: &str) -> Result<PathBuf> {
    if Path::new(against).is_file() {
        return Ok(PathBuf::from(against));
    }
    let target = shell::target_dir()?;
    let tree = differential::checked_out(&target.join("differential"), against)?;
    // What compiles the kernel side need not be built again.
    let tools = tree.join("target/tools");
    if !tools.exists() {
        fs::create_dir_all(tree.join("target")).with_context(|| format!("cannot write below {}", tree.display()))?;
        symlink(target.join("tools"), &tools).with_context(|| format!("cannot make {}", tools.display()))?;
    }
    shell::progress(format!("building {against} in {}", tree.display()));
    let mut command = Command::new("cargo");
    command.args(["xtask", "build", "--release"]).current_dir(&tree).env_remove("CARGO_TARGET_DIR");
    // The tree lies in a target directory, where its build would find this work tree's object.
    command.env("TRACER_EBPF_OBJECT", tree.join("target/ebpf/tracer.bpf.o"));
    shell::run(&mut command, "its own words are above")?;
    Ok(tree.join("target/release/tracer"))
}

/// Measures each case with the other build, twice with this one, and with the other again: a machine that gets slower makes neither
/// look worse. Prints what changed, and writes both results, those of the other build beside `output`.
pub(super) fn run(bench: &Bench<'_>, other: &Path, against: &str, cases: &[&Case], output: &Path) -> Result<Results> {
    let other_hooks = Hooks::of(other)?;
    // Half of the pairs each time, and one more where they are odd.
    let half = bench.pairs.div_ceil(2);
    let own = Bench { pairs: half, peers: false, ..*bench };
    let other = Bench { tracer: other, hooks: &other_hooks, ..own };
    let mut results = [Results::here(against.to_owned()), Results::here(commit())];
    let files = [output.with_extension("against.json"), output.to_owned()];
    for case in cases {
        let mut measured = [results::Case::default(), results::Case::default()];
        for (turn, (build, which)) in [(&other, 0), (&own, 1), (&own, 1), (&other, 0)].into_iter().enumerate() {
            bench.say(format!("{}: {}", case.name, [against, "this build"][which]));
            // A server's files are of one turn.
            let dir = bench.dir.join(turn.to_string());
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            let part = Bench { dir: &dir, ..*build }.case(case).with_context(|| format!("case {}", case.name))?;
            measured[which].add(part);
        }
        for ((results, case), file) in results.iter_mut().zip(measured).zip(&files) {
            results.cases.push(case);
            results.seconds = bench.began.elapsed().as_secs_f64();
            results.write(file)?;
        }
    }
    let [other, own] = results;
    shell::print(compare::compare(&other, &own).0);
    Ok(own)
}
