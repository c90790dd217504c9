//! What of a line is not shown: values that their names call secret, credentials of well-known services, query strings, and user and
//! password in addresses. Ids stay: they are what a line is looked for by.

use std::borrow::Cow;

use tracer_model::text;
use tracer_transactions::classes::has_known_prefix;

use super::LINE_BYTES;

/// In the place of what is not shown.
const HIDDEN: &str = "…";
/// A name that ends with one of these, in any case and whatever joins its words, has a secret as value.
const SECRETS: [&str; 17] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "sessionid",
    "session",
    "signature",
];
/// Of these the value is all that follows: it has spaces.
const LONG: [&str; 2] = ["authorization", "cookie"];
/// What follows one of these words is a credential.
const SCHEMES: [&str; 3] = ["bearer", "basic", "digest"];

/// A line as it is shown: printable, without secrets, [`LINE_BYTES`] long at most; and whether it was cut.
pub fn redacted(line: &[u8]) -> (String, bool) {
    let line = String::from_utf8_lossy(line);
    let shown = text::printable(line.trim_end());
    let mut out = String::with_capacity(shown.len());
    let mut rest = &*shown;
    let mut after_scheme = false;
    while let Some(begin) = rest.find(|c: char| !is_gap(c)) {
        let (gap, more) = rest.split_at(begin);
        out.push_str(gap);
        let end = more.find(is_gap).unwrap_or(more.len());
        let (word, behind) = more.split_at(end);
        rest = behind;
        if after_scheme {
            out.push_str(HIDDEN);
            after_scheme = false;
            continue;
        }
        if let Some(query) = word.find('?').filter(|at| word[..*at].contains('/')) {
            out.push_str(&within_word(&word[..query]));
            let behind = &more[query + 1..];
            let end =
                behind.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>')).unwrap_or(behind.len());
            out.push('?');
            out.push_str(if end > 0 { HIDDEN } else { "" });
            rest = &behind[end..];
            continue;
        }
        // `name:value`.
        if let Some((name, _)) = word.split_once(':').filter(|(_, value)| !value.is_empty())
            && let Some(kind) = secret_kind(name)
        {
            out.push_str(name);
            out.push(':');
            out.push_str(HIDDEN);
            rest = if LONG.contains(&kind) { "" } else { rest };
            continue;
        }
        out.push_str(&within_word(word));
        after_scheme = SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
        // `name=value`, `name: value`, `"name": "value"`.
        let Some(kind) = secret_kind(word) else { continue };
        let Some(value) = value_behind(word, rest) else { continue };
        let (joint, behind) = rest.split_at(value);
        out.push_str(joint);
        let quote = joint.chars().next_back().filter(|c| matches!(c, '"' | '\''));
        let end = match quote {
            Some(quote) => behind.find(quote),
            None if LONG.contains(&kind) => None,
            None => {
                behind.find(|c: char| c.is_whitespace() || matches!(c, '&' | ',' | ';' | ')' | ']' | '}' | '"' | '\''))
            }
        };
        let end = end.unwrap_or(behind.len());
        if end > 0 {
            out.push_str(HIDDEN);
        }
        rest = &behind[end..];
    }
    out.push_str(rest);
    let fits = (0..=LINE_BYTES.min(out.len())).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
    let is_cut = fits < out.len();
    out.truncate(fits);
    (out, is_cut)
}

/// What stands between words.
fn is_gap(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '=' | '"' | '\'' | ',' | ';' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '&' | '|')
}

/// Which secret a word names: its end, whatever joins its parts and in any case.
fn secret_kind(word: &str) -> Option<&'static str> {
    let letters = word.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase());
    let name: String = letters.collect();
    SECRETS.into_iter().find(|secret| name.ends_with(secret))
}

/// Where in `rest` the value of the name before it begins; `None`: it has none.
fn value_behind(name: &str, rest: &str) -> Option<usize> {
    let is_joint = |c: char| c.is_whitespace() || matches!(c, '=' | ':' | '>' | '"' | '\'');
    let end = rest.find(|c: char| !is_joint(c)).unwrap_or(rest.len());
    (name.ends_with(':') || rest[..end].contains(['=', ':', '>'])).then_some(end)
}

/// A word without the user of an address, and without well-known credentials.
fn within_word(word: &str) -> Cow<'_, str> {
    if word.split(['/', ':', '@']).any(has_known_prefix) {
        return Cow::Borrowed(HIDDEN);
    }
    let mut out = Cow::Borrowed(word);
    if let Some((before, at)) = word.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.find('@')?)))
        && let Some(host) = word.get(before.len() + 3 + at..)
    {
        out = Cow::Owned(format!("{before}://{HIDDEN}{host}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn secrets_are_not_shown_and_ids_are() {
        for (line, expected) in [
            (
                "2026-11-30 12:00:01 ERROR id=7f3a9c0d user 17 failed",
                "2026-11-30 12:00:01 ERROR id=7f3a9c0d user 17 failed",
            ),
            ("login password=hunter2 ok", "login password=… ok"),
            ("DB_PASSWORD: hunter2", "DB_PASSWORD: …"),
            ("db.password:hunter2 ok", "db.password:… ok"),
            ("Cookie:sid=1; b=2", "Cookie:…"),
            ("the token expired at 12:00:01, session closed", "the token expired at 12:00:01, session closed"),
            ("{\"user\":\"a\",\"api_key\": \"k 1\",\"id\":4}", "{\"user\":\"a\",\"api_key\": \"…\",\"id\":4}"),
            ("Authorization: Bearer abc.def", "Authorization: …"),
            ("headers: {'Cookie': 'sid=1; b=2', 'Host': 'x'}", "headers: {'Cookie': '…', 'Host': 'x'}"),
            ("sent Bearer abc.def to x", "sent Bearer … to x"),
            ("Set-Cookie: sid=1; Path=/", "Set-Cookie: …"),
            ("\"GET /a/b?token=5&x=1 HTTP/1.1\" 200", "\"GET /a/b?… HTTP/1.1\" 200"),
            ("to postgres://me:secret@db:5432/x", "to postgres://…@db:5432/x"),
            ("key AKIAIOSFODNN7EXAMPLE used", "key … used"),
            ("url https://x/eyJhbGciOi is", "url … is"),
            ("GET /x?key=planted HTTP/1.1", "GET /x?… HTTP/1.1"),
            ("see /x? or https://a/b?c=d&e=(f)", "see /x? or https://a/b?…"),
            ("why? nobody knows", "why? nobody knows"),
            ("two tokens left", "two tokens left"),
            ("token=", "token="),
            ("access_token=abc&state=5", "access_token=…&state=5"),
            ("a\u{1b}[31mred", "a\\u{1b}[31mred"),
        ] {
            assert_eq!(redacted(line.as_bytes()).0, expected);
        }
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let (text, is_cut) = redacted("ü".repeat(1000).as_bytes());
        assert!(is_cut && text.len() == LINE_BYTES);
        let (text, is_cut) = redacted(b"short\r\n");
        assert_eq!((&*text, is_cut), ("short", false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_shown_safely(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (text, _) = redacted(&bytes);
            prop_assert!(text.len() <= LINE_BYTES && !text.chars().any(text::is_unsafe));
        }

        #[test]
        fn a_value_that_is_called_secret_never_shows(
            name in "(db_|x-)?(password|token|api-key|Session)", joint in "(=|:|: |=\"|\": \"|='| => )", before in "[a-z ]{0,20}",
        ) {
            let line = format!("{before} {name}{joint}hunter2hunter");
            prop_assert!(!redacted(line.as_bytes()).0.contains("hunter"), "{line}");
        }
    }
}
