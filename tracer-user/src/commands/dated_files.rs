//! Names of files that say when they were begun, in directories where only our own are removed.

use std::time::SystemTime;

/// How the names of one kind of file begin and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatedFiles {
    pub(super) prefix: &'static str,
    pub(super) suffix: &'static str,
}

impl DatedFiles {
    /// `transactions-20261121T174501.123Z.jsonl`, with a number where that exists. Names sort by time.
    pub(super) fn name(self, when: SystemTime, nth: u32) -> String {
        let when = jiff::Timestamp::try_from(when).unwrap_or_default().strftime("%Y%m%dT%H%M%S%.3fZ").to_string();
        let Self { prefix, suffix } = self;
        if nth == 0 { format!("{prefix}{when}{suffix}") } else { format!("{prefix}{when}-{nth}{suffix}") }
    }

    /// Whether a file has a name as given by [`Self::name`].
    pub(super) fn include(self, file: &str) -> bool {
        let middle = file.strip_prefix(self.prefix).and_then(|rest| rest.strip_suffix(self.suffix));
        middle.is_some_and(|when| {
            when.len() >= 20
                && when.starts_with(|c: char| c.is_ascii_digit())
                && when.bytes().all(|byte| byte.is_ascii_digit() || b"TZ.-".contains(&byte))
        })
    }
}
