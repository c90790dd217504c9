//! Counters of the history, for metrics and the API.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter, or a size.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Status {
    /// Windows by outcome.
    pub fn windows(&self) -> [(&'static str, u64); 5] {
        [
            ("written", self.windows_written.get()),
            ("recovered", self.windows_recovered.get()),
            ("lost_queue", self.windows_lost_queue.get()),
            ("lost_disk", self.windows_lost_disk.get()),
            ("lost_torn", self.windows_lost_torn.get()),
        ]
    }

    /// Uploads by outcome.
    pub fn uploads(&self) -> [(&'static str, u64); 3] {
        [
            ("taken", self.uploads_done.get()),
            ("failed", self.uploads_failed.get()),
            ("given_up", self.uploads_given_up.get()),
        ]
    }

    /// Files by outcome.
    pub fn files(&self) -> [(&'static str, u64); 4] {
        [
            ("written", self.files_written.get()),
            ("failed", self.files_failed.get()),
            ("recycled", self.files_recycled.get()),
            ("ignored", self.files_ignored.get()),
        ]
    }
}

/// What became of the windows, since the start.
#[derive(Debug, Default)]
pub struct Status {
    /// Windows that are on disk.
    pub windows_written: Counter,
    /// Windows that an earlier run had left in its journal and that are in Parquet files now.
    pub windows_recovered: Counter,
    /// Windows lost because the disk did not keep up.
    pub windows_lost_queue: Counter,
    /// Windows lost because writing them failed.
    pub windows_lost_disk: Counter,
    /// Windows that an earlier run was writing when it was killed.
    pub windows_lost_torn: Counter,
    /// Parquet files written, replacements included.
    pub files_written: Counter,
    /// Parquet files that could not be written; their windows stay in the journal.
    pub files_failed: Counter,
    /// Parquet files removed for their age or for room.
    pub files_recycled: Counter,
    /// Files in the directory that are not the history's, or that this version cannot read; they are left alone.
    pub files_ignored: Counter,
    /// Bytes of this host's Parquet files.
    pub bytes: Counter,
    /// Files that the bucket took, replacements included.
    pub uploads_done: Counter,
    /// Attempts that failed; their files wait.
    pub uploads_failed: Counter,
    /// Files that were removed here, for their age or for room, before the bucket took them.
    pub uploads_given_up: Counter,
    /// Files that wait for the bucket.
    pub upload_waiting: Counter,
    /// Their bytes.
    pub upload_waiting_bytes: Counter,
}
