//! Spans of work to request classes: user rules first, else templates learned from paths.
//!
//! Only the answer says whether a path is one of the application's, so a path of which nothing is known is classed when it
//! is answered ([`Classifier::classify`]); one that is known is classed at once ([`Classifier::known`]). Paths that no route
//! answered teach nothing, and are one class of their method: `GET {unmatched}`.

mod answer;
pub mod rules;
pub mod template;
mod tokens;
pub mod tree;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use answer::PathEvidence;
use rules::Rule;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::text;
use tracer_model::{ClassId, ClassInfo, Names, ProtocolId, ServiceId, Side};
use tracer_protocols::{Conventions, UNNAMED, grpc, messaging};

use crate::open_span::OpenSpan;
pub use tokens::has_known_prefix;
use tree::{FinalRoute, Growth, Tree};

/// Longest path remembered, bytes: a longer one is followed anew each time.
const CACHED_PATH: usize = 512;
/// Most methods of one service and side that get trees of their own.
const METHODS: usize = 32;
/// Most classes of one service for paths of which no answer says whether there is a route (refused, never answered).
const UNPROVEN: usize = 16;
/// The route of paths that no route answered.
const UNMATCHED: &str = "{unmatched}";

/// Bounds over all services.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most classes; beyond it requests that would begin one are counted under its parent.
    pub classes: usize,
    /// Most positions in the trees of paths; beyond it new words count as values.
    pub positions: usize,
    /// Most exact paths remembered; beyond it they are all forgotten and learned again.
    pub cache: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { classes: 10_000, positions: 400_000, cache: 16_384 }
    }
}

impl Bounds {
    /// Bounds for an agent that may take `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        let Self { classes, positions, cache } = Self::default();
        let scaled = |most| scaled(most, memory);
        Self { classes: scaled(classes), positions: scaled(positions), cache: scaled(cache) }
    }
}

/// How full the classifier is.
#[derive(Clone, Copy, Debug)]
pub struct ClassTables {
    /// Classes.
    pub classes: TableUse,
    /// Positions of paths.
    pub positions: TableUse,
    /// Exact paths remembered.
    pub cache: TableUse,
}

/// How requests are classed.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// Most classes per service.
    pub max_per_service: usize,
    /// Different words at one position of a path from which on it may be one of values.
    pub learn_after: usize,
    /// User rules, first match wins.
    pub rules: Vec<Rule>,
}

impl Default for ClassConfig {
    fn default() -> Self {
        Self { max_per_service: 200, learn_after: 30, rules: Vec::new() }
    }
}

impl ClassConfig {
    /// Headers the rules look at, lower case, in the order of the index the rules use.
    pub fn header_names(&self) -> Vec<Box<str>> {
        let mut names: Vec<Box<str>> = Vec::new();
        for rule in &self.rules {
            if let Some(header) = &rule.header
                && !names.contains(&header.name)
            {
                names.push(header.name.clone());
            }
        }
        names
    }

    /// Whether a rule looks at the host.
    pub fn wants_host(&self) -> bool {
        self.rules.iter().any(|rule| rule.host.is_some())
    }
}

/// What is known of a request that is to be classed.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Service.
    pub service: ServiceId,
    /// Protocol name.
    pub protocol: ProtocolId,
    /// Entry or exit port.
    pub side: Side,
    /// Method.
    pub method: &'a str,
    /// Path without query.
    pub path: &'a str,
    /// Host, where known.
    pub host: Option<&'a str>,
    /// Values of the headers rules look at, by index in [`ClassConfig::header_names`].
    pub headers: &'a [(u16, Box<str>)],
    /// Server's port.
    pub port: u16,
    /// Status, once known.
    pub status: Option<u16>,
}

impl<'a> Facts<'a> {
    /// Those of a span that is open, or not reported yet; `status` is that of its reply, if its class may depend on it.
    pub fn of_open(span: &'a OpenSpan, status: Option<u16>) -> Self {
        Self {
            service: span.service,
            protocol: span.protocol,
            side: span.side,
            method: &span.request.method,
            path: &span.request.path,
            host: span.request.host.as_deref(),
            headers: &span.request.headers,
            port: if span.side == Side::Server { span.endpoints.local_port } else { span.endpoints.peer_port },
            status,
        }
    }
}

