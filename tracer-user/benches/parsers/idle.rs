//! What a connection holds that has nothing to do.

use tracer_model::decode;
use tracer_protocols::Settings;
use tracer_transactions::engine::{Engine, Limits};
use tracer_transactions::output::Output;

use crate::fixtures::{Captured, Records, threads};
use crate::heap::counted;

/// Connections made at once.
const BATCH: u64 = 64;

/// Bytes that `count` connections hold together that did what `captured` did, in turn, and are open still. Those that end with work
/// under way are left out: a worker that has taken a job holds it until it asks for the next.
pub(crate) fn held(captured: &[&Captured], count: u64) -> i64 {
    let captured: Vec<&Captured> = captured.iter().copied().filter(|one| has_nothing_to_do(one)).collect();
    assert!(!captured.is_empty(), "a connection that is idle at its end");
    let captured = captured.as_slice();
    let mut engine = Engine::new(Settings::default(), Limits::default(), 1);
    // The queues' memory and the threads belong to no connection.
    fill(&mut engine, captured, 0..captured.len() as u64);
    let ((), used) = counted(|| fill(&mut engine, captured, 1000..1000 + count));
    let table_use = engine.table_use();
    assert_eq!(table_use.connections.entries, count + captured.len() as u64, "all are there");
    assert_eq!(table_use.spans.entries, 0, "none has anything to do");
    used.bytes
}

fn has_nothing_to_do(captured: &Captured) -> bool {
    let mut engine = Engine::new(Settings::default(), Limits::default(), 1);
    fill(&mut engine, &[captured], 0..1);
    engine.table_use().spans.entries == 0
}

/// Makes connections and waits until what they did is reported.
fn fill(engine: &mut Engine, captured: &[&Captured], cookies: std::ops::Range<u64>) {
    let (mut at, mut counters) = (engine.now(), threads());
    let (mut records, mut out): (Records, Vec<Output>) = Default::default();
    let mut cookies = cookies.peekable();
    while cookies.peek().is_some() {
        records.clear();
        for cookie in cookies.by_ref().take(BATCH as usize) {
            if let Some(captured) = captured.get(cookie as usize % captured.len()) {
                captured.records(cookie, &mut at, &mut counters, false, &mut records);
            }
        }
        for record in records.iter().filter_map(|bytes| decode::record(bytes).ok()) {
            engine.record(&record, &mut out);
            out.clear();
        }
        engine.take_policies().for_each(drop);
        engine.report(at, &mut out);
        out.clear();
    }
    // Later, when nothing is left to wait for.
    for _ in 0..3 {
        engine.advance(engine.now() + 1_000_000_000);
        engine.expire(false, &mut out);
        out.clear();
    }
}
