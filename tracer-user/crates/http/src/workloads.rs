//! `/api/v1/workloads`: the host's CPU by command, user, cgroup or systemd unit, and the console's page of it.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Html;
use serde_json::{Value, json};
use tracer_model::HostCpu;
use tracer_results::workloads::{GroupBy, Grouping};

use super::console::{PageProblem, PageQuery};
use super::markup::{Page, Safe};
use super::params::Params;
use super::{App, PipelineView, Problem};

/// Most groups in one answer.
const LIST: usize = 1_000;

/// The parts of the host's CPU besides the groups: their sum with the groups is `attributed_cpu_s`.
struct Sums {
    kernel: f64,
    unreported: f64,
    attributed: f64,
    system: f64,
}

impl Sums {
    fn of(grouping: &Grouping, host: &HostCpu) -> Self {
        // What the engine has charged and these books have not seen yet, or the other way round, was used all the same.
        let charged = host.requests + host.overhead;
        let unreported = (charged + host.unreported - grouping.cpu_s).max(0.0);
        let attributed = grouping.cpu_s + host.kernel + unreported;
        Self { kernel: host.kernel, unreported, attributed, system: host.system_busy }
    }

    fn ratio(&self) -> Option<f64> {
        (self.system > 0.0).then(|| self.attributed / self.system)
    }
}

fn grouping(view: &PipelineView<'_>, by: GroupBy) -> (Grouping, Sums) {
    let grouping = view.workloads.grouping(by);
    let sums = Sums::of(&grouping, &view.health.host_cpu);
    (grouping, sums)
}

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["by", "limit"])?;
    let by = params.read("by", "command, user, cgroup or unit", GroupBy::named)?.unwrap_or(GroupBy::Command);
    let limit = params.number("limit", 1..=LIST, "1 to 1000")?.unwrap_or(LIST);
    let (grouping, sums) = app.shared.ask(move |view| grouping(view, by)).await?;
    let total = grouping.groups.len();
    let rows: Vec<Value> = grouping
        .groups
        .iter()
        .take(limit)
        .map(|group| {
            json!({
                "name": group.name, "cpu_s": group.cpu_s, "requests_cpu_s": group.requests_s,
                "overhead_cpu_s": (group.cpu_s - group.requests_s).max(0.0), "cores": group.cores,
                "processes": group.processes, "processes_started": group.started,
            })
        })
        .collect();
    Ok(Json(json!({
        "by": by.name(), "workloads": rows, "workloads_total": total, "workloads_cpu_s": grouping.cpu_s,
        "kernel_cpu_s": sums.kernel, "unreported_cpu_s": sums.unreported, "attributed_cpu_s": sums.attributed,
        "system_cpu_s": sums.system, "capture_ratio": sums.ratio(),
    })))
}

pub(super) async fn page(State(app): State<Arc<App>>, query: PageQuery) -> Result<Html<String>, PageProblem> {
    let answer = app.shared.ask(|view| (view.health.clone(), GroupBy::ALL.map(|by| (by, grouping(view, by)))));
    let (health, groupings) = answer.await?;
    let mut body = String::new();
    for (by, (grouping, _)) in &groupings {
        let _ = write!(
            body,
            "<section><h2>CPU by {}</h2><table><thead><tr><th>name<th class=n>CPU<th class=n>for requests<th class=n>cores<th class=n>processes</thead><tbody>",
            by.name()
        );
        for group in grouping.groups.iter().take(20) {
            let _ = write!(
                body,
                "<tr><td>{}<td class=n>{:.2} s<td class=n>{:.2} s<td class=n>{:.2}<td class=n>{}",
                Safe(&group.name),
                group.cpu_s,
                group.requests_s,
                group.cores,
                group.processes
            );
        }
        body.push_str("</tbody></table></section>");
    }
    Ok(Page::drawn("workloads", "Workloads", query.refresh).render(&health, &body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_what_the_host_used() {
        let host = HostCpu {
            requests: 3.0,
            overhead: 4.0,
            kernel: 1.0,
            unreported: 0.5,
            system_busy: 8.5,
            ..HostCpu::default()
        };
        let sums = Sums::of(&Grouping { cpu_s: 6.5, ..Grouping::default() }, &host);
        assert!((sums.unreported - 1.0).abs() < 1e-9 && (sums.attributed - 8.5).abs() < 1e-9);
        assert_eq!(sums.ratio(), Some(1.0));
        assert_eq!(Sums::of(&Grouping::default(), &HostCpu::default()).ratio(), None);
    }
}
