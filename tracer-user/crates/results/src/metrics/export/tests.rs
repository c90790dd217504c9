//! Tests of the exposition text.

use std::sync::Arc;

use tracer_host::guard::shed::Ceilings;
use tracer_host::guard::tables::TableUse;
use tracer_model::sample_span::span;
use tracer_model::{Accepted, ClassId, ClassInfo, Grade, HostCpu, Outcome, ProtocolId, ServiceId, Side};

use super::*;
use crate::metrics::Format;

fn names(classes: usize) -> Names {
    let class = |index: usize| ClassInfo {
        service: ServiceId(0),
        service_name: Arc::from("shop"),
        protocol: ProtocolId::Http,
        // Class 1 is a call of the same name.
        side: if index == 1 { Side::Client } else { Side::Server },
        name: if index <= 1 { Arc::from("a \"rule's\" class") } else { Arc::from(format!("GET /{index}")) },
        route: Arc::from("/a/{id}"),
    };
    Names { services: vec![Arc::from("shop")], classes: (0..classes).map(class).collect() }
}

fn scrape(metrics: &Metrics) -> String {
    String::from_utf8(metrics.exposition().bytes(Format::Text).unwrap()).unwrap()
}

#[track_caller]
fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
}

#[test]
fn every_loss_is_there_from_the_start() {
    let metrics = Metrics::new();
    metrics.set_lost("ring_full_op", 5);
    metrics.set_lost("ring_full_op", 3);
    let text = scrape(&metrics);
    has(&text, "tracer_events_lost_total{reason=\"ring_full_op\"} 5");
    for reason in tracer_common::lost::Lost::ALL {
        assert!(text.contains(&format!("reason=\"{}\"", reason.name())), "{}", reason.name());
    }
    has(&text, "tracer_attribution_total{grade=\"certain\"} 0");
    for name in ["process_start_time_seconds", "process_open_fds", "process_threads", "process_cpu_seconds_total"] {
        assert!(text.contains(&format!("\n{name} ")), "{name}");
    }
}

#[test]
fn a_request_is_counted_under_the_conventions_names() {
    let (names, mut metrics) = (names(2), Metrics::new());
    metrics.span(&names, &span(1, 100, 20_000_000, false));
    metrics.span(&names, &Span { arrived: 60, accepted: Accepted::At(70), downstream: 5, ..span(2, 100, 1, true) });
    metrics.span(&names, &Span { outcome: Outcome::Aborted, status: None, error: true, ..span(3, 0, 1, false) });
    metrics.span(&names, &Span { outcome: Outcome::Unfinished, status: None, ..span(4, 0, 1, false) });
    let call = Span {
        side: Side::Client,
        class: ClassId(1),
        peer_port: 8080,
        grade: Grade::Confirmed,
        ..span(5, 0, 1, false)
    };
    metrics.span(&names, &Span { method: Arc::from("BREW"), ..call });
    let text = scrape(&metrics);
    let served = |error: &str, status: &str| {
        format!(
            "error_type=\"{error}\",http_request_method=\"GET\",http_response_status_code=\"{status}\",http_route=\"/a/{{id}}\",network_protocol_name=\"\",network_protocol_version=\"1.1\",request_class=\"a \\\"rule's\\\" class\",service_name=\"shop\",url_scheme=\"http\""
        )
    };
    has(&text, &format!("http_server_request_duration_seconds_bucket{{{},le=\"0.025\"}} 1", served("", "200")));
    has(&text, &format!("http_server_request_duration_seconds_bucket{{{},le=\"0.01\"}} 0", served("", "200")));
    for (error, status) in [("500", "500"), ("aborted", ""), ("", "")] {
        has(&text, &format!("http_server_request_duration_seconds_count{{{}}} 1", served(error, status)));
    }
    let made = "http_client_request_duration_seconds_count{error_type=\"\",http_request_method=\"_OTHER\",http_response_status_code=\"200\",http_route=\"/a/{id}\",network_protocol_name=\"\",network_protocol_version=\"1.1\",request_class=\"a \\\"rule's\\\" class\",server_port=\"8080\",service_name=\"shop\",url_scheme=\"http\"} 1";
    has(&text, made);
    let class = "protocol=\"http\",request_class=\"a \\\"rule's\\\" class\",service_name=\"shop\"";
    // The call does not count under the server class of the same name.
    for (status, count) in [("ok", 1), ("error", 1), ("aborted", 1), ("unfinished", 1)] {
        has(&text, &format!("tracer_requests_total{{{class},status=\"{status}\"}} {count}"));
    }
    has(&text, &format!("tracer_request_queue_seconds_total{{{class}}} 0.00000004"));
    has(&text, &format!("tracer_request_accept_queue_seconds_total{{{class}}} 0.00000001"));
    has(&text, &format!("tracer_request_socket_queue_seconds_total{{{class}}} 0.00000003"));
    has(&text, "tracer_attribution_total{grade=\"confirmed\"} 1");
}

