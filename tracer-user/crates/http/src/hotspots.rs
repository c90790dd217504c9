//! `GET /api/v1/hotspots`: functions by their own and their total time, and their shares in the service's other classes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_model::ClassId;
use tracer_results::profiles::hotspots::{Hotspot, Shares, hotspots, shares};
use tracer_results::profiles::{Filter, Snapshot};

use super::dimensions::{self, DimensionQuery};
use super::known::find;
use super::params::Params;
use super::profiles::{monotonic, profile_filter, ranges, render};
use super::{App, PipelineView, Problem, slow_requests};

/// Functions of an answer by default, and at most.
const LIST: usize = 50;
const LIST_MOST: usize = 500;
/// Classes whose shares are compared.
const CLASSES: usize = 8;

/// The profile that is asked for, and those of classes to compare with, by name.
type Profiles = (Snapshot, Vec<(String, Snapshot)>);

fn profiles(view: &PipelineView<'_>, filter: &Filter) -> Option<Profiles> {
    if let Some(span) = filter.span {
        return Some((view.profiles.snapshot_of(span, filter.view)?, Vec::new()));
    }
    let named = |(index, info): (usize, &tracer_model::ClassInfo)| {
        let is_asked = filter.service.as_ref().is_none_or(|service| *info.service_name == **service)
            && filter.class.as_ref().is_some_and(|class| *info.name == **class);
        is_asked.then_some(ClassId(index as u32))
    };
    let own = view.names.classes.iter().enumerate().find_map(named);
    let by_class = view.profiles.snapshots_by_class(view.names, filter, own, CLASSES);
    let name = |(class, snapshot)| Some((view.names.class(class)?.name.to_string(), snapshot));
    Some((view.profiles.snapshot(view.names, filter), by_class.into_iter().filter_map(name).collect()))
}

/// Parameters: those of a profile without a comparison, and a limit.
const PARAMS: [&str; 12] =
    ["service", "class", "kind", "since", "from", "to", "from_ns", "until_ns", "span", "limit", "dimension", "value"];

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&PARAMS)?;
    let limit = params.number("limit", 1..=LIST_MOST, "a number, at least 1 and at most 500")?.unwrap_or(LIST);
    let (range, _) = ranges(&params)?;
    let kind = params.string("kind").unwrap_or_else(|| "cpu".into());
    let asked = dimensions::asked(&params)?;
    let (filter, _) = profile_filter(params.without(&["limit"]))?;
    if filter.service.is_none() && filter.span.is_none() {
        return Err(Problem::bad("service: expected the name of a service, or span"));
    }
    let (service, class) = (filter.service.clone(), filter.class.clone());
    let found = app.shared.ask(move |view| {
        find(view, filter.service.as_deref(), filter.class.as_deref()).map_err(Problem::from)?;
        let mut filter = Filter { range: range.map(|range| monotonic(view, range)), ..filter };
        DimensionQuery::select(asked.as_ref(), view, &mut filter)?;
        Ok::<_, Problem>((profiles(view, &filter), view.profiles.owners()))
    });
    let (found, owners) = found.await??;
    let (whole, classes) = found.ok_or_else(|| Problem::missing(slow_requests::NOT_KEPT))?;
    let work = move || {
        let functions = hotspots(&whole.stacks(), &owners, limit);
        let of =
            |(name, snapshot): (String, Snapshot)| (name, snapshot.seconds(), shares(&snapshot.stacks(), &functions));
        let classes: Vec<_> = classes.into_iter().map(of).collect();
        let row = |(index, function): (usize, &Hotspot)| {
            let mut row = serde_json::to_value(function).unwrap_or_default();
            let shares = classes.iter().map(|(name, _, shares)| {
                let own: Shares = shares.get(index).copied().unwrap_or_default();
                json!({ "request_class": name, "self_share": own.self_share, "total_share": own.total_share })
            });
            row["classes"] = Value::Array(shares.collect());
            row
        };
        json!({
            "service_name": service,
            "request_class": class,
            "kind": kind,
            "seconds": whole.seconds(),
            "functions": functions.iter().enumerate().map(row).collect::<Vec<_>>(),
            "classes": classes.iter().map(|(name, seconds, _)| json!({ "request_class": name, "seconds": seconds })).collect::<Vec<_>>(),
        })
    };
    Ok(Json(render(&app, work).await?))
}
