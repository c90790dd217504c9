//! What single segments of a path are: a word of the application, or a value that changes from request to request.

use super::tree::{Found, Tree};
use crate::protocols::messaging;

/// Most segments of a path that are looked at; the rest is one.
pub const DEPTH: usize = 12;
/// A literal segment is at most this long.
const WORD: usize = 40;

/// OpenTelemetry's rule: other methods are `_OTHER`.
pub fn known_method(method: &str) -> bool {
    matches!(
        method,
        "GET"
            | "HEAD"
            | "POST"
            | "PUT"
            | "DELETE"
            | "CONNECT"
            | "OPTIONS"
            | "TRACE"
            | "PATCH"
            | "QUERY"
            | "PROPFIND"
            | "PROPPATCH"
            | "MKCOL"
            | "COPY"
            | "MOVE"
            | "LOCK"
            | "UNLOCK"
            | "REPORT"
            | "SEARCH"
            | "PURGE"
    )
}

/// The placeholder for a segment that is plainly a value; `None` for a word.
pub fn placeholder(segment: &str) -> Option<&'static str> {
    let bytes = segment.as_bytes();
    let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = bytes.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let hex = bytes.iter().all(u8::is_ascii_hexdigit);
    if bytes.is_empty() {
        return None;
    }
    if segment.contains('@') || segment.contains("%40") {
        return Some("{email}");
    }
    if is_uuid(bytes) {
        return Some("{uuid}");
    }
    if is_date(bytes) {
        return Some("{date}");
    }
    if digits > 0
        && bytes.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b',' | b':' | b'+' | b'_'))
    {
        return Some("{id}");
    }
    if hex && bytes.len() >= 8 && digits > 0 {
        return Some("{hash}");
    }
    if bytes.len() > WORD || !segment.is_ascii() || segment.contains('%') {
        return Some("{token}");
    }
    // A version is a word: v1, v2.3, oauth2, 2fa. A value mixes: A1B2C3, item-48151, x9f3k2.
    if digits >= 3 && (letters == 0 || digits * 3 >= bytes.len() || bytes.len() >= 16) {
        return Some("{token}");
    }
    let upper = bytes.iter().filter(|byte| byte.is_ascii_uppercase()).count();
    let lower = bytes.iter().filter(|byte| byte.is_ascii_lowercase()).count();
    let joined = bytes.iter().all(u8::is_ascii_alphanumeric);
    if joined && bytes.len() >= 16 && digits > 0 {
        return Some("{token}");
    }
    // Letters of both cases without the humps of camelCase.
    (joined && bytes.len() >= 20 && upper * 4 >= lower && lower > 0 && upper > 0).then_some("{token}")
}

fn is_uuid(bytes: &[u8]) -> bool {
    bytes.len() == 36
        && bytes
            .iter()
            .enumerate()
            .all(|(i, byte)| if matches!(i, 8 | 13 | 18 | 23) { *byte == b'-' } else { byte.is_ascii_hexdigit() })
}

fn is_date(bytes: &[u8]) -> bool {
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(i, byte)| {
            if matches!(i, 4 | 7) { matches!(byte, b'-' | b'.' | b'_') } else { byte.is_ascii_digit() }
        })
}

/// Segments of a path with plain values replaced; the depth is bounded.
pub fn segments(path: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if out.len() == DEPTH {
            out.push("{…}".into());
            break;
        }
        // Matrix parameters are values.
        let word = part.split(';').next().unwrap_or(part);
        out.push(segment(word));
    }
    out
}

/// The template of a messaging destination, learned in `tree` as paths are.
pub fn destination(tree: &mut Tree, protocol: &str, path: &str, learn_after: usize, most: usize) -> Found {
    let mut words: Vec<String> = Vec::new();
    for word in messaging::words(protocol, path) {
        if words.len() == DEPTH {
            words.push("{…}".into());
            break;
        }
        words.push(placeholder(word).unwrap_or(word).to_owned());
    }
    let (keys, collapsed) = tree.follow(&words, learn_after, most);
    Found { route: messaging::template(protocol, path, &keys), collapsed }
}

fn segment(word: &str) -> String {
    // A file's name may be a value where its extension is a word: 4711.jpg, app.3f9a77c1.js.
    if let Some((name, extension)) = word.rsplit_once('.')
        && (1..=5).contains(&extension.len())
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && extension.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !name.is_empty()
        && !name.contains('@')
        && name.len() <= WORD
    {
        let changed: Vec<&str> = name.split('.').map(|part| placeholder(part).unwrap_or(part)).collect();
        return format!("{}.{extension}", changed.join("."));
    }
    placeholder(word).map_or_else(|| word.to_owned(), str::to_owned)
}

/// The class a class is merged into when there are too many: all others of its method, at `last` all others.
pub fn parent(name: &str, last: bool) -> Option<String> {
    match name.split_once(' ') {
        None if name == "{other}" => None,
        Some((method, route)) if !last && route != "{other}" => Some(format!("{method} {{other}}")),
        _ => Some("{other}".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_words() {
        for (segment, expected) in [
            ("users", None),
            ("v1", None),
            ("v2.1", None),
            ("oauth2", None),
            ("a", None),
            ("getUserByName", None),
            ("order-history", None),
            ("deadbeef", None),
            ("17", Some("{id}")),
            ("1,2,3", Some("{id}")),
            ("-5", Some("{id}")),
            ("2024-01-31", Some("{date}")),
            ("550e8400-e29b-41d4-a716-446655440000", Some("{uuid}")),
            ("d41d8cd98f00b204e9800998ecf8427e", Some("{hash}")),
            ("deadbee5", Some("{hash}")),
            ("jane@example.com", Some("{email}")),
            ("jane%40example.com", Some("{email}")),
            ("A1B2C3", Some("{token}")),
            ("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9xx", Some("{token}")),
            ("caf%C3%A9", Some("{token}")),
        ] {
            assert_eq!(placeholder(segment), expected, "{segment}");
        }
    }

    #[test]
    fn paths_become_segments() {
        for (path, expected) in [
            ("/", ""),
            ("//a///b/", "a|b"),
            ("/img/4711.jpg", "img|{id}.jpg"),
            ("/static/app.3f9a77c1.js", "static|app.{hash}.js"),
            ("/a;jsessionid=12/b", "a|b"),
            ("/index.html", "index.html"),
        ] {
            assert_eq!(segments(path).join("|"), expected, "{path}");
        }
        assert_eq!(segments(&"/x".repeat(100)).len(), DEPTH + 1);
    }
}
