//! `[analysis]`: when a deviation is a finding, and where findings are posted.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use tracer_results::analysis::detector::Settings;
use tracer_results::analysis::finding::FindingKind;

use super::{ConfigError, Source};
use crate::webhook;

/// Findings.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// When a change between windows is one.
    pub detector: Settings,
    /// Where they are posted.
    pub webhook: Option<webhook::Settings>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AnalysisFile {
    warmup_windows: Option<Spanned<i64>>,
    segment_windows_min: Option<Spanned<i64>>,
    sensitivity: Option<Spanned<String>>,
    least_cpu_change: Option<Spanned<f64>>,
    least_wait_change: Option<Spanned<f64>>,
    foreign_cpu: Option<Spanned<f64>>,
    stolen_cpu: Option<Spanned<f64>>,
    webhook: Option<Spanned<String>>,
    webhook_token_file: Option<Spanned<String>>,
    webhook_kinds: Option<Vec<Spanned<String>>>,
}

impl AnalysisFile {
    /// Checks the section; `window` is how long windows are.
    pub(super) fn check(&self, source: &Source<'_>, window: Duration) -> Result<Analysis, ConfigError> {
        let mut detector = Settings::default();
        self.apply(source, &mut detector)?;
        detector.scale_to(window);
        Ok(Analysis { detector, webhook: self.webhook(source)? })
    }

    /// Puts what is given in the place of defaults.
    fn apply(&self, source: &Source<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
        if let Some(windows) = &self.warmup_windows {
            settings.warmup = source.number(windows, 12..361)?;
        }
        if let Some(windows) = &self.segment_windows_min {
            settings.settle = source.number(windows, 4..61)?;
            settings.settle_shared = settings.settle_shared.max(settings.settle);
        }
        if let Some(word) = &self.sensitivity {
            settings.threshold = match word.get_ref().as_str() {
                "high" => 20.0,
                "normal" => 25.0,
                "low" => 36.0,
                _ => return Err(source.wrong(&word.span(), "expected \"high\", \"normal\" or \"low\"")),
            };
            settings.threshold_deployed = f64::max(18.0, settings.threshold - 4.0);
        }
        for (given, share) in [
            (&self.least_cpu_change, &mut settings.least_cpu),
            (&self.least_wait_change, &mut settings.least_wait),
            (&self.foreign_cpu, &mut settings.foreign),
            (&self.stolen_cpu, &mut settings.steal),
        ] {
            let Some(given) = given else { continue };
            if !(0.01..=10.0).contains(given.get_ref()) {
                return Err(source.wrong(&given.span(), "expected a share, 0.01 to 10"));
            }
            *share = *given.get_ref();
        }
        Ok(())
    }

    /// Where findings are posted, if anywhere.
    fn webhook(&self, source: &Source<'_>) -> Result<Option<webhook::Settings>, ConfigError> {
        let Some(given) = self.webhook.as_ref().filter(|given| !given.get_ref().is_empty()) else { return Ok(None) };
        let uri = given.get_ref().parse::<hyper::Uri>().ok().filter(|uri| {
            let scheme = uri.scheme_str().is_some_and(|scheme| matches!(scheme, "http" | "https"));
            scheme && uri.host().is_some_and(|host| !host.is_empty())
        });
        // The address itself is not repeated: it may hold a secret.
        let uri = uri.ok_or_else(|| source.wrong(&given.span(), "expected an address with http:// or https://"))?;
        let mut kinds = vec![FindingKind::Anomaly, FindingKind::ApplicationChange, FindingKind::Environment];
        if let Some(given) = &self.webhook_kinds {
            let kind = |word: &Spanned<String>| {
                let known = FindingKind::ALL.into_iter().find(|kind| kind.name() == word.get_ref());
                known.ok_or_else(|| {
                    let names = FindingKind::ALL.map(FindingKind::name).join(", ");
                    source.wrong(&word.span(), format!("expected one of {names}"))
                })
            };
            kinds = given.iter().map(kind).collect::<Result<_, _>>()?;
        }
        Ok(Some(webhook::Settings { uri, token_file: source.absolute(self.webhook_token_file.clone())?, kinds }))
    }
}
