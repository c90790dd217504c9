//! Classes of requests, as they are answered.

use proptest::prelude::*;
use tracer_model::ProtocolId;

use super::*;

fn facts<'a>(method: &'a str, path: &'a str, status: Option<u16>) -> Facts<'a> {
    Facts {
        service: ServiceId(0),
        protocol: ProtocolId::Http,
        side: Side::Server,
        method,
        path,
        host: None,
        headers: &[],
        port: 80,
        status,
    }
}

/// The class of a request that is answered with `status`.
fn answered(
    classifier: &mut Classifier,
    names: &mut Names,
    method: &str,
    path: &str,
    status: impl Into<Option<u16>>,
) -> String {
    let early = classifier.known(names, &facts(method, path, None));
    let id = early.unwrap_or_else(|| classifier.classify(names, &facts(method, path, status.into())));
    names.class(id).unwrap().name.to_string()
}

/// The class of a request that a route answers.
fn classify(classifier: &mut Classifier, names: &mut Names, method: &str, path: &str) -> String {
    answered(classifier, names, method, path, 200)
}

fn new() -> (Classifier, Names) {
    (Classifier::new(&ClassConfig::default()), Names::default())
}

#[test]
fn names_come_from_templates() {
    let (mut classifier, mut names) = (Classifier::new(&ClassConfig::default()), Names::default());
    for (method, path, expected) in [
        ("GET", "/users/17", "GET /users/{id}"),
        // A word below the top may be a value until it has repeated.
        ("GET", "/users/18/orders/5", "GET /users/{id}/{param}/{id}"),
        ("GET", "/users/18/orders/6", "GET /users/{id}/{param}/{id}"),
        ("GET", "/users/19/orders/5", "GET /users/{id}/orders/{id}"),
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
    for (protocol, method, expected) in [
        (ProtocolId::Redis, "CONFIG SET", "CONFIG SET"),
        (ProtocolId::Redis, "GET", "GET"),
        (ProtocolId::Http, "GET", "GET /"),
    ] {
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
        (ProtocolId::Nats, "publish", "orders.17.created", "publish orders.{id}.created", "orders.{id}.created"),
        (ProtocolId::Nats, "publish", "_INBOX.5KpQzWnTVmCcXqYj0aLb3d.7", "publish _INBOX.{inbox}", "_INBOX.{inbox}"),
        (ProtocolId::Nats, "connect", "", "connect", ""),
        (ProtocolId::Job, "process", "mail:4711 App::Send2", "process mail:{id} App::Send2", "mail:{id} App::Send2"),
        (ProtocolId::Job, "process", "mail.4711", "process mail.{id}", "mail.{id}"),
    ] {
        assert_eq!(class(protocol, method, path), (name.to_owned(), route.to_owned()));
    }
    for i in 0..500 {
        class(ProtocolId::Nats, "publish", &format!("users.{}.seen", word(i)));
    }
    assert_eq!(class(ProtocolId::Nats, "publish", "users.anybody.seen").1, "users.{param}.seen");
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
    for path in ["/a", "/b/17", "/c/words", "/c/words", "/c/words"] {
        classify(&mut classifier, &mut names, "GET", path);
    }
    classifier.allow_new(false);
    let positions = classifier.table_use().positions.entries;
    for (path, class) in [
        ("/a", "GET /a"),
        ("/b/18", "GET /b/{id}"),
        ("/new", "GET {other}"),
        ("/new/17", "GET {other}"),
        ("/c/words", "GET /c/words"),
        ("/c/other", "GET /c/{param}"),
        ("/d/other", "GET {other}"),
    ] {
        assert_eq!(classify(&mut classifier, &mut names, "GET", path), class, "{path}");
    }
    assert!(classifier.merged_total(ServiceId(0)) >= 3);
    for i in 0..1000 {
        classify(&mut classifier, &mut names, "GET", &format!("/flood/{}", word(i)));
    }
    let grown = classifier.table_use().positions.entries - positions;
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
            protocol: ProtocolId::Http,
            side: Side::Server,
            method: "GET",
            path: &path,
            host: None,
            headers: &[],
            port: 80,
            status: Some(200),
        };
        classifier.classify(&mut names, &facts);
        let table_use = classifier.table_use();
        // Every service may have its `GET {other}` beside.
        assert!(table_use.classes.entries <= 40 + 50, "{table_use:?}");
        // Values share a place of their own under a position that is there.
        assert!(table_use.positions.entries <= 60 + 2 * 50 && table_use.cache.entries <= 10, "{table_use:?}");
    }
    let table_use = classifier.table_use();
    assert!(
        table_use.classes.reached > 0 && table_use.positions.reached > 0 && table_use.cache.reached > 0,
        "{table_use:?}"
    );
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

#[test]
fn a_scan_leaves_the_classes_of_live_routes_alone() {
    for (status, learn_after) in [(404, 30), (405, 30), (400, 5), (410, 5), (501, 30)] {
        let config = ClassConfig { learn_after, ..ClassConfig::default() };
        let (mut classifier, mut names) = (Classifier::new(&config), Names::default());
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/sum"), "GET /sum");
        for i in 0..300 {
            for path in [format!("/{}", word(i)), format!("/{}/x/{i}", word(i)), format!("/sum/{}", word(i))] {
                assert_eq!(answered(&mut classifier, &mut names, "GET", &path, status), "GET {unmatched}", "{path}");
            }
        }
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/sum"), "GET /sum");
        assert_eq!(answered(&mut classifier, &mut names, "GET", "/sum", status), "GET /sum", "it is known");
        assert_eq!(classifier.classes(ServiceId(0)), 2);
        let unmatched = names.classes.iter().find(|class| class.name.contains("unmatched")).unwrap();
        assert_eq!(&*unmatched.route, "", "it is no route");
    }
}

