//! Names what the profiler saw, and finds out whether a function can carry probes and what they cost: on a thread of its own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use tracer_host::guard::self_process;
use tracer_kernel::probe_cost::{self, ProbeCost};
use tracer_kernel::uprobes::Prober;
use tracer_model::Nanos;
use tracer_policies::instrumentation::{FunctionId, Hotspot};
use tracer_results::profiles::Snapshot;
use tracer_results::profiles::hotspots::{CodeOrigin, CodeOwners, hotspots};
use tracer_runtimes::declared::{Binary, Refusal, Site};

/// Functions that are looked at.
const HOTSPOTS: usize = 50;
/// Longest name of a function that becomes a request class.
const NAME: usize = 115;
/// Nice value of the thread that looks at hotspots.
const NICE: i32 = 10;
/// CPU of the agent for the two records of a call, nanoseconds (`cargo xtask bench --declared`).
const AGENT: Nanos = 1_000;
/// Most functions whose cost is remembered.
const CHECKED: usize = 1024;

/// What the profiler saw.
pub(super) struct Look {
    pub(super) profiles: Vec<Snapshot>,
    pub(super) owners: Arc<CodeOwners>,
    /// CPU that the host had in this time, nanoseconds.
    pub(super) host: f64,
}

/// What a function's probes cost, or why it cannot have any; and of which file that is true.
struct Checked {
    file: Option<(u64, u64, i64)>,
    cost: Result<Nanos, Refusal>,
}

/// Names what the profiler saw, and finds out what can be traced of it.
pub(super) fn find_hotspots(mut prober: Prober, looks: &Receiver<Look>, answer: &SyncSender<Vec<Hotspot>>) {
    if let Err(error) = self_process::set_nice(NICE) {
        log::debug!("{error}: hotspots are looked at with the agent's own priority");
    }
    let cost = match probe_cost::measure(&mut prober, u64::MAX) {
        Ok(cost) => cost,
        Err(why) => {
            log::error!("what a probe costs cannot be measured, so no function is instrumented: {why}");
            return;
        }
    };
    let ProbeCost { emulated, stepped, returned } = cost;
    log::info!(
        "instrumentation: a probe costs {emulated} ns where the kernel emulates the instruction, {stepped} ns elsewhere, \
         and {returned} ns at the return"
    );
    let mut checked: BTreeMap<FunctionId, Checked> = BTreeMap::new();
    for look in looks {
        if checked.len() > CHECKED {
            checked.clear();
        }
        let mut hot: BTreeMap<FunctionId, f64> = BTreeMap::new();
        for profile in &look.profiles {
            for (id, nanos) in functions(profile, &look.owners) {
                *hot.entry(id).or_default() += nanos;
            }
        }
        let hotspot = |(id, nanos): (FunctionId, f64)| {
            let call_cost = match check(&mut checked, &id, cost) {
                Ok(cost) => Ok(cost),
                // Interpreted code: no function of a program.
                Err(Refusal::NotProgram | Refusal::Unreadable(_)) => return None,
                Err(why) => Err(why.to_string()),
            };
            Some(Hotspot { id, cpu: nanos / look.host, call_cost })
        };
        if answer.send(hot.into_iter().filter_map(hotspot).collect()).is_err() {
            return;
        }
    }
}

/// The application's functions by time: their own, and that of others' functions which they called.
fn functions(profile: &Snapshot, owners: &CodeOwners) -> Vec<(FunctionId, f64)> {
    let mut found = Vec::new();
    let mut add = |function: &str, file: Option<&str>, seconds: f64| {
        if let Some(program) = file.filter(|file| file.starts_with('/') && !file.contains('*'))
            && function.len() <= NAME
        {
            found
                .push((FunctionId { program: program.into(), function: without_line(function).into() }, seconds * 1e9));
        }
    };
    for one in hotspots(&profile.stacks(), owners, HOTSPOTS) {
        if one.code == CodeOrigin::Application {
            add(&one.function, one.file.as_deref(), one.self_s);
        }
        for caller in &one.called_by {
            add(&caller.function, caller.file.as_deref(), caller.self_s);
        }
    }
    found
}

