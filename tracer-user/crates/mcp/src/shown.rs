//! What a tool shows of the API's answer: rows that were asked for, in the order that was asked for, as many as fit.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::bounds::{ANSWER, Cut, fit, rows};

/// How the API's answer is shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown {
    /// As it is.
    Whole,
    /// A list.
    List(&'static List),
    /// Functions, which are compared with other classes only where that is asked for.
    Hotspots,
    /// Spans and the critical path.
    Transaction,
    /// A finding's windows, a row each.
    Finding,
}

/// A list of rows.
#[derive(Debug)]
pub(super) struct List {
    /// Its field.
    pub(super) list: &'static str,
    /// Fields that `contains` looks into.
    pub(super) names: &'static [&'static str],
    /// What `sort` may say, and the fields whose sum that means. Without them: the API's order.
    pub(super) sorts: &'static [(&'static str, &'static [&'static str])],
    /// The field that counts all rows, where the API leaves some out.
    pub(super) total: Option<&'static str>,
    /// Which arguments narrow the question.
    pub(super) narrow: &'static str,
}

impl Shown {
    /// What is shown, at most [`ANSWER`] bytes.
    pub(super) fn of(self, answer: Value, arguments: &Arguments) -> Value {
        match self {
            Self::Whole => fit(answer, &[], ANSWER),
            Self::List(list) => list.of(answer, arguments),
            Self::Hotspots => hotspots(answer, arguments),
            Self::Transaction => transaction(answer, arguments),
            Self::Finding => finding(answer, arguments),
        }
    }
}

