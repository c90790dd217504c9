//! Asks a running agent's HTTP API: for `tracer top` and `tracer mcp`.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Where an agent listens unless it is asked not to.
pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:9464";

/// How long an answer may take, and one that needs names of functions: the agent reads symbol tables for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const PATIENCE_SYMBOLS: Duration = Duration::from_secs(60);
/// Most bytes of one answer.
const ANSWER_MAX: u64 = 64 << 20;

/// An agent's address.
#[derive(Clone, Debug)]
pub(super) struct Client {
    url: String,
    /// `HOST:PORT`.
    host: String,
}

impl Client {
    /// `http://HOST:PORT`, with or without a slash at the end.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let expected = || format!("--url {url}: expected http://HOST:PORT, such as http://127.0.0.1:9464");
        let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')).ok_or_else(expected)?;
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ', '\r', '\n']) {
            return Err(expected());
        }
        let port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if port { host.to_owned() } else { format!("{host}:80") };
        Ok(Self { url: url.trim_end_matches('/').to_owned(), host })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// `HOST:PORT`.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Whether nothing listens there.
    pub(super) fn is_refused(&self) -> bool {
        let address = self.host.to_socket_addrs().ok().and_then(|mut all| all.next());
        let tried = address.map(|address| TcpStream::connect_timeout(&address, PATIENCE));
        matches!(tried, Some(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
    }

    /// Whether the agent traces.
    pub(super) fn is_ready(&self) -> bool {
        self.get("/readyz", PATIENCE).is_ok()
    }

    /// The answer to a question, read as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let body = self.get(path, PATIENCE)?;
        serde_json::from_slice(&body)
            .map_err(|error| format!("{}{path}: {error}; is it a tracer of this version?", self.url))
    }

    /// The answer to a question that has one.
    pub(super) fn get(&self, path: &str, patience: Duration) -> Result<Vec<u8>, String> {
        let (status, body) = self.ask(path, patience)?;
        if status != 200 {
            return Err(format!("{}{path}: {status} {}", self.url, String::from_utf8_lossy(&body).trim()));
        }
        Ok(body)
    }

    /// Status and body of an answer, whatever it says.
    pub(super) fn ask(&self, path: &str, patience: Duration) -> Result<(u16, Vec<u8>), String> {
        let failed = |error: std::io::Error| match error.kind() {
            // How a read that took too long ends.
            ErrorKind::WouldBlock => format!("{}: no answer in {} s", self.url, patience.as_secs()),
            _ => format!("{}: {error}; is `tracer run` running there? (--url says where)", self.url),
        };
        let address = self.host.to_socket_addrs().map_err(failed)?.next();
        let address = address.ok_or_else(|| format!("{}: the name has no address", self.url))?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
        stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(failed)?;
        // HTTP/1.0: the answer ends with the connection and is not cut into chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.host);
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).map_err(failed)?;
        let (status, body) = parse(&answer).ok_or_else(|| format!("{}: the answer is not HTTP", self.url))?;
        Ok((status, body.to_vec()))
    }
}

/// Status and body of an answer.
fn parse(answer: &[u8]) -> Option<(u16, &[u8])> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(answer).ok()? {
        httparse::Status::Complete(at) => Some((response.code?, answer.get(at..)?)),
        httparse::Status::Partial => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        let host = |url: &str| Client::new(url).map(|client| client.host);
        assert_eq!(host("http://127.0.0.1:9464/").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(host("http://tracer.internal").as_deref(), Ok("tracer.internal:80"));
        assert_eq!(host("http://[::1]:9464").as_deref(), Ok("[::1]:9464"));
        for bad in ["127.0.0.1:9464", "https://a", "http://", "http://a/b", "http://a\r\nX: y"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(parse(b"HTTP/1.0 404 Not Found\r\na: b\r\n\r\nno"), Some((404, &b"no"[..])));
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\n"), None);
        assert_eq!(parse(b"SSH-2.0"), None);
    }
}
