//! `POST /mcp`: the Model Context Protocol over HTTP ("streamable HTTP", without streams), for whoever has the token.
//!
//! Each request is answered by itself: there are no sessions. `guard` checks the token, as for every request that is not a mere
//! look.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::sync::Semaphore;
use tracer_mcp::rpc::{HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, Message, RpcError, read};
use tracer_mcp::{self as mcp, MESSAGE, Question, Step};

/// Most bytes of an answer of the API that is read to be shown in part, and how many are read at the same time: the agent's memory is
/// limited.
const READ: usize = 8 << 20;
const READERS: usize = 2;

/// Who answers questions.
#[derive(Clone, Debug)]
pub(super) struct Api {
    routes: Router,
    readers: Arc<Semaphore>,
}

impl Api {
    /// By these routes.
    pub(super) fn new(routes: Router) -> Self {
        Self { routes, readers: Arc::new(Semaphore::new(READERS)) }
    }
}

/// Answers one message.
pub(super) async fn answer(api: Api, headers: HeaderMap, body: Result<Bytes, BytesRejection>) -> Response {
    if !is_from_here(&headers) {
        return failure(StatusCode::FORBIDDEN, &RpcError::new(Value::Null, INVALID_REQUEST, "Origin: another site"));
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        let error = RpcError::new(Value::Null, INVALID_REQUEST, "expected Content-Type: application/json");
        return failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, &error);
    }
    let Ok(body) = body else {
        let error = RpcError::new(Value::Null, INVALID_REQUEST, format!("a message has {MESSAGE} bytes at most"));
        return failure(StatusCode::PAYLOAD_TOO_LARGE, &error);
    };
    let message = match read(&body) {
        Ok(Some(message)) => message,
        Ok(None) => return StatusCode::ACCEPTED.into_response(),
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error),
    };
    let is_modern = mcp::version(&message).is_some();
    if let Err(error) = check(&headers, &message) {
        return failure(StatusCode::BAD_REQUEST, &error);
    }
    match mcp::take(message) {
        Ok(Step::Done(None) | Step::Cancel(_)) => StatusCode::ACCEPTED.into_response(),
        Ok(Step::Done(Some(answer))) => axum::Json(answer).into_response(),
        Ok(Step::Ask(question)) => axum::Json(ask(api, question).await).into_response(),
        // To older clients another status than 200 says something of sessions.
        Err(error) if !is_modern => failure(StatusCode::OK, &error),
        Err(error) if error.code == METHOD_NOT_FOUND => failure(StatusCode::NOT_FOUND, &error),
        Err(error) => failure(StatusCode::BAD_REQUEST, &error),
    }
}

fn failure(status: StatusCode, error: &RpcError) -> Response {
    (status, axum::Json(error.to_json())).into_response()
}

async fn ask(api: Api, question: Box<Question>) -> Value {
    let Ok(request) = Request::get(question.path()).body(Body::empty()) else {
        return question.failed("the arguments make no address");
    };
    let Ok(_turn) = api.readers.acquire().await else {
        return question.failed("the agent is stopping");
    };
    let response = match TowerToHyperService::new(api.routes).call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status().as_u16();
    let Ok(body) = to_bytes(response.into_body(), READ).await else {
        return question.failed("the whole answer is too long to be read: name a service, or ask by `tracer mcp`");
    };
    let id = question.id().clone();
    // Not on a thread that serves others.
    let answered = tokio::task::spawn_blocking(move || question.answer(status, &body)).await;
    answered.unwrap_or_else(|_| RpcError::new(id, INTERNAL_ERROR, "the answer could not be made").to_json())
}

/// Whether no page of another site sent this: browsers say which one did.
fn is_from_here(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    let host = headers.get(header::HOST).map(|host| [b"http://", host.as_bytes()].concat());
    origins.next().is_none() && host.as_deref() == Some(origin.as_bytes())
}

/// Checks that headers, which others on the way may have gone by, say what the message says.
fn check(headers: &HeaderMap, message: &Message) -> Result<(), RpcError> {
    let id = || message.id.clone().unwrap_or_default();
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let version = text("mcp-protocol-version");
    let Some(spoken) = mcp::version(message) else {
        return match version {
            Some(unknown) if !mcp::versions().contains(&unknown) => Err(mcp::unsupported(&id(), unknown)),
            _ => Ok(()),
        };
    };
    let differ = |name: &str, expected: &str| {
        let what = format!("Header mismatch: {name}: expected what the message has: {}", mcp::rpc::repeated(expected));
        Err(RpcError::new(id(), HEADER_MISMATCH, what))
    };
    if version != Some(spoken) {
        return differ("MCP-Protocol-Version", spoken);
    }
    if text("mcp-method") != Some(&message.method) {
        return differ("Mcp-Method", &message.method);
    }
    let name = message.params.get("name").and_then(Value::as_str).filter(|_| message.method == "tools/call");
    match name {
        Some(name) if text("mcp-name").is_none_or(|given| given != name && given != encoded(name)) => {
            differ("Mcp-Name", name)
        }
        _ => Ok(()),
    }
}

