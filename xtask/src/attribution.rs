//! Stores the results of the attribution tests: `docs/attribution-results.csv` has every row,
//! `docs/attribution-results.md` a summary computed from the CSV.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{doc_tables, shell};

/// The CSV file.
pub(crate) const CSV: &str = "docs/attribution-results.csv";
/// Its first line.
const COLUMNS: &str = "application,how_it_calls,concurrency,calls,right_percent,ambiguous_percent,orphan_percent,\
                       certain_wrong,confirmed_wrong";
/// The summary's head.
const HEAD: &str = "| application | rows | calls | right, % | ambiguous, % | orphan, % | certain and wrong | confirmed and wrong |\n\
                    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";

/// Results of one application in one mode at one concurrency.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttributionRow {
    pub(crate) application: String,
    pub(crate) mode: String,
    pub(crate) concurrency: u64,
    pub(crate) calls: u64,
    /// Percentages: right, ambiguous, orphan.
    pub(crate) shares: [f64; 3],
    pub(crate) certain_wrong: u64,
    pub(crate) confirmed_wrong: u64,
}

impl AttributionRow {
    fn csv(&self) -> String {
        let [right, ambiguous, orphan] = self.shares;
        format!(
            "{},{},{},{},{right:.2},{ambiguous:.2},{orphan:.2},{},{}",
            quote(&self.application),
            quote(&self.mode),
            self.concurrency,
            self.calls,
            self.certain_wrong,
            self.confirmed_wrong
        )
    }

    fn parse(line: &str) -> Result<Self> {
        let fields = fields(line);
        let [application, mode, concurrency, calls, right, ambiguous, orphan, certain, confirmed] = fields.as_slice()
        else {
            bail!("not a row of {CSV}: {line}");
        };
        let number = |text: &String| text.parse::<u64>().with_context(|| format!("not a number in {CSV}: {line}"));
        let share = |text: &String| text.parse::<f64>().with_context(|| format!("not a number in {CSV}: {line}"));
        Ok(Self {
            application: application.clone(),
            mode: mode.clone(),
            concurrency: number(concurrency)?,
            calls: number(calls)?,
            shares: [share(right)?, share(ambiguous)?, share(orphan)?],
            certain_wrong: number(certain)?,
            confirmed_wrong: number(confirmed)?,
        })
    }

    /// The summary's grouping key: the first word of the application's name.
    fn group(&self) -> &str {
        self.application.split([' ', ',', ':']).next().unwrap_or_default()
    }
}

fn quote(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// The fields of one line of CSV; quoted fields may hold commas and doubled quotes.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                fields.last_mut().expect("there is always one").push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().expect("there is always one").push(c),
        }
    }
    fields
}

/// Writes the CSV and the summary.
pub(crate) fn write(origin: &str, rows: &[AttributionRow]) -> Result<()> {
    let mut text = format!("{COLUMNS}\n");
    for row in rows {
        let _ = writeln!(text, "{}", row.csv());
    }
    let path = shell::root().join(CSV);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    doc_tables::put("attribution", &format!("{origin}\n\n{}", summary(rows)))
}

/// The rows of the committed CSV below `root`.
pub(crate) fn read(root: &Path) -> Result<Vec<AttributionRow>> {
    let path = root.join(CSV);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = text.lines();
    if lines.next() != Some(COLUMNS) {
        bail!("{CSV} does not begin with {COLUMNS}");
    }
    lines.map(AttributionRow::parse).collect()
}

/// One line per group of applications and one for all: percentages of all their calls.
pub(crate) fn summary(rows: &[AttributionRow]) -> String {
    let mut groups: Vec<&str> = Vec::new();
    for row in rows {
        if !groups.contains(&row.group()) {
            groups.push(row.group());
        }
    }
    groups.sort_by_key(|group| group.to_lowercase());
    let mut text = HEAD.to_owned();
    for group in groups {
        let of: Vec<&AttributionRow> = rows.iter().filter(|row| row.group() == group).collect();
        text.push_str(&line(group, &of));
    }
    text.push_str(&line("**all**", &rows.iter().collect::<Vec<_>>()));
    text
}

fn line(name: &str, rows: &[&AttributionRow]) -> String {
    let calls: u64 = rows.iter().map(|row| row.calls).sum();
    let share = |which: usize| {
        let sum: f64 = rows.iter().map(|row| row.shares[which] * row.calls as f64).sum();
        sum / calls.max(1) as f64
    };
    let wrong = |of: fn(&AttributionRow) -> u64| rows.iter().map(|row| of(row)).sum::<u64>();
    format!(
        "| {name} | {} | {calls} | {:.1} | {:.1} | {:.1} | {} | {} |\n",
        rows.len(),
        share(0),
        share(1),
        share(2),
        wrong(|row| row.certain_wrong),
        wrong(|row| row.confirmed_wrong)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(application: &str, calls: u64, right: f64) -> AttributionRow {
        let shares = [right, 100.0 - right, 0.0];
        let (mode, concurrency) = ("a \"job\", awaited".to_owned(), 8);
        AttributionRow {
            application: application.into(),
            mode,
            concurrency,
            calls,
            shares,
            certain_wrong: 0,
            confirmed_wrong: 1,
        }
    }

    #[test]
    fn rows_survive_the_file() {
        let row = row("Go 1.27, net/http", 400, 99.5);
        assert_eq!(AttributionRow::parse(&row.csv()).expect("a row"), row);
        assert!(AttributionRow::parse("a,b,c").is_err());
        assert!(AttributionRow::parse("a,b,8,many,1,2,3,0,0").is_err());
    }

    #[test]
    fn a_summary_weighs_by_calls() {
        let text = summary(&[row("gRPC: Go", 100, 50.0), row("Go 1.27", 300, 100.0), row("Go 1.21", 100, 0.0)]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| Go | 2 | 400 | 75.0 | 25.0 | 0.0 | 0 | 2 |",
                "| gRPC | 1 | 100 | 50.0 | 50.0 | 0.0 | 0 | 1 |",
                "| **all** | 3 | 500 | 70.0 | 30.0 | 0.0 | 0 | 3 |"
            ]
        );
    }

    #[test]
    fn the_committed_results_can_be_read() {
        let rows = read(&shell::root()).expect("the CSV");
        assert!(rows.len() > 600, "{} rows", rows.len());
    }
}
