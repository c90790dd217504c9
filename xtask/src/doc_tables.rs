//! Tables in `docs/` that commands write, each between two marks: `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
//!
//! [`FILES`] maps tables to files. The README has none: a measurement never changes the first page.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// Every table and its file.
const FILES: &[(&str, &str)] = &[
    ("bench", "docs/benchmarks.md"),
    ("parsers", "docs/benchmarks.md"),
    ("carriers", "docs/benchmarks.md"),
    ("declared", "docs/declared-transactions.md"),
    ("transaction-costs", "docs/benchmarks.md"),
    ("vm", "docs/kernels.md"),
    ("pair", "docs/kernels.md"),
    ("faults", "docs/faults.md"),
    ("attribution", "docs/attribution-results.md"),
    ("config", "docs/configuration.md"),
    ("verdicts", "docs/verdicts.md"),
];

/// Replaces the table `name` in its file.
pub(crate) fn put(name: &str, table: &str) -> Result<()> {
    put_into(&file(name)?, name, table)
}

/// Replaces the row of table `name` whose first `key` cells equal those of `row`, or appends `row`; the other rows
/// stay. The table starts with the lines `head`.
pub(crate) fn put_row(name: &str, head: &str, row: &str, key: usize) -> Result<()> {
    put_row_into(&file(name)?, name, head, row, key)
}

/// Whether the file of table `name` below `root` has exactly this table.
pub(crate) fn is_current(root: &Path, name: &str, table: &str) -> Result<bool> {
    let path = root.join(relative(name)?);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (_, present, _) = parts(&path, &text, name)?;
    Ok(present.trim() == table.trim())
}

fn relative(name: &str) -> Result<&'static str> {
    let found = FILES.iter().find(|(table, _)| *table == name);
    found.map(|(_, file)| *file).with_context(|| format!("FILES in doc_tables.rs has no table {name}"))
}

fn file(name: &str) -> Result<PathBuf> {
    Ok(shell::root().join(relative(name)?))
}

/// The text up to the opening mark's end, between the marks, and from the closing mark on.
fn parts<'a>(path: &Path, text: &'a str, name: &str) -> Result<(&'a str, &'a str, &'a str)> {
    let missing = |mark: &str| format!("{} has no mark {mark}", path.display());
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let at = text.find(&begin).with_context(|| missing(&begin))? + begin.len();
    let (before, rest) = text.split_at(at);
    let (table, after) = rest.split_at(rest.find(&end).with_context(|| missing(&end))?);
    Ok((before, table, after))
}

fn put_row_into(path: &Path, name: &str, head: &str, row: &str, key: usize) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (_, present, _) = parts(path, &text, name)?;
    let cells = |line: &str| line.split('|').skip(1).take(key).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let same = cells(row);
    let mut rows: Vec<&str> = present.trim().lines().skip(head.lines().count()).collect();
    match rows.iter_mut().find(|line| cells(line) == same) {
        Some(line) => *line = row.trim_end(),
        None => rows.push(row.trim_end()),
    }
    put_into(path, name, &format!("{head}{}", rows.join("\n")))
}

fn put_into(path: &Path, name: &str, table: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (before, _, after) = parts(path, &text, name)?;
    let whole = format!("{before}\n{}\n{after}", table.trim_end());
    fs::write(path, whole).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_marks() {
        let dir = tempfile::tempdir().expect("dir");
        for (name, relative) in FILES {
            let copy = dir.path().join("copy.md");
            fs::copy(shell::root().join(relative), &copy).expect(relative);
            put_into(&copy, name, &format!("| {name} of mine |\n")).expect("marks");
            let text = fs::read_to_string(&copy).expect("copy");
            assert!(
                text.contains(&format!("<!-- {name}:begin -->\n| {name} of mine |\n<!-- {name}:end -->")),
                "{text}"
            );
            assert!(put_into(&copy, "absent", "x").is_err());
        }
        assert!(put("absent", "x").is_err());
    }

    #[test]
    fn rows_of_other_keys_stay() {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join("x.md");
        fs::write(&file, "Before\n<!-- t:begin -->\n<!-- t:end -->\nAfter\n").expect("written");
        let head = "| from | to | what |\n| --- | --- | --- |\n";
        for row in ["| a | b | 1 |\n", "| b | a | 2 |\n", "| a | b | 3 |\n", "| a | c | 4 |\n"] {
            put_row_into(&file, "t", head, row, 2).expect("marks");
        }
        let wanted = format!("{head}| a | b | 3 |\n| b | a | 2 |\n| a | c | 4 |");
        let text = fs::read_to_string(&file).expect("file");
        assert_eq!(text, format!("Before\n<!-- t:begin -->\n{wanted}\n<!-- t:end -->\nAfter\n"));
        assert!(put_row_into(&file, "absent", head, "| a | b | 5 |", 2).is_err());
    }
}
