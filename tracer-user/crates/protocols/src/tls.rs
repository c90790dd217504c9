//! TLS (RFC 8446, RFC 5246): recognised, named by the plaintext ClientHello, timed by round trips.
//!
//! Nothing is decrypted. Readable are the host name the client asks for (SNI, RFC 6066 §3), the protocols it offers
//! (ALPN, RFC 7301), and the end of the handshake, whose messages must not count as requests.

pub(super) mod certificate;
pub mod records;

use tracer_model::ProtocolId;

use super::{Detected, Protocol};

/// The protocol.
#[derive(Debug)]
pub struct Tls;

/// Record types.
const CHANGE: u8 = 20;
const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const DATA: u8 = 23;
/// Bytes of a record header.
pub(super) const HEADER: usize = 5;
/// Longest record: 2^14 bytes and the cipher's expansion (RFC 5246 §6.2.3).
const LONGEST: usize = (1 << 14) + 2048;
/// Longest DNS name.
const NAME_LIMIT: usize = 253;

impl Protocol for Tls {
    fn id(&self) -> ProtocolId {
        ProtocolId::Tls
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let Some(header) = bytes.first_chunk() else {
            let could = match bytes {
                [] => true,
                [kind, rest @ ..] => (HANDSHAKE..=DATA).contains(kind) && rest.first().is_none_or(|major| *major == 3),
            };
            return if could { Detected::NeedMore } else { Detected::No };
        };
        let Some(record) = Record::read(*header) else { return Detected::No };
        let content = bytes.get(HEADER..).unwrap_or_default();
        match (record.kind, content) {
            (HANDSHAKE, [kind @ (1 | 2), 0, _, _, 3, 0..=4, ..]) if record.len >= 40 => {
                if *kind == 1 {
                    Detected::Request
                } else {
                    Detected::Reply
                }
            }
            (HANDSHAKE, _) if content.len() < 6 => Detected::NeedMore,
            // In mid-stream: records follow each other.
            (DATA, _) if record.len >= 17 => match bytes.get(HEADER + record.len..) {
                None | Some([]) => Detected::Either,
                Some(next) if (CHANGE..=DATA).contains(&next[0]) && next.get(1).is_none_or(|major| *major == 3) => {
                    Detected::Either
                }
                Some(_) => Detected::No,
            },
            _ => Detected::No,
        }
    }

    fn round_trips(&self) -> bool {
        true
    }
}

/// A record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: u8,
    pub(super) len: usize,
}

impl Record {
    /// Reads a record header; `None` if it is not one.
    pub(super) fn read(header: [u8; HEADER]) -> Option<Self> {
        let [kind, major, minor, high, low] = header;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let fits = (CHANGE..=DATA).contains(&kind) && major == 3 && minor <= 4 && (1..=LONGEST).contains(&len);
        fits.then_some(Self { kind, len })
    }

    /// Whether it can only announce the sender's close (`close_notify`; under TLS 1.3 it looks like two bytes of data).
    pub(super) fn is_farewell(self) -> bool {
        self.kind == ALERT || self.kind == DATA && self.len == 19
    }
}

/// Content of a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// Host name it asks for (SNI); empty if it gives none.
    pub(super) name: String,
    /// Protocols it offers (ALPN), by their registered names; empty for none, `other` for unlisted ones.
    pub(super) offers: &'static str,
}

/// Kind of ServerHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerHelloKind {
    /// The client must start again (RFC 8446 §4.1.4).
    Retry,
    /// TLS 1.3: everything after it is encrypted, including the rest of the handshake.
    Sealed,
    /// The rest of the handshake is in plaintext.
    Open,
}

/// `random` of a HelloRetryRequest.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Takes `n` bytes off the front.
fn take<'a>(from: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (front, rest) = from.split_at_checked(n)?;
    *from = rest;
    Some(front)
}

/// Takes the content after its length, a number of `width` bytes.
fn prefixed<'a>(from: &mut &'a [u8], width: usize) -> Option<&'a [u8]> {
    let len = take(from, width)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    take(from, len)
}

/// Calls `see` for each extension in the front of a list that may be cut; skips an incomplete last one.
fn extensions(mut list: &[u8], mut see: impl FnMut(u16, &[u8])) {
    while let Some(&[high, low]) = take(&mut list, 2).and_then(|kind| kind.first_chunk()) {
        let Some(content) = prefixed(&mut list, 2) else { return };
        see(u16::from_be_bytes([high, low]), content);
    }
}

