//! What the agent cannot do on this kernel: from what could not be attached, and from the self-test.

use tracer_http::Health;
use tracer_kernel::loader::Kernel;
use tracer_kernel::rings::Rings;
use tracer_kernel::selftest;

use super::Failure;
use crate::config::Config;

/// Runs the self-test and says what follows from it and from what could not be attached.
pub(super) fn check(kernel: &mut Kernel, rings: &mut Rings, host: String, config: &Config) -> Result<Health, Failure> {
    let mut health = Health { host, ceilings: Some(config.limits.ceilings), ..Health::default() };
    for attached in &kernel.attached {
        if let Some(why) = &attached.missing {
            health.degraded.push(format!("{}: {why}; {}", attached.hook, attached.without));
        }
    }
    if let Some(why) = &kernel.no_unwind {
        health.degraded.push(format!("stacks are followed by frame pointers only: {why}"));
    }
    if let Some(why) = &kernel.no_trace_contexts {
        health.degraded.push(format!("trace contexts are not published: {why}"));
    }
    if kernel.headers.is_some() {
        let line = |limit: &String| format!("traceparent headers, self-test: {limit}");
        health.degraded.extend(kernel.header_limits.iter().map(line));
    }
    let findings = selftest::run(kernel, rings)?;
    for finding in findings {
        let Some((what, is_ready)) = finding.verdict(&config.protocols.dns_ports) else { continue };
        log::error!("{what}");
        if is_ready { &mut health.degraded } else { &mut health.not_ready }.push(what);
    }
    Ok(health)
}
