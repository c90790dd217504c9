//! `GET /api/v1/edges`: who calls whom, how often and how long, for the service map and for lists of callers and callees.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use tracer_model::ClassId;
use tracer_model::text::printable;
use tracer_results::store::{Callee, EdgeKey, EdgeSample};

use super::known::find;
use super::page::Page;
use super::params::Params;
use super::{App, PipelineView, Problem};

/// One edge as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct EdgeView {
    /// The calling service, and the class of its request that made the call; `null`: its parent is not known.
    caller_service: String,
    caller_class: Option<String>,
    /// Class and protocol of the call, as the caller sees it.
    call_class: String,
    protocol: &'static str,
    /// The service that served it and its class; `null`: nothing on this host that the agent saw.
    callee_service: Option<String>,
    callee_class: Option<String>,
    /// Address and port of the other end, where the service is not known.
    peer: Option<String>,
    /// Calls among the newest transactions, and how many of them failed.
    calls: u64,
    errors: u64,
    /// Mean duration of these as the caller saw them, seconds; `null` without calls.
    mean_s: Option<f64>,
    /// The rate of the call's class, shared out by `calls`, per second.
    rate_per_s: f64,
}

fn edge_views(view: &PipelineView<'_>) -> Vec<EdgeView> {
    let edges = view.store.edges();
    let mut of_class: HashMap<ClassId, u64> = HashMap::new();
    for (key, sample) in &edges {
        *of_class.entry(key.call).or_default() += sample.calls;
    }
    let name = |class: ClassId| view.names.class(class).map(|class| class.name.to_string());
    let mut all: Vec<EdgeView> = edges
        .iter()
        .map(|(EdgeKey { caller, cause, call, callee }, sample)| {
            let EdgeSample { calls, errors, duration_s } = *sample;
            let whole = of_class.get(call).copied().unwrap_or_default().max(1);
            let (callee_service, callee_class, peer) = match callee {
                Callee::Served(service, class) => (Some(view.names.service(*service).to_string()), name(*class), None),
                Callee::Address(address, port) if address.is_empty() => {
                    (None, None, Some(if *port == 0 { "unix socket".into() } else { format!("port {port}") }))
                }
                Callee::Address(address, port) => (None, None, Some(format!("{}:{port}", printable(address)))),
            };
            EdgeView {
                caller_service: view.names.service(*caller).to_string(),
                caller_class: cause.and_then(name),
                call_class: name(*call).unwrap_or_default(),
                protocol: view.names.class(*call).map_or("", |class| class.protocol.name()),
                callee_service,
                callee_class,
                peer,
                calls,
                errors,
                mean_s: (calls > 0).then(|| duration_s / calls as f64),
                rate_per_s: view.stats.figures(*call).rate_per_s * calls as f64 / whole as f64,
            }
        })
        .collect();
    all.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.caller_service.cmp(&b.caller_service)));
    all
}

pub(super) async fn edges(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "cursor", "limit"])?;
    let (service, page) = (params.string("service"), Page::of(&params)?);
    let all = app.shared.ask(move |view| {
        find(view, service.as_deref(), None)?;
        let mut all = edge_views(view);
        if let Some(service) = service {
            all.retain(|edge| edge.caller_service == service || edge.callee_service.as_ref() == Some(&service));
        }
        Ok::<_, super::known::Unknown>(all)
    });
    let (rows, next) = page.cut(all.await??);
    Ok(Json(json!({ "edges": rows, "next_cursor": next })))
}
