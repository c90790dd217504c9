//! Exports findings as log records: one when a finding opens, one when it ends.
//!
//! The agent hands over what is new once a second and never waits: a full queue counts, and what found no room is offered
//! again. A task on the server's threads sends, retrying while the collector is busy or away, as it does with spans.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tracer_model::text::printable;
use tracer_results::analysis::announced::{AnnouncedFindings, FindingEvent};
use tracer_results::analysis::finding::{Finding, FindingKind};

use super::Counts;
use super::instance::HostFacts;
use super::log_proto::{INFO, LogRecord, Request, ResourceLogs, ScopeLogs, WARN};
use super::metrics::{resource, wall_clock};
use super::outgoing::{self, Outgoing, SendingTask, SentSignal, TaskEnd};
use super::proto::{AnyValue, ArrayValue, KeyValue, Scope, Value};
use super::settings::{Settings, SettingsError};
use super::spans::SCHEMA;

/// Records that may wait. A request has all of them.
const QUEUE: usize = 64;
/// What is sent here.
const FINDINGS: SentSignal = SentSignal {
    things: "findings",
    advice: "a collector without logs: --otlp-signals traces, or OTEL_LOGS_EXPORTER=none",
    rejects_some: true,
};

/// The agent's handle.
#[derive(Debug)]
pub struct FindingExport {
    /// Outcomes of records.
    pub counts: Arc<Counts>,
    queue: mpsc::Sender<(FindingEvent, Finding)>,
    announced: AnnouncedFindings,
    end: TaskEnd,
}

impl FindingExport {
    /// Starts to send. Must run inside a tokio runtime. Fails if required certificates cannot be read.
    pub fn start(settings: Settings, host: &str) -> Result<Self, SettingsError> {
        let host = HostFacts::read(host);
        let SendingTask { counts, queue, end } =
            outgoing::start(settings, QUEUE, FINDINGS, |outgoing| work(outgoing, host))?;
        Ok(Self { counts, queue, announced: AnnouncedFindings::default(), end })
    }

    /// Hands over what opened or ended since the last call.
    pub fn notify<'a>(&mut self, findings: impl Iterator<Item = &'a Finding>) {
        let (queue, counts) = (&self.queue, &self.counts);
        self.announced.news(findings, |event, finding| {
            let taken = queue.try_send((event, finding.clone())).is_ok();
            if !taken {
                Counts::count(&counts.no_room, 1);
            }
            taken
        });
    }

    /// Ends: waits for what is under way, until `deadline`.
    pub async fn finish(self, deadline: Instant) {
        drop(self.queue);
        self.end.wait(deadline).await;
    }
}

async fn work(mut outgoing: Outgoing<(FindingEvent, Finding)>, host: HostFacts) {
    loop {
        let mut news = Vec::new();
        if outgoing.waiting.recv_many(&mut news, QUEUE).await == 0 {
            return;
        }
        let request = request(&news, wall_clock(), &host, &outgoing.settings.resource);
        outgoing.send(&request, news.len() as u64).await;
    }
}

/// A request with these records, grouped by the services they are about.
fn request(news: &[(FindingEvent, Finding)], now_ns: u64, host: &HostFacts, more: &[(String, String)]) -> Request {
    let mut request = Request::default();
    let mut services: Vec<&str> = news.iter().map(|(_, finding)| service(finding)).collect();
    services.sort_unstable();
    services.dedup();
    for name in services {
        let own = news.iter().filter(|(_, finding)| service(finding) == name);
        let log_records = own.map(|(event, finding)| record(*event, finding, now_ns, host)).collect();
        let scope = Scope { name: "tracer".into(), version: env!("CARGO_PKG_VERSION").into() };
        request.resource_logs.push(ResourceLogs {
            resource: Some(resource(name, host, more)),
            scope_logs: vec![ScopeLogs { scope: Some(scope), log_records }],
            schema_url: SCHEMA.into(),
        });
    }
    request
}

/// What is about the whole host is the agent's.
fn service(finding: &Finding) -> &str {
    if finding.service_name.is_empty() { "tracer" } else { &finding.service_name }
}

