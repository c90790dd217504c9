//! A minimal HTTP client for servers on this machine: one GET per connection, HTTP/1.0.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// Largest accepted reply.
const LARGEST: u64 = 64 << 20;
/// Longest wait for a connection, and for further bytes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Status code.
    pub(crate) status: u16,
    /// Body, as text.
    pub(crate) text: String,
}

/// Requests `path`.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<Reply> {
    let what = || format!("GET http://{address}{path}");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(what)?;
    stream.set_read_timeout(Some(PATIENCE)).with_context(what)?;
    stream.set_write_timeout(Some(PATIENCE)).with_context(what)?;
    // HTTP/1.0: the reply ends with the connection and is never chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").with_context(what)?;
    let mut bytes = Vec::new();
    stream.take(LARGEST).read_to_end(&mut bytes).with_context(what)?;
    parse(&bytes).with_context(|| format!("{}: the reply is not HTTP", what()))
}

fn parse(bytes: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Reply { status, text: body.to_owned() })
}

/// Encodes a value for a query.
pub(crate) fn encode(value: &str) -> String {
    let mut encoded = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.extend(["%", &format!("{byte:02X}")]);
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies() {
        let reply = |bytes: &[u8]| parse(bytes).map(|r| (r.status, r.text));
        assert_eq!(reply(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nbody\r\n\r\n"), Some((200, "body\r\n\r\n".into())));
        for bad in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 many\r\n\r\n"] {
            assert_eq!(reply(bad), None);
        }
    }

    #[test]
    fn queries() {
        assert_eq!(encode("GET /users/{id}"), "GET%20%2Fusers%2F%7Bid%7D");
    }
}
