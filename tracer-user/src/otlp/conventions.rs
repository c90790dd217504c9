//! Tests that every name sent over OTLP is one of the semantic conventions' version that is declared, or `tracer.…`.

use std::collections::BTreeSet;

use prometheus::proto::MetricType;
use tracer_host::container::Container;
use tracer_host::container_names::{ContainerNames, NamesCache};
use tracer_host::instance::Instance;
use tracer_model::{Outcome, ProtocolId, Side, Span};
use tracer_protocols::Conventions;

use super::instance::{HostFacts, process_resource};
use super::metric_names;
use super::spans::tests::finished;
use super::spans::{self, SCHEMA};

/// Made by `tests/workloads/conventions.py`.
const PUBLISHED: &str = include_str!("conventions.txt");
/// Its metrics are those of this page, which a test keeps current.
const METRICS: &str = include_str!("../../../docs/metrics.md");

fn published() -> BTreeSet<&'static str> {
    let (schema, names) = PUBLISHED.split_once('\n').unwrap();
    assert_eq!(schema, SCHEMA, "the list is of another version than the one that is declared");
    names.lines().collect()
}

fn unknown<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let published = published();
    // Names of headers and of members of baggage are their users'.
    let free = ["tracer.", "baggage.", "http.request.header."];
    let known = |name: &&str| published.contains(*name) || free.iter().any(|prefix| name.starts_with(prefix));
    names.into_iter().filter(|name| !known(name)).collect()
}

#[test]
fn attributes_of_spans_are_those_of_the_declared_version() {
    let host = HostFacts { name: "host1".into(), machine: Some("0123456789abcdef0123456789abcdef".into()) };
    let mut names = BTreeSet::new();
    for protocol in ProtocolId::ALL {
        for side in [Side::Server, Side::Client] {
            let mut one = finished("shop", 1);
            let (method, path) = match protocol.conventions() {
                Conventions::Http | Conventions::Rpc | Conventions::Session => ("BREW", "/shop.Cart/List"),
                _ => ("SELECT", "SELECT users"),
            };
            let (method, path) = (method.into(), path.into());
            let version = "h2";
            let (failure, outcome) = (Some("ERR"), Outcome::Complete);
            let namespace = Some("shop".into());
            one.span = Span { side, protocol, method, path, version, failure, outcome, namespace, ..one.span };
            let request = spans::request(&[one], &host, &NamesCache::default(), &[]);
            let span = &request.resource_spans[0].scope_spans[0].spans[0];
            let mut all = BTreeSet::new();
            for pair in &span.attributes {
                assert!(all.insert(&pair.key), "{protocol}: {} twice", pair.key);
            }
            let called = |name: &str| all.iter().any(|key| *key == name);
            assert_eq!(called("db.namespace"), protocol.conventions() == Conventions::Database, "{protocol}");
            assert_eq!(called("network.protocol.name"), protocol != ProtocolId::Grpc, "{protocol}");
            names.extend(span.attributes.iter().map(|pair| pair.key.clone()));
        }
    }
    assert!(names.len() > 40, "{names:?}");
    assert!(unknown(names.iter().map(String::as_str)).is_empty(), "{:?}", unknown(names.iter().map(String::as_str)));
}

#[test]
fn attributes_of_resources_are_those_of_the_declared_version() {
    let host = HostFacts { name: "host1".into(), machine: Some("0123456789abcdef0123456789abcdef".into()) };
    let container = Container { id: "0a".repeat(32), runtime: "podman", pod_uid: Some("uid".into()) };
    let instance =
        Instance { exe: "/usr/sbin/nginx".into(), container: Some(container.into()), ..Instance::unknown(7) };
    let mut names = BTreeSet::new();
    for pod in ["", "web-1"] {
        let named = |text: &str| text.to_owned();
        let of = ContainerNames { name: named("a"), image: named("b"), pod: named(pod), namespace: named("d") };
        let resource = process_resource(&instance, "shop", &host, Some(&of), &[]);
        names.extend(resource.attributes.into_iter().map(|pair| pair.key));
    }
    assert!(names.len() > 15, "{names:?}");
    assert!(unknown(names.iter().map(String::as_str)).is_empty(), "{:?}", unknown(names.iter().map(String::as_str)));
}

#[test]
fn metrics_and_their_attributes_are_those_of_the_declared_version() {
    let mut names = BTreeSet::new();
    for line in METRICS.lines().filter_map(|line| line.strip_prefix("| `")) {
        let mut columns = line.split(" | ");
        let (Some(family), Some(kind)) = (columns.next().and_then(|name| name.strip_suffix('`')), columns.next())
        else {
            continue;
        };
        let kind = match kind {
            "counter" => MetricType::COUNTER,
            "gauge" => MetricType::GAUGE,
            _ => MetricType::HISTOGRAM,
        };
        names.insert(metric_names::metric(family, kind).0.into_owned());
        let labels = columns.next().unwrap_or_default().split(", ").map(|label| label.trim_matches('`'));
        names.extend(labels.filter(|label| !label.is_empty()).map(|label| metric_names::attribute(label).into_owned()));
    }
    assert!(names.contains("http.server.request.duration") && names.contains("http.route"), "{names:?}");
    assert!(unknown(names.iter().map(String::as_str)).is_empty(), "{:?}", unknown(names.iter().map(String::as_str)));
}