/// What is kept per service.
#[derive(Debug, Default)]
struct Service {
    classes: usize,
    merged: u64,
    trees: Trees,
    /// Names of classes that no answer has proven; at most [`UNPROVEN`].
    unproven: Vec<Arc<str>>,
}

/// The trees of one service by protocol, side and method; few enough to search.
#[derive(Debug, Default)]
struct Trees(Vec<(TreeKey, Tree)>);

/// Protocol, side and method.
type TreeKey = (ProtocolId, Side, Arc<str>);

impl Trees {
    fn index(&self, protocol: ProtocolId, side: Side, method: &str) -> Option<usize> {
        self.0.iter().position(|((of, at, named), _)| *of == protocol && *at == side && **named == *method)
    }

    fn get(&self, protocol: ProtocolId, side: Side, method: &str) -> Option<&Tree> {
        Some(&self.0.get(self.index(protocol, side, method)?)?.1)
    }

    fn get_mut(&mut self, protocol: ProtocolId, side: Side, method: &str) -> Option<&mut Tree> {
        let index = self.index(protocol, side, method)?;
        Some(&mut self.0.get_mut(index)?.1)
    }

    /// The tree, a new one if there is none and fewer than [`METHODS`].
    fn get_or_begin(&mut self, protocol: ProtocolId, side: Side, method: &str) -> Option<&mut Tree> {
        let known = self.index(protocol, side, method);
        if known.is_none() && self.0.len() < METHODS {
            self.0.push(((protocol, side, method.into()), Tree::default()));
        }
        let index = known.or_else(|| self.index(protocol, side, method))?;
        Some(&mut self.0.get_mut(index)?.1)
    }
}

/// Gives requests their class.
#[derive(Debug)]
pub struct Classifier {
    config: ClassConfig,
    headers: Vec<Box<str>>,
    status_rules: bool,
    services: FxHashMap<ServiceId, Service>,
    ids: HashMap<(ServiceId, ProtocolId, Side, Arc<str>), ClassId>,
    /// Service classes of the classes that rules name.
    service_classes: FxHashMap<ClassId, Arc<str>>,
    cache: FxHashMap<u64, SmallVec<[Cached; 1]>>,
    cached: usize,
    bounds: Bounds,
    /// Requests that would begin a class are counted under its parent.
    folding: bool,
    positions: usize,
    /// Times each bound was reached: classes, positions, cache.
    reached: [u64; 3],
}

/// The class of an exact request.
#[derive(Debug)]
struct Cached {
    key: ClassKey,
    class: ClassId,
    /// Requests so far. Its tree counts them whenever they have doubled.
    hits: u64,
    /// Whether its class is a route of a tree.
    routed: bool,
}

/// An exact request.
#[derive(Debug, PartialEq, Eq)]
struct ClassKey {
    service: ServiceId,
    protocol: ProtocolId,
    side: Side,
    method: Box<str>,
    path: Box<str>,
}

impl Classifier {
    /// A classifier that has seen nothing.
    pub fn new(config: &ClassConfig) -> Self {
        Self {
            headers: config.header_names(),
            status_rules: config.rules.iter().any(|rule| !rule.status.is_empty()),
            config: config.clone(),
            services: FxHashMap::default(),
            ids: HashMap::new(),
            service_classes: FxHashMap::default(),
            cache: FxHashMap::default(),
            cached: 0,
            bounds: Bounds::default(),
            folding: false,
            positions: 0,
            reached: [0; 3],
        }
    }

