//! One POST of JSON, and what its answer means.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tracer_host::files;

use super::{Settings, SettingsError};
use crate::otlp::tls;

/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read.
const ANSWER: usize = 16 * 1024;
/// Longest token, bytes.
const TOKEN: u64 = 4096;

/// The outcome of an attempt.
#[derive(Debug)]
pub(super) enum Sent {
    Taken,
    /// It may work later, and why it did not.
    Again(String),
    /// It will not, and why.
    Refused(String),
}

pub(super) struct Sender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: hyper::Uri,
    token: Option<HeaderValue>,
}

impl Sender {
    pub(super) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let error = |name, why: String| SettingsError { name, why };
        let token = settings.token_file.as_ref().map(|path| {
            let wrong = |why: String| error("webhook_token_file", format!("{}: {why}", path.display()));
            let text = files::read_secret(path, TOKEN).map_err(|why| wrong(why.to_string()))?;
            let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
                .map_err(|_| wrong("expected a token in one line".into()))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let mut plain = HttpConnector::new();
        plain.set_connect_timeout(Some(TIMEOUT));
        let https = settings.uri.scheme_str() == Some("https");
        let connector = tls::by_system_roots(https, plain).map_err(|why| error("webhook", why.to_string()))?;
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(1);
        Ok(Self { client: builder.build(connector), uri: settings.uri.clone(), token: token.transpose()? })
    }

    /// The receiver without path and query, which may hold a secret.
    pub(super) fn place(&self) -> String {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let port = self.uri.port_u16().map_or_else(String::new, |port| format!(":{port}"));
        format!("{scheme}://{}{port}", self.uri.host().unwrap_or_default())
    }

    /// Posts `body` once.
    pub(super) async fn post(&self, body: &[u8]) -> Sent {
        let mut request = hyper::Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("tracer/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let request = match request.body(Full::new(Bytes::copy_from_slice(body))) {
            Ok(request) => request,
            Err(error) => return Sent::Refused(error.to_string()),
        };
        let answered = tokio::time::timeout(TIMEOUT, async {
            let (head, body) = self.client.request(request).await.map_err(|error| error.to_string())?.into_parts();
            // Read to its end, so that the connection can be used again.
            let _ = Limited::new(body, ANSWER).collect().await;
            Ok::<_, String>(head.status.as_u16())
        });
        match answered.await {
            Err(_) => Sent::Again(format!("no answer within {TIMEOUT:?}")),
            Ok(Err(why)) => Sent::Again(why),
            Ok(Ok(200..=299)) => Sent::Taken,
            Ok(Ok(status @ (408 | 425 | 429 | 500..=599))) => Sent::Again(format!("HTTP {status}")),
            Ok(Ok(status)) => Sent::Refused(format!("HTTP {status}")),
        }
    }
}
