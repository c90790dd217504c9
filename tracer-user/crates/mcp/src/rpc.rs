//! JSON-RPC 2.0 as the Model Context Protocol uses it: reading a client's message, and the forms of answers.

use serde_json::{Map, Value, json};

/// The text is no JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is no request.
pub const INVALID_REQUEST: i64 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The method does not take these parameters.
pub const INVALID_PARAMS: i64 = -32602;
/// A mistake of this program.
pub const INTERNAL_ERROR: i64 = -32603;
/// Headers of HTTP that contradict the message.
pub const HEADER_MISMATCH: i64 = -32020;
/// No such version of the protocol.
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// Most of an unknown name that an error repeats, characters.
const REPEATED: usize = 100;

/// A client's request, or its notification if it has no id.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// A text or a whole number.
    pub id: Option<Value>,
    /// Which method.
    pub method: String,
    /// Its parameters; none is the same as empty ones.
    pub params: Map<String, Value>,
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// The request's id; `null` where it cannot be read.
    pub id: Value,
    /// One of the codes above.
    pub code: i64,
    /// In words.
    pub message: String,
    /// More, for programs.
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(id: Value, code: i64, message: impl Into<String>) -> Self {
        Self { id, code, message: message.into(), data: None }
    }

    /// As it is sent.
    pub fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": self.id, "error": error })
    }
}

/// The answer to the request `id`.
pub fn result(id: &Value, result: Value) -> Value {
    let mut answer = json!({ "jsonrpc": "2.0", "id": id });
    answer["result"] = result;
    answer
}

/// Reads one message. `None`: it is a client's answer, and nothing was asked of clients.
pub fn read(bytes: &[u8]) -> Result<Option<Message>, RpcError> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| RpcError::new(Value::Null, PARSE_ERROR, format!("not JSON: {error}")))?;
    let invalid = |id: Value, what: &str| Err(RpcError::new(id, INVALID_REQUEST, what));
    let mut object = match value {
        Value::Object(object) => object,
        Value::Array(_) => return invalid(Value::Null, "batches are not taken: send one message at a time"),
        _ => return invalid(Value::Null, "expected an object with jsonrpc, id, method and params"),
    };
    let id = match object.remove("id") {
        None => None,
        Some(id) if id.is_string() || id.is_i64() || id.is_u64() => Some(id),
        Some(_) => return invalid(Value::Null, "id: expected a text or a whole number"),
    };
    let answered = || id.clone().unwrap_or_default();
    if object.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid(answered(), "jsonrpc: expected \"2.0\"");
    }
    let method = match object.remove("method") {
        Some(Value::String(method)) => method,
        None if object.contains_key("result") || object.contains_key("error") => return Ok(None),
        _ => return invalid(answered(), "method: expected a text"),
    };
    let params = match object.remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        // Nobody reads the answer to a notification.
        Some(_) if id.is_none() => Map::new(),
        Some(_) => return Err(RpcError::new(answered(), INVALID_PARAMS, "params: expected an object")),
    };
    Ok(Some(Message { id, method, params }))
}

/// A name from outside as errors repeat it.
pub fn repeated(name: &str) -> String {
    let mut short: String = name.chars().take(REPEATED).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> (Value, i64) {
        let error = read(text.as_bytes()).expect_err(text);
        (error.id, error.code)
    }

    #[test]
    fn requests_and_notifications_are_read() {
        let message = read(br#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#).unwrap().unwrap();
        assert_eq!((message.id, message.method.as_str()), (Some(json!("a")), "ping"));
        let message = read(br#"{"jsonrpc":"2.0","method":"notifications/initialized","params":[1]}"#).unwrap().unwrap();
        assert_eq!((message.id, message.params.len()), (None, 0));
        let message = read(br#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":1}}"#).unwrap().unwrap();
        assert_eq!(message.params["a"], 1);
        assert_eq!(read(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Ok(None));
    }

    #[test]
    fn what_is_no_request_says_why() {
        for text in ["", "{", "nonsense", "{\"jsonrpc\":\"2.0\",", "\u{0}"] {
            assert_eq!(code(text), (Value::Null, PARSE_ERROR), "{text}");
        }
        assert_eq!(read(&[0xff, 0xfe, b'{']).unwrap_err().code, PARSE_ERROR);
        // Deeper than the reader goes.
        assert_eq!(code(&"[".repeat(100_000)), (Value::Null, PARSE_ERROR));
        for text in ["[]", "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", "1", "null", "\"a\""] {
            assert_eq!(code(text), (Value::Null, INVALID_REQUEST), "{text}");
        }
        for (text, id) in [
            (r#"{"id":1,"method":"ping"}"#, json!(1)),
            (r#"{"jsonrpc":"1.0","id":"x","method":"ping"}"#, json!("x")),
            (r#"{"jsonrpc":"2.0","id":2}"#, json!(2)),
            (r#"{"jsonrpc":"2.0","id":2,"method":3}"#, json!(2)),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Value::Null),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, Value::Null),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, Value::Null),
        ] {
            assert_eq!(code(text), (id, INVALID_REQUEST), "{text}");
        }
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":3,"method":"m","params":[]}"#), (json!(3), INVALID_PARAMS));
    }
}
