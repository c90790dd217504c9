//! The console's pages. Each is a small document whose scripts (`assets/`) draw it from the JSON API; without scripts, tables
//! rendered here show the same figures. A transaction is rendered here only.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::response::{Html, IntoResponse, Response};
use serde::Deserialize;
use tracer_model::{Outcome, Side, Span};
use tracer_results::store::{Filter, ListOrder, SpanView, Summary, seconds};
use tracer_runtimes::status_view::RuntimeStatus;

use super::api::{ClassView, class_views, runtimes, service_views};
use super::known::find;
use super::markup::{Encoded, LEGEND, Lane, Page, Safe, Time, bar, error_page};
use super::params::Params;
use super::transactions::{trace_id, transactions_filter};
use super::{App, Peers, Problem};

type AppState = State<Arc<App>>;

/// An error on a page for people; programs get [`Problem`] as JSON.
pub(super) struct PageProblem(Problem);

impl<T: Into<Problem>> From<T> for PageProblem {
    fn from(problem: T) -> Self {
        Self(problem.into())
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        let Problem(status, what) = self.0;
        (status, error_page(status, &what)).into_response()
    }
}

type PageResult = Result<Html<String>, PageProblem>;

#[derive(Debug, Default, Deserialize)]
pub(super) struct PageQuery {
    name: Option<String>,
    class: Option<String>,
    id: Option<String>,
    pub(super) refresh: Option<u32>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageQuery {
    type Rejection = PageProblem;

    /// A query that is not understood is explained on a page, too.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, PageProblem> {
        let query = Query::<Self>::try_from_uri(&parts.uri);
        query.map(|Query(query)| query).map_err(|error| Problem::bad(format!("query: {}", error.body_text())).into())
    }
}

fn class_table(classes: &[&ClassView]) -> String {
    let mut out = String::from(
        "<table><thead><tr><th>class<th class=n>requests<th class=n>/s<th class=n>errors<th class=n>p50<th class=n>p95<th class=n>p99<th class=n>CPU each<th>where time goes<th></thead><tbody>",
    );
    for class in classes {
        let call = if class.side == "client" {
            "<span class=call title=\"a call this service makes\">→</span> "
        } else {
            ""
        };
        let _ = write!(
            out,
            "<tr><td>{call}{name}<td class=n>{count}<td class=n>{rate:.1}<td class=\"n{bad}\">{errors}<td class=n>{p50}<td class=n>{p95}<td class=n>{p99}<td class=n>{cpu}<td>{bar}<td>",
            name = Safe(&class.request_class),
            count = class.count,
            rate = class.rate_per_s,
            bad = if class.errors > 0 { " bad" } else { "" },
            errors = errors(class.errors, class.unfinished),
            p50 = Time(class.p50_s),
            p95 = Time(class.p95_s),
            p99 = Time(class.p99_s),
            cpu = if class.side == "server" { Time(class.cpu_s).to_string() } else { String::new() },
            bar = if class.side == "server" { bar(class) } else { String::new() },
        );
        if class.side == "server" {
            let _ = write!(
                out,
                "<a href=\"/class?name={}&amp;class={}\">open</a>",
                Encoded(&class.service_name),
                Encoded(&class.request_class)
            );
        }
    }
    out.push_str("</tbody></table>");
    out
}

/// Status of the reply.
fn status(code: Option<u16>, failure: Option<&str>, outcome: &str) -> String {
    let known = code.map(|code| code.to_string()).or(failure.map(str::to_owned));
    known.unwrap_or_else(|| if outcome == Outcome::Unfinished.name() { outcome.into() } else { "–".into() })
}

/// Errors, and separately the requests whose end the agent did not see, which are no errors.
fn errors(errors: u64, unfinished: u64) -> String {
    if unfinished == 0 {
        return errors.to_string();
    }
    format!(
        "{errors} <span class=call title=\"the agent did not see their ends: no errors\">+{unfinished} unfinished</span>"
    )
}