fn record(event: FindingEvent, finding: &Finding, now_ns: u64, host: &HostFacts) -> LogRecord {
    let alarm = event == FindingEvent::Opened && finding.kind != FindingKind::WorkloadChange;
    let text = |key: &str, value: &str| KeyValue::text(key, printable(value));
    let time = |ns: u64| Value::Int(i64::try_from(ns).unwrap_or(i64::MAX));
    let mut attributes = vec![
        KeyValue::of("tracer.finding.id", time(finding.id)),
        text("tracer.finding.kind", finding.kind.name()),
        text("tracer.finding.resource", finding.resource),
        KeyValue::of("tracer.finding.change_ratio", Value::Double(finding.change_ratio)),
        KeyValue::of("tracer.finding.confidence", Value::Double(finding.confidence)),
        KeyValue::of("tracer.finding.since", time(finding.since_ns)),
    ];
    if !finding.cause.words().is_empty() {
        attributes.push(text("tracer.finding.cause", finding.cause.words()));
    }
    if let Some(until_ns) = finding.until_ns {
        attributes.push(KeyValue::of("tracer.finding.until", time(until_ns)));
    }
    if !finding.request_classes.is_empty() {
        let class = |class: &String| AnyValue { value: Some(Value::Text(printable(class).into())) };
        let values = finding.request_classes.iter().map(class).collect();
        attributes.push(KeyValue::of("tracer.finding.request_classes", Value::Array(ArrayValue { values })));
    }
    let happened = if event == FindingEvent::Ended { finding.until_ns } else { None };
    LogRecord {
        time_unix_nano: happened.unwrap_or(finding.opened_ns),
        severity_number: if alarm { WARN } else { INFO },
        severity_text: if alarm { "WARN" } else { "INFO" }.into(),
        body: Some(AnyValue { value: Some(Value::Text(printable(&event.text(finding, &host.name)).into())) }),
        attributes,
        observed_time_unix_nano: now_ns,
        event_name: format!("tracer.finding.{}", event.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_the_api_says() {
        let host = HostFacts { name: "host1".into(), machine: None };
        let open = Finding::example(3, FindingKind::ApplicationChange, None);
        let ended = Finding::example(3, FindingKind::ApplicationChange, Some(9));
        let mut foreign = Finding::example(4, FindingKind::WorkloadChange, None);
        (foreign.service_name, foreign.request_classes) = (String::new(), Vec::new());
        let news = [(FindingEvent::Opened, open), (FindingEvent::Opened, foreign), (FindingEvent::Ended, ended)];
        let request = request(&news, 77, &host, &[("zone".to_owned(), "z1".to_owned())]);
        let [shop, own] = request.resource_logs.as_slice() else { panic!("two resources: {request:?}") };
        let attributes = |of: &ResourceLogs| of.resource.as_ref().unwrap().attributes.clone();
        assert!(attributes(shop).contains(&KeyValue::text("service.name", "shop")));
        assert!(attributes(own).contains(&KeyValue::text("service.name", "tracer")));
        assert!(attributes(own).contains(&KeyValue::text("zone", "z1")));
        let [opened, over] = shop.scope_logs[0].log_records.as_slice() else { panic!("two records") };
        assert_eq!(
            (opened.event_name.as_str(), over.event_name.as_str()),
            ("tracer.finding.opened", "tracer.finding.ended")
        );
        assert_eq!((opened.time_unix_nano, over.time_unix_nano, over.observed_time_unix_nano), (2, 9, 77));
        assert_eq!((opened.severity_number, over.severity_number), (WARN, INFO));
        let body = |record: &LogRecord| record.body.clone().and_then(|body| body.value);
        let sentence =
            "application_change on host1: shop GET /: CPU per request ×1.50: since a new build or configuration";
        assert_eq!(body(opened), Some(Value::Text(sentence.into())));
        assert_eq!(body(over), Some(Value::Text(format!("over: {sentence}"))));
        assert!(opened.attributes.contains(&KeyValue::of("tracer.finding.change_ratio", Value::Double(1.5))));
        assert!(over.attributes.contains(&KeyValue::of("tracer.finding.until", Value::Int(9))));
        assert_eq!(own.scope_logs[0].log_records[0].severity_number, INFO);
    }
}
