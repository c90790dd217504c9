//! `[logs]`: lines of logs beside the requests that they were written for.

use serde::Deserialize;
use toml::Spanned;
use tracer_results::log_lines::LogSettings;

use super::{ConfigError, Source};

/// Most services.
const SERVICES: usize = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogsFile {
    services: Vec<Spanned<String>>,
    max_rate: Option<Spanned<i64>>,
}

impl LogsFile {
    /// Checks it.
    pub(super) fn check(self, source: &Source<'_>) -> Result<LogSettings, ConfigError> {
        let mut settings = LogSettings::default();
        for name in self.services {
            if name.get_ref().is_empty() {
                return Err(source.wrong(&name.span(), "expected the name of a service"));
            }
            if settings.services.len() == SERVICES {
                return Err(source.wrong(&name.span(), "expected at most 64 services"));
            }
            settings.services.push(name.into_inner());
        }
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
        let config = |text: &str| Config::parse("t.toml", &format!("[logs]\n{text}\n"));
        let default = config("").unwrap().logs;
        assert_eq!((default.is_on(), default), (false, LogSettings::default()));
        let given = config("services = [\"shop\"]\nmax_rate = 50").unwrap().logs;
        assert_eq!((given.is_on(), given), (true, LogSettings { services: vec!["shop".into()], max_rate: 50 }));
        for (text, expected) in [
            ("max_rate = 0", "t.toml:2:12: 0 is out of range: expected 1 to 1000000"),
            ("services = [\"\"]", "t.toml:2:13: expected the name of a service"),
            ("services = \"shop\"", "t.toml:2:12: invalid type"),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let many = format!("services = [{}]", "\"a\", ".repeat(SERVICES + 1));
        assert!(config(&many).unwrap_err().to_string().contains("at most 64"));
    }
}