/// Number of spans, and of failed ones: a failure further down does not show in the first span's status.
fn spans(one: &Summary) -> String {
    if one.failed_spans == 0 {
        return one.spans.to_string();
    }
    format!("{} <span class=bad>({} failed)</span>", one.spans, one.failed_spans)
}

fn transaction_table(found: &[Summary]) -> String {
    let mut out = String::from(
        "<table><thead><tr><th>service<th>class<th class=n>duration<th class=n>status<th class=n>spans<th></thead><tbody>",
    );
    for one in found {
        let status = status(one.status, one.failure, one.outcome);
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td class=n>{}<td class=\"n{}\">{status}<td class=n>{}<td><a href=\"/transaction?id={}\">open</a>",
            Safe(&one.service_name),
            Safe(&one.request_class),
            Time(one.duration_s),
            if one.error { " bad" } else { "" },
            spans(one),
            Encoded(&one.trace_id),
        );
    }
    out.push_str("</tbody></table>");
    out
}

/// Agents of other hosts.
fn peer_table(peers: &Peers) -> String {
    let mut out = String::from(
        "<section><h2>Other agents</h2><table><thead><tr><th>address<th>host<th>session<th class=n>sent<th class=n>received<th class=n>clock<th>last error</thead><tbody>",
    );
    for peer in &peers.peers {
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}, {}<td class=n>{}<td class=n>{}<td class=n>{}<td>{}",
            Safe(&peer.address),
            Safe(&peer.host),
            peer.direction,
            peer.state,
            peer.sent,
            peer.received,
            peer.clock_offset_s.map_or_else(
                || "–".into(),
                |offset| { format!("{:+.3} ± {:.3} ms", offset * 1e3, peer.clock_error_s.unwrap_or_default() * 1e3) }
            ),
            Safe(&peer.error),
        );
    }
    out.push_str("</tbody></table><p class=sub>contexts: ");
    let counts: Vec<String> = peers.outcomes.all().into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    out.push_str(&counts.join(" · "));
    out.push_str("</p></section>");
    out
}

pub(super) async fn overview(State(app): AppState, query: PageQuery) -> PageResult {
    let (health, services, classes, found) = app
        .shared
        .ask(|view| {
            let filter = Filter { limit: 20, order: ListOrder::Slowest, ..Filter::default() };
            let found = view.store.list(view.names, &filter).rows;
            let classes = class_views(view, None);
            (view.health.clone(), service_views(view, &classes), classes, found)
        })
        .await?;
    let mut body = String::new();
    let busy: Vec<_> = services.iter().filter(|service| service.count > 0).collect();
    if busy.is_empty() {
        body.push_str("<p class=note>No requests yet. Services appear here with their first HTTP request.</p>");
    }
    for service in busy {
        let own: Vec<&ClassView> = classes.iter().filter(|class| class.service_name == service.service_name).collect();
        let _ = write!(
            body,
            "<section><h2><a href=\"/service?name={link}\">{name}</a></h2><p class=sub>{rate:.1} requests/s · {errors} errors · CPU {requests:.2} s for requests, {overhead:.2} s overhead · <a href=\"/flamegraph.svg?service={link}\">flame graph</a></p>{table}</section>",
            link = Encoded(&service.service_name),
            name = Safe(&service.service_name),
            rate = service.rate_per_s,
            errors = errors(service.errors, service.unfinished),
            requests = service.cpu_requests_s,
            overhead = service.cpu_overhead_s,
            table = class_table(&own[..own.len().min(20)]),
        );
    }
    body.push_str(LEGEND);
    let _ = write!(body, "<section><h2>Slow transactions</h2>{}</section>", transaction_table(&found));
    body.push_str("<section><h2>Other CPU</h2><table><thead><tr><th>service<th class=n>CPU</thead><tbody>");
    for service in services.iter().filter(|service| service.count == 0 && service.cpu_overhead_s >= 0.005).take(15) {
        let _ = write!(body, "<tr><td>{}<td class=n>{:.2} s", Safe(&service.service_name), service.cpu_overhead_s);
    }
    body.push_str("</tbody></table></section>");
    Ok(Page::drawn("home", "Services", query.refresh).render(&health, &body))
}

