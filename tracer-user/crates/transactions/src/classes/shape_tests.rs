//! Classes of whole APIs: many routes below one prefix, many values at one position, and clients that fetch each path once.

use std::collections::BTreeMap;

use super::*;

/// A path of a download, from a package's name and its first letters.
type Shape = fn(&str, &str, &str) -> String;

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn shuffled<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
        all
    }

    /// Names as people choose them: `mirenvel-labs`.
    fn name(&mut self) -> String {
        let syllables = ["ka", "lo", "mi", "ren", "tor", "vel", "sun", "dra", "pi", "ost", "qua", "zen"];
        let mut name: String = (0..3).map(|_| syllables[self.below(syllables.len())]).collect();
        name += ["", "-labs", "-io", "hub"][self.below(4)];
        name
    }

    fn names(&mut self, count: usize) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        while names.len() < count {
            let name = self.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Requests by class.
fn classes(side: Side, method: &str, paths: &[String]) -> BTreeMap<String, usize> {
    let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
    let mut found = BTreeMap::new();
    for path in paths {
        let facts = Facts {
            service: ServiceId(0),
            protocol: ProtocolId::Http,
            side,
            method,
            path,
            host: None,
            headers: &[],
            port: 80,
            status: Some(200),
        };
        let known = classifier.known(&mut names, &facts);
        let id = known.unwrap_or_else(|| classifier.classify(&mut names, &facts));
        *found.entry(names.class(id).unwrap().name.to_string()).or_default() += 1;
    }
    found
}

/// `/api/NOUN.VERB`.
fn methods(count: usize) -> Vec<String> {
    let nouns = ["user", "order", "invoice", "cart", "channel", "message", "team", "file"];
    let verbs = ["list", "create", "update", "archive", "search", "export"];
    let all = nouns.iter().flat_map(|noun| verbs.iter().map(move |verb| format!("/api/{noun}.{verb}")));
    all.take(count).collect()
}

fn repeated(paths: &[String], times: usize) -> Vec<String> {
    paths.iter().flat_map(|path| std::iter::repeat_n(path.clone(), times)).collect()
}

/// Every path is a class of its own but for its first requests, of which there are `hidden` at most.
fn assert_own(shape: &str, paths: &[String], requests: &[String], hidden: usize) {
    let found = classes(Side::Server, "POST", requests);
    for path in paths {
        let sent = requests.iter().filter(|request| *request == path).count();
        let own = found.get(&format!("POST {path}")).copied().unwrap_or(0);
        assert!(own > 0 && own + hidden >= sent, "{shape}: {path} has {own} of {sent}; {found:?}");
    }
}

#[test]
fn routes_that_come_back_are_classes_however_many_a_prefix_has() {
    let mut random = Random(5);
    for count in [28, 32, 48] {
        let routes = methods(count);
        assert_own("shuffled", &routes, &random.shuffled(repeated(&routes, 12)), 3);
        assert_own("one after the other", &routes, &repeated(&routes, 12), 3);
    }
    let routes = methods(48);
    let hot_and_rare = [repeated(&routes[..20], 60), repeated(&routes[20..], 3)].concat();
    assert_own("20 hot and 28 rare", &routes, &random.shuffled(hot_and_rare), 3);
    let resources: Vec<String> =
        "users orders invoices carts channels messages teams files products prices stocks reviews ratings coupons refunds \
         payments shipments addresses countries currencies languages settings themes pages menus widgets reports exports \
         imports webhooks tokens sessions roles permissions audits events jobs queues tasks notes"
            .split_whitespace()
            .map(|name| format!("/v1/{name}"))
            .collect();
    assert_eq!(resources.len(), 40);
    // Not like a word: it takes more.
    let (unlike, words): (Vec<_>, Vec<_>) = resources.iter().cloned().partition(|path| path == "/v1/webhooks");
    let requests = random.shuffled(repeated(&resources, 12));
    assert_own("resources", &words, &requests, 3);
    assert_own("no plain word", &unlike, &requests, 9);
    let top: Vec<String> = words.iter().map(|path| path.replacen("/v1", "", 1)).collect();
    assert_own("resources at the top", &top, &random.shuffled(repeated(&top, 12)), 3);
    let many: Vec<String> = methods(48).iter().flat_map(|path| ["", "s"].map(|end| format!("{path}{end}"))).collect();
    assert_own("96 one after the other", &many, &repeated(&many, 12), 3);
}

#[test]
fn values_that_keep_coming_are_few_classes() {
    let mut random = Random(7);
    let names = random.names(150);
    let pages = ["issues", "pulls", "wiki"];
    let repositories: Vec<String> = (0..900)
        .map(|_| format!("/{}/{}/{}", names[random.below(150)], names[random.below(150)], pages[random.below(3)]))
        .collect();
    let found = classes(Side::Server, "GET", &repositories);
    assert!(found.len() <= 30, "{} classes: {found:?}", found.len());
    let shared: usize = pages.iter().filter_map(|page| found.get(&format!("GET /{{param}}/{{param}}/{page}"))).sum();
    assert!(shared > 700, "{found:?}");
    // A few users come back often, most never; one word is everybody's.
    let users = random.names(1500);
    let profiles: Vec<String> = (0..4000)
        .map(|n| {
            let rank = random.below(1500) * random.below(1500) / 1500;
            if n % 4 == 0 { "/profile/settings".to_owned() } else { format!("/profile/{}", users[rank]) }
        })
        .collect();
    let found = classes(Side::Server, "GET", &profiles);
    assert!(found.len() <= 12, "{} classes: {found:?}", found.len());
    assert!(found["GET /profile/settings"] > 950, "{found:?}");
}

#[test]
fn a_client_that_fetches_each_path_once_has_few_classes() {
    let mut random = Random(11);
    let packages = random.names(400);
    let hex = |random: &mut Random| format!("{:02x}", random.below(256));
    let letters: Vec<[String; 2]> = (0..400)
        .map(|_| [(); 2].map(|()| (0..2).map(|_| char::from(b'a' + random.below(26) as u8)).collect()))
        .collect();
    let sparse: Vec<String> =
        packages.iter().zip(&letters).map(|(name, [one, two])| format!("/{one}/{two}/{one}{two}{name}")).collect();
    let found = classes(Side::Client, "GET", &sparse);
    assert!(found.len() <= 30, "a sparse index: {} classes: {found:?}", found.len());
    let shapes: [(&str, Shape); 5] = [
        ("wheels", |name, one, two| format!("/packages/{one}/{two}/5af3107a4000d2e1/{name}-1.2.whl")),
        ("an index", |name, _, _| format!("/simple/{name}/")),
        ("names at the top", |name, _, _| format!("/{name}")),
        ("archives", |name, _, _| format!("/{name}/-/{name}-1.2.3.tgz")),
        ("a distribution", |name, _, _| format!("/debian/pool/main/{}/{name}/{name}_1.2-3_all.deb", &name[..1])),
    ];
    for (shape, path) in shapes {
        let paths: Vec<String> = packages.iter().map(|name| path(name, &hex(&mut random), &hex(&mut random))).collect();
        let found = classes(Side::Client, "GET", &paths);
        assert!(found.len() <= 36, "{shape}: {} classes: {found:?}", found.len());
        let single = found.values().filter(|requests| **requests == 1).count();
        assert!(single <= 24, "{shape}: {single} classes of one request: {found:?}");
    }
    // A client of an API has its classes.
    let calls: Vec<String> =
        (0..40).map(|n| format!("/users/{n}")).chain(repeated(&["/health".to_owned()], 40)).collect();
    let found = classes(Side::Client, "GET", &calls);
    assert_eq!((found["GET /users/{id}"], found["GET /health"], found.len()), (40, 40, 2), "{found:?}");
}
