//! `/api/v1/running`: requests that are open now, the oldest first, and the console's page of them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Html;
use serde::Serialize;
use tracer_host::thread_state::{self, ThreadState};
use tracer_model::{ClassId, Nanos, ServiceId, Side};
use tracer_transactions::classes::Facts;
use tracer_transactions::engine::running::RunningSpan;
use tracer_transactions::open_span::OpenSpan;

use super::console::{PageProblem, PageQuery};
use super::known::find;
use super::markup::{Page, Safe, Time};
use super::params::Params;
use super::{App, PipelineView, Problem};

/// Most rows of an answer, and how many there are unless asked for.
const LIST: usize = 10_000;
const DEFAULT: usize = 100;
/// Rows of the page that browsers without scripts show.
const SHOWN: usize = 50;
/// Most open calls listed of one request.
const CALLS: usize = 16;
/// Rows whose thread is looked up in `/proc`: a look takes tens of microseconds.
const THREADS: usize = 500;

/// Which requests are asked for.
#[derive(Debug, Default)]
struct Asked {
    service: Option<String>,
    class: Option<String>,
    min_ms: f64,
    limit: usize,
}

fn text<S: serde::Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

/// A row, as the API has it. The pipeline's thread fills it with what is at hand; it is written elsewhere.
#[derive(Serialize)]
struct Row {
    trace_id: String,
    span_id: String,
    #[serde(serialize_with = "text")]
    service_name: Arc<str>,
    #[serde(serialize_with = "text")]
    request_class: Arc<str>,
    protocol: &'static str,
    side: &'static str,
    pid: u32,
    tid: u32,
    #[serde(serialize_with = "text")]
    peer: Arc<str>,
    peer_port: u16,
    start_ns: i64,
    age_s: f64,
    p99_s: Option<f64>,
    longer_than_p99: bool,
    replying: bool,
    queue_s: f64,
    cpu_s: f64,
    runqueue_s: f64,
    blocked_s: f64,
    calls: Vec<Call>,
    calls_open: usize,
    thread: Option<Thread>,
    /// Whether one thread works for it alone.
    #[serde(skip)]
    has_thread: bool,
}

/// An open call of a row.
#[derive(Serialize)]
struct Call {
    span_id: String,
    #[serde(serialize_with = "text")]
    request_class: Arc<str>,
    protocol: &'static str,
    #[serde(serialize_with = "text")]
    peer: Arc<str>,
    peer_port: u16,
    age_s: f64,
    certain: bool,
}

/// What a row's thread does.
#[derive(Serialize)]
struct Thread {
    name: String,
    state: &'static str,
    kernel_function: String,
}

/// The answer.
#[derive(Serialize)]
pub(super) struct Answer {
    running: Vec<Row>,
    running_total: usize,
}

/// How long a span has been open, seconds. The newest record may be older than this moment, but not than the span.
fn age(span: &OpenSpan, now: Nanos) -> f64 {
    now.saturating_sub(span.start) as f64 / 1e9
}

/// What rows need of the classes, looked up once.
struct Classes<'a> {
    view: &'a PipelineView<'a>,
    by_name: HashMap<(ServiceId, Side, &'a str), ClassId>,
}

impl<'a> Classes<'a> {
    fn of(view: &'a PipelineView<'a>) -> Self {
        let ids = view.names.classes.iter().enumerate();
        let by_name = ids.map(|(id, info)| ((info.service, info.side, &*info.name), ClassId(id as u32))).collect();
        Self { view, by_name }
    }

    /// The class by name; where the reply decides, the one it gets if it succeeds.
    fn name(&self, span: &OpenSpan) -> Arc<str> {
        let known = span.class.and_then(|class| self.view.names.class(class)).map(|info| Arc::clone(&info.name));
        known.unwrap_or_else(|| self.view.classifier.preview(self.view.names, &Facts::of_open(span, None)))
    }

