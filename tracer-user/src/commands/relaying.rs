//! Between the pipeline and the agents of other hosts: what they said goes in before the next records, what they are to
//! be told comes out after.

use std::net::SocketAddr;

use super::Failure;
use super::agent::Agent;
use crate::config::Relay;
use crate::http::Peers;
use crate::kernel::load::monotonic;
use crate::model::Nanos;
use crate::pipeline::Pipeline;
use crate::record::Kind;
use crate::relay;
use crate::relay::event::{Event, Mode};
use crate::relay::hub::Hub;

/// Messages after which records get their turn.
const MESSAGES: usize = 4096;
/// The pipeline learns that time passed at least this often while agents may wait for word; nanoseconds.
const TIME: Nanos = 10_000_000;

/// The agent's part of the relay.
#[derive(Debug)]
pub(super) struct Relaying {
    hub: Hub,
    mode: Mode,
    told: Nanos,
    _runtime: Background,
}

impl Relaying {
    /// Begins to speak to other agents, where that is wanted, in a thread of its own.
    pub(super) fn start(config: &Relay, seed: u64, host: &str) -> Result<Option<Self>, Failure> {
        if !config.is_on() {
            return Ok(None);
        }
        let settings = config.settings().map_err(Failure::Relay)?;
        let own = relay::Agent { number: seed.max(1), host: host.into() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tracer-relay")
            .enable_all()
            .build()
            .map_err(|error| Failure::Running(format!("no thread for other agents: {error}")))?;
        let hub = runtime.block_on(Hub::start(settings, own)).map_err(|error| {
            Failure::Running(match config.listen {
                Some(listen) if config.nats.is_none() => {
                    format!("cannot listen for other agents on {listen}: {error}; choose another with --relay")
                }
                _ => format!("cannot speak to other agents: {error}"),
            })
        })?;
        Ok(Some(Self { hub, mode: Mode::Off, told: 0, _runtime: Background(Some(runtime)) }))
    }

    /// Where other agents are listened to.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.hub.listen
    }
}

/// A runtime that is not waited for: whoever is spoken to may not answer.
#[derive(Debug)]
struct Background(Option<tokio::runtime::Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Agent {
    /// Takes what other agents said.
    pub(super) fn hear(&mut self, pipeline: &mut Pipeline) {
        let Some(relaying) = &mut self.relaying else { return };
        let recorder = &mut self.recorder;
        let mut hear = |event: Event| {
            let now = monotonic();
            // Before it is heard, so that a recording has it where it was.
            if let Some(recorder) = recorder.as_mut() {
                recorder.frame(Kind::Relay, &event.encode(now));
            }
            pipeline.relayed(now, event);
            now
        };
        let mode = relaying.hub.mode();
        if mode != relaying.mode {
            relaying.mode = mode;
            hear(Event::Mode(mode));
        }
        let mut heard = 0;
        while heard < MESSAGES {
            let Some(received) = relaying.hub.receive() else { break };
            heard += received.messages.len();
            for message in received.messages {
                relaying.told = hear(Event::Said(received.from.clone(), message));
            }
        }
        if mode == Mode::Waits && monotonic().saturating_sub(relaying.told) >= TIME {
            relaying.told = hear(Event::Time);
        }
    }

    /// Tells other agents what there is to tell.
    pub(super) fn tell(&mut self, pipeline: &mut Pipeline) {
        let outgoing = pipeline.take_outgoing();
        match &self.relaying {
            Some(relaying) => relaying.hub.send(outgoing.collect()),
            None => drop(outgoing),
        }
    }

    /// About once a second: figures and states of the other agents.
    pub(super) fn count_relayed(&mut self, pipeline: &Pipeline) {
        let Some(relaying) = &self.relaying else { return };
        let outcomes = relaying.hub.outcomes().with(pipeline.relay_outcomes());
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
