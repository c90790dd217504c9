//! Figures as a table, as JSON, and in the README.

use std::fmt::Write as _;
use std::fs;

use serde_json::json;

struct Row {
    what: String,
    value: f64,
    unit: String,
    notes: Vec<String>,
}

/// What was measured, in order.
pub(super) struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new() -> Self {
        Self { rows: Vec::new() }
    }

    pub(super) fn add(&mut self, what: &str, value: f64, unit: &str) {
        self.rows.push(Row { what: what.into(), value, unit: unit.into(), notes: Vec::new() });
    }

    /// Adds a detail to the newest figure.
    pub(super) fn note(&mut self, note: String) {
        if let Some(row) = self.rows.last_mut() {
            row.notes.push(note);
        }
    }

    /// Adds the median of ratios, and how far they spread.
    pub(super) fn ratios(&mut self, what: &str, ratios: &[f64]) {
        let mut sorted = ratios.to_vec();
        let middle = median(&mut sorted);
        self.add(what, middle, "");
        if let (Some(least), Some(most)) = (sorted.first(), sorted.last()) {
            self.note(format!("median of {} pairs, {least:.3} to {most:.3}", sorted.len()));
        }
    }

    /// The table, in Markdown.
    pub(super) fn table(&self) -> String {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut text = format!(
            "Linux {}, {cores} cores of a virtual machine.\n\n| what | measured | |\n| --- | ---: | --- |\n",
            kernel.trim()
        );
        for row in &self.rows {
            let value = match row.value.abs() {
                v if v >= 100.0 || v == 0.0 => format!("{:.0}", row.value),
                v if v >= 10.0 => format!("{:.1}", row.value),
                _ => format!("{:.3}", row.value),
            };
            let _ = writeln!(text, "| {} | {value} {} | {} |", row.what, row.unit, row.notes.join("; "));
        }
        text
    }

    /// The same for machines.
    pub(super) fn json(&self) -> String {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| json!({"what": row.what, "value": row.value, "unit": row.unit, "notes": row.notes}))
            .collect();
        json!({ "figures": rows }).to_string()
    }
}

/// The middle one; sorts.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Metrics in the Prometheus text form: name, labels, value.
pub(super) struct Scrape(Vec<(String, String, f64)>);

impl Scrape {
    pub(super) fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_at(series.find('{').unwrap_or(series.len()));
            Some((name.to_owned(), labels.to_owned(), value.parse().ok()?))
        };
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    pub(super) fn sum(&self, name: &str) -> f64 {
        self.0.iter().filter(|(known, _, _)| known == name).map(|(_, _, value)| value).sum()
    }

    /// Value of every series by one label.
    pub(super) fn each(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let mark = format!("{label}=\"");
        let of = |labels: &str| Some(labels.split_once(&mark)?.1.split_once('"')?.0.to_owned());
        self.0.iter().filter(|(known, _, _)| known == name).filter_map(|(_, l, value)| Some((of(l)?, *value))).collect()
    }

    pub(super) fn one(&self, name: &str, label: &str, wanted: &str) -> f64 {
        self.each(name, label).into_iter().filter(|(value, _)| value == wanted).map(|(_, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapes_and_medians() {
        let scrape = Scrape::parse("# x\na{p=\"q\"} 2\na{p=\"r\"} 3\nb 1\n");
        assert!((scrape.sum("a") - 5.0).abs() < 1e-9 && (scrape.one("a", "p", "r") - 3.0).abs() < 1e-9);
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
