//! What leaves the agent over the network: spans, metrics, findings and profiles to a collector, findings to a webhook.

use std::sync::Arc;
use std::time::Instant;

use tracer_host::guard::tables::TableUse;
use tracer_http::Health;
use tracer_kernel::loader::monotonic;
use tracer_results::record::Origin;

use super::Failure;
use crate::cli::AgentOptions;
use crate::config::Config;
use crate::otlp::{self, Export, FindingExport, MetricExport, ProfileExport, Signal};
use crate::pipeline::Pipeline;
use crate::webhook::Webhook;

/// What is sent; `None`: not configured.
pub(super) struct Exports {
    spans: Option<Export>,
    metrics: Option<MetricExport>,
    findings: Option<FindingExport>,
    profiles: Option<ProfileExport>,
    webhook: Option<Webhook>,
}

impl Exports {
    /// Starts to send what the options, the environment and the configuration ask for. Must run inside a tokio runtime.
    pub(super) fn start(
        options: &AgentOptions,
        config: &Config,
        origin: &Origin,
        pipeline: &mut Pipeline,
    ) -> Result<Self, Failure> {
        let read = |signal| {
            otlp::read(signal, options.otlp.as_deref(), &options.otlp_signals, |name| std::env::var(name).ok())
        };
        let host = &origin.host;
        let metrics = match read(Signal::Metrics)? {
            Some(settings) => {
                let exposition = pipeline.metrics.exposition();
                let gather = Arc::new(move || exposition.families());
                Some(otlp::metrics::start(settings, host, gather, otlp::metrics::wall_clock)?)
            }
            None => None,
        };
        let spans = match read(Signal::Traces)? {
            Some(settings) => {
                let (exporter, export) = otlp::start(settings, host, origin.wall_offset)?;
                pipeline.write_spans(Box::new(exporter));
                Some(export)
            }
            None => None,
        };
        let findings = match read(Signal::Logs)? {
            Some(settings) => Some(FindingExport::start(settings, host)?),
            None => None,
        };
        let profiles = match read(Signal::Profiles)? {
            Some(settings) => Some(ProfileExport::start(settings, host, &mut pipeline.profiles, monotonic())?),
            None => None,
        };
        let webhook = match config.analysis.webhook.clone() {
            Some(settings) => Some(Webhook::start(settings, host)?),
            None => None,
        };
        Ok(Self { spans, metrics, findings, profiles, webhook })
    }

    /// Hands over what there is to send, and counts what became of it.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline, health: &mut Health, wall_offset: i64) {
        if let Some(export) = &mut self.spans {
            pipeline.metrics.set_export(&export.counts.by_outcome(), export.counts.retries());
            health.spans_dropped = export.counts.dropped();
            if let Some(message) = export.drops(Instant::now()) {
                log::warn!("{message}");
            }
        }
        if let Some(export) = &self.metrics {
            pipeline.metrics.set_metric_export(&export.counts.points());
        }
        if let Some(export) = &mut self.findings {
            export.notify(pipeline.detector.own_findings());
            pipeline.metrics.set_finding_export(&export.counts.by_outcome(), export.counts.retries());
        }
        if let Some(export) = &mut self.profiles {
            export.offer(pipeline, monotonic(), wall_offset);
            pipeline.metrics.set_profile_export(&export.counts.by_outcome(), export.counts.retries());
        }
        if let Some(webhook) = &mut self.webhook {
            webhook.notify(pipeline.detector.own_findings());
            pipeline.metrics.set_notifications(&webhook.counts().by_outcome());
        }
    }

    /// Spans that wait to be sent.
    pub(super) fn table_use(&self) -> TableUse {
        self.spans.as_ref().map_or_else(TableUse::default, Export::table_use)
    }

    /// Hands over the last profiles: tracing is over, and the last tick is done.
    pub(super) fn end(&mut self, pipeline: &mut Pipeline, wall_offset: i64) {
        if let Some(export) = &mut self.profiles {
            export.last(pipeline, monotonic(), wall_offset);
        }
    }

    /// Waits until everything is sent, or until `deadline`. The pipeline must be finished: spans are complete once it has let
    /// go of its end of the queue.
    pub(super) async fn finish(self, deadline: Instant) {
        let Self { spans, metrics, findings, profiles, webhook } = self;
        if let Some(export) = spans {
            export.finish(deadline).await;
        }
        if let Some(export) = metrics {
            export.finish(deadline).await;
        }
        if let Some(export) = findings {
            export.finish(deadline).await;
        }
        if let Some(export) = profiles {
            export.finish(deadline).await;
        }
        if let Some(webhook) = webhook {
            webhook.finish(deadline).await;
        }
    }
}
