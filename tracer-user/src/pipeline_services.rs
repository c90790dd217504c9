//! Which service a process is of, and the ids of services.

use std::sync::Arc;

use super::Pipeline;
use crate::host::process::ProcessFacts;
use crate::host::services::service_name;
use crate::model::ServiceId;

/// Most services that get a name of their own; what comes later shares one, visibly.
pub(super) const SERVICES: usize = 1024;
/// Name of the shared one.
const OTHER: &str = "_other";

impl Pipeline {
    /// Takes the facts of a process.
    pub fn process(&mut self, tgid: u32, facts: &ProcessFacts) {
        let name = service_name(facts, &self.rules);
        let service = self.service(&name);
        self.profiles.set_process(tgid, &name);
        self.engine.process(tgid, service);
        if facts.is_python() {
            self.engine.has_loops(tgid);
        }
    }

    /// The service of a process, where that is known.
    pub fn service_of(&self, tgid: u32) -> Option<ServiceId> {
        self.engine.service_of(tgid)
    }

    /// The id of a service, given out at first sight.
    pub(super) fn service(&mut self, name: &str) -> ServiceId {
        if let Some(id) = self.services.get(name) {
            return *id;
        }
        let name = if self.names.services.len() >= SERVICES {
            self.services_refused += 1;
            if let Some(id) = self.services.get(OTHER) {
                return *id;
            }
            OTHER
        } else {
            name
        };
        let name: Arc<str> = Arc::from(name);
        let id = ServiceId(self.names.services.len() as u32);
        self.names.services.push(Arc::clone(&name));
        self.services.insert(name, id);
        id
    }
}
