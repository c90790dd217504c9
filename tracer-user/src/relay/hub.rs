//! Who keeps the sessions: dials agents that were named or found, accepts those that dial, and hands messages around.
//!
//! The agent that dials sends contexts, the one that accepts answers with summaries, so two agents that call each other
//! have two sessions. The pipeline's thread never waits: what finds no room is counted. Nobody's word is taken for who it is:
//! agents that dial go by their number and the address they come from, those that are dialled by where they were dialled.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::bans::{BAN, Bans};
use super::bell::Bell;
use super::bounds::{Bounds, Stand};
use super::channel::{Broken, End, Link};
use super::event::Mode;
use super::lookups::{Asker, Home};
use super::message::Message;
use super::nats::Nats;
use super::routes::{ADDRESSES, Routes, is_private};
use super::session::{Ended, Session, Takes, Traffic};
use super::settings::Settings;
use super::{Agent, Outcomes, Outgoing, Received};
use crate::model::Nanos;

/// Messages that wait for one session.
const QUEUE: usize = 8192;
/// Batches from all sessions that wait for the pipeline, and batches of the pipeline's that wait to be handed around.
const BATCHES: usize = 256;
/// How long dialling may take. Together with the longest wait for a known agent less than a second: a partition is over for
/// the relay soon after it is for the network.
const DIAL: Duration = Duration::from_millis(500);
/// Waits between tries: the first, the longest for agents that were named or have answered before, and for others.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const KNOWN_WAIT: Duration = Duration::from_millis(400);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A peer as `/api/v1/peers` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PeerView {
    /// Where it is.
    pub address: String,
    /// `out`: this agent dialled and sends contexts; `in`: the other did.
    pub direction: &'static str,
    /// `up`, or `down`: not reached, tried again.
    pub state: &'static str,
    /// Its host, once it said so.
    pub host: String,
    /// Seconds it has been so.
    pub for_s: f64,
    /// Contexts and summaries sent and received in this session.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Bytes sent in this session, encryption included.
    pub sent_bytes: u64,
    /// How far its wall clock is ahead of this host's, seconds (negative: behind), and the error of that; `null` until calls
    /// to it have told.
    pub clock_offset_s: Option<f64>,
    /// See `clock_offset_s`.
    pub clock_error_s: Option<f64>,
    /// Number of the agent; 0 until it said so.
    #[serde(skip)]
    pub agent: u64,
    /// Why the last session ended or did not begin; empty when there was none.
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
}

/// Where contexts for an address go.
struct Dialler {
    /// What a connection's way is remembered by.
    id: u64,
    queue: mpsc::Sender<Message>,
    /// The agent it reached; 0 while it does not.
    reached: Arc<AtomicU64>,
    named: bool,
    task: AbortHandle,
}

