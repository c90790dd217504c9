//! Writes windows on a thread of its own: a slow disk or a full one holds up nothing else.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::directory::{Directory, Disk, Options, RealDisk};
use super::rows::WindowRows;
use super::status::Status;
use super::uploads::Uploads;

/// Windows that may wait for the disk: more than a minute of them.
const QUEUE: usize = 8;

/// Takes windows. Without [`Writer::finish`] the last ones stay in the journal, where the next run finds them.
#[derive(Debug)]
pub struct Writer {
    queue: SyncSender<WindowRows>,
    /// Disconnected when the thread has ended.
    done: Receiver<()>,
    status: Arc<Status>,
    uploads: Option<Arc<Uploads>>,
}

impl Writer {
    /// Opens the directory, which may take a moment, and starts the thread.
    pub fn start(options: Options) -> io::Result<Self> {
        Self::with_disk(options, Box::new(RealDisk))
    }

    fn with_disk(options: Options, disk: Box<dyn Disk>) -> io::Result<Self> {
        let status = Arc::new(Status::default());
        let directory = Directory::open(options, Arc::clone(&status), disk)?;
        let uploads = directory.uploads();
        let (queue, windows) = sync_channel(QUEUE);
        let (ending, done) = channel();
        Builder::new().name("history".to_owned()).spawn(move || {
            write(directory, &windows);
            drop(ending);
        })?;
        Ok(Self { queue, done, status, uploads })
    }

    /// Files that wait for the bucket, if the options ask for uploads.
    pub fn uploads(&self) -> Option<&Arc<Uploads>> {
        self.uploads.as_ref()
    }

    /// Counters, for metrics and the API.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Hands a window over. Never waits: if the queue is full, the window is lost and counted.
    pub fn window(&self, window: WindowRows) {
        if self.queue.try_send(window).is_err() {
            self.status.windows_lost_queue.add(1);
        }
    }

    /// Turns everything into Parquet files, if that takes no longer than `most`. Returns whether it did not.
    pub fn finish(self, most: Duration) -> bool {
        drop(self.queue);
        // Nothing is ever sent.
        let ended = self.done.recv_timeout(most) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
        if !ended {
            log::warn!("history: the disk is slow: windows that are in no Parquet file yet follow at the next start");
        }
        ended
    }
}

fn write(mut directory: Directory, windows: &Receiver<WindowRows>) {
    let mut lost = 0u64;
    for window in windows {
        match directory.append(&window) {
            Ok(()) if lost > 0 => {
                log::info!("history: written again after {lost} lost windows");
                lost = 0;
            }
            Ok(()) => {}
            Err(error) => {
                if lost == 0 {
                    log::warn!("history: {error}: windows are lost until this passes");
                }
                lost += 1;
            }
        }
    }
    directory.finish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::rows::HostRow;
    use std::fs::File;
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Instant;

    /// A disk that stands still until the gate opens.
    struct Stalled(Arc<(Mutex<bool>, Condvar)>);

    impl Disk for Stalled {
        fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
            let (open, changed) = &*self.0;
            let guard = open.lock().unwrap_or_else(PoisonError::into_inner);
            drop(changed.wait_while(guard, |open| !*open).unwrap_or_else(PoisonError::into_inner));
            RealDisk.write(file, bytes)
        }
    }

    fn window(n: u64) -> WindowRows {
        let start_ns = 1_795_503_600_000_000_000 + n * 10_000_000_000;
        WindowRows { host: HostRow { start_ns, ..HostRow::default() }, ..WindowRows::default() }
    }

    #[test]
    fn a_stalled_disk_loses_windows_visibly_and_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let options = Options {
            dir: dir.path().join("history"),
            host: "h".to_owned(),
            max_size: 1 << 30,
            max_age: Duration::from_secs(1 << 30),
            hourly_max_age: Duration::from_secs(1 << 30),
            daily_max_age: Duration::from_secs(1 << 30),
            upload: false,
        };
        let writer = Writer::with_disk(options, Box::new(Stalled(Arc::clone(&gate)))).unwrap();
        let begin = Instant::now();
        let given = QUEUE as u64 + 20;
        for n in 0..given {
            writer.window(window(n));
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "it does not wait");
        let status = Arc::clone(writer.status());
        let lost = status.windows_lost_queue.get();
        assert!((19..=20).contains(&lost), "{lost}");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert!(writer.finish(Duration::from_secs(60)));
        assert_eq!(status.windows_written.get(), given - lost);
        assert_eq!(status.windows_lost_disk.get(), 0);
    }
}
