//! `[instrument]`: hotspots that are traced as functions without being declared.

use serde::Deserialize;
use toml::Spanned;
use tracer_policies::instrumentation::{FUNCTIONS_MAX, INTERVAL_MAX, Settings};
use tracer_transactions::classes::rules::Glob;

use super::{ConfigError, Source};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct InstrumentFile {
    auto: bool,
    budget: Option<Spanned<String>>,
    functions: Option<Spanned<i64>>,
    services: Vec<String>,
    interval: Option<Spanned<String>>,
}

impl InstrumentFile {
    /// Checks it.
    pub(super) fn check(self, source: &Source<'_>) -> Result<Settings, ConfigError> {
        let mut settings = Settings { auto: self.auto, ..Settings::default() };
        settings.services = self.services.iter().map(|name| Glob::new(name)).collect();
        if let Some(budget) = &self.budget {
            settings.budget =
                tracer_model::quantity::share(budget.get_ref()).map_err(|what| source.wrong(&budget.span(), what))?;
        }
        if let Some(functions) = &self.functions {
            settings.functions = source.number(functions, 1..FUNCTIONS_MAX as i64 + 1)?;
        }
        if let Some(interval) = &self.interval {
            let time = tracer_model::quantity::duration(interval.get_ref())
                .map_err(|what| source.wrong(&interval.span(), what))?;
            if time.as_secs() < 1 || time > INTERVAL_MAX {
                return Err(source.wrong(&interval.span(), "expected a time from 1s to 1h"));
            }
            settings.interval = time;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Config;
    use super::*;

    #[test]
    fn settings_are_checked() {
        let config = |text: &str| Config::parse("t.toml", &format!("[instrument]\n{text}\n"));
        assert_eq!(config("").unwrap().instrument, Settings::default());
        let given =
            config("auto = true\nbudget = \"2%\"\nfunctions = 3\nservices = [\"shop*\"]\ninterval = \"5s\"").unwrap();
        let Settings { auto, budget, functions, services, interval } = given.instrument;
        assert!(auto && services[0].fits("shop-1") && (budget - 0.02).abs() < 1e-9);
        assert_eq!((functions, interval), (3, Duration::from_secs(5)));
        for (text, expected) in [
            ("budget = \"0%\"", "t.toml:2:10: '0%' is no share"),
            ("functions = 17", "t.toml:2:13: 17 is out of range: expected 1 to 16"),
            ("interval = \"10ms\"", "t.toml:2:12: expected a time from 1s to 1h"),
            ("auto = 1", "t.toml:2:8: invalid type"),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
