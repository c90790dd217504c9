//! Keeps the sessions: dials configured and discovered agents, accepts agents that dial, and routes messages.
//!
//! The agent that dials sends contexts, the agent that accepts answers with summaries, so two agents that call each
//! other have two sessions. The pipeline's thread never waits: a full queue drops messages and counts them. An agent's
//! claimed identity is never trusted: an agent that dials is identified by its number and the address it comes from, an
//! agent that is dialled by the address that was dialled.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracer_host::guard::wakeup_fd::WakeupFd;
use tracer_model::Nanos;

use super::bans::{BAN, Bans};
use super::bounds::{Bounds, SessionChange};
use super::channel::{Broken, Link, SessionEnd};
use super::event::Mode;
use super::message::Message;
use super::nats::Nats;
use super::routes::{ADDRESSES, Routes, is_private};
use super::session::{Ended, Session, Takes, Traffic};
use super::settings::Settings;
use super::{Agent, Outcomes, Outgoing, Received};

/// Most messages queued for one session.
const QUEUE: usize = 8192;
/// Most batches queued from all sessions to the pipeline, and from the pipeline to the router.
const BATCHES: usize = 256;
/// Timeout for dialling. Together with the longest wait for a known agent it is less than a second, so the relay
/// recovers soon after a network partition ends.
const DIAL: Duration = Duration::from_millis(500);
/// Waits between attempts: the first; the longest for agents that were configured or have answered before; the longest
/// for others.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const KNOWN_WAIT: Duration = Duration::from_millis(400);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A peer as `/api/v1/peers` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PeerView {
    /// Its address.
    pub address: String,
    /// `out`: this agent dialled and sends contexts; `in`: the other agent dialled.
    pub direction: &'static str,
    /// `up`, or `down`: not reached, being retried.
    pub state: &'static str,
    /// Its host; empty until its first message.
    pub host: String,
    /// Seconds since the state last changed.
    pub for_s: f64,
    /// Contexts and summaries sent and received in this session.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Bytes sent in this session, encryption included.
    pub sent_bytes: u64,
    /// How far its wall clock is ahead of this host's, seconds (negative: behind); `null` until calls to it gave an
    /// estimate.
    pub clock_offset_s: Option<f64>,
    /// Error of `clock_offset_s`, seconds.
    pub clock_error_s: Option<f64>,
    /// Number of the agent; 0 until it is known.
    #[serde(skip)]
    pub agent: u64,
    /// Why the last session ended or could not start; empty if there was none.
    pub error: String,
}

struct Peer {
    address: String,
    direction: &'static str,
    up: bool,
    agent: u64,
    host: Arc<str>,
    since: Instant,
    traffic: Arc<Traffic>,
    error: String,
    /// `error` is the other end's own answer.
    answered: bool,
}

/// A dialled agent: contexts for its address go here.
struct Dialler {
    /// Identifies the route that a connection is remembered by.
    id: u64,
    queue: mpsc::Sender<Message>,
    /// Number of the agent it is connected to; 0 while disconnected.
    reached: Arc<AtomicU64>,
    named: bool,
    task: AbortHandle,
}

