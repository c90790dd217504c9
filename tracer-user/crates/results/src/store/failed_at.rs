//! Where a transaction began to fail: pure, on its spans as they are shown.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tracer_model::text::printable;
use tracer_model::{Outcome, SpanId};

use super::SpanView;
use super::attributes::error_type;

/// The span of a failed transaction that failed first, as far as its spans tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedAt {
    /// Its id.
    pub span_id: String,
    /// Its service.
    pub service_name: String,
    /// Its request class.
    pub request_class: String,
    /// Its `error.type`.
    pub error_type: String,
    /// The type of the last exception that was thrown for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_type: Option<String>,
    /// The innermost function of the application in its stack, if that was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_function: Option<String>,
    /// Its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_file: Option<String>,
    /// The line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_line: Option<u32>,
}

/// Where the transaction that `spans` are, by start time, began to fail: from its topmost span, if that failed, down through the
/// failed spans below. Of several the one that ended last before the failure that it explains; one that was only cut off is the
/// last to be asked: whoever cut it off had failed before.
pub fn failed_at(spans: &[SpanView<'_>]) -> Option<FailedAt> {
    let known: HashSet<SpanId> = spans.iter().map(|view| view.span.id).collect();
    let mut below: HashMap<SpanId, Vec<&SpanView<'_>>> = HashMap::new();
    for view in spans.iter().filter(|view| view.span.error) {
        if let Some(parent) = view.span.parent {
            below.entry(parent).or_default().push(view);
        }
    }
    let is_topmost = |view: &&SpanView<'_>| view.span.parent.is_none_or(|parent| !known.contains(&parent));
    let mut at = spans.iter().find(is_topmost).filter(|view| view.span.error)?;
    let mut seen = HashSet::new();
    while seen.insert(at.span.id) {
        let explains = below.get(&at.span.id).into_iter().flatten();
        let (end, aborted) = (at.end_ns(), Outcome::Aborted.name());
        let rank = |view: &&&SpanView<'_>| (kind(view) != aborted, view.end_ns() <= end, view.end_ns());
        let Some(next) = explains.max_by_key(rank) else { break };
        at = next;
    }
    let thrown_at = at.span.thrown_at.as_ref().and_then(|site| site.place());
    Some(FailedAt {
        span_id: at.span.id.to_string(),
        service_name: at.service_name.to_string(),
        request_class: at.request_class().to_owned(),
        error_type: kind(at).into_owned(),
        exception_type: at.span.exception.as_deref().map(str::to_owned),
        exception_function: thrown_at.map(|place| printable(&place.function).into_owned()),
        exception_file: thrown_at.and_then(|place| place.file.as_deref()).map(|file| printable(file).into_owned()),
        exception_line: thrown_at.map(|place| place.line).filter(|line| *line != 0),
    })
}

fn kind(view: &SpanView<'_>) -> Cow<'static, str> {
    error_type(&view.span).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{Names, ProcessEnd, Side, Span, sample_span};

    fn span(
        id: u64,
        parent: u64,
        side: Side,
        end: u64,
        status: Option<u16>,
        dead: Option<ProcessEnd>,
    ) -> SpanView<'static> {
        let outcome = if status.is_none() { Outcome::Aborted } else { Outcome::Complete };
        let span = Span {
            id: SpanId(id),
            parent: (parent != 0).then_some(SpanId(parent)),
            side,
            status,
            outcome,
            error: status.is_none_or(|status| status >= 400),
            process_end: dead,
            ..sample_span::span(1, 1_000_000 + id, end * 1_000_000, false)
        };
        SpanView::of(&Names::default(), &span, 0, "h").into_owned()
    }

    fn place(spans: &[SpanView<'_>]) -> Option<(u64, String)> {
        failed_at(spans).map(|at| (u64::from_str_radix(&at.span_id, 16).expect("an id"), at.error_type))
    }

    #[test]
    fn a_process_that_died_behind_a_proxy_is_where_it_began() {
        let spans = [
            span(1, 0, Side::Server, 90, Some(502), None),
            span(2, 1, Side::Client, 80, None, None),
            span(3, 2, Side::Server, 70, None, Some(ProcessEnd::Signal(11))),
        ];
        assert_eq!(place(&spans), Some((3, "SIGSEGV".into())));
        assert_eq!(place(&spans[..1]), Some((1, "502".into())));
        // The topmost span is not here.
        assert_eq!(place(&spans[1..]), Some((3, "SIGSEGV".into())));
        assert_eq!(place(&[]), None);
    }

    #[test]
    fn failures_that_were_survived_are_not_it() {
        let spans = [span(1, 0, Side::Server, 90, Some(200), None), span(2, 1, Side::Client, 80, Some(503), None)];
        assert_eq!(place(&spans), None);
        let spans = [
            span(1, 0, Side::Server, 90, Some(500), None),
            span(2, 1, Side::Client, 20, Some(404), None),
            span(3, 1, Side::Client, 60, Some(503), None),
            // Cut off, and one that failed after the reply.
            span(4, 1, Side::Client, 85, None, None),
            span(5, 1, Side::Client, 99, Some(500), None),
        ];
        assert_eq!(place(&spans), Some((3, "503".into())));
    }

    #[test]
    fn parents_in_a_circle_end() {
        let spans = [span(1, 0, Side::Server, 9, Some(500), None), span(1, 1, Side::Server, 8, Some(501), None)];
        assert!(place(&spans).is_some());
    }
}
