//! `GET /api/v1/transactions`: lists of transactions, page by page. `GET /api/v1/transactions/ID`: one of them, with its critical
//! path.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use tracer_model::TraceId;
use tracer_results::store::critical_path::critical_path;
use tracer_results::store::failed_at::failed_at;
use tracer_results::store::{self, Cursor, TransactionList};

use super::guard::is_trusted;
use super::known::find;
use super::params::{Named, Params};
use super::range::Range;
use super::{App, PipelineView, Problem};

type AppState = State<Arc<App>>;

/// Maximum number of transactions in one list.
const LIST: usize = 10_000;

pub(super) async fn list(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    let filter = transactions_filter(params)?;
    let range = filter.range.map_or(Value::Null, |(from, to)| Range { from, to }.to_json());
    let found = app.shared.ask(move |view| {
        find(view, filter.service.as_deref(), filter.class.as_deref())?;
        Ok::<_, super::known::Unknown>((view.store.list(view.names, &filter), view.store.retention()))
    });
    let (TransactionList { rows, matched, next, held }, retention) = found.await??;
    Ok(Json(json!({
        "transactions": rows,
        "matched": matched,
        "next_cursor": next.map(|cursor| cursor.to_string()),
        "range": range,
        // The rows that can be opened as long as the list is fresh.
        "fresh": { "rows": held, "for_s": store::LISTED_FOR as f64 / 1e9 },
        "memory": {
            "transactions": retention.transactions,
            "forgotten": retention.forgotten,
            "complete_from": retention.complete_from_ns,
        },
    })))
}

/// Parameters of lists of transactions.
const LIST_PARAMS: [&str; 11] =
    ["service", "class", "from", "to", "since", "min_ms", "max_ms", "status", "sort", "limit", "cursor"];

/// The filter of a transactions query.
pub(super) fn transactions_filter(params: Params) -> Result<store::Filter, Problem> {
    let params = params.only(&LIST_PARAMS)?;
    Ok(store::Filter {
        service: params.string("service"),
        class: params.string("class"),
        min_ms: params.number("min_ms", 0.0..=f64::MAX, "a number of milliseconds")?,
        max_ms: params.number("max_ms", 0.0..=f64::MAX, "a number of milliseconds")?,
        range: Range::of(&params)?.map(Range::pair),
        status: params.read("status", "ok, error, unfinished, a code such as 404 or 5xx", store::Status::parse)?,
        limit: params.number("limit", 1..=LIST, "a number, at least 1 and at most 10000")?.unwrap_or(100),
        order: params.read("sort", "newest or slowest", order)?.unwrap_or_default(),
        after: params.read("cursor", "the next_cursor of the page before", Cursor::parse)?,
    })
}

fn order(text: &str) -> Option<store::ListOrder> {
    match text {
        "newest" => Some(store::ListOrder::Newest),
        "slowest" => Some(store::ListOrder::Slowest),
        _ => None,
    }
}

/// Parses a trace id.
pub(super) fn trace_id(text: &str) -> Result<TraceId, Problem> {
    let hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = hexadecimal.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    id.map(TraceId).ok_or_else(|| Problem::bad("trace_id: expected 32 hexadecimal digits"))
}

/// Error message for a transaction that is not stored.
pub(super) const NOT_KEPT: &str =
    "this transaction is not kept: only the newest, the slowest, the failed and a sample of each class are";

pub(super) async fn one(
    State(app): AppState,
    Named(id): Named,
    headers: HeaderMap,
    params: Params,
) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let trace = trace_id(&id)?;
    let of_trace = move |view: &PipelineView<'_>| {
        let spans = view.store.transaction(view.names, trace)?;
        Some((spans, view.store.log_lines(view.names, trace)?))
    };
    let (spans, (mut log_lines, log_lines_dropped)) =
        app.shared.ask(of_trace).await?.ok_or_else(|| Problem::missing(NOT_KEPT))?;
    // A log may be closed to other users of this host, who can ask as well.
    let log_texts = is_trusted(&headers, app.shared.listen, app.shared.token.as_ref());
    if !log_texts {
        for line in &mut log_lines {
            line.text = None;
        }
    }
    // A transaction that became part of another one is found by both ids.
    let id = spans.first().map_or_else(|| trace.to_string(), |view| view.span.trace.to_string());
    Ok(Json(json!({
        "trace_id": id,
        "critical_path": critical_path(&spans),
        "failed_at": failed_at(&spans),
        "spans": spans,
        "log_lines": log_lines,
        "log_lines_dropped": log_lines_dropped,
        "log_texts": log_texts,
    })))
}
