//! CGI variables (RFC 3875), which FastCGI, SCGI and uwsgi carry, and the answers of scripts.

use memchr::memchr;

use super::context::{Contexts, Which};
use super::http1::{VALUE_LIMIT, is_token, path, text};
use super::{Body, ExpectedReply, Reply, Request, Settings, Step};

/// Content of a request's variables.
#[derive(Debug, Default)]
pub(super) struct Variables<'a> {
    method: Option<&'a [u8]>,
    /// `SCRIPT_NAME`, or the name of a request without a script: `PATH_INFO`, `DOCUMENT_URI`, `REQUEST_URI`.
    names: [Option<&'a [u8]>; 4],
    host: Option<&'a [u8]>,
    request_id: Option<&'a [u8]>,
    contexts: Contexts,
    headers: Vec<(u16, Box<str>)>,
    /// Length of the request's body in bytes, if given.
    length: Option<u64>,
}

/// A value to keep, bounded.
fn kept(value: &[u8]) -> &[u8] {
    value.get(..value.len().min(VALUE_LIMIT)).unwrap_or_default()
}

/// Whether the variable `name` carries the header `header` (lower case).
fn is_header(name: &[u8], header: &str) -> bool {
    let Some(rest) = name.strip_prefix(b"HTTP_") else { return false };
    let same = |(have, want): (&u8, u8)| *have == if want == b'-' { b'_' } else { want.to_ascii_uppercase() };
    rest.len() == header.len() && rest.iter().zip(header.bytes()).all(same)
}

impl<'a> Variables<'a> {
    /// Takes one variable.
    pub(super) fn see(&mut self, name: &[u8], value: &'a [u8], settings: &Settings) {
        let place = match name {
            b"CONTENT_LENGTH" => {
                self.length = number(value);
                return self.header(name, value, settings);
            }
            b"REQUEST_METHOD" => &mut self.method,
            b"SCRIPT_NAME" => &mut self.names[0],
            b"PATH_INFO" => &mut self.names[1],
            b"DOCUMENT_URI" => &mut self.names[2],
            b"REQUEST_URI" => &mut self.names[3],
            b"HTTP_HOST" if settings.host => &mut self.host,
            b"HTTP_X_REQUEST_ID" if settings.request_id => &mut self.request_id,
            _ => {
                if let Some(which) = Which::of_variable(name, settings) {
                    self.contexts.see(which, value, settings);
                }
                return self.header(name, value, settings);
            }
        };
        *place = Some(value);
        self.header(name, value, settings);
    }

    fn header(&mut self, name: &[u8], value: &[u8], settings: &Settings) {
        for (index, wanted) in settings.headers.iter().enumerate() {
            if is_header(name, wanted) {
                self.headers.push((index as u16, Box::from(&*text(kept(value)))));
            }
        }
    }

    /// Length of the request's body in bytes, if given.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// The request of a script; `None` if the variables do not name it.
    pub(super) fn request(self, cut: bool, settings: &Settings) -> Option<Box<Request>> {
        let name = self.names.into_iter().flatten().find(|name| !name.is_empty())?;
        self.named(name, cut, settings)
    }

    /// The request of an application: the script is its mount point, and the path continues after it (PEP 3333); some
    /// servers give the whole path twice.
    pub(super) fn application(self, cut: bool, settings: &Settings) -> Option<Box<Request>> {
        let [Some(script), Some(rest), ..] = self.names else { return self.request(cut, settings) };
        if script.is_empty() || rest.is_empty() || rest.starts_with(script) {
            return self.named(if rest.is_empty() { script } else { rest }, cut, settings);
        }
        let whole = [kept(script), kept(rest)].concat();
        self.named(&whole, cut, settings)
    }

    fn named(self, name: &[u8], cut: bool, settings: &Settings) -> Option<Box<Request>> {
        if name.is_empty() {
            return None;
        }
        let method = self.method.filter(|method| method.len() <= 32 && !method.is_empty())?;
        let method = method.iter().all(|byte| is_token(*byte)).then_some(method)?;
        let (traceparent, carried) = self.contexts.finish();
        Some(Box::new(Request {
            method: settings.method(std::str::from_utf8(method).ok()?),
            path: path(name, false),
            target: 0,
            host: self.host.map(|host| text(kept(host))),
            version: "",
            traceparent,
            carried,
            request_id: self.request_id.map(|id| text(kept(id))),
            headers: self.headers,
            expected: ExpectedReply { bodiless: method == b"HEAD", ..ExpectedReply::default() },
            session: None,
            namespace: None,
            cut,
        }))
    }
}

