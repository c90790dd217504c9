//! `[history]`: how long windows are, and where their files are kept.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use tracer_results::history::place::HistoryPlace;

use super::{ConfigError, Source};

/// Windows of cost, and their files.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// Length of a window of cost.
    pub window: Duration,
    /// Where their files are kept; `None` = none are written.
    pub place: Option<HistoryPlace>,
    /// Their directory where `place` is a bucket: they are written there, and uploaded from there.
    pub spool: PathBuf,
    /// Maximum size of this host's files in the directory, bytes.
    pub max_size: u64,
    /// Maximum age of windows, of hours, and of days.
    pub max_age: Duration,
    /// See `max_age`.
    pub hourly_max_age: Duration,
    /// See `max_age`.
    pub daily_max_age: Duration,
}

impl Default for History {
    fn default() -> Self {
        let spool = PathBuf::from("/var/lib/tracer/history");
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        let (max_age, hourly_max_age, daily_max_age) = (days(90), days(366), days(5 * 366));
        Self {
            window: Duration::from_secs(10),
            place: None,
            spool,
            max_size: 1 << 30,
            max_age,
            hourly_max_age,
            daily_max_age,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HistoryFile {
    window: Option<Spanned<String>>,
    dir: Option<Spanned<String>>,
    spool: Option<Spanned<String>>,
    max_size: Option<Spanned<String>>,
    max_age: Option<Spanned<String>>,
    hourly_max_age: Option<Spanned<String>>,
    daily_max_age: Option<Spanned<String>>,
}

impl HistoryFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(self, source: &Source<'_>, settings: &mut History) -> Result<(), ConfigError> {
        if let Some(window) = &self.window {
            settings.window = source.time(window, Duration::from_secs(1)..=Duration::from_secs(60))?;
        }
        if let Some(dir) = self.dir.filter(|dir| !dir.get_ref().is_empty()) {
            let place = HistoryPlace::parse(dir.get_ref()).map_err(|what| source.wrong(&dir.span(), what))?;
            if matches!(&place, HistoryPlace::Directory(path) if path.is_relative()) {
                let expected = "expected an absolute path, or a URL such as \"s3://bucket/prefix\"";
                return Err(source.wrong(&dir.span(), expected));
            }
            settings.place = Some(place);
        }
        if let Some(spool) = source.absolute(self.spool)? {
            settings.spool = spool;
        }
        if let Some(size) = &self.max_size {
            settings.max_size = source.size(size)?;
        }
        let ages = [
            (&self.max_age, &mut settings.max_age),
            (&self.hourly_max_age, &mut settings.hourly_max_age),
            (&self.daily_max_age, &mut settings.daily_max_age),
        ];
        for (given, age) in ages {
            if let Some(given) = given {
                let years = Duration::from_secs(10 * 366 * 24 * 3600);
                *age = source.time(given, Duration::from_secs(3600)..=years)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn directories_and_buckets() {
        let parse = |text: &str| Config::parse("t", text).map(|config| config.history);
        let directory = parse("[history]\ndir = \"/srv/h\"\n").unwrap();
        assert_eq!(directory.place, Some(HistoryPlace::Directory("/srv/h".into())));
        let bucket = parse("[history]\ndir = \"s3://b/p\"\nspool = \"/srv/s\"\n").unwrap();
        assert!(matches!(bucket.place, Some(HistoryPlace::Bucket(_))));
        assert_eq!(bucket.spool, PathBuf::from("/srv/s"));
        assert_eq!(parse("[history]\ndir = \"\"\n").unwrap().place, None);
        for (text, what) in [
            ("[history]\ndir = \"srv/h\"\n", "absolute"),
            ("[history]\ndir = \"s3://id:secret@b\"\n", "environment"),
            ("[history]\ndir = \"ftp://b\"\n", "no object store"),
            ("[history]\nspool = \"x\"\n", "absolute"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(what) && !error.contains("id:secret"), "{error}");
        }
    }
}
