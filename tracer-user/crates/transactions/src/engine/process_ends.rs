//! Requests that a process left open when it ended.
//!
//! The kernel closes an exiting process's TCP sockets in its own time, so the record of their close says how it ends. It says
//! nothing of UNIX sockets, nor of those that a runtime closed itself while it cleaned up: those wait for the record of the
//! process's end.

use tracer_common::event::{ProcessEnd as Ended, State, tcp_state};
use tracer_model::{Nanos, Outcome, ProcessEnd, Side};

use crate::closed_by::ClosedBy;
use crate::engine::{Engine, LINGER};
use crate::open_span::OpenSpan;
use crate::output::Output;
use crate::slot::Slot;
use crate::thread::Thread;

/// How long before its end a process may close its connections itself: what a runtime takes to clean up.
const CLEANUP: Nanos = 1_000_000_000;
/// How long the end of a process takes at most, from its first descriptor that is closed.
const EXIT: Nanos = 100_000_000;

impl Engine {
    /// Its connection was closed before the whole reply: by whom, if that was its own process.
    pub(super) fn note_who_closed(&mut self, slot: Slot) {
        let Some(live) = self.world.spans.get(slot) else { return };
        let (pid, side, cookie) = (live.pid, live.side, live.cookie);
        let closed = self.world.connections.get(&cookie).and_then(|known| known.closed_by());
        let Some(closed) = closed.filter(|closed| closed.tgid == pid) else { return };
        if let Some(live) = self.world.spans.get_mut(slot) {
            match closed.end {
                Some(end) => live.rare.process_end = Some(end),
                // A caller that gives up is no news.
                None if side == Side::Server => live.rare.dropped = true,
                None => {}
            }
        }
    }

    /// The end of both directions of a connection follows once no late record is expected.
    pub(super) fn closes_soon(&mut self, state: &State, out: &mut Vec<Output>) {
        let Some(connection) = self.world.connections.get_mut(&state.cookie) else { return };
        if std::mem::replace(&mut connection.closing, true) {
            return;
        }
        if self.closing.len() >= self.world.limits.connections
            && let Some((due, _)) = self.closing.front().copied()
        {
            self.world.counters.closing_early += 1;
            self.expire_closed(due, out);
        }
        self.closing.push_back((self.world.now + LINGER, *state));
    }

    /// Whether its process may be about to end: it dropped the request itself a moment ago.
    pub(super) fn may_be_ending(live: &OpenSpan) -> bool {
        live.rare.dropped && live.rare.process_end.is_none() && live.deferred == 0
    }

    /// A process ended.
    pub(super) fn process_ended(&mut self, ended: &Ended, out: &mut Vec<Output>) {
        self.world.now = self.world.now.max(ended.header.nanos);
        let (tgid, nanos) = (ended.header.tgid, ended.header.nanos);
        // This looks at all spans: only for those that served requests.
        if !self.world.processes.serving.contains_key(&tgid) {
            return;
        }
        let end = ProcessEnd::from_status(ended.status);
        let mut left = Vec::new();
        for slot in self.world.spans.slots().collect::<Vec<_>>() {
            let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.pid == tgid) else { continue };
            if live.end == 0 {
                left.push(live.cookie);
            } else if live.rare.dropped && live.outcome == Some(Outcome::Aborted) {
                let since = nanos.saturating_sub(live.end);
                // Of a UNIX socket only its peer showed the end, and not what came first.
                let is_unix = self.world.connections.get(&live.cookie).is_some_and(|known| known.unix().is_some());
                let fits = if is_unix { since <= EXIT } else { end.may_follow_cleanup() && since <= CLEANUP };
                if !fits {
                    continue;
                }
                live.rare.process_end = Some(end);
            }
        }
        // A first thread can end alone, which looks like an exit with code 0.
        let lives_on = |(tid, thread): (&u32, &Thread)| *tid != tgid && thread.tgid == tgid && thread.died == 0;
        if left.is_empty() || (end == ProcessEnd::ExitCode(0) && self.world.threads.iter().any(lives_on)) {
            return;
        }
        for cookie in left {
            let Some(connection) = self.world.connections.get_mut(&cookie) else { continue };
            connection.close_by(ClosedBy { tgid, end: Some(end) });
            // The kernel reports the close of the others; that can be another process's that has the socket too.
            if connection.unix().is_none() {
                continue;
            }
            let state = State { header: ended.header, cookie, new: tcp_state::CLOSE, ..State::default() };
            self.closes_soon(&state, out);
        }
    }
}
