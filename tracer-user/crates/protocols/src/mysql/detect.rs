//! Recognises this protocol by a message's first bytes: the server's greeting, or a command in mid-stream.

use memchr::{memchr, memmem};

use super::packets::{HEADER, Packet, long, packet};
use super::{EXECUTE, PREPARE, QUERY};
use crate::Detected;

/// The protocol version, which begins a greeting.
const GREETING: u8 = 10;
/// Longest greeting, and longest version string in it.
const GREETING_LIMIT: u64 = 512;
const VERSION_LIMIT: usize = 100;
/// Bytes behind the version's terminator: the connection's id, and the first part of the salt.
pub(super) const CONNECTION_ID: usize = 4;
pub(super) const SALT: usize = 8;

/// The version in a server's greeting; `Ok(None)`: more bytes are needed.
pub(super) fn greeting<'a>(packet: &Packet<'a>) -> Result<Option<&'a [u8]>, ()> {
    let [GREETING, rest @ ..] = packet.payload else {
        return if packet.payload.is_empty() { Ok(None) } else { Err(()) };
    };
    if packet.number != 0 || !(40..GREETING_LIMIT).contains(&packet.length) {
        return Err(());
    }
    let end = memchr(0, rest);
    let version = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
    // Distributors append to the version, in words: "11.8.9-MariaDB-0+deb13u1 from Debian".
    let fits = version.len() < VERSION_LIMIT
        && !version.iter().any(u8::is_ascii_control)
        && version.first().is_none_or(u8::is_ascii_digit);
    match end {
        _ if !fits => Err(()),
        Some(0) => Err(()),
        // A zero byte follows the first part of the salt.
        Some(end) if rest.get(end + 1 + CONNECTION_ID + SALT).is_some_and(|byte| *byte != 0) => Err(()),
        Some(_) => Ok(Some(version)),
        None => Ok(None),
    }
}

/// `mariadb`: whether to look for MariaDB, which identifies itself in its greeting.
pub(super) fn detect(bytes: &[u8], mariadb: bool) -> Detected {
    let Some(packet) = packet(bytes) else {
        let third = bytes.get(2).copied().unwrap_or_default();
        return if third == 0 { Detected::NeedMore } else { Detected::No };
    };
    if packet.number != 0 || packet.length == 0 {
        return Detected::No;
    }
    match greeting(&packet) {
        Ok(Some(version)) => {
            let is = memmem::find(version, b"MariaDB").is_some();
            return if is == mariadb { Detected::Reply } else { Detected::No };
        }
        Ok(None) => return Detected::NeedMore,
        Err(()) => {}
    }
    // Only the greeting tells the two apart.
    if !mariadb && is_command(&packet, bytes.len()) { Detected::Request } else { Detected::No }
}

/// Whether a packet is a command as clients send it: alone, with nothing after it.
fn is_command(packet: &Packet<'_>, there: usize) -> bool {
    let alone = there <= HEADER + packet.length as usize;
    let text = |text: &[u8]| {
        let begins = text.iter().find(|byte| !byte.is_ascii_whitespace());
        begins.is_some_and(|byte| byte.is_ascii_alphabetic() || b"(/-#".contains(byte))
            && text.iter().all(|byte| *byte >= b' ' || byte.is_ascii_whitespace())
    };
    alone
        && match packet.payload {
            [QUERY | PREPARE, rest @ ..] => text(rest),
            // One statement, run once.
            [EXECUTE, rest @ ..] => long(rest, 5) == Some(1) && rest.get(4).is_some_and(|flags| *flags <= 0x0f),
            _ => false,
        }
}