/// A length as text; empty text is 0.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let plain = text.len() <= 18 && text.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// One connection of an application: it serves one request, and closes after the answer.
#[derive(Debug, Default)]
pub(super) struct Once {
    answered: bool,
}

impl Once {
    /// Whether the answer is over, so that later bytes do not belong to it.
    pub(super) fn is_over(&self) -> bool {
        self.answered
    }

    /// The answer: header lines, possibly after an HTTP status line; then the body, with the length they give or until
    /// the application closes. Web servers close once they have the announced length; bytes sent beyond it are skipped.
    pub(super) fn reply(&mut self, bytes: &[u8], cut: bool, expected: ExpectedReply) -> Step<Reply> {
        if self.answered && !bytes.is_empty() {
            return Step::Skip { used: bytes.len() };
        }
        let name = bytes.iter().take_while(|byte| is_token(**byte)).count();
        match bytes.get(name) {
            Some(b':') if name > 0 => {}
            Some(b'/') if bytes.get(..name) == Some(b"HTTP") => {}
            None if !cut && name < 256 => return Step::NeedMore,
            _ => return Step::Invalid,
        }
        let (used, status) = match answer(bytes) {
            Some(found) => found,
            None if cut => (bytes.len(), status_line(bytes).unwrap_or(0)),
            None => return Step::NeedMore,
        };
        self.answered = true;
        let bodiless = expected.bodiless || matches!(status, 100..=199 | 204 | 304);
        let length = if bodiless { Some(0) } else { content_length(bytes.get(..used).unwrap_or_default()) };
        let body = length.map_or(Body::UntilClose, Body::Length);
        Step::Head { used, message: Reply { status, failure: None, interim: false }, body }
    }
}

/// Body length in bytes, from the header lines.
fn content_length(mut head: &[u8]) -> Option<u64> {
    while let Some(end) = memchr(b'\n', head) {
        let (line, rest) = head.split_at(end);
        head = rest.get(1..).unwrap_or_default();
        let (name, value) = line.split_at(memchr(b':', line).unwrap_or(line.len()));
        if name.eq_ignore_ascii_case(b"content-length") {
            return number(value.get(1..).unwrap_or_default().trim_ascii());
        }
    }
    None
}

/// The status of an HTTP status line.
fn status_line(line: &[u8]) -> Option<u16> {
    let [b'1', b'.', b'0' | b'1', b' ', digits @ ..] = line.strip_prefix(b"HTTP/")? else { return None };
    code(digits)
}

fn code(text: &[u8]) -> Option<u16> {
    let digits = text.get(..3).unwrap_or_default();
    let status = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (100..1000).contains(&status).then_some(status)
}

