//! What the common path takes from the heap: a request on a kept connection, alone and with a call below it.

use super::*;

#[path = "../../../../benches/parsers/heap.rs"]
mod heap;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap;

/// Exchanges before the count, by which every table has its size, and in it.
const BEFORE: usize = 2_000;
const COUNTED: usize = 256;

/// Blocks that `exchange` takes from the heap each time; tables that grow now and then are no part of it.
fn taken(exchange: impl Fn(&mut Host)) -> u64 {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).opens(3, (600, 700)).opens(4, (700, 600));
    let mut times = |count: usize| {
        for _ in 0..count {
            exchange(&mut host);
            host.waits(5, false);
            host.nanos += 1_000_000;
            host.engine.report(host.nanos, &mut host.out);
            for output in host.out.drain(..) {
                if let Output::Finished(live, _) = output {
                    host.engine.give_back(live);
                }
            }
        }
    };
    times(BEFORE);
    let ((), used) = heap::counted(|| times(COUNTED));
    assert!(used.bytes < 64 << 10, "held by then: {} bytes", used.bytes);
    used.allocations / COUNTED as u64
}

#[test]
fn a_plain_request_takes_one_block() {
    let blocks = taken(|host| {
        host.reads(5, 1, GET).works(5, 100).sends(5, 1, OK);
    });
    assert_eq!(blocks, 1, "what its parser read of it");
}

#[test]
fn a_call_below_a_request_takes_one_block_more() {
    let blocks = taken(|host| {
        host.reads(5, 1, GET).works(5, 100).sends(5, 2, GET).reads(5, 2, OK).works(5, 100).sends(5, 1, OK);
    });
    assert_eq!(blocks, 2, "what the parsers read of both");
}

#[test]
fn a_request_with_both_ends_on_the_host_takes_no_more() {
    let blocks = taken(|host| {
        let moved = |host: &Host, cookie| host.positions.get(&(cookie, true)).map_or(0, |moved| *moved as u32);
        let (asked, replied) = (601 + moved(host, 3), 701 + moved(host, 4));
        host.moves(1, 5, 3, true, asked, GET).moves(2, 6, 4, false, asked, GET);
        host.moves(2, 6, 4, true, replied, OK).moves(1, 5, 3, false, replied, OK);
    });
    assert_eq!(blocks, 2, "what the parsers read at each end");
}
