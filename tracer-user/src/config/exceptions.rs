//! `[exceptions]`: of which type the exceptions are that end requests.

use serde::Deserialize;
use toml::Spanned;
use tracer_runtimes::exceptions::ExceptionSettings;

use super::{ConfigError, Source};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ExceptionsFile {
    enabled: bool,
    max_rate: Option<Spanned<i64>>,
}

impl ExceptionsFile {
    /// Checks it.
    pub(super) fn check(self, source: &Source<'_>) -> Result<ExceptionSettings, ConfigError> {
        let mut settings = ExceptionSettings { enabled: self.enabled, ..ExceptionSettings::default() };
        if let Some(rate) = &self.max_rate {
            settings.max_rate = source.number(rate, 1..1_000_001)?;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn settings_are_checked() {
        let config = |text: &str| Config::parse("t.toml", &format!("[exceptions]\n{text}\n"));
        assert_eq!(config("").unwrap().exceptions, ExceptionSettings::default());
        assert!(!ExceptionSettings::default().enabled);
        let given = config("enabled = true\nmax_rate = 50").unwrap().exceptions;
        assert_eq!(given, ExceptionSettings { enabled: true, max_rate: 50 });
        for (text, expected) in [
            ("max_rate = 0", "t.toml:2:12: 0 is out of range: expected 1 to 1000000"),
            ("enabled = 1", "t.toml:2:11: invalid type"),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
