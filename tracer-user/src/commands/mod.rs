//! Subcommands: input and output around the pipeline.

#![expect(clippy::print_stdout, reason = "what subcommands print is their result")]

mod agent;
mod agent_files;
mod agent_tables;
mod api_client;
mod call_limits;
mod clock;
mod configure;
mod counting;
mod database_figures;
mod dated_files;
pub mod declare;
mod declaring;
mod decrypting;
mod descriptors;
pub mod doctor;
mod doctor_relay;
mod doctor_runtimes;
mod doctor_tls;
mod enforcing;
mod exception_probes;
mod exports;
mod file_patterns;
pub mod fleet;
mod fleet_policies;
mod hindsight;
mod history_files;
mod instrumenting;
mod intake;
mod kernel_counts;
mod load_shedding;
mod log_files;
mod loss_watch;
pub mod mcp;
mod netns;
mod older_processes;
mod own_priority;
mod past_windows;
mod poll_interval;
mod process_looks;
mod process_watchers;
mod profiling;
mod relaying;
mod reloading;
pub mod replay;
pub mod run;
mod sampling;
mod save;
mod self_check;
mod serving;
pub mod shell_help;
mod signals;
mod sleep_until_record;
mod summary;
mod sweep;
mod thread_clocks;
mod tick;
pub mod top;
mod trace_contexts;
mod traced_processes;
mod transactions_file;
pub mod verdicts;
mod wakes;

use std::path::Path;

use tracer_http::token::TokenError;
use tracer_kernel::loader::LoadError;
use tracer_kernel::selftest::SelfTestError;
use tracer_results::record::RecordError;

use crate::config::{Config, ConfigError};

/// Exit code of bad usage or configuration.
pub const USAGE: u8 = 2;

/// Why a subcommand failed; decides the exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Bad configuration.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// What was asked for cannot be.
    #[error("{0}")]
    Usage(String),
    /// Where spans go.
    #[error("{0}")]
    Export(#[from] crate::otlp::SettingsError),
    /// Findings cannot be posted as set.
    #[error(transparent)]
    Webhook(#[from] crate::webhook::SettingsError),
    /// The token file.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// The relay settings.
    #[error("{0}")]
    Relay(String),
    /// The kernel or the privileges do not suffice.
    #[error("{0}")]
    Kernel(#[from] LoadError),
    /// The self-test failed.
    #[error("{0}")]
    SelfTest(String),
    /// A record file.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// Anything else, while running.
    #[error("{0}")]
    Running(String),
}

impl Failure {
    /// 1 failed while running, 2 bad usage or configuration, 77 the kernel or the privileges do not suffice.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Export(_) | Self::Webhook(_) | Self::Token(_) | Self::Relay(_) => {
                USAGE
            }
            Self::Kernel(_) | Self::SelfTest(_) => 77,
            Self::Record(_) | Self::Running(_) => 1,
        }
    }
}

impl From<SelfTestError> for Failure {
    fn from(error: SelfTestError) -> Self {
        match error {
            SelfTestError::Policy(error) => Self::Kernel(error),
            SelfTestError::Sockets(_) => Self::SelfTest(error.to_string()),
        }
    }
}

/// `tracer check-config`.
pub fn check_config(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file)?;
    println!(
        "{}: fine ({} class rules, {} service rules, listen {})",
        file.display(),
        config.classes.rules.len(),
        config.services.len(),
        config.agent.listen
    );
    Ok(())
}

/// Name of this host: `TRACER_HOST_NAME`, because in a pod the kernel gives the pod's name; else what the kernel says.
pub(crate) fn host_name() -> String {
    let given = std::env::var("TRACER_HOST_NAME").ok().filter(|name| !name.is_empty());
    let kernels = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    given.or_else(kernels).unwrap_or_else(|| "unknown".into())
}
