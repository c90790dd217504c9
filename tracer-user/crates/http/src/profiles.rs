//! Profiles: flame graphs, folded stacks, pprof and speedscope, of a range of time and compared with another one, another class or service.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tracer_results::profiles::{self, Filter, Snapshot};

use super::dimensions::{self, DimensionQuery};
use super::known::find;
use super::params::Params;
use super::range::{Range, SINCE};
use super::slow_requests;
use super::{App, PipelineView, Problem, Shared};

type AppState = State<Arc<App>>;

/// Parameters of profiles. Those of `_ns` are the names that `from` and `to` had before.
const PROFILE: [&str; 18] = [
    "service",
    "class",
    "kind",
    "since",
    "from",
    "to",
    "from_ns",
    "until_ns",
    "before_service",
    "before_class",
    "before_from",
    "before_to",
    "before_from_ns",
    "before_until_ns",
    "span",
    "dimension",
    "value",
    "before_value",
];

/// What a profile is compared with. What is not given is as in the profile itself.
#[derive(Clone, Debug)]
pub(super) struct Before {
    service: Option<String>,
    class: Option<String>,
    /// Another value of the dimension that the profile itself is of.
    value: Option<String>,
    range: Option<Range>,
}

/// What a profile query asks for: a range, and what to compare with.
pub(super) type Ranges = (Option<Range>, Option<Before>);

pub(super) fn ranges(params: &Params) -> Result<Ranges, Problem> {
    let range = Range::between(params, "")?;
    if range.is_some() && params.text("since").is_some() {
        return Err(Problem::bad("since: expected either it or from and to"));
    }
    let (service, class) = (params.string("before_service"), params.string("before_class"));
    let value = params.string("before_value");
    if value.is_some() && params.text("dimension").is_none() {
        return Err(Problem::bad("before_value: expected dimension, too: whose value it is"));
    }
    let before = Range::between(params, "before_")?;
    if service.is_none() && class.is_none() && before.is_none() && value.is_none() {
        return Ok((range, None));
    }
    if before.is_some() && range.is_none() {
        return Err(Problem::bad("before_from: expected from or to, too: what to compare with it"));
    }
    Ok((range, Some(Before { service, class, value, range: before })))
}

/// Requests of a class, or of all classes of a service, in windows that begin within a range by the records' clock.
fn requests(view: &super::PipelineView<'_>, filter: &Filter, range: (u64, u64)) -> f64 {
    let wall = |at: u64| (at as i64).saturating_add(view.wall_offset).max(0) as u64;
    let (from, until) = (wall(range.0), wall(range.1));
    let of = view.history.recent.series().filter(|(id, _)| {
        view.names.class(*id).is_some_and(|info| {
            info.side == tracer_model::Side::Server
                && filter.service.as_ref().is_none_or(|service| *info.service_name == **service)
                && filter.class.as_ref().is_none_or(|class| *info.name == **class)
        })
    });
    let within = |point: &&tracer_results::history::recent::Point| (from..until).contains(&point.start_ns);
    of.flat_map(|(_, points)| points).filter(within).map(|point| f64::from(point.rate_per_s)).sum::<f64>()
}

/// A range of instants by the records' clock.
pub(super) fn monotonic(view: &PipelineView<'_>, Range { from, to }: Range) -> (u64, u64) {
    let clock = |at: u64| match i64::try_from(at) {
        Ok(at) => at.saturating_sub(view.wall_offset).max(0) as u64,
        Err(_) => u64::MAX,
    };
    (clock(from), clock(to))
}

/// A profile, the one before to compare with, and by how many times more requests it is of.
type Compared = (Snapshot, Option<(Snapshot, f64)>, String);

/// The stacks that a query selects; refuses unknown names.
async fn compared(shared: &Shared, params: Params) -> Result<Compared, Problem> {
    let (range, before) = ranges(&params)?;
    let asked = dimensions::asked(&params)?;
    let (filter, title) = profile_filter(params)?;
    if let Some(span) = filter.span {
        let found = shared.ask(move |view| view.profiles.snapshot_of(span, filter.view)).await?;
        let snapshot = found.ok_or_else(|| Problem::missing(slow_requests::NOT_KEPT))?;
        return Ok((snapshot, None, title));
    }
    let found = shared.ask(move |view| {
        find(view, filter.service.as_deref(), filter.class.as_deref()).map_err(Problem::from)?;
        let clock = |range: Option<Range>| range.map(|range| monotonic(view, range));
        let mut now = Filter { range: clock(range), ..filter.clone() };
        DimensionQuery::select(asked.as_ref(), view, &mut now)?;
        let earlier = match before {
            None => None,
            Some(Before { service, class, value, range: before }) => {
                let service = service.or_else(|| filter.service.clone());
                // Another service has other classes: without a class all of it is meant.
                let class = class.or_else(|| filter.class.clone().filter(|_| service == filter.service));
                find(view, service.as_deref(), class.as_deref()).map_err(Problem::from)?;
                let mut then = Filter { service, class, range: clock(before.or(range)), ..filter.clone() };
                let of_value = asked.map(|asked| value.map_or_else(|| asked.clone(), |value| asked.with(value)));
                DimensionQuery::select(of_value.as_ref(), view, &mut then)?;
                // Requests of just the time that has samples.
                let requests = |filter: &Filter| {
                    let range = filter.range.unwrap_or((0, u64::MAX));
                    view.profiles.covered(range).map_or(0.0, |at| requests(view, filter, at))
                };
                let (before, after) = (requests(&then), requests(&now));
                let scale = if before > 0.0 && after > 0.0 { after / before } else { 1.0 };
                Some((view.profiles.snapshot(view.names, &then), scale))
            }
        };
        Ok::<_, Problem>((view.profiles.snapshot(view.names, &now), earlier))
    });
    let (snapshot, earlier) = found.await??;
    Ok((snapshot, earlier, title))
}

