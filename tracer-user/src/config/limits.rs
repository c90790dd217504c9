//! `[limits]`, `[priority]` and `[watchdog]`: what the agent may take, and what happens when it takes more.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use tracer_host::guard::shed::Ceilings;
use tracer_host::guard::tables;
use tracer_results::metrics::SeriesLimits;

use super::{ConfigError, Source};

/// Default `oom_score_adj` of the agent: the kernel kills it before the programs it traces.
pub const OOM_SCORE_ADJ: i32 = 500;
/// Longest `restore_after` and `stall`.
const HOUR: Duration = Duration::from_secs(3600);

/// What the agent may take.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Most memory and CPU.
    pub ceilings: Ceilings,
    /// Series of `/metrics`.
    pub series: SeriesLimits,
    /// Most bytes of a recording.
    pub max_recording: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ceilings: Ceilings { memory: tables::MEMORY, cpu: 1.0, calm: 30_000_000_000 },
            series: SeriesLimits::default(),
            max_recording: 8 << 30,
        }
    }
}

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
    pub(super) fn apply(&self, source: &Source<'_>, settings: &mut Limits) -> Result<(), ConfigError> {
        if let Some(memory) = &self.max_memory {
            settings.ceilings.memory =
                tracer_model::quantity::memory(memory.get_ref()).map_err(|what| source.wrong(&memory.span(), what))?;
        }
        if let Some(cpu) = &self.max_cpu {
            settings.ceilings.cpu =
                tracer_model::quantity::cores(cpu.get_ref()).map_err(|what| source.wrong(&cpu.span(), what))?;
        }
        if let Some(most) = &self.max_series {
            settings.series.max_series = source.number(most, SeriesLimits::LEAST as i64..1_000_001)?;
        }
        if let Some(idle) = &self.series_idle {
            settings.series.idle = source.time(idle, Duration::from_secs(10)..=Duration::from_secs(30 * 24 * 3600))?;
        }
        if let Some(calm) = &self.restore_after {
            settings.ceilings.calm = source.time(calm, Duration::from_secs(1)..=HOUR)?.as_nanos() as u64;
        }
        if let Some(most) = &self.max_recording {
            settings.max_recording = source.size(most)?;
        }
        Ok(())
    }
}

/// When the agent comes before others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// Nice value of the pipeline; the other threads are at 10 at least.
    pub nice: i32,
    /// How soon the kernel kills the agent when memory is short; `None` = [`OOM_SCORE_ADJ`], or the value it was
    /// started with if that is higher.
    pub oom_score_adj: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PriorityFile {
    nice: Option<Spanned<i64>>,
    oom_score_adj: Option<Spanned<i64>>,
}

impl PriorityFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, settings: &mut Priority) -> Result<(), ConfigError> {
        if let Some(nice) = &self.nice {
            settings.nice = source.number(nice, -20..20)?;
        }
        if let Some(score) = &self.oom_score_adj {
            settings.oom_score_adj = Some(source.number(score, -1000..1001)?);
        }
        Ok(())
    }
}

/// When the agent is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// How long the pipeline may stall before the watchdog detaches everything; zero = for ever.
    pub stall: Duration,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { stall: Duration::from_secs(10) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WatchdogFile {
    stall: Option<Spanned<String>>,
}

impl WatchdogFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, settings: &mut Watchdog) -> Result<(), ConfigError> {
        if let Some(stall) = &self.stall {
            let off = tracer_model::quantity::duration(stall.get_ref()).is_ok_and(|stall| stall.is_zero());
            settings.stall = if off { Duration::ZERO } else { source.time(stall, Duration::from_secs(2)..=HOUR)? };
        }
        Ok(())
    }
}
