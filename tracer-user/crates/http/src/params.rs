//! Query parameters: only those that an endpoint knows, each at most once; errors say what was expected.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Uri;
use axum::http::request::Parts;

use super::Problem;

/// The pairs of a query string in their order.
#[derive(Debug, Default)]
pub(super) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let _ = state;
        Self::of(&parts.uri)
    }
}

/// What the path names; an error where that is no text.
#[derive(Debug)]
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(|error| Problem::bad(format!("path: {}", error.body_text())))
    }
}

impl Params {
    /// The parameters of a URI.
    pub(super) fn of(uri: &Uri) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
        query.map(|Query(pairs)| Self(pairs)).map_err(|error| Problem::bad(format!("query: {}", error.body_text())))
    }

    /// All but those named so, which somebody else reads.
    pub(super) fn without(mut self, others: &[&str]) -> Self {
        self.0.retain(|(name, _)| !others.contains(&name.as_str()));
        self
    }

    /// With another name for a parameter: addresses of pages call a service `name`.
    pub(super) fn renamed(mut self, from: &str, to: &str) -> Self {
        self.0.iter_mut().filter(|(name, _)| name == from).for_each(|(name, _)| to.clone_into(name));
        self
    }

    /// Refuses parameters that are not in `known`, and those given twice.
    pub(super) fn only(self, known: &[&str]) -> Result<Self, Problem> {
        for (index, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let expected = if known.is_empty() { "none".into() } else { known.join(", ") };
                return Err(Problem::bad(format!("{name}: no such parameter; expected {expected}")));
            }
            if self.0.iter().take(index).any(|(other, _)| other == name) {
                return Err(Problem::bad(format!("{name}: expected once")));
            }
        }
        Ok(self)
    }

    /// Text of a parameter; an empty one counts as missing.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let (_, text) = self.0.iter().find(|(known, _)| known == name)?;
        (!text.is_empty()).then_some(text)
    }

    /// Like `text`, owned.
    pub(super) fn string(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// A parameter parsed by `read`; `expected` completes the error message.
    pub(super) fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let value = read(text).ok_or_else(|| Problem::bad(format!("{name}: '{text}' given, expected {expected}")))?;
        Ok(Some(value))
    }

    /// A number in a range.
    pub(super) fn number<T: FromStr + PartialOrd>(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<T>,
        expected: &str,
    ) -> Result<Option<T>, Problem> {
        self.read(name, expected, |text| text.parse().ok().filter(|number| range.contains(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params(pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |result: Result<Params, Problem>| result.unwrap_err().1;
        let known = ["service", "limit"];
        assert_eq!(
            error(params(&[("servce", "a")]).only(&known)),
            "servce: no such parameter; expected service, limit"
        );
        assert_eq!(error(params(&[("limit", "1"), ("limit", "2")]).only(&known)), "limit: expected once");
        assert_eq!(error(params(&[("x", "")]).only(&[])), "x: no such parameter; expected none");
        let given = params(&[("service", ""), ("limit", "7"), ("min_ms", "NaN")]);
        assert_eq!(given.text("service"), None);
        assert_eq!(given.number("limit", 1..=10, "1 to 10").unwrap(), Some(7));
        assert_eq!(given.number("limit", 1..=5, "1 to 5").unwrap_err().1, "limit: '7' given, expected 1 to 5");
        assert!(given.number("min_ms", 0.0..=f64::MAX, "a number").is_err());
        assert_eq!(given.number("absent", 1..=5, "").unwrap(), None);
    }
}