/// A name as a header has it that cannot be written there as it is: in Base64.
fn encoded(name: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = name.as_bytes().chunks(3).flat_map(|three| {
        let byte = |at: usize| three.get(at).copied().map_or(0, u32::from);
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        (0..4).map(move |at| {
            let digit = (bits >> (18 - 6 * at)) as usize % 64;
            if at <= three.len() { char::from(DIGITS[digit]) } else { '=' }
        })
    });
    format!("=?base64?{}?=", digits.collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::{ask, start_with};

    const TOKEN: &str = "0123456789abcdef";
    const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

    /// Status and body of what comes back for a message with these headers.
    async fn post(headers: &str, body: &str) -> (u16, Value) {
        let listen = start_with(Some(TOKEN), std::sync::Arc::default()).await;
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = ask(listen, &request.replace("HOST", &listen.to_string())).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    /// Headers of everybody who is let in.
    fn usual(more: &str) -> String {
        format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n{more}")
    }

    fn message(method: &str, params: &Value) -> String {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    }

    #[tokio::test]
    async fn tools_answer_over_http() {
        let call = message("tools/call", &json!({ "name": "list_classes", "arguments": { "service": "shop" } }));
        let (status, answer) = post(&usual("MCP-Protocol-Version: 2025-11-25\r\n"), &call).await;
        let classes = &answer["result"]["structuredContent"]["classes"];
        assert_eq!((status, &classes[0]["request_class"]), (200, &json!("GET /<script>")), "{answer}");
        let call = message("tools/call", &json!({ "name": "list_classes", "arguments": { "service": "shp" } }));
        let (status, answer) = post(&usual(""), &call).await;
        assert_eq!((status, &answer["result"]["isError"]), (200, &json!(true)));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("did you mean 'shop'? list_services"), "{text}");
        let (status, answer) =
            post(&usual(""), &message("initialize", &json!({ "protocolVersion": "2025-06-18" }))).await;
        assert_eq!((status, &answer["result"]["protocolVersion"]), (200, &json!("2025-06-18")));
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(post(&usual(""), notification).await, (202, Value::Null));
    }

    #[tokio::test]
    async fn nobody_asks_without_the_token() {
        let call = message("tools/list", &json!({}));
        let json = "Content-Type: application/json\r\n";
        assert_eq!(post(json, &call).await.0, 401);
        assert_eq!(post(&format!("{json}Authorization: Bearer 0123456789abcdeX\r\n"), &call).await.0, 401);
        assert_eq!(post(&usual("Origin: http://evil.example\r\n"), &call).await.0, 403);
        assert_eq!(post(&usual("Origin: http://HOST\r\n"), &call).await.0, 200);
        let open = start_with(None, std::sync::Arc::default()).await;
        let request = format!("POST /mcp HTTP/1.1\r\nHost: {open}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert!(ask(open, &request).await.starts_with("HTTP/1.1 403"));
        assert!(crate::tests::fetch(open, "/mcp").await.starts_with("HTTP/1.1 405"));
    }

    #[tokio::test]
    async fn headers_say_what_the_message_says() {
        let meta = json!({ VERSION: "2026-07-28", CAPABILITIES: {} });
        let call = message("tools/call", &json!({ "name": "agent_health", "_meta": meta }));
        let headers = |version: &str, method: &str, name: &str| {
            usual(&format!("MCP-Protocol-Version: {version}\r\nMcp-Method: {method}\r\nMcp-Name: {name}\r\n"))
        };
        for (version, method, name, expected) in [
            ("2026-07-28", "tools/call", "agent_health", 200),
            ("2026-07-28", "tools/call", "=?base64?YWdlbnRfaGVhbHRo?=", 200),
            ("2025-11-25", "tools/call", "agent_health", 400),
            ("2026-07-28", "tools/list", "agent_health", 400),
            ("2026-07-28", "tools/call", "hotspots", 400),
            ("2026-07-28", "tools/call", "=?base64?aG90c3BvdHM=?=", 400),
        ] {
            let (status, answer) = post(&headers(version, method, name), &call).await;
            assert_eq!(status, expected, "{version} {method} {name}: {answer}");
            assert!(status == 200 || answer["error"]["code"] == HEADER_MISMATCH, "{answer}");
        }
        assert_eq!(post(&usual(""), &call).await.0, 400);
        let (status, answer) =
            post(&usual("MCP-Protocol-Version: 1999-01-01\r\n"), &message("tools/list", &json!({}))).await;
        assert_eq!((status, answer["error"]["code"].as_i64()), (400, Some(mcp::rpc::UNSUPPORTED_VERSION)));
        let unknown = message("resources/list", &json!({ "_meta": meta }));
        let headers = usual("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: resources/list\r\n");
        assert_eq!(post(&headers, &unknown).await.0, 404);
        assert_eq!(post(&usual(""), &message("resources/list", &json!({}))).await.0, 200);
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused() {
        for body in ["", "nonsense", "[]"] {
            let (status, answer) = post(&usual(""), body).await;
            assert!(status == 400 && answer["error"]["code"].is_i64(), "{status} {answer}");
        }
        let text = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: text/plain\r\n");
        assert_eq!(post(&text, &message("tools/list", &json!({}))).await.0, 415);
    }

    #[tokio::test]
    async fn messages_have_a_limit_of_their_own() {
        let handler = axum::routing::post(|headers, body| answer(Api::new(Router::new()), headers, body));
        let app = Router::new().route("/mcp", handler.layer(axum::extract::DefaultBodyLimit::max(MESSAGE)));
        let app = TowerToHyperService::new(app.layer(axum::extract::DefaultBodyLimit::max(10)));
        for (length, status) in [(MESSAGE, 400), (MESSAGE + 1, 413)] {
            let request = Request::post("/mcp").header("content-type", "application/json");
            let response = app.call(request.body(Body::from("x".repeat(length))).unwrap()).await.unwrap();
            assert_eq!(response.status().as_u16(), status);
            let body = to_bytes(response.into_body(), 10_000).await.unwrap();
            assert!(serde_json::from_slice::<Value>(&body).unwrap()["error"]["code"].is_i64());
        }
    }

    #[test]
    fn names_are_encoded_as_in_the_specification() {
        for (name, expected) in [
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ] {
            assert_eq!(encoded(name), expected);
        }
    }
}
