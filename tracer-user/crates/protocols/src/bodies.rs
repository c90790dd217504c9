//! Self-delimiting bodies: chunks, RESP values, and those that parsers follow.

use tracer_model::Direction;

use super::connection_parser::ConnectionParser;
use super::elements::Elements;
use super::stream::{Chunked, Fed, StreamState};
use super::{Chunk, ExchangeEvent, Walked};

impl ConnectionParser {
    /// Reads a body that the parser follows.
    pub(super) fn own(
        &mut self,
        chunk: &Chunk<'_>,
        unread: u64,
        captured: &[u8],
        left: u64,
        is_request: bool,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let stream = match chunk.dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        };
        if unread > 0 {
            let take = unread.min(left);
            stream.state = StreamState::Own(unread - take);
            stream.bytes += take;
            return take;
        }
        let Some(parser) = &mut self.parser else { return left };
        if captured.is_empty() {
            // The parser needed to see these uncaptured bytes.
            if parser.ends_unseen(is_request, left, chunk.last()) {
                stream.bytes += left;
                self.ended(is_request, chunk.at, out);
                return left;
            }
            stream.state = StreamState::UntilTurn;
            self.want_more(chunk.dir, chunk.head.len());
            self.stream(chunk.dir).pieces.missed();
            if is_request && self.pipelines() {
                self.pair.unseen(chunk.at, chunk.arrived);
            }
            return 0;
        }
        match parser.body(is_request, captured) {
            Walked::More(unread) => {
                stream.bytes += captured.len() as u64;
                stream.state = StreamState::Own(unread);
                captured.len() as u64
            }
            Walked::End(used) => {
                stream.bytes += used as u64;
                self.ended(is_request, chunk.at, out);
                used as u64
            }
            Walked::Lost => {
                out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
                stream.state = StreamState::UntilTurn;
                0
            }
        }
    }

    pub(super) fn elements(
        &mut self,
        chunk: &Chunk<'_>,
        elements: Elements,
        captured: &[u8],
        left: u64,
        is_request: bool,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let stream = self.stream(chunk.dir);
        let (fed, all) = if captured.is_empty() {
            (elements.skip(left), left)
        } else {
            (elements.feed(captured), captured.len() as u64)
        };
        match fed {
            Fed::More(next) => {
                stream.bytes += all;
                stream.state = next.rest().map_or(StreamState::Elements(next), StreamState::Body);
                all
            }
            Fed::End(used) => {
                stream.bytes += used as u64;
                self.ended(is_request, chunk.at, out);
                used as u64
            }
            Fed::Invalid => {
                out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
                stream.state = StreamState::UntilTurn;
                self.want_more(chunk.dir, chunk.head.len());
                self.stream(chunk.dir).pieces.missed();
                if is_request && self.pipelines() {
                    self.pair.unseen(chunk.at, chunk.arrived);
                }
                0
            }
        }
    }

    pub(super) fn chunked(
        &mut self,
        chunk: &Chunk<'_>,
        chunked: Chunked,
        captured: &[u8],
        left: u64,
        is_request: bool,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let stream = self.stream(chunk.dir);
        if captured.is_empty() {
            // Uncaptured bytes: harmless inside a chunk, otherwise the framing is lost.
            if let Chunked::Data(n) = chunked
                && n >= left
            {
                let rest = n - left;
                stream.bytes += left;
                stream.state = StreamState::Chunked(if rest == 0 { Chunked::BEGIN } else { Chunked::Data(rest) });
                return left;
            }
            out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
            stream.state = StreamState::ChunkedLost;
            return 0;
        }
        match chunked.feed(captured) {
            Fed::More(next) => {
                stream.bytes += captured.len() as u64;
                stream.state = StreamState::Chunked(next);
                captured.len() as u64
            }
            Fed::End(used) => {
                stream.bytes += used as u64;
                self.ended(is_request, chunk.at, out);
                used as u64
            }
            Fed::Invalid => {
                out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
                stream.state = StreamState::ChunkedLost;
                0
            }
        }
    }
}
