//! `cargo xtask ci`: everything a change must pass; `.ci/run` runs the same two halves.

use anyhow::{Result, bail};

use crate::build_ebpf::Way;
use crate::{check, setup, test};

/// Runs `check`, then `test`, and both even when the first fails: one run shows everything.
pub(crate) fn run(way: Option<Way>, options: &test::Options) -> Result<()> {
    if !options.without_kernel {
        setup::run(way)?;
    }
    let checked = check::every(way, !options.without_kernel);
    let tested = test::run(way, options);
    match (checked, tested) {
        (Ok(()), tested) => tested,
        (Err(checks), Ok(())) => Err(checks),
        (Err(checks), Err(tests)) => bail!("{checks:#}; {tests:#}"),
    }
}
