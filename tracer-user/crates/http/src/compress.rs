//! Compression of answers.

use std::io::Write;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::Problem;

/// Bytes below which an answer is sent as it is: it fits a packet or two.
const LITTLE: usize = 1400;
/// Most bytes of an answer; the largest profiles have a few dozen million.
const MOST: usize = 256 << 20;
/// What is text and named otherwise.
const TEXTS: [&str; 4] =
    ["application/json", "application/openmetrics-text", "image/svg+xml", "application/javascript"];

/// Middleware: compresses text for clients that take it so.
pub(super) async fn answers(request: Request, next: Next) -> Response {
    let takes = takes_gzip(&joined(request.headers(), header::ACCEPT_ENCODING));
    let mut response = next.run(request).await;
    if response.headers().contains_key(header::CONTENT_ENCODING) || !is_text(response.headers()) {
        return response;
    }
    // Caches between must not give one client the coding of another.
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if !takes {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let failed =
        || Problem(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be compressed".into()).into_response();
    // All answers are in memory already: this copies nothing.
    let Ok(bytes) = to_bytes(body, MOST).await else { return failed() };
    if bytes.len() < LITTLE {
        return Response::from_parts(head, Body::from(bytes));
    }
    let Ok(packed) = gzip(&bytes) else { return failed() };
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Response::from_parts(head, Body::from(packed))
}

fn is_text(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    kind.starts_with("text/") || TEXTS.iter().any(|text| kind.starts_with(text))
}

/// All values of a header as one list.
pub(super) fn joined(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

/// Whether a client with this `Accept-Encoding` takes gzip.
fn takes_gzip(accept: &str) -> bool {
    let quality = |coding: &str| -> Option<f32> {
        accept.split(',').find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if !parts.next()?.eq_ignore_ascii_case(coding) {
                return None;
            }
            let given = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            Some(given.map_or(1.0, |given| given.trim().parse().unwrap_or(0.0)))
        })
    };
    quality("gzip").or_else(|| quality("*")).is_some_and(|quality| quality > 0.0)
}

/// The bytes as a gzip file: quickly, because a scrape waits.
///
/// # Errors
///
/// Never in practice: the writer is memory.
fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_taken_where_it_is_accepted() {
        for (accept, takes) in [
            ("", false),
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0.1", true),
            ("identity", false),
            ("xgzip", false),
            ("gzip;q=x", false),
        ] {
            assert_eq!(takes_gzip(accept), takes, "{accept}");
        }
    }

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let text = "tracer_series 1\n".repeat(1000);
        let packed = gzip(text.as_bytes()).unwrap();
        assert!(packed.len() * 20 < text.len());
        let mut unpacked = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
        assert_eq!(unpacked, text);
    }
}
