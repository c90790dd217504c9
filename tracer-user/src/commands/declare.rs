//! `tracer declare`: what can be declared in a program, and what the declarations of a file match.

use std::collections::BTreeSet;
use std::path::Path;

use tracer_runtimes::declared::{Binary, Declared, DeclaredSite, Target, UsdtProbe};
use tracer_transactions::classes::rules::Glob;

use super::Failure;
use super::file_patterns::expand;
use crate::config::Config;

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
    let probes = usdt(&file);
    let of_glob = |probe: &&String| {
        let name = probe.split(' ').next().unwrap_or_default();
        glob.as_ref().is_none_or(|glob| glob.fits(name))
    };
    let fitting_probes: Vec<&String> = probes.iter().filter(of_glob).collect();
    for probe in fitting_probes.iter().take(LISTED) {
        println!("usdt:{probe}");
    }
    if fitting.is_empty() && fitting_probes.is_empty() {
        let (functions, probes) = (names.len(), probes.len());
        let what = format!("{}: nothing fits, of {functions} functions and {probes} USDT probes", binary.display());
        return Err(Failure::Usage(what));
    }
    Ok(())
}

/// The USDT probes of a file with their arguments, each once: `php:request__startup arg1:u64 arg2:u64`.
fn usdt(file: &Binary) -> BTreeSet<String> {
    let line = |probe: UsdtProbe| {
        let arguments = probe.arguments.iter().enumerate().map(|(n, argument)| format!(" arg{}:{argument}", n + 1));
        format!("{}:{}{}", probe.provider, probe.name, arguments.collect::<String>())
    };
    file.usdt_probes().into_iter().map(line).collect()
}

/// `tracer declare --check FILE`.
pub fn check(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file)?;
    if config.declared.is_empty() {
        return Err(Failure::Usage(format!("{}: no [[transaction]] is declared", file.display())));
    }
    let mut wrong = 0;
    for one in config.declared.iter() {
        let mut files = expand(&one.program);
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

fn says(declared: &Declared, placed: &DeclaredSite) -> String {
    let (what, probes) = match placed {
        DeclaredSite::Code(site) => {
            let way = match declared.target {
                Target::Function(_) if site.ends.is_empty() => "entry and a return probe",
                Target::Function(_) => "entry and its return instructions",
                Target::Lines { .. } => "where the lines begin and every way out of them",
                Target::Call { .. } => "the call instruction and the one behind it",
                Target::Probes { .. } => "",
            };
            (format!("{} at offset {:#x}: {way}", site.name, site.entry), site.probes())
        }
        DeclaredSite::Usdt(site) => {
            let places = |all: &[_]| if all.len() == 1 { "1 place".into() } else { format!("{} places", all.len()) };
            let ends = match &site.ends[..] {
                [] => ", counted without a duration".into(),
                ends => format!(" to {}", places(ends)),
            };
            let semaphore = site.begins.iter().chain(&site.ends).any(|place| place.semaphore.is_some());
            let raised = if semaphore { ", which the kernel has the program turn on" } else { "" };
            let what = format!("USDT probes {}: from {}{ends}{raised}", declared.target, places(&site.begins));
            (what, site.begins.len() + site.ends.len())
        }
    };
    let user = declared.user.as_ref().map(|user| format!("; user {user}")).unwrap_or_default();
    let metrics: Vec<String> =
        declared.metrics.iter().map(|metric| format!("{} {}", metric.name, metric.value)).collect();
    let metrics = if metrics.is_empty() { String::new() } else { format!("; metrics {}", metrics.join(", ")) };
    format!("{what}, {probes} probes{user}{metrics}; a call costs {COST} more")
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
