//! The table printed at the end.

use crate::guard::shed::Level;
use crate::http::Health;
use crate::model::{ClassId, Names, Side};
use crate::pipeline::Pipeline;

/// A time in the unit that suits it.
fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        s if s < 0.001 => format!("{:.0}us", s * 1e6),
        s if s < 0.1 => format!("{:.1}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s => format!("{s:.2}s"),
    }
}

/// Classes as a table, the busiest first; then the host's books and what was lost.
pub(super) fn print(pipeline: &Pipeline, health: Option<&Health>) {
    let names: &Names = pipeline.names();
    println!(
        "{:<14} {:<34} {:>8} {:>7} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
        "SERVICE", "CLASS", "COUNT", "ERRORS", "P50", "P95", "P99", "CPU EACH", "QUEUE", "DOWNSTR"
    );
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
        println!(
            "{:<14} {:<34} {:>8} {:>7} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}",
            info.service_name,
            name,
            figures.count,
            figures.errors,
            time(figures.p50_s),
            time(figures.p95_s),
            time(figures.p99_s),
            if info.side == Side::Server { time(figures.cpu_s) } else { "-".into() },
            time(figures.queue_s),
            time(figures.downstream_s),
        );
    }
    if let Some(books) = health.map(|health| &health.books) {
        let ratio = books.capture_ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.4}"));
        println!(
            "\nCPU: {:.2}s requests, {:.2}s overhead, {:.2}s kernel threads, {:.2}s not yet reported; the system says {:.2}s: capture ratio {ratio}",
            books.requests, books.overhead, books.kernel, books.unreported, books.system_busy
        );
    }
    println!("events lost: {}", health.map_or(0, |health| health.lost));
    if pipeline.shed_most() > Level::Full {
        println!(
            "load was shed to stay within the agent's own ceilings (--max-memory, --max-cpu), up to: {}",
            pipeline.shed_most().what()
        );
    }
}
