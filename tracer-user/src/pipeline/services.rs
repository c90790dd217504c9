//! Assigns processes to services, and ids to services.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_host::container;
use tracer_host::process::ProcessFacts;
use tracer_host::services::{Identity, identify};
use tracer_model::text;
use tracer_model::{Nanos, ServiceId};

use super::{LEAVING, Pipeline};

/// Limit of services with a name of their own; later ones share one, visibly.
pub(super) const SERVICES: usize = 1024;
/// Name of the shared service.
const OTHER: &str = "_other";
/// Limit of places distinguished per name; programs elsewhere form one service.
const PLACES: usize = 8;

/// Programs of one name at different places. The first is called by its name alone as long as any process of it runs;
/// the others by name and place.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_name: HashMap<Box<str>, Vec<Place>>,
    /// Name and place index of each process.
    processes: FxHashMap<u32, (Box<str>, usize)>,
}

#[derive(Debug)]
struct Place {
    path: Box<str>,
    processes: usize,
}

impl Places {
    /// The service name of a process.
    fn name(&mut self, tgid: u32, identity: &Identity) -> String {
        self.forget(tgid);
        let Identity { name, place: Some(path) } = identity else { return identity.name.clone() };
        if self.by_name.len() >= SERVICES && !self.by_name.contains_key(name.as_str()) {
            return name.clone();
        }
        let places = self.by_name.entry(name.as_str().into()).or_default();
        let known = places.iter().position(|place| *place.path == **path);
        let index = known.or_else(|| {
            let count = places.len();
            match places.first_mut() {
                // No process of that name runs any more.
                Some(first) if first.processes == 0 => {
                    first.path = path.as_str().into();
                    Some(0)
                }
                _ if count < PLACES => {
                    places.push(Place { path: path.as_str().into(), processes: 0 });
                    Some(count)
                }
                _ => None,
            }
        });
        let Some(index) = index else { return Identity::with_place(name, OTHER) };
        if self.processes.len() < LEAVING
            && let Some(place) = places.get_mut(index)
        {
            place.processes += 1;
            self.processes.insert(tgid, (name.as_str().into(), index));
        }
        if index == 0 { name.clone() } else { Identity::with_place(name, path) }
    }

    /// The process has exited or runs another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        if let Some((name, index)) = self.processes.remove(&tgid)
            && let Some(place) = self.by_name.get_mut(&name).and_then(|places| places.get_mut(index))
        {
            place.processes = place.processes.saturating_sub(1);
        }
    }

    /// The place of a process's program, if it is called `name`.
    fn of(&self, tgid: u32, name: &str) -> Option<String> {
        let (known, index) = self.processes.get(&tgid).filter(|(known, _)| **known == *name)?;
        Some(self.by_name.get(known)?.get(*index)?.path.to_string())
    }
}

impl Pipeline {
    /// Takes the facts of a process. `parent`: the process that forked it, if it runs the same program: its working
    /// directory may have changed.
    pub(super) fn process_of(&mut self, tgid: u32, facts: &ProcessFacts, parent: Option<u32>) {
        let mut identity = identify(facts, &self.rules);
        if let Some(place) = parent.and_then(|parent| self.places.of(parent, &identity.name)) {
            identity.place = Some(place);
        }
        let name = self.places.name(tgid, &identity);
        let service = self.service(&name);
        self.workloads.process(tgid, facts, self.engine.now());
        self.subsystems.process(tgid, facts, &name);
        self.profiles.set_process(tgid, &self.names.service(service));
        self.profiles.set_instance(tgid, facts);
        self.history.identities.process(service, facts, parent.is_some());
        self.engine.process(tgid, service);
        self.containers.set(tgid, service, container::of_cgroup(&facts.cgroup));
        for writer in &mut self.writers {
            writer.process(tgid, facts);
        }
        if facts.is_python() {
            self.engine.has_loops(tgid);
        }
        if facts.moves_requests() {
            self.engine.moves_requests(tgid);
        }
    }

    /// From `now` on each wake-up between tasks of a process is seen.
    pub fn wakes_are_watched(&mut self, tgid: u32, now: Nanos) {
        self.engine.wakes_are_watched(tgid, now);
    }

    /// Wake-ups between tasks of a process are not watched any more.
    pub fn stop_watching_wakes(&mut self, tgid: u32) {
        self.engine.stop_watching_wakes(tgid);
    }

    /// The service of a process, if known.
    pub fn service_of(&self, tgid: u32) -> Option<ServiceId> {
        self.engine.service_of(tgid)
    }

    /// The id of a service, assigned at first sight.
    pub(super) fn service(&mut self, name: &str) -> ServiceId {
        let name = text::printable(name);
        if let Some(id) = self.services.get(&*name) {
            return *id;
        }
        let name = if self.names.services.len() >= SERVICES {
            self.services_refused += 1;
            if let Some(id) = self.services.get(OTHER) {
                return *id;
            }
            OTHER
        } else {
            &name
        };
        let name: Arc<str> = Arc::from(name);
        let id = ServiceId(self.names.services.len() as u32);
        self.names.services.push(Arc::clone(&name));
        self.services.insert(name, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(places: &mut Places, tgid: u32, name: &str, place: Option<&str>) -> String {
        places.name(tgid, &Identity { name: name.into(), place: place.map(str::to_owned) })
    }

    #[test]
    fn two_programs_of_one_name_are_two_services() {
        let mut places = Places::default();
        for (tgid, place, expected) in [
            (1, Some("/srv/a/server.js"), "server"),
            (2, Some("/opt/server"), "server@/opt/server"),
            (3, Some("/srv/a/server.js"), "server"),
            // The place is unknown, or the name was declared.
            (4, None, "server"),
            (2, Some("/opt/server"), "server@/opt/server"),
        ] {
            assert_eq!(name(&mut places, tgid, "server", place), expected);
        }
        // A release that replaces the first one takes over its name; the second keeps its own.
        places.forget(1);
        assert_eq!(name(&mut places, 5, "server", Some("/srv/b/server.js")), "server@/srv/b/server.js");
        places.forget(3);
        assert_eq!(name(&mut places, 6, "server", Some("/srv/c/server.js")), "server");
        assert_eq!(name(&mut places, 7, "server", Some("/opt/server")), "server@/opt/server");
        // The number of places is bounded.
        for n in 0..100 {
            name(&mut places, 100 + n, "server", Some(&format!("/{n}/server")));
        }
        assert_eq!(name(&mut places, 300, "server", Some("/300/server")), "server@_other");
        assert_eq!(places.by_name["server"].len(), PLACES);
        (0..400).for_each(|tgid| places.forget(tgid));
        assert!(places.processes.is_empty());
    }
}
