//! Units of work to request classes: user rules first, else templates learned from paths.

pub mod rules;
pub mod template;
pub mod tree;

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::guard::fill::{Fill, scaled};
use crate::model::{ClassId, ClassInfo, Names, ServiceId, Side};
use crate::protocols::{Conventions, UNNAMED, conventions, grpc, messaging};
use rules::Rule;
use tree::Tree;

/// Longest path remembered, bytes: a longer one is followed anew each time.
const CACHED_PATH: usize = 512;
/// Most methods of one service and side that get trees of their own.
const METHODS: usize = 32;

/// Bounds over all services.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most classes; beyond it requests that would begin one are counted under its parent.
    pub classes: usize,
    /// Most positions in the trees of paths; beyond it new words count as values.
    pub positions: usize,
    /// Most exact paths remembered; beyond it the memory is emptied and fills again.
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
pub struct ClassFills {
    /// Classes.
    pub classes: Fill,
    /// Positions of paths.
    pub positions: Fill,
    /// Exact paths remembered.
    pub cache: Fill,
}

/// How requests are classed.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// Most classes per service.
    pub max_per_service: usize,
    /// Different values at one position of a path before they are one class.
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
    pub protocol: &'static str,
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

/// What is kept per service.
#[derive(Debug, Default)]
struct Service {
    classes: usize,
    merged: u64,
    trees: HashMap<(&'static str, Side, Arc<str>), Tree>,
}

/// Gives requests their class.
#[derive(Debug)]
pub struct Classifier {
    config: ClassConfig,
    headers: Vec<Box<str>>,
    status_rules: bool,
    services: FxHashMap<ServiceId, Service>,
    ids: HashMap<(ServiceId, &'static str, Side, Arc<str>), ClassId>,
    /// Service classes of the classes that rules name.
    service_classes: FxHashMap<ClassId, Arc<str>>,
    cache: FxHashMap<u64, Vec<(Key, ClassId)>>,
    cached: usize,
    bounds: Bounds,
    /// Requests that would begin a class are counted under its parent.
    folding: bool,
    positions: usize,
    /// Times each bound was reached: classes, positions, cache.
    reached: [u64; 3],
}

/// An exact request.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    service: ServiceId,
    protocol: &'static str,
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
    pub fn fills(&self) -> ClassFills {
        let Bounds { classes, positions, cache } = self.bounds;
        ClassFills {
            classes: Fill::new(self.ids.len(), classes, self.reached[0]),
            positions: Fill::new(self.positions, positions, self.reached[1]),
            cache: Fill::new(self.cached, cache, self.reached[2]),
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

    fn forget_paths(&mut self) {
        self.cache = FxHashMap::default();
        self.cached = 0;
    }

    /// Whether a class can depend on the reply, so that it is known only at the end.
    pub fn has_status_rules(&self) -> bool {
        self.status_rules
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

    /// The class of a request.
    pub fn classify(&mut self, names: &mut Names, facts: &Facts<'_>) -> ClassId {
        if !self.config.rules.is_empty() {
            let service_name = names.service(facts.service);
            let hit = self.config.rules.iter().find(|rule| rule.fits(facts, &service_name, &self.headers));
            if let Some(rule) = hit {
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
                return id;
            }
        }
        let hash = hash(facts);
        if let Some(entries) = self.cache.get(&hash)
            && let Some((_, id)) = entries.iter().find(|(key, _)| {
                key.service == facts.service
                    && key.protocol == facts.protocol
                    && key.side == facts.side
                    && *key.method == *facts.method
                    && *key.path == *facts.path
            })
        {
            return *id;
        }
        let id = self.learn(names, facts);
        if facts.path.len() > CACHED_PATH {
            return id;
        }
        if self.cached >= self.bounds.cache {
            self.reached[2] += 1;
            self.forget_paths();
        }
        self.cached += 1;
        let key = Key {
            service: facts.service,
            protocol: facts.protocol,
            side: facts.side,
            method: facts.method.into(),
            path: facts.path.into(),
        };
        self.cache.entry(hash).or_default().push((key, id));
        id
    }

    fn learn(&mut self, names: &mut Names, facts: &Facts<'_>) -> ClassId {
        if facts.method == UNNAMED {
            return self.id(names, facts, Arc::from(UNNAMED), Arc::from(""), false);
        }
        let conventions = conventions(facts.protocol);
        if conventions == Conventions::Rpc {
            return self.id(names, facts, Arc::from(grpc::method(facts.path)), Arc::from(""), false);
        }
        if matches!(conventions, Conventions::Database | Conventions::Names | Conventions::Turns) {
            // The protocol itself names requests: from a list that ends, or by a summary.
            let name = if facts.path.is_empty() { facts.method } else { facts.path };
            return self.id(names, facts, Arc::from(name), Arc::from(""), false);
        }
        let messaging = conventions == Conventions::Messaging;
        if messaging && facts.path.is_empty() {
            return self.id(names, facts, Arc::from(facts.method), Arc::from(""), false);
        }
        if messaging && !messaging::has_words(facts.protocol) {
            let name = Arc::from(format!("{} {}", facts.method, facts.path));
            return self.id(names, facts, name, Arc::from(facts.path), false);
        }
        // A messaging protocol's operations are of a list.
        let method: Arc<str> =
            if messaging || template::known_method(facts.method) { facts.method.into() } else { "_OTHER".into() };
        let learn_after = self.config.learn_after;
        let service = self.services.entry(facts.service).or_default();
        let room = service.trees.len() < METHODS;
        let tree_key = (facts.protocol, facts.side, Arc::clone(&method));
        let found = if room || service.trees.contains_key(&tree_key) {
            let tree = service.trees.entry(tree_key).or_default();
            let before = tree.len();
            let left = self.bounds.positions.saturating_sub(self.positions);
            self.reached[1] += u64::from(left == 0);
            // Where nothing new may begin, nothing new is learned either.
            let most = if self.folding { 0 } else { before + left };
            let found = if messaging {
                template::destination(tree, facts.protocol, facts.path, learn_after, most)
            } else {
                tree.insert(facts.path, learn_after, most)
            };
            self.positions = (self.positions + tree.len()).saturating_sub(before);
            if found.collapsed {
                // Paths under it have another class from now on.
                self.cache = FxHashMap::default();
                self.cached = 0;
            }
            found.route
        } else {
            "{other}".into()
        };
        let name: Arc<str> = Arc::from(format!("{method} {found}"));
        self.id(names, facts, name, Arc::from(found), false)
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
        names.classes.push(ClassInfo {
            service: facts.service,
            service_name: names.service(facts.service),
            protocol: facts.protocol,
            side: facts.side,
            name: Arc::clone(&key.3),
            route,
        });
        self.ids.insert(key, id);
        id
    }
}

fn hash(facts: &Facts<'_>) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    (facts.service, facts.side, facts.method, facts.path).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn classify(classifier: &mut Classifier, names: &mut Names, method: &str, path: &str) -> String {
        let facts = Facts {
            service: ServiceId(0),
            protocol: "http",
            side: Side::Server,
            method,
            path,
            host: None,
            headers: &[],
            port: 80,
            status: None,
        };
        let id = classifier.classify(names, &facts);
        names.class(id).unwrap().name.to_string()
    }

    #[test]
    fn names_come_from_templates() {
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
        for (method, path, expected) in [
            ("GET", "/users/17", "GET /users/{id}"),
            ("GET", "/users/18/orders/5", "GET /users/{id}/orders/{id}"),
            ("GET", "/", "GET /"),
            ("OPTIONS", "*", "OPTIONS *"),
            ("BREW", "/pot", "_OTHER /pot"),
            ("CONNECT", "h:443", "CONNECT {authority}"),
        ] {
            assert_eq!(classify(&mut classifier, &mut names, method, path), expected);
        }
    }

    #[test]
    fn commands_are_their_own_class() {
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
        for (protocol, method, expected) in
            [("redis", "CONFIG SET", "CONFIG SET"), ("redis", "GET", "GET"), ("http", "GET", "GET /")]
        {
            let facts = Facts {
                service: ServiceId(0),
                protocol,
                side: Side::Server,
                method,
                path: "",
                host: None,
                headers: &[],
                port: 6379,
                status: None,
            };
            let id = classifier.classify(&mut names, &facts);
            assert_eq!(&*names.class(id).unwrap().name, expected);
        }
    }

    #[test]
    fn destinations_become_templates() {
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
        let mut class = |protocol, method: &str, path: &str| {
            let facts = Facts {
                service: ServiceId(0),
                protocol,
                side: Side::Server,
                method,
                path,
                host: None,
                headers: &[],
                port: 4222,
                status: None,
            };
            let id = classifier.classify(&mut names, &facts);
            let info = names.class(id).unwrap();
            (info.name.to_string(), info.route.to_string())
        };
        for (protocol, method, path, name, route) in [
            ("nats", "publish", "orders.17.created", "publish orders.{id}.created", "orders.{id}.created"),
            ("nats", "publish", "_INBOX.5KpQzWnTVmCcXqYj0aLb3d.7", "publish _INBOX.{inbox}", "_INBOX.{inbox}"),
            ("nats", "connect", "", "connect", ""),
        ] {
            assert_eq!(class(protocol, method, path), (name.to_owned(), route.to_owned()));
        }
        for i in 0..500 {
            class("nats", "publish", &format!("users.{}.seen", word(i)));
        }
        assert_eq!(class("nats", "publish", "users.anybody.seen").1, "users.{param}.seen");
    }

    #[test]
    fn values_of_a_position_are_learned() {
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
        for i in 0..500 {
            classify(&mut classifier, &mut names, "GET", &format!("/shop/{}/view", word(i)));
        }
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/shop/anything/view"), "GET /shop/{param}/view");
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/shop/abc/view"), "GET /shop/{param}/view");
    }

    fn word(i: usize) -> String {
        let letters = ['a', 'e', 'i', 'o', 'u', 'n', 's', 't'];
        (0..4).map(|k| letters[(i >> (3 * k)) % 8]).collect()
    }

    #[test]
    fn scanners_cannot_make_classes_without_end() {
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
        for i in 0..5000 {
            let path = format!("/{}/{}/{}.php", word(i), word(i / 7), word(i / 3));
            classify(&mut classifier, &mut names, "GET", &path);
            classify(&mut classifier, &mut names, "POST", &format!("/x{}", "/a".repeat(i % 100)));
        }
        assert!(classifier.classes(ServiceId(0)) <= 200, "{}", classifier.classes(ServiceId(0)));
    }

    #[test]
    fn nothing_new_begins_while_folding_and_old_classes_go_on() {
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
        for path in ["/a", "/b/17", "/c/words"] {
            classify(&mut classifier, &mut names, "GET", path);
        }
        classifier.allow_new(false);
        let positions = classifier.fills().positions.entries;
        for (path, class) in [
            ("/a", "GET /a"),
            ("/b/18", "GET /b/{id}"),
            ("/new", "GET {other}"),
            ("/new/17", "GET {other}"),
            ("/c/words", "GET /c/words"),
            ("/c/other", "GET {other}"),
        ] {
            assert_eq!(classify(&mut classifier, &mut names, "GET", path), class, "{path}");
        }
        assert!(classifier.merged_total(ServiceId(0)) >= 3);
        for i in 0..1000 {
            classify(&mut classifier, &mut names, "GET", &format!("/flood/{}", word(i)));
        }
        let grown = classifier.fills().positions.entries - positions;
        assert!(grown < 8 && classifier.classes(ServiceId(0)) <= 5, "{grown}");
        classifier.allow_new(true);
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/new"), "GET /new");
    }

    #[test]
    fn all_services_together_are_bounded() {
        let bounds = Bounds { classes: 40, positions: 60, cache: 10 };
        let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()).within(bounds), Names::default());
        for i in 0..2000 {
            let path = format!("/{}/{}", word(i), word(i * 7));
            let facts = Facts {
                service: ServiceId(i as u32 % 50),
                protocol: "http",
                side: Side::Server,
                method: "GET",
                path: &path,
                host: None,
                headers: &[],
                port: 80,
                status: None,
            };
            classifier.classify(&mut names, &facts);
            let fills = classifier.fills();
            // Every service may have its `GET {other}` beside.
            assert!(fills.classes.entries <= 40 + 50, "{fills:?}");
            // Values share a place of their own under a position that is there.
            assert!(fills.positions.entries <= 60 + 2 * 50 && fills.cache.entries <= 10, "{fills:?}");
        }
        let fills = classifier.fills();
        assert!(fills.classes.reached > 0 && fills.positions.reached > 0 && fills.cache.reached > 0, "{fills:?}");
    }

    proptest! {
        #[test]
        fn limits_hold_and_secrets_stay_out(
            paths in proptest::collection::vec("(/[a-z0-9_.%~-]{0,12}){0,5}", 0..300),
            token in "[A-Za-z0-9]{24,40}",
        ) {
            let config = ClassConfig { max_per_service: 20, ..ClassConfig::default() };
            let (mut classifier, mut names) = (Classifier::new(&config), Names::default());
            for path in &paths {
                classify(&mut classifier, &mut names, "GET", path);
            }
            prop_assert!(classifier.classes(ServiceId(0)) <= 20);
            let secret = format!("/reset/{token}0b/confirm");
            let name = classify(&mut classifier, &mut names, "GET", &secret);
            prop_assert!(!name.contains(&token), "{}", name);
        }
    }
}
