//! The programs that write `traceparent` into requests to chosen destinations. They are loaded only if configured, and
//! attached only if the test at start (`header_selftest.rs`) finds that they break nothing.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData, SockHash};
use aya::programs::{CgroupAttachMode, SkMsg, SockOps};
use rustc_hash::FxHashSet;
use tracer_common::header::{self, NO_BLOCKING, ONCE, Outcome, PORT_BITS, SOCKETS_MAX, TESTING};
use tracer_host::guard::tables::TableUse;

use super::attachments::Attachments;
use super::header_selftest::{self, Bench, Verdict};
use super::inband::{self, InBand};
use super::load_retry;
use super::loader::{Attached, Built, When, chain};
use super::loading::built_of;

/// The program that runs on sent messages.
pub const PROGRAM: &str = "header";
/// The program that runs on connection events.
pub const SOCKETS: &str = "header_sockets";
/// Map of the sockets the programs handle.
pub(super) const MEMBERS: &str = "MEMBERS";
/// Map of the destinations.
pub(super) const DESTINATIONS: &str = "DESTINATIONS";
const WITHOUT: &str = "no request gets a traceparent header";

/// How often host names are resolved again.
const NAMES_EVERY: Duration = Duration::from_secs(60);

/// Requests to a destination get headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A network.
    Net {
        /// The address.
        address: IpAddr,
        /// Prefix length.
        bits: u8,
        /// One port, or all ports.
        port: Option<u16>,
    },
    /// The addresses of a host name.
    Name {
        /// The name.
        host: String,
        /// One port, or all ports.
        port: Option<u16>,
    },
}

impl Destination {
    /// Reads `10.0.0.7`, `10.0.0.0/16`, `10.0.0.7:8080`, `10.0.0.0/16:80`, `fd00::1`, `[fd00::/8]:80`, `api.internal`
    /// or `api.internal:80`. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some((address, bits)) = net(text) {
            return Some(Self::Net { address, bits, port: None });
        }
        if let Some(bare) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return net(bare).map(|(address, bits)| Self::Net { address, bits, port: None });
        }
        let (place, port) = match text.rsplit_once(':') {
            Some((place, port)) => (place, Some(port.parse().ok().filter(|port| *port != 0)?)),
            None => (text, None),
        };
        let bare = place.strip_prefix('[').and_then(|place| place.strip_suffix(']'));
        if let Some((address, bits)) = net(bare.unwrap_or(place)) {
            return (bare.is_some() || address.is_ipv4()).then_some(Self::Net { address, bits, port });
        }
        let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let like_a_name = place.bytes().all(named) && place.bytes().any(|byte| byte.is_ascii_alphabetic());
        (like_a_name && place.len() <= 253).then(|| Self::Name { host: place.into(), port })
    }

    /// The keys for the kernel side; `None` if the name cannot be resolved now.
    fn keys(&self) -> Option<Vec<Place>> {
        match self {
            Self::Net { address, bits, port } => Some(vec![key(*address, *bits, *port)]),
            Self::Name { host, port } => {
                let found = (host.as_str(), port.unwrap_or(0)).to_socket_addrs();
                let found =
                    found.inspect_err(|error| log::warn!("headers for {host}: {error}; it is asked again in a minute"));
                let one = |ip: IpAddr| key(ip, if ip.is_ipv4() { 32 } else { 128 }, *port);
                Some(found.ok()?.map(|found| one(found.ip())).collect())
            }
        }
    }
}

/// An address and a prefix length.
fn net(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some((address, bits))
}

/// Prefix length and destination: a key of the trie.
type Place = (u32, header::Destination);

fn key(address: IpAddr, bits: u8, port: Option<u16>) -> Place {
    let (octets, bits) = match address {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), 96 + u32::from(bits)),
        IpAddr::V6(v6) => (v6.octets(), u32::from(bits)),
    };
    let mut data = [0; 18];
    let (front, back) = data.split_at_mut(2);
    front.copy_from_slice(&port.unwrap_or(0).to_be_bytes());
    back.copy_from_slice(&octets);
    (PORT_BITS + bits, data)
}

