//! Connections that change state, and their end.

use tracer_common::event::{STATE_OWN, State, tcp_state};

use super::engine::{Engine, LINGER, Output};
use super::live::Slot;
use super::thread::Entity;
use crate::model::{Nanos, Outcome};
use crate::protocols::{Closed, Stamp, Totals};

impl Engine {
    pub(super) fn state(&mut self, state: &State, out: &mut Vec<Output>) {
        self.now = self.now.max(state.header.nanos);
        match state.new {
            tcp_state::SYN_SENT => {
                if state.header.flags & STATE_OWN == 0 {
                    return;
                }
                let opener = self.threads.get(&state.header.tid).and_then(|thread| {
                    thread.holder().map(|slot| (slot, Some(state.header.tid))).or_else(|| {
                        let entity = thread.group.current(&state.books)?;
                        if thread.lap.is_some() {
                            let (Entity::Request(slot) | Entity::Call(slot)) = entity;
                            return Some((slot, None));
                        }
                        self.request_of(entity).map(|slot| (slot, None))
                    })
                });
                let connection = self.connection(state.cookie, out);
                connection.announced = connection.last == 0;
                connection.set_opener(opener);
                connection.tgid = state.header.tgid;
                connection.last = connection.last.max(state.header.nanos);
            }
            tcp_state::FIN_WAIT1 | tcp_state::LAST_ACK => {
                self.close(state.cookie, Closed::Local, state.header.nanos, Some(totals(state)), out);
                if let Some(connection) = self.connections.get_mut(&state.cookie) {
                    connection.shut = true;
                }
            }
            tcp_state::CLOSE => {
                if let Some(connection) = self.connections.get_mut(&state.cookie)
                    && !std::mem::replace(&mut connection.closing, true)
                {
                    if self.closing.len() >= self.limits.connections
                        && let Some((due, _)) = self.closing.front().copied()
                    {
                        self.counters.closing_early += 1;
                        self.bury(due, out);
                    }
                    self.closing.push_back((self.now + LINGER, *state));
                }
            }
            _ => {}
        }
    }

    /// Ends the connections that closed, once nothing can come of them any more.
    pub(super) fn bury(&mut self, now: Nanos, out: &mut Vec<Output>) {
        while let Some((due, state)) = self.closing.front().copied()
            && (due <= now || self.closing.len() > self.limits.connections)
        {
            self.closing.pop_front();
            self.close(state.cookie, Closed::Both, state.header.nanos, Some(totals(&state)), out);
            self.drop_connection(state.cookie, state.header.nanos);
        }
        while let Some((due, tid, died)) = self.graves.front().copied()
            && (due <= now || self.graves.len() > self.limits.threads)
        {
            self.graves.pop_front();
            if self.threads.get(&tid).is_some_and(|thread| thread.died == died) {
                self.threads.remove(&tid);
            }
        }
    }

    /// The connection ended, one way or both; `totals`: where its streams stood, where that is known.
    pub(super) fn close(
        &mut self,
        cookie: u64,
        how: Closed,
        nanos: Nanos,
        totals: Option<Totals>,
        out: &mut Vec<Output>,
    ) {
        let mut said = std::mem::take(&mut self.said);
        let Some(connection) = self.connections.get_mut(&cookie) else {
            self.said = said;
            return;
        };
        let at = Stamp { nanos, pid: connection.tgid, ..Stamp::default() };
        connection.talk.awake().closed(how, at, totals, &self.settings, &mut said);
        for word in said.drain(..) {
            self.heard(cookie, word, None, out);
        }
        self.said = said;
    }

    /// The other end of a UNIX socket, where it serves this call.
    pub(super) fn behind(&self, cookie: u64, call: Option<Slot>) -> Option<u64> {
        self.connections.get(&cookie).filter(|connection| connection.unix().is_some())?;
        let request = self.units.get(call?)?.callee?;
        self.units.get(request).map(|live| live.cookie)
    }

    /// Forgets a connection; what is still open on it has no end that could be seen.
    pub(super) fn drop_connection(&mut self, cookie: u64, nanos: Nanos) {
        self.end_units(cookie, nanos);
        self.connections.remove(&cookie);
    }

    pub(super) fn end_units(&mut self, cookie: u64, nanos: Nanos) {
        while let Some(slot) = self.connections.get_mut(&cookie).and_then(|known| known.pop_unit()) {
            self.ended(slot, Outcome::Unfinished, nanos);
        }
    }
}

/// Where the streams stood.
fn totals(state: &State) -> Totals {
    Totals { rx: state.rx, tx: state.tx, last_rx: state.last_rx, last_tx: state.last_tx }
}