pub(super) async fn service(State(app): AppState, query: PageQuery) -> PageResult {
    let name = query.name.ok_or_else(|| Problem::bad("name: expected the name of a service"))?;
    let wanted = name.clone();
    let (health, classes, found, runtimes) = app
        .shared
        .ask(move |view| {
            let filter =
                Filter { service: Some(wanted.clone()), limit: 20, order: ListOrder::Slowest, ..Filter::default() };
            let found = view.store.list(view.names, &filter).rows;
            let classes = class_views(view, Some(&wanted));
            let runtimes = classes.first().map(|class| runtimes(view, class.service)).unwrap_or_default();
            (view.health.clone(), classes, found, runtimes)
        })
        .await?;
    if classes.is_empty() {
        return Err(Problem::missing("no such service with requests; / lists them").into());
    }
    let all: Vec<&ClassView> = classes.iter().collect();
    let body = format!(
        "<section><h2>{}</h2>{}{}{LEGEND}</section><section><h2>Slow transactions</h2>{}</section>",
        Safe(&name),
        runtime_lines(&runtimes),
        class_table(&all),
        transaction_table(&found),
    );
    Ok(Page::drawn("service", &name, query.refresh).render(&health, &body))
}

pub(super) async fn class(State(app): AppState, query: PageQuery) -> PageResult {
    let name = query.name.ok_or_else(|| Problem::bad("name: expected the name of a service"))?;
    let class = query.class.ok_or_else(|| Problem::bad("class: expected the name of a request class"))?;
    let wanted = (name.clone(), class.clone());
    let (health, classes, found) = app
        .shared
        .ask(move |view| {
            let (name, class) = wanted;
            find(view, Some(&name), Some(&class))?;
            let mut classes = class_views(view, Some(&name));
            classes.retain(|one| one.request_class == class);
            let filter = Filter { service: Some(name), class: Some(class), limit: 20, ..Filter::default() };
            Ok::<_, super::known::Unknown>((
                view.health.clone(),
                classes,
                view.store.list(view.names, &Filter { order: ListOrder::Slowest, ..filter }).rows,
            ))
        })
        .await??;
    let all: Vec<&ClassView> = classes.iter().collect();
    let body = format!(
        "<section><h2><a href=\"/service?name={link}\">{service}</a> · {class}</h2><p class=sub><a href=\"/flamegraph.svg?service={link}&amp;class={encoded}\">flame graph</a></p>{table}{LEGEND}</section><section><h2>Slow transactions</h2>{slow}</section>",
        link = Encoded(&name),
        encoded = Encoded(&class),
        service = Safe(&name),
        class = Safe(&class),
        table = class_table(&all),
        slow = transaction_table(&found),
    );
    Ok(Page::drawn("class", &class, query.refresh).render(&health, &body))
}

pub(super) async fn health(State(app): AppState, query: PageQuery) -> PageResult {
    let health = app.shared.ask(|view| view.health.clone()).await?;
    let mut body = String::from("<section><h2>Notices</h2>");
    for note in health.not_ready.iter().chain(&health.degraded) {
        let _ = write!(body, "<p class=note>{}</p>", Safe(note));
    }
    body.push_str("</section><section><h2>Lost events</h2><table><tbody>");
    for (reason, count) in &health.lost {
        let _ = write!(body, "<tr><td>{}<td class=n>{count}", Safe(reason));
    }
    body.push_str("</tbody></table></section>");
    if let Some(peers) = &health.peers {
        body.push_str(&peer_table(peers));
    }
    Ok(Page::drawn("health", "Health", query.refresh).render(&health, &body))
}

/// Runtimes of a service's processes, and the state of their task detection.
fn runtime_lines(runtimes: &[RuntimeStatus]) -> String {
    let mut out = String::new();
    for runtime in runtimes {
        let woken = if runtime.wakes_meaning.is_empty() { "" } else { "; " };
        let _ = write!(
            out,
            "<p class=sub>{} {} in {} processes: {}{woken}{}.</p>",
            Safe(runtime.name),
            Safe(&runtime.version),
            runtime.processes,
            Safe(runtime.meaning),
            Safe(runtime.wakes_meaning),
        );
    }
    out
}