/// Finds the end of the header lines at the front of a script's answer; returns their length and status. Without a
/// status it is 200, or 302 if there is a location (RFC 3875 §6.2).
pub(super) fn answer(bytes: &[u8]) -> Option<(usize, u16)> {
    let mut at = 0;
    let (mut status, mut moved) = (None, false);
    while let Some(rest) = bytes.get(at..)
        && let Some(end) = memchr(b'\n', rest)
    {
        let line = rest.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at += end + 1;
        if line.is_empty() {
            return Some((at, status.unwrap_or(if moved { 302 } else { 200 })));
        }
        if status.is_none() {
            status = status_line(line);
        }
        let Some((name, value)) = line.split_at_checked(memchr(b':', line).unwrap_or(line.len())) else { continue };
        if name.eq_ignore_ascii_case(b"status") {
            status = code(value.get(1..).unwrap_or_default().trim_ascii_start());
        }
        moved |= name.eq_ignore_ascii_case(b"location");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_request() {
        let settings = Settings { headers: vec!["x-tenant".into()], host: true, ..Settings::default() };
        let request = |pairs: &[(&str, &str)]| {
            let mut variables = Variables::default();
            for (name, value) in pairs {
                variables.see(name.as_bytes(), value.as_bytes(), &settings);
            }
            variables.request(false, &settings)
        };
        let named = |pairs: &[(&str, &str)]| request(pairs).map(|request| request.path.to_string());
        let get = ("REQUEST_METHOD", "GET");
        assert_eq!(named(&[get, ("REQUEST_URI", "/u?a=b"), ("SCRIPT_NAME", "/a.php")]).as_deref(), Some("/a.php"));
        assert_eq!(named(&[get, ("SCRIPT_NAME", ""), ("PATH_INFO", "/p")]).as_deref(), Some("/p"));
        assert_eq!(named(&[get, ("REQUEST_URI", "/u?secret=1")]).as_deref(), Some("/u"));
        assert_eq!(named(&[get]), None);
        assert_eq!(named(&[("SCRIPT_NAME", "/a.php")]), None);
        assert_eq!(named(&[("REQUEST_METHOD", "G T"), ("SCRIPT_NAME", "/a.php")]), None);
        let full = request(&[
            get,
            ("SCRIPT_NAME", "/a"),
            ("HTTP_HOST", "h"),
            ("HTTP_X_TENANT", "t"),
            ("HTTP_TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ])
        .unwrap();
        assert_eq!(full.host.as_deref(), Some("h"));
        assert_eq!(full.headers, [(0, "t".into())]);
        assert!(full.traceparent.is_some());
    }

    #[test]
    fn what_names_a_request_of_an_application() {
        for (script, rest, expected) in [
            ("/app", "/a", Some("/app/a")),
            ("/app", "/app/a", Some("/app/a")),
            ("", "/a", Some("/a")),
            ("/app", "", Some("/app")),
            ("", "", None),
        ] {
            let mut variables = Variables::default();
            for (name, value) in [("REQUEST_METHOD", "GET"), ("SCRIPT_NAME", script), ("PATH_INFO", rest)] {
                variables.see(name.as_bytes(), value.as_bytes(), &Settings::default());
            }
            let found = variables.application(false, &Settings::default()).map(|request| request.path.to_string());
            assert_eq!(found.as_deref(), expected, "{script} {rest}");
        }
    }

    #[test]
    fn what_applications_answer() {
        let get = ExpectedReply::default();
        let status =
            |bytes: &str, cut, expected: ExpectedReply| match Once::default().reply(bytes.as_bytes(), cut, expected) {
                Step::Head { used, message, body } => Some((used, message.status, body)),
                _ => None,
            };
        let close = Body::UntilClose;
        for (bytes, expected) in [
            ("HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nbody", (32, 404, close)),
            ("Status: 201 Made\r\n\r\n", (20, 201, close)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n", (39, 200, Body::Length(14))),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", (38, 200, close)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 14\r\n\r\n", (49, 304, Body::Length(0))),
        ] {
            assert_eq!(status(bytes, false, get), Some(expected), "{bytes}");
        }
        let head = ExpectedReply { bodiless: true, ..get };
        let long = "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n";
        assert_eq!(status(long, false, head), Some((39, 200, Body::Length(0))));
        assert_eq!(status("HTTP/1.1 500 Oh\r\nA: ", false, get), None);
        assert_eq!(status("HTTP/1.1 500 Oh\r\nA: ", true, get), Some((20, 500, close)));
        for (bytes, cut) in [("HTTP", true), ("no header", false), ("", true), (": x", false), ("HTTQ/1.1 200", false)]
        {
            assert!(matches!(Once::default().reply(bytes.as_bytes(), cut, get), Step::Invalid), "{bytes}");
        }
        let mut once = Once::default();
        assert!(matches!(once.reply(b"HTT", false, get), Step::NeedMore));
        assert!(matches!(once.reply(long.as_bytes(), false, get), Step::Head { .. }) && once.is_over());
        assert!(matches!(once.reply(b"more", false, get), Step::Skip { used: 4 }));
    }

    #[test]
    fn what_scripts_answer() {
        for (bytes, expected) in [
            ("Status: 404 Not Found\r\nContent-type: text/html\r\n\r\nbody", Some((50, 404))),
            ("Content-type: text/html\r\n\r\n", Some((27, 200))),
            ("Location: /x\n\n", Some((14, 302))),
            ("location: /x\r\nstatus:301\r\n\r\n", Some((28, 301))),
            ("Status: 9\r\n\r\n", Some((13, 200))),
            ("HTTP/1.1 503 So: sorry\r\nLocation: /x\r\n\r\n", Some((40, 503))),
            ("Status: 404 Not Found\r\n", None),
            ("", None),
        ] {
            assert_eq!(answer(bytes.as_bytes()), expected, "{bytes}");
        }
    }
}