fn limit(arguments: &Arguments) -> usize {
    arguments.number("limit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn remove(answer: &mut Value, fields: &[&str]) {
    if let Value::Object(object) = answer {
        object.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

impl List {
    fn of(&self, mut answer: Value, arguments: &Arguments) -> Value {
        let mut all = rows(&mut answer, self.list);
        if let Some(wanted) = arguments.text("contains").map(str::to_lowercase) {
            let has = |row: &Value, name: &&str| {
                row.get(*name).and_then(Value::as_str).is_some_and(|text| text.to_lowercase().contains(&wanted))
            };
            all.retain(|row| self.names.iter().any(|name| has(row, name)));
        }
        if let Some(side @ ("server" | "client")) = arguments.text("side") {
            all.retain(|row| row.get("side").and_then(Value::as_str) == Some(side));
        }
        let asked = arguments.text("sort").and_then(|sort| self.sorts.iter().find(|(word, _)| *word == sort));
        if let Some((_, fields)) = asked {
            let sum = |row: &Value| fields.iter().filter_map(|field| row.get(*field)?.as_f64()).sum::<f64>();
            all.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
        }
        let counted = self.total.and_then(|total| answer.get(total)?.as_u64());
        let cut = Cut { list: self.list, total: counted.unwrap_or(all.len() as u64), narrow: self.narrow };
        all.truncate(limit(arguments));
        answer[self.list] = Value::Array(all);
        // Pages, and how long rows can be opened, are the API's.
        remove(&mut answer, &["next_cursor", "fresh"]);
        fit(answer, &[cut], ANSWER)
    }
}

fn hotspots(mut answer: Value, arguments: &Arguments) -> Value {
    let mut functions = rows(&mut answer, "functions");
    let cut = Cut {
        list: "functions",
        total: functions.len() as u64,
        narrow: "class and since narrow the question; a higher limit (500 at most) shows more",
    };
    functions.truncate(limit(arguments));
    if !arguments.flag("compare") {
        for function in &mut functions {
            remove(function, &["classes"]);
        }
        remove(&mut answer, &["classes"]);
    }
    answer["functions"] = Value::Array(functions);
    fit(answer, &[cut], ANSWER)
}

fn transaction(mut answer: Value, arguments: &Arguments) -> Value {
    // What programs logged is for people: it may be private, and it may hold instructions to a model that reads it.
    remove(&mut answer, &["log_lines", "log_lines_dropped", "log_texts"]);
    let all = rows(&mut answer, "spans");
    let name = |span: &Value, field: &str| span.get(field).cloned().unwrap_or_default();
    let of: HashMap<&str, &Value> =
        all.iter().filter_map(|span| Some((span.get("span_id")?.as_str()?, span))).collect();
    let mut path = rows(&mut answer, "critical_path");
    for step in &mut path {
        if let Some(span) = step.get("span_id").and_then(Value::as_str).and_then(|id| of.get(id)) {
            (step["service_name"], step["request_class"]) = (name(span, "service_name"), name(span, "request_class"));
        }
    }
    let wanted = arguments.text("service");
    let of_service = |span: &&Value| wanted.is_none_or(|service| name(span, "service_name") == service);
    let offset = arguments.number("offset").and_then(|offset| usize::try_from(offset).ok()).unwrap_or(0);
    let mut spans: Vec<Value> = all.iter().filter(of_service).skip(offset).cloned().collect();
    let cuts = [
        Cut { list: "critical_path", total: path.len() as u64, narrow: "a higher limit (500 at most) shows more" },
        Cut {
            list: "spans",
            total: spans.len() as u64,
            narrow: "offset shows the spans that follow, service those of one service; a higher limit (500 at most) shows more",
        },
    ];
    spans.truncate(limit(arguments));
    path.truncate(limit(arguments));
    answer["spans_total"] = json!(all.len());
    answer["spans"] = Value::Array(spans);
    answer["critical_path"] = Value::Array(path);
    fit(answer, &cuts, ANSWER)
}

/// Arrays with an entry per window become rows.
fn finding(mut answer: Value, arguments: &Arguments) -> Value {
    let mut columns: Vec<(String, Vec<Value>)> = Vec::new();
    if let Some(Value::Object(windows)) = answer.get_mut("windows").map(Value::take) {
        columns.extend(windows.into_iter().filter_map(|(name, column)| match column {
            Value::Array(column) => Some((name, column)),
            _ => None,
        }));
    }
    if let Some(regression) = answer.get_mut("regression").filter(|regression| regression.is_object()) {
        for (field, name) in [("cpu_s", "service_cpu_s"), ("predicted_s", "service_cpu_predicted_s")] {
            let column = rows(regression, field);
            if !column.is_empty() {
                columns.push((name.to_owned(), column));
            }
        }
        remove(regression, &["cpu_s", "predicted_s"]);
    }
    let length = columns.iter().map(|(_, column)| column.len()).max().unwrap_or(0);
    let wanted =
        arguments.number("windows").and_then(|wanted| usize::try_from(wanted).ok()).unwrap_or(usize::MAX).max(2);
    // The first and the last are among them.
    let at = |n: usize| if length <= wanted { n } else { n * (length - 1) / (wanted - 1) };
    let row = |n: usize| {
        let fields = columns.iter().filter_map(|(name, column)| Some((name.clone(), column.get(at(n))?.clone())));
        Value::Object(fields.collect::<Map<String, Value>>())
    };
    let shown: Vec<Value> = (0..length.min(wanted)).map(row).collect();
    let cut = Cut {
        list: "windows",
        total: length as u64,
        narrow: "fewer are enough to see a change; more windows (200 at most) show more of them",
    };
    answer["windows"] = Value::Array(shown);
    fit(answer, &[cut], ANSWER)
}

#[cfg(test)]
mod tests {
    use super::super::tools::Tool;
    use super::*;

    fn shown(tool: &str, given: Value, answer: Value) -> Value {
        let tool = Tool::named(tool).expect("a tool");
        let Value::Object(given) = given else { panic!("{given}") };
        tool.shown.of(answer, &Arguments::of(tool.arguments, given).expect("arguments"))
    }

    fn class(name: &str, side: &str, count: u64, p99: f64) -> Value {
        json!({ "service_name": "shop", "request_class": name, "side": side, "count": count, "p99_s": p99 })
    }

    fn names(answer: &Value, list: &str, field: &str) -> Vec<String> {
        answer[list].as_array().unwrap().iter().map(|row| row[field].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn rows_are_chosen_sorted_and_counted() {
        let answer = json!({
            "classes": [class("GET /a", "server", 5, 0.1), class("SELECT", "client", 9, 0.3), class("GET /b", "server", 3, 0.2)],
            "next_cursor": null, "range": null,
        });
        let list = |given: Value| shown("list_classes", given, answer.clone());
        assert_eq!(names(&list(json!({})), "classes", "request_class"), ["GET /a", "GET /b"]);
        assert_eq!(names(&list(json!({ "sort": "p99" })), "classes", "request_class"), ["GET /b", "GET /a"]);
        assert_eq!(
            names(&list(json!({ "side": "any", "sort": "requests" })), "classes", "request_class"),
            ["SELECT", "GET /a", "GET /b"]
        );
        assert_eq!(names(&list(json!({ "contains": "/B" })), "classes", "request_class"), ["GET /b"]);
        let cut = list(json!({ "limit": 1 }));
        assert_eq!(names(&cut, "classes", "request_class"), ["GET /a"]);
        assert_eq!((&cut["left_out"][0]["rows"], &cut["left_out"][0]["because"]), (&json!(1), &json!("limit")));
        assert!(cut["left_out"][0]["to_see_them"].as_str().unwrap().contains("service"));
        assert!(cut.get("next_cursor").is_none() && list(json!({})).get("left_out").is_none());
    }

    #[test]
    fn the_api_s_own_count_is_used() {
        let answer = json!({ "running": [{ "age_s": 1.0 }], "running_total": 40 });
        assert_eq!(shown("running_now", json!({ "limit": 1 }), answer)["left_out"][0]["rows"], 39);
    }

    #[test]
    fn functions_are_compared_if_asked_for() {
        let answer = json!({ "functions": [{ "function": "f", "classes": [1] }], "classes": [2], "seconds": 1.5 });
        let plain = shown("hotspots", json!({ "service": "s" }), answer.clone());
        assert_eq!(plain, json!({ "functions": [{ "function": "f" }], "seconds": 1.5 }));
        assert_eq!(shown("hotspots", json!({ "service": "s", "compare": true }), answer.clone()), answer);
    }

    #[test]
    fn spans_come_in_parts() {
        let service = |n: usize| if n.is_multiple_of(2) { "a" } else { "b" };
        let span = |n: usize| json!({ "span_id": n.to_string(), "service_name": service(n), "request_class": "c" });
        let spans: Vec<Value> = (0..1000).map(span).collect();
        let steps: Vec<Value> = (0..3).map(|n: usize| json!({ "span_id": n.to_string(), "kind": "own" })).collect();
        let answer = json!({ "trace_id": "t", "spans": spans, "critical_path": steps });
        let id = "0af7651916cd43dd8448eb211c80319c";
        let part = shown(
            "get_transaction",
            json!({ "trace_id": id, "service": "b", "offset": 2, "limit": 2 }),
            answer.clone(),
        );
        assert_eq!(names(&part, "spans", "span_id"), ["5", "7"]);
        assert_eq!((&part["spans_total"], &part["left_out"][1]["rows"]), (&json!(1000), &json!(496)));
        assert_eq!(part["critical_path"][1]["service_name"], "b");
        let all = shown("get_transaction", json!({ "trace_id": id, "limit": 500 }), answer);
        assert!(all.to_string().len() <= ANSWER);
        assert_eq!(
            all["spans"].as_array().unwrap().len(),
            500 - (all["left_out"][0]["rows"].as_u64().unwrap() as usize - 500)
        );
    }

    #[test]
    fn windows_become_rows() {
        let column = |factor: f64| (0..720).map(|n| n as f64 * factor).collect::<Vec<f64>>();
        let answer = json!({
            "id": 1, "request_classes": ["GET /"],
            "windows": { "t": column(10.0), "cost": column(0.5), "expected": [] },
            "regression": { "cpu_s": column(1.0), "predicted_s": null, "classes": [{ "request_class": "GET /" }] },
        });
        let found = shown("explain_finding", json!({ "id": 1, "windows": 3 }), answer.clone());
        assert_eq!(
            found["windows"],
            json!([
                { "t": 0.0, "cost": 0.0, "service_cpu_s": 0.0 },
                { "t": 3590.0, "cost": 179.5, "service_cpu_s": 359.0 },
                { "t": 7190.0, "cost": 359.5, "service_cpu_s": 719.0 },
            ])
        );
        assert_eq!(found["left_out"][0]["rows"], 717);
        assert_eq!(found["regression"], json!({ "classes": [{ "request_class": "GET /" }] }));
        assert_eq!(shown("explain_finding", json!({ "id": 1 }), answer)["windows"].as_array().unwrap().len(), 30);
        assert_eq!(
            shown("explain_finding", json!({ "id": 1 }), json!({ "id": 1, "regression": null }))["windows"],
            json!([])
        );
    }
}
