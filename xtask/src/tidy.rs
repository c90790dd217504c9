//! `cargo xtask tidy`, also run as a test: checks what the compiler does not.

mod attribution;
mod results;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{docs, kernel_tests, shell, tiers, vendor};

/// Longer files are hard to follow.
const LONGEST: usize = 700;
/// Files that may be longer, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];
/// Directories whose Rust files are checked.
pub(crate) const CRATES: &[&str] = &["tracer-common", "tracer-ebpf", "tracer-user", "tests", "fuzz", "xtask"];

/// Checks every file and prints the violations.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let mut wrong = check(&root)?;
    wrong.extend(tiers::check(&root)?);
    wrong.extend(kernel_tests::check(&root)?);
    wrong.extend(vendor::check(&root)?);
    for line in &wrong {
        eprintln!("{line}");
    }
    if !wrong.is_empty() {
        bail!("{} places are untidy", wrong.len());
    }
    Ok(())
}

fn check(root: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let mut paths = Vec::new();
    for dir in CRATES {
        rust_files(&root.join(dir), &mut paths)?;
    }
    paths.sort();
    let mut wrong = Vec::new();
    for path in &paths {
        let text = read(path)?;
        let shown = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let lines = split(&text);
        let mut found = file(&text, &lines, &shown);
        found.sort();
        wrong.extend(found.into_iter().map(|(line, what)| format!("{shown}:{line}: {what}")));
    }
    wrong.extend(docs::check(root)?);
    wrong.extend(attribution::check(root)?);
    wrong.extend(results::check(root)?);
    for (name, _) in LONG_FILES {
        let lines = fs::read_to_string(root.join(name)).map_or(0, |text| text.lines().count());
        if lines <= LONGEST {
            wrong.push(format!("xtask/src/tidy.rs: {name} no longer needs to be in LONG_FILES"));
        }
    }
    Ok(wrong)
}

/// Every `.rs` file below `dir`; build directories left out.
pub(crate) fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", dir.display()))?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                rust_files(&path, into)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

type Found = Vec<(usize, String)>;

/// Rules about one file.
fn file(text: &str, lines: &[Line], name: &str) -> Found {
    let mut wrong = Found::new();
    if !text.starts_with("//!") {
        wrong.push((1, "a file opens with `//!`: what it is".into()));
    }
    if lines.len() > LONGEST && !LONG_FILES.iter().any(|(long, _)| *long == name) {
        wrong.push((
            lines.len(),
            format!("more than {LONGEST} lines: split it, or list it in LONG_FILES with the reason"),
        ));
    }
    for (n, line) in lines.iter().enumerate() {
        for word in ["todo", "unimplemented"] {
            if words(&line.code).any(|(at, w)| w == word && line.code[at + w.len()..].starts_with('!')) {
                wrong.push((n + 1, format!("`{word}!` is not finished")));
            }
        }
        if line.code.contains("#[allow(") || line.code.contains("#![allow(") {
            wrong.push((n + 1, "`#[expect(lint, reason = \"…\")]` instead of `allow`".into()));
        }
        if is_unsafe(&line.code) && !explained(lines, n) {
            wrong.push((n + 1, "`unsafe` without a SAFETY comment within three lines above".into()));
        }
    }
    wrong
}

/// Whether a line of code has the keyword; `#[unsafe(no_mangle)]` promises nothing that could be explained.
fn is_unsafe(code: &str) -> bool {
    words(code).any(|(at, word)| word == "unsafe" && !code[at + word.len()..].starts_with('('))
}

/// A comment with SAFETY on the line or within three above it; a longer comment counts as one.
fn explained(lines: &[Line], n: usize) -> bool {
    let says = |line: &Line| line.comment.to_ascii_uppercase().contains("SAFETY");
    let mut above = n;
    let mut code = 0;
    loop {
        let line = &lines[above];
        if says(line) {
            return true;
        }
        // Comment lines are free, code lines count.
        if above != n && (line.comment.is_empty() || !line.code.trim().is_empty()) {
            code += 1;
        }
        if code > 2 || above == 0 {
            return false;
        }
        above -= 1;
    }
}

fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = code.char_indices().filter(move |(at, c)| part(*c) && !code[..*at].ends_with(part));
    starts.map(move |(at, _)| (at, code[at..].split(|c| !part(c)).next().unwrap_or_default()))
}

/// One line of a file, split.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    /// Code, without the contents of strings.
    code: String,
    /// Comment.
    comment: String,
}

