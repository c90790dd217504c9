//! Reads the configuration again: on SIGHUP, when the fleet has new policies and, if asked for, when the file changes.
//!
//! A thread of its own reads and checks the file; the pipeline's takes it up between two drains, as a whole. A file with a
//! mistake changes nothing: the log, a metric and the health page say where the mistake is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tracer_http::ConfigStatus;
use tracer_kernel::loader::monotonic;
use tracer_policies::service_classes::Mode;
use tracer_results::metrics::Metrics;

use super::Failure;
use super::agent::Agent;
use super::counting;
use super::declaring::Declaring;
use super::enforcing;
use super::fleet_policies::FleetPolicies;
use crate::config::{Config, Sections};
use crate::pipeline::Pipeline;

/// Between two looks whether the file changed. A file that is still being written is not read: it has to be the same for one
/// such time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A configuration that was read and checked.
struct Fresh {
    config: Config,
    /// Other sections that changed; they need a restart.
    need_restart: Vec<String>,
}

/// The thread that reads.
pub(super) struct Reloading {
    read: Receiver<Result<Box<Fresh>, String>>,
    /// What was read and waits until the probes of the time before are in place.
    waiting: Option<Result<Box<Fresh>, String>>,
    /// Looks for new policies of the fleet, with which the file is read again.
    fleet: Option<FleetPolicies>,
}

/// Requests to read the file again.
#[derive(Clone)]
pub(super) struct ReloadRequests(SyncSender<()>);

impl ReloadRequests {
    /// Asks for it, unless that is about to be done anyway.
    pub(super) fn ask(&self) {
        let _ = self.0.try_send(());
    }
}

/// What tells whether a file was changed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let (inode, modified) = ((meta.dev(), meta.ino()), (meta.mtime(), meta.mtime_nsec()));
        Some(Self { inode, size: meta.size(), modified })
    }
}

/// Decides when a changed file is read.
#[derive(Debug)]
struct Changes {
    /// As it was when it was read.
    read: Option<Stamp>,
    /// As it was at the last look.
    seen: Option<Stamp>,
}

impl Changes {
    /// The file is as `stamp` says; whether to read it.
    fn look(&mut self, stamp: Option<Stamp>) -> bool {
        let settled = stamp == self.seen;
        self.seen = stamp;
        // A file that is gone is being replaced.
        let due = settled && stamp.is_some() && stamp != self.read;
        if due {
            self.read = stamp;
        }
        due
    }
}

impl Reloading {
    /// Starts the thread for the file `path`, which was read as `config` and `sections`, and the one that follows the fleet's
    /// policies if the file names a place.
    pub(super) fn start(path: &Path, config: &Config, sections: Sections) -> Result<(Self, ReloadRequests), Failure> {
        let (ask, asked) = sync_channel(1);
        let (answer, read) = sync_channel(1);
        let (file, mode, watched) = (path.to_owned(), config.enforcement.mode, config.agent.reload_on_change);
        std::thread::Builder::new()
            .name("tracer-reload".into())
            .spawn(move || follow(&file, mode, watched, &sections, &asked, &answer))
            .map_err(|error| Failure::Running(format!("no thread that reads the configuration again: {error}")))?;
        let requests = ReloadRequests(ask);
        let started = config.fleet.as_ref().map(|settings| FleetPolicies::start(settings, path, requests.clone()));
        let fleet = started
            .transpose()
            .map_err(|error| Failure::Running(format!("no thread for the fleet's policies: {error}")))?;
        Ok((Self { read, waiting: None, fleet }, requests))
    }

    /// Counts looks for the fleet's policies.
    pub(super) fn count(&self, metrics: &Metrics) {
        if let Some(policies) = &self.fleet {
            let (version, looks) = policies.status();
            metrics.set_fleet_policies(version, &looks);
        }
    }

    /// Whether something was read that cannot be taken up yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// What was read, if anything was.
    fn take(&mut self) -> Option<Result<Box<Fresh>, String>> {
        // The thread ends with its requests: with the agent.
        self.waiting.take().or_else(|| self.read.try_recv().ok())
    }
}

