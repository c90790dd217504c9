//! Between the pipeline and the agents of other hosts: their messages go in before the next records, and
//! messages for them come out after.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tracer_http::Peers;
use tracer_kernel::loader::monotonic;
use tracer_model::Nanos;
use tracer_relay::Outgoing;
use tracer_relay::bounds::Policy;
use tracer_relay::event::{Event, Mode};
use tracer_relay::hub::Hub;
use tracer_relay::outbox::Outbox;
use tracer_results::record::FrameKind;

use super::Failure;
use super::agent::Agent;
use super::poll_interval::{Found, Pace, SHORTEST};
use crate::config::Relay;
use crate::pipeline::Pipeline;

/// Messages after which records get their turn.
const MESSAGES: usize = 4096;
/// The pipeline learns that time passed at least this often while agents may wait for word; nanoseconds.
const TIME: Nanos = 10_000_000;
/// A millisecond.
const MILLI: Nanos = 1_000_000;
/// While calls to hosts with agents are made, and so long after the last, the loop looks at least every [`CALLING_WAIT`]
/// milliseconds: their other ends wait for word of them.
const CALLING: Nanos = 2_000_000_000;
/// See [`CALLING`].
const CALLING_WAIT: i32 = 7;

/// What others say ends a long rest only so often, nanoseconds, and what is rested at least between: somebody who says much in
/// many frames must not have this thread turn without end.
const DEAF: Nanos = 2_000_000;
/// See [`DEAF`]; milliseconds.
const DEAF_WAIT: i32 = 2;

/// The agent's part of the relay.
#[derive(Debug)]
pub(super) struct Relaying {
    hub: Hub,
    mode: Mode,
    received_at: Nanos,
    outbox: Outbox,
    /// When a call to another host was last seen.
    called: Nanos,
    /// When another agent's word last ended a rest.
    woken_at: Nanos,
    /// Of which connections agents are believed, until the pipeline knows.
    policy: Option<Policy>,
    _runtime: Background,
}

impl Relaying {
    /// Begins to speak to other agents, where that is wanted, in a thread of its own.
    pub(super) fn start(config: &Relay, seed: u64, host: &str) -> Result<Option<Self>, Failure> {
        if !config.is_on() {
            return Ok(None);
        }
        let settings = config.settings().map_err(Failure::Relay)?;
        let policy = Some(settings.policy.clone());
        let own = tracer_relay::Agent { number: seed.max(1), host: host.into() };
        // One thread: a scheduler for several costs more at each wake-up than what most of them are for.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let no_thread = |error: io::Error| Failure::Running(format!("no thread for other agents: {error}"));
        let runtime = runtime.map_err(no_thread)?;
        let hub = runtime.block_on(Hub::start(settings, own)).map_err(|error| {
            Failure::Running(match config.listen {
                Some(listen) if config.nats.is_none() => {
                    format!("cannot listen for other agents on {listen}: {error}; choose another with --relay")
                }
                _ => format!("cannot speak to other agents: {error}"),
            })
        })?;
        let runtime = Background::start(runtime).map_err(no_thread)?;
        Ok(Some(Self {
            hub,
            mode: Mode::Off,
            received_at: 0,
            outbox: Outbox::default(),
            called: 0,
            woken_at: 0,
            policy,
            _runtime: runtime,
        }))
    }

    /// Where other agents are listened to.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.hub.listen
    }
}

/// A runtime in a thread of its own, which is not waited for at the end: whoever is spoken to may not answer.
#[derive(Debug)]
struct Background {
    /// Dropped with this: then it ends.
    _goes_on: oneshot::Sender<()>,
}

impl Background {
    fn start(runtime: Runtime) -> io::Result<Self> {
        let (goes_on, over) = oneshot::channel();
        let run = move || {
            // Either way it is over: nothing is ever sent.
            let _ = runtime.block_on(over);
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("tracer-relay".into()).spawn(run)?;
        Ok(Self { _goes_on: goes_on })
    }
}

impl Agent {
    /// Takes the messages of other agents.
    pub(super) fn take_messages(&mut self, pipeline: &mut Pipeline) {
        let Some(relaying) = &mut self.relaying else { return };
        let recorders = &mut self.files.recorders;
        let mut take = |event: Event| {
            let now = monotonic();
            // Before it is taken, so that a recording has it where it was.
            if recorders.is_any() {
                recorders.frame(FrameKind::Relay, &event.encode(now));
            }
            pipeline.relayed(now, event);
            now
        };
        if let Some(policy) = relaying.policy.take() {
            take(Event::Policy(policy));
        }
        let mode = relaying.hub.mode();
        if mode != relaying.mode {
            relaying.mode = mode;
            take(Event::Mode(mode));
        }
        let mut taken = 0;
        while taken < MESSAGES {
            let Some(received) = relaying.hub.receive() else { break };
            taken += received.messages.len().max(1);
            if let Some(session) = received.session {
                relaying.received_at = take(Event::Session(session));
            }
            for message in received.messages {
                relaying.received_at = take(Event::Message(received.from.clone(), message));
            }
        }
        if mode == Mode::Waits && monotonic().saturating_sub(relaying.received_at) >= TIME {
            relaying.received_at = take(Event::Time);
        }
    }