/// Depth of each span in the tree of parents.
fn depths(spans: &[SpanView<'_>]) -> Vec<usize> {
    spans
        .iter()
        .map(|view| {
            let (mut depth, mut parent) = (0, view.span.parent);
            while let Some(id) = parent
                && depth < 32
            {
                let Some(above) = spans.iter().find(|other| other.span.id == id) else { break };
                depth += 1;
                parent = above.span.parent;
            }
            depth
        })
        .collect()
}

/// Where the other end of a span is, when that is another host; of a call also what its time went for.
fn remote(span: &Span) -> String {
    let Some(remote) = span.remote.as_deref() else { return String::new() };
    let host = Safe(&remote.host);
    match &remote.end {
        Some(end) => {
            let (there, network) = (Time(seconds(end.duration)), Time(seconds(end.network)));
            format!(" <span class=sub>on {host}: {there} there, {network} network</span>")
        }
        None if span.side == Side::Server => format!(" <span class=sub>from {host}</span>"),
        None => format!(" <span class=sub>on {host}</span>"),
    }
}

pub(super) async fn finding(State(app): AppState, query: PageQuery) -> PageResult {
    let id = query.id.ok_or_else(|| Problem::bad("id: expected the number of a finding"))?;
    let id: u64 =
        id.parse().map_err(|_| Problem::bad(format!("id: '{id}' given, expected the number of a finding")))?;
    let find = move |view: &super::PipelineView<'_>| {
        (view.health.clone(), view.detector.findings().find(|finding| finding.id == id).cloned())
    };
    let (health, found) = app.shared.ask(find).await?;
    let found = found.ok_or_else(|| Problem::missing("no such finding; the first page lists them"))?;
    let body = format!(
        "<section><h2>{}</h2><p>{}</p><p class=sub>confidence {:.2} · <a href=\"/api/v1/findings/{id}\">as JSON</a></p></section>",
        found.kind.name(),
        Safe(&found.summary()),
        found.confidence,
    );
    Ok(Page::drawn("finding", "Finding", query.refresh).render(&health, &body))
}

/// The flame graphs of one slow request: on and off the CPU, with `samples` of each; `threshold` in nanoseconds.
fn own_flame_graphs(view: &SpanView<'_>, samples: (u64, u64), threshold: u64) -> String {
    let id = view.span.id.to_string();
    let mut out = format!(
        "<section id=\"profile-{id}\"><h2>Where this request spent its time: {service} · {class}</h2><p class=sub>{duration}, slower than {threshold}; its own samples from its beginning, {on} on the CPU and {off} off it · <a href=\"/api/v1/slow-requests/{id}\">as JSON</a></p>",
        service = Safe(&view.service_name),
        class = Safe(view.request_class()),
        duration = Time(seconds(view.span.duration())),
        threshold = Time(threshold as f64 / 1e9),
        on = samples.0,
        off = samples.1,
    );
    for (kind, what, count) in [("cpu", "on the CPU", samples.0), ("offcpu", "off the CPU", samples.1)] {
        if count == 0 {
            let _ = write!(out, "<p class=sub>no samples {what}</p>");
            continue;
        }
        let _ = write!(
            out,
            "<p><a href=\"/flamegraph.svg?span={id}&amp;kind={kind}\">{what}: open to zoom and search</a></p><img width=\"100%\" alt=\"flame graph of this request {what}\" src=\"/flamegraph.svg?span={id}&amp;kind={kind}\">",
        );
    }
    out.push_str("</section>");
    out
}

