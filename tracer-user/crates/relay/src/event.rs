//! Relay events, the pipeline's input from other agents, and their form in a recording.

use std::net::IpAddr;

use tracer_model::Nanos;

use super::Agent;
use super::bounds::{ADDRESSES, Policy, Prefix, SessionChange};
use super::message::{Decoder, Encoder, Message, cut, text};

/// An input of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Only time passed: timeouts may be due.
    Time,
    /// The mode from here on.
    Mode(Mode),
    /// An agent sent a message.
    Message(Agent, Message),
    /// The configured policy. Recorded once, before any message.
    Policy(Policy),
    /// An agent's location.
    Session(SessionChange),
}

/// What the pipeline may expect of other agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There are no other agents and there will be none.
    Off,
    /// Contexts are sent; requests wait for none, because no other agent is connected.
    Sends,
    /// Requests wait for contexts.
    Waits,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Off, Self::Sends, Self::Waits];
}

const TIME: u8 = 0;
const MODE: u8 = 1;
const MESSAGE: u8 = 2;
const POLICY: u8 = 3;
const STAND: u8 = 4;

const DIALLED: u8 = 1;
const UP: u8 = 2;
const FORWARDS: u8 = 4;
/// Most networks in a list.
pub const NETWORKS: usize = 255;

impl Event {
    /// The form in a recording: time (`CLOCK_MONOTONIC`, 8 bytes, native byte order), kind, payload.
    pub fn encode(&self, now: Nanos) -> Vec<u8> {
        let mut out = now.to_ne_bytes().to_vec();
        match self {
            Self::Time => out.push(TIME),
            Self::Mode(mode) => out.extend([MODE, *mode as u8]),
            Self::Message(agent, message) => {
                out.push(MESSAGE);
                out.extend(agent.number.to_ne_bytes());
                let host = cut(&agent.host);
                out.push(host.len() as u8);
                out.extend(host.as_bytes());
                // A new encoder for each message, so that its names are introduced with it.
                Encoder::default().put(message, &mut out);
            }
            Self::Policy(Policy { strict, translated, declared }) => {
                out.extend([POLICY, u8::from(*strict)]);
                put_networks(translated, &mut out);
                for (peer, networks) in declared {
                    put_networks(std::slice::from_ref(peer), &mut out);
                    put_networks(networks, &mut out);
                }
            }
            Self::Session(SessionChange { agent, dialled, up, forwards, addresses }) => {
                out.push(STAND);
                out.extend(agent.to_ne_bytes());
                out.push((u8::from(*dialled) * DIALLED) | (u8::from(*up) * UP) | (u8::from(*forwards) * FORWARDS));
                let networks: Vec<Prefix> = addresses.iter().take(ADDRESSES).map(|one| Prefix::one(*one)).collect();
                put_networks(&networks, &mut out);
            }
        }
        out
    }

    /// Reads what [`Self::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<(Nanos, Self)> {
        let (now, rest) = bytes.split_first_chunk()?;
        let (kind, rest) = rest.split_first()?;
        let event = match (*kind, rest) {
            (TIME, _) => Self::Time,
            (MODE, [mode, ..]) => Self::Mode(*Mode::ALL.get(usize::from(*mode))?),
            (MESSAGE, rest) => {
                let (number, rest) = rest.split_first_chunk()?;
                let (len, rest) = rest.split_first()?;
                let (host, rest) = rest.split_at_checked(usize::from(*len))?;
                let mut found = Vec::new();
                Decoder::default().read(rest, &mut found).ok()?;
                Self::Message(Agent { number: u64::from_ne_bytes(*number), host: text(host) }, found.pop()?)
            }
            (POLICY, [strict, rest @ ..]) => {
                let (translated, mut rest) = networks(rest)?;
                let mut declared = Vec::new();
                while !rest.is_empty() {
                    let (peer, after) = networks(rest)?;
                    let (of, after) = networks(after)?;
                    declared.push((*peer.first()?, of));
                    rest = after;
                }
                Self::Policy(Policy { strict: *strict != 0, translated, declared })
            }
            (STAND, rest) => {
                let (agent, rest) = rest.split_first_chunk()?;
                let (flags, rest) = rest.split_first()?;
                let (addresses, _) = networks(rest)?;
                Self::Session(SessionChange {
                    agent: u64::from_ne_bytes(*agent),
                    dialled: flags & DIALLED != 0,
                    up: flags & UP != 0,
                    forwards: flags & FORWARDS != 0,
                    addresses: addresses.iter().take(ADDRESSES).map(|one| one.parts().0).collect(),
                })
            }
            _ => return None,
        };
        Some((u64::from_ne_bytes(*now), event))
    }
}

