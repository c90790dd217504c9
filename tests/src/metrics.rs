//! Metrics in the Prometheus text form.

use std::collections::BTreeMap;

use crate::OPERATION_LOST;

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Metric name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

/// A scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics(pub Vec<Series>);

impl Metrics {
    /// Parses a scrape; panics if it violates the format.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Self(lines.map(|line| series(line).unwrap_or_else(|| panic!("not a metric: {line}"))).collect())
    }

    /// Series of this name whose labels have these values.
    pub fn of<'a>(&'a self, name: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Series> {
        self.0.iter().filter(move |series| {
            series.name == name
                && labels.iter().all(|(key, value)| series.labels.get(*key).is_some_and(|have| have == value))
        })
    }

    /// Their sum; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.of(name, labels).map(|series| series.value).sum()
    }

    /// Lost events and attribution gaps, by reason, those above zero. Excludes losses that only affect stacks or thread
    /// counters, and byte counters.
    pub fn lost(&self) -> Vec<(String, f64)> {
        let families = ["tracer_events_lost_total", "tracer_attribution_gaps_total"];
        families
            .into_iter()
            .flat_map(|family| self.of(family, &[]))
            .filter(|series| series.value > 0.0)
            .filter_map(|series| Some((series.labels.get("reason")?.clone(), series.value)))
            .filter(|(reason, _)| {
                let others = ["sample", "stack", "thread", "bytes"];
                OPERATION_LOST.contains(&reason.as_str()) || !others.iter().any(|word| reason.contains(word))
            })
            .collect()
    }
}

fn series(line: &str) -> Option<Series> {
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = head.split_once('{') else {
        return Some(Series { name: head.into(), labels: BTreeMap::new(), value });
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}')?;
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        let mut text = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => text.push(other),
            }
        };
        labels.insert(key.to_owned(), text);
        rest = after.get(end + 1..)?.trim_start_matches(',');
    }
    Some(Series { name: name.into(), labels, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_values() {
        let text = "# HELP a b\na 1\nb{x=\"1\",y=\"a\\\"},b\"} 2.5e-3\nb{x=\"2\",y=\"\"} 4\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.0.len(), 3);
        assert!((metrics.sum("b", &[]) - 4.0025).abs() < 1e-9);
        assert!((metrics.sum("b", &[("y", "a\"},b")]) - 0.0025).abs() < 1e-9);
        assert!(metrics.sum("c", &[]).abs() < 1e-9);
    }
}