#[derive(Default)]
struct State {
    peers: Mutex<BTreeMap<u64, Peer>>,
    next: AtomicU64,
    routes: Mutex<Routes>,
    bans: Mutex<Bans>,
    /// Whom a connection's context may go to.
    bounds: Mutex<Bounds>,
    /// Sessions that others opened: where their summaries go.
    accepted: Mutex<HashMap<u64, mpsc::Sender<Message>>>,
    /// What makes their numbers.
    hasher: RandomState,
    up: AtomicUsize,
    sent: Arc<AtomicU64>,
    untold: Arc<AtomicU64>,
    refused: AtomicU64,
    dropped: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked left a table that is whole: every change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The agent's end of it.
pub struct Hub {
    queue: mpsc::Sender<Vec<Outgoing>>,
    inbox: mpsc::Receiver<Received>,
    bell: Arc<Bell>,
    state: Arc<State>,
    /// Where it listens.
    pub listen: Option<SocketAddr>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl Hub {
    /// Begins to listen and dial. Call it where tasks can be started.
    pub async fn start(settings: Settings, own: Agent) -> io::Result<Self> {
        let listener = match settings.listen {
            Some(address) => Some(TcpListener::bind(address).await?),
            None => None,
        };
        let listen = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (queue, waiting) = mpsc::channel(BATCHES);
        let (sender, received) = mpsc::channel(BATCHES);
        let bounds = Mutex::new(Bounds::new(settings.policy.clone()));
        let state = Arc::new(State { bounds, ..State::default() });
        let nats = match &settings.nats {
            Some(url) => Some(Nats::connect(url).await?),
            None => None,
        };
        let bell = Arc::new(Bell::new()?);
        let (settings, inbox) = (Arc::new(settings), (sender, Arc::clone(&bell)));
        let netns = std::fs::metadata("/proc/self/ns/net").ok().map(|found| found.ino() as u32);
        let common = Common { settings, own, state: Arc::clone(&state), nats, netns, inbox, begun: Instant::now() };
        if let Some(nats) = common.nats.clone() {
            tokio::spawn(meet(nats, common.clone()));
        }
        if let Some(listener) = listener {
            tokio::spawn(accept(listener, common.clone()));
        }
        tokio::spawn(Router::new(common).run(waiting));
        Ok(Self { queue, inbox: received, bell, state, listen })
    }

    /// Sends, or counts what finds no room.
    pub fn send(&self, batch: Vec<Outgoing>) {
        let count = batch.len() as u64;
        if count > 0 && self.queue.try_send(batch).is_err() {
            self.state.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// What other agents said, if anything.
    pub fn receive(&mut self) -> Option<Received> {
        self.inbox.try_recv().ok()
    }

    /// Rings when another agent sent contexts. After [`Bell::want`] look whether [`Self::is_quiet`].
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Whether [`Self::receive`] has nothing.
    pub fn is_quiet(&self) -> bool {
        self.inbox.is_empty()
    }

    /// What there is to expect.
    pub fn mode(&self) -> Mode {
        if self.state.up.load(Ordering::Relaxed) > 0 { Mode::Waits } else { Mode::Sends }
    }

    /// What became of messages here.
    pub fn outcomes(&self) -> Outcomes {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let State { sent, untold, refused, dropped, .. } = &*self.state;
        let (sent, untold) = (of(sent), of(untold));
        Outcomes { sent, untold, refused: of(refused), dropped: of(dropped), ..Outcomes::default() }
    }

    /// Sessions, and those that are tried.
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

/// What all tasks share.
#[derive(Clone)]
struct Common {
    settings: Arc<Settings>,
    own: Agent,
    state: Arc<State>,
    /// Where agents meet, in the place of dialling each other.
    nats: Option<Nats>,
    /// Network namespace of this agent, where that is known.
    netns: Option<u32>,
    /// What others said, and what wakes its reader.
    inbox: (mpsc::Sender<Received>, Arc<Bell>),
    /// What time is counted from.
    begun: Instant,
}

impl Common {
    fn inbox(&self) -> (&mpsc::Sender<Received>, &Bell) {
        (&self.inbox.0, &self.inbox.1)
    }

    /// Whether an agent is reached there and believed about connections with `far`: who is not is not told of them either.
    fn may(&self, dialler: &Dialler, far: IpAddr) -> bool {
        let agent = dialler.reached.load(Ordering::Relaxed);
        agent != 0 && lock(&self.state.bounds).may(self.now(), agent, far)
    }

    fn now(&self) -> Nanos {
        self.begun.elapsed().as_nanos() as Nanos
    }

    /// A session begins or is over: here, and for the pipeline before and after all that is said in it.
    async fn stand(&self, from: &Agent, stand: &Stand) {
        lock(&self.state.bounds).hear(self.now(), stand);
        let received = Received { from: from.clone(), messages: Vec::new(), stand: Some(stand.clone()) };
        // Whoever reads it may be gone.
        let _ = self.inbox.0.send(received).await;
    }

    /// A line of `/api/v1/peers`.
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
        };
        lock(&self.state.peers).insert(id, peer);
        id
    }

    fn up(&self, id: u64, agent: &Agent) -> Arc<Traffic> {
        let (contexts, untold) = (Arc::clone(&self.state.sent), Arc::clone(&self.state.untold));
        let traffic = Arc::new(Traffic { contexts, untold, ..Traffic::default() });
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
            // Who is kept out for what it did is hung up on without a word: what it was told first says more.
            if was_up || peer.error.is_empty() || !why.is_mute() {
                peer.error = why.to_string();
            }
        }
    }

    /// Someone said what no agent says.
    fn refuse(&self, place: &str, address: Option<IpAddr>, why: &Ended) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(address) = address.filter(|_| why.is_hostile()) {
            lock(&self.state.bans).ban(Instant::now(), address);
        }
        let level = if why.is_hostile() { log::Level::Warn } else { log::Level::Info };
        log::log!(level, "relay: {place} refused: {why}");
    }