#[test]
fn costs_add_up_whatever_spans_report() {
    let (names, mut metrics) = (names(1), Metrics::new());
    let cost = Cost { cpu: 500_000_000, runq: 250_000_000, blocked: 1_000_000_000, switches: 1 };
    metrics.cost(&names, Owner::Class(ClassId(0)), cost);
    metrics.cost(&names, Owner::Class(ClassId(0)), cost);
    metrics.cost(&names, Owner::Overhead(ServiceId(0)), cost);
    metrics.cost(&names, Owner::Kernel, cost);
    metrics.cost(&names, Owner::Class(ClassId(77)), cost);
    let text = scrape(&metrics);
    let class = "{protocol=\"http\",request_class=\"a \\\"rule's\\\" class\",service_name=\"shop\"}";
    for (what, seconds) in [("cpu", "1"), ("runqueue", "0.5"), ("blocked", "2"), ("downstream", "0")] {
        has(&text, &format!("tracer_request_{what}_seconds_total{class} {seconds}"));
    }
    has(&text, "tracer_service_cpu_seconds_total{kind=\"requests\",service_name=\"shop\"} 1");
    has(&text, "tracer_service_cpu_seconds_total{kind=\"overhead\",service_name=\"shop\"} 0.5");
}

#[test]
fn a_server_that_makes_up_codes_makes_up_no_series() {
    let (names, mut metrics) = (names(1), Metrics::new());
    for status in 100..1000 {
        metrics.span(&names, &Span { status: Some(status), ..span(1, 0, 1, false) });
    }
    let text = scrape(&metrics);
    let series = text.lines().filter(|line| line.starts_with("http_server_request_duration_seconds_count")).count();
    assert_eq!(series, 33);
    has(&text, "tracer_metrics_folded_total{reason=\"series\"} 868");
}

#[test]
fn the_capture_ratio_is_what_was_attributed() {
    let metrics = Metrics::new();
    let mut host_cpu = HostCpu { requests: 1.0, overhead: 2.0, kernel: 0.5, system_busy: 3.5, ..HostCpu::default() };
    metrics.set_host(&host_cpu);
    has(&scrape(&metrics), "tracer_capture_ratio 1");
    host_cpu.kernel = 0.25;
    metrics.set_host(&host_cpu);
    let text = scrape(&metrics);
    has(&text, "tracer_host_cpu_seconds_total{kind=\"kernel\"} 0.5");
    has(&text, "tracer_host_cpu_busy_seconds_total 3.5");
}

