//! The critical path of a transaction: the chain of work and waits that determined when it ended.
//!
//! Walks backwards from the end of the topmost span. What ended last before that moment is what the span waited for; the time
//! between is its own. Work that went on beside something longer, or after the reply, is not on the path: less of it would
//! not have ended the transaction earlier.

use std::collections::HashMap;

use serde::Serialize;
use tracer_model::{Side, SpanId};

use super::SpanView;

/// What the time of a step went for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A request waited to be accepted or read.
    Queue,
    /// The span's own work and waits: no call that it waited for was open.
    Own,
    /// A call was under way and its other end did not work on it: the network, or what arrived was not read yet.
    Network,
    /// A call whose other end this agent does not see.
    Remote,
}

/// A step of the path. Steps follow each other without gaps and do not overlap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The span in whose time it lies.
    pub span_id: String,
    /// What the time went for.
    pub kind: StepKind,
    /// When it began, nanoseconds since the epoch.
    pub start_ns: i64,
    /// How long it took, seconds.
    pub duration_s: f64,
}

/// A span as the walk sees it; instants in nanoseconds.
struct Node {
    start: i64,
    end: i64,
    /// Before `start`: how long it waited to be read.
    queue: i64,
    client: bool,
    /// Spans below it, those that end last at the end.
    below: Vec<usize>,
}

struct Walk<'a> {
    spans: &'a [SpanView<'a>],
    nodes: Vec<Node>,
    visited: Vec<bool>,
    /// Backwards.
    steps: Vec<Step>,
}

