//! What modules of `tracer-transactions` may know of each other: the state knows no strategy and has no cycle, a strategy knows no
//! other strategy, and the engine, which knows all of them, is known by none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{rust_files, split, words};

/// Files beside the state: the module's own file, the engine, and tests.
const BESIDE: &[&str] = &["lib", "engine", "tests", "simulation", "simulation_tests"];

/// What is wrong, below `root`.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let home = root.join("tracer-user/crates/transactions/src");
    let mut paths = Vec::new();
    rust_files(&home, &mut paths)?;
    paths.sort();
    let mut sources = BTreeMap::new();
    for path in paths {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let inside = path.strip_prefix(&home).unwrap_or(&path).with_extension("").to_string_lossy().into_owned();
        sources.insert(inside, text);
    }
    Ok(judge(&sources))
}

/// The same for sources by their path below its `src/`, without extension.
fn judge(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut state = BTreeMap::new();
    for (inside, text) in sources {
        let mut parts = inside.split('/');
        match (parts.next().unwrap_or_default(), parts.next()) {
            ("strategies", Some(own)) if own != "mod" => {
                let others = used(text, "strategies").into_iter().filter(|other| other != own);
                wrong.extend(others.map(|other| format!("{inside}: a strategy may not use another, {other}")));
                if used(text, "crate").contains("engine") {
                    wrong.push(format!("{inside}: a strategy may not use the engine"));
                }
            }
            (own, None) if !BESIDE.contains(&own) => {
                let uses: BTreeSet<String> = used(text, "super").union(&used(text, "crate")).cloned().collect();
                for above in ["engine", "strategies"].into_iter().filter(|above| uses.contains(*above)) {
                    wrong.push(format!("{inside}: what strategies share may not use {above}"));
                }
                state.insert(own.to_owned(), uses);
            }
            _ => {}
        }
    }
    wrong.extend(
        cycle(&state).map(|names| format!("modules of tracer-transactions use each other: {}", names.join(" → "))),
    );
    wrong
}

/// The names that follow `after::` in the code of a file, without its tests.
pub(super) fn used(text: &str, after: &str) -> BTreeSet<String> {
    let code: Vec<String> = split(text).into_iter().map(|line| line.code).collect();
    let code = code.join("\n");
    let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let start = format!("{after}::");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(&start) {
        let rest = &code[at + start.len()..];
        let group = rest.strip_prefix('{').and_then(|group| group.split(';').next());
        // Of a group, the names at its first level.
        let mut depth = 0;
        let mut expected = true;
        for (offset, c) in group.unwrap_or_default().char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => expected = true,
                c if expected && (c.is_ascii_alphabetic() || c == '_') => {
                    names.extend(words(&group.unwrap_or_default()[offset..]).next().map(|(_, word)| word.to_owned()));
                    expected = false;
                }
                _ => {}
            }
        }
        if group.is_none() {
            names.extend(words(rest).next().filter(|(at, _)| *at == 0).map(|(_, word)| word.to_owned()));
        }
    }
    names
}

/// A cycle, if there is one.
fn cycle(uses: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut left: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, used) in uses {
        let known = used.iter().filter(|other| uses.contains_key(*other) && *other != name);
        left.insert(name, known.map(String::as_str).collect());
    }
    // Removes what uses nothing that is left, until only cycles and what leads to them remain.
    loop {
        let done: Vec<&str> = left.iter().filter(|(_, used)| used.is_empty()).map(|(name, _)| *name).collect();
        if done.is_empty() {
            break;
        }
        for name in done {
            left.remove(name);
            for used in left.values_mut() {
                used.remove(name);
            }
        }
    }
    let mut path = vec![*left.keys().next()?];
    loop {
        let next = *left.get(path.last()?)?.first()?;
        if let Some(start) = path.iter().position(|name| *name == next) {
            path.push(next);
            return Some(path.split_off(start).into_iter().map(str::to_owned).collect());
        }
        path.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(sources: &[(&str, &str)]) -> Vec<String> {
        judge(&sources.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn state_without_cycles_and_strategies_on_their_own_are_fine() {
        let sources = [
            ("world", "use super::thread::Thread;\n"),
            ("thread", "//! See `super::world`.\n#[cfg(test)]\nmod tests {\n    use super::world::World;\n}\n"),
            ("strategies/mod", "pub mod tasks;\n"),
            ("strategies/tasks", "use crate::strategies::tasks::wakers;\nuse crate::world;\n"),
            ("engine", "use super::strategies::tasks;\n"),
        ];
        assert_eq!(judged(&sources), Vec::<String>::new());
    }

    #[test]
    fn what_knows_too_much_is_named() {
        let sources = [
            ("one", "use super::{slot::Slot, two::Two};\n"),
            ("two", "fn f() { super::three::g() }\n"),
            ("three", "use super::one;\nuse super::engine::Engine;\n"),
            ("strategies/tasks/wakers", "use crate::strategies::{pool, tasks};\n"),
            ("strategies/pool", "use crate::engine::Engine;\n"),
        ];
        let wrong = judged(&sources);
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        for expected in ["another, pool", "may not use the engine", "may not use engine", "one → two → three → one"]
        {
            assert!(wrong.iter().any(|found| found.contains(expected)), "{expected} in {wrong:?}");
        }
    }
}
