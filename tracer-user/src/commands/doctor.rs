//! `tracer doctor`: reports what this kernel and these privileges allow, the consequences, and the BPF programs.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use tracer_host::stat;
use tracer_kernel::btf::Btf;
use tracer_kernel::features::{Feature, FeatureState, Settings, judge};
use tracer_kernel::inband::InBand;
use tracer_kernel::loader::{self, Attached, LoadError, Options};
use tracer_kernel::log_lines::LogLineMode;
use tracer_kernel::probes::plan;
use tracer_kernel::send_priority::SendPriorityMode;
use tracer_kernel::trace_contexts::TraceContextMode;
use tracer_kernel::{offsets, selftest};
use tracer_policies::service_classes::{reset, thread_priority};

use super::{Failure, doctor_relay, doctor_runtimes, doctor_tls};
use crate::config::Config;

/// Findings of the report.
#[derive(Default)]
struct Report {
    kernel: String,
    features: Vec<Feature>,
    programs: Vec<Attached>,
    libraries: doctor_tls::Libs,
    runtimes: doctor_runtimes::Runtimes,
}

/// Prints the report; fails with 77 when tracing is not possible.
///
/// With a configuration it also checks the relay settings.
pub fn doctor(as_json: bool, config: Option<&Path>) -> Result<(), Failure> {
    let config = config.map(Config::load).transpose()?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut report = Report { kernel: release.trim().to_owned(), ..Report::default() };
    let mut failure = None;
    let mut of_types = Settings::default();
    match Btf::of_kernel() {
        Ok(btf) => {
            of_types = Settings::of_types(&btf);
            report.features.extend(lacking(&btf));
        }
        Err(error) => report.features.push(Feature::less(
            "kernel types (BTF)",
            FeatureState::Missing,
            error.to_string(),
            NOTHING,
            "a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels are; /sys mounted",
        )),
    }
    if report.features.is_empty() {
        match loader::load(&Options {
            hertz: 99,
            all: true,
            log_level: 0,
            inband: InBand::Tried,
            send_priority: SendPriorityMode::Tried,
            log_lines: LogLineMode::Tried,
            exceptions: true,
            trace_contexts: TraceContextMode::Tried,
        }) {
            Ok((mut kernel, mut rings)) => {
                // What it finds is in `no_unwind`.
                let _ = kernel.try_unwinding(&mut rings);
                let findings = selftest::run(&mut kernel, &mut rings)?;
                let exact = stat::read().is_some_and(|cpu| cpu.exact);
                let mut settings = Settings::read(&of_types, exact);
                settings.header_limits.clone_from(&kernel.header_limits);
                settings.no_unwind.clone_from(&kernel.no_unwind);
                settings.fixed_rate = kernel.sampler.set_hertz(49).err().map(|error| error.to_string());
                report.features = judge(&kernel.attached, &findings, &settings);
                report.programs.clone_from(&kernel.attached);
            }
            Err(error) => {
                report.features.push(Feature::less(
                    "loading",
                    FeatureState::Missing,
                    error.to_string(),
                    NOTHING,
                    remedy(&error),
                ));
                failure = Some(error);
            }
        }
    }
    report.features.extend([priorities(), resets()]);
    report.features.extend(config.as_ref().and_then(doctor_relay::relay));
    report.libraries = doctor_tls::find();
    report.runtimes = doctor_runtimes::find();
    let text = if as_json { format!("{}\n", report.json()) } else { report.text() };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let missing = report.features.iter().any(|feature| feature.state == FeatureState::Missing);
    match failure {
        Some(error) => Err(error.into()),
        None if missing => Err(Failure::SelfTest("this host cannot be traced; see the lines marked missing".into())),
        None => Ok(()),
    }
}

/// Whether CPU priorities of service classes can be enforced.
fn priorities() -> Feature {
    const NAME: &str = "service classes";
    if let Some(why) = thread_priority::obstacle() {
        let follows = "--enforce on is refused; goals are measured, and a dry run says what would be done";
        let remedy = "root, or CAP_SYS_NICE, outside any process-id namespace (docs/service-classes.md)";
        return Feature::less(NAME, FeatureState::Degraded, why, follows, remedy);
    }
    let grouped = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|on| on.trim() == "1");
    let detail = if grouped {
        "thread priorities can be changed and restored; they decide between threads of one session and cgroup \
         (autogroups are on)"
    } else {
        "thread priorities can be changed and restored; they decide between threads of one cgroup"
    };
    Feature::full(NAME, detail)
}