    /// The same with these bounds over all services.
    #[must_use]
    pub fn within(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// How full everything is.
    pub fn table_use(&self) -> ClassTables {
        let Bounds { classes, positions, cache } = self.bounds;
        ClassTables {
            classes: TableUse::new(self.ids.len(), classes, self.reached[0]),
            positions: TableUse::new(self.positions, positions, self.reached[1]),
            cache: TableUse::new(self.cached, cache, self.reached[2]),
        }
    }

    /// Whether requests may begin classes. Where not, those that would are counted under the parents of these.
    pub fn allow_new(&mut self, allowed: bool) {
        if self.folding == allowed {
            self.folding = !allowed;
            // What was answered in the meantime is not to stay.
            self.forget_paths();
        }
    }

    /// Requests are classed by these rules from now on; `headers` are the names that the indices of their header values
    /// refer to. Classes that began stay.
    pub fn set_rules(&mut self, rules: Vec<Rule>, headers: Vec<Box<str>>) {
        if (&self.config.rules, &self.headers) == (&rules, &headers) {
            return;
        }
        self.status_rules = rules.iter().any(|rule| !rule.status.is_empty());
        self.config.rules = rules;
        self.headers = headers;
        self.service_classes.clear();
        self.forget_paths();
    }

    fn forget_paths(&mut self) {
        self.cache = FxHashMap::default();
        self.cached = 0;
    }

    /// The service class that a class's rule says; of several rules with one name the first that was met.
    pub fn service_class(&self, class: ClassId) -> Option<&Arc<str>> {
        self.service_classes.get(&class)
    }

    /// Classes of a service so far.
    pub fn classes(&self, service: ServiceId) -> usize {
        self.services.get(&service).map_or(0, |service| service.classes)
    }

    /// Requests of a service that went to a parent because there were too many classes.
    pub fn merged_total(&self, service: ServiceId) -> u64 {
        self.services.get(&service).map_or(0, |service| service.merged)
    }

    /// The class of a request that is not answered yet, where its answer can make no difference.
    pub fn known(&mut self, names: &mut Names, facts: &Facts<'_>) -> Option<ClassId> {
        if self.status_rules {
            return None;
        }
        if let Some(id) = self.rule(names, facts).or_else(|| self.cached(facts)) {
            return Some(id);
        }
        let conventions = facts.protocol.conventions();
        if facts.method == UNNAMED || conventions != Conventions::Http {
            return Some(self.learn(names, facts, PathEvidence::Routed));
        }
        let method = method(facts, conventions);
        let tree = self.services.get_mut(&facts.service)?.trees.get_mut(facts.protocol, facts.side, method)?;
        match tree.find_final(facts.path)? {
            FinalRoute::Class(id) => {
                self.remember(facts, id, true);
                Some(id)
            }
            FinalRoute::New(route) => {
                let key = (facts.service, facts.protocol, facts.side, Arc::from(format!("{method} {route}")));
                // Not where there was no room, and its parent has its requests: there may be later.
                let has_place = self.ids.contains_key(&key);
                let id = self.of_route(names, facts, method, &route, true);
                let service = self.services.get_mut(&facts.service).filter(|_| has_place);
                if let Some(tree) =
                    service.and_then(|service| service.trees.get_mut(facts.protocol, facts.side, method))
                {
                    tree.set_class(facts.path, id);
                }
                Some(id)
            }
        }
    }

    /// What a request that is not answered yet may be called; it becomes no class by that.
    pub fn provisional(&mut self, names: &mut Names, facts: &Facts<'_>) -> Arc<str> {
        let rule_or_known = self.rule(names, facts).or_else(|| self.known(names, facts));
        if let Some(info) = rule_or_known.and_then(|id| names.class(id)) {
            return Arc::clone(&info.name);
        }
        self.preview(names, facts)
    }

    /// The same without a change of anything: for those who only look.
    pub fn preview(&self, names: &Names, facts: &Facts<'_>) -> Arc<str> {
        let service_name = names.service(facts.service);
        if let Some(rule) = self.config.rules.iter().find(|rule| rule.fits(facts, &service_name, &self.headers)) {
            return Arc::clone(&rule.name);
        }
        let method = method(facts, facts.protocol.conventions());
        let service = self.services.get(&facts.service);
        let tree = service.and_then(|service| service.trees.get(facts.protocol, facts.side, method));
        let route = tree.and_then(|tree| tree.find(facts.path)).map(|found| found.route);
        Arc::from(format!("{method} {}", route.unwrap_or_else(|| tree::guess(facts.path))))
    }

    /// The class of a request that is over.
    pub fn classify(&mut self, names: &mut Names, facts: &Facts<'_>) -> ClassId {
        if let Some(id) = self.rule(names, facts).or_else(|| self.cached(facts)) {
            return id;
        }
        self.learn(names, facts, PathEvidence::of(facts.protocol.conventions(), facts.status))
    }

    /// The class `name`, as the configuration names it.
    pub fn named(&mut self, names: &mut Names, facts: &Facts<'_>, name: Arc<str>) -> ClassId {
        self.id(names, facts, name, Arc::from(""), true)
    }

    /// The class of the first rule that fits.
    fn rule(&mut self, names: &mut Names, facts: &Facts<'_>) -> Option<ClassId> {
        if self.config.rules.is_empty() {
            return None;
        }
        let service_name = names.service(facts.service);
        let rule = self.config.rules.iter().find(|rule| rule.fits(facts, &service_name, &self.headers))?;
        let (name, route) = (Arc::clone(&rule.name), Arc::from(""));
        let service_class = rule.service_class.clone();
        let id = self.id(names, facts, Arc::clone(&name), route, true);
        // Where there was no room it is counted under a parent, which others share.
        if let Some(service_class) = service_class
            && !self.service_classes.contains_key(&id)
            && names.class(id).is_some_and(|info| info.name == name)
        {
            self.service_classes.insert(id, service_class);
        }
        Some(id)
    }

    fn cached(&mut self, facts: &Facts<'_>) -> Option<ClassId> {
        let entries = self.cache.get_mut(&hash(facts))?;
        let entry = entries.iter_mut().find(|Cached { key, .. }| {
            key.service == facts.service
                && key.protocol == facts.protocol
                && key.side == facts.side
                && *key.method == *facts.method
                && *key.path == *facts.path
        })?;
        entry.hits += 1;
        let class = entry.class;
        if entry.routed && entry.hits.is_power_of_two() {
            // Words that are asked for often stay when their position is collapsed.
            let (weight, method) = (entry.hits / 2, method(facts, facts.protocol.conventions()));
            let trees = self.services.get_mut(&facts.service).map(|service| &mut service.trees);
            if let Some(tree) = trees.and_then(|trees| trees.get_mut(facts.protocol, facts.side, method)) {
                tree.count(facts.path, weight);
            }
        }
        Some(class)
    }

    fn remember(&mut self, facts: &Facts<'_>, class: ClassId, routed: bool) {
        if facts.path.len() > CACHED_PATH {
            return;
        }
        if self.cached >= self.bounds.cache {
            self.reached[2] += 1;
            self.forget_paths();
        }
        self.cached += 1;
        let key = ClassKey {
            service: facts.service,
            protocol: facts.protocol,
            side: facts.side,
            method: facts.method.into(),
            path: facts.path.into(),
        };
        self.cache.entry(hash(facts)).or_default().push(Cached { key, class, hits: 1, routed });
    }

    fn learn(&mut self, names: &mut Names, facts: &Facts<'_>, answer: PathEvidence) -> ClassId {
        let conventions = facts.protocol.conventions();
        let name = if facts.method == UNNAMED {
            Some((Arc::from(UNNAMED), ""))
        } else if conventions == Conventions::Rpc {
            Some((Arc::from(grpc::method(facts.path)), ""))
        } else if matches!(conventions, Conventions::Database | Conventions::Names | Conventions::RoundTrips) {
            // The protocol itself names requests: from a list that ends, or by a summary.
            Some((Arc::from(if facts.path.is_empty() { facts.method } else { facts.path }), ""))
        } else if conventions == Conventions::Messaging && facts.path.is_empty() {
            Some((Arc::from(facts.method), ""))
        } else if conventions == Conventions::Messaging && !messaging::has_words(facts.protocol) {
            Some((Arc::from(format!("{} {}", facts.method, facts.path)), facts.path))
        } else {
            None
        };
        if let Some((name, route)) = name {
            let id = self.id(names, facts, name, Arc::from(route), false);
            self.remember(facts, id, false);
            return id;
        }
        let method = method(facts, conventions);
        if answer != PathEvidence::Routed {
            return self.not_routed(names, facts, method, answer);
        }
        let learn_after = self.config.learn_after;
        let service = self.services.entry(facts.service).or_default();
        let Some(tree) = service.trees.get_or_begin(facts.protocol, facts.side, method) else {
            return self.of_route(names, facts, method, "{other}", true);
        };
        let before = tree.len();
        let left = self.bounds.positions.saturating_sub(self.positions);
        self.reached[1] += u64::from(left == 0);
        // Where nothing new may begin, nothing new is learned either.
        let most = if self.folding { 0 } else { before + left };
        let growth = Growth { learn_after, most, weight: 1, shown_at_once: false };
        let found = if conventions == Conventions::Messaging {
            template::destination(tree, facts.protocol, facts.path, growth)
        } else {
            tree.insert(facts.path, growth)
        };
        self.positions = (self.positions + tree.len()).saturating_sub(before);
        if found.collapsed {
            // Paths under it have another class from now on.
            self.forget_paths();
        }
        self.of_route(names, facts, method, &found.route, found.stable)
    }

    /// The class of a request that no route is known to have answered: that of the route it would go to; else its own where
    /// there may be such a route, and there are not too many of these; else the one all others share.
    fn not_routed(&mut self, names: &mut Names, facts: &Facts<'_>, method: &str, answer: PathEvidence) -> ClassId {
        let service = self.services.entry(facts.service).or_default();
        let tree = service.trees.get(facts.protocol, facts.side, method);
        if let Some(found) = tree.and_then(|tree| tree.find(facts.path)) {
            return self.of_route(names, facts, method, &found.route, found.stable);
        }
        let guess = (answer == PathEvidence::Unproven).then(|| tree::guess(facts.path)).filter(|route| {
            let name = format!("{method} {route}");
            let known = service.unproven.iter().any(|known| **known == *name);
            if !known && service.unproven.len() < UNPROVEN {
                service.unproven.push(Arc::from(name));
                return true;
            }
            known
        });
        match guess {
            Some(route) => self.of_route(names, facts, method, &route, false),
            None => self.id(names, facts, Arc::from(format!("{method} {UNMATCHED}")), Arc::from(""), false),
        }
    }

    /// The class of a route; its path is remembered where the route is `stable`.
    fn of_route(&mut self, names: &mut Names, facts: &Facts<'_>, method: &str, route: &str, stable: bool) -> ClassId {
        let id = self.id(names, facts, Arc::from(format!("{method} {route}")), Arc::from(route), false);
        if stable {
            self.remember(facts, id, true);
        }
        id
    }

    /// The id of a class name; of its parent when the service has too many.
    fn id(&mut self, names: &mut Names, facts: &Facts<'_>, name: Arc<str>, route: Arc<str>, ruled: bool) -> ClassId {
        let key = (facts.service, facts.protocol, facts.side, name);
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        // An eighth of the places is for the parents of what finds none; when these are gone too, for the last resort.
        let room = self.bounds.classes - self.bounds.classes / 8;
        let (full, last) = (self.ids.len() >= room, self.ids.len() >= self.bounds.classes);
        let service = self.services.entry(facts.service).or_default();
        // Places are kept for rules and for the parents everything else merges into.
        let max = self.config.max_per_service;
        let limit = if ruled { max.saturating_sub(1) } else { max.saturating_sub(8) };
        // A rule's class is asked for by name and has its place; so have the parents.
        let full = full && !ruled;
        if service.classes >= limit || full || (self.folding && !ruled) {
            service.merged += 1;
            self.reached[0] += u64::from(full);
            let parent = template::parent(&key.3, last || service.classes + 1 >= max);
            if let Some(parent) = parent {
                let route = parent.split_once(' ').map_or("", |(_, route)| route);
                let (route, name) = (Arc::from(route), Arc::from(parent.as_str()));
                return self.id(names, facts, name, route, true);
            }
        }
        service.classes += 1;
        let id = ClassId(names.classes.len() as u32);
        // What it is found by stays as it came.
        names.classes.push(ClassInfo {
            service: facts.service,
            service_name: names.service(facts.service),
            protocol: facts.protocol,
            side: facts.side,
            name: printable(Arc::clone(&key.3)),
            route: printable(route),
        });
        self.ids.insert(key, id);
        id
    }
}

/// The same text as it may be shown.
fn printable(text: Arc<str>) -> Arc<str> {
    let written = match text::printable(&text) {
        Cow::Borrowed(_) => None,
        Cow::Owned(written) => Some(Arc::from(written)),
    };
    written.unwrap_or(text)
}

/// The method as classes name it.
fn method<'a>(facts: &Facts<'a>, conventions: Conventions) -> &'a str {
    // A messaging protocol's operations are of a list.
    let listed = conventions == Conventions::Messaging || template::known_method(facts.method);
    if listed { facts.method } else { "_OTHER" }
}

fn hash(facts: &Facts<'_>) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    (facts.service, facts.side, facts.method, facts.path).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod shape_tests;
#[cfg(test)]
mod tests;
