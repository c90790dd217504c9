//! The subjects a connection subscribes to: a publication with one of them as reply subject is a request.

use super::hash;

/// Subscriptions remembered; beyond it the oldest is forgotten and the usual inbox prefix decides.
const LIMIT: usize = 24;
/// Inbox prefix that client libraries use.
pub(super) const USUAL: &[u8] = b"_INBOX.";

/// Known subscriptions of a connection.
#[derive(Debug)]
pub(super) struct Inboxes {
    /// Hash of each subject, or of the part before its first wildcard; the lowest bit tells which.
    known: Vec<u64>,
    /// Some subscriptions were missed or forgotten.
    partial: bool,
}

fn entry(subject: &[u8], wild: bool) -> u64 {
    hash(subject) & !1 | u64::from(wild)
}

impl Inboxes {
    pub(super) fn new(joined: bool) -> Self {
        Self { known: Vec::new(), partial: joined }
    }

    /// Notes that the connection subscribes to `subject`.
    pub(super) fn listen(&mut self, subject: &[u8]) {
        let wild = subject.iter().position(|byte| matches!(byte, b'*' | b'>'));
        // A client that subscribes to everything expects no particular answer.
        if wild == Some(0) {
            return;
        }
        let entry = entry(subject.get(..wild.unwrap_or(subject.len())).unwrap_or_default(), wild.is_some());
        if self.known.contains(&entry) {
            return;
        }
        if self.known.len() >= LIMIT {
            self.known.remove(0);
            self.partial = true;
        }
        self.known.push(entry);
    }

    /// Whether an answer to `reply` comes to this connection.
    pub(super) fn take(&self, reply: &[u8]) -> bool {
        if self.partial && reply.starts_with(USUAL) {
            return true;
        }
        if self.known.is_empty() {
            return false;
        }
        let prefixes = reply.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at + 1);
        self.known.contains(&entry(reply, false))
            || prefixes.take(16).any(|end| self.known.contains(&entry(reply.get(..end).unwrap_or_default(), true)))
    }

    /// Notes that subscriptions may have been missed.
    pub(super) fn miss(&mut self) {
        self.partial = true;
    }

    /// The connection goes idle: shrink kept state.
    pub(super) fn rest(&mut self) {
        self.known.shrink_to_fit();
    }

    pub(super) fn bytes(&self) -> usize {
        self.known.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_where_somebody_listens() {
        let mut inboxes = Inboxes::new(false);
        for subject in [&b"_INBOX.abc.*"[..], b"exact.one", b">", b"deep.>"] {
            inboxes.listen(subject);
        }
        for (reply, taken) in [
            (&b"_INBOX.abc.1"[..], true),
            (b"_INBOX.other.1", false),
            (b"exact.one", true),
            (b"exact.one.more", false),
            (b"deep.er.still", true),
            (b"nobody", false),
        ] {
            assert_eq!(inboxes.take(reply), taken, "{}", String::from_utf8_lossy(reply));
        }
        for i in 0..LIMIT {
            inboxes.listen(format!("a{i}").as_bytes());
        }
        assert!(!inboxes.take(b"exact.one") && inboxes.take(b"_INBOX.other.1"));
    }
}
