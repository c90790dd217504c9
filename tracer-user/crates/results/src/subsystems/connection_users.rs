//! Who logged in on the connections of servers that are one process.

use rustc_hash::FxHashMap;

/// Connections that are remembered before the older half is forgotten: a request of one that was forgotten is no user's. What is in
/// use stays.
const CONNECTIONS: usize = 16_384;

/// A user of an instance, by its place in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstanceUser {
    pub(super) instance: usize,
    pub(super) user: usize,
}

/// Users by connection, in two halves: what is used moves to the recent one.
#[derive(Debug, Default)]
pub(super) struct ConnectionUsers {
    recent: FxHashMap<u64, InstanceUser>,
    older: FxHashMap<u64, InstanceUser>,
}

impl ConnectionUsers {
    /// The connection with this cookie is this user's from now on.
    pub(super) fn log_in(&mut self, cookie: u64, user: InstanceUser) {
        if self.recent.len() >= CONNECTIONS / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(cookie, user);
    }

    /// Whose connection it is.
    pub(super) fn user(&mut self, cookie: u64) -> Option<InstanceUser> {
        if let Some(user) = self.recent.get(&cookie) {
            return Some(*user);
        }
        let user = self.older.remove(&cookie)?;
        self.log_in(cookie, user);
        Some(user)
    }

    /// The book of an instance goes on as that of `to`, with its users at these places.
    pub(super) fn merge(&mut self, instance: usize, to: usize, place: impl Fn(usize) -> usize) {
        for user in self.recent.values_mut().chain(self.older.values_mut()) {
            if user.instance == instance {
                *user = InstanceUser { instance: to, user: place(user.user) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(user: usize) -> InstanceUser {
        InstanceUser { instance: 7, user }
    }

    #[test]
    fn what_is_used_is_remembered() {
        let mut connections = ConnectionUsers::default();
        connections.log_in(0, user(1));
        connections.log_in(1, user(2));
        for cookie in 2..3 * CONNECTIONS as u64 {
            connections.log_in(cookie, user(3));
            assert_eq!(connections.user(0), Some(user(1)));
            assert!(connections.recent.len() + connections.older.len() <= CONNECTIONS);
        }
        assert_eq!(connections.user(1), None);
        connections.log_in(0, user(2));
        assert_eq!(connections.user(0), Some(user(2)), "another user logged in");
    }

    #[test]
    fn users_go_on_at_other_places() {
        let mut connections = ConnectionUsers::default();
        connections.log_in(1, user(2));
        connections.log_in(2, InstanceUser { instance: 8, user: 2 });
        connections.merge(7, 3, |place| place + 10);
        assert_eq!(connections.user(1), Some(InstanceUser { instance: 3, user: 12 }));
        assert_eq!(connections.user(2), Some(InstanceUser { instance: 8, user: 2 }));
    }
}
