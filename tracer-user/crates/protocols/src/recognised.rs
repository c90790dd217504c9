//! Protocols that are recognised, named and timed by round trips, but not decoded: SSH, SMTP, LDAP, and anything on the
//! ports configured for timing.

use memchr::memmem;
use tracer_model::ProtocolId;

use super::{Detected, Protocol};

/// SSH (RFC 4253 §4.2): both sides begin with the same words, so the end that connected is the client.
#[derive(Debug)]
pub struct Ssh;

/// SMTP and LMTP (RFC 5321, RFC 2033).
#[derive(Debug)]
pub struct Smtp;

/// LDAP version 3 (RFC 4511).
#[derive(Debug)]
pub struct Ldap;

/// Any unrecognised protocol on ports configured for timing.
#[derive(Debug)]
pub struct Unknown;

/// Whether `bytes` begin with `with`, ignoring case; `None`: they could.
fn begins(bytes: &[u8], with: &[u8]) -> Option<bool> {
    let have = bytes.len().min(with.len());
    if !bytes.iter().zip(with).all(|(one, other)| one.eq_ignore_ascii_case(other)) {
        return Some(false);
    }
    (have == with.len()).then_some(true)
}

impl Protocol for Ssh {
    fn id(&self) -> ProtocolId {
        ProtocolId::Ssh
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let versions: [&[u8]; 2] = [b"SSH-2.0-", b"SSH-1.99-"];
        match versions.map(|version| begins(bytes, version)) {
            [Some(true), _] | [_, Some(true)] => Detected::Either,
            [None, _] | [_, None] => Detected::NeedMore,
            _ => Detected::No,
        }
    }

    fn round_trips(&self) -> bool {
        true
    }
}

impl Protocol for Smtp {
    fn id(&self) -> ProtocolId {
        ProtocolId::Smtp
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let greetings: [&[u8]; 3] = [b"EHLO ", b"HELO ", b"LHLO "];
        let asked = greetings.map(|greeting| begins(bytes, greeting));
        if asked.contains(&Some(true)) {
            return Detected::Request;
        }
        // FTP servers begin with the same number.
        let answered = match begins(bytes, b"220").zip(bytes.get(3)) {
            Some((true, b' ' | b'-')) => {
                let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let words = line.to_ascii_uppercase();
                let named = [&b"SMTP"[..], b"LMTP"].iter().any(|word| memmem::find(&words, word).is_some());
                if named {
                    return Detected::Reply;
                }
                if line.len() < bytes.len() || bytes.len() >= 512 { Some(false) } else { None }
            }
            Some(_) => Some(false),
            None => begins(bytes, b"220").filter(|fits| !fits),
        };
        if answered.is_none() || asked.contains(&None) { Detected::NeedMore } else { Detected::No }
    }

    fn round_trips(&self) -> bool {
        true
    }
}

impl Protocol for Ldap {
    fn id(&self) -> ProtocolId {
        ProtocolId::Ldap
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        match operation(bytes) {
            Ok(Some(detected)) => detected,
            Ok(None) => Detected::NeedMore,
            Err(()) => Detected::No,
        }
    }

    fn round_trips(&self) -> bool {
        true
    }
}

/// Result of [`element`]; `Err`: not an element.
type Element<'a> = Result<Option<(u8, usize, &'a [u8])>, ()>;

/// An element's tag, its length and the bytes after them (X.690 §8.1); `None`: more bytes are needed.
fn element(bytes: &[u8]) -> Element<'_> {
    let [tag, len, rest @ ..] = bytes else { return Ok(None) };
    match *len {
        len @ 0..=0x7f => Ok(Some((*tag, usize::from(len), rest))),
        0x81..=0x84 => {
            let Some((digits, rest)) = rest.split_at_checked(usize::from(*len & 0x7f)) else { return Ok(None) };
            let len = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
            // The limit servers set is some megabytes.
            if len < 1 << 26 { Ok(Some((*tag, len, rest))) } else { Err(()) }
        }
        _ => Err(()),
    }
}

