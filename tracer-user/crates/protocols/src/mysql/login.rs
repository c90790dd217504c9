//! Who logs in, by the client's answer to the greeting and by `COM_CHANGE_USER` (MySQL's internals manual, "Connection Phase").
//! What proves it is passed over unread.

use std::sync::Arc;

use super::packets::{integer, long};
use crate::SessionIdentity;

/// Longest name of a user or database, bytes: 80 and 64 characters.
const NAME_LIMIT: usize = 256;
/// Bytes of a packet that are waited for: the user, a usual proof and the database are among them.
pub(super) const LIMIT: usize = 512;
/// Bytes before the user: capabilities, greatest packet, character set, and what is reserved.
const FIXED: usize = 4 + 4 + 1 + 23;

/// Capability flags: a database is named; the answer is that of version 4.1; how the proof's length is written.
const WITH_DATABASE: u32 = 1 << 3;
const VERSION_41: u32 = 1 << 9;
const ONE_BYTE_LENGTH: u32 = 1 << 15;
const ENCODED_LENGTH: u32 = 1 << 21;

/// The user and the database (empty: none) that a client's answer names; `None` if it names no user, or not within what was captured.
pub(super) fn identity(payload: &[u8]) -> Option<Box<SessionIdentity>> {
    let client = long(payload, 0)?;
    if client & VERSION_41 == 0 {
        return None;
    }
    let (user, rest) = name(payload.get(FIXED..)?)?;
    let rest = if client & ENCODED_LENGTH != 0 {
        let (length, at) = integer(rest, 0)?;
        rest.get(at.checked_add(usize::try_from(length).ok()?)?..)?
    } else if client & ONE_BYTE_LENGTH != 0 {
        proof(rest)?
    } else {
        rest.get(memchr::memchr(0, rest)? + 1..)?
    };
    let database = if client & WITH_DATABASE != 0 { name(rest)?.0 } else { "" };
    of(user, database)
}

/// The same of `COM_CHANGE_USER`.
pub(super) fn changed(payload: &[u8]) -> Option<Box<SessionIdentity>> {
    let (user, rest) = name(payload.get(1..)?)?;
    of(user, name(proof(rest)?)?.0)
}

/// The database that `COM_INIT_DB` names.
pub(super) fn database(payload: &[u8]) -> Option<Arc<str>> {
    let name = payload.get(1..).filter(|name| !name.is_empty() && name.len() < NAME_LIMIT)?;
    std::str::from_utf8(name).ok().map(Arc::from)
}

fn of(user: &str, database: &str) -> Option<Box<SessionIdentity>> {
    (!user.is_empty()).then(|| Box::new(SessionIdentity { user: user.into(), database: database.into() }))
}

/// What follows a proof whose length is one byte.
fn proof(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(1 + usize::from(*bytes.first()?)..)
}

/// Text up to a zero byte, and what follows.
fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = memchr::memchr(0, bytes.get(..bytes.len().min(NAME_LIMIT))?)?;
    Some((std::str::from_utf8(bytes.get(..end)?).ok()?, bytes.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(client: u32, rest: &[u8]) -> Vec<u8> {
        [&client.to_le_bytes()[..], &[0; FIXED - 4], rest].concat()
    }

    fn pair(found: Option<Box<SessionIdentity>>) -> Option<(String, String)> {
        found.map(|found| (found.user.into_string(), found.database.into_string()))
    }

    #[test]
    fn an_answer_names_user_and_database() {
        let expected = |database: &str| Some(("alice".to_owned(), database.to_owned()));
        let all = VERSION_41 | WITH_DATABASE;
        let encoded = answer(all | ENCODED_LENGTH, b"alice\0\x03\0\0\0shop\0mysql_native_password\0");
        assert_eq!(pair(identity(&encoded)), expected("shop"));
        let long = [b"alice\0\xfc\x2c\x01", &[7; 300][..], b"shop\0"].concat();
        assert_eq!(pair(identity(&answer(all | ENCODED_LENGTH, &long))), expected("shop"));
        assert_eq!(pair(identity(&answer(all | ONE_BYTE_LENGTH, b"alice\0\x02\0\0shop\0"))), expected("shop"));
        assert_eq!(pair(identity(&answer(all, b"alice\0proof\0shop\0"))), expected("shop"));
        assert_eq!(pair(identity(&answer(VERSION_41 | ONE_BYTE_LENGTH, b"alice\0\x00"))), expected(""));
        // No user, another version, a proof that is longer than what was captured, a name without an end.
        for payload in [
            answer(all, b"\0proof\0shop\0"),
            answer(WITH_DATABASE, b"alice\0proof\0shop\0"),
            answer(all | ONE_BYTE_LENGTH, b"alice\0\x40\0\0shop\0"),
            answer(all, b"alice"),
            answer(all | ENCODED_LENGTH, b"alice\0\xfe\xff\xff\xff\xff\xff\xff\xff\xffshop\0"),
        ] {
            assert_eq!(identity(&payload), None, "{payload:?}");
        }
        assert_eq!(pair(changed(b"\x11alice\0\x02\0\0shop\0\x21\0")), expected("shop"));
        assert_eq!(pair(changed(b"\x11alice\0\x00\0")), expected(""));
        assert_eq!(changed(b"\x11alice\0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (identity(&bytes), changed(&bytes));
        }
    }
}
