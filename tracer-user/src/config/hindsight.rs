//! `[hindsight]`: the last seconds as a recording.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Source};

/// Least and most memory.
const MEMORY: std::ops::RangeInclusive<u64> = 4 << 20..=1 << 30;

/// What is kept in memory for recordings of the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HindsightSettings {
    /// Directory that recordings are written to; `None` = nothing is kept.
    pub dir: Option<PathBuf>,
    /// How much of the past is kept.
    pub time: Duration,
    /// Most bytes of it; less time is kept where there is more.
    pub max_memory: u64,
    /// Recordings that stay; older ones are removed.
    pub keep: usize,
    /// Whether a finding has one written.
    pub on_finding: bool,
}

impl Default for HindsightSettings {
    fn default() -> Self {
        Self { dir: None, time: Duration::from_secs(30), max_memory: 32 << 20, keep: 10, on_finding: true }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HindsightFile {
    dir: Option<Spanned<String>>,
    time: Option<Spanned<String>>,
    max_memory: Option<Spanned<String>>,
    keep: Option<Spanned<i64>>,
    on_finding: Option<bool>,
}

impl HindsightFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(self, source: &Source<'_>, settings: &mut HindsightSettings) -> Result<(), ConfigError> {
        settings.dir = source.absolute(self.dir)?;
        if let Some(time) = &self.time {
            settings.time = source.time(time, Duration::from_secs(1)..=Duration::from_secs(600))?;
        }
        if let Some(most) = &self.max_memory {
            settings.max_memory = tracer_model::quantity::size(most.get_ref())
                .ok()
                .filter(|size| MEMORY.contains(size))
                .ok_or_else(|| source.wrong(&most.span(), "expected a size from \"4M\" to \"1G\""))?;
        }
        if let Some(keep) = &self.keep {
            settings.keep = source.number(keep, 1..1001)?;
        }
        settings.on_finding = self.on_finding.unwrap_or(settings.on_finding);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_given_takes_the_place_of_defaults() {
        let text =
            "[hindsight]\ndir = \"/var/lib/t\"\ntime = \"2m\"\nmax_memory = \"64M\"\nkeep = 3\non_finding = false\n";
        let expected = HindsightSettings {
            dir: Some("/var/lib/t".into()),
            time: Duration::from_secs(120),
            max_memory: 64 << 20,
            keep: 3,
            on_finding: false,
        };
        assert_eq!(Config::parse("t", text).unwrap().hindsight, expected);
        assert_eq!(Config::parse("t", "[hindsight]\n").unwrap().hindsight, HindsightSettings::default());
    }

    #[test]
    fn errors_say_what_is_expected() {
        for (text, expected) in [
            ("dir = \"here\"", "t.toml:2:7: "),
            ("time = \"1h\"", "t.toml:2:8: expected a time from 1s"),
            ("max_memory = \"2G\"", "t.toml:2:14: expected a size from"),
            ("keep = 0", "t.toml:2:8: 0 is out of range"),
        ] {
            let error = Config::parse("t.toml", &format!("[hindsight]\n{text}\n")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