/// Reads a ClientHello, from its handshake header on; parts missing from a cut one stay empty.
pub(super) fn client(bytes: &[u8]) -> Hello {
    let mut hello = Hello::default();
    let mut rest = bytes;
    let fixed = take(&mut rest, 4 + 2 + 32).and_then(|_| prefixed(&mut rest, 1));
    let sized = fixed.and_then(|_| prefixed(&mut rest, 2)).and_then(|_| prefixed(&mut rest, 1));
    if sized.and_then(|_| take(&mut rest, 2)).is_none() {
        return hello;
    }
    extensions(rest, |kind, mut content| match kind {
        0 => {
            let name = prefixed(&mut content, 2).and_then(|mut list| match take(&mut list, 1) {
                Some([0]) => prefixed(&mut list, 2),
                _ => None,
            });
            hello.name = name.and_then(host).unwrap_or_default();
        }
        16 => hello.offers = prefixed(&mut content, 2).map_or("", offers),
        _ => {}
    });
    hello
}

/// A displayable host name: valid in DNS, lower case.
fn host(name: &[u8]) -> Option<String> {
    let fits = (1..=NAME_LIMIT).contains(&name.len())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    let text = std::str::from_utf8(name).ok().filter(|_| fits)?;
    Some(text.trim_end_matches('.').to_ascii_lowercase())
}

/// Label for a list of ALPN protocols; the names come from a fixed list.
fn offers(mut list: &[u8]) -> &'static str {
    let mut known: (bool, bool, &'static str) = (false, false, "");
    while let Some(name) = prefixed(&mut list, 1) {
        match name {
            b"h2" => known.0 = true,
            b"http/1.1" => known.1 = true,
            // Clients offer it for the sake of old servers.
            b"http/1.0" => {}
            b"postgresql" => known.2 = "postgresql",
            b"dot" => known.2 = "dot",
            b"imap" => known.2 = "imap",
            b"pop3" => known.2 = "pop3",
            b"mqtt" => known.2 = "mqtt",
            b"acme-tls/1" => known.2 = "acme-tls/1",
            _ => known.2 = "other",
        }
    }
    match known {
        (true, true, _) => "h2,http/1.1",
        (true, false, _) => "h2",
        (false, true, _) => "http/1.1",
        (false, false, other) => other,
    }
}

/// Reads a ServerHello, from its handshake header on; `None` if it is cut before its extensions end.
pub(super) fn server(bytes: &[u8]) -> Option<ServerHelloKind> {
    let mut rest = bytes;
    take(&mut rest, 4 + 2)?;
    if take(&mut rest, 32)? == RETRY {
        return Some(ServerHelloKind::Retry);
    }
    prefixed(&mut rest, 1)?;
    take(&mut rest, 3)?;
    let mut sealed = false;
    extensions(prefixed(&mut rest, 2).unwrap_or_default(), |kind, content| sealed |= kind == 43 && content == [3, 4]);
    Some(if sealed { ServerHelloKind::Sealed } else { ServerHelloKind::Open })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_come_from_a_list() {
        assert_eq!(offers(b"\x02h2\x08http/1.1"), "h2,http/1.1");
        assert_eq!(offers(b"\x08http/1.1\x08http/1.0"), "http/1.1");
        assert_eq!(offers(b"\x06secret"), "other");
        assert_eq!(offers(b"\x06sec"), "");
        assert_eq!(offers(b"\x0apostgresql"), "postgresql");
    }

    #[test]
    fn a_name_is_one_that_dns_allows() {
        assert_eq!(host(b"Example.ORG.").as_deref(), Some("example.org"));
        assert_eq!(host(b"a b"), None);
        assert_eq!(host(b""), None);
        assert_eq!(host(&[b'a'; 254]), None);
        assert_eq!(host("gr\u{fc}n.example".as_bytes()), None);
    }

    #[test]
    fn a_servers_version_stands_in_an_extension() {
        let hello = |extensions: &[u8]| {
            let mut bytes = b"\x02\0\0\0\x03\x03".to_vec();
            bytes.extend_from_slice(&[7; 32]);
            bytes.extend_from_slice(b"\0\x13\x01\0");
            bytes.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
            bytes.extend_from_slice(extensions);
            bytes
        };
        let sealed = hello(b"\0\x2b\0\x02\x03\x04");
        assert_eq!(server(&sealed), Some(ServerHelloKind::Sealed));
        assert_eq!(server(&hello(b"\0\x17\0\0")), Some(ServerHelloKind::Open));
        assert_eq!(server(&hello(b"")), Some(ServerHelloKind::Open));
        assert_eq!(server(&sealed[..30]), None);
        let mut retry = sealed;
        retry[6..38].copy_from_slice(&RETRY);
        assert_eq!(server(&retry), Some(ServerHelloKind::Retry));
    }
}
