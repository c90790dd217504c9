//! `/api/v1/profiles/activity`: what is usual for request classes at each hour of the week.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_results::analysis::activity::{ActivityProfile, ClassProfiles, NAMES, Sketch, shift_name, shift_of};

use super::known::find;
use super::params::Params;
use super::{App, PipelineView, Problem};

fn figures(sketch: &Sketch) -> Value {
    json!({
        "mean": sketch.mean(), "variance": sketch.variance(), "p05": sketch.quantile(0.05),
        "p50": sketch.quantile(0.5), "p95": sketch.quantile(0.95), "p99": sketch.quantile(0.99),
    })
}

fn resources(profile: &ActivityProfile) -> serde_json::Map<String, Value> {
    NAMES.iter().zip(&profile.sketches).map(|(name, sketch)| ((*name).to_owned(), figures(sketch))).collect()
}

fn class(service: &str, class: &str, profiles: &ClassProfiles, every_hour: bool) -> Value {
    let (basis, own_hour) = profiles.basis();
    let mut of = resources(basis);
    for (index, name) in NAMES.iter().enumerate() {
        let Some(Value::Object(figures)) = of.get_mut(*name) else { continue };
        let standing = profiles.standing(index);
        figures.insert("recent".into(), json!(standing.map(|one| one.recent)));
        figures.insert("distance_sd".into(), json!(standing.map(|one| one.distance)));
        figures.insert("deviates".into(), json!(standing.and_then(|one| one.deviates)));
        figures.insert("threshold".into(), json!(standing.map(|one| one.threshold)));
    }
    let shift = |(shift, profile): (u16, &ActivityProfile)| json!({ "shift": shift_name(shift), "windows": profile.windows(), "resources": resources(profile) });
    let shifts: Vec<Value> = if every_hour { profiles.shifts().map(shift).collect() } else { Vec::new() };
    json!({
        "service_name": service, "request_class": class, "windows": basis.windows(),
        "basis": if own_hour { "hour" } else { "all" }, "resources": of,
        "recommended": { "goal": "p95", "response_s": profiles.goal_p95_s() }, "shifts": shifts,
    })
}

fn all(view: &PipelineView<'_>, service: Option<&str>, name: Option<&str>) -> Vec<Value> {
    view.activity
        .classes()
        .filter(|((own, _), _)| service.is_none_or(|service| **own == *service))
        .filter(|((_, own), _)| name.is_none_or(|name| **own == *name))
        .map(|((service, own), profiles)| class(service, own, profiles, name.is_some()))
        .collect()
}

pub(super) async fn profiles(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    if class.is_some() && service.is_none() {
        return Err(Problem::bad("class: expected with the service it is of"));
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let shift = shift_name(shift_of(now.as_nanos() as u64));
    let answer = app.shared.ask(move |view| {
        find(view, service.as_deref(), class.as_deref())?;
        let window_s = view.history.length() as f64 / 1e9;
        Ok::<_, super::known::Unknown>((window_s, all(view, service.as_deref(), class.as_deref())))
    });
    let (window_s, rows) = answer.await??;
    Ok(Json(json!({ "window_s": window_s, "shift": shift, "profiles": rows })))
}
