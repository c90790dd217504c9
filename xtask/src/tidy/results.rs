//! Modules of `tracer-results` that results go to: none may use another, so that each can be read, and switched off, by itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::attribution::used;
use super::rust_files;

/// Where results go.
const SINKS: &[&str] = &["history", "metrics", "profiles", "record", "store"];

/// What is wrong, below `root`.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let home = root.join("tracer-user/crates/results/src");
    let mut wrong = Vec::new();
    for sink in SINKS {
        let mut paths: Vec<PathBuf> = Vec::new();
        rust_files(&home.join(sink), &mut paths)?;
        paths.sort();
        if paths.is_empty() {
            wrong.push(format!("xtask/src/tidy/results.rs: tracer-results has no module {sink}"));
        }
        for path in paths {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            wrong.extend(judge(sink, &text).into_iter().map(|other| format!("{shown}: {sink} may not use {other}")));
        }
    }
    Ok(wrong)
}

/// The other sinks that a file of `sink` uses, its tests apart.
fn judge(sink: &str, text: &str) -> Vec<String> {
    let is_other = |name: &String| name != sink && SINKS.contains(&name.as_str());
    used(text, "crate").into_iter().filter(is_other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_know_no_other() {
        assert_eq!(judge("store", "use crate::store::edges;\nuse crate::analysis::finding;\n"), [""; 0]);
        assert_eq!(judge("store", "//! See `crate::metrics`.\nuse crate::metrics::stats;\n"), ["metrics"]);
        assert_eq!(judge("history", "fn f() { crate::store::g() }\n"), ["store"]);
    }
}
