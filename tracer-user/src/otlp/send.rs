//! Sends requests to a collector by OTLP/HTTP or OTLP/gRPC and interprets the responses (OpenTelemetry protocol 1.3).

use std::io::Write;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER, TE, USER_AGENT};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prost::Message;

use super::proto::Response;
use super::settings::{Protocol, Settings, SettingsError};
use super::tls;

/// Longest response that is read.
const ANSWER: usize = 64 * 1024;
/// Longest retry delay that is accepted from a collector.
const WAIT: Duration = Duration::from_secs(60);

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Accepted, except for this many spans or data points, and why.
    Taken(u64, String),
    /// Retryable, and why; after this delay if the collector gave one.
    Again(String, Option<Duration>),
    /// Permanently refused, and why.
    Refused(String),
}

/// Sends to one collector over persistent connections.
pub(super) struct Sender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    settings: Settings,
}

impl Sender {
    /// Fails if required certificates cannot be read.
    pub(super) fn new(settings: Settings) -> Result<Self, SettingsError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(settings.timeout));
        connector.set_nodelay(true);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(1).http2_only(settings.protocol == Protocol::Grpc);
        Ok(Self { client: builder.build(tls::connector(&settings, connector)?), settings })
    }

    /// Sends `message` once, without retries.
    pub(super) async fn send(&self, message: &impl Message) -> Sent {
        let settings = &self.settings;
        let request = match self.request(message) {
            Ok(request) => request,
            Err(why) => return Sent::Refused(why),
        };
        let answered = tokio::time::timeout(settings.timeout, async {
            let (head, body) = self.client.request(request).await.map_err(|error| chain(&error))?.into_parts();
            let body = Limited::new(body, ANSWER).collect().await.map_err(|error| error.to_string())?;
            let trailers = body.trailers().cloned().unwrap_or_default();
            Ok::<_, String>((head, trailers, body.to_bytes()))
        });
        match answered.await {
            Err(_) => Sent::Again(format!("no answer within {:?}", settings.timeout), None),
            Ok(Err(why)) => Sent::Again(why, None),
            Ok(Ok((head, trailers, body))) => match settings.protocol {
                Protocol::Http => of_http(head.status.as_u16(), &head.headers, &body),
                Protocol::Grpc => of_grpc(head.status.as_u16(), &head.headers, &trailers, &body),
            },
        }
    }

    fn request(&self, message: &impl Message) -> Result<hyper::Request<Full<Bytes>>, String> {
        let settings = &self.settings;
        let plain = message.encode_to_vec();
        let content = if settings.gzip { gzip(&plain)? } else { plain };
        let mut request = hyper::Request::post(settings.uri.clone())
            .header(USER_AGENT, concat!("OTel-OTLP-Exporter-tracer/", env!("CARGO_PKG_VERSION")));
        let body = match settings.protocol {
            Protocol::Http => {
                request = request.header(CONTENT_TYPE, "application/x-protobuf");
                if settings.gzip {
                    request = request.header(CONTENT_ENCODING, "gzip");
                }
                Bytes::from(content)
            }
            Protocol::Grpc => {
                request = request.header(CONTENT_TYPE, "application/grpc").header(TE, "trailers");
                request = request.header("grpc-timeout", format!("{}m", settings.timeout.as_millis()));
                if settings.gzip {
                    request = request.header("grpc-encoding", "gzip");
                }
                let len = u32::try_from(content.len()).map_err(|_| "a batch of more than 4 GiB".to_owned())?;
                let mut framed = BytesMut::with_capacity(content.len() + 5);
                framed.put_u8(u8::from(settings.gzip));
                framed.put_u32(len);
                framed.put_slice(&content);
                framed.freeze()
            }
        };
        for (name, value) in &settings.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(body)).map_err(|error| error.to_string())
    }
}

fn gzip(plain: &[u8]) -> Result<Vec<u8>, String> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).and_then(|()| encoder.finish()).map_err(|error| error.to_string())
}

