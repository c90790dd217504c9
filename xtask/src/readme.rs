//! Tables in README.md that commands make, each between two marks.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

/// Puts `table` between the marks `<!-- NAME:begin -->` and `<!-- NAME:end -->` of README.md.
pub(crate) fn put(name: &str, table: &str) -> Result<()> {
    put_into(&shell::root().join("README.md"), name, table)
}

/// Puts `row` into the table of that name, which has the lines `head`, in the place of the one whose first `key` cells are
/// the same; the other rows stay.
pub(crate) fn keep(name: &str, head: &str, row: &str, key: usize) -> Result<()> {
    keep_in(&shell::root().join("README.md"), name, head, row, key)
}

fn keep_in(readme: &Path, name: &str, head: &str, row: &str, key: usize) -> Result<()> {
    let text = fs::read_to_string(readme).with_context(|| format!("cannot read {}", readme.display()))?;
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let present = text.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end)).map_or("", |(table, _)| table);
    let cells = |line: &str| line.split('|').skip(1).take(key).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let same = cells(row);
    let mut rows: Vec<&str> = present.trim().lines().skip(head.lines().count()).collect();
    match rows.iter_mut().find(|line| cells(line) == same) {
        Some(line) => *line = row.trim_end(),
        None => rows.push(row.trim_end()),
    }
    put_into(readme, name, &format!("{head}{}", rows.join("\n")))
}

fn put_into(readme: &Path, name: &str, table: &str) -> Result<()> {
    let text = fs::read_to_string(readme).with_context(|| format!("cannot read {}", readme.display()))?;
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let (before, rest) = text.split_once(&begin).with_context(|| format!("README.md has no mark {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("README.md has no mark {end}"))?;
    let whole = format!("{before}{begin}\n{}\n{end}{after}", table.trim_end());
    fs::write(readme, whole).with_context(|| format!("cannot write {}", readme.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_room_for_every_table() {
        let dir = tempfile::tempdir().expect("dir");
        let copy = dir.path().join("README.md");
        fs::copy(shell::root().join("README.md"), &copy).expect("README");
        for name in ["bench", "carriers", "parsers", "vm", "pair", "faults", "transactions", "transaction-costs"] {
            put_into(&copy, name, &format!("| {name} of mine |\n")).expect("marks");
        }
        let text = fs::read_to_string(&copy).expect("README");
        assert!(text.contains("| bench of mine |\n<!-- bench:end -->") && text.contains("| vm of mine |"), "{text}");
        assert!(put_into(&copy, "absent", "x").is_err());
    }

    #[test]
    fn rows_of_other_keys_are_kept() {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join("README.md");
        fs::write(&file, "Before\n<!-- t:begin -->\n<!-- t:end -->\nAfter\n").expect("written");
        let head = "| from | to | what |\n| --- | --- | --- |\n";
        for row in ["| a | b | 1 |\n", "| b | a | 2 |\n", "| a | b | 3 |\n", "| a | c | 4 |\n"] {
            keep_in(&file, "t", head, row, 2).expect("marks");
        }
        let wanted = format!("{head}| a | b | 3 |\n| b | a | 2 |\n| a | c | 4 |");
        let text = fs::read_to_string(&file).expect("README");
        assert_eq!(text, format!("Before\n<!-- t:begin -->\n{wanted}\n<!-- t:end -->\nAfter\n"));
        assert!(keep_in(&file, "absent", head, "| a | b | 5 |", 2).is_err());
    }
}