    /// Tells other agents what there is to tell.
    pub(super) fn tell(&mut self, pipeline: &mut Pipeline) {
        let outgoing = pipeline.take_outgoing();
        let Some(Relaying { hub, mode, outbox, called, .. }) = &mut self.relaying else { return drop(outgoing) };
        let now = monotonic();
        for outgoing in outgoing {
            if matches!(outgoing, Outgoing::Context { .. }) && *mode == Mode::Waits {
                *called = now;
            }
            outbox.put(now, outgoing);
        }
        if outbox.due().is_some_and(|due| due <= now) {
            // Most of what it finds goes in the place of what waits.
            pipeline.sweep_outgoing();
            pipeline.take_outgoing().for_each(|outgoing| outbox.put(now, outgoing));
            hub.send(outbox.take(now));
        }
    }

    /// Rests as long as `pace` says after what was `found`; less where messages for other agents wait, and where it
    /// is long until one of them says something. `rested`: whether the last rest was as long as it should be; gives the same
    /// of this one. Alone on a calm host, the agent rests `until` when, or somebody asks something.
    pub(super) fn rest(
        &mut self,
        pipeline: &mut Pipeline,
        pace: &mut Pace,
        found: &Found,
        rested: bool,
        until: (Instant, &dyn Fn() -> bool),
    ) -> bool {
        let Some(Relaying { hub, outbox, called, woken_at, .. }) = &mut self.relaying else {
            let wait = pace.after(found);
            let (due, is_asking) = until;
            if !self.sleep_until_record(pipeline, pace, due, is_asking) {
                self.intake.rings.wait(wait, None);
            }
            return true;
        };
        let wait = pace.after_for_others(found, rested);
        // A priority is changed as late as the next drain.
        let wait = if pipeline.expects_service_classes() { wait.min(SHORTEST) } else { wait };
        let now = monotonic();
        let wakeup = hub.wakeup();
        if wait <= SHORTEST {
            // Under load it looks often enough.
            wakeup.arm();
            let woken = !hub.is_quiet() || self.intake.rings.wait(wait, Some(wakeup.fd()));
            wakeup.disarm();
            if woken {
                // Requests that were read know their callers from here on; the rings get their turn as without it.
                self.take_messages(pipeline);
                let over = monotonic().saturating_sub(now) / MILLI;
                let left = i32::try_from(over).map_or(0, |over| wait - over);
                if left > 0 {
                    self.intake.rings.wait(left, None);
                }
            }
            return true;
        }
        let wait = if now.saturating_sub(*called) < CALLING { wait.min(CALLING_WAIT) } else { wait };
        pace.cut(wait);
        if now.saturating_sub(*woken_at) < DEAF {
            self.intake.rings.wait(wait.min(DEAF_WAIT), None);
            return false;
        }
        let due = |due: Nanos| i32::try_from(due.saturating_sub(now) / MILLI + 1).unwrap_or(wait);
        let due = outbox.due().map_or(i32::MAX, due);
        wakeup.arm();
        let woken = !hub.is_quiet() || self.intake.rings.wait(wait.min(due), Some(wakeup.fd()));
        wakeup.disarm();
        if woken {
            *woken_at = monotonic();
        }
        !woken
    }

    /// About once a second: figures and states of the other agents.
    pub(super) fn count_relayed(&mut self, pipeline: &Pipeline) {
        let Some(relaying) = &mut self.relaying else { return };
        relaying.outbox.shrink_excess();
        let mut outcomes = relaying.hub.outcomes().with(pipeline.relay_outcomes());
        outcomes.dropped += relaying.outbox.dropped;
        pipeline.metrics.set_relay(&outcomes.all());
        let listen = relaying.listen().map(|listen| listen.to_string());
        let mut peers = relaying.hub.peers();
        for peer in &mut peers {
            let clock = pipeline.clock_of(peer.agent);
            peer.clock_offset_s = clock.map(|clock| clock.offset as f64 / 1e9);
            peer.clock_error_s = clock.map(|clock| clock.error as f64 / 1e9);
        }
        self.health.peers = Some(Peers { listen, peers, outcomes });
    }
}
