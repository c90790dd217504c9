//! Tests of the fleet's figures.

use tracer_results::analysis::window::{ClassWindow, ServiceWindow, Window};
use tracer_results::history::rows::Seconds;

use super::*;

fn settings(_: f64) -> Settings {
    Settings::default()
}

/// Windows `from..until` of ten seconds; class `b` costs `times` as much.
fn windows(from: u64, until: u64, times: f64) -> NewWindows {
    let mut new = NewWindows::default();
    for n in from..until {
        let start_ns = (1_000_000 + n * 10) * 1_000_000_000;
        let mut service = ServiceWindow {
            service_name: "shop".into(),
            identity: 7,
            entry: true,
            overhead_s: 0.1,
            ..ServiceWindow::default()
        };
        for name in ["a", "b", "c", "d"] {
            let each = if name == "b" { times } else { 1.0 } * (1.0 + 0.02 * ((n * 7 % 11) as f64 / 5.0 - 1.0));
            let cpu_s = 100.0 * 0.01 * each;
            service.classes.push(ClassWindow {
                request_class: name.into(),
                count: [0.0, 100.0, 0.0],
                cpu_s: [0.0, cpu_s, 0.0],
                cpu_s_squared: 0.012,
                ..ClassWindow::default()
            });
            let mut duration_histogram = DurationHistogram::default();
            duration_histogram.add(20_000_000, 100);
            new.classes.push(ClassRow {
                start_ns,
                length_s: 10.0,
                service_name: "shop".into(),
                request_class: name.into(),
                side: "server".into(),
                protocol: "http".into(),
                count: 100,
                duration_s: 2.0,
                cpu_s,
                duration_histogram,
                ..ClassRow::default()
            });
        }
        let window =
            Window { start_ns, length_s: 10.0, cores: 4.0, busy_s: 8.0, services: vec![service], ..Window::default() };
        new.windows.push(ReadWindow { window, whole: true, host: HostRow::default() });
    }
    new.last = Some(HostRow { cores: 4.0, busy_s: 8.0, length_s: 10.0, ..HostRow::default() });
    new
}

#[test]
fn files_read_again_add_only_what_is_new() {
    let mut state = FleetState::default();
    state.add("web-1", windows(0, 30, 1.0), &settings, u64::MAX);
    // The same hour again, grown.
    state.add("web-1", windows(0, 36, 1.0), &settings, u64::MAX);
    let classes = state.classes(Some("web-1/shop"));
    let a = classes["classes"].as_array().unwrap().iter().find(|row| row["request_class"] == "a").unwrap().clone();
    assert_eq!(a["count"], 3600);
    assert!((a["cpu_s"].as_f64().unwrap() - 0.01).abs() < 0.001);
    let p50 = a["p50_s"].as_f64().unwrap();
    assert!((p50 / 0.02 - 1.0).abs() < 0.2, "{p50}");
    let series = state.series(Some("web-1/shop"), Some("a"), Range::default());
    let series = &series["series"][0];
    // Steps of two minutes: the first has the rest of one that begins before the first window.
    let requests: f64 =
        series["rate_per_s"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap() * 120.0).sum();
    assert!((requests - 3600.0).abs() < 1.0, "{requests}");
    assert_eq!(state.hosts()["hosts"][0]["windows"], 36);
    assert_eq!(state.services()["services"][0]["count"], 4 * 3600);
    assert!(state.classes(Some("web-2/shop"))["classes"].as_array().unwrap().is_empty());
}

#[test]
fn parts_of_windows_wait_until_the_rest_is_there() {
    let mut state = FleetState::default();
    let mut new = windows(0, 10, 1.0);
    new.windows[7].whole = false;
    state.add("h", new, &settings, 0);
    assert_eq!(state.hosts()["hosts"][0]["windows"], 7);
    state.add("h", windows(0, 10, 1.0), &settings, 0);
    assert_eq!(state.hosts()["hosts"][0]["windows"], 10);
    // A part that never became whole holds up nothing for ever.
    let mut new = windows(10, 20, 1.0);
    new.windows[3].whole = false;
    state.add("h", new, &settings, u64::MAX);
    assert_eq!(state.hosts()["hosts"][0]["windows"], 19);
    state.forget(u64::MAX);
    assert_eq!((state.host_count(), state.classes), (0, 0));
}

#[test]
fn findings_of_all_hosts_have_numbers_of_their_own() {
    let mut state = FleetState::default();
    for host in ["web-1", "web-2"] {
        state.add(host, windows(0, 60, 1.0), &settings, u64::MAX);
        state.add(host, windows(60, 100, 1.5), &settings, u64::MAX);
    }
    let found = state.findings(None, None, Range::default());
    let found = found["findings"].as_array().unwrap();
    let change = |host: &str| {
        let of = |one: &&Value| one["host"] == host && one["kind"] == "application_change";
        found.iter().find(of).unwrap_or_else(|| panic!("{found:?}")).clone()
    };
    let (one, other) = (change("web-1"), change("web-2"));
    assert_ne!(one["id"], other["id"]);
    assert!(one["id"].as_u64().unwrap() < 1 << 53);
    assert_eq!((&one["service_name"], &one["request_classes"]), (&json!("web-1/shop"), &json!(["b"])));
    let (host, evidence) = state.evidence(other["id"].as_u64().unwrap()).unwrap();
    assert_eq!((host.as_str(), evidence.finding.request_classes.as_slice()), ("web-2", &["b".to_owned()][..]));
    assert!(state.evidence(1).is_none());
    let own = state.findings(Some("web-2/shop"), Some("b"), Range::default());
    assert!(own["findings"].as_array().unwrap().iter().all(|one| one["host"] == "web-2"));
    assert!(state.findings(Some("web-3/shop"), None, Range::default())["findings"].as_array().unwrap().is_empty());
}