fn follow(
    path: &Path,
    mode: Mode,
    watched: bool,
    sections: &Sections,
    asked: &Receiver<()>,
    answer: &SyncSender<Result<Box<Fresh>, String>>,
) {
    let now = Stamp::of(path);
    let mut changes = Changes { read: now, seen: now };
    loop {
        // Where the file is not watched, this thread does not wake up.
        let request = if watched {
            asked.recv_timeout(LOOK_EVERY)
        } else {
            asked.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match request {
            Ok(()) => changes.read = Stamp::of(path),
            Err(RecvTimeoutError::Timeout) if changes.look(Stamp::of(path)) => {}
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if answer.send(read(path, mode, sections)).is_err() {
            return;
        }
    }
}

fn read(path: &Path, mode: Mode, started_with: &Sections) -> Result<Box<Fresh>, String> {
    let (mut config, sections) = Config::load_sections(path).map_err(|error| error.to_string())?;
    config.enforcement.mode = mode;
    enforcing::allow(&config, Some(path)).map_err(|failure| failure.to_string())?;
    Ok(Box::new(Fresh { config, need_restart: sections.need_restart(started_with) }))
}

/// What the health page says while the file has a mistake.
fn note_of(mistake: &str) -> String {
    format!("the configuration file was refused, the one before stays in force: {mistake}")
}

impl Agent {
    /// Takes up a configuration that was read again.
    pub(super) fn follow_configuration(&mut self, pipeline: &mut Pipeline) {
        let Some(reloading) = &mut self.reloading else { return };
        let Some(read) = reloading.take() else { return };
        if self.processes.declaring.as_ref().is_some_and(Declaring::is_busy) {
            reloading.waiting = Some(read);
            return;
        }
        let done = read.and_then(|fresh| self.take_up(*fresh, pipeline));
        let status = &mut self.health.configuration;
        status.last_ns = monotonic().saturating_add_signed(self.clock.wall_offset);
        let degraded = &mut self.health.degraded;
        if let Some(before) = &status.mistake {
            degraded.retain(|note| *note != note_of(before));
        }
        match done {
            Ok(what) => {
                // For people, whatever the level of the log, as at the start.
                eprintln!("tracer: the configuration was read again: {what}");
                (status.applied, status.mistake, status.last) = (status.applied + 1, None, Some(what));
            }
            Err(why) => {
                degraded.push(note_of(&why));
                log::error!("the configuration was not taken up, the one before stays in force: {why}");
                (status.refused, status.mistake, status.last) = (status.refused + 1, Some(why.clone()), Some(why));
            }
        }
        let ConfigStatus { applied, refused, mistake, .. } = status;
        pipeline.metrics.set_reloads(*applied, *refused, mistake.is_none());
    }

    /// Has the probes of the declared transactions attached, and those of others detached.
    pub(super) fn attach_declared(&mut self, pipeline: &Pipeline) {
        match &self.processes.declaring {
            Some(declaring) => declaring.replace(pipeline.declared()),
            None => {
                self.processes.declaring = Declaring::start(pipeline.declared(), &self.kernel, false)
                    .inspect_err(|error| log::error!("no thread for declared transactions, none is traced: {error}"))
                    .ok()
                    .flatten();
            }
        }
    }

    /// All of it, or nothing; says what changed, or why nothing did.
    fn take_up(&mut self, fresh: Fresh, pipeline: &mut Pipeline) -> Result<String, String> {
        let Fresh { mut config, need_restart } = fresh;
        if self.files.recorders.file.is_some() {
            return Err("a recording has one configuration, so that it can be replayed; end it first".into());
        }
        if let Some(why) = pipeline.obstacle_to_reload(&config).or_else(|| self.enforcing.obstacle_to_reload(&config)) {
            return Err(why);
        }
        // From here on nothing fails. Calls are expected before their probes are attached.
        let with_hotspots = self.with_hotspots(&config.declared);
        let configured = std::mem::replace(&mut config.declared, with_hotspots);
        let changes = pipeline.reload(&config);
        if !counting::is_possible(&config) {
            pipeline.see_all_whole();
        }
        self.enforcing.reload(&config, self.kernel.send_priorities.as_mut());
        self.attach_declared(pipeline);
        let mut what = format!(
            "{} transactions removed, {} new or changed, {} as before; {} service classes with {} rules, {} rules for request \
             classes",
            changes.removed.len(),
            changes.added.len(),
            changes.kept,
            config.service_classes.classes.len(),
            config.service_classes.rules.len(),
            config.classes.rules.len(),
        );
        if !need_restart.is_empty() {
            what = format!("{what}; also changed, and in force after a restart only: {}", need_restart.join(", "));
        }
        self.config.declared = configured;
        self.config.service_classes = config.service_classes;
        self.config.classes.rules = config.classes.rules;
        Ok(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_it_stopped_changing() {
        let stamp = |size| Some(Stamp { inode: (1, 1), size, modified: (0, 0) });
        let mut changes = Changes { read: stamp(1), seen: stamp(1) };
        // Written in two steps, gone for a moment, and back as it was.
        let looks =
            [stamp(1), stamp(2), stamp(3), stamp(3), stamp(3), None, None, stamp(3), stamp(3), stamp(1), stamp(1)];
        let read: Vec<bool> = looks.into_iter().map(|stamp| changes.look(stamp)).collect();
        assert_eq!(read, [false, false, false, true, false, false, false, false, false, false, true]);
    }

    #[test]
    fn a_file_with_a_mistake_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tracer.toml");
        fs::write(&path, "[agent]\nall_hooks = true\n").unwrap();
        let (config, sections) = Config::load_sections(&path).unwrap();
        let (mut reloading, requests) = Reloading::start(&path, &config, sections).unwrap();
        for (text, expected) in [
            ("[[transaction]]\nname = \"a\"\nprogram = \"x\"\n", Err(":3:11: expected an absolute path")),
            ("[[class]]\nname = \"a\"\n[limits]\nmax_cpu = \"5%\"\n", Ok("[agent] [limits]")),
        ] {
            fs::write(&path, text).unwrap();
            requests.ask();
            let read = loop {
                match reloading.take() {
                    Some(read) => break read,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            match (read, expected) {
                (Ok(fresh), Ok(sections)) => assert_eq!(fresh.need_restart.join(" "), sections),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (read, _) => panic!("{text}: {:?}", read.map(|fresh| fresh.need_restart)),
            }
        }
    }
}
