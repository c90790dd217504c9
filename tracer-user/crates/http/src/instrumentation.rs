//! `/api/v1/instrumentation`: hotspots that are traced as functions, and why.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};
use tracer_policies::instrumentation::{Action, Decision, FunctionView, Reason};

use super::params::Params;
use super::{App, Problem};

fn detail(reason: Option<&Reason>) -> Option<&str> {
    match reason {
        Some(Reason::Refused(why)) => Some(why),
        _ => None,
    }
}

fn function(one: &FunctionView) -> Value {
    let mean =
        |sum: u64| one.reading.filter(|read| read.finished > 0).map(|read| sum as f64 / 1e9 / read.finished as f64);
    let reading = one.reading.unwrap_or_default();
    json!({
        "program": &*one.id.program,
        "function": &*one.id.function,
        "state": one.state,
        "reason": one.reason.as_ref().map(Reason::name),
        "detail": detail(one.reason.as_ref()),
        "cpu_ratio": one.cpu,
        "cost_ratio": one.cost,
        "calls_per_second": one.rate,
        "count": reading.finished,
        "mean_s": mean(reading.time),
        "cpu_mean_s": mean(reading.cpu),
    })
}

fn decision(one: &Decision, wall_offset: i64) -> Value {
    json!({
        "at_ns": one.at.saturating_add_signed(wall_offset),
        "program": &*one.id.program,
        "function": &*one.id.function,
        "action": one.action.name(),
        "reason": one.reason.name(),
        "detail": detail(Some(&one.reason)),
        "cpu_ratio": one.cpu,
        "cost_ratio": one.cost,
        "calls_per_second": one.rate,
    })
}

pub(super) async fn instrumentation(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let answer = app.shared.ask(|view| {
        let all = &view.health.instrumentation;
        let counts = Action::ALL.iter().zip(all.counts).map(|(action, count)| (action.name().to_owned(), count.into()));
        json!({
            "enabled": all.auto,
            "budget_ratio": all.budget,
            "cost_ratio": all.cost,
            "functions": all.functions.iter().map(function).collect::<Vec<_>>(),
            "decisions": all.decisions.iter().map(|one| decision(one, view.wall_offset)).collect::<Vec<_>>(),
            "decision_counts": counts.collect::<Map<_, _>>(),
            "hotspots_not_kept": all.unknown,
        })
    });
    Ok(Json(answer.await?))
}
