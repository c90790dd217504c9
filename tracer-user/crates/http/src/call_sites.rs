//! `GET /api/v1/call-sites`: which lines of a service make the calls of a class.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_model::Side;
use tracer_results::profiles::Filter;
use tracer_results::profiles::call_sites::called_from;

use super::known::find;
use super::params::Params;
use super::profiles::{monotonic, profile_filter, ranges, render};
use super::{App, Problem};

/// Places of an answer by default, and at most.
const LIST: usize = 20;
const LIST_MOST: usize = 200;

const PARAMS: [&str; 6] = ["service", "class", "since", "from", "to", "limit"];

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&PARAMS)?;
    let limit = params.number("limit", 1..=LIST_MOST, "a number, at least 1 and at most 200")?.unwrap_or(LIST);
    let (range, _) = ranges(&params)?;
    let (filter, _) = profile_filter(params.without(&["limit"]))?;
    let (Some(service), Some(class)) = (filter.service.clone(), filter.class.clone()) else {
        return Err(Problem::bad(
            "service, class: expected the names of the service that calls, and of the calls' class",
        ));
    };
    let found = app.shared.ask(move |view| {
        find(view, filter.service.as_deref(), filter.class.as_deref()).map_err(Problem::from)?;
        let filter = Filter { range: range.map(|range| monotonic(view, range)), ..filter };
        let calls = view.profiles.call_stacks(&filter, |id| {
            view.names.class(id).is_some_and(|info| {
                info.side == Side::Client
                    && filter.service.as_ref().is_some_and(|service| *info.service_name == **service)
                    && filter.class.as_ref().is_some_and(|class| *info.name == **class)
            })
        });
        Ok::<_, Problem>((calls, view.profiles.owners()))
    });
    let (calls, owners) = found.await??;
    let work = move || {
        let (sites, total) = called_from(&calls.stacks(), &owners, limit);
        json!({
            "service_name": service,
            "request_class": class,
            "calls_with_stack": calls.samples(),
            "sites": sites,
            "sites_total": total,
        })
    };
    Ok(Json(render(&app, work).await?))
}