/// The sockets the programs handle; dropping it removes all of them.
struct Members(SockHash<MapData, u64>);

impl Drop for Members {
    fn drop(&mut self) {
        let keys: Vec<u64> = self.0.keys().take(SOCKETS_MAX as usize).filter_map(Result::ok).collect();
        for key in keys {
            // Fails if the socket was closed meanwhile, which is fine.
            let _ = self.0.remove(&key);
        }
    }
}

/// Counters of the header programs while they run.
pub struct Headers {
    counts: Array<MapData, u64>,
}

impl Headers {
    /// What happened to connections and requests, and how often.
    pub fn counts(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        Outcome::ALL.into_iter().map(|outcome| (outcome, self.count(outcome)))
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.counts.get(&(outcome as u32), 0).unwrap_or(0)
    }

    /// Table use of the handled sockets.
    pub fn table_use(&self) -> TableUse {
        let entries = self.count(Outcome::Joined).saturating_sub(self.count(Outcome::Left));
        TableUse { entries, limit: u64::from(SOCKETS_MAX), reached: self.count(Outcome::Full) }
    }
}

/// Sizes of the tables for sockets and destinations.
pub(super) fn sizes(wanted: &InBand) -> (u32, u32) {
    if wanted.header() { (SOCKETS_MAX, header::DESTINATIONS_MAX) } else { (1, 1) }
}

/// The result of loading.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) attached: Vec<Attached>,
    pub(super) headers: Option<Headers>,
    /// Kinds of sockets left out, and why.
    pub(super) limits: Vec<String>,
}

/// Loads the programs, tests them on the agent's own sockets, and attaches them if configured.
pub(super) fn load(ebpf: &mut Ebpf, wanted: &InBand, attachments: &Attachments) -> Loaded {
    let mut loaded = Loaded::default();
    let destinations = match wanted {
        InBand::Off => return loaded,
        InBand::Tried => &[][..],
        InBand::On { headers, .. } if headers.is_empty() => return loaded,
        InBand::On { headers, .. } => headers,
    };
    let mut entry = |program, hook, done: &Result<Built, String>| {
        let (built, missing) = match done {
            Ok(built) => (*built, None),
            Err(why) => (Built::default(), Some(why.clone())),
        };
        loaded.attached.push(Attached { program, hook, when: When::Asked, built, missing, without: WITHOUT });
    };
    let at_connections = sock_ops(ebpf);
    let mut at_messages = sk_msg(ebpf);
    let mut tested = None;
    if at_messages.is_ok() && at_connections.is_ok() {
        match test(ebpf) {
            Ok((verdict, parts)) if verdict.faults.is_empty() => tested = Some((verdict, parts)),
            Ok((verdict, _)) => at_messages = Err(format!("self-test: {}", verdict.faults.join("; "))),
            Err(why) => at_messages = Err(why),
        }
    }
    entry(SOCKETS, "cgroup sock_ops", &at_connections);
    entry(PROGRAM, "sk_msg", &at_messages);
    let Some((verdict, parts)) = tested else { return loaded };
    loaded.limits.clone_from(&verdict.limits);
    if *wanted == InBand::Tried {
        return loaded;
    }
    match attach(ebpf, destinations, &verdict, parts, attachments) {
        Ok(headers) => loaded.headers = Some(headers),
        Err(why) => {
            if let Some(last) = loaded.attached.last_mut() {
                last.missing = Some(why);
            }
        }
    }
    loaded
}

fn sock_ops(ebpf: &mut Ebpf) -> Result<Built, String> {
    let program: Option<&mut SockOps> = ebpf.program_mut(SOCKETS).and_then(|program| program.try_into().ok());
    let program = program.ok_or("the BPF object has no such program")?;
    let begin = Instant::now();
    load_retry::load(|| program.load()).map_err(|error| chain(&error))?;
    Ok(built_of(program.fd(), begin.elapsed()))
}

