//! The PROXY protocol, versions 1 and 2: a proxy's header about its client, sent before anything else
//! (haproxy.org/download/2.9/doc/proxy-protocol.txt).

/// First bytes of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Longest version 1 header, including its line end.
const LINE_LIMIT: usize = 107;
/// Longest version 2 header accepted: addresses and the extensions proxies add.
const LIMIT: usize = 16 + 1024;

/// Classification of a connection's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preamble {
    /// A header of this many bytes.
    Header(usize),
    /// Could become a header.
    NeedMore,
    /// Not a header.
    No,
}

/// Looks for a header at the front of `bytes`.
pub(super) fn preamble(bytes: &[u8]) -> Preamble {
    let starts = |with: &[u8]| {
        let n = bytes.len().min(with.len());
        n > 0 && bytes.get(..n) == with.get(..n)
    };
    if starts(b"PROXY ") {
        let line = bytes.get(..bytes.len().min(LINE_LIMIT)).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\n', line) else {
            return if line.len() < LINE_LIMIT { Preamble::NeedMore } else { Preamble::No };
        };
        let text = line.get(b"PROXY ".len()..end).unwrap_or_default();
        let known = [&b"TCP4 "[..], b"TCP6 ", b"UNKNOWN"].iter().any(|word| text.starts_with(word));
        return if known && text.ends_with(b"\r") { Preamble::Header(end + 1) } else { Preamble::No };
    }
    if !starts(SIGNATURE) {
        return Preamble::No;
    }
    match bytes.get(SIGNATURE.len()..SIGNATURE.len() + 4) {
        Some([version, _, high, low]) => second(*version, u16::from_be_bytes([*high, *low]), bytes.len()),
        _ => Preamble::NeedMore,
    }
}

/// Version 2 with length `len`, of which `have` bytes are there.
fn second(version: u8, len: u16, have: usize) -> Preamble {
    let len = SIGNATURE.len() + 4 + usize::from(len);
    if !matches!(version, 0x20 | 0x21) || len > LIMIT {
        return Preamble::No;
    }
    if have < len { Preamble::NeedMore } else { Preamble::Header(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_end_where_they_say_for_every_cut() {
        let second = [SIGNATURE, &[0x21, 0x11, 0, 12], &[127, 0, 0, 1, 127, 0, 0, 2, 1, 2, 3, 4]].concat();
        let local = [SIGNATURE, &[0x20, 0, 0, 0]].concat();
        for header in [
            &b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n"[..],
            b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n",
            b"PROXY UNKNOWN\r\n",
            &second,
            &local,
        ] {
            for cut in 1..header.len() {
                assert_eq!(preamble(&header[..cut]), Preamble::NeedMore, "{cut}");
            }
            assert_eq!(preamble(&[header, b"GET / HTTP/1.1\r\n"].concat()), Preamble::Header(header.len()));
        }
    }

    #[test]
    fn what_is_none() {
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        let wrong = [SIGNATURE, &[0x31, 0, 0, 0]].concat();
        let huge = [SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat();
        for bytes in
            [&b""[..], b"GET / HTTP/1.1", b"PROXY me\r\n", b"PROXY TCP4 x\n", &long, &wrong, &huge, b"\r\n\r\nGET"]
        {
            assert_eq!(preamble(bytes), Preamble::No, "{}", String::from_utf8_lossy(bytes));
        }
    }
}
