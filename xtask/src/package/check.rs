//! Installs, upgrades, removes and purges the package in a copy-on-write view of this system, and looks what is left.
//!
//! The view is an overlay in a mount namespace of its own: dpkg, its database and the maintainer scripts are the system's
//! own, and every change lands in a directory that can be listed. systemd does not run there, so the scripts start
//! nothing; the check starts the unit's command itself, as the unit's user and with its capabilities.
//!
//! The image is unpacked from its layout and runs as a root directory of its own, as a container runtime would run it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell::{self, Root};

/// Runs in the new mount namespace. `$1` and `$2`: the package and a newer one; `$3`: the work directory.
const SCRIPT: &str = include_str!("check.sh");

/// In a mount namespace of its own: makes the image at `$1` a read-only root with what a runtime mounts, and runs the words after
/// `$2`, its environment, in it with `$CAPABILITIES`.
const IN_IMAGE: &str = r#"
root=$1 environment=$2; shift 2
mount --bind "$root" "$root"; mount -o remount,bind,ro "$root"
for dir in proc sys dev; do mount --rbind "/$dir" "$root/$dir"; done
mount -t tmpfs none "$root/var/lib/tracer"
exec env -i "$environment" setpriv --inh-caps="-all,$CAPABILITIES" --bounding-set="-all,$CAPABILITIES" --no-new-privs \
    unshare --root="$root" --wd=/var/lib/tracer "$@"
"#;

/// Capabilities of the DaemonSet, as setpriv writes them; `sys_chroot` is what the check itself needs, to change the root.
const CAPABILITIES: &str = "+bpf,+perfmon,+sys_ptrace,+checkpoint_restore,+dac_read_search,+syslog,+sys_chroot";

/// Runs the image as a runtime does.
pub(super) fn image(archive: &Path) -> Result<()> {
    let root = Root::obtain("run the image in a root directory of its own")?;
    let work = tempfile::tempdir()?;
    let process = super::image::unpack(archive, work.path())?;
    let words = |key: &str| -> Vec<String> {
        let list = process[key].as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    shell::progress("run the image read-only, with the DaemonSet's capabilities");
    let mut command = root.command("env");
    command.arg(format!("CAPABILITIES={CAPABILITIES}"));
    command.args(["unshare", "--mount", "--propagation", "private", "sh", "-euc", IN_IMAGE, "sh"]).arg(work.path());
    command.args(words("Env")).args(words("Entrypoint")).args(words("Cmd"));
    shell::run(command.args(["--listen", "127.0.0.1:0", "--duration", "4s"]), "its output is above")?;
    shell::progress("the image runs");
    Ok(())
}

/// Checks the package and its upgrade.
pub(super) fn run(package: &Path, upgrade: &Path) -> Result<()> {
    for (program, from) in
        [("dpkg", "dpkg"), ("unshare", "util-linux"), ("setpriv", "util-linux"), ("systemd-analyze", "systemd")]
    {
        if shell::find(program).is_none() {
            bail!("{program} is needed to check the package: install {from}");
        }
    }
    let root = Root::obtain("install the package in a copy-on-write view of this system")?;
    let work = tempfile::tempdir()?;
    // An abstract name: a path would be another inode below the overlay.
    let name = format!("tracer-package-check-{}", std::process::id());
    let reports = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    reports.set_read_timeout(Some(Duration::from_millis(200)))?;
    shell::progress("install, run, upgrade, remove and purge in a copy-on-write view of this system");
    let mut command = root.command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-eu"]);
    let script = work.path().with_extension("sh");
    std::fs::write(&script, SCRIPT)?;
    command.arg(&script).arg(package).arg(upgrade).arg(work.path()).arg(format!("@{name}"));
    let done = shell::run(&mut command, "what it saw is above");
    let _ = std::fs::remove_file(&script);
    done?;
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(length) = reports.recv(&mut bytes) {
        seen.push(String::from_utf8_lossy(&bytes[..length]).replace('\n', " "));
    }
    let count = |what: &str| seen.iter().filter(|report| report.starts_with(what)).count();
    shell::print(format!("reports to the service manager: {}", seen.join(" | ")));
    if count("READY=1") != 1 || count("WATCHDOG=1") == 0 || count("STOPPING=1") != 1 {
        bail!("the service manager expects READY once, WATCHDOG and STOPPING");
    }
    let first = seen.first().context("no reports")?;
    if !first.starts_with("READY=1") {
        bail!("the first report is {first}");
    }
    shell::progress("installed, ran, upgraded, removed, purged: nothing is left");
    Ok(())
}
