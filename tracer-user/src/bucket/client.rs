//! Requests of `object_store` by the agent's own HTTP client: with a time limit for each as a whole, and a limit on what is
//! read.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as PlainConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpService,
};
use object_store::{ClientOptions, Error, Result};
use tracer_results::history::uploads::FILE_MAX;

use crate::otlp::tls;

/// How long a request may take, with its body and the answer's.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);

/// Makes clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connector;

/// Answers requests.
#[derive(Debug)]
struct Service {
    client: Client<HttpsConnector<PlainConnector>, HttpRequestBody>,
    /// Whether credentials may travel in the clear, as the store's settings say.
    plain: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let failed = |why: String| Error::Generic { store: "HTTP client", source: why.into() };
        let value = |key: ClientConfigKey| options.get_config_value(&key);
        if value(ClientConfigKey::ProxyUrl).is_some() {
            return Err(failed("a proxy is set: proxies are not supported".to_owned()));
        }
        if value(ClientConfigKey::AllowInvalidCertificates).is_some_and(|value| value == "true") {
            return Err(failed("certificates are always checked: put the store's into the system's".to_owned()));
        }
        let plain = value(ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let mut connector = PlainConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        // Certificates are needed unless every request may be in the clear.
        let connector = tls::by_system_roots(!plain, connector).map_err(|error| failed(error.to_string()))?;
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(4);
        Ok(HttpClient::new(Service { client: builder.build(connector), plain }))
    }
}

impl HttpService for Service {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            if !self.plain && request.uri().scheme_str() != Some("https") {
                let why = std::io::Error::other(
                    "the store's address is no https: AWS_ALLOW_HTTP=true and its like allow that",
                );
                return Err(HttpError::new(HttpErrorKind::Unknown, why));
            }
            let answered = tokio::time::timeout(TIMEOUT, self.answer(request)).await;
            answered.unwrap_or_else(|late| Err(HttpError::new(HttpErrorKind::Timeout, late)))
        })
    }
}

impl Service {
    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let sent = self.client.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
            HttpError::new(kind, error)
        })?;
        let (head, body) = sent.into_parts();
        let limit = usize::try_from(FILE_MAX).unwrap_or(usize::MAX);
        let body = Limited::new(body, limit).collect().await.map_err(|error| {
            let long = error.downcast_ref::<LengthLimitError>().is_some();
            HttpError::new_boxed(if long { HttpErrorKind::Decode } else { HttpErrorKind::Interrupted }, error)
        })?;
        Ok(HttpResponse::from_parts(head, body.to_bytes().into()))
    }
}
