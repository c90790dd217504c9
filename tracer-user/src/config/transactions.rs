//! `[transactions]`: what is done with finished spans.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Source};

/// Most members of baggage that can be kept.
const BAGGAGE: usize = 8;

/// Treatment of finished spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transactions {
    /// How long a finished span waits for later evidence.
    pub grace: Duration,
    /// How long a call of a thread without a request waits for the thread that takes its result.
    pub handover: Duration,
    /// Transactions kept in memory.
    pub keep: usize,
    /// Keep `X-Request-ID`.
    pub request_id: bool,
    /// Members of W3C baggage to keep.
    pub baggage: Arc<[Arc<str>]>,
    /// Most bytes of the file of all of them and the one before it.
    pub max_size: u64,
    /// Directory noteworthy ones are saved in; `None` = nowhere.
    pub save: Option<PathBuf>,
    /// Maximum size of that directory, bytes.
    pub save_max_size: u64,
    /// Maximum age of its files.
    pub save_max_age: Duration,
}

impl Default for Transactions {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(50),
            handover: Duration::from_secs(1),
            keep: 2000,
            request_id: false,
            baggage: Arc::from([]),
            max_size: 1 << 30,
            save: None,
            save_max_size: 256 << 20,
            save_max_age: Duration::from_secs(24 * 3600),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TransactionsFile {
    grace: Option<Spanned<String>>,
    handover: Option<Spanned<String>>,
    keep: Option<Spanned<i64>>,
    request_id: bool,
    baggage: Vec<Spanned<String>>,
    max_size: Option<Spanned<String>>,
    save: Option<Spanned<String>>,
    save_max_size: Option<Spanned<String>>,
    save_max_age: Option<Spanned<String>>,
}

impl TransactionsFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(self, source: &Source<'_>, settings: &mut Transactions) -> Result<(), ConfigError> {
        for (given, time) in [(&self.grace, &mut settings.grace), (&self.handover, &mut settings.handover)] {
            let Some(given) = given else { continue };
            *time = tracer_model::quantity::duration(given.get_ref())
                .ok()
                .filter(|time| *time <= Duration::from_secs(60))
                .ok_or_else(|| source.wrong(&given.span(), "expected a time of at most 60s, such as \"250ms\""))?;
        }
        if let Some(keep) = &self.keep {
            settings.keep = source.number(keep, 1..100_001)?;
        }
        settings.request_id = self.request_id;
        if let Some(last) = self.baggage.get(BAGGAGE) {
            return Err(source.wrong(&last.span(), format!("at most {BAGGAGE} members of baggage can be kept")));
        }
        let members = self.baggage.iter().map(|name| Arc::from(name.get_ref().as_str()));
        settings.baggage = members.collect();
        settings.save = source.absolute(self.save)?;
        for (given, size) in
            [(&self.max_size, &mut settings.max_size), (&self.save_max_size, &mut settings.save_max_size)]
        {
            if let Some(given) = given {
                *size = source.size(given)?;
            }
        }
        if let Some(age) = &self.save_max_age {
            let year = Duration::from_secs(366 * 24 * 3600);
            settings.save_max_age = source.time(age, Duration::from_secs(60)..=year)?;
        }
        Ok(())
    }
}