/// Writes a byte of count, then for each network the length of its address, the address and the prefix length.
fn put_networks(networks: &[Prefix], out: &mut Vec<u8>) {
    out.push(networks.len().min(NETWORKS) as u8);
    for network in networks.iter().take(NETWORKS) {
        let (address, bits) = network.parts();
        match address {
            IpAddr::V4(v4) => {
                out.push(4);
                out.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                out.push(16);
                out.extend(v6.octets());
            }
        }
        out.push(bits);
    }
}

/// Reads what [`put_networks`] wrote; also returns the rest.
fn networks(bytes: &[u8]) -> Option<(Vec<Prefix>, &[u8])> {
    let (count, mut rest) = bytes.split_first()?;
    let mut found = Vec::new();
    for _ in 0..*count {
        let (len, after) = rest.split_first()?;
        let (address, after) = after.split_at_checked(usize::from(*len))?;
        let (bits, after) = after.split_first()?;
        let address: IpAddr = match address.len() {
            4 => <[u8; 4]>::try_from(address).ok()?.into(),
            16 => <[u8; 16]>::try_from(address).ok()?.into(),
            _ => return None,
        };
        found.push(Prefix::new(address, *bits)?);
        rest = after;
    }
    Some((found, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::RequestKey;
    use crate::message::Context;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tracer_model::{SpanId, TraceId};

    fn context() -> Message {
        Message::Context(Context {
            key: RequestKey { opener: 1, accepting: 2, seq: 3 },
            trace: TraceId(4),
            parent: SpanId(5),
            settled: true,
            broadcast: false,
            trace_flags: Some(tracer_model::TraceFlags::DRAWN),
            service: Arc::from("shop"),
            class: Arc::from("GET /"),
            carried: None,
            root: crate::message::ContextRoot::Unknown,
        })
    }

    #[test]
    fn events_come_back() {
        let agent = Agent { number: 7, host: Arc::from("far") };
        let network = |text| Prefix::parse(text).unwrap();
        let declared = vec![(network("10.0.0.1"), vec![network("10.1.0.0/16")]), (network("fd00::/8"), Vec::new())];
        let policy = Policy { strict: true, translated: vec![network("::1"), network("10.9.0.0/16")], declared };
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let session = SessionChange { agent: 7, dialled: true, up: false, forwards: true, addresses };
        for event in [
            Event::Time,
            Event::Mode(Mode::Waits),
            Event::Mode(Mode::Off),
            Event::Message(agent, context()),
            Event::Policy(policy),
            Event::Policy(Policy::default()),
            Event::Session(SessionChange { dialled: false, up: true, ..session.clone() }),
            Event::Session(session),
        ] {
            assert_eq!(Event::decode(&event.encode(99)), Some((99, event)));
        }
    }

    #[test]
    fn contexts_of_udp_questions_in_old_recordings_are_skipped() {
        let agent = Agent { number: 7, host: Arc::from("far") };
        let mut bytes = Event::Message(agent, Message::Alive).encode(99);
        // Replaces the last message by the mark of a question and its context.
        bytes.truncate(bytes.len() - 2);
        bytes.extend([7, 10, 4, 1, 0, 0, 0, 0, 0, 0, 0, 7]);
        Encoder::default().put(&context(), &mut bytes);
        assert_eq!(Event::decode(&bytes), None);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Event::decode(&bytes);
        }

        #[test]
        fn a_host_of_any_bytes_comes_back(host in proptest::collection::vec(0x70u8..0xd0, 0..=255)) {
            let encoded = |host: &[u8]| {
                let mut bytes = 99u64.to_ne_bytes().to_vec();
                bytes.push(MESSAGE);
                bytes.extend(7u64.to_ne_bytes());
                bytes.push(host.len() as u8);
                bytes.extend(host);
                Encoder::default().put(&Message::Alive, &mut bytes);
                bytes
            };
            let (now, event) = Event::decode(&encoded(&host)).unwrap();
            prop_assert_eq!(Event::decode(&event.encode(now)), Some((now, event)));
        }
    }
}