/// Classifies the message at the front of `bytes` by its operation and the beginning of its content.
fn operation(bytes: &[u8]) -> Result<Option<Detected>, ()> {
    let Some((tag, whole, rest)) = element(bytes)? else {
        return if bytes.first().is_none_or(|tag| *tag == 0x30) { Ok(None) } else { Err(()) };
    };
    if tag != 0x30 || whole < 5 {
        return Err(());
    }
    let before = rest.len();
    let Some((tag, len, rest)) = element(rest)? else { return Ok(None) };
    if tag != 2 || !(1..=4).contains(&len) {
        return Err(());
    }
    let Some(rest) = rest.get(len..) else { return Ok(None) };
    let Some((tag, len, content)) = element(rest)? else { return Ok(None) };
    // Controls may follow it.
    if before - content.len() + len > whole {
        return Err(());
    }
    let begins = |with: &[u8], detected| match begins_exactly(content, with) {
        Some(true) => Ok(Some(detected)),
        Some(false) => Err(()),
        None => Ok(None),
    };
    match tag {
        // Bind begins with the version.
        0x60 => match content {
            [2, 1, 2 | 3, ..] => Ok(Some(Detected::Request)),
            [2, 1] | [2] | [] => Ok(None),
            _ => Err(()),
        },
        // Extended: begins with an OID (StartTLS among them).
        0x77 => match content.split_at_checked(2) {
            Some(([0x80, 4..=0xff], name)) => match begins_exactly(name, b"1.") {
                Some(true) => Ok(Some(Detected::Request)),
                Some(false) => Err(()),
                None => Ok(None),
            },
            Some(_) => Err(()),
            None => Ok(None),
        },
        // Answers begin with a result code.
        0x61 | 0x65 | 0x78 if len >= 7 => begins(&[0x0a, 1], Detected::Reply),
        _ => Err(()),
    }
}

/// As [`begins`], case-sensitive.
fn begins_exactly(bytes: &[u8], with: &[u8]) -> Option<bool> {
    if bytes.iter().zip(with).any(|(one, other)| one != other) {
        return Some(false);
    }
    (bytes.len() >= with.len()).then_some(true)
}

impl Protocol for Unknown {
    fn id(&self) -> ProtocolId {
        ProtocolId::Unknown
    }

    fn detect(&self, _: &[u8]) -> Detected {
        // It has no byte pattern of its own.
        Detected::No
    }

    fn round_trips(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_every_cut(protocol: &dyn Protocol, bytes: &[u8], expected: Detected) {
        assert_eq!(protocol.detect(bytes), expected, "{}", String::from_utf8_lossy(bytes));
        let decided = (0..bytes.len()).find(|end| protocol.detect(&bytes[..*end]) != Detected::NeedMore);
        let decided = decided.unwrap_or(bytes.len());
        for end in 0..=bytes.len() {
            let wanted = if end < decided { Detected::NeedMore } else { expected };
            assert_eq!(protocol.detect(&bytes[..end]), wanted, "{end} bytes of {}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn first_words() {
        at_every_cut(&Ssh, b"SSH-2.0-OpenSSH_9.2p1\r\n", Detected::Either);
        at_every_cut(&Ssh, b"SSH-1.99-Cisco\r\n", Detected::Either);
        at_every_cut(&Ssh, b"SSL\r\n", Detected::No);
        at_every_cut(&Smtp, b"EHLO me\r\n", Detected::Request);
        at_every_cut(&Smtp, b"ehlo me\r\n", Detected::Request);
        at_every_cut(&Smtp, b"220 mail.example.org ESMTP\r\n", Detected::Reply);
        at_every_cut(&Smtp, b"220 ftp.example.org ready\r\n", Detected::No);
        at_every_cut(&Smtp, b"220 mail.example.org ready\r\n220 SMTP", Detected::No);
        at_every_cut(&Smtp, b"HELP\r\n", Detected::No);
    }

    #[test]
    fn operations_of_ldap() {
        at_every_cut(&Ldap, b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\0\x80\0", Detected::Request);
        at_every_cut(
            &Ldap,
            b"\x30\x84\0\0\0\x10\x02\x01\x01\x60\x84\0\0\0\x07\x02\x01\x03\x04\0\x80\0",
            Detected::Request,
        );
        at_every_cut(&Ldap, b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037", Detected::Request);
        at_every_cut(&Ldap, b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\0\x04\0\x04\0", Detected::Reply);
        // Inner length exceeds the outer; wrong version; no message id.
        at_every_cut(&Ldap, b"\x30\x0c\x02\x01\x01\x60\x17\x02\x01\x03\x04\0\x80\0", Detected::No);
        at_every_cut(&Ldap, b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x01\x04\0\x80\0", Detected::No);
        at_every_cut(&Ldap, b"\x30\x0c\x04\x01\x01\x60\x07\x02\x01\x03\x04\0\x80\0", Detected::No);
    }
}