/// `parse` of `parse (src/json.c:112)`.
fn without_line(function: &str) -> &str {
    let place = function.strip_suffix(')').and_then(|rest| rest.rsplit_once(" ("));
    let is_line = |(_, place): &(&str, &str)| {
        place
            .rsplit_once(':')
            .is_some_and(|(_, line)| !line.is_empty() && line.bytes().all(|digit| digit.is_ascii_digit()))
    };
    place.filter(is_line).map_or(function, |(name, _)| name)
}

fn check(checked: &mut BTreeMap<FunctionId, Checked>, id: &FunctionId, cost: ProbeCost) -> Result<Nanos, Refusal> {
    let open = path_of(&id.program);
    let file =
        open.as_deref().and_then(|path| fs::metadata(path).ok()).map(|meta| (meta.dev(), meta.ino(), meta.mtime()));
    if let Some(known) = checked.get(id).filter(|known| known.file == file) {
        return known.cost.clone();
    }
    let gone = || Refusal::Unreadable("no process runs it".into());
    let cost = open.ok_or_else(gone).and_then(|path| {
        let site = Binary::open(&path)?.site(&id.function)?;
        Ok(cost_of(&path, &site, cost))
    });
    checked.insert(id.clone(), Checked { file, cost: cost.clone() });
    cost
}

/// A path by which the agent can open a program: it may be one of a container.
fn path_of(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.is_file() {
        return Some(path.into());
    }
    let exes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path().join("exe"));
    exes.into_iter().find(|exe| fs::read_link(exe).is_ok_and(|target| target == path))
}

/// CPU that the probes of a call take, the agent's included, nanoseconds.
fn cost_of(file: &Path, site: &Site, cost: ProbeCost) -> Nanos {
    let mut code = [0u8; 2];
    let read = fs::File::open(file).and_then(|file| file.read_exact_at(&mut code, site.entry));
    let entry = if read.is_ok() && is_emulated(code) { cost.emulated } else { cost.stepped };
    // At a return of Go is another probe.
    let back = if site.ends.is_empty() { cost.returned } else { cost.stepped };
    entry + back + AGENT
}

/// Whether the kernel emulates the instruction, a push or a `nop`, that these bytes begin. x86-64; elsewhere it may think so of
/// few others, which cost less than it thinks.
fn is_emulated(code: [u8; 2]) -> bool {
    matches!(code, [0x50..=0x57 | 0x90, _] | [0x41, 0x50..=0x57])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_part_of_a_name() {
        for (shown, name) in [
            ("parse (src/json.c:112)", "parse"),
            ("parse", "parse"),
            ("shop::add(int, char const*)", "shop::add(int, char const*)"),
            ("shop::add(int) (shop.cc:7)", "shop::add(int)"),
            ("f (a:b)", "f (a:b)"),
            ("f (:)", "f (:)"),
        ] {
            assert_eq!(without_line(shown), name);
        }
    }

    #[test]
    fn functions_of_this_program_have_a_cost() {
        let cost = ProbeCost { emulated: 10, stepped: 100, returned: 20 };
        let own = std::env::current_exe().unwrap();
        let id = |function: &str| FunctionId { program: own.to_str().unwrap().into(), function: function.into() };
        let mut checked = BTreeMap::new();
        let found = check(&mut checked, &id("main"), cost).unwrap();
        assert!([10 + 20 + AGENT, 100 + 20 + AGENT].contains(&found), "{found}");
        assert!(matches!(check(&mut checked, &id("no such function"), cost), Err(Refusal::NoSymbol { .. })));
        let nowhere = FunctionId { program: "/nowhere".into(), function: "f".into() };
        assert!(matches!(check(&mut checked, &nowhere, cost), Err(Refusal::Unreadable(_))));
        assert_eq!(checked.len(), 3);
        assert!(is_emulated([0x55, 0]) && is_emulated([0x41, 0x57]) && !is_emulated([0x49, 0x3b]));
    }
}
