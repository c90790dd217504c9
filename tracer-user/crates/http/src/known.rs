//! Looks up names that users give; an error for an unknown name suggests similar ones.

use std::sync::Arc;

use tracer_model::Names;

use super::{PipelineView, Problem};

/// Maximum number of suggestions in an error.
const SUGGESTIONS: usize = 3;
/// Characters of a name that are compared.
const COMPARED: usize = 80;

/// An unknown name, and the known ones.
#[derive(Debug)]
pub(super) struct Unknown {
    what: &'static str,
    name: String,
    others: Vec<Arc<str>>,
}

/// Checks that the service exists, and the class in it (or in any service if none is given).
pub(super) fn find(view: &PipelineView<'_>, service: Option<&str>, class: Option<&str>) -> Result<(), Unknown> {
    let Names { services, classes } = view.names;
    if let Some(name) = service
        && !services.iter().any(|known| **known == *name)
    {
        return Err(Unknown { what: "service", name: name.to_owned(), others: services.clone() });
    }
    let Some(name) = class else { return Ok(()) };
    let own = || classes.iter().filter(|info| service.is_none_or(|service| *info.service_name == *service));
    if own().any(|info| *info.name == *name) {
        return Ok(());
    }
    Err(Unknown { what: "class", name: name.to_owned(), others: own().map(|info| Arc::clone(&info.name)).collect() })
}

impl From<Unknown> for Problem {
    /// Compares names, which is too slow for the pipeline's thread.
    fn from(unknown: Unknown) -> Self {
        let Unknown { what, name, others } = unknown;
        let near = nearest(&name, &others);
        let lists = if what == "service" { "/api/v1/services" } else { "/api/v1/classes" };
        let hint = if near.is_empty() {
            format!("{lists} lists them")
        } else {
            format!("did you mean {}? {lists} lists all", near.join(" or "))
        };
        Self::missing(format!("no such {what}: '{name}'; {hint}"))
    }
}

/// The names in `others` that are similar to `name`, most similar first.
fn nearest(name: &str, others: &[Arc<str>]) -> Vec<String> {
    let fold = |text: &str| text.chars().take(COMPARED).flat_map(char::to_lowercase).collect::<Vec<char>>();
    let wanted = fold(name);
    let mut near: Vec<(usize, &str)> = others
        .iter()
        .filter_map(|other| {
            let candidate = fold(other);
            let contains =
                |whole: &[char], part: &[char]| !part.is_empty() && whole.windows(part.len()).any(|at| at == part);
            let distance = if contains(&candidate, &wanted) || contains(&wanted, &candidate) {
                1
            } else {
                edits(&wanted, &candidate)
            };
            (distance <= wanted.len().div_ceil(3)).then_some((distance, &**other))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(SUGGESTIONS).map(|(_, name)| format!("'{name}'")).collect()
}

/// Levenshtein distance: characters to add, remove or change to turn `b` into `a`.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (above, y) in row.iter_mut().skip(1).zip(b) {
            let cost = (corner + usize::from(x != y)).min(left + 1).min(*above + 1);
            corner = std::mem::replace(above, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognized() {
        let names: Vec<Arc<str>> = ["shop", "stock", "GET /users/{id}", "GET /users"].map(Arc::from).into();
        for (given, want) in [
            ("shpo", vec!["'shop'"]),
            ("Shop", vec!["'shop'"]),
            ("/users/{id}", vec!["'GET /users/{id}'"]),
            ("users", vec!["'GET /users'", "'GET /users/{id}'"]),
            ("zebra", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(nearest(given, &names), want, "{given}");
        }
        let count = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!((count("kitten", "sitting"), count("", "abc"), count("abc", ""), count("a", "a")), (3, 3, 3, 0));
    }
}
