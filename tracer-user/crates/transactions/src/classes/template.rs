//! Decides for single path segments: a word of the application, or a value that changes from request to request.

use std::borrow::Cow;

use smallvec::SmallVec;
use tracer_model::ProtocolId;
use tracer_protocols::messaging;

use super::tokens::{self, ByteKinds};
use super::tree::{Found, Growth, Tree};

/// Maximum number of path segments considered; the rest counts as one.
pub const DEPTH: usize = 12;
/// Extensions of files whose names may be values.
const EXTENSIONS: &[&str] = &[
    "7z", "action", "asp", "aspx", "atom", "avi", "avif", "bmp", "bz2", "cgi", "css", "csv", "do", "doc", "docx",
    "eot", "gif", "gz", "htm", "html", "ico", "ics", "jar", "jpeg", "jpg", "js", "json", "jsp", "m3u8", "map", "md",
    "mjs", "mov", "mp3", "mp4", "mpd", "ogg", "otf", "pdf", "php", "png", "ppt", "pptx", "rss", "svg", "tar", "tgz",
    "tiff", "ts", "ttf", "txt", "wasm", "webm", "webp", "woff", "woff2", "xls", "xlsx", "xml", "yaml", "yml", "zip",
];
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

/// The placeholder of a segment that is clearly a value; `None` for a word.
pub fn placeholder(segment: &str) -> Option<&'static str> {
    let bytes = segment.as_bytes();
    if bytes.is_empty() {
        return None;
    }
    let kinds = ByteKinds::of(segment);
    let (digits, letters) = (kinds.digits, kinds.letters());
    if kinds.may_have_at() && (segment.contains('@') || segment.contains("%40")) {
        return Some("{email}");
    }
    if is_uuid(bytes) {
        return Some("{uuid}");
    }
    if is_date(bytes) {
        return Some("{date}");
    }
    if digits > 0 && kinds.is_number() {
        return Some("{id}");
    }
    if kinds.is_hex() && bytes.len() >= 8 && digits > 0 {
        return Some("{hash}");
    }
    if bytes.len() > WORD || tokens::is_token(segment, kinds) {
        return Some("{token}");
    }
    // A version is a word: v1, v2.3, oauth2, 2fa. A value mixes: A1B2C3, item-48151, x9f3k2.
    if digits >= 3 && (letters == 0 || digits * 3 >= bytes.len() || bytes.len() >= 16) {
        return Some("{token}");
    }
    let joined = digits + letters == bytes.len();
    if joined && bytes.len() >= 16 && digits > 0 {
        return Some("{token}");
    }
    // Mixed case with more capitals than camelCase has.
    let (upper, lower) = (kinds.upper, kinds.lower);
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

/// Segments of a path, each a word of it or a placeholder.
pub type Segments<'a> = SmallVec<[Cow<'a, str>; 8]>;

/// Segments of a path with plain values replaced; the depth is bounded.
pub fn segments(path: &str) -> Segments<'_> {
    let mut out = Segments::new();
    // Most paths have neither.
    let (has_parameters, has_dots) = (path.contains(';'), path.contains('.'));
    let mut rest = path;
    while !rest.is_empty() {
        // Segments are too short for a search by words of the processor, as `split` has it.
        let (part, more) = rest.split_at(rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len()));
        rest = more.get(1..).unwrap_or_default();
        if part.is_empty() || part == "." {
            continue;
        }
        if out.len() == DEPTH {
            out.push("{…}".into());
            break;
        }
        // Matrix parameters are values.
        let word = if has_parameters { part.split(';').next().unwrap_or(part) } else { part };
        out.push(if has_dots { segment(word) } else { placeholder(word).unwrap_or(word).into() });
    }
    out
}

/// The template of a messaging destination, learned in `tree` like paths. No response proves that a destination exists,
/// and its creator named it, so its words are shown at once.
pub fn destination(tree: &mut Tree, protocol: ProtocolId, path: &str, growth: Growth) -> Found {
    let (path, job) = messaging::without_job(protocol, path);
    let mut words = Segments::new();
    for word in messaging::words(protocol, path) {
        if words.len() == DEPTH {
            words.push("{…}".into());
            break;
        }
        // The protocol defines wildcards, the broker's reserved names ($SYS) and inboxes.
        let plain = word.trim_start_matches(['$', '#', '*', '>', '+']);
        let value = if plain.is_empty() || word == messaging::INBOX { None } else { placeholder(plain) };
        words.push(value.unwrap_or(word).into());
    }
    let followed = tree.follow(&words, Growth { shown_at_once: true, ..growth });
    let route = messaging::template(protocol, path, &followed.keys);
    let route = job.map_or_else(|| route.clone(), |job| format!("{route} {job}"));
    Found { route, ..followed.into() }
}

fn segment(word: &str) -> Cow<'_, str> {
    // A file's name may be a value although its extension is a word: 4711.jpg, app.3f9a77c1.js.
    if let Some((name, extension)) = word.rsplit_once('.')
        && (1..=5).contains(&extension.len())
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && extension.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !name.is_empty()
        && !name.contains('@')
        && name.len() <= WORD
    {
        if tokens::has_known_prefix(word) {
            return "{token}".into();
        }
        let parts: SmallVec<[(&str, Option<&str>); 4]> =
            name.split('.').map(|part| (part, placeholder(part))).collect();
        if parts.iter().all(|(_, value)| value.is_none()) {
            return word.into();
        }
        // An unknown extension after a value may be part of the value.
        if !EXTENSIONS.contains(&extension) {
            return "{token}".into();
        }
        let shown = parts.iter().flat_map(|(part, value)| [value.unwrap_or(part), "."]);
        return shown.chain([extension]).collect::<String>().into();
    }
    placeholder(word).unwrap_or(word).into()
}

/// The class that a class merges into when there are too many: all others of its method, or with `last` all others.
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
