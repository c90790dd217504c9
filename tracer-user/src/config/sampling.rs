//! `[sampling]`: stack samples, and what they may cost.

use serde::Deserialize;
use toml::Spanned;
use tracer_host::guard::overhead_budget;
use tracer_kernel::sampler::MAX_HERTZ;
use tracer_model::quantity::Detail;
use tracer_results::profiles::{Lines, SlowRequests};

use super::{ConfigError, Source, profiles};

/// Stack samples, and what they may cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Most stack samples per second and CPU.
    pub hertz: u32,
    /// Share of the host's CPU that profiling may take.
    pub overhead_budget: f64,
    /// How many of the requests to see whole that the kernel side can count by itself.
    pub detail: Detail,
    /// Most bytes of unwind tables; 0 = stacks are followed by frame pointers only. `None` = in proportion to what the
    /// agent may take.
    pub unwind_tables: Option<u64>,
    /// Time off the CPU, microseconds, from which on stacks of threads that hold a request are taken; 0 = none.
    pub off_cpu_micros: u32,
    /// Whether stacks of calls are taken.
    pub call_stacks: bool,
    /// How functions of Python are shown in stacks; `None` = not at all.
    pub python: Option<Lines>,
    /// The same of PHP.
    pub php: Option<Lines>,
    /// Whether those of JavaScript are read.
    pub javascript: bool,
    /// Whether Java's frame sizes and method names are read from its virtual machine.
    pub java: bool,
    /// Which requests keep their own samples.
    pub slow_requests: SlowRequests,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            hertz: 99,
            overhead_budget: overhead_budget::DEFAULT,
            detail: Detail::Auto,
            unwind_tables: None,
            off_cpu_micros: 100,
            call_stacks: true,
            python: Some(Lines::Definition),
            php: Some(Lines::Definition),
            javascript: true,
            java: true,
            slow_requests: SlowRequests::default(),
        }
    }
}

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
    pub(super) fn apply(&self, source: &Source<'_>, settings: &mut Sampling) -> Result<(), ConfigError> {
        if let Some(hertz) = &self.hertz {
            settings.hertz = source.number(hertz, 0..i64::from(MAX_HERTZ) + 1)?;
        }
        if let Some(budget) = &self.overhead_budget {
            settings.overhead_budget =
                tracer_model::quantity::share(budget.get_ref()).map_err(|what| source.wrong(&budget.span(), what))?;
        }
        if let Some(detail) = &self.detail {
            settings.detail = detail.get_ref().parse().map_err(|what| source.wrong(&detail.span(), what))?;
        }
        if let Some(size) = &self.unwind_tables {
            let bytes =
                tracer_model::quantity::size(size.get_ref()).map_err(|what| source.wrong(&size.span(), what))?;
            settings.unwind_tables = Some(bytes);
        }
        if let Some(micros) = &self.off_cpu_microseconds {
            settings.off_cpu_micros = source.number(micros, 0..10_000_001)?;
        }
        settings.call_stacks = self.call_stacks.unwrap_or(settings.call_stacks);
        for (given, shown) in [(&self.python, &mut settings.python), (&self.php, &mut settings.php)] {
            let Some(given) = given else { continue };
            *shown = match given.get_ref().as_str() {
                "functions" => Some(Lines::Definition),
                "lines" => Some(Lines::Running),
                "off" => None,
                _ => return Err(source.wrong(&given.span(), "expected \"functions\", \"lines\" or \"off\"")),
            };
        }
        let switches =
            [(&self.javascript, &mut settings.javascript, "functions"), (&self.java, &mut settings.java, "methods")];
        for (given, read, on) in switches {
            let Some(given) = given else { continue };
            *read = match given.get_ref().as_str() {
                text if text == on => true,
                "off" => false,
                _ => return Err(source.wrong(&given.span(), format!("expected \"{on}\" or \"off\""))),
            };
        }
        settings.slow_requests = profiles::slow_requests(source, self)?;
        Ok(())
    }
}
