//! What stands where in the package.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Settings in which the packaged configuration differs from the defaults: where the service keeps its state.
const SETTINGS: [(&str, &str); 2] = [
    ("token_file = \"\"\n", "token_file = \"/var/lib/tracer/token\"\n"),
    ("save = \"\"\n", "save = \"/var/lib/tracer/transactions\"\n"),
];

/// Lays out everything but the package's control files below `root`.
pub(super) fn files(binary: &Path, root: &Path, epoch: &str) -> Result<()> {
    let source = shell::root();
    install(&fs::read(binary)?, &root.join("usr/bin/tracer"), 0o755)?;
    let copies = [
        ("packaging/tracer.service", "usr/lib/systemd/system/tracer.service"),
        ("docs/install.md", "usr/share/doc/tracer/install.md"),
        ("docs/service-classes.md", "usr/share/doc/tracer/service-classes.md"),
        ("docs/monitoring.md", "usr/share/doc/tracer/monitoring.md"),
        ("docs/configuration.md", "usr/share/doc/tracer/configuration.md"),
    ];
    for (from, to) in copies {
        install(&read(&source.join(from))?, &root.join(to), 0o644)?;
    }
    let config = settings(&String::from_utf8_lossy(&read(&source.join("config/tracer.toml"))?))?;
    install(config.as_bytes(), &root.join("etc/tracer/tracer.toml"), 0o644)?;
    install(copyright()?.as_bytes(), &root.join("usr/share/doc/tracer/copyright"), 0o644)?;
    install(&gzip(&source.join("CHANGELOG.md"))?, &root.join("usr/share/doc/tracer/changelog.gz"), 0o644)?;
    tree(&source.join("monitoring"), &root.join("usr/share/tracer"))?;
    shell_help(binary, root, epoch)
}

/// The copyright file: Debian's form, with the licence's text.
pub(super) fn copyright() -> Result<String> {
    let source = shell::root();
    let mut copyright = read(&source.join("packaging/debian/copyright"))?;
    for line in String::from_utf8_lossy(&read(&source.join("LICENSE"))?).lines() {
        let line = if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
        copyright.extend(line.bytes());
    }
    // The format wants the licence's text right below its name.
    Ok(String::from_utf8_lossy(&copyright).replace("License: Expat\n\n", "License: Expat\n"))
}

/// Completion scripts and manual pages, which the binary itself writes.
fn shell_help(binary: &Path, root: &Path, epoch: &str) -> Result<()> {
    let scripts = [
        ("bash", "usr/share/bash-completion/completions/tracer"),
        ("zsh", "usr/share/zsh/vendor-completions/_tracer"),
        ("fish", "usr/share/fish/vendor_completions.d/tracer.fish"),
    ];
    for (name, to) in scripts {
        let script = shell::output(Command::new(binary).args(["completions", name]))?;
        install(script.as_bytes(), &root.join(to), 0o644)?;
    }
    let pages = tempfile::tempdir()?;
    shell::output(Command::new(binary).arg("man-pages").arg(pages.path()).env("SOURCE_DATE_EPOCH", epoch))?;
    for page in entries(pages.path())? {
        let name = format!("usr/share/man/man1/{}.gz", page.file_name().unwrap_or_default().to_string_lossy());
        install(&gzip(&page)?, &root.join(name), 0o644)?;
    }
    Ok(())
}

/// The default configuration with the packaged settings.
pub(super) fn settings(defaults: &str) -> Result<String> {
    let mut text = defaults.to_owned();
    for (default, packaged) in SETTINGS {
        if text.matches(&format!("\n{default}")).count() != 1 {
            bail!("config/tracer.toml does not have the line {default:?} once");
        }
        text = text.replace(&format!("\n{default}"), &format!("\n{packaged}"));
    }
    Ok(text)
}

/// Writes `DEBIAN/`: what the package is, needs and does.
pub(super) fn control(binary: &Path, root: &Path, version: &str) -> Result<()> {
    let source = shell::root().join("packaging/debian");
    let dir = root.join("DEBIAN");
    for script in ["postinst", "prerm", "postrm"] {
        install(&read(&source.join(script))?, &dir.join(script), 0o755)?;
    }
    install(b"/etc/tracer/tracer.toml\n", &dir.join("conffiles"), 0o644)?;
    let libc = libc_version(&fs::read(binary)?).context("the binary names no version of glibc")?;
    let text = format!(
        "Package: tracer\nVersion: {version}\nArchitecture: {}\nMaintainer: The tracer authors <tracer@localhost>\n\
         Installed-Size: {}\nDepends: libc6 (>= {libc}), libgcc-s1, init-system-helpers, passwd\n\
         Suggests: prometheus, grafana\nSection: admin\nPriority: optional\n\
         Description: eBPF request tracer and profiler\n \
         Shows which classes of request a host handles, how long each takes and\n \
         where, what CPU each costs and which code burns it, without any change to\n \
         applications. Needs Linux 6.1 or later.\n",
        debian_architecture()?,
        bytes(root)?.div_ceil(1024),
    );
    install(text.as_bytes(), &dir.join("control"), 0o644)
}

/// Debian's name for this processor.
pub(super) fn debian_architecture() -> Result<&'static str> {
    Ok(match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("there are no packages for {other}"),
    })
}

/// The newest version of glibc whose symbols a binary uses, such as 2.34: the names of versions stand in its string table.
fn libc_version(binary: &[u8]) -> Option<String> {
    let mark = b"GLIBC_2.";
    let minor = |at: usize| {
        let digits = binary[at + mark.len()..].iter().take_while(|byte| byte.is_ascii_digit()).take(3);
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    };
    let found = binary.windows(mark.len()).enumerate().filter(|(_, window)| window == mark);
    found.map(|(at, _)| minor(at)).max().filter(|minor| *minor > 0).map(|minor| format!("2.{minor}"))
}

/// A file's content.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn gzip(path: &Path) -> Result<Vec<u8>> {
    let out = Command::new("gzip").args(["-9nc"]).arg(path).output().context("cannot start gzip")?;
    if !out.status.success() {
        bail!("gzip {}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
    }
    Ok(out.stdout)
}

/// Writes a file with this mode.
pub(super) fn install(content: &[u8], path: &Path, mode: u32) -> Result<()> {
    directory(path.parent().unwrap_or(path))?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Makes a directory and those above it: everybody's to read, whatever the umask is.
pub(super) fn directory(path: &Path) -> Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    for dir in missing.into_iter().rev() {
        fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Copies a directory.
pub(super) fn tree(from: &Path, to: &Path) -> Result<()> {
    for path in entries(from)? {
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() { tree(&path, &to)? } else { install(&read(&path)?, &to, 0o644)? }
    }
    Ok(())
}

/// Bytes of all files below a directory.
fn bytes(dir: &Path) -> Result<u64> {
    entries(dir)?.iter().map(|path| if path.is_dir() { bytes(path) } else { Ok(fs::metadata(path)?.len()) }).sum()
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths = list.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_have_the_settings_that_differ() {
        let defaults = fs::read_to_string(shell::root().join("config/tracer.toml")).expect("the defaults");
        let packaged = settings(&defaults).expect("settings");
        assert!(packaged.contains("save = \"/var/lib/tracer/transactions\""));
        assert!(settings("save = 1\n").is_err());
    }

    #[test]
    fn the_newest_glibc_counts() {
        assert_eq!(libc_version(b"x\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0").as_deref(), Some("2.34"));
        assert_eq!(libc_version(b"GLIBC_PRIVATE"), None);
    }
}
