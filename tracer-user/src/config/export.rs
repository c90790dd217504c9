//! `[export]`: which transactions are exported and written to files.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use tracer_model::KeepReason;
use tracer_policies::tail_sampling::TailSamplingSettings;

use super::{ConfigError, Source};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ExportFile {
    share: Option<Spanned<String>>,
    keep: Option<Vec<Spanned<String>>>,
    rare_per_minute: Option<Spanned<i64>>,
    spans_per_second: Option<Spanned<i64>>,
    wait: Option<Spanned<String>>,
}

fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.trim_end().parse().ok()?;
    // Smaller ones than the least are never drawn.
    (percent == 0.0 || (0.0001..=100.0).contains(&percent)).then_some(percent / 100.0)
}

impl ExportFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(self, source: &Source<'_>, settings: &mut TailSamplingSettings) -> Result<(), ConfigError> {
        if let Some(given) = &self.share {
            settings.share = share(given.get_ref()).ok_or_else(|| {
                source.wrong(&given.span(), "expected a share of transactions, \"0%\" or \"0.0001%\" to \"100%\"")
            })?;
        }
        if let Some(reasons) = &self.keep {
            let reason = |given: &Spanned<String>| {
                let known = KeepReason::ALL.into_iter().find(|reason| reason.name() == given.get_ref());
                known.ok_or_else(|| {
                    source.wrong(&given.span(), "expected \"failed\", \"slow\", \"rare\" or \"finding\"")
                })
            };
            settings.keep = reasons.iter().map(reason).collect::<Result<_, _>>()?;
        }
        if let Some(rare) = &self.rare_per_minute {
            settings.rare_per_minute = source.number(rare, 1..10_001)?;
        }
        if let Some(most) = &self.spans_per_second {
            let most = source.number(most, 0..10_000_001)?;
            settings.spans_per_second = (most > 0).then_some(most);
        }
        if let Some(wait) = &self.wait {
            settings.wait = source.time(wait, Duration::from_secs(1)..=Duration::from_secs(600))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_given_takes_the_place_of_defaults() {
        let text = "[export]\nshare = \"2.5%\"\nkeep = [\"finding\", \"failed\"]\nrare_per_minute = 3\nspans_per_second = 500\nwait = \"30s\"\n";
        let expected = TailSamplingSettings {
            share: 0.025,
            keep: vec![KeepReason::Finding, KeepReason::Failed],
            rare_per_minute: 3,
            spans_per_second: Some(500),
            wait: Duration::from_secs(30),
        };
        assert_eq!(Config::parse("t", text).unwrap().export, expected);
        let none = Config::parse("t", "[export]\nshare = \"0%\"\nkeep = []\n").unwrap().export;
        assert_eq!((none.share, none.keep), (0.0, vec![]));
    }

    #[test]
    fn errors_say_what_is_expected() {
        for (text, expected) in [
            ("share = \"101%\"", "t.toml:2:9: expected a share of transactions"),
            ("share = \"0.1\"", "t.toml:2:9: expected a share of transactions"),
            ("share = \"-1%\"", "t.toml:2:9: expected a share of transactions"),
            ("share = \"NaN%\"", "t.toml:2:9: expected a share of transactions"),
            ("keep = [\"failed\", \"errors\"]", "t.toml:2:19: expected \"failed\""),
            ("rare_per_minute = 0", "t.toml:2:19: 0 is out of range"),
            ("wait = \"10ms\"", "t.toml:2:8: expected a time from 1s"),
        ] {
            let error = Config::parse("t.toml", &format!("[export]\n{text}\n")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
