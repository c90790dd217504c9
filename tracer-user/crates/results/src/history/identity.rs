//! Whether a service still runs the same program: a deploy changes its identity, a worker that is forked does not.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tracer_host::process::ProcessFacts;
use tracer_model::ServiceId;

/// Programs remembered per service; one with more has no identity to speak of.
const PROGRAMS: usize = 16;
/// Services remembered.
const SERVICES: usize = 4096;

/// Ticks (hundredths of a second) after which a program that starts again replaces the newest: a rollback. Programs that
/// take turns start more often.
const TURNS: u64 = 60_000;

/// What a service runs.
#[derive(Clone, Debug, Default)]
struct Programs {
    /// Programs, and when each was started last, in ticks since boot.
    known: Vec<(u64, u64)>,
    newest: u64,
    /// Starts since last taken.
    starts: u32,
}

/// The programs of all services.
#[derive(Debug, Default)]
pub struct Identities {
    services: HashMap<ServiceId, Programs>,
    /// When the agent was started, ticks since boot: processes that are older did not start under its eyes.
    since: u64,
}

impl Identities {
    /// The agent was started at `ticks` since boot.
    pub fn begin(&mut self, ticks: u64) {
        self.since = ticks;
    }

    /// A process of a service was seen first. `forked`: it runs its parent's program.
    pub fn process(&mut self, service: ServiceId, facts: &ProcessFacts, forked: bool) {
        if forked || (self.services.len() >= SERVICES && !self.services.contains_key(&service)) {
            return;
        }
        let digest = digest(facts);
        let programs = self.services.entry(service).or_default();
        let at = facts.start_time;
        let older = at < self.since;
        programs.starts = programs.starts.saturating_add(u32::from(!older));
        let known = programs.known.iter_mut().find(|(known, _)| *known == digest);
        let news = match known {
            Some((_, last)) => at.saturating_sub(std::mem::replace(last, at.max(*last))) > TURNS,
            None => true,
        };
        if !programs.known.iter().any(|(known, _)| *known == digest) {
            if programs.known.len() >= PROGRAMS {
                programs.known.remove(0);
            }
            programs.known.push((digest, at));
        }
        if programs.newest == 0 || (news && !older) {
            programs.newest = digest;
        }
    }

    /// The identity of a service, and starts since last asked.
    pub(super) fn take(&mut self, service: ServiceId) -> (u64, u32) {
        let programs = self.services.get_mut(&service);
        programs.map_or((0, 0), |programs| (programs.newest, std::mem::take(&mut programs.starts)))
    }
}

/// A program by what it was started with: its files as they were then, and its command line.
fn digest(facts: &ProcessFacts) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&facts.exe, &facts.cmdline, facts.files).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_a_new_identity_and_a_worker_is_not() {
        let mut identities = Identities::default();
        let service = ServiceId(1);
        identities.begin(1000);
        let at = |files, start_time| ProcessFacts {
            exe: "/usr/bin/python3".into(),
            files,
            start_time,
            ..ProcessFacts::default()
        };
        let facts = |files| at(files, 2000);
        identities.process(service, &at(7, 500), false);
        let (old, starts) = identities.take(service);
        assert!(old != 0 && starts == 0, "it ran before the agent did");
        identities.process(service, &at(8, 600), false);
        assert_eq!(identities.take(service), (old, 0), "so did this one");
        identities.process(service, &facts(1), false);
        let (first, starts) = identities.take(service);
        assert_eq!(starts, 1);
        identities.process(service, &facts(2), true);
        assert_eq!(identities.take(service), (first, 0));
        identities.process(service, &facts(1), false);
        assert_eq!(identities.take(service), (first, 1), "a restart");
        identities.process(service, &facts(2), false);
        let (second, starts) = identities.take(service);
        assert!(second != first && starts == 1, "a deploy");
        identities.process(service, &at(1, 2000 + TURNS / 2), false);
        assert_eq!(identities.take(service), (second, 1), "they take turns");
        identities.process(service, &at(1, 2001 + 2 * TURNS), false);
        assert_eq!(identities.take(service), (first, 1), "a rollback");
        for files in 0..100 {
            identities.process(service, &facts(files), false);
        }
        assert!(identities.services[&service].known.len() <= PROGRAMS);
    }
}
