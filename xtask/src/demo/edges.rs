//! Compares edges between the hosts of `cargo xtask demo --hosts` with facts the agents do not use.
//!
//! An HTTP request has the order's number in its path. The length of a Redis command and of a PostgreSQL statement
//! encodes the order's number, so it is unique to the order. An edge is right if both its ends belong to the same
//! order.

use std::collections::HashMap;

use serde_json::Value;

/// Requests per order that come from another host with an agent: nginx's to the shop, the shop's to Redis and to
/// PostgreSQL.
const EACH: u64 = 3;

/// Counts of edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edges {
    /// Both ends belong to the same order.
    pub(super) matched: u64,
    /// Requests without a parent, and unreported ones.
    pub(super) unmatched: u64,
    /// The parent is a call of another order, or not a call between these hosts.
    pub(super) wrong: u64,
    /// Orders whose spans share a transaction that has no other order's spans.
    pub(super) whole: u64,
    orders: u64,
}

/// The order of a span as visible from outside: its protocol, and a number.
fn truth(span: &Value) -> Option<(&str, u64)> {
    let protocol = span["protocol"].as_str()?;
    let attributes = &span["attributes"];
    let number = match protocol {
        "http" => attributes["url.path"].as_str()?.strip_prefix("/order/")?.parse().ok()?,
        "redis" if attributes["db.operation.name"] == "SET" => attributes["tracer.request.size"].as_u64()?,
        "postgresql" if attributes["db.operation.name"] == "INSERT" => attributes["tracer.request.size"].as_u64()?,
        _ => return None,
    };
    // The order sent before the agents ran.
    (protocol != "http" || number > 0).then_some((protocol, number))
}

/// Whether a request came from a host with an agent.
fn is_inner(span: &Value) -> bool {
    span["side"] == "server" && span["host"] != "web" && truth(span).is_some()
}

impl Edges {
    /// Counts the edges of `orders` orders.
    pub(super) fn of(spans: &[Value], orders: u64) -> Self {
        let ids: HashMap<&str, &Value> =
            spans.iter().filter_map(|span| Some((span["span_id"].as_str()?, span))).collect();
        let mut edges = Self { orders, ..Self::default() };
        for span in spans.iter().filter(|span| is_inner(span)) {
            let parent = span["parent_span_id"].as_str().map(|id| ids.get(id));
            match parent {
                None => {}
                Some(Some(call))
                    if truth(call) == truth(span) && call["side"] == "client" && call["host"] != span["host"] =>
                {
                    edges.matched += 1;
                }
                // Its parent may not be written yet: wrong so far, and for good if the parent never comes.
                Some(_) => edges.wrong += 1,
            }
        }
        edges.unmatched = (EACH * orders).saturating_sub(edges.matched + edges.wrong);
        let mut traces: HashMap<&str, Vec<&Value>> = HashMap::new();
        for span in spans.iter().filter(|span| truth(span).is_some()) {
            traces.entry(span["trace_id"].as_str().unwrap_or_default()).or_default().push(span);
        }
        edges.whole = traces.values().filter(|spans| is_whole(spans)).count() as u64;
        edges
    }

    /// Whether no edge is missing or wrong.
    pub(super) fn is_all(&self) -> bool {
        *self == Self { matched: EACH * self.orders, whole: self.orders, orders: self.orders, ..Self::default() }
    }
}

/// Whether the spans of one transaction are a whole order: a request on the first host, and both ends of each edge.
fn is_whole(spans: &[&Value]) -> bool {
    let mut orders = spans.iter().filter_map(|span| truth(span)).filter(|(protocol, _)| *protocol == "http");
    let Some(first) = orders.next() else { return false };
    spans.len() as u64 == 1 + 2 * EACH && orders.all(|order| order == first)
}

/// The spans of one whole order: the one with the median duration.
pub(super) fn whole(spans: &[Value]) -> Option<Vec<Value>> {
    let mut traces: HashMap<&str, Vec<&Value>> = HashMap::new();
    for span in spans {
        traces.entry(span["trace_id"].as_str()?).or_default().push(span);
    }
    let time = |spans: &Vec<&Value>| spans.iter().filter_map(|span| span["duration_s"].as_f64()).fold(0.0, f64::max);
    let is_one =
        |spans: &Vec<&Value>| is_whole(&spans.iter().copied().filter(|span| truth(span).is_some()).collect::<Vec<_>>());
    let mut all: Vec<Vec<&Value>> = traces.into_values().filter(is_one).collect();
    all.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let middle = all.len() / 2;
    all.into_iter().nth(middle).map(|spans| spans.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Spans of order `n`: each id is ten times the order's number, plus the span's index.
    fn order(n: u64) -> Vec<Value> {
        let span = |at: u64, parent: Option<u64>, host: &str, side: &str, protocol: &str| {
            let attributes = match protocol {
                "http" => json!({ "url.path": format!("/order/{n}") }),
                "redis" => json!({ "db.operation.name": "SET", "tracer.request.size": 40 + n }),
                _ => json!({ "db.operation.name": "INSERT", "tracer.request.size": 70 + n }),
            };
            json!({ "span_id": (10 * n + at).to_string(), "parent_span_id": parent.map(|at| (10 * n + at).to_string()),
                    "trace_id": n.to_string(), "host": host, "side": side, "protocol": protocol, "duration_s": n,
                    "attributes": attributes })
        };
        vec![
            span(0, None, "web", "server", "http"),
            span(1, Some(0), "web", "client", "http"),
            span(2, Some(1), "shop", "server", "http"),
            span(3, Some(2), "shop", "client", "redis"),
            span(4, Some(3), "data", "server", "redis"),
            span(5, Some(2), "shop", "client", "postgresql"),
            span(6, Some(5), "data", "server", "postgresql"),
        ]
    }

    #[test]
    fn edges_are_counted_by_what_their_ends_are_of() {
        let mut spans: Vec<Value> = (1..=3).flat_map(order).collect();
        let all = Edges { matched: 9, unmatched: 0, wrong: 0, whole: 3, orders: 3 };
        assert_eq!(Edges::of(&spans, 3), all);
        assert!(all.is_all() && !Edges::of(&spans, 4).is_all(), "one order was not seen");
        assert_eq!(whole(&spans).expect("one")[0]["span_id"], "20", "the middle one");

        spans[4]["parent_span_id"] = json!("23");
        assert_eq!(Edges::of(&spans, 3), Edges { matched: 8, wrong: 1, ..all }, "another order's call");
        spans[4]["parent_span_id"] = Value::Null;
        assert_eq!(Edges::of(&spans, 3), Edges { matched: 8, unmatched: 1, ..all });
        spans[4]["trace_id"] = json!("2");
        assert_eq!(Edges::of(&spans, 3).whole, 1, "one has too few, another too many");
        assert!(!Edges::of(&spans, 3).is_all());
    }
}
