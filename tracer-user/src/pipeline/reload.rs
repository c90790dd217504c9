//! Another configuration of policies, while the pipeline runs: rules of request classes, declared transactions, service
//! classes.

use std::sync::Arc;

use tracer_protocols::Settings;
use tracer_results::metrics::DeclaredSums;
use tracer_runtimes::declared::{Declared, DeclaredChanges, DeclaredTable};

use super::Pipeline;
use crate::config::Config;

/// Most header names of rules since the start: requests that are open refer to them by number, so none is ever removed.
const HEADERS_MAX: usize = 256;

/// `known`, and behind them those of `wanted` that are not among them.
fn with_headers(known: &[Box<str>], wanted: Vec<Box<str>>) -> Vec<Box<str>> {
    let mut all = known.to_vec();
    for name in wanted {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

impl Pipeline {
    /// Why the policies of `config` cannot be taken up while the agent runs, if they cannot.
    pub fn obstacle_to_reload(&self, config: &Config) -> Option<String> {
        let headers = with_headers(&self.engine.settings().headers, config.header_names());
        (headers.len() > HEADERS_MAX).then(|| {
            format!(
                "rules used more than {HEADERS_MAX} names of headers since the start; restart the agent to use others"
            )
        })
    }

    /// Takes up the policies of `config`: new requests and calls follow them. What the declared transactions' probes have
    /// to follow is the answer.
    pub fn reload(&mut self, config: &Config) -> DeclaredChanges {
        let headers = with_headers(&self.engine.settings().headers, config.header_names());
        self.classifier.set_rules(config.classes.rules.clone(), headers.clone());
        let settings = Settings { headers, host: config.wants_host(), ..self.engine.settings().clone() };
        self.engine.set_settings(settings);
        let changes = self.declare(&config.declared);
        let old = Arc::clone(&self.policies.classes);
        let rows = self.attainment.rows();
        let services = rows.iter().filter_map(|row| {
            let name = &old.classes.get(row.class)?.name;
            Some((&**name, self.names.service(row.service)))
        });
        self.metrics.forget_service_classes(&old, &config.service_classes, &services.collect::<Vec<_>>());
        self.attainment.replace(&config.service_classes);
        self.policies.replace(&config.service_classes, config.enforcement.mode);
        changes
    }

    /// Takes up other declared transactions. Calls are expected from here on; their probes come afterwards.
    pub fn declare(&mut self, declared: &[Declared]) -> DeclaredChanges {
        let changes = self.declared.replace(declared);
        self.engine.expect_declared(self.declared.pairings());
        self.declared_reports.replace(&self.declared, &changes.removed);
        changes
    }

    /// Sums of a declared transaction, of all services.
    pub fn declared_sums(&self, number: usize) -> DeclaredSums {
        self.declared_reports.sums(number)
    }

    /// The declared transactions, by number.
    pub fn declared(&self) -> &DeclaredTable {
        &self.declared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_headers_stay() {
        let names = |all: &[&str]| all.iter().map(|name| Box::from(*name)).collect::<Vec<Box<str>>>();
        assert_eq!(with_headers(&names(&["a", "b"]), names(&["c", "b"])), names(&["a", "b", "c"]));
        let text = |names: std::ops::Range<u32>| {
            let rule = |n| format!("[[class]]\nname = \"x\"\nheader = {{ name = \"h{n}\", value = \"*\" }}\n");
            names.map(rule).collect::<Vec<_>>().concat()
        };
        let config = |text: &str| Config::parse("t", text).unwrap();
        let mut pipeline = Pipeline::new(&config(&text(0..200)), 1, 0, "host");
        assert_eq!(pipeline.obstacle_to_reload(&config(&text(100..256))), None);
        assert!(pipeline.obstacle_to_reload(&config(&text(200..257))).is_some());
        pipeline.reload(&config(&text(100..202)));
        assert_eq!(pipeline.engine.settings().headers.len(), 202);
    }
}
