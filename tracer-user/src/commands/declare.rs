//! `tracer declare`: what can be declared in a program, and what the declarations of a file match.

use std::path::Path;

use super::{Failure, declaring};
use crate::classes::rules::Glob;
use crate::config::Config;
use crate::runtimes::declared::{Binary, Declared, Site, Target};

/// Most functions that are listed.
const LISTED: usize = 10_000;
/// What a call of a C function costs, as measured in a virtual machine; docs/declared-transactions.md says how.
const COST: &str = "some 20 µs";

/// `tracer declare --list BINARY [PATTERN]`.
pub fn list(binary: &Path, pattern: Option<&str>) -> Result<(), Failure> {
    let refused = |why| Failure::Usage(format!("{}: {why}", binary.display()));
    let file = Binary::open(binary).map_err(refused)?;
    let glob = pattern
        .map(|pattern| if pattern.contains('*') { Glob::new(pattern) } else { Glob::new(&format!("*{pattern}*")) });
    let names = file.names();
    let fitting: Vec<&String> = names.iter().filter(|name| glob.as_ref().is_none_or(|glob| glob.fits(name))).collect();
    for name in fitting.iter().take(LISTED) {
        println!("{name}");
    }
    if fitting.len() > LISTED {
        println!("… and {} more: give a pattern", fitting.len() - LISTED);
    }
    if fitting.is_empty() {
        return Err(Failure::Usage(format!("{}: no function fits, of {}", binary.display(), names.len())));
    }
    Ok(())
}

/// `tracer declare --check FILE`.
pub fn check(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file)?;
    if config.declared.is_empty() {
        return Err(Failure::Usage(format!("{}: no [[transaction]] is declared", file.display())));
    }
    let mut wrong = 0;
    for one in config.declared.iter() {
        let mut files = declaring::expand(&one.program);
        files.extend(processes(one));
        if files.is_empty() {
            wrong += 1;
            println!(
                "{}: transaction '{}': no file is called {}, and no process runs one",
                one.place, one.name, one.program
            );
        }
        for path in files {
            match Binary::open(&path).and_then(|binary| binary.declared(one)) {
                Ok(site) => {
                    println!("{}: transaction '{}': {}: {}", one.place, one.name, path.display(), says(one, &site));
                }
                Err(why) => {
                    wrong += 1;
                    println!("{}: transaction '{}': {}: {why}", one.place, one.name, path.display());
                }
            }
        }
    }
    if wrong > 0 {
        return Err(Failure::Usage(format!(
            "{}: {wrong} of the declared transactions cannot be traced",
            file.display()
        )));
    }
    Ok(())
}

fn says(declared: &Declared, site: &Site) -> String {
    let way = match declared.target {
        Target::Function(_) if site.ends.is_empty() => "entry and a return probe",
        Target::Function(_) => "entry and its return instructions",
        Target::Lines { .. } => "where the lines begin and every way out of them",
        Target::Call { .. } => "the call instruction and the one behind it",
    };
    let Site { name, entry, .. } = site;
    let user = declared.user.as_ref().map(|user| format!("; user {user}")).unwrap_or_default();
    let metrics: Vec<String> =
        declared.metrics.iter().map(|metric| format!("{} {}", metric.name, metric.value)).collect();
    let metrics = if metrics.is_empty() { String::new() } else { format!("; metrics {}", metrics.join(", ")) };
    let probes = site.probes();
    format!("{name} at offset {entry:#x}: {way}, {probes} probes{user}{metrics}; a call costs {COST} more")
}

/// Programs of running processes that have the declared path where this process cannot see it: in containers.
fn processes(one: &Declared) -> Vec<std::path::PathBuf> {
    let glob = Glob::new(&one.program);
    let mut found: Vec<std::path::PathBuf> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let exe = entry.path().join("exe");
        let Ok(path) = std::fs::read_link(&exe) else { continue };
        if glob.fits(&path.to_string_lossy()) && !path.exists() && found.len() < LISTED {
            found.push(exe);
        }
    }
    found.truncate(16);
    found
}