fn sk_msg(ebpf: &mut Ebpf) -> Result<Built, String> {
    let program: Option<&mut SkMsg> = ebpf.program_mut(PROGRAM).and_then(|program| program.try_into().ok());
    let program = program.ok_or("the BPF object has no such program")?;
    let begin = Instant::now();
    load_retry::load(|| program.load()).map_err(|error| chain(&error))?;
    Ok(built_of(program.fd(), begin.elapsed()))
}

/// What the test hands on for use.
struct Parts {
    members: SockHash<MapData, u64>,
    control: Array<MapData, u32>,
    counts: Array<MapData, u64>,
}

fn map<T: TryFrom<aya::maps::Map>>(ebpf: &mut Ebpf, name: &str) -> Result<T, String> {
    let wrong = || format!("the BPF object's map {name} is of another kind");
    ebpf.take_map(name).and_then(|map| map.try_into().ok()).ok_or_else(wrong)
}

/// Attaches the program to the socket map, which holds only the test's sockets, and tests it.
fn test(ebpf: &mut Ebpf) -> Result<(Verdict, Parts), String> {
    let mut members: SockHash<MapData, u64> = map(ebpf, MEMBERS)?;
    let mut control: Array<MapData, u32> = map(ebpf, "HEADER_CONTROL")?;
    let mut counts: Array<MapData, u64> = map(ebpf, "HEADER_COUNTS")?;
    let program: Option<&mut SkMsg> = ebpf.program_mut(PROGRAM).and_then(|program| program.try_into().ok());
    let program = program.ok_or("the BPF object has no such program")?;
    let fd = members.fd().try_clone().map_err(|error| format!("the map of sockets: {error}"))?;
    // Detaches with the map.
    program.attach(&fd).map_err(|error| chain(&error))?;
    control.set(0, TESTING, 0).map_err(|error| chain(&error))?;
    let verdict = {
        // The closures for adding and for removing share these.
        let (next, members) = (Cell::new(0u64), RefCell::new(&mut members));
        let mut bench = Bench {
            join: &mut |socket: &dyn AsRawFd| {
                next.set(next.get() + 1);
                members.borrow_mut().insert(next.get(), socket.as_raw_fd(), 0).map_err(|error| chain(&error))
            },
            leave: &mut || members.borrow_mut().remove(&next.get()).map_err(|error| chain(&error)),
        };
        header_selftest::run(&mut bench)
    };
    for outcome in Outcome::ALL {
        counts.set(outcome as u32, 0, 0).map_err(|error| chain(&error))?;
    }
    control.set(0, 0, 0).map_err(|error| chain(&error))?;
    let parts = Parts { members, control, counts };
    match verdict {
        Ok(verdict) => Ok((verdict, parts)),
        Err(error) => Err(format!("the self-test could not be made: {error}")),
    }
}

fn attach(
    ebpf: &mut Ebpf,
    wanted: &[Destination],
    verdict: &Verdict,
    mut parts: Parts,
    attachments: &Attachments,
) -> Result<Headers, String> {
    let of = |bit: u32, on: bool| if on { bit } else { 0 };
    let control = of(NO_BLOCKING, verdict.no_blocking) | of(ONCE, verdict.once);
    parts.control.set(0, control, 0).map_err(|error| chain(&error))?;
    let trie: LpmTrie<MapData, header::Destination, u32> = map(ebpf, DESTINATIONS)?;
    let wanted = wanted.iter().map(|wanted| (wanted.clone(), Vec::new())).collect();
    let mut places = Places { trie, there: FxHashSet::default(), wanted };
    places.refresh();
    let group = File::open(inband::root()?).map_err(|error| format!("the control groups' root: {error}"))?;
    let program: Option<&mut SockOps> = ebpf.program_mut(SOCKETS).and_then(|program| program.try_into().ok());
    let program = program.ok_or("the BPF object has no such program")?;
    let link = program.attach(group, CgroupAttachMode::Single).and_then(|id| program.take_link(id));
    attachments.link(link.map_err(|error| chain(&error))?);
    // After the link, so that dropping them in order lets no removed socket come back.
    attachments.link(Members(parts.members));
    if places.wanted.iter().any(|(wanted, _)| matches!(wanted, Destination::Name { .. })) {
        let named = std::thread::Builder::new().name("tracer-names".into()).spawn(move || {
            loop {
                std::thread::sleep(NAMES_EVERY);
                places.refresh();
            }
        });
        named.map_err(|error| format!("no thread to look up names in: {error}"))?;
    }
    Ok(Headers { counts: parts.counts })
}

