//! Pages of lists: `limit` rows, and a `cursor` that says where the next page begins.
//!
//! Lists that are ranked by figures (services, classes, edges) change while they are read: between pages a row may come twice or
//! not at all. Lists in an order that stays (transactions, slow requests, findings) have cursors of their own.

use super::Problem;
use super::params::Params;

/// Most rows of one page of a ranked list.
const ROWS: usize = 10_000;
/// What a limit has to be.
const LIMIT: &str = "a number, at least 1 and at most 10000";

/// The page that a query asks for; without `limit` it is everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    first: usize,
    limit: usize,
}

impl Page {
    /// Reads `cursor` and `limit`.
    pub(super) fn of(params: &Params) -> Result<Self, Problem> {
        let first = params.number("cursor", 0..=usize::MAX >> 1, "the next_cursor of the page before")?;
        let limit = params.number("limit", 1..=ROWS, LIMIT)?;
        Ok(Self { first: first.unwrap_or(0), limit: limit.unwrap_or(usize::MAX >> 1) })
    }

    /// The rows of the page, and the cursor of the next one.
    pub(super) fn cut<T>(self, mut rows: Vec<T>) -> (Vec<T>, Option<String>) {
        let end = self.first + self.limit;
        let next = (end < rows.len()).then(|| end.to_string());
        rows.truncate(end);
        rows.drain(..self.first.min(rows.len()));
        (rows, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other() {
        let page = |query: &str| Page::of(&Params::of(&format!("/?{query}").parse().unwrap()).unwrap());
        let cut = |query: &str| page(query).unwrap().cut((0..5).collect::<Vec<_>>());
        assert_eq!(cut(""), (vec![0, 1, 2, 3, 4], None));
        assert_eq!(cut("limit=2"), (vec![0, 1], Some("2".into())));
        assert_eq!(cut("limit=2&cursor=2"), (vec![2, 3], Some("4".into())));
        assert_eq!(cut("limit=2&cursor=4"), (vec![4], None));
        assert_eq!(cut("limit=2&cursor=9"), (vec![], None));
        for bad in ["limit=0", "limit=10001", "cursor=-1", "cursor=18446744073709551615", "cursor=x"] {
            assert!(page(bad).is_err(), "{bad}");
        }
    }
}