#[test]
fn a_missing_value_of_a_known_route_is_of_that_route() {
    let (mut classifier, mut names) = new();
    classify(&mut classifier, &mut names, "GET", "/users/17");
    classify(&mut classifier, &mut names, "GET", "/people/somebody");
    classify(&mut classifier, &mut names, "GET", "/mail/somebody/read");
    for i in 0..70 {
        classify(&mut classifier, &mut names, "GET", &format!("/shop/{}/view", word(i)));
    }
    for (path, class) in [
        ("/users/18", "GET /users/{id}"),
        ("/people/nobody", "GET /people/{param}"),
        ("/shop/nothing/view", "GET /shop/{param}/view"),
        // One value is enough to know that there is such a route.
        ("/mail/nobody/read", "GET /mail/{param}/{param}"),
        ("/users", "GET {unmatched}"),
        ("/shop/nothing/sell", "GET {unmatched}"),
    ] {
        assert_eq!(answered(&mut classifier, &mut names, "GET", path, 404), class, "{path}");
    }
}

#[test]
fn refusals_before_the_path_was_looked_at_make_few_classes() {
    for status in [None, Some(301), Some(401), Some(403), Some(429), Some(502)] {
        let (mut classifier, mut names) = new();
        classify(&mut classifier, &mut names, "GET", "/sum");
        assert_eq!(answered(&mut classifier, &mut names, "GET", "/login", status), "GET /login");
        for i in 0..300 {
            answered(&mut classifier, &mut names, "GET", &format!("/{}", word(i)), status);
        }
        assert!(classifier.classes(ServiceId(0)) <= UNPROVEN + 2, "{}", classifier.classes(ServiceId(0)));
        assert_eq!(answered(&mut classifier, &mut names, "GET", "/login", status), "GET /login");
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/sum"), "GET /sum");
        // Once a route answers, it has its own.
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/account"), "GET /account");
    }
}

#[test]
fn a_route_in_use_stays_when_its_position_becomes_one_of_values() {
    let (mut classifier, mut names) = new();
    // Asked for by the very same path: its tree must know how often.
    for _ in 0..100 {
        classify(&mut classifier, &mut names, "GET", "/sum");
    }
    for _ in 0..10_000 {
        classify(&mut classifier, &mut names, "GET", "/home");
    }
    for i in 0..40 {
        classify(&mut classifier, &mut names, "GET", &format!("/{}", word(i)));
    }
    for (path, class) in [("/sum", "GET /sum"), ("/home", "GET /home"), ("/else", "GET /{param}")] {
        assert_eq!(classify(&mut classifier, &mut names, "GET", path), class);
    }
}

#[test]
fn literals_appear_after_a_few_requests_and_secrets_do_not() {
    let (mut classifier, mut names) = new();
    for (path, class) in [
        ("/health", "GET /health"),
        ("/cart/123", "GET /cart/{id}"),
        ("/cart/A7X-99-2", "GET /cart/{token}"),
        ("/api/v1", "GET /api/v1"),
    ] {
        assert_eq!(classify(&mut classifier, &mut names, "GET", path), class, "{path}");
    }
    for expected in ["GET /api/v1/{param}", "GET /api/v1/{param}", "GET /api/v1/orders", "GET /api/v1/orders"] {
        assert_eq!(classify(&mut classifier, &mut names, "GET", "/api/v1/orders"), expected);
    }
    // Not like a word: it takes more.
    let classes: Vec<String> = (0..12).map(|_| classify(&mut classifier, &mut names, "POST", "/graphql")).collect();
    assert_eq!((&*classes[0], &*classes[11]), ("POST /{param}", "POST /graphql"));
    let secrets = [
        "/reset/xwcxpchuujua",
        "/k/AKIAIOSFODNN7EXAMPLE",
        "/pw/Tr0ub4dor&6",
        "/pw/sunshine",
        "/t/eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.abc",
        "/t/eyJhbGciOiJub25lIn0.e30.",
        "/hook/xoxb-abc-def",
        "/xwcxpchuujua",
        "/join/{secret}",
    ];
    for path in secrets {
        let secret = path.rsplit('/').next().unwrap();
        // A form is asked for, sent and asked for again.
        for (method, status) in
            [("GET", Some(200)), ("POST", Some(302)), ("GET", Some(200)), ("PUT", None), ("GET", Some(403))]
        {
            for piece in secret.split(['.', '&', '-']).filter(|piece| piece.len() > 2) {
                let class = answered(&mut classifier, &mut names, method, path, status);
                if piece != "sunshine" {
                    assert!(!class.contains(piece), "{class}");
                }
            }
        }
        let first = answered(&mut classifier, &mut names, "DELETE", path, 200);
        assert!(secret.split(['.', '&']).all(|piece| piece.is_empty() || !first.contains(piece)), "{first}");
    }
}

#[test]
fn a_name_sent_before_the_answer_is_no_class_and_no_secret() {
    let (mut classifier, mut names) = new();
    for (path, name) in [("/health", "GET /health"), ("/reset/sunshine", "GET /reset/{param}")] {
        assert_eq!(&*classifier.provisional(&mut names, &facts("GET", path, None)), name);
    }
    assert!(names.classes.is_empty());
}
