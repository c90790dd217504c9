//! `docs/metrics.md` is generated from the families themselves: `cargo xtask docs` runs this test with
//! `TRACER_WRITE_DOCS` set; without it the test fails when the committed page is stale.

use std::fmt::Write as _;
use std::path::Path;

use prometheus::core::Collector;

use super::export::Metrics;
use super::families::Families;

/// Description of a family.
#[derive(Clone, Debug)]
pub(super) struct Family {
    name: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

impl Family {
    /// The families of a collector. `collect` gives their types, `desc` their labels.
    pub(super) fn of(collector: &impl Collector) -> Vec<Self> {
        let kinds = collector.collect();
        let family = |desc: &&prometheus::core::Desc| {
            let kind = kinds.iter().find(|family| family.name() == desc.fq_name);
            Self {
                name: desc.fq_name.clone(),
                kind: kind.map_or_else(String::new, |family| format!("{:?}", family.get_field_type()).to_lowercase()),
                labels: desc.variable_labels.clone(),
                help: desc.help.clone(),
            }
        };
        collector.desc().iter().map(family).collect()
    }
}

/// Sections: title and name prefixes; a family goes to the first section that matches.
const SECTIONS: &[(&str, &[&str])] = &[
    ("Durations by OpenTelemetry's conventions", &["http_", "rpc_", "db_", "messaging_", "dns_"]),
    (
        "Requests and where their time goes",
        &["tracer_request", "tracer_work", "tracer_declared", "tracer_client_", "tracer_server_"],
    ),
    ("Service classes", &["tracer_service_class"]),
    ("CPU", &["tracer_service_cpu", "tracer_host_cpu", "tracer_capture", "tracer_workload", "tracer_subsystem"]),
    (
        "Attribution and runtimes",
        &[
            "tracer_attribution",
            "tracer_runtime",
            "tracer_uprobe",
            "tracer_messages_unlinked",
            "tracer_exception",
            "tracer_log_",
        ],
    ),
    ("Events and losses", &["tracer_events"]),
    ("Request classes", &["tracer_classes", "tracer_metrics_folded"]),
    ("Several hosts", &["tracer_relay", "tracer_inband"]),
    ("Findings", &["tracer_findings", "tracer_webhook_notifications_total"]),
    ("Export and files", &["tracer_export", "tracer_otlp", "tracer_saved", "tracer_history"]),
    ("The agent itself", &[""]),
];

fn page(mut families: Vec<Family>) -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         `GET /metrics` in Prometheus' text format. Generated from the code's own families by `cargo xtask docs`; do not edit.\n\n\
         Durations are histograms in seconds. Where OpenTelemetry's semantic conventions name a metric, tracer uses that \
         name and its labels, and adds `service_name` and `request_class`. Counters named `_total` only grow while the agent \
         runs. [Limits](limits.md) says when series are folded; the [glossary](glossary.md) explains the words.\n",
    );
    families.sort_by(|a, b| a.name.cmp(&b.name));
    for (title, starts) in SECTIONS {
        let (section, rest): (Vec<_>, Vec<_>) =
            families.into_iter().partition(|family| starts.iter().any(|start| family.name.starts_with(start)));
        families = rest;
        if section.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {title}\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
        for family in section {
            let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let help = family.help.replace('|', "\\|");
            let _ = writeln!(page, "| `{}` | {} | {} | {help} |", family.name, family.kind, labels.join(", "));
        }
    }
    page
}

#[test]
fn the_committed_reference_is_current() {
    let families = Families::default();
    let _metrics = Metrics::with(&families);
    let listed = families.listed();
    assert!(listed.iter().all(|family| !family.kind.is_empty() && !family.help.is_empty()), "{listed:?}");
    let page = page(listed);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/metrics.md");
    if std::env::var_os("TRACER_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs/metrics.md can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/metrics.md is stale: run `cargo xtask docs`");
}