    /// 99 % of the class's spans took at most this long, seconds; `None` without any.
    fn p99_s(&self, span: &OpenSpan, name: &str) -> Option<f64> {
        let class = *self.by_name.get(&(span.service, span.side, name))?;
        Some(self.view.stats.figures(class)).filter(|figures| figures.count > 0).map(|figures| figures.p99_s)
    }
}

fn row(classes: &Classes<'_>, running: &RunningSpan<'_>, now: Nanos) -> Row {
    let (view, span) = (classes.view, running.span);
    let age_s = age(span, now);
    let class = classes.name(span);
    let p99_s = classes.p99_s(span, &class);
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let calls = running.calls.iter().take(CALLS).map(|call| Call {
        span_id: call.span.id.to_string(),
        request_class: classes.name(call.span),
        protocol: call.span.protocol.name(),
        peer: Arc::clone(&call.span.endpoints.peer),
        peer_port: call.span.endpoints.peer_port,
        age_s: age(call.span, now),
        certain: call.certain,
    });
    Row {
        trace_id: running.trace.to_string(),
        span_id: span.id.to_string(),
        service_name: view.names.service(span.service),
        request_class: class,
        protocol: span.protocol.name(),
        side: span.side.name(),
        pid: span.pid,
        tid: span.tid,
        peer: Arc::clone(&span.endpoints.peer),
        peer_port: span.endpoints.peer_port,
        start_ns: (span.start as i64).saturating_add(view.wall_offset),
        age_s,
        p99_s,
        longer_than_p99: p99_s.is_some_and(|p99_s| age_s > p99_s),
        replying: span.first_reply != 0,
        queue_s: seconds(if span.arrived == 0 { 0 } else { span.start.saturating_sub(span.arrived) }),
        cpu_s: seconds(span.cost.cpu),
        runqueue_s: seconds(span.cost.runq),
        blocked_s: seconds(span.cost.blocked),
        calls: calls.collect(),
        calls_open: running.calls.len(),
        thread: None,
        has_thread: running.has_thread,
    }
}

/// The rows that are asked for, the oldest first, and how many there are in all.
fn rows(view: &PipelineView<'_>, asked: &Asked) -> Result<(Vec<Row>, usize), Problem> {
    find(view, asked.service.as_deref(), asked.class.as_deref()).map_err(Problem::from)?;
    let now = view.engine.now().max(tracer_kernel::loader::monotonic());
    let classes = Classes::of(view);
    let wanted = |running: &RunningSpan<'_>| {
        let span = running.span;
        age(span, now) * 1e3 >= asked.min_ms
            && asked.service.as_ref().is_none_or(|name| *view.names.service(span.service) == **name)
            && asked.class.as_ref().is_none_or(|name| *classes.name(span) == **name)
    };
    let mut all: Vec<RunningSpan<'_>> = view.engine.running();
    all.retain(wanted);
    all.sort_by_key(|running| running.span.start);
    let total = all.len();
    Ok((all.iter().take(asked.limit).map(|running| row(&classes, running, now)).collect(), total))
}

