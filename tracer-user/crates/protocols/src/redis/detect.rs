//! Recognises RESP by a message's first bytes. An array that names a command suffices; a line does not.

use super::commands::COMMANDS;
use super::read::{Read, confirmed, header, word};
use crate::Detected;

/// First words of messages that answer no request.
pub(super) const PUSHES: &[&[u8]] = &[b"message", b"pmessage", b"smessage", b"invalidate", b"tracking-redir-broken"];
/// First words of messages that confirm a subscription or its end, one for each channel.
pub(super) const CONFIRMATIONS: &[&[u8]] =
    &[b"subscribe", b"psubscribe", b"ssubscribe", b"unsubscribe", b"punsubscribe", b"sunsubscribe"];
/// Most arguments of a command (the server's own limit).
pub(super) const ARGUMENTS: u64 = 1024 * 1024;
pub(super) fn detect_array(bytes: &[u8]) -> Detected {
    let push = bytes.first() == Some(&b'>');
    let (count, at) = match header(bytes, 0, if push { b'>' } else { b'*' }) {
        Read::Got((Some(count), at)) if (1..=ARGUMENTS).contains(&count) => (count, at),
        Read::Got(_) | Read::Bad => return Detected::No,
        Read::Short => return Detected::NeedMore,
    };
    match word(bytes, at) {
        Read::Got((Some(word), after)) => {
            if PUSHES.contains(&word) && (push || (3..=4).contains(&count)) {
                return Detected::Reply;
            }
            if CONFIRMATIONS.contains(&word) && count == 3 {
                // `subscribe channel :1` confirms a subscription, `subscribe channel channel` requests some.
                return match confirmed(bytes, after) {
                    Read::Got(_) => Detected::Reply,
                    Read::Short => Detected::NeedMore,
                    Read::Bad if push => Detected::No,
                    Read::Bad => Detected::Request,
                };
            }
            if !push && COMMANDS.find(word).is_some() { Detected::Request } else { Detected::No }
        }
        Read::Got((None, _)) | Read::Bad => Detected::No,
        Read::Short => Detected::NeedMore,
    }
}

/// A line that begins with a command could belong to many protocols: it is only decided together with its reply.
pub(super) fn detect_inline(bytes: &[u8]) -> Detected {
    let end = bytes.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
    let first = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    let fits = match end {
        Some(_) => COMMANDS.find(first).is_some(),
        None => COMMANDS.begins(first),
    };
    let text = bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n'));
    if fits && text { Detected::NeedMore } else { Detected::No }
}
