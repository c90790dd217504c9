//! `tracer doctor`: which TLS libraries the running processes have, and whether their text can be traced.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use tracer_runtimes::maps::{Maps, name};
use tracer_runtimes::tls::{Candidate, Libraries, Library, Refusal, candidates, inspect, rustls, untraced};

/// Most libraries that are listed, and most programs of each.
const LINES: usize = 64;
const PROGRAMS: usize = 8;

/// A library as some processes have it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Why its text is not traced; `None`: it is.
    why: Option<String>,
    /// It is only where the library reads and writes the socket itself.
    in_part: bool,
    /// Processes by program.
    programs: BTreeMap<String, usize>,
}

/// Libraries by name and file.
pub(super) type Libs = BTreeMap<(&'static str, String), Found>;

/// A library whose objects over memory are tied to no socket.
const IN_PART: &str = "text can be traced only where the library reads and writes the socket itself: its code does not show how objects \
     over memory (Node.js, asyncio) are tied to sockets; these are round trips only";
/// A library that is found and not traced.
const UNSUPPORTED: &str = "not supported yet";

/// What was found out about files so far.
#[derive(Default)]
struct Seen {
    found: Libs,
    /// What a candidate turned out to be; `None`: a program without a TLS library inside.
    known: BTreeMap<(&'static str, String), Option<&'static str>>,
}

/// What a file's library is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inspected {
    library: &'static str,
    why: Option<String>,
    in_part: bool,
}

impl Seen {
    /// The library that a candidate is, and whether its text is traced.
    fn inspect(candidate: &Candidate) -> Option<Inspected> {
        let not = |library: Library, why| Some(Inspected { library: library.name(), why: Some(why), in_part: false });
        match (inspect(candidate, &Libraries::default()), candidate.library) {
            (Ok((library, sites)), _) => {
                Some(Inspected { library: library.name(), why: None, in_part: sites.memory_unbound })
            }
            // A program without TLS.
            (Err(Refusal::Absent), _) | (Err(_), Some(Library::Go)) => None,
            (Err(why @ (Refusal::RustlsStripped | Refusal::RustlsUnknown)), _) => {
                let version = rustls(candidate).unwrap_or_default();
                not(Library::Rustls, format!("rustls {version}: {why}"))
            }
            (Err(why), library) => not(library.unwrap_or(Library::OpenSsl), why.to_string()),
        }
    }

    /// A program has it.
    fn candidate(&mut self, candidate: &Candidate, program: &str) {
        let key = (candidate.name(), candidate.path.clone());
        if !self.known.contains_key(&key) {
            if self.found.len() >= LINES {
                return;
            }
            let inspected = Self::inspect(candidate);
            self.known.insert(key.clone(), inspected.as_ref().map(|found| found.library));
            if let Some(Inspected { library, why, in_part }) = inspected {
                self.found.insert((library, key.1.clone()), Found { why, in_part, programs: BTreeMap::new() });
            }
        }
        if let Some(Some(library)) = self.known.get(&key) {
            let library = self.found.entry((library, key.1)).or_default();
            *library.programs.entry(program.to_owned()).or_default() += 1;
        }
    }

    /// A program has a library that is not traced.
    fn untraced(&mut self, library: &'static str, path: &str, program: &str) {
        let key = (library, path.to_owned());
        if self.found.len() < LINES || self.found.contains_key(&key) {
            let library = self.found.entry(key).or_default();
            library.why = Some(UNSUPPORTED.into());
            *library.programs.entry(program.to_owned()).or_default() += 1;
        }
    }
}

/// Looks at every process.
pub(super) fn find() -> Libs {
    let mut seen = Seen::default();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let Some(maps) = Maps::read(pid) else { continue };
        let program = name(&maps.exe);
        for candidate in candidates(&maps, &Libraries::default()) {
            seen.candidate(&candidate, program);
        }
        for (library, path) in untraced(&maps) {
            seen.untraced(library, path, program);
        }
    }
    seen.found
}

/// One line per library.
pub(super) fn text(found: &Libs) -> String {
    let mut text = String::from("TLS libraries in running processes:");
    if found.is_empty() {
        text.push_str(" none found");
    }
    text.push('\n');
    for ((library, path), Found { why, in_part, programs }) in found {
        let state = match why {
            Some(why) => format!("round trips only: {why}"),
            None if *in_part => IN_PART.to_owned(),
            None => "text can be traced".to_owned(),
        };
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
            "library": library, "file": path, "traced": found.why.is_none() && !found.in_part,
            "why": found.why.as_deref().or(found.in_part.then_some(IN_PART)),
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
        found.insert(
            ("openssl", "/usr/lib/libssl.so.3".into()),
            Found { why: None, programs: programs.clone(), ..Found::default() },
        );
        found.insert(
            ("gnutls", "/usr/lib/libgnutls.so.30".into()),
            Found { why: Some("no".into()), programs: programs.clone(), ..Found::default() },
        );
        found.insert(("openssl", "/usr/bin/node".into()), Found { why: None, in_part: true, programs });
        let text = text(&found);
        assert!(text.contains("openssl  /usr/lib/libssl.so.3: text can be traced; in nginx (3)"), "{text}");
        assert!(text.contains("/usr/bin/node: text can be traced only where the library reads"), "{text}");
        assert!(text.contains("round trips only: no"), "{text}");
        let json = json(&found);
        assert_eq!((&json[1]["traced"], &json[2]["traced"]), (&json!(false), &json!(true)));
    }
}
