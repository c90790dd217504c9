//! Captured connections with one unreported operation: no event is wrong, missing exchanges are reported as missing,
//! and later ones are recognised again.

use std::collections::BTreeMap;
use std::path::Path;

use tracer_model::{Direction, Outcome, ProtocolId, Side};

use super::connection_parser::tests::Op;
use super::fixtures_tests::connections;
use super::{Chunk, Closed, ConnectionParser, ExchangeEvent, PROTOCOLS, Settings, Stamp, Totals, UNNAMED};

/// Nanoseconds between operations: longer than the parser waits for a missing one.
const STEP: u64 = 25_000_000;

/// Events of one connection.
#[derive(Debug, Default)]
struct Counted {
    /// Complete exchanges by name.
    whole: BTreeMap<String, u64>,
    /// Failures, with the name of the exchange.
    failed: BTreeMap<String, u64>,
    /// Exchanges that are incomplete, or lack only their name.
    partial: u64,
    /// Something was reported as missing.
    missing: bool,
    /// Begin times of exchanges that ended complete, named or not.
    begun: Vec<u64>,
}

fn count(ops: &[Op], lost: Option<usize>) -> Counted {
    let settings = Settings::default();
    let mut conversation = ConnectionParser::new(false);
    conversation.opened(Some(Side::Server), false);
    let (mut events, mut pos, mut reads) = (Vec::new(), [0_u64; 2], 0);
    for (n, op) in ops.iter().enumerate() {
        let which = usize::from(op.dir == Direction::Tx);
        reads += u32::from(op.dir == Direction::Rx);
        let at = Stamp { nanos: (n as u64 + 1) * STEP, pid: 1, tid: 1, reads };
        let len = op.bytes.len() as u64;
        let chunk =
            Chunk { dir: op.dir, pos: pos[which], len, head: &op.bytes, tail: &[], fragments: &[], at, arrived: 0 };
        pos[which] += len;
        if lost != Some(n) {
            conversation.bytes(&chunk, &settings, &mut events);
        }
    }
    let at = Stamp { nanos: 1 << 40, pid: 1, tid: 1, reads };
    conversation.closed(Closed::Local, at, None, &settings, &mut events);
    let totals = Totals { rx: pos[0], tx: pos[1], last_rx: 1 << 39, last_tx: 1 << 39 };
    conversation.closed(Closed::Both, at, Some(totals), &settings, &mut events);
    let mut counted = Counted::default();
    let mut lines: BTreeMap<u64, (String, Option<&'static str>, u64)> = BTreeMap::new();
    for event in events {
        match event {
            ExchangeEvent::Begun { exchange, request, protocol, first, .. } => {
                // The prefix of NATS inboxes is learned from the client; messages to them answer a request.
                let path = if protocol == ProtocolId::Nats { "" } else { &request.path };
                lines.insert(exchange, (format!("{} {path}", request.method), None, first.nanos));
            }
            ExchangeEvent::Replied { exchange, failure, .. } | ExchangeEvent::Judged { exchange, failure, .. } => {
                if let Some((_, known, _)) = lines.get_mut(&exchange) {
                    *known = failure.or(*known);
                }
            }
            ExchangeEvent::Done { exchange, outcome, .. } => {
                let (line, failure, first) = lines.remove(&exchange).expect("it began");
                if outcome == Outcome::Complete {
                    counted.begun.push(first);
                }
                if line.starts_with(UNNAMED) || outcome != Outcome::Complete {
                    counted.partial += 1;
                    continue;
                }
                if let Some(failure) = failure {
                    *counted.failed.entry(format!("{line}: {failure}")).or_default() += 1;
                }
                *counted.whole.entry(line).or_default() += 1;
            }
            ExchangeEvent::Lost { .. }
            | ExchangeEvent::Unpaired { .. }
            | ExchangeEvent::Unnamed
            | ExchangeEvent::Forgotten { .. } => counted.missing = true,
            _ => {}
        }
    }
    counted
}

#[test]
fn a_gap_is_reported_invents_nothing_and_ends() {
    let times = |all: &BTreeMap<String, u64>, line: &str| all.get(line).copied().unwrap_or(0);
    let mut tried = 0;
    for (file, ops) in connections() {
        let name = Path::new(&file).parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        if PROTOCOLS.iter().any(|protocol| protocol.name() == name && protocol.round_trips()) {
            continue;
        }
        let all = count(&ops, None);
        for lost in 0..ops.len() {
            let counted = count(&ops, Some(lost));
            let place = format!("{file} without operation {lost} of {}", ops.len());
            for (line, count) in &counted.whole {
                let most = if name == "nats" { u64::MAX } else { times(&all.whole, line) };
                assert!(*count <= most, "{place}: {line} {count} times");
            }
            for (line, count) in &counted.failed {
                assert!(*count <= times(&all.failed, line), "{place}: {line} {count} times");
            }
            tried += 1;
            // Without its first bytes, a connection may not be recognised.
            if lost == 0 {
                continue;
            }
            let same = counted.whole == all.whole && counted.failed == all.failed;
            assert!(
                same || counted.missing || counted.partial > all.partial,
                "{place}: the gap is not reported: {counted:?} {all:?}"
            );
            let behind = |counted: &Counted| counted.begun.iter().filter(|at| **at > (lost as u64 + 1) * STEP).count();
            let few = behind(&all) < 3 || ops.len() - lost < 8;
            assert!(few || behind(&counted) > 0, "{place}: nothing is known any more: {counted:?}");
        }
    }
    assert!(tried > 500, "{tried}");
}