/// Splits a file into lines. Knows strings (raw ones too), characters and both kinds of comment; the checks need no
/// more.
fn split(text: &str) -> Vec<Line> {
    enum In {
        Code,
        LineComment,
        BlockComment(u32),
        /// Number of `#` that end it if raw.
        Text(Option<usize>),
    }
    let mut lines = vec![Line::default()];
    let mut state = In::Code;
    let mut rest = text;
    let starts = |rest: &str, what: &str| rest.starts_with(what);
    while let Some(c) = rest.chars().next() {
        let mut used = c.len_utf8();
        if c == '\n' {
            if matches!(state, In::LineComment) {
                state = In::Code;
            }
            lines.push(Line::default());
            rest = &rest[used..];
            continue;
        }
        let Some(line) = lines.last_mut() else { break };
        match &mut state {
            In::LineComment => line.comment.push(c),
            In::BlockComment(depth) => {
                line.comment.push(c);
                if starts(rest, "*/") {
                    used = 2;
                    *depth -= 1;
                    if *depth == 0 {
                        state = In::Code;
                    }
                } else if starts(rest, "/*") {
                    used = 2;
                    *depth += 1;
                }
            }
            In::Text(None) => {
                if c == '\\' {
                    // An escaped line end still ends the line.
                    used += rest[used..].chars().next().filter(|c| *c != '\n').map_or(0, char::len_utf8);
                } else if c == '"' {
                    line.code.push(c);
                    state = In::Code;
                }
            }
            In::Text(Some(hashes)) => {
                if c == '"' && rest[1..].bytes().take_while(|b| *b == b'#').count() >= *hashes {
                    used += *hashes;
                    line.code.push(c);
                    state = In::Code;
                }
            }
            In::Code if starts(rest, "//") => {
                line.comment.push(c);
                state = In::LineComment;
            }
            In::Code if starts(rest, "/*") => {
                used = 2;
                state = In::BlockComment(1);
            }
            In::Code if c == '"' => {
                let before = line.code.trim_end_matches('#');
                let hashes = line.code.len() - before.len();
                let raw =
                    before.ends_with('r') && !before.trim_end_matches(['r', 'b', 'c']).ends_with(char::is_alphanumeric);
                line.code.push(c);
                state = In::Text(raw.then_some(hashes));
            }
            In::Code if c == '\'' => {
                // A character ('x', '\n', '\u{1F}', '"') or a lifetime.
                let mut after = rest.chars().skip(1);
                let literal = match (after.next(), after.next()) {
                    (Some('\\'), Some(escaped)) => {
                        let at = 2 + escaped.len_utf8();
                        rest[at..].find('\'').map(|end| at + end + 1)
                    }
                    (Some(one), Some('\'')) => Some(2 + one.len_utf8()),
                    _ => None,
                };
                line.code.push(c);
                if let Some(length) = literal {
                    used = length;
                }
            }
            In::Code => line.code.push(c),
        }
        rest = &rest[used..];
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let wrong = check(&shell::root()).expect("readable");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    fn wrong(text: &str) -> Vec<String> {
        let text = format!("//! head\n{text}");
        file(&text, &split(&text), "x.rs").into_iter().map(|(n, what)| format!("{n}: {what}")).collect()
    }

    #[test]
    fn rules_of_a_file() {
        let bad = "to".to_owned() + "do!()";
        assert_eq!(wrong(&format!("fn f() {{ {bad} }}")).len(), 1);
        assert_eq!(wrong("// to do! is fine here\nlet s = \"todo!\";"), [""; 0]);
        assert_eq!(wrong("#[allow(dead_code)]").len(), 1);
        assert_eq!(file("fn main() {}", &split("fn main() {}"), "x.rs").len(), 1);
        let long = "x\n".repeat(LONGEST);
        assert_eq!(wrong(&long).len(), 1);
    }

    #[test]
    fn unsafe_is_explained() {
        for fine in [
            "// SAFETY: because\nunsafe { f() }",
            "// SAFETY: because\n// of this\n// and that\n// and more\nunsafe { f() }",
            "// SAFETY: because\nlet a =\n    b(\n    unsafe { f() });",
            "/// # Safety\n/// p is valid\npub unsafe fn f() {}",
            "unsafe { f() } // SAFETY: because",
            "#[unsafe(no_mangle)]",
            "let s = \"unsafe\"; // unsafe",
            "#![forbid(unsafe_code)]",
        ] {
            assert_eq!(wrong(fine), [""; 0], "{fine}");
        }
        for bad in
            ["unsafe { f() }", "// SAFETY: far\na;\nb;\nc;\nd;\nunsafe { f() }", "let safety = 1;\nunsafe { f() }"]
        {
            assert_eq!(wrong(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn strings_and_characters_hide_what_is_in_them() {
        let code = |text: &str| split(text).into_iter().map(|l| l.code).collect::<Vec<_>>().join("|");
        assert_eq!(code(r#"a("x\"y") b"#), r#"a("") b"#);
        assert_eq!(code("r#\"a\"b\"# c"), "r#\"\" c");
        assert_eq!(code("'\"' d"), "' d");
        assert_eq!(code("'\\'' e"), "' e");
        assert_eq!(code("&'a str"), "&'a str");
        assert_eq!(code("/* a /* b */ c */ d\ne // f"), " d|e ");
        assert_eq!(code("\"a\nb\" c"), "\"|\" c");
    }
}
