//! Fetches packages of any Debian release without touching this machine's package configuration: uses a private state
//! directory and the archive address from the machine's own sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Some releases of the archive, with a state directory of our own.
pub(crate) struct Archive {
    dir: PathBuf,
    processor: &'static str,
}

impl Archive {
    /// Opens `suites` (and `security` suites) for a processor, by Debian's name, and fetches their lists.
    pub(crate) fn open(
        base: &Path,
        name: &str,
        processor: &'static str,
        suites: &[&str],
        security: &[&str],
    ) -> Result<Self> {
        let dir = base.join("apt").join(name);
        for part in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(part)).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let (main, secure) = addresses()?;
        let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let line = |address: &str, suite: &str| format!("deb [signed-by={key}] {address} {suite} main\n");
        let lines = suites.iter().map(|s| line(&main, s)).chain(security.iter().map(|s| line(&secure, s)));
        write(&dir.join("sources.list"), &lines.collect::<String>())?;
        write(&dir.join("status"), "")?;
        let archive = Self { dir, processor };
        shell::output(archive.apt("apt-get").args(["-q", "update"]))?;
        Ok(archive)
    }

    fn apt(&self, program: &str) -> Command {
        let at = |part: &str| self.dir.join(part).display().to_string();
        let mut command = Command::new(program);
        for (option, value) in [
            ("Dir::State", at("state")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("Dir::Etc::sourcelist", at("sources.list")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            ("APT::Architecture", self.processor.into()),
            ("APT::Architectures", self.processor.into()),
            ("APT::Sandbox::User", "root".into()),
            ("Acquire::Languages", "none".into()),
        ] {
            command.arg("-o").arg(format!("{option}={value}"));
        }
        command
    }

    /// Packages whose name has this prefix.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = shell::output(self.apt("apt-cache").args(["search", "--names-only", &format!("^{prefix}")]))?;
        let names = text.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with(prefix));
        Ok(names.map(str::to_owned).collect())
    }

    /// The newest package whose name has this prefix and suffix; `None` if there is none.
    pub(crate) fn newest(&self, prefix: &str, suffix: &str) -> Result<Option<String>> {
        let mut names = self.names(prefix)?;
        names.retain(|name| name.ends_with(suffix));
        names.sort_by_key(|name| version(name.strip_prefix(prefix).unwrap_or_default()));
        Ok(names.pop())
    }

    /// Packages and all their dependencies; excludes packages installed on this machine if `missing` is set.
    pub(crate) fn closure(&self, packages: &[&str], missing: bool) -> Result<Vec<String>> {
        let only = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"];
        let mut command = self.apt("apt-cache");
        command.args(["depends", "--recurse"]).args(only.map(|kind| format!("--no-{kind}"))).args(packages);
        let text = shell::output(&mut command)?;
        let mut names: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric()))
            .map(str::to_owned)
            .filter(|name| !missing || !crate::packages::is_installed(name))
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Downloads packages and unpacks them into `into`.
    pub(crate) fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        let debs = self.dir.join("debs");
        // Otherwise the leftovers of an interrupted run would be unpacked too.
        let _ = fs::remove_dir_all(&debs);
        fs::create_dir_all(&debs).with_context(|| format!("cannot create {}", debs.display()))?;
        fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
        shell::output(self.apt("apt-get").args(["-q", "download"]).args(packages).current_dir(&debs))?;
        for entry in fs::read_dir(&debs).context("cannot list downloaded packages")? {
            let deb = entry.context("cannot list downloaded packages")?.path();
            shell::output(Command::new("dpkg").arg("-x").arg(&deb).arg(into))?;
        }
        fs::remove_dir_all(&debs).with_context(|| format!("cannot remove {}", debs.display()))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Addresses of the archive and of its security suite, from this machine's sources.
fn addresses() -> Result<(String, String)> {
    let path = "/etc/apt/sources.list.d/debian.sources";
    let text =
        fs::read_to_string(path).with_context(|| format!("{path} cannot be read: is this Debian 12 or later?"))?;
    let mut main = None;
    let mut secure = None;
    let mut address = None;
    for line in text.lines() {
        if let Some(uri) = line.strip_prefix("URIs:") {
            address = uri.split_whitespace().next().map(str::to_owned);
            main = main.or_else(|| address.clone());
        } else if line.starts_with("Suites:") && line.contains("security") {
            secure = secure.or_else(|| address.clone());
        }
    }
    match main {
        Some(main) => Ok((main.clone(), secure.unwrap_or(main))),
        None => bail!("{path} names no archive"),
    }
}

/// A version's numbers, for sorting: 6.12.117 is newer than 6.12.95.
fn version(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        let mut names = ["12.95+deb12", "12.117+deb12", "12.9"];
        names.sort_by_key(|name| version(name));
        assert_eq!(names, ["12.9", "12.95+deb12", "12.117+deb12"]);
    }
}
