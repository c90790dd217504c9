//! Arbitrary text as a configuration; an accepted one must be usable: its rules and templates run on paths from the
//! same bytes.
use tracer_model::{Names, ProtocolId, ServiceId, Side};
use tracer_transactions::classes::{Classifier, Facts};
use tracer_user::config::Config;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let parsed = Config::parse("fuzz.toml", &text);
    let _ = parsed.as_ref().map_err(ToString::to_string);
    let config = parsed.unwrap_or_default();
    let (mut classifier, mut names) = (Classifier::new(&config.classes), Names::default());
    names.services.push("fuzz".into());
    for line in text.lines().take(64) {
        let (method, path) = line.split_once(' ').unwrap_or(("GET", line));
        let facts = Facts {
            service: ServiceId(0),
            protocol: ProtocolId::Http,
            side: Side::Server,
            method,
            path,
            host: Some(line),
            headers: &[(0, line.into())],
            port: 80,
            status: Some(200),
        };
        let class = classifier.classify(&mut names, &facts);
        assert!(names.class(class).is_some());
    }
    assert!(classifier.classes(ServiceId(0)) <= config.classes.max_per_service);
}
