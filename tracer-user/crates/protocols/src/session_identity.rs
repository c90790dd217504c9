//! Who a connection is for.

use std::fmt;
use std::sync::Arc;

/// The user and the database that a client asks for when its connection begins. A claim, until the server has accepted it. With
/// [`super::Request::namespace`] the only values of a connection that leave a parser; its `Debug` keeps them out of logs.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionIdentity {
    /// The user.
    pub user: Box<str>,
    /// The database.
    pub database: Box<str>,
}

impl SessionIdentity {
    /// The database as the namespace of the connection's requests; `None`: none was named.
    pub(super) fn namespace(&self) -> Option<Arc<str>> {
        (!self.database.is_empty()).then(|| Arc::from(&*self.database))
    }
}

impl fmt::Debug for SessionIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionIdentity")
    }
}
