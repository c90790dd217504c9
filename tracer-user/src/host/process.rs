//! Facts of a process, from `/proc`.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Most bytes read of any file of a process.
const READ_LIMIT: u64 = 16 * 1024;
/// Most arguments kept.
const ARGUMENTS: usize = 32;

/// What is known of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Clock ticks since boot at which it started: with `pid`, its identity.
    pub start_time: u64,
    /// Name of its main thread.
    pub comm: String,
    /// Path of its program, empty when not readable.
    pub exe: String,
    /// Arguments, bounded.
    pub cmdline: Vec<String>,
    /// Path in the cgroup hierarchy.
    pub cgroup: String,
    /// `OTEL_SERVICE_NAME`, or `service.name` of `OTEL_RESOURCE_ATTRIBUTES`, from its environment.
    pub otel_service: Option<String>,
}

impl ProcessFacts {
    /// Whether it is an interpreter of Python, by its name.
    pub fn is_python(&self) -> bool {
        self.exe.rsplit('/').next().is_some_and(|name| name.starts_with("python"))
    }
}

/// Reads the facts of a process; `None` when it is gone.
pub fn read(pid: u32) -> Option<ProcessFacts> {
    let dir = format!("/proc/{pid}");
    let file = |name: &str| bytes(&format!("{dir}/{name}")).unwrap_or_default();
    // The link is read and never followed.
    let exe = std::fs::read_link(Path::new(&dir).join("exe")).map(|path| path.into_os_string().into_vec());
    let files = Files {
        stat: &bytes(&format!("{dir}/stat"))?,
        cmdline: &file("cmdline"),
        cgroup: &file("cgroup"),
        environ: &file("environ"),
        exe: &exe.unwrap_or_default(),
    };
    facts(pid, &files)
}

/// The files of a process, their first `READ_LIMIT` bytes; empty where there are none. The process decides what most
/// of them say.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// `/proc/PID/stat`.
    pub stat: &'a [u8],
    /// `/proc/PID/cmdline`.
    pub cmdline: &'a [u8],
    /// `/proc/PID/cgroup`.
    pub cgroup: &'a [u8],
    /// `/proc/PID/environ`.
    pub environ: &'a [u8],
    /// What the link `/proc/PID/exe` says.
    pub exe: &'a [u8],
}

/// What the files of a process say; `None` when `stat` is not one. Total: any bytes.
pub fn facts(pid: u32, files: &Files<'_>) -> Option<ProcessFacts> {
    let (comm, start_time) = parse_stat(&String::from_utf8_lossy(files.stat))?;
    Some(ProcessFacts {
        pid,
        start_time,
        comm,
        exe: String::from_utf8_lossy(files.exe).trim_end_matches(" (deleted)").to_owned(),
        cmdline: arguments(files.cmdline),
        cgroup: cgroup(&String::from_utf8_lossy(files.cgroup)),
        otel_service: otel_service(files.environ),
    })
}

fn bytes(path: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    File::open(path).ok()?.take(READ_LIMIT).read_to_end(&mut out).ok()?;
    Some(out)
}

/// `comm` and start time out of `/proc/PID/stat`; the name is in parentheses and may hold any character.
fn parse_stat(stat: &str) -> Option<(String, u64)> {
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let comm = stat.get(open + 1..close)?.to_owned();
    let start = stat.get(close + 1..)?.split_whitespace().nth(19)?.parse().ok()?;
    Some((comm, start))
}

fn arguments(cmdline: &[u8]) -> Vec<String> {
    cmdline
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .take(ARGUMENTS)
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

/// The unified hierarchy's path, or systemd's in a hybrid one.
fn cgroup(lines: &str) -> String {
    let path = |prefix: &str| {
        lines.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.strip_prefix(prefix).map(str::to_owned)
        })
    };
    let unified = path(":").filter(|path| path != "/");
    unified.or_else(|| path("name=systemd:")).unwrap_or_default()
}

fn otel_service(environ: &[u8]) -> Option<String> {
    let variable = |name: &str| {
        environ.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        })
    };
    let named = variable("OTEL_SERVICE_NAME").filter(|name| !name.trim().is_empty());
    named.or_else(|| {
        variable("OTEL_RESOURCE_ATTRIBUTES")?.split(',').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key.trim() == "service.name").then(|| value.trim().to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_survives_odd_names() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_stat(&format!("7 (a) b) {rest}")), Some(("a) b".into(), 4242)));
        for bad in ["", "7", "7 (x", "7 )x( 1", "7 (x) S 1"] {
            assert_eq!(parse_stat(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_has_facts() {
        let facts = read(std::process::id()).unwrap();
        assert!(facts.start_time > 0 && !facts.exe.is_empty() && !facts.cmdline.is_empty());
        assert_eq!(read(u32::MAX), None);
    }

    #[test]
    fn environment_names() {
        for (environ, expected) in [
            (&b"A=1\0OTEL_SERVICE_NAME=shop\0"[..], Some("shop")),
            (b"OTEL_RESOURCE_ATTRIBUTES=a=b,service.name=cart\0", Some("cart")),
            (b"OTEL_SERVICE_NAME=\0OTEL_RESOURCE_ATTRIBUTES=x", None),
            (b"NOT_OTEL_SERVICE_NAME=x", None),
        ] {
            assert_eq!(otel_service(environ).as_deref(), expected);
        }
    }

    #[test]
    fn cgroups_of_both_layouts() {
        assert_eq!(cgroup("0::/system.slice/nginx.service\n"), "/system.slice/nginx.service");
        assert_eq!(cgroup("1:name=systemd:/system.slice/a.service\n0::/\n"), "/system.slice/a.service");
        assert_eq!(cgroup("garbage"), "");
    }
}