    /// Lets somebody in, where there is room.
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

    /// A session somebody opened, to its end; whoever came from a NATS server has no address.
    async fn serve(&self, stream: impl Link, place: String, address: Option<IpAddr>) {
        let mut session = match Session::begin(stream, &self.settings, End::Accepted, &self.own).await {
            Ok(session) => session,
            Err(Ended::Broken(Broken::Io(_)) | Ended::Itself) => return,
            Err(why) => return self.refuse(&place, address, &why),
        };
        let id = self.enter(place.clone(), "in");
        let traffic = self.up(id, &session.agent);
        // Numbers are known to all that were ever spoken to: whoever says another's from elsewhere is not that one.
        let number = self.state.hasher.hash_one((session.agent.number, address));
        let agent = Agent { number, host: Arc::clone(&session.agent.host) };
        session.agent = agent.clone();
        let mut addresses = std::mem::take(&mut session.addresses);
        if addresses.is_empty() {
            addresses.extend(address);
        }
        let mut stand = Stand { agent: number, dialled: false, up: true, forwards: session.forwards, addresses };
        let (sender, mut outbox) = mpsc::channel(QUEUE);
        lock(&self.state.accepted).insert(agent.number, sender.clone());
        self.stand(&agent, &stand).await;
        let ended = session.run(Takes::Contexts, &mut outbox, self.inbox(), &traffic, |_| ()).await;
        {
            let mut accepted = lock(&self.state.accepted);
            // It may have come again meanwhile.
            stand.up = !accepted.get(&agent.number).is_some_and(|known| known.same_channel(&sender));
            if !stand.up {
                accepted.remove(&agent.number);
            }
        }
        if !stand.up {
            self.stand(&agent, &stand).await;
        }
        self.down(id, true, &ended);
        lock(&self.state.peers).remove(&id);
        if ended.is_hostile() {
            self.refuse(&place, address, &ended);
        }
    }

