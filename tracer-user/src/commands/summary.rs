//! The table printed at the end.

use std::fmt::Write as _;

use tracer_host::guard::shed::Level;
use tracer_http::Health;
use tracer_model::{ClassId, Names, Side};

use crate::pipeline::Pipeline;

/// Formats a time in a suitable unit.
fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        s if s < 0.001 => format!("{:.0}us", s * 1e6),
        s if s < 0.1 => format!("{:.1}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s => format!("{s:.2}s"),
    }
}

/// Classes as a table, the busiest first; then the host's CPU and what was lost.
pub(super) fn table(pipeline: &Pipeline, health: Option<&Health>) -> String {
    let mut table = String::new();
    // A string takes everything.
    let _ = write_table(&mut table, pipeline, health);
    table
}

fn write_table(out: &mut String, pipeline: &Pipeline, health: Option<&Health>) -> std::fmt::Result {
    let names: &Names = pipeline.names();
    writeln!(
        out,
        "{:<14} {:<34} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
        "SERVICE", "CLASS", "COUNT", "ERRORS", "UNFIN.", "P50", "P95", "P99", "CPU EACH", "QUEUE", "DOWNSTR"
    )?;
    let mut rows: Vec<_> = (0..names.classes.len() as u32)
        .map(ClassId)
        .filter_map(|id| names.class(id).map(|info| (info, pipeline.stats.figures(id))))
        .filter(|(_, figures)| figures.count > 0)
        .collect();
    rows.sort_by(|(a, x), (b, y)| {
        (&a.service_name, a.side, std::cmp::Reverse(x.count)).cmp(&(
            &b.service_name,
            b.side,
            std::cmp::Reverse(y.count),
        ))
    });
    for (info, figures) in rows {
        let name = if info.side == Side::Client { format!("-> {}", info.name) } else { info.name.to_string() };
        writeln!(
            out,
            "{:<14} {:<34} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
            info.service_name,
            name,
            figures.count,
            figures.errors,
            figures.unfinished,
            time(figures.p50_s),
            time(figures.p95_s),
            time(figures.p99_s),
            if info.side == Side::Server { time(figures.cpu_s) } else { "-".into() },
            time(figures.queue_s),
            time(figures.downstream_s),
        )?;
    }
    if let Some(host_cpu) = health.map(|health| &health.host_cpu) {
        let ratio = host_cpu.capture_ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.4}"));
        writeln!(
            out,
            "\nCPU: {:.2}s requests, {:.2}s overhead, {:.2}s kernel threads, {:.2}s not yet reported; the system says {:.2}s: capture ratio {ratio}",
            host_cpu.requests, host_cpu.overhead, host_cpu.kernel, host_cpu.unreported, host_cpu.system_busy
        )?;
    }
    let lost = pipeline.metrics.events_lost().iter().map(|(_, count)| count).sum::<u64>();
    writeln!(out, "events lost: {lost}")?;
    if pipeline.shed_most() > Level::Full {
        writeln!(
            out,
            "load was shed to stay within the agent's own ceilings (--max-memory, --max-cpu), up to: {}",
            pipeline.shed_most().what()
        )?;
    }
    Ok(())
}
