//! Ranges of time in queries: `from` and `to` are nanoseconds since the epoch, as every instant in an answer is; `since` is a
//! duration before now. The end is outside.

use serde_json::{Value, json};

use super::Problem;
use super::params::Params;

/// A range of instants, nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Everything.
impl Default for Range {
    fn default() -> Self {
        Self { from: 0, to: u64::MAX }
    }
}

impl Range {
    /// The range that `PREFIXfrom` and `PREFIXto` give; each may be missing. `None`: both are. Their names of before,
    /// `PREFIXfrom_ns` and `PREFIXuntil_ns`, mean the same.
    pub(super) fn between(params: &Params, prefix: &str) -> Result<Option<Self>, Problem> {
        let read = |names: [String; 2]| {
            let mut found = None;
            for name in names {
                if let Some(at) = params.number(&name, 0..=u64::MAX, "nanoseconds since the epoch")? {
                    if found.is_some() {
                        return Err(Problem::bad(format!("{name}: expected once, by one of its names")));
                    }
                    found = Some((name, at));
                }
            }
            Ok(found)
        };
        let from = read([format!("{prefix}from"), format!("{prefix}from_ns")])?;
        let to = read([format!("{prefix}to"), format!("{prefix}until_ns")])?;
        if from.is_none() && to.is_none() {
            return Ok(None);
        }
        let all = Self::default();
        let range =
            Self { from: from.as_ref().map_or(all.from, |(_, at)| *at), to: to.as_ref().map_or(all.to, |(_, at)| *at) };
        if range.to <= range.from {
            let name = |end: Option<(String, u64)>, other: &str| {
                end.map_or_else(|| format!("{prefix}{other}"), |(name, _)| name)
            };
            let (to, from) = (name(to, "to"), name(from, "from"));
            return Err(Problem::bad(format!("{to}: expected an instant after {from}")));
        }
        Ok(Some(range))
    }

    /// The range that `from` and `to`, or `since`, give; `None`: none is given.
    pub(super) fn of(params: &Params) -> Result<Option<Self>, Problem> {
        let between = Self::between(params, "")?;
        let since = params.read("since", SINCE, |text| tracer_model::quantity::duration(text).ok())?;
        match (between, since) {
            (Some(_), Some(_)) => Err(Problem::bad("since: expected either it or from and to")),
            (None, Some(since)) => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                Ok(Some(Self { from: now.saturating_sub(since).as_nanos() as u64, to: u64::MAX }))
            }
            (between, None) => Ok(between),
        }
    }

    pub(super) fn contains(self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }

    /// Both ends, for functions that take a pair.
    pub(super) fn pair(self) -> (u64, u64) {
        (self.from, self.to)
    }

    /// As answers have it: `null` at an open end.
    pub(super) fn to_json(self) -> Value {
        let open = Self::default();
        json!({
            "from": (self.from != open.from).then_some(self.from),
            "to": (self.to != open.to).then_some(self.to),
        })
    }
}

/// What `since` is.
pub(super) const SINCE: &str = "a number and a unit, such as 30s, 5m or 1h";

#[cfg(test)]
mod tests {
    use super::*;

    fn range(query: &str) -> Result<Option<Range>, String> {
        let uri = format!("/?{query}").parse().unwrap();
        Range::of(&Params::of(&uri).unwrap()).map_err(|problem| problem.1)
    }

    #[test]
    fn ends_may_be_open_and_have_old_names() {
        assert_eq!(range("x=1"), Ok(None));
        assert_eq!(range("from=5"), Ok(Some(Range { from: 5, to: u64::MAX })));
        assert_eq!(range("to=5"), Ok(Some(Range { from: 0, to: 5 })));
        assert_eq!(range("from_ns=5&until_ns=7"), range("from=5&to=7"));
        for (query, why) in [
            ("from=7&to=7", "to: expected an instant after from"),
            ("from_ns=9&until_ns=5", "until_ns: expected an instant after from_ns"),
            ("from=1&from_ns=1", "from_ns: expected once, by one of its names"),
            ("from=1&since=5s", "since: expected either it or from and to"),
            ("from=-1", "from: '-1' given, expected nanoseconds since the epoch"),
        ] {
            assert_eq!(range(query), Err(why.into()), "{query}");
        }
        let recent = range("since=10s").unwrap().unwrap();
        assert!(recent.from > 1_600_000_000_000_000_000 && recent.contains(u64::MAX - 1));
        assert_eq!(recent.to_json()["to"], Value::Null);
    }
}
