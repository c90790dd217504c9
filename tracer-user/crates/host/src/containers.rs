//! The containers that the processes of each service run in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_model::ServiceId;

use super::container::Container;

/// Maximum number of processes in containers; as many as the engine follows.
const PROCESSES: usize = 65_536;
/// Maximum number of containers that are listed for a service.
const LISTED: usize = 64;

/// By process.
#[derive(Debug, Default)]
pub struct Containers(FxHashMap<u32, (ServiceId, Arc<Container>)>);

impl Containers {
    /// A process of a service runs in this container, or in none. Beyond the limit it is not listed.
    pub fn set(&mut self, tgid: u32, service: ServiceId, container: Option<Container>) {
        self.forget(tgid);
        if let Some(container) = container
            && self.0.len() < PROCESSES
        {
            self.0.insert(tgid, (service, Arc::new(container)));
        }
    }

    /// The process is gone.
    pub fn forget(&mut self, tgid: u32) {
        self.0.remove(&tgid);
    }

    /// Containers of every service by id with the number of its processes in them: 64 at most a service.
    pub fn by_service(&self) -> HashMap<ServiceId, Vec<(&Container, usize)>> {
        let mut found: HashMap<ServiceId, BTreeMap<&Container, usize>> = HashMap::new();
        for (service, container) in self.0.values() {
            *found.entry(*service).or_default().entry(container).or_default() += 1;
        }
        found.into_iter().map(|(service, all)| (service, all.into_iter().take(LISTED).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_counted_by_service_and_forgotten() {
        let of = |id: &str| Some(Container { id: id.into(), runtime: "docker", pod_uid: None });
        let mut containers = Containers::default();
        containers.set(1, ServiceId(0), of("a"));
        containers.set(2, ServiceId(0), of("a"));
        containers.set(3, ServiceId(0), of("b"));
        containers.set(4, ServiceId(1), of("a"));
        // Another program with that id now.
        containers.set(3, ServiceId(0), None);
        let listed = |service| -> Vec<(String, usize)> {
            let all = containers.by_service().remove(&ServiceId(service)).unwrap_or_default();
            all.into_iter().map(|(one, count)| (one.id.clone(), count)).collect()
        };
        assert_eq!(listed(0), [("a".to_owned(), 2)]);
        assert_eq!(listed(1), [("a".to_owned(), 1)]);
        for tgid in 1..=4 {
            containers.forget(tgid);
        }
        assert!(containers.0.is_empty());
        for index in 0..100 {
            containers.set(index, ServiceId(0), of(&index.to_string()));
        }
        assert_eq!(containers.by_service()[&ServiceId(0)].len(), LISTED);
    }
}
