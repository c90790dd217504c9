//! Tables in README.md that commands make, each between two marks.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

/// Puts `table` between the marks `<!-- NAME:begin -->` and `<!-- NAME:end -->` of README.md.
pub(crate) fn put(name: &str, table: &str) -> Result<()> {
    put_into(&shell::root().join("README.md"), name, table)
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
}
