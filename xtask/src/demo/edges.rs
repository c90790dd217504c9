//! Edges between the hosts of `cargo xtask demo --hosts`, against what nobody told the agents.
//!
//! A request of HTTP has the order's number in its path. A command of Redis and a statement of PostgreSQL are as long as
//! the order's number says and so of a length no other order's is. An edge is right when both its ends are of the same order.

use std::collections::HashMap;

use serde_json::Value;

/// Requests of an order that come from another host which has an agent: nginx's to the shop, the shop's to Redis and to
/// PostgreSQL.
const EACH: u64 = 3;

/// Sums of edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edges {
    /// Both ends are of the same order.
    pub(super) matched: u64,
    /// Requests without a parent, and those nobody reported.
    pub(super) unmatched: u64,
    /// The parent is a call of another order, or none between these hosts.
    pub(super) wrong: u64,
    /// Orders whose units are of one transaction, and no other's is.
    pub(super) whole: u64,
    orders: u64,
}

/// Which order a unit is of, as far as it can be seen from outside: its protocol, and a number.
fn truth(unit: &Value) -> Option<(&str, u64)> {
    let protocol = unit["protocol"].as_str()?;
    let attributes = &unit["attributes"];
    let number = match protocol {
        "http" => attributes["url.path"].as_str()?.strip_prefix("/order/")?.parse().ok()?,
        "redis" if attributes["db.operation.name"] == "SET" => attributes["tracer.request.size"].as_u64()?,
        "postgresql" if attributes["db.operation.name"] == "INSERT" => attributes["tracer.request.size"].as_u64()?,
        _ => return None,
    };
    // The order made before the agents were there.
    (protocol != "http" || number > 0).then_some((protocol, number))
}

/// Whether a request came from a host that has an agent.
fn is_inner(unit: &Value) -> bool {
    unit["side"] == "server" && unit["host"] != "web" && truth(unit).is_some()
}

impl Edges {
    /// Counts those of `orders` orders.
    pub(super) fn of(units: &[Value], orders: u64) -> Self {
        let ids: HashMap<&str, &Value> =
            units.iter().filter_map(|unit| Some((unit["unit_id"].as_str()?, unit))).collect();
        let mut edges = Self { orders, ..Self::default() };
        for unit in units.iter().filter(|unit| is_inner(unit)) {
            let parent = unit["parent_id"].as_str().map(|id| ids.get(id));
            match parent {
                None => {}
                Some(Some(call))
                    if truth(call) == truth(unit) && call["side"] == "client" && call["host"] != unit["host"] =>
                {
                    edges.matched += 1;
                }
                // Its parent may not have been written yet, or never will be: then this is what it is called in the end.
                Some(_) => edges.wrong += 1,
            }
        }
        edges.unmatched = (EACH * orders).saturating_sub(edges.matched + edges.wrong);
        let mut traces: HashMap<&str, Vec<&Value>> = HashMap::new();
        for unit in units.iter().filter(|unit| truth(unit).is_some()) {
            traces.entry(unit["trace_id"].as_str().unwrap_or_default()).or_default().push(unit);
        }
        edges.whole = traces.values().filter(|units| is_whole(units)).count() as u64;
        edges
    }

    /// Whether nothing is missing and nothing wrong.
    pub(super) fn is_all(&self) -> bool {
        *self == Self { matched: EACH * self.orders, whole: self.orders, orders: self.orders, ..Self::default() }
    }
}

/// Whether units of one transaction are one order's: a request on the first host, and both ends of each edge.
fn is_whole(units: &[&Value]) -> bool {
    let mut orders = units.iter().filter_map(|unit| truth(unit)).filter(|(protocol, _)| *protocol == "http");
    let Some(first) = orders.next() else { return false };
    units.len() as u64 == 1 + 2 * EACH && orders.all(|order| order == first)
}

/// The units of one order that is whole: of all of them the one that took the middle time.
pub(super) fn whole(units: &[Value]) -> Option<Vec<Value>> {
    let mut traces: HashMap<&str, Vec<&Value>> = HashMap::new();
    for unit in units {
        traces.entry(unit["trace_id"].as_str()?).or_default().push(unit);
    }
    let time = |units: &Vec<&Value>| units.iter().filter_map(|unit| unit["duration_s"].as_f64()).fold(0.0, f64::max);
    let is_one =
        |units: &Vec<&Value>| is_whole(&units.iter().copied().filter(|unit| truth(unit).is_some()).collect::<Vec<_>>());
    let mut all: Vec<Vec<&Value>> = traces.into_values().filter(is_one).collect();
    all.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let middle = all.len() / 2;
    all.into_iter().nth(middle).map(|units| units.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Units of order `n`: ids are those of the order times ten, and what is added for each.
    fn order(n: u64) -> Vec<Value> {
        let unit = |at: u64, parent: Option<u64>, host: &str, side: &str, protocol: &str| {
            let attributes = match protocol {
                "http" => json!({ "url.path": format!("/order/{n}") }),
                "redis" => json!({ "db.operation.name": "SET", "tracer.request.size": 40 + n }),
                _ => json!({ "db.operation.name": "INSERT", "tracer.request.size": 70 + n }),
            };
            json!({ "unit_id": (10 * n + at).to_string(), "parent_id": parent.map(|at| (10 * n + at).to_string()),
                    "trace_id": n.to_string(), "host": host, "side": side, "protocol": protocol, "duration_s": n,
                    "attributes": attributes })
        };
        vec![
            unit(0, None, "web", "server", "http"),
            unit(1, Some(0), "web", "client", "http"),
            unit(2, Some(1), "shop", "server", "http"),
            unit(3, Some(2), "shop", "client", "redis"),
            unit(4, Some(3), "data", "server", "redis"),
            unit(5, Some(2), "shop", "client", "postgresql"),
            unit(6, Some(5), "data", "server", "postgresql"),
        ]
    }

    #[test]
    fn edges_are_counted_by_what_their_ends_are_of() {
        let mut units: Vec<Value> = (1..=3).flat_map(order).collect();
        let all = Edges { matched: 9, unmatched: 0, wrong: 0, whole: 3, orders: 3 };
        assert_eq!(Edges::of(&units, 3), all);
        assert!(all.is_all() && !Edges::of(&units, 4).is_all(), "one order was not seen");
        assert_eq!(whole(&units).expect("one")[0]["unit_id"], "20", "the middle one");

        units[4]["parent_id"] = json!("23");
        assert_eq!(Edges::of(&units, 3), Edges { matched: 8, wrong: 1, ..all }, "another order's call");
        units[4]["parent_id"] = Value::Null;
        assert_eq!(Edges::of(&units, 3), Edges { matched: 8, unmatched: 1, ..all });
        units[4]["trace_id"] = json!("2");
        assert_eq!(Edges::of(&units, 3).whole, 1, "one has too few, another too many");
        assert!(!Edges::of(&units, 3).is_all());
    }
}
