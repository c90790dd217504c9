//! `cargo xtask docs`: writes the generated parts of `docs/`; `cargo xtask tidy` reports stale ones.
//!
//! A unit test of `tracer-results` writes the metrics reference, because only the code knows its families.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{attribution, doc_tables, links, shell};

/// Most lines of the pages that people read first, and of the summary beside the CSV.
const LENGTHS: &[(&str, usize)] = &[("README.md", 200), ("ARCHITECTURE.md", 300), ("docs/attribution-results.md", 40)];

/// Writes all generated pages.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    doc_tables::put("config", &configuration(&root)?)?;
    shell::progress("writing docs/metrics.md");
    let mut command = shell::cargo();
    command.args(["test", "--locked"]).args(shell::TEST_PROFILE);
    command.args(["--package", "tracer-results", "--lib", "metrics::reference"]);
    shell::run(command.env("TRACER_WRITE_DOCS", "1"), "its own words are above")
}

/// Problems of the pages: stale parts, dead links, pages that are too long.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut wrong = links::check(root)?;
    if !doc_tables::is_current(root, "config", &configuration(root)?)? {
        wrong.push("docs/configuration.md: stale, run `cargo xtask docs`".into());
    }
    let results = root.join("docs/attribution-results.md");
    let text = fs::read_to_string(&results).with_context(|| format!("cannot read {}", results.display()))?;
    if !text.contains(&attribution::summary(&attribution::read(root)?)) {
        wrong.push("docs/attribution-results.md: not the summary of its CSV".into());
    }
    for (file, most) in LENGTHS {
        let lines = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?.lines().count();
        if lines > *most {
            wrong.push(format!("{file}:{lines}: more than {most} lines; move what is reference into docs/"));
        }
    }
    Ok(wrong)
}

/// The commented default configuration, a heading per table: comments become text, settings code.
fn configuration(root: &Path) -> Result<String> {
    let file = root.join("config/tracer.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(render(&text))
}

fn render(toml: &str) -> String {
    let mut page = String::new();
    // Text that awaits its settings, and settings without text between them.
    let (mut words, mut settings) = (Vec::new(), Vec::new());
    let flush = |page: &mut String, words: &mut Vec<String>, settings: &mut Vec<String>| {
        if !words.is_empty() {
            page.push_str(&format!("{}\n\n", words.join("\n")));
        }
        if !settings.is_empty() {
            page.push_str(&format!("```toml\n{}\n```\n\n", settings.join("\n")));
        }
        words.clear();
        settings.clear();
    };
    let mut example = false;
    for line in toml.lines() {
        let comment = line.strip_prefix('#').map(|rest| rest.strip_prefix(' ').unwrap_or(rest));
        match comment {
            // A commented table is an example, up to the next empty line.
            Some(text) if example || text.starts_with("[[") => {
                if !example {
                    page.push_str(&format!("## {text}\n\n"));
                }
                example = true;
                settings.push(text.to_owned());
            }
            Some(text) => {
                if !settings.is_empty() {
                    flush(&mut page, &mut words, &mut settings);
                }
                words.push(text.to_owned());
            }
            None if line.is_empty() => {
                flush(&mut page, &mut words, &mut settings);
                example = false;
            }
            None if line.starts_with('[') => {
                flush(&mut page, &mut words, &mut settings);
                page.push_str(&format!("## {line}\n\n"));
            }
            None => settings.push(line.to_owned()),
        }
    }
    flush(&mut page, &mut words, &mut settings);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_become_text_and_settings_code() {
        let toml = "# Every setting.\n\n[agent]\n# Where it\n# listens.\nlisten = \"x\"\na = 1\n# Other.\nb = 2\n\n\
                    # Rules.\n# [[class]]\n# name = \"x\"\n";
        let page = "Every setting.\n\n## [agent]\n\nWhere it\nlistens.\n\n```toml\nlisten = \"x\"\na = 1\n```\n\n\
                    Other.\n\n```toml\nb = 2\n```\n\n## [[class]]\n\nRules.\n\n```toml\n[[class]]\nname = \"x\"\n```\n\n";
        assert_eq!(render(toml), page);
    }

    #[test]
    fn the_pages_are_current() {
        let wrong = check(&shell::root()).expect("readable");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
