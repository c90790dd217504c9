//! `[limits]`, `[priority]` and `[watchdog]`: what the agent may take, and what happens when it takes more.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{Config, ConfigError, Source};
use crate::metrics::SeriesLimits;

/// Default `oom_score_adj` of the agent: the kernel kills it before the programs it traces.
pub const OOM_SCORE_ADJ: i32 = 500;
/// Longest `restore_after` and `stall`.
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsFile {
    max_memory: Option<Spanned<String>>,
    max_cpu: Option<Spanned<String>>,
    max_series: Option<Spanned<i64>>,
    series_idle: Option<Spanned<String>>,
    max_recording: Option<Spanned<String>>,
    restore_after: Option<Spanned<String>>,
}

impl LimitsFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, config: &mut Config) -> Result<(), ConfigError> {
        if let Some(memory) = &self.max_memory {
            config.ceilings.memory =
                crate::quantity::memory(memory.get_ref()).map_err(|what| source.wrong(&memory.span(), what))?;
        }
        if let Some(cpu) = &self.max_cpu {
            config.ceilings.cpu =
                crate::quantity::cores(cpu.get_ref()).map_err(|what| source.wrong(&cpu.span(), what))?;
        }
        if let Some(most) = &self.max_series {
            config.series.max_series = source.number(most, SeriesLimits::LEAST as i64..1_000_001)?;
        }
        if let Some(idle) = &self.series_idle {
            config.series.idle = source.time(idle, Duration::from_secs(10)..=Duration::from_secs(30 * 24 * 3600))?;
        }
        if let Some(calm) = &self.restore_after {
            config.ceilings.calm = source.time(calm, Duration::from_secs(1)..=HOUR)?.as_nanos() as u64;
        }
        if let Some(most) = &self.max_recording {
            config.max_recording = source.size(most)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PriorityFile {
    nice: Option<Spanned<i64>>,
    oom_score_adj: Option<Spanned<i64>>,
}

impl PriorityFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, config: &mut Config) -> Result<(), ConfigError> {
        if let Some(nice) = &self.nice {
            config.nice = source.number(nice, -20..20)?;
        }
        if let Some(score) = &self.oom_score_adj {
            config.oom_score_adj = Some(source.number(score, -1000..1001)?);
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WatchdogFile {
    stall: Option<Spanned<String>>,
}

impl WatchdogFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, config: &mut Config) -> Result<(), ConfigError> {
        if let Some(stall) = &self.stall {
            let off = crate::quantity::duration(stall.get_ref()).is_ok_and(|stall| stall.is_zero());
            config.stall = if off { Duration::ZERO } else { source.time(stall, Duration::from_secs(2)..=HOUR)? };
        }
        Ok(())
    }
}
