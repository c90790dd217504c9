//! The text of a configuration file: where in it something is wrong, and what values of several sections have in common.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;

/// A configuration error: its position, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The fleet's policies cannot be used.
    #[error("policies of the fleet: {0}")]
    Policies(#[from] super::policies::PoliciesError),
    /// The file contains an error.
    #[error("{path}:{line}:{column}: {what}")]
    Wrong {
        /// Path of the file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong and what was expected.
        what: String,
    },
}

/// Converts byte ranges to lines and columns.
pub(super) struct Source<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn wrong(&self, at: &Range<usize>, what: impl Into<String>) -> ConfigError {
        let before = self.text.get(..at.start.min(self.text.len())).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
        ConfigError::Wrong { path: self.path.into(), line, column, what: what.into() }
    }

    /// `FILE:LINE` of `at`.
    pub(super) fn place(&self, at: &Range<usize>) -> String {
        let before = self.text.get(..at.start.min(self.text.len())).unwrap_or_default();
        format!("{}:{}", self.path, before.matches('\n').count() + 1)
    }

    pub(super) fn number<T: TryFrom<i64>>(&self, value: &Spanned<i64>, range: Range<i64>) -> Result<T, ConfigError> {
        let what = || format!("{} is out of range: expected {} to {}", value.get_ref(), range.start, range.end - 1);
        if !range.contains(value.get_ref()) {
            return Err(self.wrong(&value.span(), what()));
        }
        T::try_from(*value.get_ref()).map_err(|_| self.wrong(&value.span(), what()))
    }

    pub(super) fn ports(&self, value: &Spanned<Vec<u16>>, most: usize) -> Result<Vec<u16>, ConfigError> {
        let ports = value.get_ref();
        if ports.len() > most || ports.contains(&0) {
            return Err(self.wrong(&value.span(), format!("expected ports from 1 to 65535, {most} at most")));
        }
        Ok(ports.clone())
    }

    /// Checks that a path is absolute; empty = none.
    pub(super) fn absolute(&self, path: Option<Spanned<String>>) -> Result<Option<PathBuf>, ConfigError> {
        match path.filter(|path| !path.get_ref().is_empty()) {
            Some(path) if !path.get_ref().starts_with('/') => {
                Err(self.wrong(&path.span(), "expected an absolute path, such as \"/run/tracer/token\""))
            }
            path => Ok(path.map(|path| PathBuf::from(path.into_inner()))),
        }
    }

    pub(super) fn time(
        &self,
        value: &Spanned<String>,
        range: RangeInclusive<Duration>,
    ) -> Result<Duration, ConfigError> {
        let (least, most) = (range.start().as_secs(), range.end().as_secs());
        tracer_model::quantity::duration(value.get_ref()).ok().filter(|time| range.contains(time)).ok_or_else(|| {
            self.wrong(&value.span(), format!("expected a time from {least}s to {most}s, such as \"10s\""))
        })
    }

    /// An amount of memory or disk, not zero.
    pub(super) fn size(&self, value: &Spanned<String>) -> Result<u64, ConfigError> {
        let size = tracer_model::quantity::size(value.get_ref());
        size.and_then(|size| if size > 0 { Ok(size) } else { Err("expected at least 1M".into()) })
            .map_err(|what| self.wrong(&value.span(), what))
    }
}