    /// Keeps a session to `place` up.
    async fn dial(self, place: String, named: bool, mut outbox: mpsc::Receiver<Message>, at: (u64, Arc<AtomicU64>)) {
        let (way, reached) = at;
        let id = self.enter(place.clone(), "out");
        let (mut wait, mut known) = (FIRST_WAIT, named);
        loop {
            let why = match self.reach(&place).await {
                Ok(mut session) => {
                    // Two that say the same number are two all the same.
                    let number = self.state.hasher.hash_one((session.agent.number, &place)).max(1);
                    session.agent.number = number;
                    session.beat = self.begun;
                    let (agent, addresses) = (session.agent.clone(), std::mem::take(&mut session.addresses));
                    let mut stand =
                        Stand { agent: number, dialled: true, up: true, forwards: session.forwards, addresses };
                    self.stand(&agent, &stand).await;
                    let traffic = self.up(id, &agent);
                    reached.store(number, Ordering::Relaxed);
                    (wait, known) = (FIRST_WAIT, true);
                    let heard = |said: &[Message]| self.learn(said, way);
                    let ended = session.run(Takes::Summaries, &mut outbox, self.inbox(), &traffic, heard).await;
                    reached.store(0, Ordering::Relaxed);
                    self.down(id, true, &ended);
                    stand.up = false;
                    self.stand(&agent, &stand).await;
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
                // What is put in from here on is nobody's.
                return;
            }
            // What waited would come too late.
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
        let (settings, end) = (&self.settings, End::Dialled(place));
        if let Some(nats) = &self.nats {
            let stream = tokio::time::timeout(DIAL, nats.dial(place)).await.map_err(|_| Broken::Slow)?;
            return Session::begin(stream.map_err(Broken::Io)?, settings, end, &self.own).await;
        }
        let stream = tokio::time::timeout(DIAL, TcpStream::connect(place)).await.map_err(|_| Broken::Slow)?;
        let stream = stream.map_err(Broken::Io)?;
        let far = stream.peer_addr().map_err(Broken::Io)?;
        if settings.trust.is_blind() && !settings.insecure && !far.ip().is_loopback() {
            let why = "without a key or certificates only agents on loopback are spoken to";
            return Err(Broken::Io(io::Error::other(why)).into());
        }
        stream.set_nodelay(true).map_err(Broken::Io)?;
        let own = stream.local_addr().map_err(Broken::Io)?.ip().to_canonical();
        let mut session = Session::begin(stream, settings, end, &self.own).await?;
        session.addresses.insert(0, far.ip());
        session.home = self.netns.map(|netns| Home { netns, own });
        Ok(session)
    }

    /// Whoever answers for a request has its connection's other end: it is this way.
    fn learn(&self, said: &[Message], way: u64) {
        let mut routes = lock(&self.state.routes);
        for message in said {
            if let Message::Summary(summary) = message {
                routes.learn(summary.key.connection(), way);
            }
        }
    }
}

/// Takes those that come.
async fn accept(listener: TcpListener, common: Common) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = common.inbox.0.closed() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // No descriptors, or whoever came has gone.
                log::warn!("relay: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Frames are whole messages: none waits for another.
        let _ = stream.set_nodelay(true);
        common.clone().admit(stream, from.to_string(), Some(from.ip()));
    }
}

/// Takes those that come by way of a NATS server.
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

/// Hands the pipeline's messages around.
struct Router {
    common: Common,
    diallers: HashMap<String, Dialler>,
    /// Diallers so far.
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
                    Outgoing::Context { far, context } => self.context(far, context),
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

    fn context(&mut self, far: IpAddr, mut context: super::message::Context) {
        let known = lock(&self.common.state.routes).of(context.key.connection());
        if let Some(way) = known
            && let Some(dialler) = self.diallers.values().find(|dialler| dialler.id == way)
            && self.common.may(dialler, far)
        {
            Self::put(&self.common.state, dialler, Message::Context(context));
            return;
        }
        let settings = &self.common.settings;
        let place = SocketAddr::new(far, settings.port).to_string();
        if settings.discover && is_private(far) && !self.diallers.contains_key(&place) {
            self.dial(place.clone(), false);
        }
        // One that was just found may be reached in a moment.
        let wanted =
            |(at, dialler): (&String, &Dialler)| *at == place || (dialler.named && self.common.may(dialler, far));
        let mut targets: Vec<&Dialler> =
            self.diallers.iter().filter(|at| wanted(*at)).map(|(_, dialler)| dialler).collect();
        if let Some(lookup) = &mut context.lookup {
            // Each is on its own: whoever is found where it went is told, or all that were named.
            match self.diallers.get(&place).filter(|dialler| self.common.may(dialler, far)) {
                Some(there) => targets = vec![there],
                None if matches!(lookup.asker, Asker::In(_)) => lookup.asker = Asker::Unknown,
                None => {}
            }
        }
        context.broadcast = targets.len() > 1;
        let last = targets.pop();
        for dialler in targets {
            Self::put(&self.common.state, dialler, Message::Context(context.clone()));
        }
        if let Some(dialler) = last {
            Self::put(&self.common.state, dialler, Message::Context(context));
        }
    }

    fn put(state: &State, dialler: &Dialler, message: Message) {
        let reached = dialler.reached.load(Ordering::Relaxed) != 0;
        match dialler.queue.try_send(message) {
            Err(_) if reached => {
                state.dropped.fetch_add(1, Ordering::Relaxed);
            }
            // The session counts what it sends. Or nobody is there so far as is known: an ordinary call to the network.
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
#[path = "hub_tests.rs"]
mod tests;
