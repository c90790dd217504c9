//! `tracer top`: the request classes of a running agent, or of one of its own, and the requests that run now, in a terminal,
//! by its HTTP API.
//!
//! A thread of its own asks the agent, so that keys work while it does; `table` decides what stands where and is pure;
//! `screen` draws it.

mod client;
mod details;
mod keys;
mod own_agent;
mod running;
mod screen;
mod table;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};

use self::details::Details;
use self::keys::Done;
use self::own_agent::OwnAgent;
use self::running::{Running, RunningView};
use self::table::{ClassKey, Snapshot, Table};
use super::Failure;
use super::api_client::{Client, DEFAULT_URL};

/// Between two looks at the stacks of one class: the agent resolves names for each.
const STACKS_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at keys and signals.
const BLINK: Duration = Duration::from_millis(100);
/// How long after a signal the screen has to end by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the thread that asks the agent reports.
enum News {
    /// All classes and services.
    Snapshot(Box<Snapshot>),
    /// What [`Details`] shows of the wanted class.
    Details(Box<Details>),
    /// The requests that run now.
    Running(Box<Running>),
    /// Why there is nothing new.
    Trouble(String),
}

/// Everything on the screen.
#[derive(Debug, Default)]
struct Top {
    table: Table,
    url: String,
    /// The class that is looked at closely.
    wanted: Option<ClassKey>,
    details: Option<Details>,
    /// The requests that run now stand in the place of the classes.
    shows_running: bool,
    running: RunningView,
    trouble: Option<String>,
    /// The filter is being typed.
    typing: bool,
    help: bool,
}

/// What the agent is asked for beside classes and services.
#[derive(Clone, Debug, Default, PartialEq)]
struct Asked {
    /// The class that is looked at closely.
    class: Option<ClassKey>,
    /// Whether the requests that run now are shown.
    running: bool,
}

/// Shows the agent at `url` until a key or a signal ends it; without one, this host's agent, or one of its own.
pub fn top(url: Option<&str>, interval: Duration) -> Result<(), Failure> {
    let client = Client::new(url.unwrap_or(DEFAULT_URL)).map_err(Failure::Usage)?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::Usage("top needs a terminal; for programs there is the API: docs/http-api.md".into()));
    }
    let stop = stop_on_signals()?;
    // Before the screen is taken: whoever asks an agent that does not run gets a sentence. Dropped after the screen.
    let mut own = None;
    let first = if url.is_none() && client.is_refused() {
        eprintln!("tracer: no agent listens at {DEFAULT_URL}: starting one, which ends with this program");
        match own.insert(OwnAgent::start(&client)?).ready(&client, &stop)? {
            Some(first) => first,
            None => return Ok(()),
        }
    } else {
        client.snapshot().map_err(Failure::Running)?
    };
    let mut top = Top { url: client.url().to_owned(), ..Top::default() };
    top.table.update(first);
    let (news_sender, news) = mpsc::channel();
    let (wanted_sender, wanted) = mpsc::channel();
    let asking = std::thread::Builder::new().name("tracer-top".into());
    asking
        .spawn(move || ask(&client, interval.max(BLINK), &wanted, &news_sender))
        .map_err(|error| Failure::Running(format!("no thread to ask the agent: {error}")))?;
    // From here on a panic restores the terminal too: `try_init` sets a hook.
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::Running(format!("the terminal cannot be drawn on: {error}")))?;
    let ended = run(&mut terminal, &mut top, &news, &wanted_sender, &stop);
    ratatui::restore();
    ended.map_err(|error| Failure::Running(format!("the terminal: {error}")))
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    top: &mut Top,
    news: &mpsc::Receiver<News>,
    wanted: &mpsc::Sender<Asked>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) {
        while let Ok(one) = news.try_recv() {
            top.take(one);
            changed = true;
        }
        if changed {
            terminal.draw(|frame| screen::draw(frame, top))?;
        }
        changed = event::poll(BLINK)?;
        if !changed {
            continue;
        }
        if let Event::Key(key) = event::read()? {
            let before = top.asked();
            if top.press(key) == Done::Quit {
                break;
            }
            let asked = top.asked();
            if asked != before {
                // The thread is there as long as this receiver is.
                let _ = wanted.send(asked);
            }
        }
    }
    Ok(())
}

impl Top {
    fn asked(&self) -> Asked {
        Asked { class: self.wanted.clone(), running: self.shows_running }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Snapshot(snapshot) => {
                self.trouble = None;
                self.table.update(*snapshot);
            }
            News::Details(details) if Some(&details.class) == self.wanted.as_ref() => self.details = Some(*details),
            News::Running(running) if self.shows_running && !self.table.paused => {
                self.running.update(*running, &self.table.filter);
            }
            // Another class may have been chosen meanwhile, or the view left.
            News::Details(_) | News::Running(_) => {}
            News::Trouble(why) => self.trouble = Some(why),
        }
    }
}

/// Asks the agent until the receiver is gone.
fn ask(client: &Client, interval: Duration, wanted: &mpsc::Receiver<Asked>, news: &mpsc::Sender<News>) {
    let mut asked = Asked::default();
    let mut details_at: Option<Instant> = None;
    loop {
        let mut answers = Vec::new();
        match wanted.recv_timeout(interval) {
            Ok(chosen) => {
                if chosen.class != asked.class {
                    details_at = None;
                }
                asked = chosen;
            }
            Err(RecvTimeoutError::Timeout) => {
                answers.push(client.snapshot().map(|snapshot| News::Snapshot(Box::new(snapshot))));
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if asked.running {
            answers.push(client.running().map(|running| News::Running(Box::new(running))));
        }
        if let Some(class) = &asked.class
            && details_at.is_none_or(|at| at.elapsed() >= STACKS_EVERY)
        {
            details_at = Some(Instant::now());
            answers.push(client.details(class).map(|details| News::Details(Box::new(details))));
        }
        for answer in answers {
            if news.send(answer.unwrap_or_else(News::Trouble)).is_err() {
                return;
            }
        }
    }
}

/// A flag that SIGTERM, SIGHUP and SIGINT set: the terminal is restored before the end, which comes within [`PATIENCE`].
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let no = |error: std::io::Error| Failure::Running(format!("signals cannot be handled: {error}"));
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no)?;
    let flag = Arc::clone(&stop);
    let waiting = std::thread::Builder::new().name("tracer-signals".into());
    waiting
        .spawn(move || {
            runtime.block_on(async {
                let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
                let [Ok(mut terminate), Ok(mut hangup), Ok(mut interrupt)] = kinds.map(signal) else { return };
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                    _ = interrupt.recv() => {}
                }
                flag.store(true, Ordering::Relaxed);
            });
            // Without its terminal, the library that reads keys does so for ever and never looks at the flag.
            std::thread::sleep(PATIENCE);
            ratatui::restore();
            std::process::exit(1);
        })
        .map_err(no)?;
    Ok(stop)
}