/// An error with its chain of causes: only the last one says "connection refused".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Interprets an OTLP/HTTP response.
fn of_http(status: u16, headers: &HeaderMap, body: &[u8]) -> Sent {
    match status {
        200..=299 => taken(body),
        // OTLP/HTTP: only these are retryable.
        429 | 502 | 503 | 504 => {
            let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
            Sent::Again(format!("HTTP {status}"), seconds.map(|seconds| Duration::from_secs(seconds).min(WAIT)))
        }
        _ => Sent::Refused(format!("HTTP {status}")),
    }
}

/// Interprets an OTLP/gRPC response.
fn of_grpc(status: u16, headers: &HeaderMap, trailers: &HeaderMap, body: &[u8]) -> Sent {
    // A trailers-only response has its status in the headers.
    let field = |name: &str| trailers.get(name).or_else(|| headers.get(name)).and_then(|value| value.to_str().ok());
    let Some(code) = field("grpc-status").and_then(|code| code.trim().parse::<u16>().ok()) else {
        // Not from a gRPC server; gRPC's mapping of HTTP codes makes these UNAVAILABLE.
        return match status {
            429 | 502..=504 => Sent::Again(format!("HTTP {status}"), None),
            _ => Sent::Refused(format!("no gRPC answer (HTTP {status})")),
        };
    };
    let answer = format!("gRPC status {code} {}", field("grpc-message").unwrap_or_default());
    match code {
        0 => taken(body.get(5..).unwrap_or_default()),
        // CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
        1 | 4 | 8 | 10 | 11 | 14 | 15 => Sent::Again(answer, None),
        _ => Sent::Refused(answer),
    }
}

/// A collector may accept only part of a request. An undecodable body counts as full success.
fn taken(body: &[u8]) -> Sent {
    let partial = Response::decode(body).ok().and_then(|response| response.partial_success);
    let (rejected, why) = partial.map_or((0, String::new()), |part| (part.rejected, part.error_message));
    Sent::Taken(u64::try_from(rejected).unwrap_or(0), why)
}

#[cfg(test)]
mod tests {
    use super::super::proto::PartialSuccess;
    use super::*;

    #[test]
    fn answers_mean_what_the_protocol_says() {
        let none = HeaderMap::new();
        let mut later = HeaderMap::new();
        later.insert(RETRY_AFTER, hyper::header::HeaderValue::from_static("7"));
        assert_eq!(of_http(200, &none, b""), Sent::Taken(0, String::new()));
        assert_eq!(of_http(503, &later, b""), Sent::Again("HTTP 503".into(), Some(Duration::from_secs(7))));
        assert!(matches!(of_http(429, &none, b""), Sent::Again(_, None)));
        for status in [301, 400, 401, 404, 413, 500] {
            assert!(matches!(of_http(status, &none, b""), Sent::Refused(_)), "{status}");
        }
        let part = PartialSuccess { rejected: 3, error_message: "too old".into() };
        let body = Response { partial_success: Some(part) }.encode_to_vec();
        assert_eq!(of_http(200, &none, &body), Sent::Taken(3, "too old".into()));
        assert_eq!(of_http(200, &none, b"<html>"), Sent::Taken(0, String::new()), "what is no message says nothing");

        let status = |code: &'static str| {
            HeaderMap::from_iter([(
                hyper::header::HeaderName::from_static("grpc-status"),
                hyper::header::HeaderValue::from_static(code),
            )])
        };
        let framed = [&[0, 0, 0, 0, body.len() as u8][..], &body].concat();
        assert_eq!(of_grpc(200, &none, &status("0"), &framed), Sent::Taken(3, "too old".into()));
        assert!(matches!(of_grpc(200, &status("14"), &none, b""), Sent::Again(..)));
        assert!(matches!(of_grpc(200, &none, &status("3"), b""), Sent::Refused(_)));
        assert!(matches!(of_grpc(200, &none, &none, b""), Sent::Refused(_)));
        assert!(matches!(of_grpc(503, &none, &none, b""), Sent::Again(..)));
    }
}