/// The destinations in the kernel.
struct Places {
    trie: LpmTrie<MapData, header::Destination, u32>,
    there: FxHashSet<Place>,
    /// Each destination with its last known keys: a failed lookup does not forget a name's addresses.
    wanted: Vec<(Destination, Vec<Place>)>,
}

impl Places {
    /// Resolves names, adds new keys and removes stale ones.
    fn refresh(&mut self) {
        for (wanted, places) in &mut self.wanted {
            if let Some(found) = wanted.keys() {
                *places = found;
            }
        }
        let now: FxHashSet<Place> = self.wanted.iter().flat_map(|(_, places)| places).copied().collect();
        for (bits, data) in self.there.difference(&now) {
            // Fails if it is not there, which is fine.
            let _ = self.trie.remove(&Key::new(*bits, *data));
        }
        self.there.retain(|place| now.contains(place));
        for (bits, data) in now {
            if self.there.contains(&(bits, data)) {
                continue;
            }
            match self.trie.insert(&Key::new(bits, data), 1, 0) {
                Ok(()) => {
                    self.there.insert((bits, data));
                }
                Err(error) => log::warn!("a destination of headers was refused: {}", chain(&error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read() {
        let net = |address: &str, bits, port| {
            Some(Destination::Net { address: address.parse().expect("an address"), bits, port })
        };
        let name = |host: &str, port| Some(Destination::Name { host: host.into(), port });
        for (text, expected) in [
            ("10.0.0.7", net("10.0.0.7", 32, None)),
            ("10.0.0.7:8080", net("10.0.0.7", 32, Some(8080))),
            ("10.1.0.0/16", net("10.1.0.0", 16, None)),
            ("10.1.0.0/16:80", net("10.1.0.0", 16, Some(80))),
            ("0.0.0.0/0:80", net("0.0.0.0", 0, Some(80))),
            ("fd00::1", net("fd00::1", 128, None)),
            ("[fd00::1]", net("fd00::1", 128, None)),
            ("[fd00::1]:80", net("fd00::1", 128, Some(80))),
            ("[fd00::/8]:80", net("fd00::", 8, Some(80))),
            ("api.internal", name("api.internal", None)),
            ("api.internal:80", name("api.internal", Some(80))),
            ("", None),
            (":80", None),
            ("10.0.0.7:0", None),
            ("10.0.0.7:70000", None),
            ("10.0.0.0/33", None),
            ("10.0.0", None),
            ("a b:80", None),
            ("http://a:80", None),
        ] {
            assert_eq!(Destination::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn keys_are_port_and_mapped_address() {
        let of = |text: &str| Destination::parse(text).and_then(|place| place.keys()).expect("a destination");
        let (bits, data) = of("10.0.0.7:8080")[0];
        assert_eq!((bits, &data[..2], &data[12..]), (144, &[0x1f, 0x90][..], &[0xff, 0xff, 10, 0, 0, 7][..]));
        assert_eq!(of("10.1.0.0/16")[0].0, 16 + 96 + 16);
        assert_eq!(of("[fd00::/8]:80")[0].0, 16 + 8);
    }
}
