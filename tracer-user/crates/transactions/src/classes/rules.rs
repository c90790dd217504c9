//! User rules that name a class.

use std::sync::Arc;

use super::Facts;

/// A name pattern: `*` matches any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Takes a pattern.
    pub fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// Whether `text` matches.
    pub fn fits(&self, text: &str) -> bool {
        glob(self.0.as_bytes(), text.as_bytes(), b'*')
    }
}

/// Matches with one wildcard, in time proportional to the product of the lengths and without recursion.
fn glob(pattern: &[u8], text: &[u8], star: u8) -> bool {
    let (mut p, mut t, mut mark, mut from) = (0, 0, None, 0);
    while t < text.len() {
        if pattern.get(p) == Some(&star) {
            mark = Some(p);
            from = t;
            p += 1;
        } else if pattern.get(p) == text.get(t) {
            p += 1;
            t += 1;
        } else if let Some(back) = mark {
            from += 1;
            t = from;
            p = back + 1;
        } else {
            return false;
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|byte| *byte == star)
}

/// A path pattern: segments; `{name}` or `*` matches one, a final `**` any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Segment>,
    rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Any,
    Fits(Glob),
}

impl PathPattern {
    /// Compiles a pattern; the error says what was expected.
    pub fn new(pattern: &str) -> Result<Self, String> {
        if !pattern.starts_with('/') {
            return Err("a path pattern that begins with '/'".into());
        }
        let mut segments = Vec::new();
        let mut rest = false;
        for part in pattern.split('/').filter(|part| !part.is_empty()) {
            if rest {
                return Err("'**' only as the last segment".into());
            }
            if part == "**" {
                rest = true;
            } else if part == "*" || (part.starts_with('{') && part.ends_with('}')) {
                segments.push(Segment::Any);
            } else if part.contains(['{', '}']) {
                return Err("'{name}' as a whole segment".into());
            } else {
                segments.push(Segment::Fits(Glob::new(part)));
            }
        }
        Ok(Self { segments, rest })
    }

    /// Whether `path` matches.
    pub fn fits(&self, path: &str) -> bool {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        for segment in &self.segments {
            match (segment, parts.next()) {
                (_, None) => return false,
                (Segment::Any, Some(_)) => {}
                (Segment::Fits(glob), Some(part)) => {
                    if !glob.fits(part) {
                        return false;
                    }
                }
            }
        }
        self.rest || parts.next().is_none()
    }
}

/// A header that must have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Name, lower case.
    pub name: Box<str>,
    /// Pattern that its value must match.
    pub value: Glob,
}

impl HeaderMatch {
    /// Whether one of a request's headers matches; `names` are those that the indices refer to.
    pub fn fits(&self, headers: &[(u16, Box<str>)], names: &[Box<str>]) -> bool {
        let index = names.iter().position(|name| *name == self.name);
        headers.iter().any(|(i, value)| Some(*i as usize) == index && self.value.fits(value))
    }
}

/// One rule: every given condition must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name of the class.
    pub name: Arc<str>,
    /// Service class of its requests and of everything they cause.
    pub service_class: Option<Arc<str>>,
    /// Service.
    pub service: Option<Glob>,
    /// Methods, any of them.
    pub methods: Vec<Box<str>>,
    /// Path.
    pub path: Option<PathPattern>,
    /// Host.
    pub host: Option<Glob>,
    /// Header.
    pub header: Option<HeaderMatch>,
    /// Server's port.
    pub port: Option<u16>,
    /// Ranges of status codes, ends included.
    pub status: Vec<(u16, u16)>,
}

impl Rule {
    /// Whether a request matches. `headers` are the names that the indices in `facts` refer to.
    pub fn fits(&self, facts: &Facts<'_>, service: &str, headers: &[Box<str>]) -> bool {
        let status_fits =
            || facts.status.is_some_and(|status| self.status.iter().any(|(from, to)| (*from..=*to).contains(&status)));
        self.service.as_ref().is_none_or(|glob| glob.fits(service))
            && (self.methods.is_empty() || self.methods.iter().any(|method| **method == *facts.method))
            && self.path.as_ref().is_none_or(|path| path.fits(facts.path))
            && self.host.as_ref().is_none_or(|glob| facts.host.is_some_and(|host| glob.fits(host)))
            && self.header.as_ref().is_none_or(|header| header.fits(facts.headers, headers))
            && self.port.is_none_or(|port| port == facts.port)
            && (self.status.is_empty() || status_fits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("*.example.com", "a.example.com", true),
            ("a*b*c", "aXbYbZc", true),
            ("", "x", false),
        ] {
            assert_eq!(Glob::new(pattern).fits(text), expected, "{pattern} {text}");
        }
        for (pattern, path, expected) in [
            ("/checkout/**", "/checkout/a/b", true),
            ("/checkout/**", "/checkout", true),
            ("/users/{id}/orders", "/users/5/orders", true),
            ("/users/{id}/orders", "/users/5", false),
            ("/users/*", "/users/5/6", false),
            ("/img/*.png", "/img/a.png", true),
            ("/", "/", true),
            ("/", "/a", false),
        ] {
            assert_eq!(PathPattern::new(pattern).unwrap().fits(path), expected, "{pattern} {path}");
        }
        for bad in ["users", "/a/**/b", "/a{b}c"] {
            assert!(PathPattern::new(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn patterns_are_total(pattern in "[ab*/{}]{0,20}", text in "[ab/]{0,40}") {
            let _ = Glob::new(&pattern).fits(&text);
            if let Ok(path) = PathPattern::new(&pattern) {
                let _ = path.fits(&text);
            }
        }
    }
}
