//! Whole messages, as clients of both generations send them.

use super::rpc::{INVALID_REQUEST, PARSE_ERROR};
use super::*;

fn send(message: &Value) -> Step {
    receive(message.to_string().as_bytes()).unwrap_or_else(|error| Step::Done(Some(error.to_json())))
}

fn answer(message: &Value) -> Value {
    match send(message) {
        Step::Done(Some(answer)) => answer,
        other => panic!("{message}: {other:?}"),
    }
}

fn request(method: &str, params: Value) -> Value {
    let mut message = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
    message["params"] = params;
    message
}

fn modern(version: &str) -> Value {
    json!({ VERSION: version, CAPABILITIES: {} })
}

fn question(tool: &str, arguments: Value) -> Question {
    let mut params = json!({ "name": tool });
    params["arguments"] = arguments;
    match send(&request("tools/call", params)) {
        Step::Ask(question) => *question,
        other => panic!("{tool}: {other:?}"),
    }
}

#[test]
fn a_client_gets_its_version_or_the_newest_with_a_handshake() {
    for (asked, spoken) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let answer = answer(&request("initialize", json!({ "protocolVersion": asked, "capabilities": {} })));
        let result = &answer["result"];
        assert_eq!((&result["protocolVersion"], &result["serverInfo"]["name"]), (&json!(spoken), &json!("tracer")));
        assert_eq!(result["capabilities"], json!({ "tools": {} }));
        assert!(result.get("resultType").is_none(), "{result}");
    }
    assert_eq!(answer(&request("initialize", json!({})))["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(answer(&request("ping", json!({})))["result"], json!({}));
}

#[test]
fn a_client_without_a_handshake_says_its_version_each_time() {
    let found = answer(&request("server/discover", json!({ "_meta": modern("2026-07-28") })));
    let result = &found["result"];
    assert_eq!(result["supportedVersions"][0], "2026-07-28");
    assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!("public")));
    assert_eq!(result["_meta"][SERVER]["name"], "tracer");
    let error = |params: Value| {
        let found = answer(&request("tools/list", params));
        (found["error"]["code"].as_i64(), found["error"]["data"].clone())
    };
    let (code, data) = error(json!({ "_meta": modern("1900-01-01") }));
    assert_eq!((code, &data["supported"]), (Some(UNSUPPORTED_VERSION), &json!(versions())));
    for meta in [json!({ VERSION: "2026-07-28" }), json!({ CAPABILITIES: {} }), json!({ VERSION: 1, CAPABILITIES: {} })]
    {
        assert_eq!(error(json!({ "_meta": meta })).0, Some(INVALID_PARAMS), "{meta}");
    }
    assert_eq!(answer(&request("server/discover", json!({})))["error"]["code"], INVALID_PARAMS);
    assert_eq!(answer(&request("ping", json!({ "_meta": modern("2026-07-28") })))["error"]["code"], METHOD_NOT_FOUND);
    let call = request("tools/call", json!({ "name": "agent_health", "_meta": modern("2026-07-28") }));
    let Step::Ask(question) = send(&call) else { panic!("a question") };
    assert_eq!(question.answer(200, b"{}")["result"]["resultType"], "complete");
}

#[test]
fn every_tool_is_listed_with_its_schema() {
    let found = answer(&request("tools/list", json!({})));
    let tools = found["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), TOOLS.len());
    for tool in tools {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
    }
    assert!(
        found.to_string().len() < 24 << 10,
        "the list takes {} bytes of every conversation",
        found.to_string().len()
    );
    assert_eq!(answer(&request("tools/list", json!({ "cursor": "x" })))["error"]["code"], INVALID_PARAMS);
    assert!(answer(&request("tools/list", json!({ "cursor": null })))["result"].is_object());
}

#[test]
fn the_api_s_answer_is_text_and_structure() {
    let question = question("list_classes", json!({ "service": "shop" }));
    assert_eq!(
        (question.path(), question.id(), question.is_slow()),
        ("/api/v1/classes?service=shop", &json!(1), false)
    );
    let body = json!({ "classes": [{ "request_class": "GET /", "side": "server", "count": 5 }], "next_cursor": null });
    let found = question.answer(200, body.to_string().as_bytes());
    let result = &found["result"];
    assert_eq!(result["structuredContent"]["classes"][0]["count"], 5);
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&text, &result["isError"]), (&result["structuredContent"], &json!(false)));
}