pub(super) async fn transaction(State(app): AppState, query: PageQuery) -> PageResult {
    let id = query.id.ok_or_else(|| Problem::bad("id: expected a trace id"))?;
    let trace = trace_id(&id)?;
    let find = move |view: &super::PipelineView<'_>| {
        let spans = view.store.transaction(view.names, trace);
        // Those of this transaction that were slow and keep their own samples.
        let slow = |shown: &SpanView<'_>| {
            let id = shown.span.id;
            view.profiles.slow_requests().get(id).map(|slow| (id, slow.samples(), slow.threshold))
        };
        let slow: Vec<_> = spans.iter().flatten().filter_map(slow).collect();
        (view.health.clone(), spans, slow)
    };
    let (health, spans, slow) = app.shared.ask(find).await?;
    let spans = spans.ok_or_else(|| Problem::missing("this transaction is not kept any more"))?;
    let begin = spans.iter().map(SpanView::start_ns).min().unwrap_or(0);
    let end = spans.iter().map(SpanView::end_ns).max().unwrap_or(0);
    let whole_s = (end - begin).max(1) as f64 / 1e9;
    let failed = spans.iter().filter(|view| view.span.error).count();
    let mut body = format!(
        "<section><h2>Transaction {}</h2><p class=sub>{} · {} spans, {failed} failed · <a href=\"/api/v1/transactions/{0}\">as JSON</a></p>{LEGEND}<table class=fall><thead><tr><th>span<th class=n>duration<th class=n>CPU<th class=n>status<th>grade<th class=wide></thead><tbody>",
        Safe(&id),
        Time(whole_s),
        spans.len(),
    );
    for (view, depth) in spans.iter().zip(depths(&spans)) {
        let span = &*view.span;
        let call = if span.side == Side::Client { "<span class=call>→</span> " } else { "" };
        let path = view.attributes().text("url.path");
        let _ = write!(
            body,
            "<tr><td class=depth{depth} title=\"{path}\">{call}<b>{service}</b> {class}{remote}<td class=n>{duration}<td class=n>{cpu}<td class=\"n{bad}\">{status}<td title=\"{evidence}\">{grade}<td class=wide>{lane}",
            depth = depth.min(8),
            path = Safe(&path),
            service = Safe(&view.service_name),
            class = Safe(view.request_class()),
            remote = remote(span),
            duration = Time(seconds(span.duration())),
            cpu = Time(seconds(span.cost.cpu)),
            bad = if span.error { " bad" } else { "" },
            status = status(span.status, span.failure, span.outcome.name()),
            evidence = Safe(span.evidence),
            grade = span.grade.name(),
            lane = Lane { view, begin_ns: begin, whole_s },
        );
    }
    body.push_str("</tbody></table></section>");
    for (id, samples, threshold) in &slow {
        let Some(view) = spans.iter().find(|view| view.span.id == *id) else { continue };
        body.push_str(&own_flame_graphs(view, *samples, *threshold));
    }
    Ok(Page::drawn("transaction", "Transaction", query.refresh).render(&health, &body))
}

pub(super) async fn transactions(State(app): State<Arc<App>>, params: Params) -> PageResult {
    let filter = transactions_filter(params.renamed("name", "service").without(&["range"]))?;
    let (title, wanted) = (filter.class.clone().or(filter.service.clone()), filter);
    let found = app.shared.ask(move |view| {
        find(view, wanted.service.as_deref(), wanted.class.as_deref())?;
        Ok::<_, super::known::Unknown>((view.health.clone(), view.store.list(view.names, &wanted).rows))
    });
    let (health, found) = found.await??;
    let title = title.unwrap_or_else(|| "Transactions".into());
    let body = format!("<section><h2>Transactions: {}</h2>{}</section>", Safe(&title), transaction_table(&found));
    Ok(Page::drawn("transactions", &title, None).render(&health, &body))
}

pub(super) async fn compare(State(app): AppState, query: PageQuery) -> PageResult {
    let health = app.shared.ask(|view| view.health.clone()).await?;
    let body = "<section><h2>Compare</h2><p class=note>This page needs scripts. Its figures are those of <a href=\"/api/v1/classes\">/api/v1/classes</a> with <code>from</code> and <code>to</code>.</p></section>";
    Ok(Page::drawn("compare", "Compare", query.refresh).render(&health, body))
}