#[test]
fn operations_of_databases_have_families_of_their_own() {
    let class = |side| ClassInfo {
        service: ServiceId(0),
        service_name: Arc::from("shop"),
        protocol: ProtocolId::Redis,
        side,
        name: Arc::from("GET"),
        route: Arc::from(""),
    };
    let names = Names { services: vec![Arc::from("shop")], classes: vec![class(Side::Server), class(Side::Client)] };
    let mut metrics = Metrics::new();
    let operation =
        Span { protocol: ProtocolId::Redis, method: Arc::from("GET"), status: None, ..span(1, 0, 200_000, false) };
    let failed = Span { failure: Some("WRONGTYPE"), error: true, ..operation.clone() };
    let call = Span { side: Side::Client, class: ClassId(1), peer_port: 6379, ..operation.clone() };
    let lost = Span { outcome: Outcome::Unfinished, ..call.clone() };
    let aborted = Span { outcome: Outcome::Aborted, error: true, ..call.clone() };
    for span in [&operation, &failed, &call, &lost, &aborted] {
        metrics.span(&names, span);
    }
    let text = scrape(&metrics);
    for (side, status, error, count) in [
        ("server", "", "", " 1"),
        ("server", "WRONGTYPE", "WRONGTYPE", " 1"),
        // An unseen end is no failure.
        ("client", "", "", " 2"),
        ("client", "", "aborted", " 1"),
    ] {
        let port = if side == "client" { ",server_port=\"6379\"" } else { "" };
        has(
            &text,
            &format!(
                "db_{side}_operation_duration_seconds_count{{db_collection_name=\"\",db_operation_name=\"GET\",db_response_status_code=\"{status}\",\
                 db_system_name=\"redis\",error_type=\"{error}\",request_class=\"GET\"{port},service_name=\"shop\"}}{count}"
            ),
        );
    }
    assert!(!text.contains("http_server_request_duration_seconds_count{"), "{text}");
}

#[test]
fn messages_are_counted_by_who_handles_them() {
    let class = |name: &str, route: &str, side| ClassInfo {
        service: ServiceId(0),
        service_name: Arc::from("shop"),
        protocol: ProtocolId::Nats,
        side,
        name: Arc::from(name),
        route: Arc::from(route),
    };
    let of = |method: &str, route: &str, side| class(&format!("{method} {route}"), route, side);
    let classes = vec![
        of("publish", "a.{id}", Side::Client),
        of("publish", "a.{id}", Side::Server),
        of("deliver", "a.{id}", Side::Client),
        of("deliver", "a.{id}", Side::Server),
        class("connect", "", Side::Client),
    ];
    let names = Names { services: vec![Arc::from("shop")], classes };
    let mut metrics = Metrics::new();
    for (id, class) in names.classes.iter().enumerate() {
        let operation = class.name.split(' ').next().unwrap();
        let one = Span { protocol: ProtocolId::Nats, status: None, peer_port: 4222, ..span(1, 0, 200_000, false) };
        let one = Span { method: Arc::from(operation), side: class.side, class: ClassId(id as u32), ..one };
        metrics.span(&names, &one);
        let failed = Span { failure: Some("NAK"), error: true, ..one };
        metrics.span(&names, &failed);
    }
    let text = scrape(&metrics);
    for (family, operation, kind, destination, port) in [
        ("client_operation", "publish", "send", "a.{id}", ",server_port=\"4222\""),
        ("server_operation", "publish", "send", "a.{id}", ""),
        ("server_operation", "deliver", "process", "a.{id}", ""),
        ("process", "deliver", "process", "a.{id}", ""),
        ("client_operation", "connect", "", "", ",server_port=\"4222\""),
    ] {
        for failure in ["", "NAK"] {
            let class = format!("{operation} {destination}");
            has(
                &text,
                &format!(
                    "messaging_{family}_duration_seconds_count{{error_type=\"{failure}\",\
                     messaging_destination_name=\"{destination}\",messaging_operation_name=\"{operation}\",\
                     messaging_operation_type=\"{kind}\",messaging_system=\"nats\",request_class=\"{}\"{port},\
                     service_name=\"shop\"}} 1",
                    class.trim_end(),
                ),
            );
        }
    }
}