#[test]
fn what_goes_wrong_is_said_to_the_model() {
    let wrong = |found: &Value| {
        assert_eq!(found["result"]["isError"], true, "{found}");
        found["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let asked = question("list_classes", json!({ "service": "shp" }));
    let unknown = br#"{"error":"no such service: 'shp'; did you mean 'shop'? /api/v1/services lists all"}"#;
    assert_eq!(
        wrong(&asked.answer(404, unknown)),
        "no such service: 'shp'; did you mean 'shop'? list_services lists all"
    );
    for (status, body) in [(200, &b"<html>"[..]), (200, b"[]"), (503, b"{}"), (500, b""), (404, b"not JSON")] {
        assert!(wrong(&asked.answer(status, body)).contains(&status.to_string()));
    }
    assert_eq!(wrong(&asked.failed("nobody listens")), "nobody listens");
    let call = |params: Value| answer(&request("tools/call", params));
    assert!(wrong(&call(json!({ "name": "hotspots" }))).starts_with("service: expected name of a service"));
    assert!(
        wrong(&call(json!({ "name": "get_transaction", "arguments": { "trace_id": "x" } }))).contains("32 hexadecimal")
    );
    for params in [json!({}), json!({ "name": "drop_tables" }), json!({ "name": "hotspots", "arguments": [] })] {
        assert_eq!(call(params.clone())["error"]["code"], INVALID_PARAMS, "{params}");
    }
}

#[test]
fn notifications_and_answers_get_no_answer() {
    for text in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"none"}}"#,
        r#"{"jsonrpc":"2.0","method":"nonsense","params":[1]}"#,
        r#"{"jsonrpc":"2.0","id":4,"result":{}}"#,
    ] {
        assert!(matches!(receive(text.as_bytes()), Ok(Step::Done(None))), "{text}");
    }
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    assert!(matches!(send(&cancel), Step::Cancel(id) if id == 7));
}

#[test]
fn other_methods_are_not_there() {
    for method in ["resources/list", "prompts/list", "logging/setLevel", "subscriptions/listen", "", "\u{0}"] {
        assert_eq!(answer(&request(method, json!({})))["error"]["code"], METHOD_NOT_FOUND, "{method}");
    }
    let long = answer(&request(&"x".repeat(100_000), json!({})));
    assert!(long["error"]["code"] == METHOD_NOT_FOUND && long.to_string().len() < 500);
}

proptest::proptest! {
    /// Whatever arrives, there is an answer or none is due; nothing panics.
    #[test]
    fn never_panics_on_arbitrary_input(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        if let Err(error) = receive(&bytes) {
            proptest::prop_assert!([PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, METHOD_NOT_FOUND].contains(&error.code));
        }
    }

    #[test]
    fn never_panics_on_any_parameters(
        method in 0..5_usize,
        tool in 0..TOOLS.len() + 1,
        name in ".{0,12}",
        number in proptest::num::f64::ANY,
    ) {
        let method = ["tools/call", "tools/list", "initialize", "server/discover", "ping"][method];
        let tool = TOOLS.get(tool).map_or(name.as_str(), |tool| tool.name);
        for any in [json!(name), json!(number), json!([name]), json!({ "a": name }), json!(true), Value::Null] {
            let arguments = json!({ "service": name, "class": name, "limit": any, "since": any, "id": any, "trace_id": any });
            let _ = send(&request(method, json!({ "name": tool, "arguments": arguments, "_meta": any })));
            let _ = send(&request(method, json!({ "name": any, "arguments": any, "cursor": any })));
        }
    }
}
