//! `tracer doctor`: what this kernel and these privileges allow.

use std::path::Path;

use serde_json::json;

use super::Failure;
use crate::kernel::btf::Btf;
use crate::kernel::load::{self, Options};
use crate::kernel::probes::plan;
use crate::kernel::{offsets, selftest};

/// One line of the report.
struct Line {
    what: String,
    state: &'static str,
    detail: String,
}

fn line(what: impl Into<String>, state: &'static str, detail: impl Into<String>) -> Line {
    Line { what: what.into(), state, detail: detail.into() }
}

/// Prints the report; fails with 77 when tracing is not possible.
pub fn doctor(as_json: bool) -> Result<(), Failure> {
    let mut lines = Vec::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    lines.push(line("kernel", "ok", release.trim()));
    let mut possible = true;
    match Btf::of_kernel() {
        Ok(btf) => {
            lines.push(line("kernel types (BTF)", "ok", "/sys/kernel/btf/vmlinux"));
            if let Err(missing) = offsets::resolve(&btf) {
                possible = false;
                lines.push(line("struct members", "missing", missing.join(", ")));
            }
            for plan in plan(&btf).iter().filter(|plan| plan.hook.is_none()) {
                possible &= !plan.probe.mandatory;
                let state = if plan.probe.mandatory { "missing" } else { "degraded" };
                let names: Vec<&str> = plan.probe.hooks.iter().map(|hook| hook.name()).collect();
                lines.push(line(
                    format!("hook {}", names.join(" or ")),
                    state,
                    format!("not in this kernel: {}", plan.probe.without),
                ));
            }
        }
        Err(error) => {
            possible = false;
            lines.push(line("kernel types (BTF)", "missing", error.to_string()));
        }
    }
    lockdown(&mut lines);
    let mut failure = None;
    if possible {
        match load::load(Options { hertz: 99, log_level: 0 }) {
            Ok((mut kernel, mut rings)) => {
                for attached in &kernel.attached {
                    let verified = attached.verified.map_or_else(String::new, |n| format!("{n} instructions verified"));
                    lines.push(match &attached.missing {
                        None => line(format!("program {} on {}", attached.program, attached.hook), "ok", verified),
                        Some(why) => line(
                            format!("program {} on {}", attached.program, attached.hook),
                            "degraded",
                            format!("{why}: {}", attached.without),
                        ),
                    });
                }
                for finding in selftest::run(&mut kernel, &mut rings)? {
                    let what = format!("self-test, {} sockets", finding.family);
                    lines.push(match finding.fault {
                        None => line(what, "ok", "every operation seen exactly once, with its bytes"),
                        Some(fault) => line(what, if finding.family == "udp" { "degraded" } else { "missing" }, fault),
                    });
                }
            }
            Err(error) => {
                lines.push(line("loading", "missing", error.to_string()));
                failure = Some(error);
            }
        }
    }
    let stats = std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap_or_default();
    if stats.trim() == "1" {
        lines.push(line(
            "kernel.bpf_stats_enabled",
            "degraded",
            "is 1: every program run costs about 40 ns more; set it to 0 except for measuring",
        ));
    }
    print(&lines, as_json);
    let missing = lines.iter().any(|line| line.state == "missing");
    match failure {
        Some(error) => Err(error.into()),
        None if missing => Err(Failure::SelfTest("this host cannot be traced; see the lines marked missing".into())),
        None => Ok(()),
    }
}

fn lockdown(lines: &mut Vec<Line>) {
    let path = Path::new("/sys/kernel/security/lockdown");
    if let Ok(text) = std::fs::read_to_string(path) {
        let mode = text.split(['[', ']']).nth(1).unwrap_or("none").to_owned();
        let state = if mode == "confidentiality" { "degraded" } else { "ok" };
        lines.push(line("lockdown", state, mode));
    }
}

fn print(lines: &[Line], as_json: bool) {
    if as_json {
        let all: Vec<_> =
            lines.iter().map(|line| json!({ "what": line.what, "state": line.state, "detail": line.detail })).collect();
        println!("{}", json!({ "checks": all }));
        return;
    }
    for line in lines {
        println!("{:<9} {:<48} {}", line.state, line.what, line.detail);
    }
}