#[test]
fn queries_name_their_table() {
    let class = |name: &str| ClassInfo {
        service: ServiceId(0),
        service_name: Arc::from("shop"),
        protocol: ProtocolId::PostgreSql,
        side: Side::Server,
        name: Arc::from(name),
        route: Arc::from(""),
    };
    let classes = ["SELECT accounts", "SELECT a b", "SELECT {other}", "SELECT"].map(class);
    let names = Names { services: vec![Arc::from("shop")], classes: classes.into() };
    let mut metrics = Metrics::new();
    for (id, path) in ["SELECT accounts", "SELECT a b", "SELECT rare", "SELECT"].iter().enumerate() {
        let one = Span {
            protocol: ProtocolId::PostgreSql,
            method: Arc::from("SELECT"),
            path: Arc::from(*path),
            ..span(1, 0, 1, false)
        };
        metrics.span(&names, &Span { class: ClassId(id as u32), ..one });
    }
    let text = scrape(&metrics);
    for (class, collection) in
        [("SELECT accounts", "accounts"), ("SELECT a b", ""), ("SELECT {other}", ""), ("SELECT", "")]
    {
        has(
            &text,
            &format!(
                "db_server_operation_duration_seconds_count{{db_collection_name=\"{collection}\",db_operation_name=\"SELECT\",\
                 db_response_status_code=\"\",db_system_name=\"postgresql\",error_type=\"\",request_class=\"{class}\",\
                 service_name=\"shop\"}} 1"
            ),
        );
    }
}

#[test]
fn kinds_of_failures_of_one_class_have_a_bound() {
    let names = Names {
        services: vec![Arc::from("shop")],
        classes: vec![ClassInfo {
            service: ServiceId(0),
            service_name: Arc::from("shop"),
            protocol: ProtocolId::Redis,
            side: Side::Client,
            name: Arc::from("GET"),
            route: Arc::from(""),
        }],
    };
    let mut metrics = Metrics::new();
    for port in 1..=100 {
        let call = Span { side: Side::Client, protocol: ProtocolId::Redis, peer_port: port, ..span(1, 0, 1, false) };
        metrics.span(&names, &call);
    }
    let text = scrape(&metrics);
    let series = text.lines().filter(|line| line.starts_with("db_client_operation_duration_seconds_count{")).count();
    assert_eq!(series, 33);
    has(&text, "tracer_metrics_folded_total{reason=\"series\"} 68");
}

#[test]
fn what_does_not_show_itself_is_written_out_in_labels() {
    let mut names = names(1);
    names.classes[0].service_name = Arc::from("a\u{202e}b\u{1}\nc");
    let mut metrics = Metrics::new();
    metrics.span(&names, &span(1, 0, 1, false));
    metrics.set_classes([(ServiceId(0), 1, 0)].into_iter());
    let text = scrape(&metrics);
    has(&text, "tracer_classes{service_name=\"a\\\\u{202e}b\\\\u{1}\\nc\"} 1");
    assert!(!text.chars().any(|c| c != '\n' && tracer_model::text::is_unsafe(c)), "{text}");
}

#[test]
fn a_family_has_one_unit_and_one_subject() {
    use tracer_common::header::Outcome as Header;
    let metrics = Metrics::new();
    metrics.set_table_use(&[("spans", TableUse::new(3, 9, 1)), ("head_bytes", TableUse::new(100, 900, 0))]);
    metrics.set_usage(&Ceilings { memory: 1 << 20, cpu: 0.5, calm: 0 }, 1 << 19, 0.125);
    metrics.set_headers([(Header::Joined, 4), (Header::Injected, 7), (Header::NotHttp, 2)].into_iter());
    let text = scrape(&metrics);
    for line in [
        "tracer_table_entries{table=\"spans\"} 3",
        "tracer_table_limit_entries{table=\"spans\"} 9",
        "tracer_table_evictions_total{table=\"spans\"} 1",
        "tracer_table_bytes{table=\"head_bytes\"} 100",
        "tracer_table_limit_bytes{table=\"head_bytes\"} 900",
        "tracer_table_evictions_total{table=\"head_bytes\"} 0",
        "tracer_memory_limit_bytes 1048576",
        "tracer_cpu_limit_cores 0.5",
        "tracer_limit_used_ratio{resource=\"memory\"} 0.5",
        "tracer_limit_used_ratio{resource=\"cpu\"} 0.25",
        "tracer_inband_header_connections_total{event=\"taken\"} 4",
        "tracer_inband_header_requests_total{outcome=\"injected\"} 7",
        "tracer_inband_header_left_alone_total{reason=\"not_http\"} 2",
    ] {
        has(&text, line);
    }
    assert!(!text.contains("tracer_table_entries{table=\"head_bytes\"}"));
}
