//! `tracer doctor`: which TLS libraries the running processes have, and whether their text can be traced.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::json;

use crate::runtimes::maps::{Maps, name};
use crate::runtimes::tls::{Libraries, Refusal, candidates, inspect, untraced};

/// Most libraries that are listed, and most programs of each.
const LINES: usize = 64;
const PROGRAMS: usize = 8;

/// A library as some processes have it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Why its text is not traced; `None`: it is.
    why: Option<String>,
    /// Processes by program.
    programs: BTreeMap<String, usize>,
}

/// Libraries by name and file.
pub(super) type Libs = BTreeMap<(&'static str, String), Found>;

/// Looks at every process.
pub(super) fn find() -> Libs {
    let mut found = Libs::new();
    // Programs without a TLS library inside.
    let mut without = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let Some(maps) = Maps::read(pid) else { continue };
        let program = name(&maps.exe).to_owned();
        for candidate in candidates(&maps, &Libraries::default()) {
            let key = (candidate.library.name(), candidate.path.clone());
            let is_known = found.contains_key(&key);
            if (!is_known && found.len() >= LINES) || without.contains(&key) {
                continue;
            }
            if !is_known {
                let why = inspect(&candidate).err();
                if why == Some(Refusal::Absent) {
                    without.insert(key);
                    continue;
                }
                let why = why.map(|why| why.to_string());
                found.insert(key.clone(), Found { why, programs: BTreeMap::new() });
            }
            let library = found.entry(key).or_default();
            *library.programs.entry(program.clone()).or_default() += 1;
        }
        for (library, path) in untraced(&maps) {
            let key = (library, path.to_owned());
            if found.len() < LINES || found.contains_key(&key) {
                let library = found.entry(key).or_default();
                library.why = Some("not supported yet".into());
                *library.programs.entry(program.clone()).or_default() += 1;
            }
        }
    }
    // A Go program without TLS.
    found.retain(|(library, _), library_found| *library != "go" || library_found.why.is_none());
    found
}

/// One line per library.
pub(super) fn text(found: &Libs) -> String {
    let mut text = String::from("TLS libraries in running processes:");
    if found.is_empty() {
        text.push_str(" none found");
    }
    text.push('\n');
    for ((library, path), Found { why, programs }) in found {
        let state = why.as_ref().map_or_else(|| "text is traced".into(), |why| format!("round trips only: {why}"));
        let mut users: Vec<String> =
            programs.iter().take(PROGRAMS).map(|(program, count)| format!("{program} ({count})")).collect();
        if programs.len() > PROGRAMS {
            users.push(format!("{} more programs", programs.len() - PROGRAMS));
        }
        text.push_str(&format!("  {library:<8} {path}: {state}; in {}\n", users.join(", ")));
    }
    text
}

/// The same for programs.
pub(super) fn json(found: &Libs) -> serde_json::Value {
    let line = |((library, path), found): (&(&str, String), &Found)| {
        json!({
            "library": library, "file": path, "traced": found.why.is_none(), "why": found.why,
            "processes": found.programs,
        })
    };
    found.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_said_in_lines() {
        let mut found = Libs::new();
        assert!(text(&found).contains("none found"));
        let programs = BTreeMap::from([("nginx".to_owned(), 3)]);
        found.insert(("openssl", "/usr/lib/libssl.so.3".into()), Found { why: None, programs: programs.clone() });
        found.insert(("gnutls", "/usr/lib/libgnutls.so.30".into()), Found { why: Some("no".into()), programs });
        let text = text(&found);
        assert!(text.contains("openssl  /usr/lib/libssl.so.3: text is traced; in nginx (3)"), "{text}");
        assert!(text.contains("round trips only: no"), "{text}");
        assert_eq!(json(&found)[1]["traced"], true);
    }
}
