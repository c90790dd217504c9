//! `cargo xtask setup`: everything that building, testing and the demo need.

use std::process::Command;

use anyhow::Result;

use crate::build_ebpf::{self, Way};
use crate::packages::{self, Need};
use crate::shell;
use crate::{wheels, workloads};

/// Installs what is missing; reports if nothing is.
pub(crate) fn run(way: Option<Way>) -> Result<()> {
    packages::install(&[Need::Programs, Need::Fuzz, Need::Wheels])?;
    // Wheels come from the network while the linker of eBPF is compiled.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(error) = wheels::install() {
                shell::progress(format!("{error:#}"));
            }
        });
        build_ebpf::ready(way)
    })?;
    components()?;
    if let Err(error) = workloads::build() {
        shell::progress(format!("{error:#}"));
    }
    shell::progress("everything is installed");
    Ok(())
}

/// Programs the demo needs.
pub(crate) fn programs() -> Result<()> {
    packages::install(&[Need::Programs])
}

/// rustfmt and clippy, which minimal rustup installations lack.
pub(crate) fn components() -> Result<()> {
    let missing: Vec<&str> = [("rustfmt", "fmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(_, command)| shell::output(shell::cargo().args([command, "--version"])).is_err())
        .map(|(component, _)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    shell::progress(format!("installing {} by rustup", missing.join(" ")));
    let mut command = Command::new("rustup");
    command.args(["component", "add"]).args(&missing);
    shell::run(&mut command, "install them as your Rust toolchain provides them")
}
