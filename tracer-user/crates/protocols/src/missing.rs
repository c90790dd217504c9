//! Uncaptured bytes and unreadable messages: what the parser gives up, and what it still knows.

use tracer_model::Direction;

use super::closing::give_up;
use super::connection_parser::{ConnectionParser, HEAD_MAX};
use super::pair::Waiting;
use super::stream::{Chunked, Fed, StreamState};
use super::{Chunk, Detected, ExchangeEvent, NOWHERE, Protocol, Request, Stamp};

impl ConnectionParser {
    /// `gap` bytes before this operation were not reported.
    pub(super) fn gap(&mut self, chunk: &Chunk<'_>, gap: u64, out: &mut Vec<ExchangeEvent>) {
        let is_request = self.requests == Some(chunk.dir);
        let protocol = self.protocol;
        let stream = self.stream(chunk.dir);
        let before = stream.last;
        let lost = match stream.state {
            StreamState::Body(n) => {
                let take = n.min(gap);
                stream.state = StreamState::Body(n - take);
                stream.bytes += take;
                if n <= gap {
                    self.ended(is_request, before, out);
                }
                gap - take
            }
            StreamState::Chunked(Chunked::Data(n)) if n > gap => {
                stream.state = StreamState::Chunked(Chunked::Data(n - gap));
                stream.bytes += gap;
                0
            }
            StreamState::Chunked(_) => {
                stream.state = StreamState::ChunkedLost;
                stream.bytes += gap;
                gap
            }
            StreamState::Elements(elements) => match elements.skip(gap) {
                Fed::More(next) => {
                    stream.bytes += gap;
                    stream.state = StreamState::Elements(next);
                    0
                }
                Fed::End(used) => {
                    stream.bytes += used as u64;
                    self.ended(is_request, before, out);
                    gap - used as u64
                }
                Fed::Invalid => {
                    stream.bytes += gap;
                    stream.state = StreamState::UntilTurn;
                    gap
                }
            },
            StreamState::Own(unread) if unread >= gap => {
                stream.bytes += gap;
                stream.state = StreamState::Own(unread - gap);
                0
            }
            StreamState::Own(_) => {
                stream.bytes += gap;
                stream.state = StreamState::UntilTurn;
                gap
            }
            StreamState::ChunkedLost | StreamState::UntilClose | StreamState::UntilTurn => {
                stream.bytes += gap;
                0
            }
            StreamState::Trailing => {
                // What was kept of the reply's end is not what precedes the next operation.
                stream.buffer = Vec::new();
                stream.bytes += gap;
                0
            }
            StreamState::Part(_) | StreamState::Pass(_) => gap - stream.pass(gap),
            StreamState::Start | StreamState::Lost => gap,
        };
        if lost == 0 {
            return;
        }
        self.standing.missed = true;
        out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: lost });
        if !is_request {
            self.unsure = true;
            // The missed bytes may have held whole replies, and missed bytes in the other direction requests. The next
            // reply answers the newest seen request if its thread has read nothing in between: apart from a few
            // pipelining clients, an HTTP/1 client waits for the reply. Otherwise it answers none: a wrong pair is
            // worse than none.
            let several = self.pipelines() && self.pair.len() > 1;
            let keep = usize::from(!several && self.answers_newest(&chunk.at));
            while self.pair.len() > keep {
                let Some(waiting) = self.pair.end() else { break };
                give_up(&waiting, before, out);
            }
        } else if self.pipelines() && !self.turned {
            // Earlier replies answered the requests sent before them.
            self.pair.unseen(chunk.at, chunk.arrived);
        }
        let trails = !is_request && self.pair.len() == 1 && protocol.is_some_and(Protocol::trails);
        let stream = self.stream(chunk.dir);
        if matches!(stream.state, StreamState::Start | StreamState::Lost) {
            stream.restart();
            // A message may begin where reporting resumes.
            let fits = match protocol.map(|protocol| protocol.detect(chunk.head)) {
                Some(Detected::Request) => is_request,
                Some(Detected::Reply) => !is_request,
                _ => false,
            };
            if !fits {
                stream.state = if trails { StreamState::Trailing } else { StreamState::Lost };
            }
            if let Some(parser) = &mut self.parser {
                parser.broken(is_request);
            }
        }
    }

    /// Whether an operation in the direction of replies directly follows the newest in the direction of requests: by
    /// the same thread, which has read no socket in between except for this very reply.
    fn answers_newest(&self, at: &Stamp) -> bool {
        let (asked, own) = match self.requests {
            Some(Direction::Rx) => (&self.rx.last, 0),
            Some(Direction::Tx) => (&self.tx.last, 1),
            None => return false,
        };
        asked.tid == at.tid && asked.reads.wrapping_add(own) == at.reads
    }

    /// If the next reply answers an unseen request, reports that request now that its reply proves it.
    pub(super) fn reveal(&mut self, out: &mut Vec<ExchangeEvent>) -> Option<Waiting> {
        let (waiting, unseen) = self.pair.reveal()?;
        let side = self.side()?;
        out.push(ExchangeEvent::Begun {
            exchange: waiting.exchange,
            request: Request::unnamed(),
            first: unseen.at,
            arrived: unseen.arrived,
            head_at: unseen.at,
            pos: NOWHERE,
            side,
            protocol: self.protocol_id(),
        });
        Some(waiting)
    }

    /// No message begins here. In protocols with pipelining, looks for the next request: the bytes before it end a
    /// request that began in uncaptured bytes.
    pub(super) fn invalid(
        &mut self,
        chunk: &Chunk<'_>,
        captured: &[u8],
        left: u64,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let is_request = self.requests == Some(chunk.dir);
        let stream = match chunk.dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        };
        stream.restart();
        if let Some(parser) = &mut self.parser {
            parser.broken(is_request);
        }
        if let Some(protocol) = self.protocol.filter(|protocol| is_request && protocol.pipelines()) {
            let shown = self.parser.as_ref().and_then(|parser| parser.next_request(captured));
            if let Some(next) = shown.or_else(|| protocol.next_request(captured)) {
                out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: next as u64 });
                self.pair.overflow(chunk.at, chunk.arrived);
                return next as u64;
            }
            self.pair.unseen(chunk.at, chunk.arrived);
        }
        self.standing.missed = true;
        out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
        self.stream(chunk.dir).state = StreamState::Lost;
        left
    }

    /// A head was longer than its captured part: asks the kernel for twice as much.
    pub(super) fn want_more(&mut self, dir: Direction, had: usize) {
        let stream = self.stream(dir);
        let wanted = (had * 2).clamp(2048, usize::from(HEAD_MAX)) as u16;
        stream.head_wanted = stream.head_wanted.max(wanted);
    }

    /// Whole exchanges passed that were counted elsewhere: the next byte, of which `positions` bytes were received and sent
    /// before, begins a message.
    pub fn pass_over(&mut self, positions: (u64, u64), at: Stamp, out: &mut Vec<ExchangeEvent>) {
        // Its reply was not reported, or it was given up already.
        self.give_up_all(at, out);
        self.held.clear();
        (self.orphan, self.unsure) = (false, false);
        for (dir, pos) in [(Direction::Rx, positions.0), (Direction::Tx, positions.1)] {
            let stream = self.stream(dir);
            if stream.pos < pos || stream.state == StreamState::Lost {
                stream.restart();
                stream.pos = stream.pos.max(pos);
            }
        }
        self.last_dir = self.requests.map(Direction::flip);
    }

    /// Gives up all waiting requests: which of them the next reply answers is unknown.
    pub(super) fn give_up_all(&mut self, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        while let Some(waiting) = self.pair.end() {
            give_up(&waiting, at, out);
        }
    }
}
