//! Lists of transactions: what they select, in which order, page by page.

use std::cmp::Reverse;

use tracer_model::{Names, Nanos, ProcessEnd, ServiceId, Side, Span};

use super::view::{Summary, seconds};
use super::{Status, Store, StoredTransaction};

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// Newest first.
    #[default]
    Newest,
    /// Longest first.
    Slowest,
}

/// Where the next page of a list begins: after the row with this place in the order. Places do not change, so pages neither
/// repeat nor omit rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// Start or duration, by the order.
    major: u64,
    span: u64,
}

impl Cursor {
    /// Parses what [`Cursor`] prints.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, span) = text.split_once('-')?;
        let number = |digits: &str| {
            let hexadecimal = (1..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            hexadecimal.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        Some(Self { major: number(major)?, span: number(span)? })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}-{:x}", self.major, self.span)
    }
}

/// Selects transactions that have one span matching all conditions.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Service of the span.
    pub service: Option<String>,
    /// Request class of the span.
    pub class: Option<String>,
    /// Minimum duration, milliseconds.
    pub min_ms: Option<f64>,
    /// The duration is below this, milliseconds.
    pub max_ms: Option<f64>,
    /// The span ended in this range of instants, nanoseconds since the epoch; the end is outside.
    pub range: Option<(u64, u64)>,
    /// Status.
    pub status: Option<Status>,
    /// Most results.
    pub limit: usize,
    /// Order of the results.
    pub order: ListOrder,
    /// Only what comes after this place in the order.
    pub after: Option<Cursor>,
}

/// A page of a list, and what it cannot have.
#[derive(Clone, Debug)]
pub struct TransactionList {
    /// The rows.
    pub rows: Vec<Summary>,
    /// How many transactions fit in all, on this page, before and after it.
    pub matched: usize,
    /// Where the next page begins; `None`: this is the last.
    pub next: Option<Cursor>,
    /// How many of the rows stay for [`super::LISTED_FOR`].
    pub held: usize,
}

/// What the store still has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retention {
    /// Transactions kept.
    pub transactions: usize,
    /// Transactions forgotten since tracing began.
    pub forgotten: u64,
    /// All transactions that began at or after this are kept, nanoseconds since the epoch; `None`: nothing is kept.
    pub complete_from_ns: Option<i64>,
}

