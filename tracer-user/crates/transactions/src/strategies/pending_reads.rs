//! Whether a thread had one pending read: the strongest evidence about calls of threads that run several requests.
//!
//! A thread that reads several requests and then sends for all of them sends for another one than it read last. Both sides
//! of such a call can still agree on a wrong request by chance. If the thread had read one message since it last slept or
//! sent, there is nothing else that it could send for.

use tracer_common::event::Op;
use tracer_model::Direction;
use tracer_protocols::ExchangeEvent;

use crate::world::World;

/// Counts what the operation's thread has read and sent nothing for. On a send that begins one message: whether that was exactly one.
/// `continues`: the operation is of an exchange that began before.
pub(crate) fn one_pending_read(
    world: &mut World,
    op: &Op,
    dir: Direction,
    continues: bool,
    events: &[ExchangeEvent],
) -> bool {
    let begins = |event: &&ExchangeEvent| matches!(event, ExchangeEvent::Begun { .. } | ExchangeEvent::Replied { .. });
    let begun = events.iter().filter(begins).count() as u32;
    let Some(thread) = world.threads.get_mut(&op.header.tid) else { return false };
    // Such a record has counted already for the message that it goes on with.
    let continues = continues && !thread.is_further_piece(op);
    let whole = thread.whole;
    match dir {
        // What goes on with an earlier message comes between the others, too.
        Direction::Rx if continues || begun > 0 => {
            thread.pending_reads.read(begun.max(1), &op.counters, whole);
            false
        }
        Direction::Tx if begun > 0 => thread.pending_reads.sent(&op.counters, whole) && begun == 1,
        Direction::Rx | Direction::Tx => false,
    }
}
