//! Lines of logs beside the transactions that they were written for. Their texts are bounded: where they take too much, those of
//! the oldest transactions go, first of such that no class keeps for being slow or failed, and the places of the lines stay.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;
use tracer_model::{LogTextBudget, Names, Span, TraceId};

use super::Store;

/// Most transactions remembered to have texts.
const QUEUE: usize = 16_384;

/// Transactions with texts, oldest first.
#[derive(Debug, Default)]
pub(super) struct LogTextQueues {
    /// Of all texts; `None`: there are none.
    budget: Option<LogTextBudget>,
    /// Those that came last.
    new: VecDeque<TraceId>,
    /// Those that a class kept when their turn came.
    kept: VecDeque<TraceId>,
}

/// A line, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLineView {
    /// The span of the request it was written for.
    pub span_id: String,
    /// The service that wrote it.
    pub service_name: String,
    /// When, nanoseconds since the epoch.
    pub time_ns: i64,
    /// Where to: a path as the service's process sees it, or a pipe, a socket or a terminal.
    pub file: String,
    /// Where it begins in the file.
    pub offset: Option<u64>,
    /// Its length in the file.
    pub bytes: u64,
    /// Its beginning, without what looks like a secret.
    pub text: Option<String>,
    /// It is longer than its text.
    pub cut: bool,
}

impl Store {
    /// Bounds texts of log lines by this budget.
    #[must_use]
    pub fn with_texts(mut self, budget: LogTextBudget) -> Self {
        self.texts.budget = Some(budget);
        self
    }

    /// Remembers that the span's transaction has texts.
    pub(super) fn hold_texts(&mut self, span: &Span) {
        if span.log_lines.as_ref().is_some_and(|lines| lines.has_texts()) {
            if self.texts.new.len() >= QUEUE
                && let Some(oldest) = self.texts.new.pop_front()
            {
                self.strip(oldest);
            }
            self.texts.new.push_back(span.trace);
        }
    }

    /// Drops texts until a quarter of their room is free: for those of requests that are open.
    pub(super) fn make_room_for_texts(&mut self) {
        let Some(budget) = self.texts.budget.clone() else { return };
        let is_full = || {
            let (used, most) = budget.level();
            used > most / 4 * 3
        };
        while is_full() {
            if let Some(trace) = self.texts.new.pop_front() {
                let is_kept = self.traces.get(&trace).is_some_and(|kept| kept.wanted > 0);
                if is_kept && self.texts.kept.len() < QUEUE {
                    self.texts.kept.push_back(trace);
                } else {
                    self.strip(trace);
                }
            } else if let Some(trace) = self.texts.kept.pop_front() {
                self.strip(trace);
            } else {
                return;
            }
        }
    }

    /// Drops the texts of a transaction.
    fn strip(&mut self, trace: TraceId) {
        let Some(stored) = self.traces.get_mut(&trace) else { return };
        for lines in stored.spans.iter_mut().filter_map(|span| span.log_lines.as_mut()) {
            if lines.has_texts() {
                *lines = Arc::new(lines.without_texts());
            }
        }
    }

    /// The lines of a transaction in the order in which they were written, and how many more there were; `None` if it is not
    /// kept.
    pub fn log_lines(&self, names: &Names, trace: TraceId) -> Option<(Vec<LogLineView>, u64)> {
        let stored = self.traces.get(&self.listed.borrow().current(trace))?;
        let of_spans = stored.spans.iter().filter_map(|span| Some((span, span.log_lines.as_ref()?)));
        let dropped = of_spans.clone().map(|(_, lines)| lines.dropped).sum();
        let mut all: Vec<_> =
            of_spans.flat_map(|(span, lines)| lines.lines.iter().map(move |line| (span, line))).collect();
        all.sort_by_key(|(_, line)| line.nanos);
        let view = |(span, line): (&Span, &tracer_model::LogLine)| LogLineView {
            span_id: span.id.to_string(),
            service_name: names.service(span.service).to_string(),
            time_ns: (line.nanos as i64).saturating_add(self.wall_offset),
            file: line.file.to_string(),
            offset: line.offset,
            bytes: line.bytes,
            text: line.text.as_ref().map(|text| text.as_str().to_owned()),
            cut: line.cut,
        };
        Some((all.into_iter().map(view).collect(), dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{LogLine, LogLines, sample_span::span};

    fn with_line(trace: u128, text: &str, budget: &LogTextBudget, error: bool) -> Span {
        let mut lines = LogLines::default();
        let line =
            |nanos, text| LogLine { nanos, file: "/log".into(), offset: Some(nanos), bytes: 9, text, cut: false };
        lines.add(line(20, budget.keep(text)));
        lines.add(line(10, budget.keep(text)));
        Span { trace: TraceId(trace), error, log_lines: Some(Arc::new(lines)), ..span(trace, 1, 1, error) }
    }

    #[test]
    fn texts_of_the_oldest_transactions_go_and_places_stay() {
        let names = Names::default();
        let budget = LogTextBudget::new(20_000);
        let mut store = Store::new(5, "h", 1000).with_texts(budget.clone());
        for trace in 1..=300u128 {
            store.take(with_line(trace, &"x".repeat(100), &budget, trace <= 3));
            let (used, most) = budget.level();
            assert!(used <= most, "{used} of {most}");
        }
        let texts = |trace| {
            let (lines, dropped) = store.log_lines(&names, TraceId(trace)).unwrap();
            assert_eq!((lines.len(), dropped), (2, 0));
            assert_eq!([lines[0].time_ns, lines[1].time_ns], [15, 25], "in the order of time");
            lines.iter().filter(|line| line.text.is_some()).count()
        };
        assert_eq!([texts(300), texts(100)], [2, 0]);
        assert!(store.log_lines(&names, TraceId(999)).is_none());
        drop(store);
        assert_eq!(budget.level().0, 0, "nothing is left");
    }
}