/// Whether requests of service classes can be ended.
fn resets() -> Feature {
    const NAME: &str = "limits of requests";
    match reset::selftest() {
        Ok(()) => Feature::full(NAME, "connections can be reset"),
        Err(why) => {
            let follows = "--enforce on is refused where a service class has end_after or max_open";
            let remedy = "CAP_NET_ADMIN, and a kernel with CONFIG_INET_DIAG_DESTROY (docs/service-classes.md)";
            Feature::less(NAME, FeatureState::Degraded, why, follows, remedy)
        }
    }
}

/// Consequence of a missing requirement of all tracing.
const NOTHING: &str = "nothing can be traced";

/// Features required for tracing that this kernel lacks.
fn lacking(btf: &Btf) -> Vec<Feature> {
    let mut found = Vec::new();
    if let Err(missing) = offsets::resolve(btf) {
        found.push(Feature::less(
            "kernel structures",
            FeatureState::Missing,
            format!("not in this kernel's types: {}", missing.join(", ")),
            NOTHING,
            "a kernel the README's table names; if yours is newer, report this line",
        ));
    }
    for plan in plan(btf).iter().filter(|plan| plan.lacks_hook()) {
        let names: Vec<&str> = plan.probe.hooks.iter().map(|hook| hook.name()).collect();
        found.push(Feature::less(
            "hooks",
            FeatureState::Missing,
            format!("this kernel has no {}", names.join(" or ")),
            &format!("{NOTHING}: {}", plan.probe.without),
            "a kernel the README's table names",
        ));
    }
    found
}

fn remedy(error: &LoadError) -> &'static str {
    match error {
        LoadError::NoObject => "cargo xtask build --release",
        LoadError::Privileges => {
            "run as root, or give the process CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_PTRACE"
        }
        _ => "a kernel the README's table names; if yours is one of them, report this line",
    }
}

impl Report {
    /// One line per feature, then one per program.
    fn text(&self) -> String {
        let mut text = format!("Linux {}\n\n", self.kernel);
        for feature in &self.features {
            text.push_str(&format!("{}\n", feature.line()));
        }
        text.push_str(&format!("\n{}", doctor_tls::text(&self.libraries)));
        text.push_str(&format!("\n{}", doctor_runtimes::text(&self.runtimes)));
        if self.programs.is_empty() {
            return text;
        }
        text.push_str(&format!("\n{:<14} {:<24} {:>10} {:>8} {:>9}\n", "program", "on", "verified", "bytes", "load"));
        let number = |n: Option<u32>| n.map_or_else(|| "-".into(), |n| n.to_string());
        for program in &self.programs {
            let built = &program.built;
            let load = format!("{:.1} ms", built.load.as_secs_f64() * 1e3);
            let (verified, jited) = (number(built.verified), number(built.jited));
            text.push_str(&format!(
                "{:<14} {:<24} {verified:>10} {jited:>8} {load:>9}\n",
                program.program, program.hook
            ));
            if let Some(why) = &program.missing {
                text.push_str(&format!("{:<14} not attached: {why}; so {}\n", "", program.without));
            }
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let features = self.features.iter().map(|f| {
            json!({
                "name": f.name, "state": f.state.name(), "detail": f.detail,
                "consequence": f.consequence, "remedy": f.remedy,
            })
        });
        let programs = self.programs.iter().map(|p| {
            json!({
                "program": p.program, "hook": p.hook, "when": p.when.name(), "attached": p.missing.is_none(), "missing": p.missing,
                "verified_instructions": p.built.verified, "jited_bytes": p.built.jited,
                "private_stack": p.built.private_stack,
                "load_ms": p.built.load.as_secs_f64() * 1e3,
            })
        });
        let worst = self.features.iter().map(|feature| feature.state).max().unwrap_or(FeatureState::Missing);
        json!({
            "kernel": self.kernel,
            "state": worst.name(),
            "features": features.collect::<Vec<_>>(),
            "tls_libraries": doctor_tls::json(&self.libraries),
            "runtimes": doctor_runtimes::json(&self.runtimes),
            "programs": programs.collect::<Vec<_>>(),
        })
    }
}
