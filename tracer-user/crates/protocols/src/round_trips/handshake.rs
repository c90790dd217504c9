//! Finds the end of a TLS handshake, and reads its first messages: the client's, the server's, and, where it is in the
//! clear (up to TLS 1.2), when the server's certificate expires.

use crate::Chunk;
use crate::tls::certificate::{Expiry, expiry};
use crate::tls::{self, DATA, HANDSHAKE, HEADER, Hello, Record, ServerHelloKind};

/// Longest message assembled; of the certificate's, the front is enough.
const LIMIT: usize = 8 * 1024;

/// Both sides of a handshake.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    client: Walk,
    server: Walk,
    hello: Option<Box<Hello>>,
    answer: Option<ServerHelloKind>,
    /// The server's next message may have its certificate.
    certifies: bool,
    /// When that expires, seconds since 1970.
    expires: Option<i64>,
    /// The server has sent something.
    answered: bool,
}

/// Position in one side's records, and the part of its first message received so far.
#[derive(Debug, Default)]
struct Walk {
    header: [u8; HEADER],
    have: usize,
    kind: u8,
    left: u64,
    message: Vec<u8>,
    /// Bytes are missing in `message`, or more of it will not be captured.
    cut: bool,
}

/// How much of a client's operation belongs to the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// All of it, and the handshake continues.
    All,
    /// This many bytes; the handshake ends after them.
    Part(u64),
}

/// What a walk found at its position.
enum Stands {
    /// A record of this kind begins.
    Begins(u8),
    /// The walk took this many bytes.
    Took(u64),
    /// No record, or uncaptured bytes.
    Lost,
}

impl Walk {
    /// Takes what is at `at` in an operation of `len` bytes, `captured` of which were captured.
    fn step(&mut self, captured: &[u8], at: u64, len: u64, wanted: bool) -> Stands {
        if self.left > 0 {
            let take = self.left.min(len - at);
            self.left -= take;
            if wanted && self.kind == HANDSHAKE {
                let content = captured.get(at as usize..).unwrap_or_default();
                let content = content.get(..take as usize).unwrap_or(content);
                let room = LIMIT.saturating_sub(self.message.len());
                self.message.extend_from_slice(content.get(..room).unwrap_or(content));
                self.cut |= content.len() < take as usize || content.len() > room;
            }
            return Stands::Took(take);
        }
        let Some(byte) = captured.get(at as usize) else { return Stands::Lost };
        if self.have == 0 {
            self.have = 1;
            self.header[0] = *byte;
            return Stands::Begins(*byte);
        }
        let Some(place) = self.header.get_mut(self.have) else { return Stands::Lost };
        *place = *byte;
        self.have += 1;
        if self.have == HEADER {
            self.have = 0;
            let Some(record) = Record::read(self.header) else { return Stands::Lost };
            (self.kind, self.left) = (record.kind, record.len as u64);
        }
        Stands::Took(1)
    }

    /// The first message, once as much of it as will come is there.
    fn whole(&self) -> Option<&[u8]> {
        let [_, high, mid, low, ..] = *self.message else { return None };
        let len = 4 + usize::from(high) * 65_536 + usize::from(mid) * 256 + usize::from(low);
        (self.message.len() >= len.min(LIMIT)).then(|| self.message.get(..len).unwrap_or(&self.message))
    }
}

impl Handshake {
    /// Takes a client's operation, preceded by `gap` unseen bytes.
    pub(super) fn on_request_bytes(&mut self, chunk: &Chunk<'_>, gap: u64) -> Took {
        if gap > 0 {
            return Took::Part(0);
        }
        let mut at = 0;
        while at < chunk.len {
            let wanted = self.hello.is_none();
            match self.client.step(chunk.head, at, chunk.len, wanted) {
                Stands::Begins(DATA) if self.answered && self.answer != Some(ServerHelloKind::Sealed) => {
                    return Took::Part(at);
                }
                Stands::Begins(20..=DATA) => at += 1,
                Stands::Begins(_) | Stands::Lost => return Took::Part(at),
                Stands::Took(took) => at += took,
            }
            if wanted && let Some(message) = self.client.whole() {
                self.hello = Some(Box::new(tls::client(message)));
                self.client.message = Vec::new();
            }
            // Under TLS 1.3 the client's first record after the server's ends the handshake.
            let sealed = self.answer == Some(ServerHelloKind::Sealed) && self.client.kind == DATA;
            if sealed && self.client.left == 0 && self.client.have == 0 {
                return Took::Part(at);
            }
        }
        Took::All
    }

    /// Takes a server's operation.
    pub(super) fn answered(&mut self, chunk: &Chunk<'_>, gap: u64) {
        // Data sent before this needs no end of its own.
        if !self.answered && self.client.kind == DATA {
            self.client.kind = HANDSHAKE;
        }
        self.answered = true;
        if gap > 0 {
            self.answer.get_or_insert(ServerHelloKind::Open);
            self.give_up_certificate();
        }
        let mut at = 0;
        while at < chunk.len && (self.certifies || matches!(self.answer, None | Some(ServerHelloKind::Retry))) {
            match self.server.step(chunk.head, at, chunk.len, true) {
                Stands::Begins(kind) => {
                    // A session goes on, and no certificate is shown.
                    if self.certifies && kind != HANDSHAKE {
                        self.give_up_certificate();
                    }
                    at += 1;
                }
                Stands::Took(took) => at += took,
                Stands::Lost => {
                    self.answer = Some(ServerHelloKind::Open);
                    self.give_up_certificate();
                    return;
                }
            }
            if self.certifies {
                self.certificate();
            } else if let Some(message) = self.server.whole() {
                let (len, answer) = (message.len(), tls::server(message).unwrap_or(ServerHelloKind::Open));
                self.answer = Some(answer);
                self.certifies = answer == ServerHelloKind::Open;
                if self.certifies {
                    self.server.message.drain(..len);
                    self.certificate();
                } else {
                    self.server.message = Vec::new();
                }
            }
        }
    }

    /// Reads the server's second message as far as it is there.
    fn certificate(&mut self) {
        match expiry(&self.server.message) {
            Expiry::More if !self.server.cut => return,
            Expiry::At(expires) => self.expires = Some(expires),
            Expiry::More | Expiry::Absent => {}
        }
        self.give_up_certificate();
    }

    fn give_up_certificate(&mut self) {
        self.certifies = false;
        self.server.message = Vec::new();
    }

    /// When the server's certificate expires, seconds since 1970, if it was shown.
    pub(super) fn expires(&self) -> Option<i64> {
        self.expires
    }

    /// Content of the client's first message.
    pub(super) fn hello(&self) -> Hello {
        self.hello.as_deref().cloned().unwrap_or_else(|| tls::client(&self.client.message))
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.client.message.capacity() + self.server.message.capacity()
    }
}
