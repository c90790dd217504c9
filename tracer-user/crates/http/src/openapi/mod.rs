//! `GET /api/v1/openapi.json`: every route, its parameters and its answers, from one table ([`routes`]).
//!
//! Tests hold the table against the router, against the parameters that handlers accept, and against real answers.

mod answers;
mod routes;
mod shape;

use axum::Json;
use routes::ROUTES;
use serde_json::{Map, Value, json};
use shape::Shape;

use super::Problem;
use super::params::Params;

/// A parameter of a query or, in braces in the path, of the path.
#[derive(Debug)]
struct Parameter {
    name: &'static str,
    shape: Shape,
    what: &'static str,
    required: bool,
}

/// What a route answers with.
#[derive(Debug)]
enum AnswerForm {
    Json(Shape),
    /// By the parameter `format`.
    JsonOrCsv(Shape),
    Media(&'static str),
}

/// One route.
#[derive(Debug)]
struct Route {
    method: &'static str,
    path: &'static str,
    what: &'static str,
    parameters: &'static [&'static Parameter],
    /// What is sent with it.
    body: Option<Shape>,
    answer: AnswerForm,
}

pub(super) async fn document(params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    Ok(Json(whole()))
}

/// The document.
fn whole() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let entry = paths.entry(path_of(route)).or_insert_with(|| json!({}));
        entry[route.method] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tracer",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Instants, the parameters from and to, and fields that end in _ns are nanoseconds since the epoch. Durations are seconds and end in _s.",
            "license": { "name": "MIT", "identifier": "MIT" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": { "Error": shape::ERROR.schema() },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// The path as the document writes it: the router marks a rest of several parts by a star.
fn path_of(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn operation(route: &Route) -> Value {
    let path = path_of(route);
    let parameters = route.parameters.iter().map(|parameter| {
        let in_path = path.contains(&format!("{{{}}}", parameter.name));
        json!({
            "name": parameter.name,
            "in": if in_path { "path" } else { "query" },
            "required": in_path || parameter.required,
            "description": parameter.what,
            "schema": parameter.shape.schema(),
        })
    });
    let content = match &route.answer {
        AnswerForm::Json(shape) => json!({ "application/json": { "schema": shape.schema() } }),
        AnswerForm::JsonOrCsv(shape) => json!({ "application/json": { "schema": shape.schema() }, "text/csv": {} }),
        AnswerForm::Media(media) => json!({ *media: {} }),
    };
    let mut error = json!({
        "description": "what was wrong, and what was expected",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    if !path.starts_with("/api/") {
        // People who open a wrong address read a page.
        error["content"]["text/html"] = json!({});
    }
    let mut operation = json!({
        "summary": route.what,
        "operationId": format!("{} {}", route.method, route.path),
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": { "200": { "description": route.what, "content": content }, "4XX": error.clone(), "5XX": error },
    });
    if let Some(body) = &route.body {
        operation["security"] = json!([{ "token": [] }]);
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": body.schema() } } });
    }
    operation
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::tests::{fetch, start};

    /// What the router has, as its source says it.
    fn routed() -> Vec<(String, String)> {
        let source = include_str!("../lib.rs");
        let calls = source.split(".route(\"").skip(1);
        let route = |call: &str| {
            let (path, rest) = call.split_once("\", ").expect("a path");
            let method = rest.split('(').next().expect("a method");
            // Handlers of messages of the Model Context Protocol are made with what answers them.
            let method = if path == "/mcp" { "post" } else { method };
            (method.to_owned(), path.to_owned())
        };
        calls.map(route).collect()
    }

    #[test]
    fn the_table_has_every_route_and_no_other() {
        let mut known: Vec<(String, String)> =
            ROUTES.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
        let mut routed = routed();
        known.sort();
        routed.sort();
        assert_eq!(known, routed);
    }

    #[test]
    fn the_document_is_what_its_version_asks_for() {
        let document = whole();
        let paths = document["paths"].as_object().expect("paths");
        for (path, operations) in paths {
            for operation in operations.as_object().expect("operations").values() {
                let of = |place: &str| -> Vec<&str> {
                    let all = operation["parameters"].as_array().expect("parameters").iter();
                    all.filter(|one| one["in"] == place).filter_map(|one| one["name"].as_str()).collect()
                };
                let braces: Vec<&str> = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
                assert_eq!(of("path"), braces, "{path}");
                assert!(operation["responses"]["200"]["content"].is_object(), "{path}");
            }
        }
    }

    /// Handlers refuse other parameters and name those they know: they are those of the table.
    #[tokio::test]
    async fn handlers_take_the_parameters_of_the_table() {
        let listen = start().await;
        let api = |route: &&Route| route.method == "get" && route.path.starts_with("/api/v1/");
        for route in ROUTES.iter().filter(api) {
            let path = concrete(route.path);
            let answer = fetch(listen, &format!("{path}?nonsense=1")).await;
            let Some((_, rest)) = answer.split_once("nonsense: no such parameter; expected ") else {
                panic!("{}: {answer}", route.path);
            };
            let listed = rest.split('"').next().unwrap_or_default();
            let mut known: Vec<&str> = listed.split(", ").filter(|name| *name != "none").collect();
            let mut table: Vec<&str> = route.parameters.iter().map(|parameter| parameter.name).collect();
            table.retain(|name| !route.path.contains(&format!("{{{name}}}")));
            known.sort_unstable();
            table.sort_unstable();
            assert_eq!(known, table, "{}", route.path);
        }
    }

    /// A path with values that the test's agent has.
    fn concrete(path: &str) -> String {
        path.replace("{trace_id}", "00000000000000000000000000000abc")
            .replace("{span_id}", "0000000000000006")
            .replace("{id}", "1")
    }

    #[tokio::test]
    async fn answers_have_the_shapes_of_the_table() {
        let listen = start().await;
        let mut checked = 0;
        for route in ROUTES.iter().filter(|route| route.method == "get") {
            let (AnswerForm::Json(shape) | AnswerForm::JsonOrCsv(shape)) = &route.answer else { continue };
            let asked = if ["/api/v1/hotspots", "/api/v1/durations", "/api/v1/call-sites"].contains(&route.path) {
                "?service=shop&class=GET%20/%3Cscript%3E"
            } else {
                ""
            };
            let answer = fetch(listen, &format!("{}{asked}", concrete(route.path))).await;
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            let body: Value =
                serde_json::from_str(body).unwrap_or_else(|error| panic!("{}: {error}: {answer}", route.path));
            let shape = if head.starts_with("HTTP/1.1 200") { shape } else { &shape::ERROR };
            checked += usize::from(head.starts_with("HTTP/1.1 200"));
            shape.fits(&body).unwrap_or_else(|why| panic!("{}: {why}", route.path));
        }
        assert!(checked > 15, "{checked} answers");
    }

    /// Whatever a parameter says, the answer is one that the document has: never a failure of the server, and errors say what was
    /// wrong.
    #[tokio::test]
    async fn any_value_of_a_parameter_gets_an_answer_of_the_document() {
        let long = "a".repeat(4000);
        let values = [
            "",
            "0",
            "1",
            "-1",
            "1.5",
            "NaN",
            "inf",
            "1e400",
            "18446744073709551615",
            "18446744073709551616",
            "%00",
            "%FF",
            "%C3%A4",
            "null",
            "5m",
            "99999999999d",
            "5xx",
            "ok",
            "newest",
            "csv",
            "offcpu",
            "a%26b=c",
            "..%2f..%2fetc",
            long.as_str(),
        ];
        let listen = start().await;
        let (mut taken, mut refused) = (0, 0);
        for route in ROUTES.iter().filter(|route| route.method == "get") {
            for (parameter, value) in
                route.parameters.iter().flat_map(|one| values.iter().map(move |value| (one, value)))
            {
                let braces = [format!("{{{}}}", parameter.name), format!("{{*{}}}", parameter.name)];
                let in_path = braces.iter().find(|braces| route.path.contains(braces.as_str()));
                let address = match in_path {
                    Some(braces) => concrete(&route.path.replace(braces.as_str(), value)),
                    None => format!("{}?{}={value}", concrete(route.path), parameter.name),
                };
                let answer = fetch(listen, &address).await;
                let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{address}: {answer}"));
                let status = head.split(' ').nth(1).unwrap_or_default();
                taken += usize::from(status == "200");
                // An empty part of a path is another path, or leads to it.
                let known = matches!(status, "200" | "400" | "404") || (value.is_empty() && in_path.is_some());
                assert!(known, "{address}: {head}");
                if status != "200" && route.path.starts_with("/api/") && !value.is_empty() {
                    refused += 1;
                    let body: Value =
                        serde_json::from_str(body).unwrap_or_else(|error| panic!("{address}: {error}: {answer}"));
                    shape::ERROR.fits(&body).unwrap_or_else(|why| panic!("{address}: {why}"));
                }
            }
        }
        assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
    }
}
