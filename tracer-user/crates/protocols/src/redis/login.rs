//! Who logs in by `AUTH user password` or `HELLO version AUTH user password`. Passwords are passed over. `RESET` makes the connection
//! the default user's again.

use std::sync::Arc;

use super::read::{Read, word};
use crate::SessionIdentity;

/// The user of connections that have not logged in.
const DEFAULT: &str = "default";
/// Words of `HELLO` among which `AUTH` is looked for.
const WORDS: usize = 4;

/// The user, from the words of a command after its first one, of which there are `count`, at `at`; `None` if it names none, or not
/// within what was captured. Redis has no databases with names.
pub(super) fn identity(command: &str, count: u64, bytes: &[u8], at: usize) -> Option<Box<SessionIdentity>> {
    let mut at = at;
    let mut next = || match word(bytes, at) {
        Read::Got((found, after)) if after > at => {
            at = after;
            found
        }
        _ => None,
    };
    match command {
        "RESET" => return of(DEFAULT),
        "AUTH" if count == 2 => {}
        "HELLO" => {
            let is_auth = |word: &[u8]| word.eq_ignore_ascii_case(b"AUTH");
            (0..WORDS).map_while(|_| next()).find(|word| is_auth(word))?;
        }
        _ => return None,
    }
    of(std::str::from_utf8(next()?).ok()?)
}

/// The number of the database that `SELECT` names by its first word, at `at`.
pub(super) fn selected(bytes: &[u8], at: usize) -> Option<Arc<str>> {
    let Read::Got((Some(number), _)) = word(bytes, at) else { return None };
    let is_number = !number.is_empty() && number.len() <= 9 && number.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(number).ok().filter(|_| is_number).map(Arc::from)
}

fn of(user: &str) -> Option<Box<SessionIdentity>> {
    (!user.is_empty()).then(|| Box::new(SessionIdentity { user: user.into(), database: "".into() }))
}

#[cfg(test)]
mod tests {
    use super::super::Values;
    use crate::{Parser, Settings, Step};

    fn user(words: &[&str]) -> Option<String> {
        let words: Vec<String> = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let bytes = format!("*{}\r\n{}", words.len(), words.concat()).into_bytes();
        match Values::default().request(&bytes, false, &Settings::default()) {
            Step::Head { message, .. } => message.session.map(|session| session.user.into_string()),
            _ => None,
        }
    }

    #[test]
    fn a_user_is_named_by_who_logs_in() {
        let alice = Some("alice".to_owned());
        assert_eq!(user(&["AUTH", "alice", "secret"]), alice);
        assert_eq!(user(&["auth", "alice", "secret"]), alice);
        assert_eq!(user(&["HELLO", "3", "AUTH", "alice", "secret"]), alice);
        assert_eq!(user(&["HELLO", "3", "auth", "alice", "secret", "SETNAME", "x"]), alice);
        assert_eq!(user(&["HELLO", "3", "SETNAME", "x", "AUTH", "alice", "secret"]), alice);
        assert_eq!(user(&["RESET"]), Some("default".to_owned()));
        for none in [
            &["AUTH", "secret"][..],
            &["HELLO", "3"],
            &["HELLO"],
            &["HELLO", "3", "AUTH"],
            &["AUTH", "", "secret"],
            &["AUTH", "a-name-that-is-longer-than-any-that-is-read", "secret"],
            &["GET", "alice", "secret"],
        ] {
            assert_eq!(user(none), None, "{none:?}");
        }
    }
}
