//! `/api/v1/service-classes`: goals, attainment, and what was done for them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_policies::service_classes::ServiceClass;
use tracer_policies::service_classes::feedback::{FeedbackAction, FeedbackActions};
use tracer_policies::service_classes::lever::Actions;
use tracer_policies::service_classes::limits::EndReason;
use tracer_policies::service_classes::reset::EndActions;
use tracer_results::metrics::{AttainmentRow, Trend};

use super::params::Params;
use super::{App, PipelineView, Problem};

/// Why a class is late: what it waits for, and who took the CPU meanwhile.
fn late(view: &PipelineView<'_>, row: &AttainmentRow) -> Value {
    let classes = &view.attainment.classes().classes;
    let takers = view.attainment.takers().into_iter().map(|taker| {
        json!({
            "service_class": taker.class.and_then(|class| classes.get(class)).map(|class| &*class.name),
            "cpu_s": taker.cpu_s,
            "cpu_share": taker.share,
        })
    });
    json!({ "waits_for": row.shares.waits_for().name(), "cpu_taken_by": takers.collect::<Vec<_>>() })
}

fn row(view: &PipelineView<'_>, row: &AttainmentRow) -> Value {
    json!({
        "service_name": &*view.names.service(row.service),
        "count": row.count,
        "errors": row.errors,
        "cpu_s": row.cpu_s,
        "recent_count": row.recent,
        "p50_s": row.p50_s,
        "p95_s": row.p95_s,
        "p99_s": row.p99_s,
        "mean_s": row.mean_s,
        "actual_s": row.actual_s,
        "trend": row.trend.map(Trend::name),
        "time_shares": {
            "queue": row.shares.queue, "runqueue": row.shares.runqueue, "cpu": row.shares.cpu,
            "blocked": row.shares.blocked,
        },
        "attained": row.attained,
        "late": (row.attained == Some(false)).then(|| late(view, row)),
    })
}

/// How far a class is lowered, and why.
fn feedback(actions: &FeedbackActions) -> Value {
    let counts =
        FeedbackAction::ALL.iter().zip(actions.counts).map(|(action, count)| (action.name().to_owned(), count.into()));
    let last = actions.last.as_ref().map(|last| {
        json!({
            "decision": last.action.name(),
            "at_ns": last.at,
            "for_class": last.cause.as_deref(),
            "actual_to_goal_ratio": last.cause.as_ref().map(|_| last.ratio),
        })
    });
    json!({ "nice": actions.nice, "decisions": counts.collect::<serde_json::Map<_, _>>(), "last": last })
}

/// Which requests were ended, and why.
fn ends(actions: &EndActions) -> Value {
    let by_reason = |counts: [u64; EndReason::ALL.len()]| {
        let named = EndReason::ALL.iter().zip(counts).map(|(reason, count)| (reason.name().to_owned(), count.into()));
        named.collect::<serde_json::Map<_, _>>()
    };
    json!({
        "ended": by_reason(actions.ended), "would_end": by_reason(actions.would_end), "refused": actions.refused,
    })
}

fn class(view: &PipelineView<'_>, rows: &[AttainmentRow], index: usize, class: &ServiceClass) -> Value {
    let services: Vec<Value> = rows.iter().filter(|one| one.class == index).map(|one| row(view, one)).collect();
    let Actions { applied, would_apply, restored, refused } =
        view.health.enforcement.actions.get(index).cloned().unwrap_or_default();
    let network = view.health.enforcement.network.get(index).copied().unwrap_or_default();
    let actions = || view.health.enforcement.feedback.get(index).cloned().unwrap_or_default();
    let feedback = class.auto.then(|| feedback(&actions()));
    json!({
        "service_class": &*class.name,
        "importance": class.importance,
        "cpu_priority": class.cpu_name(),
        "feedback": feedback,
        "goal": { "kind": class.goal.name(), "response_s": class.goal.time().map(|time| time.as_secs_f64()) },
        "services": services,
        "actions": { "applied": applied, "would_apply": would_apply, "restored": restored, "refused": refused },
        "network_priority": class.network.name(),
        "network_actions": {
            "applied": network.applied, "would_apply": network.would_apply, "restored": network.restored,
            "refused": network.refused,
        },
        "end_after_s": class.limits.end_after.map(|time| time.as_secs_f64()),
        "max_open": class.limits.max_open,
        "end_actions": ends(view.health.enforcement.ends.get(index).unwrap_or(&EndActions::default())),
    })
}

pub(super) async fn service_classes(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let answer = app.shared.ask(|view| {
        let rows = view.attainment.rows();
        let classes = view.attainment.classes().classes.iter().enumerate();
        let classes: Vec<Value> = classes.map(|(index, one)| class(view, &rows, index, one)).collect();
        json!({
            "enforcement": view.health.enforcement.mode.name(),
            "threads_changed": view.health.enforcement.threads,
            "connections_changed": view.health.enforcement.connections,
            "unknown_class_requests": view.attainment.unknown(),
            "service_classes": classes,
        })
    });
    Ok(Json(answer.await?))
}
