//! One file from one server: `GET /buildid/ID/debuginfo`.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::header::USER_AGENT;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::cache::Cache;
use crate::otlp::tls;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Debug)]
pub(super) enum Fetched {
    Complete,
    /// The server has no such file.
    Missing,
    TooLarge,
    Failed(String),
}

/// A client of all servers.
pub(super) struct Client {
    http: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    servers: Vec<hyper::Uri>,
}

impl Client {
    pub(super) fn new(servers: &[hyper::Uri]) -> Result<Self, String> {
        let mut plain = HttpConnector::new();
        plain.set_connect_timeout(Some(CONNECT));
        let https = servers.iter().any(|uri| uri.scheme_str() == Some("https"));
        let connector = tls::by_system_roots(https, plain).map_err(|why| why.to_string())?;
        let mut builder = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(1);
        Ok(Self { http: builder.build(connector), servers: servers.to_vec() })
    }

    pub(super) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// The server without path and query, which may hold a secret.
    pub(super) fn place(&self, server: usize) -> &str {
        self.servers.get(server).and_then(hyper::Uri::host).unwrap_or_default()
    }

    /// Fetches the debug file of a build id, of `most` bytes at most, into the cache's current file.
    pub(super) async fn fetch(&self, server: usize, build_id: &[u8], most: u64, cache: &mut Cache) -> Fetched {
        match self.get(server, build_id, most, cache).await {
            Ok(fetched) => fetched,
            Err(why) => Fetched::Failed(why),
        }
    }

    async fn get(&self, server: usize, build_id: &[u8], most: u64, cache: &mut Cache) -> Result<Fetched, String> {
        let uri = self.servers.get(server).and_then(|server| address(server, build_id)).ok_or("no address")?;
        let request = hyper::Request::get(uri).header(USER_AGENT, concat!("tracer/", env!("CARGO_PKG_VERSION")));
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = self.http.request(request).await.map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(Fetched::Missing),
            status => return Err(format!("HTTP {status}")),
        }
        let (mut body, mut got) = (answer.into_body(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Some(bytes) = frame.data_ref() else { continue };
            got += bytes.len() as u64;
            if got > most {
                return Ok(Fetched::TooLarge);
            }
            cache.write(bytes).map_err(|error| error.to_string())?;
        }
        Ok(Fetched::Complete)
    }
}

/// The address of a debug file below that of a server.
fn address(server: &hyper::Uri, build_id: &[u8]) -> Option<hyper::Uri> {
    let (scheme, authority) = (server.scheme_str()?, server.authority()?);
    let mut text = format!("{scheme}://{authority}{}/buildid/", server.path().trim_end_matches('/'));
    for byte in build_id {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push_str("/debuginfo");
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_below_the_servers() {
        for (server, expected) in [
            ("http://a:8002", "http://a:8002/buildid/0aff/debuginfo"),
            ("https://b.example/debug/", "https://b.example/debug/buildid/0aff/debuginfo"),
        ] {
            assert_eq!(address(&server.parse().unwrap(), &[0x0a, 0xff]).unwrap().to_string(), expected);
        }
    }
}