#[derive(Default)]
struct HubState {
    peers: Mutex<BTreeMap<u64, Peer>>,
    next: AtomicU64,
    routes: Mutex<Routes>,
    bans: Mutex<Bans>,
    /// Which agents may receive a connection's contexts.
    bounds: Mutex<Bounds>,
    /// Sessions opened by other agents, to which their summaries go.
    accepted: Mutex<HashMap<u64, mpsc::Sender<Message>>>,
    /// Hashes agents' numbers with their addresses.
    hasher: RandomState,
    up: AtomicUsize,
    sent: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    dropped: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves the table consistent: every change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pipeline's handle to the relay.
pub struct Hub {
    queue: mpsc::Sender<Vec<Outgoing>>,
    inbox: mpsc::Receiver<Received>,
    wakeup: Arc<WakeupFd>,
    state: Arc<HubState>,
    /// The address it listens at.
    pub listen: Option<SocketAddr>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl Hub {
    /// Starts to listen and dial. Must run inside a tokio runtime.
    pub async fn start(settings: Settings, own: Agent) -> io::Result<Self> {
        let listener = match settings.listen {
            Some(address) => Some(TcpListener::bind(address).await?),
            None => None,
        };
        let listen = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (queue, waiting) = mpsc::channel(BATCHES);
        let (sender, received) = mpsc::channel(BATCHES);
        let bounds = Mutex::new(Bounds::new(settings.policy.clone()));
        let state = Arc::new(HubState { bounds, ..HubState::default() });
        let nats = match &settings.nats {
            Some(url) => Some(Nats::connect(url).await?),
            None => None,
        };
        let wakeup = Arc::new(WakeupFd::new()?);
        let (settings, inbox) = (Arc::new(settings), (sender, Arc::clone(&wakeup)));
        let common = Common { settings, own, state: Arc::clone(&state), nats, inbox, begun: Instant::now() };
        if let Some(nats) = common.nats.clone() {
            tokio::spawn(meet(nats, common.clone()));
        }
        if let Some(listener) = listener {
            tokio::spawn(accept(listener, common.clone()));
        }
        tokio::spawn(Router::new(common).run(waiting));
        Ok(Self { queue, inbox: received, wakeup, state, listen })
    }

    /// Sends a batch; a full queue drops it and counts the messages.
    pub fn send(&self, batch: Vec<Outgoing>) {
        let count = batch.len() as u64;
        if count > 0 && self.queue.try_send(batch).is_err() {
            self.state.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The next batch other agents sent, if any.
    pub fn receive(&mut self) -> Option<Received> {
        self.inbox.try_recv().ok()
    }

    /// Readable when another agent sent contexts. After [`WakeupFd::arm`] check [`Self::is_quiet`].
    pub fn wakeup(&self) -> &WakeupFd {
        &self.wakeup
    }

    /// Whether [`Self::receive`] would return nothing.
    pub fn is_quiet(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Whether requests wait for contexts.
    pub fn mode(&self) -> Mode {
        if self.state.up.load(Ordering::Relaxed) > 0 { Mode::Waits } else { Mode::Sends }
    }

    /// Counts of the hub's own outcomes.
    pub fn outcomes(&self) -> Outcomes {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let HubState { sent, refused, dropped, .. } = &*self.state;
        Outcomes { sent: of(sent), refused: of(refused), dropped: of(dropped), ..Outcomes::default() }
    }

    /// Sessions, including those being retried.
    pub fn peers(&self) -> Vec<PeerView> {
        let peers = lock(&self.state.peers);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let view = |peer: &Peer| PeerView {
            address: peer.address.clone(),
            direction: peer.direction,
            state: if peer.up { "up" } else { "down" },
            host: peer.host.to_string(),
            for_s: peer.since.elapsed().as_secs_f64(),
            sent: of(&peer.traffic.sent),
            received: of(&peer.traffic.received),
            sent_bytes: of(&peer.traffic.bytes),
            clock_offset_s: None,
            clock_error_s: None,
            agent: peer.agent,
            error: peer.error.clone(),
        };
        peers.values().map(view).collect()
    }
}

/// State all tasks share.
#[derive(Clone)]
struct Common {
    settings: Arc<Settings>,
    own: Agent,
    state: Arc<HubState>,
    /// Where agents meet, instead of dialling each other.
    nats: Option<Nats>,
    /// Messages for the pipeline, and what wakes it.
    inbox: (mpsc::Sender<Received>, Arc<WakeupFd>),
    /// Origin of [`Common::now`].
    begun: Instant,
}

impl Common {
    fn inbox(&self) -> (&mpsc::Sender<Received>, &WakeupFd) {
        (&self.inbox.0, &self.inbox.1)
    }

    /// Whether `dialler` is connected to an agent that may report on connections with `remote`: other agents receive no
    /// contexts of them either.
    fn may(&self, dialler: &Dialler, remote: IpAddr) -> bool {
        let agent = dialler.reached.load(Ordering::Relaxed);
        agent != 0 && lock(&self.state.bounds).may(self.now(), agent, remote)
    }

    fn now(&self) -> Nanos {
        self.begun.elapsed().as_nanos() as Nanos
    }

    /// Records the begin or end of a session here, and for the pipeline: before and after all messages of the session.
    async fn session_changed(&self, from: &Agent, change: &SessionChange) {
        lock(&self.state.bounds).learn(self.now(), change);
        let received = Received { from: from.clone(), messages: Vec::new(), session: Some(change.clone()) };
        // The pipeline may have ended.
        let _ = self.inbox.0.send(received).await;
    }

    /// Adds a line to `/api/v1/peers`.
    fn enter(&self, address: String, direction: &'static str) -> u64 {
        let id = self.state.next.fetch_add(1, Ordering::Relaxed);
        let (host, since) = (Arc::from(""), Instant::now());
        let peer = Peer {
            address,
            direction,
            up: false,
            agent: 0,
            host,
            since,
            traffic: Arc::default(),
            error: String::new(),
            answered: false,
        };
        lock(&self.state.peers).insert(id, peer);
        id
    }

    fn up(&self, id: u64, agent: &Agent) -> Arc<Traffic> {
        let (contexts, refused) = (Arc::clone(&self.state.sent), Arc::clone(&self.state.refused));
        let traffic = Arc::new(Traffic { contexts, refused, ..Traffic::default() });
        self.state.up.fetch_add(1, Ordering::Relaxed);
        if let Some(peer) = lock(&self.state.peers).get_mut(&id) {
            (peer.up, peer.agent, peer.host) = (true, agent.number, Arc::clone(&agent.host));
            peer.since = Instant::now();
            peer.traffic = Arc::clone(&traffic);
        }
        traffic
    }

    fn down(&self, id: u64, was_up: bool, why: &Ended) {
        if was_up {
            self.state.up.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(peer) = lock(&self.state.peers).get_mut(&id) {
            if peer.up || peer.error.is_empty() {
                peer.since = Instant::now();
            }
            peer.up = false;
            // A banned agent is hung up on without an answer: its first answer says more, and an earlier "connection
            // refused" says less.
            if was_up || !peer.answered || !why.is_mute() {
                peer.error = why.to_string();
                peer.answered = why.is_answer();
            }
        }
    }

    /// Counts a peer that sent what no agent sends, and bans its address.
    fn refuse(&self, place: &str, address: Option<IpAddr>, why: &Ended) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(address) = address.filter(|_| why.is_hostile()) {
            lock(&self.state.bans).ban(Instant::now(), address);
        }
        let level = if why.is_hostile() { log::Level::Warn } else { log::Level::Info };
        log::log!(level, "relay: {place} refused: {why}");
    }

    /// Admits a peer if there is room.
    fn admit(self, stream: impl Link, place: String, address: Option<IpAddr>) {
        if !lock(&self.state.bans).enter(Instant::now(), address) {
            self.state.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        tokio::spawn(async move {
            self.serve(stream, place, address).await;
            lock(&self.state.bans).leave(address);
        });
    }

    /// Runs a session that another agent opened, to its end; `address` is `None` if it came through a NATS server.
    async fn serve(&self, stream: impl Link, place: String, address: Option<IpAddr>) {
        let mut session = match Session::begin(stream, &self.settings, SessionEnd::Accepted, &self.own).await {
            Ok(session) => session,
            Err(Ended::Broken(Broken::Io(_) | Broken::HungUp) | Ended::Itself) => return,
            Err(why) => return self.refuse(&place, address, &why),
        };
        let id = self.enter(place.clone(), "in");
        let traffic = self.up(id, &session.agent);
        // Every peer knows the number of each agent it spoke to: the same number from another address is another agent.
        let number = self.state.hasher.hash_one((session.agent.number, address));
        let agent = Agent { number, host: Arc::clone(&session.agent.host) };
        session.agent = agent.clone();
        let mut addresses = std::mem::take(&mut session.addresses);
        if addresses.is_empty() {
            addresses.extend(address);
        }
        let mut change =
            SessionChange { agent: number, dialled: false, up: true, forwards: session.forwards, addresses };
        let (sender, mut outbox) = mpsc::channel(QUEUE);
        lock(&self.state.accepted).insert(agent.number, sender.clone());
        self.session_changed(&agent, &change).await;
        let ended = session.run(Takes::Contexts, &mut outbox, self.inbox(), &traffic, |_| ()).await;
        {
            let mut accepted = lock(&self.state.accepted);
            // It may have reconnected meanwhile.
            change.up = !accepted.get(&agent.number).is_some_and(|known| known.same_channel(&sender));
            if !change.up {
                accepted.remove(&agent.number);
            }
        }
        if !change.up {
            self.session_changed(&agent, &change).await;
        }
        self.down(id, true, &ended);
        lock(&self.state.peers).remove(&id);
        if ended.is_hostile() {
            self.refuse(&place, address, &ended);
        }
    }

    /// Keeps a session to `place` up, reconnecting as needed.
    async fn dial(self, place: String, named: bool, mut outbox: mpsc::Receiver<Message>, at: (u64, Arc<AtomicU64>)) {
        let (way, reached) = at;
        let id = self.enter(place.clone(), "out");
        let (mut wait, mut known) = (FIRST_WAIT, named);
        loop {
            let why = match self.reach(&place).await {
                Ok(mut session) => {
                    // Two agents that claim the same number still count as two.
                    let number = self.state.hasher.hash_one((session.agent.number, &place)).max(1);
                    session.agent.number = number;
                    session.beat = self.begun;
                    let (agent, addresses) = (session.agent.clone(), std::mem::take(&mut session.addresses));
                    let mut change =
                        SessionChange { agent: number, dialled: true, up: true, forwards: session.forwards, addresses };
                    self.session_changed(&agent, &change).await;
                    let traffic = self.up(id, &agent);
                    reached.store(number, Ordering::Relaxed);
                    (wait, known) = (FIRST_WAIT, true);
                    let learn = |messages: &[Message]| self.learn(messages, way);
                    let ended = session.run(Takes::Summaries, &mut outbox, self.inbox(), &traffic, learn).await;
                    reached.store(0, Ordering::Relaxed);
                    self.down(id, true, &ended);
                    change.up = false;
                    self.session_changed(&agent, &change).await;
                    if ended.is_hostile() {
                        self.state.refused.fetch_add(1, Ordering::Relaxed);
                        log::warn!("relay: {place} is not spoken to for {} s: {ended}", BAN.as_secs());
                        wait = BAN;
                    }
                    ended
                }
                Err(why) => {
                    self.down(id, false, &why);
                    why
                }
            };
            if matches!(why, Ended::Over | Ended::Itself) {
                lock(&self.state.peers).remove(&id);
                // Later messages are dropped.
                return;
            }
            // Queued messages would arrive too late.
            let mut lost = 0;
            while outbox.try_recv().is_ok() {
                lost += 1;
            }
            if known {
                self.state.dropped.fetch_add(lost, Ordering::Relaxed);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(if known { KNOWN_WAIT } else { LONGEST_WAIT });
        }
    }

    async fn reach(&self, place: &str) -> Result<Session, Ended> {
        let (settings, end) = (&self.settings, SessionEnd::Dialled(place));
        if let Some(nats) = &self.nats {
            let stream = tokio::time::timeout(DIAL, nats.dial(place)).await.map_err(|_| Broken::Slow)?;
            return Session::begin(stream.map_err(Broken::Io)?, settings, end, &self.own).await;
        }
        let stream = tokio::time::timeout(DIAL, TcpStream::connect(place)).await.map_err(|_| Broken::Slow)?;
        let stream = stream.map_err(Broken::Io)?;
        let remote = stream.peer_addr().map_err(Broken::Io)?;
        if settings.trust.is_blind() && !settings.insecure && !remote.ip().is_loopback() {
            let why = "without a key or certificates only agents on loopback are spoken to";
            return Err(Broken::Io(io::Error::other(why)).into());
        }
        stream.set_nodelay(true).map_err(Broken::Io)?;
        let mut session = Session::begin(stream, settings, end, &self.own).await?;
        session.addresses.insert(0, remote.ip());
        Ok(session)
    }

    /// Learns routes: the agent that sends a request's summary sees the other end of its connection.
    fn learn(&self, messages: &[Message], way: u64) {
        let mut routes = lock(&self.state.routes);
        for message in messages {
            if let Message::Summary(summary) = message {
                routes.learn(summary.key.connection(), way);
            }
        }
    }
}

/// Accepts incoming connections.
async fn accept(listener: TcpListener, common: Common) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = common.inbox.0.closed() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer has gone.
                log::warn!("relay: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Frames are complete messages: delaying one gains nothing.
        let _ = stream.set_nodelay(true);
        common.clone().admit(stream, from.to_string(), Some(from.ip()));
    }
}

/// Accepts sessions that come through a NATS server.
async fn meet(nats: Nats, common: Common) {
    let (sender, mut found) = mpsc::channel(16);
    let server = nats.server().to_owned();
    let host = Arc::clone(&common.own.host);
    let admit = async {
        while let Some(stream) = found.recv().await {
            common.clone().admit(stream, server.clone(), None);
        }
    };
    tokio::select! {
        ended = nats.listen(&host, sender) => {
            let why = ended.err().map(|error| error.to_string()).unwrap_or_default();
            log::error!("relay: agents cannot reach this one by way of {server} any more: {why}");
        }
        () = admit => {}
        () = common.inbox.0.closed() => {}
    }
}

/// Routes the pipeline's messages to sessions.
struct Router {
    common: Common,
    diallers: HashMap<String, Dialler>,
    /// Number of diallers created so far.
    ways: u64,
}

impl Router {
    fn new(common: Common) -> Self {
        Self { common, diallers: HashMap::new(), ways: 0 }
    }

    async fn run(mut self, mut waiting: mpsc::Receiver<Vec<Outgoing>>) {
        for place in self.common.settings.peers.clone() {
            self.dial(place, true);
        }
        while let Some(batch) = waiting.recv().await {
            for outgoing in batch {
                match outgoing {
                    Outgoing::Context { remote, context } => self.context(remote, context),
                    Outgoing::Summary { to, summary } => {
                        let accepted = lock(&self.common.state.accepted);
                        let message = Message::Summary(summary);
                        if accepted.get(&to).is_none_or(|queue| queue.try_send(message).is_err()) {
                            self.common.state.dropped.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
        }
        for dialler in self.diallers.values() {
            dialler.task.abort();
        }
    }

    fn context(&mut self, remote: IpAddr, mut context: super::message::Context) {
        let known = lock(&self.common.state.routes).of(context.key.connection());
        if let Some(way) = known
            && let Some(dialler) = self.diallers.values().find(|dialler| dialler.id == way)
            && self.common.may(dialler, remote)
        {
            Self::put(&self.common.state, dialler, Message::Context(context));
            return;
        }
        let settings = &self.common.settings;
        let place = SocketAddr::new(remote, settings.port).to_string();
        if settings.discover && is_private(remote) && !self.diallers.contains_key(&place) {
            self.dial(place.clone(), false);
        }
        // A newly discovered agent may be connected in a moment.
        let wanted =
            |(at, dialler): (&String, &Dialler)| *at == place || (dialler.named && self.common.may(dialler, remote));
        let mut targets: Vec<&Dialler> =
            self.diallers.iter().filter(|at| wanted(*at)).map(|(_, dialler)| dialler).collect();
        context.broadcast = targets.len() > 1;
        let last = targets.pop();
        for dialler in targets {
            Self::put(&self.common.state, dialler, Message::Context(context.clone()));
        }
        if let Some(dialler) = last {
            Self::put(&self.common.state, dialler, Message::Context(context));
        }
    }

    fn put(state: &HubState, dialler: &Dialler, message: Message) {
        let reached = dialler.reached.load(Ordering::Relaxed) != 0;
        match dialler.queue.try_send(message) {
            Err(_) if reached => {
                state.dropped.fetch_add(1, Ordering::Relaxed);
            }
            // The session counts what it sends. An error: no agent is connected there, which is normal.
            Ok(()) | Err(_) => {}
        }
    }

    fn dial(&mut self, place: String, named: bool) {
        if self.diallers.len() >= ADDRESSES {
            let stale =
                self.diallers.iter().find(|(_, known)| !known.named && known.reached.load(Ordering::Relaxed) == 0);
            let Some(stale) = stale.map(|(place, _)| place.clone()) else { return };
            if let Some(dialler) = self.diallers.remove(&stale) {
                dialler.task.abort();
                lock(&self.common.state.peers).retain(|_, peer| peer.direction != "out" || peer.address != stale);
            }
        }
        let (queue, outbox) = mpsc::channel(QUEUE);
        self.ways += 1;
        let (id, reached) = (self.ways, Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn(self.common.clone().dial(place.clone(), named, outbox, (id, Arc::clone(&reached))));
        self.diallers.insert(place, Dialler { id, queue, reached, named, task: task.abort_handle() });
    }
}

#[cfg(test)]
mod tests;
