//! `GET /api/v1/roots`: what classes cost by the first request of the transaction. `GET /api/v1/tiers`: what all requests of
//! a class cost with everything they caused, by service.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use tracer_model::{ClassInfo, ProtocolId, Side};
use tracer_transactions::roots::{RootRow, RowRoot, Sums};

use super::known::find;
use super::page::Page;
use super::params::Params;
use super::{App, PipelineView, Problem};

/// Totals since the start as the API shows them; times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Totals {
    count: u64,
    errors: u64,
    unfinished: u64,
    duration_total_s: f64,
    queue_total_s: f64,
    cpu_total_s: f64,
    runqueue_total_s: f64,
    blocked_total_s: f64,
    downstream_total_s: f64,
}

impl From<&Sums> for Totals {
    fn from(sums: &Sums) -> Self {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        Self {
            count: sums.count,
            errors: sums.errors,
            unfinished: sums.unfinished,
            duration_total_s: seconds(sums.duration),
            queue_total_s: seconds(sums.queue),
            cpu_total_s: seconds(sums.cost.cpu),
            runqueue_total_s: seconds(sums.cost.runq),
            blocked_total_s: seconds(sums.cost.blocked),
            downstream_total_s: seconds(sums.downstream),
        }
    }
}

/// A class and a root.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct RootView {
    service_name: String,
    request_class: String,
    protocol: &'static str,
    side: &'static str,
    /// `class`, `unknown`, `other` or `open`.
    root: &'static str,
    root_service: Option<String>,
    root_class: Option<String>,
    #[serde(flatten)]
    totals: Totals,
}

impl RootView {
    fn new(info: &ClassInfo, row: &RootRow) -> Self {
        let (root, name) = match &row.root {
            RowRoot::Class(service, class) => ("class", Some((service.to_string(), class.to_string()))),
            RowRoot::Unknown => ("unknown", None),
            RowRoot::Other => ("other", None),
            RowRoot::Open => ("open", None),
        };
        let (root_service, root_class) = name.unzip();
        Self {
            service_name: info.service_name.to_string(),
            request_class: info.name.to_string(),
            protocol: info.protocol.name(),
            side: info.side.name(),
            root,
            root_service,
            root_class,
            totals: Totals::from(&row.sums),
        }
    }
}

fn asked(name: Option<&String>, given: &str) -> bool {
    name.is_none_or(|name| name == given)
}

/// Rows of a class, of a root, or all, the most CPU first.
fn root_views(
    view: &PipelineView<'_>,
    [service, class, root_service, root_class]: [Option<&String>; 4],
) -> Vec<RootView> {
    let of_root = |root: &RowRoot| match root {
        RowRoot::Class(service, class) => asked(root_service, service) && asked(root_class, class),
        _ => root_service.is_none() && root_class.is_none(),
    };
    let rows = view.roots.rows().into_iter().filter(|row| of_root(&row.root));
    let mut all: Vec<RootView> = rows
        .filter_map(|row| Some(RootView::new(view.names.class(row.class)?, &row)))
        .filter(|row| asked(service, &row.service_name) && asked(class, &row.request_class))
        .collect();
    all.sort_by(|a, b| {
        let by_cpu = b.totals.cpu_total_s.total_cmp(&a.totals.cpu_total_s);
        let name = |one: &RootView| (one.service_name.clone(), one.request_class.clone(), one.root_class.clone());
        by_cpu.then(b.totals.count.cmp(&a.totals.count)).then_with(|| name(a).cmp(&name(b)))
    });
    all
}

pub(super) async fn rows(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "root_service", "root_class", "cursor", "limit"])?;
    let page = Page::of(&params)?;
    let asked = ["service", "class", "root_service", "root_class"].map(|name| params.string(name));
    let all = app.shared.ask(move |view| {
        let [service, class, ..] = &asked;
        find(view, service.as_deref(), class.as_deref())?;
        Ok::<_, super::known::Unknown>(root_views(view, asked.each_ref().map(Option::as_ref)))
    });
    let (rows, next) = page.cut(all.await??);
    Ok(Json(json!({ "roots": rows, "next_cursor": next })))
}

/// What one service did for the requests of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct TierView {
    service_name: String,
    #[serde(flatten)]
    totals: Totals,
    /// Of the class's request classes in this service, the most CPU first.
    classes: Vec<TierClassView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct TierClassView {
    request_class: String,
    protocol: &'static str,
    #[serde(flatten)]
    totals: Totals,
}

/// Requests of the class that began their transactions, and what all services on this host did for them, the most CPU first.
fn tier_views(view: &PipelineView<'_>, service: &str, class: &str) -> (u64, Vec<TierView>) {
    let of_root =
        |row: &RootRow| matches!(&row.root, RowRoot::Class(one, name) if **one == *service && **name == *class);
    let mut requests = 0;
    let mut tiers: HashMap<Arc<str>, (Sums, Vec<TierClassView>)> = HashMap::new();
    for row in view.roots.rows().iter().filter(|row| of_root(row)) {
        // A declared call is a part of the request around it, and a call of the request that made it.
        let counts = |info: &&ClassInfo| info.side == Side::Server && info.protocol != ProtocolId::Declared;
        let Some(info) = view.names.class(row.class).filter(counts) else { continue };
        requests += row.sums.first;
        let (sums, classes) = tiers.entry(Arc::clone(&info.service_name)).or_default();
        sums.add(&row.sums);
        let (request_class, protocol) = (info.name.to_string(), info.protocol.name());
        classes.push(TierClassView { request_class, protocol, totals: Totals::from(&row.sums) });
    }
    let by_cpu = |a: &Totals, b: &Totals| b.cpu_total_s.total_cmp(&a.cpu_total_s).then(b.count.cmp(&a.count));
    let tier = |(service, (sums, mut classes)): (Arc<str>, (Sums, Vec<TierClassView>))| {
        classes.sort_by(|a, b| by_cpu(&a.totals, &b.totals).then_with(|| a.request_class.cmp(&b.request_class)));
        TierView { service_name: service.to_string(), totals: Totals::from(&sums), classes }
    };
    let mut tiers: Vec<TierView> = tiers.into_iter().map(tier).collect();
    tiers.sort_by(|a, b| by_cpu(&a.totals, &b.totals).then_with(|| a.service_name.cmp(&b.service_name)));
    (requests, tiers)
}

pub(super) async fn tiers(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class"])?;
    let name =
        |what| params.string(what).ok_or_else(|| Problem::bad(format!("{what}: expected that of the first request")));
    let (service, class) = (name("service")?, name("class")?);
    let (of, wanted) = ((service.clone(), class.clone()), (service, class));
    // A root may be a class of another host, which this agent has no class of.
    let (count, tiers) = app.shared.ask(move |view| tier_views(view, &wanted.0, &wanted.1)).await?;
    let cpu: f64 = tiers.iter().map(|tier| tier.totals.cpu_total_s).sum();
    Ok(Json(json!({
        "root_service": of.0, "root_class": of.1, "count": count,
        "cpu_total_s": cpu, "cpu_s": (count > 0).then(|| cpu / count as f64), "tiers": tiers,
    })))
}
