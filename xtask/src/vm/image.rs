//! QEMU and the guest's disk: both unpacked from packages, without installing anything on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::Archive;
use super::machine::Machine;
use crate::{packages, shell};

/// Packages that the guest's tests run.
const PROGRAMS: &[&str] = &[
    "busybox-static",
    "dash",
    "coreutils",
    "procps",
    "nginx-light",
    "python3",
    "gunicorn",
    "redis-server",
    "redis-tools",
    "python3-redis",
    "util-linux",
    "mount",
];

/// A QEMU that runs from its unpacked directory.
pub(super) struct Qemu {
    dir: PathBuf,
    machine: Machine,
}

impl Qemu {
    /// This machine's own; unpacked beside the build where none is installed.
    pub(super) fn ready(base: &Path, machine: Machine) -> Result<Self> {
        if packages::is_installed(machine.qemu_package()) {
            return Ok(Self { dir: PathBuf::from("/"), machine });
        }
        let dir = base.join("qemu");
        if !dir.join("ready").is_file() {
            shell::progress("fetching QEMU (unpacked beside the build, not installed)");
            // It runs on this machine, whatever it emulates.
            let archive = Archive::open(base, "qemu", "amd64", &["bookworm"], &["bookworm-security"])?;
            archive.unpack(&archive.closure(&[machine.qemu_package()], true)?, &dir)?;
            fs::write(dir.join("ready"), "").context("cannot write beside QEMU")?;
        }
        Ok(Self { dir, machine })
    }

    /// QEMU's command, with the machine it emulates.
    pub(super) fn command(&self) -> Command {
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|part| self.dir.join(part));
        let path = std::env::join_paths(libraries).unwrap_or_default();
        let mut command = Command::new(self.dir.join("usr/bin").join(self.machine.qemu()));
        command.env("LD_LIBRARY_PATH", path).arg("-L").arg(self.dir.join("usr/share/qemu"));
        command.arg("-L").arg(self.dir.join("usr/share/seabios"));
        command.args(self.machine.arguments());
        command
    }

    /// The kernel's name of its serial line.
    pub(super) fn console(&self) -> &'static str {
        self.machine.console()
    }
}

/// The guest's root, made if missing or if it held other programs: an ext4 file system in a file.
pub(super) fn root(base: &Path, machine: Machine) -> Result<PathBuf> {
    let (image, stamp) = (base.join("root.img"), base.join("root.programs"));
    let wanted = PROGRAMS.join(" ");
    if image.is_file() && fs::read_to_string(&stamp).is_ok_and(|had| had == wanted) {
        return Ok(image);
    }
    shell::progress("making the guest's disk");
    let tree = base.join("root.d");
    let _ = fs::remove_dir_all(&tree);
    let archive = Archive::open(base, "root", machine.debian(), &["bookworm"], &["bookworm-security"])?;
    archive.unpack(&archive.closure(PROGRAMS, false)?, &tree)?;
    // The effects of the packages' own scripts, as far as the tests need them.
    for (file, text) in [
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("etc/nsswitch.conf", "hosts: files\n"),
    ] {
        let path = tree.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for dir in ["proc", "sys", "dev", "tmp", "run", "root", "var/log/nginx", "var/lib/nginx", "guest"] {
        fs::create_dir_all(tree.join(dir)).with_context(|| format!("cannot create {dir} in the image"))?;
    }
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777)).context("permissions of tmp")?;
    for useless in ["usr/share/doc", "usr/share/locale", "usr/share/man", "usr/share/zoneinfo", "usr/share/perl"] {
        let _ = fs::remove_dir_all(tree.join(useless));
    }
    // For another processor it finds nothing, and the loader searches the usual directories.
    shell::output(Command::new(shell::find("ldconfig").unwrap_or_else(|| "ldconfig".into())).arg("-r").arg(&tree))?;
    let unfinished = base.join("root.img.part");
    let _ = fs::remove_file(&unfinished);
    let mut command = Command::new(shell::find("mke2fs").unwrap_or_else(|| "mke2fs".into()));
    command.args(["-q", "-F", "-t", "ext4", "-O", "^orphan_file,^metadata_csum_seed,^has_journal", "-m", "0", "-d"]);
    shell::output(command.arg(&tree).arg(&unfinished).arg("700M"))?;
    fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    fs::rename(&unfinished, &image).with_context(|| format!("cannot name {}", image.display()))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(image)
}

/// Copies `image` and puts `files` into the copy, each at its path there.
pub(super) fn with_files(image: &Path, copy: &Path, files: &[(PathBuf, String)]) -> Result<()> {
    shell::output(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(image).arg(copy))?;
    let mut script = String::new();
    for (from, to) in files {
        script.push_str(&format!("write {} {to}\nset_inode_field {to} mode 0100755\n", from.display()));
    }
    let commands = copy.with_extension("commands");
    fs::write(&commands, script).with_context(|| format!("cannot write {}", commands.display()))?;
    let debugfs = shell::find("debugfs").unwrap_or_else(|| "debugfs".into());
    shell::output(Command::new(debugfs).arg("-w").arg("-f").arg(&commands).arg(copy)).map(drop)
}
