//! Exchanges that the kernel side counted and did not report.

use std::sync::Arc;

use tracer_common::exchange_counts::{COUNTED_SEVERAL, CountedExchanges};
use tracer_host::guard::tables::TableUse;
use tracer_model::{Side, Span};
use tracer_protocols::Stamp;

use crate::engine::Engine;
use crate::ids;
use crate::output::Output;
use crate::request_prefixes::RequestPrefixes;

impl Engine {
    /// How requests begin, for what is counted in the kernel.
    pub fn prefixes(&mut self) -> &mut RequestPrefixes {
        &mut self.prefixes
    }

    /// How full the table of known beginnings is.
    pub fn prefixes_use(&self) -> TableUse {
        self.prefixes.table_use()
    }

    /// Gives the span of a counted exchange its ids, and the other end of its connection, which is empty if that is not known any
    /// more.
    pub fn identify_noteworthy(&mut self, span: &mut Span) {
        // Connections count their exchanges from 0: no other has this number.
        const EXCHANGE: u64 = u64::MAX;
        span.id = ids::span(self.world.seed, span.cookie, EXCHANGE, span.start, span.side);
        span.trace = ids::trace(self.world.seed, span.cookie, EXCHANGE, span.start);
        let empty = Arc::clone(&self.world.empty);
        let known = self.world.connections.get_mut(&span.cookie).map(|connection| connection.endpoints(&empty));
        if let Some(ends) = known {
            (span.local_port, span.peer, span.peer_port) = (ends.local_port, Arc::clone(&ends.peer), ends.peer_port);
        } else {
            (span.peer, span.peer_port) = (empty, 0);
        }
    }

    /// Exchanges of a connection passed unreported; its next record begins a message. Its thread may hold, or have answered,
    /// requests that nothing here knows: that is doubted as if their records were lost.
    pub(super) fn counted(&mut self, counted: &CountedExchanges, out: &mut Vec<Output>) {
        let header = &counted.header;
        self.world.advance(header.nanos);
        if header.tid != 0 {
            self.follow_counted(header, counted.nth);
        }
        // The thread's operations may have been on other connections only.
        let Some(connection) = self.world.connections.get_mut(&counted.cookie).filter(|_| counted.exchanges > 0) else {
            return;
        };
        if header.flags & COUNTED_SEVERAL != 0 {
            self.prefixes.pipelines(connection.tgid);
        }
        connection.last = connection.last.max(header.nanos);
        let is_server = connection.side() == Some(Side::Server);
        let at = Stamp { nanos: header.nanos, pid: header.tgid, tid: header.tid, reads: 0 };
        let mut events = std::mem::take(&mut self.events);
        connection.talk.awake().pass_over((counted.rx, counted.tx), at, &mut events);
        for event in events.drain(..) {
            self.on_exchange_event(counted.cookie, event, None, out);
        }
        self.events = events;
        if is_server && header.tgid != 0 {
            self.world.serves(header.tgid, header.nanos);
        }
    }
}