/// Adds what the threads do now: files of `/proc`, which are not read on the pipeline's thread.
fn add_threads(rows: &mut [Row]) {
    for row in rows.iter_mut().filter(|row| row.has_thread).take(THREADS) {
        let of = |state: ThreadState| Thread {
            name: state.name,
            state: state.activity.name(),
            kernel_function: state.kernel_function,
        };
        row.thread = thread_state::read(row.pid, row.tid).map(of);
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Answer>, Problem> {
    let params = params.only(&["service", "class", "min_ms", "limit"])?;
    let asked = Asked {
        service: params.string("service"),
        class: params.string("class"),
        min_ms: params.number("min_ms", 0.0..=f64::MAX, "a number of milliseconds")?.unwrap_or(0.0),
        limit: params.number("limit", 1..=LIST, "a number, at least 1 and at most 10000")?.unwrap_or(DEFAULT),
    };
    let (mut running, running_total) = app.shared.ask(move |view| rows(view, &asked)).await??;
    let read = tokio::task::spawn_blocking(move || {
        add_threads(&mut running);
        running
    });
    let running =
        read.await.map_err(|error| Problem(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Json(Answer { running, running_total }))
}

pub(super) async fn page(State(app): State<Arc<App>>, query: PageQuery) -> Result<Html<String>, PageProblem> {
    let asked = Asked { limit: SHOWN, ..Asked::default() };
    let answer = app.shared.ask(move |view| rows(view, &asked).map(|rows| (view.health.clone(), rows)));
    let (health, (rows, total)) = answer.await??;
    let mut body = format!(
        "<section><h2>Running now: {total}</h2><table><thead><tr><th>service<th>class<th class=n>open for<th class=n>CPU<th class=n>calls</thead><tbody>"
    );
    for row in &rows {
        let _ = write!(
            body,
            "<tr><td>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}",
            Safe(&row.service_name),
            Safe(&row.request_class),
            Time(row.age_s),
            Time(row.cpu_s),
            row.calls_open
        );
    }
    body.push_str("</tbody></table></section>");
    Ok(Page::drawn("running", "Running now", query.refresh).render(&health, &body))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tracer_common::event::{Header, Kind, OP_TX, Op};

    use super::super::tests::{fetch, start_engine};
    use tracer_model::decode::Record;
    use tracer_transactions::engine::Engine;

    const OPEN: u64 = 10_000;
    /// What the list of that many may take; without optimisation, and beside other tests, at most what is far from quadratic.
    const LIST_WITHIN: Duration = Duration::from_millis(if cfg!(debug_assertions) { 5_000 } else { 50 });

    fn moves(engine: &mut Engine, cookie: u64, sends: bool, nanos: u64, text: &str) {
        let flags = if sends { OP_TX } else { 0 };
        // Two requests on each thread, so that nobody looks for the threads in `/proc`.
        let header =
            Header { kind: Kind::Op as u8, flags, nanos, tgid: 1, tid: cookie as u32 / 2, ..Header::default() };
        let op = Op { header, cookie, bytes: text.len() as u32, ..Op::default() };
        engine.record(&Record::Op { op, head: text.as_bytes(), tail: &[], fragments: &[] }, &mut Vec::new());
    }

    async fn running(spoil: impl FnOnce(&mut Engine) + Send + 'static) -> (serde_json::Value, Duration) {
        let listen = start_engine(None, std::sync::Arc::default(), |engine| {
            engine.process(1, tracer_model::ServiceId(0));
            for cookie in 1..=OPEN {
                moves(engine, cookie, false, 1_000 + cookie, &format!("GET /orders/{cookie} HTTP/1.1\r\n\r\n"));
            }
            spoil(engine);
        })
        .await;
        // The first answer waits for the records.
        fetch(listen, "/api/v1/running?limit=1").await;
        let begun = Instant::now();
        let answer = fetch(listen, "/api/v1/running?limit=10000").await;
        let took = begun.elapsed();
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        (serde_json::from_str(body).expect("JSON"), took)
    }

    #[tokio::test]
    async fn ten_thousand_open_requests_are_listed_in_time_and_none_when_they_have_ended() {
        let (answer, took) = running(|_| ()).await;
        assert_eq!(answer["running_total"], OPEN);
        let rows = answer["running"].as_array().expect("rows");
        assert_eq!(rows.len() as u64, OPEN);
        let starts: Vec<i64> = rows.iter().filter_map(|row| row["start_ns"].as_i64()).collect();
        assert!(starts.is_sorted() && starts.len() as u64 == OPEN, "the oldest first");
        println!("{OPEN} open requests listed in {took:?}");
        assert!(took <= LIST_WITHIN, "{took:?}");

        let (answer, _) = running(|engine| {
            for cookie in 1..=OPEN {
                moves(engine, cookie, true, 1_000_000, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        })
        .await;
        assert_eq!(answer["running_total"], 0, "none is left at once, before any is given out");
    }
}