impl Store {
    /// Transactions that match `filter`. Those on the page stay for a while.
    pub fn list(&self, names: &Names, filter: &Filter) -> TransactionList {
        let nothing = TransactionList { rows: Vec::new(), matched: 0, next: None, held: 0 };
        let service = match &filter.service {
            None => None,
            Some(want) => match names.services.iter().position(|name| **name == **want) {
                Some(index) => Some(ServiceId(index as u32)),
                None => return nothing,
            },
        };
        let in_range = |end: Nanos| {
            let wall = (end as i64).saturating_add(self.wall_offset).max(0) as u64;
            filter.range.is_none_or(|(from, to)| (from..to).contains(&wall))
        };
        let millis = |span: &Span| span.duration() as f64 / 1e6;
        let fits = |span: &Span| {
            service.is_none_or(|want| span.service == want)
                && filter.min_ms.is_none_or(|min| millis(span) >= min)
                && filter.max_ms.is_none_or(|max| millis(span) < max)
                && in_range(span.end)
                && filter.status.is_none_or(|status| status.fits(span))
                && filter.class.as_ref().is_none_or(|want| names.class(span.class).is_some_and(|c| *c.name == **want))
        };
        let place = |span: &Span| {
            let major = match filter.order {
                ListOrder::Newest => span.start,
                ListOrder::Slowest => span.duration(),
            };
            Cursor { major, span: span.id.0 }
        };
        let topmost = |kept: &'_ StoredTransaction| {
            // Prefer the user's request to the calls it caused.
            let order = |(_, span): &(usize, &Span)| (span.side == Side::Client, span.parent.is_some(), span.start);
            let spans = kept.spans.iter().enumerate().filter(|(_, span)| fits(span));
            spans.min_by_key(order).map(|(index, _)| index)
        };
        let mut found: Vec<(&Span, &[Span])> = self
            .traces
            .values()
            .filter_map(|kept| Some((kept.spans.get(topmost(kept)?)?, kept.spans.as_slice())))
            .collect();
        let matched = found.len();
        if let Some(after) = filter.after {
            found.retain(|(span, _)| place(span) < after);
        }
        found.sort_unstable_by_key(|(span, _)| Reverse(place(span)));
        let more = found.len() > filter.limit;
        found.truncate(filter.limit);
        let next = found.last().filter(|_| more).map(|(span, _)| place(span));
        let held = self.listed.borrow_mut().hold(self.now, found.iter().map(|(span, _)| span.trace));
        let row = |(span, spans): (&Span, &[Span])| Summary {
            trace_id: span.trace.to_string(),
            service_name: names.service(span.service).to_string(),
            request_class: names.class(span.class).map(|class| class.name.to_string()).unwrap_or_default(),
            start_ns: (span.start as i64).saturating_add(self.wall_offset),
            duration_s: seconds(span.duration()),
            status: span.status,
            failure: span.failure,
            error: span.error,
            outcome: span.outcome.name(),
            process_end: span.process_end.map(ProcessEnd::error_type),
            exception_type: span.exception.as_deref().map(str::to_owned),
            spans: spans.len(),
            failed_spans: spans.iter().filter(|span| span.error).count(),
        };
        TransactionList { rows: found.into_iter().map(row).collect(), matched, next, held }
    }

    /// What is still here, and what is not.
    pub fn retention(&self) -> Retention {
        // The newest are kept whatever they are like; before the oldest of them only those that a class selected are.
        let first = |trace| self.traces.get(trace).and_then(|kept| kept.spans.iter().map(|span| span.end).min());
        let oldest = || self.traces.values().flat_map(|kept| &kept.spans).map(|span| span.start).min();
        let complete = if self.evicted == 0 { oldest() } else { self.recent.front().and_then(first) };
        Retention {
            transactions: self.traces.len(),
            forgotten: self.evicted,
            complete_from_ns: complete.map(|at| (at as i64).saturating_add(self.wall_offset)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{LISTED_FOR, RECENT};
    use tracer_model::sample_span::span;
    use tracer_model::{SpanId, TraceId};

    fn filled(count: u128) -> Store {
        let mut store = Store::new(1_000_000, "h", 100);
        for index in 0..count {
            // Several of each duration and start.
            let one = span(index + 1, (index / 3) as u64 * 10, (index % 7) as u64 * 1_000_000, false);
            store.take(Span { id: SpanId(index as u64 + 1), ..one });
        }
        store
    }

    #[test]
    fn pages_are_one_list() {
        let (names, store) = (Names::default(), filled(100));
        for order in [ListOrder::Newest, ListOrder::Slowest] {
            let all = store.list(&names, &Filter { limit: 1000, order, ..Filter::default() });
            assert_eq!((all.rows.len(), all.matched, all.next), (100, 100, None));
            let (mut after, mut ids) = (None, Vec::new());
            loop {
                let page = store.list(&names, &Filter { limit: 9, order, after, ..Filter::default() });
                assert_eq!(page.matched, 100);
                ids.extend(page.rows.into_iter().map(|row| row.trace_id));
                let Some(next) = page.next else { break };
                assert_eq!(Cursor::parse(&next.to_string()), Some(next));
                after = Some(next);
            }
            assert_eq!(ids, all.rows.into_iter().map(|row| row.trace_id).collect::<Vec<_>>());
        }
        for bad in ["", "-", "1", "1-", "x-1", "1-2-3", "+1-2", "12345678901234567-1"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn time_and_latency_select_a_cell() {
        let (names, store) = (Names::default(), filled(100));
        let of = |range, min_ms, max_ms| {
            let filter = Filter { limit: 1000, range, min_ms, max_ms, ..Filter::default() };
            store.list(&names, &filter).rows
        };
        let slow = of(None, Some(3.0), Some(5.0));
        assert!(slow.len() > 20 && slow.iter().all(|row| (0.003..0.005).contains(&row.duration_s)));
        // By when they ended: 3 ms after the epoch, as the store sees it, and less than 1 ms later.
        let then = of(Some((3_000_000, 4_000_000)), None, None);
        let end = |row: &Summary| row.start_ns as u64 + (row.duration_s * 1e9).round() as u64;
        assert!(!then.is_empty() && then.iter().all(|row| (3_000_000..4_000_000).contains(&end(row))));
    }

    #[test]
    fn what_a_list_showed_stays_while_it_is_fresh() {
        let names = Names::default();
        let mut store = Store::new(0, "h", 0);
        store.take(span(1, 0, 5, false));
        let list = store.list(&names, &Filter { limit: 10, ..Filter::default() });
        assert_eq!(list.held, 1);
        let fill = |store: &mut Store, from: u128| {
            for index in 0..RECENT as u128 + 10 {
                store.take(span(from + index, 10, 5, false));
            }
        };
        fill(&mut store, 100);
        assert!(store.transaction(&names, TraceId(1)).is_some(), "listed a moment ago");
        assert!(store.transaction(&names, TraceId(100)).is_none(), "as old, and not listed");
        // Under the id it was listed by, too.
        store.rename(TraceId(1), TraceId(2));
        fill(&mut store, 10_000);
        assert_eq!(store.transaction(&names, TraceId(1)).map(|spans| spans.len()), Some(1));
        store.tick(LISTED_FOR - 1);
        assert!(store.transaction(&names, TraceId(2)).is_some());
        store.tick(2 * LISTED_FOR);
        assert!(store.transaction(&names, TraceId(1)).is_none() && store.transaction(&names, TraceId(2)).is_none());
        let retention = store.retention();
        assert!(retention.forgotten > 0 && retention.complete_from_ns == Some(15), "{retention:?}");
    }
}
