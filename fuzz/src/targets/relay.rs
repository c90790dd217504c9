//! Arbitrary bytes as messages of another agent, and as their recorded form; decoded messages survive a second encoding
//! unchanged.
use tracer_relay::Agent;
use tracer_relay::event::Event;
use tracer_relay::matches::{Given, Matches};
use tracer_relay::message::{Decoder, Encoder, Message};

pub(crate) fn run(data: &[u8]) {
    if let Some((now, event)) = Event::decode(data) {
        assert_eq!(Event::decode(&event.encode(now)), Some((now, event)));
    }
    let mut found = Vec::new();
    // Messages before garbage count.
    let _ = Decoder::default().read(data, &mut found);
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    let mut encoder = Encoder::default();
    for message in &found {
        encoder.put(message, &mut bytes);
    }
    Decoder::default().read(&bytes, &mut again).expect("our own form");
    assert_eq!(found, again);
    let mut matches: Matches<u32> = Matches::new(8);
    for (now, message) in (0..).zip(found) {
        let Message::Context(context) = message else { continue };
        let key = context.key;
        let from = Agent { number: now % 3, host: "fuzz".into() };
        matches.context(now, Given { context, from }, |_, given| given.from.number != now % 2);
        if now % 2 == 0 {
            matches.span(now, key, now as u32, |given| given.from.number != 1);
        }
        assert!(matches.len() <= 8);
    }
}
