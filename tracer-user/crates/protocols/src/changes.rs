//! Connections that begin with something other than their protocol, or change protocol.

use tracer_model::Direction;

use super::connection_parser::ConnectionParser;
use super::mode::Mode;
use super::multiplex::Multiplexed;
use super::proxy::{Preamble, preamble};
use super::take_back::Standing;
use super::{Chunk, ExchangeEvent, Protocol, Settings, Touched, Verdict};

impl ConnectionParser {
    /// The part of `chunk` after the header a proxy puts first; all of `chunk` if there is none. `None`: nothing
    /// follows it yet.
    pub(super) fn introduced<'a>(&mut self, chunk: &Chunk<'a>) -> Option<Chunk<'a>> {
        let stream = self.stream(chunk.dir);
        let begins = stream.pos == 0 && chunk.pos == 0 || stream.introducing;
        // A server that speaks first (MariaDB) may have revealed the protocol before it reads the header.
        let asks = self.requests.is_none_or(|requests| requests == chunk.dir);
        if !asks || self.midstream || !begins {
            return Some(*chunk);
        }
        let stream = self.stream(chunk.dir);
        let had = stream.buffer.len();
        stream.buffer.extend_from_slice(chunk.head);
        match preamble(&stream.buffer) {
            Preamble::Header(used) => {
                stream.restart();
                stream.introducing = false;
                stream.pos = chunk.pos + used.saturating_sub(had) as u64;
                let pos = stream.pos;
                chunk.beyond(pos)
            }
            Preamble::NeedMore if chunk.head.len() as u64 == chunk.len => {
                stream.begin(chunk, 0);
                stream.introducing = true;
                stream.pos = chunk.end();
                stream.last = chunk.at;
                // It may still be a protocol with the same first bytes.
                None
            }
            Preamble::NeedMore | Preamble::No => {
                stream.buffer.truncate(had);
                stream.introducing = false;
                Some(*chunk)
            }
        }
    }

    /// Hands over to the multiplexing protocol just detected: it takes `chunk` and the fragments before it.
    pub(super) fn hand_over(
        &mut self,
        chunk: &Chunk<'_>,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) -> Touched {
        let stream = self.stream(chunk.dir);
        let fragments = std::mem::take(&mut stream.buffer);
        let start = stream.start.take();
        let Some(multiplexed) = self.mode.multiplexed_mut() else { return Touched::default() };
        if let Some((at, arrived, pos)) = start {
            let Chunk { dir, .. } = *chunk;
            let first = Chunk {
                dir,
                pos,
                len: fragments.len() as u64,
                head: &fragments,
                tail: &[],
                fragments: &[],
                at,
                arrived,
            };
            multiplexed.bytes(&first, settings, out);
        }
        multiplexed.bytes(chunk, settings, out)
    }

    /// A proxy opened a tunnel: behind `chunk`'s first `used` bytes the connection speaks what the client and the server
    /// behind the proxy speak, so its protocol is detected anew. Exchanges go on counting.
    pub(super) fn begin_tunnel(
        &mut self,
        chunk: &Chunk<'_>,
        used: u64,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) {
        self.give_up_all(chunk.at, out);
        self.connected = self.connected.or(self.side());
        (self.protocol, self.parser, self.requests, self.last_dir) = (None, None, None, None);
        (self.verdict, self.misses) = (Verdict::Unknown, 0);
        (self.midstream, self.turned, self.orphan, self.unsure) = (false, false, false, false);
        self.held = Vec::new();
        // What the proxy's answers proved says nothing of the protocol inside.
        (self.standing, self.inside) = (Standing::default(), None);
        for dir in [Direction::Rx, Direction::Tx] {
            let stream = self.stream(dir);
            stream.restart();
            stream.head_wanted = 0;
        }
        let at = chunk.pos + used;
        self.stream(chunk.dir).pos = at;
        self.origin = (self.rx.pos, self.tx.pos);
        if let Some(rest) = chunk.beyond(at) {
            self.bytes(&rest, settings, out);
        }
    }

    /// The connection continues in `protocol`, which answers the oldest request; `false` if that protocol does not
    /// multiplex. `left` is the operation's part in it.
    pub(super) fn switch(
        &mut self,
        protocol: &'static dyn Protocol,
        left: &Chunk<'_>,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) -> bool {
        let (Some(requests), Some(framed)) = (self.requests, protocol.framed(false)) else { return false };
        let Some(waiting) = self.pair.end() else { return false };
        let at = self.stream(requests).last;
        self.stream(left.dir).pos = left.pos;
        let pos = (self.rx.pos, self.tx.pos);
        let mut multiplexed = Multiplexed::new(framed, requests, pos, (false, false));
        multiplexed.adopt(1, (waiting.exchange, self.pair.upcoming()), waiting.expected, waiting.bytes, at);
        self.protocol = Some(protocol);
        self.parser = None;
        self.rx.restart();
        self.tx.restart();
        if left.len > 0 {
            multiplexed.bytes(left, settings, out);
        }
        self.mode = Mode::Multiplexed(Box::new(multiplexed));
        true
    }
}