#[test]
fn classes_are_bounded() {
    let mut state = FleetState::default();
    let mut new = windows(0, 1, 1.0);
    let row = new.classes[0].clone();
    new.classes.extend((0..2 * CLASSES).map(|n| ClassRow { request_class: format!("{n}").into(), ..row.clone() }));
    state.add("h", new, &settings, u64::MAX);
    assert_eq!(state.classes, CLASSES);
    assert_eq!(state.hosts()["classes_refused"], 2 * CLASSES + 4 - CLASSES);
}

/// A row of a host's edges in the window that began at `start_s`.
fn edge(start_s: u64, side: &str, [service, class]: [&str; 2], count: i64) -> EdgeRow {
    EdgeRow {
        start_ns: start_s * 1_000_000_000,
        service_name: service.into(),
        request_class: class.into(),
        side: side.into(),
        protocol: "http".into(),
        root: "class".into(),
        count,
        duration_s: Seconds(count as f64 / 4.0),
        ..EdgeRow::default()
    }
}

#[test]
fn an_edge_joins_services_of_two_hosts() {
    let mut state = FleetState::default();
    let start_s = 1_000_000;
    let mut web = windows(0, 24, 1.0);
    let called = |row: EdgeRow| EdgeRow { caller_service: "nginx".into(), caller_class: "GET /".into(), ..row };
    for n in 0..24 {
        let at = start_s + n * 10;
        web.edges.push(called(edge(at, "client", ["nginx", "GET /pay"], 2)));
        let address = EdgeRow { peer: "10.0.0.9:443".into(), ..edge(at, "client", ["nginx", "POST /bank"], 1) };
        web.edges.push(called(address));
        let elsewhere = EdgeRow { peer_host: "pay 1".into(), ..edge(at, "client", ["nginx", "GET /pay"], 3) };
        web.edges.push(called(elsewhere));
        // Of first requests that are not known yet, and of callers without a name.
        web.edges.push(EdgeRow { root: "open".into(), ..edge(at, "server", ["nginx", "GET /"], -4) });
        web.edges.push(EdgeRow { caller_service: "_other".into(), ..edge(at, "server", ["nginx", "GET /"], 4) });
    }
    state.add("web-1", web, &settings, u64::MAX);
    let mut pay = windows(0, 24, 1.0);
    for n in 0..24 {
        let row = edge(start_s + n * 10, "server", ["pay", "GET /pay"], 3);
        let by_root =
            |root: &str| EdgeRow { root_class: root.into(), peer_host: "web-1".into(), ..called(row.clone()) };
        pay.edges.extend([by_root("GET /"), by_root("GET /cart")]);
    }
    state.add("pay_1", pay, &settings, u64::MAX);
    let all = state.edges(None);
    let all = all["edges"].as_array().unwrap();
    assert_eq!(all.len(), 2, "{all:?}");
    let (inside, outside) = (&all[0], &all[1]);
    assert_eq!((&inside["caller_service"], &inside["caller_class"]), (&json!("web-1/nginx"), &json!("GET /")));
    assert_eq!((&inside["callee_service"], &inside["callee_class"]), (&json!("pay_1/pay"), &json!("GET /pay")));
    assert_eq!((&inside["calls"], &inside["mean_s"], &inside["peer"]), (&json!(144), &json!(0.25), &Value::Null));
    // The window before the last step: twelve of them, six calls each.
    assert!((inside["rate_per_s"].as_f64().unwrap() - 0.6).abs() < 1e-9, "{inside}");
    assert_eq!((&outside["callee_service"], &outside["peer"]), (&Value::Null, &json!("10.0.0.9:443")));
    let of = |service: &str| state.edges(Some(service))["edges"].as_array().unwrap().len();
    assert_eq!((of("web-1/nginx"), of("pay_1/pay"), of("pay_1/nginx")), (2, 1, 0));
}

#[test]
fn edges_are_bounded_and_go_with_their_host() {
    let mut state = FleetState::default();
    let mut new = windows(0, 2, 1.0);
    for n in 0..EDGES + 7 {
        let row = edge(1_000_000, "server", ["shop", &format!("GET /{n}")], 1);
        new.edges.push(EdgeRow { caller_service: "front".into(), ..row });
    }
    state.add("web-1", new, &settings, u64::MAX);
    assert_eq!(state.edges(None)["edges"].as_array().unwrap().len(), EDGES);
    assert_eq!(state.hosts()["edges_refused"], 7);
    state.forget(u64::MAX);
    assert_eq!((state.edges, state.edges(None)["edges"].as_array().unwrap().len()), (0, 0));
}
