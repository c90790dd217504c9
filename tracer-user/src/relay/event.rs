//! What the pipeline is told by other agents, as a recording holds it.

use super::Agent;
use super::message::{Decoder, Encoder, Message, cut, text};
use crate::model::Nanos;

/// Something the pipeline is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing but that time passed: what waits may have waited long enough.
    Time,
    /// What there is to expect of other agents from here on.
    Mode(Mode),
    /// An agent said something.
    Said(Agent, Message),
}

/// What there is to expect of other agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There are none and will be none.
    Off,
    /// Contexts are sent; none is waited for, because nobody is there.
    Sends,
    /// Requests wait for contexts.
    Waits,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Off, Self::Sends, Self::Waits];
}

const TIME: u8 = 0;
const MODE: u8 = 1;
const SAID: u8 = 2;

impl Event {
    /// The form in a recording: when (`CLOCK_MONOTONIC`, 8 bytes, byte order of the machine), what it is, the rest.
    pub fn encode(&self, now: Nanos) -> Vec<u8> {
        let mut out = now.to_ne_bytes().to_vec();
        match self {
            Self::Time => out.push(TIME),
            Self::Mode(mode) => out.extend([MODE, *mode as u8]),
            Self::Said(agent, message) => {
                out.push(SAID);
                out.extend(agent.number.to_ne_bytes());
                let host = cut(&agent.host);
                out.push(host.len() as u8);
                out.extend(host.as_bytes());
                // Each on its own: names are introduced with it.
                Encoder::default().put(message, &mut out);
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
            (SAID, rest) => {
                let (number, rest) = rest.split_first_chunk()?;
                let (len, rest) = rest.split_first()?;
                let (host, rest) = rest.split_at_checked(usize::from(*len))?;
                let mut found = Vec::new();
                Decoder::default().read(rest, &mut found).ok()?;
                Self::Said(Agent { number: u64::from_ne_bytes(*number), host: text(host) }, found.pop()?)
            }
            _ => return None,
        };
        Some((u64::from_ne_bytes(*now), event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{TraceId, UnitId};
    use crate::relay::key::Key;
    use crate::relay::message::Context;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn events_come_back() {
        let context = Message::Context(Context {
            key: Key { opener: 1, accepting: 2, seq: 3 },
            trace: TraceId(4),
            parent: UnitId(5),
            settled: true,
            broadcast: false,
            sampled: Some(true),
            service: Arc::from("shop"),
            class: Arc::from("GET /"),
            carried: None,
            lookup: None,
        });
        let agent = Agent { number: 7, host: Arc::from("far") };
        for event in [Event::Time, Event::Mode(Mode::Waits), Event::Mode(Mode::Off), Event::Said(agent, context)] {
            assert_eq!(Event::decode(&event.encode(99)), Some((99, event)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Event::decode(&bytes);
        }

        #[test]
        fn a_host_of_any_bytes_comes_back(host in proptest::collection::vec(0x70u8..0xd0, 0..=255)) {
            let said = |host: &[u8]| {
                let mut bytes = 99u64.to_ne_bytes().to_vec();
                bytes.push(SAID);
                bytes.extend(7u64.to_ne_bytes());
                bytes.push(host.len() as u8);
                bytes.extend(host);
                Encoder::default().put(&Message::Alive, &mut bytes);
                bytes
            };
            let (now, event) = Event::decode(&said(&host)).unwrap();
            prop_assert_eq!(Event::decode(&event.encode(now)), Some((now, event)));
        }
    }
}
