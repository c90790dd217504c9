//! `cargo xtask vendor`: copies the console's libraries from the npm registry into the repository, so that builds need no
//! network. `vendor.toml` beside the copies locks versions and checksums.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::shell;

/// Where the copies are.
const DIRECTORY: &str = "tracer-user/crates/http/src/assets/vendor";
/// Largest file, bytes: minified files of small libraries.
const LARGEST: u64 = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lock {
    /// Every library.
    pub(crate) package: Vec<Package>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: String,
    /// What the console uses it for.
    pub(crate) why: String,
    /// Below [`DIRECTORY`].
    directory: String,
    /// Of the package's archive, hexadecimal.
    pub(crate) sha512: String,
    /// SHA-256 of the copies, by path in the package.
    files: BTreeMap<String, String>,
}

impl Package {
    /// Name and version, as npm writes them.
    fn spec(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

pub(crate) fn lock(root: &Path) -> Result<Lock> {
    let path = root.join(DIRECTORY).join("vendor.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// Fetches every package of the lock and copies its files.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    for package in lock(&root)?.package {
        let spec = package.spec();
        shell::progress(format!("{spec} ({}): {}", package.licence, package.why));
        let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]).arg(dir.path()).arg(&spec).current_dir(dir.path());
        let archive = dir.path().join(shell::output(&mut npm)?.trim());
        let sum = shell::checksum("sha512sum", &archive)?;
        ensure!(sum == package.sha512, "{spec}: the archive's SHA-512 is {sum}, vendor.toml has {}", package.sha512);
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(dir.path());
        shell::run(&mut tar, "")?;
        let to = root.join(DIRECTORY).join(&package.directory);
        fs::create_dir_all(&to).with_context(|| format!("cannot create {}", to.display()))?;
        for path in package.files.keys() {
            let from = dir.path().join("package").join(path);
            let to = to.join(file_name(path));
            fs::copy(&from, &to).with_context(|| format!("{spec}: cannot copy {path} to {}", to.display()))?;
        }
    }
    let wrong = check(&root)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// What differs between the copies and the lock.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for package in lock(root)?.package {
        if !package.files.keys().any(|path| path.starts_with("LICENSE")) {
            wrong.push(format!("{DIRECTORY}/vendor.toml: {}: its licence file is not copied", package.name));
        }
        let dir = root.join(DIRECTORY).join(&package.directory);
        for (path, expected) in &package.files {
            let file = dir.join(file_name(path));
            let what = || format!("{DIRECTORY}/{}/{}", package.directory, file_name(path));
            match shell::checksum("sha256sum", &file) {
                Ok(sum) if sum == *expected => {}
                Ok(sum) => wrong.push(format!("{}: SHA-256 is {sum}; run `cargo xtask vendor`", what())),
                Err(error) => wrong.push(format!("{}: {error:#}; run `cargo xtask vendor`", what())),
            }
            if fs::metadata(&file).is_ok_and(|found| found.len() > LARGEST) {
                wrong.push(format!("{}: larger than {LARGEST} bytes", what()));
            }
        }
        let known: Vec<&str> = package.files.keys().map(|path| file_name(path)).collect();
        let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
        for entry in entries {
            let name = entry.context("a directory's entry")?.file_name();
            if !known.iter().any(|known| name == *known) {
                wrong.push(format!("{}: not in vendor.toml", dir.join(name).display()));
            }
        }
    }
    Ok(wrong)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_as_locked() {
        assert_eq!(check(&shell::root()).expect("a readable lock"), Vec::<String>::new());
    }
}
