//! Who a connection is for: the parameters of its first message.

use std::sync::Arc;

use super::frames::name;
use crate::SessionIdentity;

/// Longest name of a user or database, bytes: the server's own limit.
const NAME_LIMIT: usize = 63;

/// User and database in the parameters of a connection's first message; `None` if it names no user, or not within what was
/// captured. Of the other parameters nothing is kept.
pub(super) fn identity(parameters: &[u8]) -> Option<Box<SessionIdentity>> {
    let (user, database, is_whole) = names(parameters);
    let user = user?;
    // Without a database it is that of the user's name; one that was cut off is not known.
    let database = database.or_else(|| is_whole.then(|| user.clone()))?;
    Some(Box::new(SessionIdentity { user, database }))
}

/// The database that the parameters name themselves: what follows from the user's name would show that.
pub(super) fn database(parameters: &[u8]) -> Option<Arc<str>> {
    names(parameters).1.map(Arc::from)
}

/// The user and the database that the parameters name, and whether they were captured whole.
fn names(parameters: &[u8]) -> (Option<Box<str>>, Option<Box<str>>, bool) {
    let text = |name: &[u8]| {
        let fits = !name.is_empty() && name.len() <= NAME_LIMIT;
        std::str::from_utf8(name).ok().filter(|_| fits).map(Box::<str>::from)
    };
    let (mut user, mut database, mut rest) = (None, None, parameters);
    while let Some((key, after)) = name(rest)
        && !key.is_empty()
        && let Some((value, after)) = name(after)
    {
        match key {
            b"user" => user = text(value),
            b"database" => database = text(value),
            _ => {}
        }
        rest = after;
    }
    (user, database, rest == [0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgresql::Session;
    use crate::{Parser, Settings, Step};
    use proptest::prelude::*;

    /// A connection's first message.
    fn begins(parameters: &[u8]) -> Vec<u8> {
        let length = (parameters.len() as u32 + 8).to_be_bytes();
        [&length[..], &196_608u32.to_be_bytes(), parameters].concat()
    }

    #[test]
    fn a_first_message_names_user_and_database() {
        let of = |parameters: &[u8]| {
            let bytes = begins(parameters);
            match Session::default().request(&bytes, false, &Settings::default()) {
                Step::Head { message, .. } => {
                    message.session.map(|one| (one.user.into_string(), one.database.into_string()))
                }
                _ => None,
            }
        };
        let pair = |user: &str, database: &str| Some((user.to_owned(), database.to_owned()));
        assert_eq!(of(b"user\0alice\0database\0shop\0application_name\0x\0\0"), pair("alice", "shop"));
        assert_eq!(of(b"user\0alice\0\0"), pair("alice", "alice"));
        // Cut off before the database, without a user, with a name that is none.
        assert_eq!(of(b"user\0alice\0options\0-c"), None);
        assert_eq!(of(b"database\0shop\0\0"), None);
        assert_eq!(of(&[b"user\0", &[b'x'; 64][..], b"\0\0"].concat()), None);
        assert_eq!(of(b"user\0\xff\xfe\0\0"), None);
        assert_eq!(of(b""), None);
        // The database of a user's name is not shown: it would show the user.
        assert_eq!(database(b"user\0alice\0database\0shop\0\0").as_deref(), Some("shop"));
        assert_eq!(database(b"user\0alice\0\0"), None);
    }

    proptest! {
        #[test]
        fn any_parameters_are_survived(parameters in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = identity(&parameters);
        }
    }
}
