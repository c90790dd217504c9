//! Runs other programs: finds them, chooses their user, and explains failures.

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Prints a line of requested output.
#[expect(clippy::print_stdout, reason = "the one place of xtask that writes to standard output")]
pub(crate) fn print(line: impl Display) {
    println!("{line}");
}

/// Prints a progress line; on standard error, so that results can be piped.
pub(crate) fn progress(line: impl Display) {
    eprintln!("==> {line}");
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The directory cargo builds into, from `CARGO_TARGET_DIR`, cargo's configuration or the default.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = metadata(&root().join("Cargo.toml"))?;
    let dir = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(dir))
}

/// Cargo's metadata of a manifest's workspace packages, without their dependencies.
pub(crate) fn metadata(manifest: &Path) -> Result<serde_json::Value> {
    let text = output(
        cargo()
            .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .arg("--manifest-path")
            .arg(manifest),
    )?;
    serde_json::from_str(&text).context("cargo metadata printed something that is not JSON")
}

/// Cargo's options for what is compiled to be checked or tested, not to be used; `Cargo.toml` says why by this profile.
pub(crate) const TEST_PROFILE: [&str; 2] = ["--profile", "bench"];

/// The cargo that started this xtask, at the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    forget_package(&mut command);
    command
}

/// Removes the package variables cargo set for xtask: the next cargo or build script must not see them.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
}

/// Runs a command with inherited output. `remedy` tells the reader what to do if it fails.
pub(crate) fn run(command: &mut Command, remedy: &str) -> Result<()> {
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        let then = if remedy.is_empty() { String::new() } else { format!("; {remedy}") };
        bail!("`{}` failed ({status}){then}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns its output; its errors appear in ours.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(command)?).into_owned())
}

/// As [`output`], for output that is not text.
pub(crate) fn bytes(command: &mut Command) -> Result<Vec<u8>> {
    let out = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        bail!("`{}` failed ({}): {}", shown(command), out.status, why.trim());
    }
    Ok(out.stdout)
}

/// A command's output, or nothing if it does not exist or fails: for queries, not for actions.
pub(crate) fn ask<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Option<String> {
    let out = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`", command.get_program().to_string_lossy())
}

/// A command as typed in a shell.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
        if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { format!("'{word}'") }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// A file's checksum by one of coreutils' programs, hexadecimal.
pub(crate) fn checksum(program: &str, file: &Path) -> Result<String> {
    let text = output(Command::new(program).arg("--binary").arg("--").arg(file))?;
    Ok(text.split_whitespace().next().unwrap_or_default().trim_start_matches('\\').to_owned())
}

/// Finds a program in `PATH` or in the system's administration directories.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, touches no memory of ours and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// How a command becomes root here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// This process is root.
    Already,
    /// By sudo, without a prompt (or after it).
    Sudo,
}

impl Root {
    /// Finds the way, asking for sudo's password on a terminal. `why` completes "root is needed to".
    pub(crate) fn obtain(why: &str) -> Result<Self> {
        if is_root() {
            return Ok(Self::Already);
        }
        if find("sudo").is_none() {
            bail!("root is needed to {why}, and there is no sudo: run this command again as root");
        }
        if ask("sudo", &["-n", "true"]).is_some() {
            return Ok(Self::Sudo);
        }
        if !std::io::stdin().is_terminal() {
            bail!("root is needed to {why}, and sudo wants a password: run `sudo -v` first, or this command as root");
        }
        progress(format!("root is needed to {why}: sudo asks for your password"));
        run(Command::new("sudo").arg("-v"), "run this command again as root")?;
        Ok(Self::Sudo)
    }

    /// A command that runs `program` as root.
    pub(crate) fn command(self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Already => Command::new(program),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.args(["-n", "--"]).arg(program);
                command
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a b", ""]);
        assert_eq!(shown(&command), "sh -c 'echo a b' ''");
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("tracer-user/Cargo.toml").is_file());
    }
}
