//! `[hindsight]`: writes the last seconds as a recording when a finding begins or a client of the API asks. A thread of its own
//! does all that may wait for the disk.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use tracer_host::files;
use tracer_results::record::{HindsightRecording, HindsightRing, Origin};

use super::Failure;
use super::dated_files::DatedFiles;
use crate::config::HindsightSettings;
use crate::pipeline::Pipeline;

const RECORDINGS: DatedFiles = DatedFiles { prefix: "hindsight-", suffix: ".tracer" };
/// Those that are being written.
const PARTS: DatedFiles = DatedFiles { suffix: ".part", ..RECORDINGS };
/// Recordings that wait for the disk beside the one that is written: each holds on to what has left the ring since.
const QUEUE: usize = 1;
/// Findings that begin within so much time after one have no recording of their own.
const APART: Duration = Duration::from_secs(60);

/// Takes the path of the file, or why there is none.
type Answer = oneshot::Sender<Result<String, String>>;

struct Ask {
    recording: HindsightRecording,
    when: SystemTime,
    answer: Option<Answer>,
}

/// What became of recordings.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    /// The disk refused.
    failed: AtomicU64,
    /// The disk was too slow.
    queue_full: AtomicU64,
}

/// The ring, and the thread that writes.
pub(super) struct HindsightRecorder {
    pub(super) ring: HindsightRing,
    asks: SyncSender<Ask>,
    counts: Arc<Counts>,
    on_finding: bool,
    /// Findings so far.
    findings: u64,
    last: Option<Instant>,
}

impl HindsightRecorder {
    /// Makes the directory where it is missing; `None` where nothing is to be kept.
    pub(super) fn start(settings: &HindsightSettings, origin: &Origin) -> Result<Option<Self>, Failure> {
        let Some(dir) = &settings.dir else { return Ok(None) };
        let refused =
            |error| Failure::Running(format!("{}: {error}: recordings cannot be written there", dir.display()));
        files::directory(dir).map_err(refused)?;
        let (asks, asked) = sync_channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let (dir, keep, of_thread) = (dir.clone(), settings.keep, Arc::clone(&counts));
        let run = move || write_all(&dir, keep, &asked, &of_thread);
        std::thread::Builder::new().name("tracer-hindsight".into()).spawn(run).map_err(refused)?;
        let time = u64::try_from(settings.time.as_nanos()).unwrap_or(u64::MAX);
        let most = usize::try_from(settings.max_memory).unwrap_or(usize::MAX);
        let ring = HindsightRing::new(origin.clone(), time, most);
        Ok(Some(Self { ring, asks, counts, on_finding: settings.on_finding, findings: 0, last: None }))
    }

    /// Has the last seconds written; the file's path or the reason why there is none goes to `answer`.
    pub(super) fn write(&mut self, answer: Option<Answer>) {
        let ask = Ask { recording: self.ring.recording(), when: SystemTime::now(), answer };
        if let Err(error) = self.asks.try_send(ask) {
            self.counts.queue_full.fetch_add(1, Ordering::Relaxed);
            let (TrySendError::Full(ask) | TrySendError::Disconnected(ask)) = error;
            if let Some(answer) = ask.answer {
                // The client may be gone.
                let _ = answer.send(Err("earlier recordings are still being written; try again".into()));
            }
        }
    }

    /// Once a second: a finding that began has a recording written. Publishes what became of them.
    pub(super) fn tick(&mut self, pipeline: &Pipeline) {
        let findings = pipeline.detector.opened().iter().sum();
        let is_new = findings > std::mem::replace(&mut self.findings, findings);
        if is_new && self.on_finding && self.last.is_none_or(|last| last.elapsed() >= APART) {
            self.last = Some(Instant::now());
            self.write(None);
        }
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { written, failed, queue_full } = &*self.counts;
        let counts = [("written", read(written)), ("failed", read(failed)), ("queue_full", read(queue_full))];
        pipeline.metrics.set_hindsight(&counts, self.ring.covers() as f64 / 1e9);
    }
}

/// The thread: until the agent ends.
fn write_all(dir: &Path, keep: usize, asked: &Receiver<Ask>, counts: &Counts) {
    remove(dir, PARTS, 0);
    while let Ok(ask) = asked.recv() {
        let written = write(dir, &ask);
        let count = if written.is_ok() { &counts.written } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        let seconds = ask.recording.time / 1_000_000_000;
        match &written {
            Ok(path) => log::info!("{}: the last {seconds} s, for `tracer replay`", path.display()),
            Err(error) => log::warn!("{}: {error}: a recording of the last {seconds} s is not written", dir.display()),
        }
        remove(dir, RECORDINGS, keep);
        if let Some(answer) = ask.answer {
            let written = written.map(|path| path.display().to_string()).map_err(|error| error.to_string());
            let _ = answer.send(written);
        }
    }
}

/// Writes a file, which has its name once it is whole.
fn write(dir: &Path, ask: &Ask) -> io::Result<PathBuf> {
    let (path, part) = (dir.join(RECORDINGS.name(ask.when, 0)), dir.join(PARTS.name(ask.when, 0)));
    let written = files::create_new(&part).and_then(|mut file| {
        ask.recording.pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        fs::rename(&part, &path)
    });
    if written.is_err() {
        // Nothing that could be taken for a recording stays; that the disk refused is reported.
        let _ = fs::remove_file(&part);
    }
    written.map(|()| path)
}

/// Removes the oldest of these files, all but `keep`.
fn remove(dir: &Path, files: DatedFiles, keep: usize) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| files.include(name));
    // Names sort by time.
    names.sort();
    for name in names.iter().rev().skip(keep) {
        if let Err(error) = fs::remove_file(dir.join(name)) {
            log::warn!("{}/{name}: {error}: it should have been removed", dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_results::record::{FrameKind, RecordingReader};

    fn settings(dir: &Path, keep: usize) -> HindsightSettings {
        HindsightSettings { dir: Some(dir.to_owned()), keep, ..HindsightSettings::default() }
    }

    fn files(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn ask(recorder: &mut HindsightRecorder) -> Result<String, String> {
        let (answer, wait) = oneshot::channel();
        recorder.write(Some(answer));
        wait.blocking_recv().unwrap()
    }

    #[test]
    fn recordings_are_whole_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/b");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("hindsight-20260101T000000.000Z.part"), "half").unwrap();
        fs::write(dir.join("hindsight-mine.tracer"), "mine").unwrap();
        let origin = Origin { wall_offset: 0, seed: 1, host: "host".into() };
        let mut recorder = HindsightRecorder::start(&settings(&dir, 2), &origin).unwrap().unwrap();
        recorder.ring.frame(FrameKind::Tick, &5u64.to_ne_bytes());
        let written: Vec<String> = (0..3)
            .map(|_| {
                // Names tell milliseconds apart.
                std::thread::sleep(Duration::from_millis(2));
                ask(&mut recorder).unwrap()
            })
            .collect();
        let expected: Vec<String> =
            written[1..].iter().map(|path| path.rsplit('/').next().unwrap().to_owned()).collect();
        assert_eq!(files(&dir), [expected, vec!["hindsight-mine.tracer".to_owned()]].concat());
        let mut reader = RecordingReader::open(Path::new(&written[2])).unwrap();
        assert_eq!(reader.next_frame().unwrap(), (FrameKind::Tick, &5u64.to_ne_bytes()[..]));
        assert_eq!(reader.next_frame().unwrap().0, FrameKind::End);
        // An error of the disk is the answer, and leaves nothing.
        fs::remove_dir_all(&dir).unwrap();
        let error = ask(&mut recorder).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
