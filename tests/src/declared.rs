//! Configurations that declare transactions.

use std::path::{Path, PathBuf};

/// A configuration file with these transactions: name and the rest.
pub fn declare(dir: &Path, program: &Path, all: &[(&str, &str)]) -> PathBuf {
    let file = dir.join("tracer.toml");
    let program = program.display();
    let text: Vec<String> = all
        .iter()
        .map(|(name, rest)| format!("[[transaction]]\nname = \"{name}\"\nprogram = \"{program}\"\n{rest}\n\n"))
        .collect();
    std::fs::write(&file, text.concat()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    file
}
