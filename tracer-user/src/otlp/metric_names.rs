//! Names of metrics and their attributes in OpenTelemetry's terms, from those of `/metrics`. Pure.
//!
//! Prometheus' names are the conventions' with `_` for `.`, the unit and `_total` behind; that cannot be undone by rule (is
//! `file_descriptor` one word?), so attributes and a few metrics are listed. Everything that the conventions do not have begins
//! with `tracer.`.

use std::borrow::Cow;

use prometheus::proto::MetricType;

/// Metrics whose name does not follow by rule.
const METRICS: [(&str, &str, &str); 10] = [
    // The conventions have only the client's.
    ("db_server_operation_duration_seconds", "tracer.db.server.operation.duration", "s"),
    ("dns_server_lookup_duration_seconds", "tracer.dns.server.lookup.duration", "s"),
    ("messaging_server_operation_duration_seconds", "tracer.messaging.server.operation.duration", "s"),
    ("process_cpu_seconds_total", "process.cpu.time", "s"),
    ("process_max_fds", "tracer.process.file_descriptor_limit", "{file_descriptor}"),
    ("process_open_fds", "process.unix.file_descriptor.count", "{file_descriptor}"),
    ("process_resident_memory_bytes", "process.memory.usage", "By"),
    ("process_start_time_seconds", "tracer.process.start_time", "s"),
    ("process_threads", "process.thread.count", "{thread}"),
    ("process_virtual_memory_bytes", "process.memory.virtual", "By"),
];

/// Families whose names are the conventions': every `_` is a dot.
const CONVENTIONS: [&str; 6] = ["db_", "dns_", "http_", "messaging_", "process_", "rpc_"];

/// Attributes of the conventions.
const ATTRIBUTES: [(&str, &str); 21] = [
    ("code_function_name", "code.function.name"),
    ("db_collection_name", "db.collection.name"),
    ("db_operation_name", "db.operation.name"),
    ("db_response_status_code", "db.response.status_code"),
    ("db_system_name", "db.system.name"),
    ("dns_question_name", "dns.question.name"),
    ("dns_question_type", "tracer.dns.question.type"),
    ("error_type", "error.type"),
    ("http_request_method", "http.request.method"),
    ("http_response_status_code", "http.response.status_code"),
    ("http_route", "http.route"),
    ("messaging_destination_name", "messaging.destination.name"),
    ("messaging_operation_name", "messaging.operation.name"),
    ("messaging_operation_type", "messaging.operation.type"),
    ("messaging_system", "messaging.system"),
    ("network_protocol_name", "network.protocol.name"),
    ("network_protocol_version", "network.protocol.version"),
    ("rpc_method", "rpc.method"),
    ("rpc_response_status_code", "rpc.response.status_code"),
    ("rpc_system_name", "rpc.system.name"),
    ("url_scheme", "url.scheme"),
];

/// Attributes of the conventions that are numbers.
const NUMBERS: [&str; 2] = ["http.response.status_code", "server.port"];

/// Name and unit of a family.
pub(super) fn metric(family: &str, kind: MetricType) -> (Cow<'static, str>, &'static str) {
    if let Some((_, name, unit)) = METRICS.iter().find(|(known, ..)| *known == family) {
        return (Cow::Borrowed(name), unit);
    }
    let base = if kind == MetricType::COUNTER { family.strip_suffix("_total").unwrap_or(family) } else { family };
    let units = [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1"), ("_cores", "{core}"), ("_hertz", "Hz")];
    let known = units.iter().find_map(|(suffix, unit)| Some((base.strip_suffix(suffix)?, *unit)));
    // A ratio keeps its word: without, "capture" would be the name of a number.
    let (base, unit) = match known {
        Some((short, unit)) if unit != "1" => (short, unit),
        Some((_, unit)) => (base, unit),
        None => (base, "1"),
    };
    let name = if CONVENTIONS.iter().any(|prefix| base.starts_with(prefix)) {
        base.replace('_', ".")
    } else {
        format!("tracer.{}", base.strip_prefix("tracer_").unwrap_or(base))
    };
    (Cow::Owned(name), unit)
}

/// Name of an attribute.
pub(super) fn attribute(label: &str) -> Cow<'static, str> {
    if label == "server_port" {
        return Cow::Borrowed("server.port");
    }
    match ATTRIBUTES.iter().find(|(known, _)| *known == label) {
        Some((_, name)) => Cow::Borrowed(name),
        None => Cow::Owned(format!("tracer.{label}")),
    }
}

/// Whether an attribute's value is a number.
pub(super) fn is_number(attribute: &str) -> bool {
    NUMBERS.contains(&attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_conventions() {
        use MetricType::{COUNTER, GAUGE, HISTOGRAM};
        for (family, kind, name, unit) in [
            ("http_server_request_duration_seconds", HISTOGRAM, "http.server.request.duration", "s"),
            ("http_client_request_duration_seconds", HISTOGRAM, "http.client.request.duration", "s"),
            ("db_client_operation_duration_seconds", HISTOGRAM, "db.client.operation.duration", "s"),
            ("messaging_process_duration_seconds", HISTOGRAM, "messaging.process.duration", "s"),
            ("rpc_server_call_duration_seconds", HISTOGRAM, "rpc.server.call.duration", "s"),
            ("dns_lookup_duration_seconds", HISTOGRAM, "dns.lookup.duration", "s"),
            ("process_cpu_seconds_total", COUNTER, "process.cpu.time", "s"),
            ("process_resident_memory_bytes", GAUGE, "process.memory.usage", "By"),
            ("tracer_request_cpu_seconds_total", COUNTER, "tracer.request_cpu", "s"),
            ("tracer_requests_total", COUNTER, "tracer.requests", "1"),
            ("tracer_capture_ratio", GAUGE, "tracer.capture_ratio", "1"),
            ("tracer_table_bytes", GAUGE, "tracer.table", "By"),
        ] {
            assert_eq!(metric(family, kind), (name.into(), unit), "{family}");
        }
    }

    #[test]
    fn attributes_of_the_conventions_and_others() {
        for (label, name) in [
            ("http_response_status_code", "http.response.status_code"),
            ("server_port", "server.port"),
            ("request_class", "tracer.request_class"),
            ("reason", "tracer.reason"),
        ] {
            assert_eq!(attribute(label), name);
        }
    }
}
