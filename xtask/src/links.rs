//! Checks links between the pages of this repository: the file and the heading must exist. So must files and functions
//! named by the pages about the code. Part of `cargo xtask tidy`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use crate::tidy;

/// Pages beside those in `docs/`.
const PAGES: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
/// Directories a path in backticks may be relative to, so that the pages about the code can be short.
const BASES: &[&str] = &["", "tracer-user/src", "tracer-ebpf/src", "tracer-common/src", "xtask/src", "tests"];
/// Where the agent's crates are.
const CRATES: &str = "tracer-user/crates";

/// Every dead link, and every missing file named by the pages about the code.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut pages: Vec<PathBuf> = PAGES.iter().map(PathBuf::from).collect();
    find(root, Path::new("docs"), &mut pages)?;
    pages.sort();
    let mut texts = HashMap::new();
    for page in &pages {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {}", page.display()))?;
        texts.insert(page.clone(), text);
    }
    let mut wrong = Vec::new();
    for page in &pages {
        for (line, target) in links(&texts[page]) {
            if let Some(why) = dead(root, page, &target, &texts) {
                wrong.push(format!("{}:{line}: link to {target}: {why}", page.display()));
            }
        }
    }
    let known = identifiers(root)?;
    let crates = crates(root)?;
    let about_code = |page: &&PathBuf| {
        page.ends_with("ARCHITECTURE.md") || page.ends_with("CONTRIBUTING.md") || page.starts_with("docs/design")
    };
    for page in pages.iter().filter(about_code) {
        for (line, name) in paths(&texts[page]) {
            if !exists(root, &crates, &name) {
                wrong.push(format!("{}:{line}: {name} does not exist", page.display()));
            }
        }
        for (line, name) in quoted(&texts[page], |word| word.contains("::") && word.chars().all(is_identifier_or_colon))
        {
            if name.rsplit("::").next().is_some_and(|last| !known.contains(last)) {
                wrong.push(format!("{}:{line}: {name} is not in the code", page.display()));
            }
        }
    }
    Ok(wrong)
}

/// The agent's crates.
fn crates(root: &Path) -> Result<Vec<PathBuf>> {
    let home = root.join(CRATES);
    let read = fs::read_dir(&home).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    read.with_context(|| format!("cannot read {}", home.display()))
}

/// Whether there is a file that a page about the code names: from a base, from a crate's `src/`, or by crate
/// (`relay/hub.rs` is `tracer-user/crates/relay/src/hub.rs`).
fn exists(root: &Path, crates: &[PathBuf], name: &str) -> bool {
    let of_crate = |(name, rest): (&str, &str)| root.join(CRATES).join(name).join("src").join(rest).exists();
    BASES.iter().any(|base| root.join(base).join(name).exists())
        || crates.iter().any(|home| home.join("src").join(name).exists())
        || name.split_once('/').is_some_and(of_crate)
}

fn find(root: &Path, dir: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(dir)).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        let path = dir.join(entry.file_name());
        if root.join(&path).is_dir() {
            find(root, &path, into)?;
        } else if path.extension().is_some_and(|e| e == "md") {
            into.push(path);
        }
    }
    Ok(())
}

fn dead(root: &Path, page: &Path, target: &str, texts: &HashMap<PathBuf, String>) -> Option<String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let file = if file.is_empty() { page.to_owned() } else { normal(&page.parent()?.join(file)) };
    if !root.join(&file).exists() {
        return Some("no such file".into());
    }
    let anchor = anchor?;
    let Some(text) = texts.get(&file) else { return Some("headings are checked in pages only".into()) };
    (!headings(text).iter().any(|heading| heading == anchor)).then(|| "no such heading".into())
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        if line.trim_start().starts_with("```") {
            code = !code;
            return None;
        }
        (!code).then_some((n + 1, line))
    })
}

/// Targets of `[text](target)` outside of code.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (n, line) in prose(text) {
        // Every second part between backticks is code.
        let plain: Vec<&str> = line.split('`').step_by(2).collect();
        let plain = plain.join("`");
        let mut rest = plain.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            found.push((n, target.split(' ').next().unwrap_or_default().to_owned()));
            rest = after;
        }
    }
    found
}

fn is_identifier_or_colon(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Every word of the Rust files below `root`, comments included: pages quote other projects' functions, too.
fn identifiers(root: &Path) -> Result<HashSet<String>> {
    let mut files = Vec::new();
    for dir in tidy::CRATES {
        tidy::rust_files(&root.join(dir), &mut files)?;
    }
    let mut words = HashSet::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        words.extend(text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned));
    }
    Ok(words)
}

/// Paths in backticks: quotes that end in `.rs` or in a slash and are not patterns.
fn paths(text: &str) -> Vec<(usize, String)> {
    quoted(text, |word| {
        (Path::new(word).extension().is_some_and(|e| e == "rs") || word.ends_with('/'))
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-".contains(c))
            && !word.starts_with('/')
    })
}

/// Quotes in backticks that `fits` accepts, with their lines.
fn quoted(text: &str, fits: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let words = |line: &str| {
        line.split('`').skip(1).step_by(2).filter(|word| fits(word)).map(str::to_owned).collect::<Vec<_>>()
    };
    prose(text).flat_map(|(n, line)| words(line).into_iter().map(move |word| (n, word))).collect()
}

/// Anchors of headings, as hosting platforms make them.
fn headings(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = Vec::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase();
        let count = seen.entry(slug.clone()).or_default();
        found.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let dir = tempfile::tempdir().expect("dir");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect(name);
        fs::create_dir_all(dir.path().join("docs/design")).expect("docs");
        fs::create_dir_all(dir.path().join("xtask/src")).expect("xtask");
        write("xtask/src/x.rs", "fn begun() {}");
        write("ARCHITECTURE.md", "`gone.rs` and `docs/` and `x.rs|` and `Engine::begun`, `Engine::gone`\n");
        fs::create_dir_all(dir.path().join("tracer-user/crates/relay/src")).expect("a crate");
        write("tracer-user/crates/relay/src/hub.rs", "");
        write("CHANGELOG.md", "");
        write("CONTRIBUTING.md", "`relay/hub.rs`, `hub.rs` and `relay/gone.rs`\n");
        write("SECURITY.md", "## Without root\n## Without root\n```\n# no heading\n```\n");
        write("README.md", "[a](docs/a.md) [b](SECURITY.md#without-root-1)\n[c](#no) `[x](y)` [d](https://x.y/#z)\n");
        write("docs/a.md", "[up](../SECURITY.md#no-heading) [in](design/b.md)\n```\n[x](y)\n```\n");
        write("docs/design/b.md", "[a](../a.md) [gone](../c.md)\n");
        assert_eq!(
            check(dir.path()).expect("readable"),
            [
                "README.md:2: link to #no: no such heading",
                "docs/a.md:1: link to ../SECURITY.md#no-heading: no such heading",
                "docs/design/b.md:1: link to ../c.md: no such file",
                "ARCHITECTURE.md:1: gone.rs does not exist",
                "ARCHITECTURE.md:1: Engine::gone is not in the code",
                "CONTRIBUTING.md:1: relay/gone.rs does not exist",
            ]
        );
    }

    #[test]
    fn anchors_are_those_of_headings() {
        let text = "# What it costs: `bench`, 1 % (2)\n#no\n";
        assert_eq!(headings(text), ["what-it-costs-bench-1--2"]);
    }
}
