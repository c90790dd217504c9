//! `[sampling]`: stack samples, and what they may cost.

use serde::Deserialize;
use toml::Spanned;

use super::{Config, ConfigError, Source, profiles};
use crate::kernel::sampler::MAX_HERTZ;
use crate::profiles::Lines;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SamplingFile {
    hertz: Option<Spanned<i64>>,
    overhead_budget: Option<Spanned<String>>,
    detail: Option<Spanned<String>>,
    unwind_tables: Option<Spanned<String>>,
    off_cpu_microseconds: Option<Spanned<i64>>,
    call_stacks: Option<bool>,
    python: Option<Spanned<String>>,
    php: Option<Spanned<String>>,
    javascript: Option<Spanned<String>>,
    java: Option<Spanned<String>>,
    pub(super) slow_factor: Option<Spanned<f64>>,
    pub(super) slow_after: Option<Spanned<String>>,
}

impl SamplingFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, config: &mut Config) -> Result<(), ConfigError> {
        if let Some(hertz) = &self.hertz {
            config.hertz = source.number(hertz, 0..i64::from(MAX_HERTZ) + 1)?;
        }
        if let Some(budget) = &self.overhead_budget {
            config.overhead_budget =
                crate::quantity::share(budget.get_ref()).map_err(|what| source.wrong(&budget.span(), what))?;
        }
        if let Some(detail) = &self.detail {
            config.detail =
                crate::quantity::part(detail.get_ref()).map_err(|what| source.wrong(&detail.span(), what))?;
        }
        if let Some(size) = &self.unwind_tables {
            let bytes = crate::quantity::size(size.get_ref()).map_err(|what| source.wrong(&size.span(), what))?;
            config.unwind_tables = Some(bytes);
        }
        if let Some(micros) = &self.off_cpu_microseconds {
            config.off_cpu_micros = source.number(micros, 0..10_000_001)?;
        }
        config.call_stacks = self.call_stacks.unwrap_or(config.call_stacks);
        for (given, shown) in [(&self.python, &mut config.python), (&self.php, &mut config.php)] {
            let Some(given) = given else { continue };
            *shown = match given.get_ref().as_str() {
                "functions" => Some(Lines::Definition),
                "lines" => Some(Lines::Running),
                "off" => None,
                _ => return Err(source.wrong(&given.span(), "expected \"functions\", \"lines\" or \"off\"")),
            };
        }
        let switches =
            [(&self.javascript, &mut config.javascript, "functions"), (&self.java, &mut config.java, "methods")];
        for (given, read, on) in switches {
            let Some(given) = given else { continue };
            *read = match given.get_ref().as_str() {
                text if text == on => true,
                "off" => false,
                _ => return Err(source.wrong(&given.span(), format!("expected \"{on}\" or \"off\""))),
            };
        }
        config.slow_requests = profiles::slow_requests(source, self)?;
        Ok(())
    }
}