/// The critical path of the transaction that `spans` are, in the order of time; empty without spans.
pub fn critical_path(spans: &[SpanView<'_>]) -> Vec<Step> {
    let index: HashMap<SpanId, usize> = spans.iter().enumerate().map(|(at, view)| (view.span.id, at)).collect();
    let mut nodes: Vec<Node> = spans
        .iter()
        .map(|view| Node {
            start: view.start_ns(),
            end: view.end_ns(),
            queue: i64::try_from(view.span.queue()).unwrap_or(i64::MAX),
            client: view.span.side == Side::Client,
            below: Vec::new(),
        })
        .collect();
    let mut roots = Vec::new();
    for (at, view) in spans.iter().enumerate() {
        match view.span.parent.and_then(|parent| index.get(&parent)) {
            Some(parent) if *parent != at => nodes[*parent].below.push(at),
            _ => roots.push(at),
        }
    }
    let ends: Vec<(i64, i64)> = nodes.iter().map(|node| (node.end, node.start)).collect();
    for node in &mut nodes {
        node.below.sort_by_key(|at| ends[*at]);
    }
    // Where the topmost span is missing, several lie side by side: the longest stands for them.
    let longest =
        roots.into_iter().max_by_key(|at| (nodes[*at].end - nodes[*at].start, std::cmp::Reverse(nodes[*at].start)));
    let Some(root) = longest else { return Vec::new() };
    let (start, end) = (nodes[root].start, nodes[root].end);
    let queue = if nodes[root].client { 0 } else { nodes[root].queue };
    let mut walk = Walk { spans, visited: vec![false; nodes.len()], nodes, steps: Vec::new() };
    walk.span(root, start, end);
    walk.step(root, StepKind::Queue, start.saturating_sub(queue), start);
    walk.steps.reverse();
    walk.steps
}

impl Walk<'_> {
    /// Adds a step before all others.
    fn step(&mut self, at: usize, kind: StepKind, start: i64, end: i64) {
        if end > start {
            let span_id = self.spans[at].span.id.to_string();
            let (start_ns, duration_s) = (start, (end - start) as f64 / 1e9);
            self.steps.push(Step { span_id, kind, start_ns, duration_s });
        }
    }

    /// The part of a span between two instants, from its end to its beginning.
    fn span(&mut self, at: usize, start: i64, end: i64) {
        self.visited[at] = true;
        let below = std::mem::take(&mut self.nodes[at].below);
        let client = self.nodes[at].client;
        // Of a call, whatever its other end did not account for.
        let answered = below.iter().any(|child| !self.nodes[*child].client);
        let own = match (client, answered) {
            (false, _) => StepKind::Own,
            (true, true) => StepKind::Network,
            (true, false) => StepKind::Remote,
        };
        let mut until = end;
        for child in below.into_iter().rev() {
            let Node { start: begun, end: ended, queue, client: is_call, .. } = self.nodes[child];
            // The other end of a call is always waited for, even if clocks or the last read say that it ended later.
            let ended = if client && !is_call { ended.min(until) } else { ended };
            let begun = begun.max(start);
            // A call that goes on did not hold anything up; what takes no time cannot have.
            if self.visited[child] || ended > until || ended <= begun {
                continue;
            }
            self.step(at, own, ended, until);
            self.span(child, begun, ended);
            until = begun;
            if !is_call {
                let queued = begun.saturating_sub(queue).max(start);
                self.step(child, StepKind::Queue, queued, begun);
                until = queued;
            }
        }
        self.step(at, own, start, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tracer_model::{Names, Span, sample_span};

    /// A span from `start` to `end`, milliseconds.
    fn span(id: u64, parent: u64, side: Side, (start, end): (u64, u64), queue: u64) -> SpanView<'static> {
        const MS: u64 = 1_000_000;
        let base = sample_span::span(1, (start + 100) * MS, (end - start) * MS, false);
        let span = Span {
            id: SpanId(id),
            parent: (parent != 0).then_some(SpanId(parent)),
            side,
            arrived: (start + 100 - queue) * MS,
            ..base
        };
        SpanView::of(&Names::default(), &span, 0, "h").into_owned()
    }

    fn nanos(seconds: f64) -> i64 {
        (seconds * 1e9).round() as i64
    }

    fn path(spans: &[SpanView<'_>]) -> Vec<(u64, StepKind, i64, i64)> {
        let millis = |ns: i64| ns / 1_000_000 - 100;
        let steps = critical_path(spans);
        let end = |step: &Step| step.start_ns + nanos(step.duration_s);
        assert!(steps.is_sorted_by(|a, b| end(a) == b.start_ns), "gaps or overlaps: {steps:?}");
        let row = |step: &Step| {
            (u64::from_str_radix(&step.span_id, 16).unwrap(), step.kind, millis(step.start_ns), millis(end(step)))
        };
        steps.iter().map(row).collect()
    }

    use Side::{Client, Server};
    use StepKind::{Network, Own, Queue, Remote};

    #[test]
    fn of_two_calls_at_once_the_longer_is_on_the_path() {
        let spans = [
            span(1, 0, Server, (0, 100), 4),
            span(2, 1, Client, (10, 80), 0),
            span(3, 1, Client, (10, 60), 0),
            // Before both, and after them beside the answer: it ends when nothing waits for it.
            span(4, 1, Client, (2, 8), 0),
            span(5, 1, Client, (85, 130), 0),
        ];
        let wanted = [
            (1, Queue, -4, 0),
            (1, Own, 0, 2),
            (4, Remote, 2, 8),
            (1, Own, 8, 10),
            (2, Remote, 10, 80),
            (1, Own, 80, 100),
        ];
        assert_eq!(path(&spans), wanted);
    }

    #[test]
    fn a_call_is_followed_to_its_other_end() {
        let spans = [
            span(1, 0, Server, (0, 100), 0),
            span(2, 1, Client, (10, 90), 0),
            span(3, 2, Server, (30, 80), 15),
            span(4, 3, Client, (40, 70), 0),
            // Its last byte was written after it was read: the other end's clock, or the order of records.
            span(5, 4, Server, (41, 75), 0),
        ];
        let wanted = [
            (1, Own, 0, 10),
            (2, Network, 10, 15),
            (3, Queue, 15, 30),
            (3, Own, 30, 40),
            (4, Network, 40, 41),
            (5, Own, 41, 70),
            (3, Own, 70, 80),
            (2, Network, 80, 90),
            (1, Own, 90, 100),
        ];
        assert_eq!(path(&spans), wanted);
        // A message is consumed after the call that produced it: nothing waits for that.
        let spans =
            [span(1, 0, Server, (0, 50), 0), span(2, 1, Client, (10, 20), 0), span(3, 2, Server, (200, 300), 0)];
        assert_eq!(path(&spans)[1..], [(2, Network, 10, 20), (1, Own, 20, 50)]);
    }

    #[test]
    fn transactions_without_their_topmost_span_have_a_path() {
        assert_eq!(critical_path(&[]), []);
        let spans = [span(1, 77, Server, (0, 10), 0), span(2, 77, Server, (5, 50), 0)];
        assert_eq!(path(&spans), [(2, Own, 5, 50)]);
        // Parents in a circle, or a span that is its own: whatever it is, it ends.
        assert_eq!(path(&[span(1, 1, Server, (0, 10), 0)]), [(1, Own, 0, 10)]);
        assert_eq!(path(&[span(1, 2, Server, (0, 10), 0), span(2, 1, Server, (0, 10), 0)]), []);
    }

    proptest! {
        #[test]
        fn steps_cover_the_transaction_exactly(
            spans in proptest::collection::vec((0u64..12, any::<bool>(), 0u64..100, 1u64..100, 0u64..20), 1..12)
        ) {
            let tree: Vec<SpanView<'_>> = spans
                .iter()
                .enumerate()
                .map(|(at, (parent, client, start, length, queue))| {
                    // Earlier spans only: a tree.
                    let parent = if at == 0 { 0 } else { parent % at as u64 + 1 };
                    let side = if *client { Client } else { Server };
                    span(at as u64 + 1, parent, side, (*start, start + length), *queue)
                })
                .collect();
            let steps = path(&tree);
            let root = &*tree[0].span;
            let queue = if root.side == Client { 0 } else { root.queue() };
            let whole: i64 = steps.iter().map(|(_, _, start, end)| end - start).sum();
            prop_assert_eq!(whole, ((root.duration() + queue) / 1_000_000) as i64);
        }
    }
}
