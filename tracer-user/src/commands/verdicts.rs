//! `tracer verdicts`: the findings of every host of a history, by the agent's own analysis.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tracer_results::analysis::detector::Settings;
use tracer_results::analysis::finding::Finding;
use tracer_results::analysis::runs::DetectorRuns;

use super::Failure;
use crate::bucket::BucketError;
use crate::bucket::source::{HistoryFile, HistorySource, Listing};
use crate::cli::VerdictsOptions;
use crate::config::Config;

/// The findings of one host.
#[derive(Debug)]
pub struct HostVerdicts {
    /// Its name.
    pub host: String,
    /// What was found.
    pub runs: DetectorRuns,
    /// Windows it was found in.
    pub windows: u64,
    /// Files that could not be read.
    pub ignored: u64,
}

/// Reads a host's hours, oldest first, and judges them. `settings`: as they are; without them the defaults, for windows as
/// long as those of the history.
pub async fn judge<'a>(
    source: &HistorySource,
    host: &str,
    hours: impl Iterator<Item = &'a Vec<HistoryFile>>,
    settings: Option<&Settings>,
) -> Result<HostVerdicts, BucketError> {
    let mut found: Option<DetectorRuns> = None;
    let (mut name, mut windows, mut ignored) = (host.to_owned(), 0, 0);
    for files in hours {
        let hour = source.hour(files, ignored).await?;
        ignored += hour.ignored;
        if let Some(own) = hour.host {
            name = own;
        }
        // Parts of windows are those that are on their way to the bucket.
        for read in hour.windows.iter().filter(|read| read.whole) {
            windows += 1;
            let runs = found.get_or_insert_with(|| {
                DetectorRuns::new(settings.cloned().unwrap_or_else(|| {
                    let mut settings = Settings::default();
                    settings.scale_to(Duration::from_secs_f64(read.window.length_s.clamp(1.0, 60.0).round()));
                    settings
                }))
            });
            runs.push(read.host.run_ns, &read.window);
        }
    }
    let runs = found.unwrap_or_else(|| DetectorRuns::new(Settings::default()));
    Ok(HostVerdicts { host: name, runs, windows, ignored })
}

/// Prints the findings of all hosts, oldest first within a host.
pub fn run(options: &VerdictsOptions) -> Result<(), Failure> {
    env_logger::Builder::new().filter_level(log::LevelFilter::Warn).format_timestamp_millis().init();
    let settings = options.config.as_deref().map(Config::load).transpose()?.map(|config| config.analysis.detector);
    let failed = |error: BucketError| Failure::Running(format!("{}: {error}", options.history));
    let source = HistorySource::open(&options.history).map_err(failed)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from_s = options.since.map_or(0, |since| now.saturating_sub(since).as_secs() as i64);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Running(format!("no runtime: {error}")))?;
    let mut out = io::stdout().lock();
    runtime.block_on(async {
        let listing = source.list(from_s).await.map_err(failed)?;
        if listing.truncated {
            log::warn!("history: too many files: the newest are missing; use --since");
        }
        let unwritten = |error: io::Error| Failure::Running(format!("cannot write: {error}"));
        for (host, hours) in &listing.hosts {
            if !options.host.is_empty() && !options.host.iter().any(|wanted| Listing::host_part(wanted) == *host) {
                continue;
            }
            if options.list_hosts {
                writeln!(out, "{host}").map_err(unwritten)?;
                continue;
            }
            let verdicts = judge(&source, host, hours.values(), settings.as_ref()).await.map_err(failed)?;
            print(&mut out, options.json, &verdicts).map_err(unwritten)?;
        }
        Ok(())
    })
}

fn print(out: &mut impl Write, as_json: bool, verdicts: &HostVerdicts) -> io::Result<()> {
    let HostVerdicts { host, runs, windows, ignored } = verdicts;
    if !as_json {
        writeln!(out, "{host}: {windows} windows, {} findings, {ignored} files left alone", runs.findings().count())?;
    }
    for finding in runs.findings() {
        if as_json {
            writeln!(out, "{}", line(host, finding))?;
        } else {
            let at = |ns: u64| {
                jiff::Timestamp::from_nanosecond(i128::from(ns)).map_or_else(|_| "?".into(), |t| format!("{t:.0}"))
            };
            let until = finding.until_ns.map_or_else(|| "now".to_owned(), at);
            writeln!(out, "  {} to {until}  {}  {}", at(finding.since_ns), finding.kind.name(), finding.summary())?;
        }
    }
    out.flush()
}

/// A finding as the API gives it, with its host.
pub fn line(host: &str, finding: &Finding) -> serde_json::Value {
    let mut line = finding.to_json();
    line["host"] = json!(host);
    line
}