/// The filter of a stacks query, and its title.
pub(super) fn profile_filter(params: Params) -> Result<(Filter, String), Problem> {
    let params = params.only(&PROFILE)?;
    let view = params.read("kind", "cpu, offcpu, wall or wakers", profiles::ProfileKind::parse)?.unwrap_or_default();
    let since = params.read("since", SINCE, |text| tracer_model::quantity::duration(text).ok())?;
    let (service, class) = (params.string("service"), params.string("class"));
    let span = params.read("span", "16 hexadecimal digits", slow_requests::span_id)?;
    if let Some(id) = span {
        let others = PROFILE.iter().filter(|name| !["span", "kind"].contains(*name));
        if let Some(other) = others.copied().find(|name| params.text(name).is_some()) {
            return Err(Problem::bad(format!(
                "{other}: expected without span, whose samples are those of one request"
            )));
        }
        let filter = Filter { view, span, ..Filter::default() };
        return Ok((filter, format!("span {id}")));
    }
    let filter = Filter { service, class, since, range: None, view, span, value: None };
    let mut title = [params.text("service"), params.text("class"), params.text("value")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" · ");
    if title.is_empty() {
        title.push_str("all services");
    }
    Ok((filter, title))
}

/// Rendering reads symbols and takes a while, so it runs on a separate thread, few at the same time.
pub(super) async fn render<T: Send + 'static>(
    app: &App,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let failed = || Problem(StatusCode::INTERNAL_SERVER_ERROR, "rendering failed".into());
    let _place = app.renders.acquire().await.map_err(|_| failed())?;
    tokio::task::spawn_blocking(work).await.map_err(|_| failed())
}

/// What the flame graph's own script adds to its address when it zooms (`x`, `y`) and searches (`s`), so that the address can
/// be opened again: the script reads them.
pub(super) const OF_SCRIPT: [&str; 3] = ["x", "y", "s"];

pub(super) async fn flamegraph(State(app): AppState, params: Params) -> Result<Response, Problem> {
    let params = params.without(&OF_SCRIPT);
    let (snapshot, earlier, title) = compared(&app.shared, params).await?;
    let svg = render(&app, move || match earlier {
        Some((before, scale)) => snapshot.svg_difference(&before, scale, &title),
        None => snapshot.svg(&title),
    })
    .await?;
    // The graph's own script zooms and searches; it can load and send nothing.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    Ok(([(header::CONTENT_TYPE, "image/svg+xml"), (header::CONTENT_SECURITY_POLICY, policy)], svg).into_response())
}

pub(super) async fn folded(State(app): AppState, params: Params) -> Result<String, Problem> {
    let is_annotated = params.read("annotate", "code", |text| (text == "code").then_some(()))?.is_some();
    let (snapshot, earlier, _) = compared(&app.shared, params.without(&["annotate"])).await?;
    let owners = if is_annotated { Some(app.shared.ask(|view| view.profiles.owners()).await?) } else { None };
    render(&app, move || match earlier {
        Some((before, scale)) => snapshot.folded_difference(&before, scale),
        None => snapshot.folded(owners.as_deref()),
    })
    .await
}

pub(super) async fn pprof(State(app): AppState, params: Params) -> Result<Response, Problem> {
    let (snapshot, earlier, _) = compared(&app.shared, params).await?;
    if earlier.is_some() {
        return Err(Problem::bad("before_from: pprof has no differences; ask for two profiles"));
    }
    let bytes = render(&app, move || snapshot.pprof()).await?;
    // The format itself is compressed, not the transfer: no Content-Encoding.
    let name = "attachment; filename=\"profile.pb.gz\"";
    Ok(([(header::CONTENT_TYPE, "application/octet-stream"), (header::CONTENT_DISPOSITION, name)], bytes)
        .into_response())
}

/// A profile for speedscope: sums of a range of time, or the samples of one request in the order of time.
pub(super) async fn speedscope(State(app): AppState, params: Params) -> Result<Response, Problem> {
    let span =
        params.read("span", "16 hexadecimal digits", slow_requests::span_id)?.filter(|_| params.text("kind").is_none());
    let file = if let Some(span) = span {
        // Refuses what does not go with a span.
        let (_, title) = profile_filter(params)?;
        let found = app.shared.ask(move |view| view.profiles.timed(span)).await?;
        let samples = found.ok_or_else(|| Problem::missing(slow_requests::NOT_KEPT))?;
        render(&app, move || profiles::speedscope::timeline(&title, &samples.named())).await?
    } else {
        let (snapshot, earlier, title) = compared(&app.shared, params).await?;
        if earlier.is_some() {
            return Err(Problem::bad("before_from: speedscope has no differences; ask for two profiles"));
        }
        render(&app, move || snapshot.speedscope(&title)).await?
    };
    let name = "attachment; filename=\"profile.speedscope.json\"";
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CONTENT_DISPOSITION, name)], file).into_response())
}
