//! Reads gRPC's part of HTTP/2 headers and trailers: the method called and its status.

use tracer_model::{ProtocolId, Side, Span};

/// Name of the protocol.
pub const NAME: &str = ProtocolId::Grpc.name();
/// Longest method name.
const METHOD_LIMIT: usize = 256;

/// Bytes before a message: the compression flag and the length (gRPC over HTTP/2, "Length-Prefixed-Message").
pub(super) const PREFIX: usize = 5;

/// Bytes of the message that begins with `prefix`, including the prefix, if one does.
pub(super) fn message(prefix: &[u8]) -> Option<u64> {
    let (compressed, len) = prefix.split_first()?;
    let len = u32::from_be_bytes(*len.first_chunk()?);
    (*compressed <= 1 && len <= i32::MAX.cast_unsigned()).then(|| PREFIX as u64 + u64::from(len))
}

/// Names of gRPC's status codes, by code (grpc/doc/statuscodes.md).
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
const CANCELLED: u16 = 1;
pub(super) const UNKNOWN: u16 = 2;
const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNIMPLEMENTED: u16 = 12;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

/// The name of a gRPC status code.
pub fn word(code: u16) -> Option<&'static str> {
    CODES.get(usize::from(code)).copied()
}

/// A status and, if it is a failure, its name.
pub(super) fn verdict(code: u16) -> (u16, Option<&'static str>) {
    (code, if code == 0 { None } else { word(code) })
}

/// The status that a reset stream means to the caller (gRPC over HTTP/2, "Errors").
pub(super) fn of_reset(code: u32) -> (u16, Option<&'static str>) {
    verdict(match code {
        7 => UNAVAILABLE,
        8 => CANCELLED,
        11 => RESOURCE_EXHAUSTED,
        12 => PERMISSION_DENIED,
        _ => INTERNAL,
    })
}

/// The status that a non-gRPC reply's HTTP status means to a caller (grpc/doc/http-grpc-status-mapping.md).
pub(super) fn of_http(status: u16) -> u16 {
    match status {
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// Matches `application/grpc` and its variants, but not gRPC-Web.
pub(super) fn is_content(content_type: &[u8]) -> bool {
    content_type
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// `package.Service/Method`, if the path has this form; otherwise `_OTHER`.
pub fn method(path: &str) -> &str {
    let name = path.strip_prefix('/').filter(|name| name.len() <= METHOD_LIMIT);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let fits = |part: &str| !part.is_empty() && part.bytes().all(allowed);
    name.filter(|name| name.split_once('/').is_some_and(|(service, method)| fits(service) && fits(method)))
        .unwrap_or("_OTHER")
}

/// Whether a call with this status failed: for its caller, with any code but OK; for the server, with codes that are
/// not a proper answer (OpenTelemetry semantic conventions for gRPC). An unseen status is no failure.
pub fn failed(side: Side, status: Option<u16>) -> bool {
    match (side, status) {
        (_, None) => false,
        (Side::Client, Some(code)) => code != 0,
        // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
        (Side::Server, Some(code)) => matches!(code, 2 | 4 | 12..=15),
    }
}

/// `error.type` of a call: the status if that is the failure, otherwise the outcome; empty if the call did not fail.
pub fn error_type(span: &Span) -> &'static str {
    match span.status.and_then(word) {
        _ if !span.error => "",
        Some(word) if failed(span.side, span.status) => word,
        _ => span.end_type(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods() {
        for (path, expected) in [
            ("/helloworld.Greeter/SayHello", "helloworld.Greeter/SayHello"),
            ("/Greeter/SayHello", "Greeter/SayHello"),
            ("/a/b/c", "_OTHER"),
            ("/a", "_OTHER"),
            ("/a/", "_OTHER"),
            ("a/b", "_OTHER"),
            ("/a b/c", "_OTHER"),
            ("", "_OTHER"),
        ] {
            assert_eq!(method(path), expected);
        }
        assert_eq!(method(&format!("/{}/b", "a".repeat(300))), "_OTHER");
    }

    #[test]
    fn what_fails() {
        assert!(failed(Side::Client, Some(5)) && !failed(Side::Server, Some(5)));
        assert!(failed(Side::Client, Some(14)) && failed(Side::Server, Some(14)));
        assert!(!failed(Side::Client, Some(0)) && !failed(Side::Client, None));
    }

    #[test]
    fn content_types() {
        for (value, expected) in [
            (&b"application/grpc"[..], true),
            (b"application/grpc+proto", true),
            (b"application/grpc;charset=utf-8", true),
            (b"application/grpc-web", false),
            (b"application/json", false),
        ] {
            assert_eq!(is_content(value), expected);
        }
    }
}
