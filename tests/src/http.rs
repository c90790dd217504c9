//! A small HTTP/1 client: enough to query servers, exact about bytes.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Limit for any single read or write.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest accepted head.
const HEAD_LIMIT: usize = 64 * 1024;

/// A reply.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Head, as received.
    pub head: String,
    /// Body, or its first bytes if only those were kept.
    pub body: Vec<u8>,
    /// Bytes on the wire after the head, chunk framing included.
    pub wire_body: u64,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
    /// Most bytes of a body to keep.
    keep: usize,
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, address, buffer: Vec::new(), keep: usize::MAX })
    }

    /// Keeps only the first bytes of bodies.
    #[must_use]
    pub fn keeping(mut self, bytes: usize) -> Self {
        self.keep = bytes;
        self
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends the sending direction.
    pub fn finish(&mut self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn more(&mut self) -> Result<usize> {
        let mut chunk = vec![0; 65536];
        let n = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(chunk.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                return Ok(self.buffer.drain(..at + 2).collect());
            }
            if self.buffer.len() > HEAD_LIMIT {
                return Err(bad("line too long"));
            }
            if self.more()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads a head: status line to empty line.
    pub fn head(&mut self) -> Result<String> {
        let mut head = Vec::new();
        loop {
            let line = self.line()?;
            head.extend_from_slice(&line);
            if line == b"\r\n" {
                return String::from_utf8(head).map_err(|_| bad("head is not text"));
            }
            if head.len() > HEAD_LIMIT {
                return Err(bad("head too long"));
            }
        }
    }

    /// Takes exactly `n` bytes of a body and keeps as many as wanted.
    pub fn take(&mut self, n: u64, body: &mut Vec<u8>) -> Result<()> {
        let mut left = n as usize;
        while left > 0 {
            if self.buffer.is_empty() && self.more()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let now = left.min(self.buffer.len());
            let wanted = self.keep.saturating_sub(body.len()).min(now);
            body.extend_from_slice(self.buffer.get(..wanted).unwrap_or_default());
            self.buffer.drain(..now);
            left -= now;
        }
        Ok(())
    }

    /// Takes everything until the other side closes; returns the number of bytes.
    pub fn rest(&mut self) -> Result<u64> {
        let mut total = 0;
        loop {
            total += self.buffer.len() as u64;
            self.buffer.clear();
            if self.more()? == 0 {
                return Ok(total);
            }
        }
    }

    /// Reads the final reply to a request of `method`; skips interim replies.
    pub fn reply(&mut self, method: &str) -> Result<Reply> {
        let (head, status) = loop {
            let head = self.head()?;
            let status = head.split(' ').nth(1).and_then(|code| code.trim().parse::<u16>().ok());
            let status = status.ok_or_else(|| bad("no status line"))?;
            if !(100..200).contains(&status) || status == 101 {
                break (head, status);
            }
        };
        let closes = header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
            || head.starts_with("HTTP/1.0");
        let mut reply = Reply { status, head, body: Vec::new(), wire_body: 0, closes };
        let none = method == "HEAD" || matches!(status, 101 | 204 | 304) || (method == "CONNECT" && status == 200);
        if none {
            return Ok(reply);
        }
        if reply.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            self.chunked(&mut reply)?;
        } else if let Some(length) = reply.header("content-length") {
            let length = length.parse().map_err(|_| bad("content-length"))?;
            self.take(length, &mut reply.body)?;
            reply.wire_body = length;
        } else {
            reply.wire_body = self.rest()?;
            reply.closes = true;
        }
        Ok(reply)
    }

    fn chunked(&mut self, reply: &mut Reply) -> Result<()> {
        loop {
            let line = self.line()?;
            reply.wire_body += line.len() as u64;
            let text = String::from_utf8_lossy(&line);
            let size = text.trim().split(';').next().and_then(|size| u64::from_str_radix(size, 16).ok());
            let size = size.ok_or_else(|| bad("chunk size"))?;
            if size == 0 {
                break;
            }
            self.take(size, &mut reply.body)?;
            reply.wire_body += size + self.line()?.len() as u64;
        }
        loop {
            let line = self.line()?;
            reply.wire_body += line.len() as u64;
            if line == b"\r\n" {
                return Ok(());
            }
        }
    }

    /// One request without a body and its reply.
    pub fn ask(&mut self, method: &str, target: &str) -> Result<Reply> {
        let host = self.address;
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())?;
        self.reply(method)
    }
}

/// One GET on a connection of its own.
pub fn get(address: SocketAddr, target: &str) -> Result<Reply> {
    let mut connection = Connection::open(address)?;
    connection.send(format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    connection.reply("GET")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that sends `reply` on every connection.
    fn canned(reply: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1000];
            let _ = stream.read(&mut request).unwrap();
            for byte in reply {
                stream.write_all(&[*byte]).unwrap();
            }
        });
        address
    }

    #[test]
    fn bodies_end_where_they_should() {
        for (reply, status, body, wire) in [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".as_slice(), 200, "abc", 3),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", 404, "", 0),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\nab\r\n1\r\nc\r\n0\r\nT: 1\r\n\r\n",
                200,
                "abc",
                28,
            ),
            (b"HTTP/1.1 204 None\r\n\r\n", 204, "", 0),
        ] {
            let reply = get(canned(reply), "/").unwrap();
            assert_eq!((reply.status, reply.text().as_str(), reply.wire_body), (status, body, wire));
        }
        let reply = get(canned(b"HTTP/1.0 200 OK\r\n\r\nabcdef"), "/").unwrap();
        assert_eq!((reply.wire_body, reply.closes), (6, true));
        assert!(get(canned(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc"), "/").is_err());
    }
}
