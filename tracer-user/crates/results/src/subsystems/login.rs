//! Servers that may be asked for their own figures, as the operator's configuration names them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::DatabaseSystem;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a socket.
    Unix(PathBuf),
}

impl Address {
    /// `127.0.0.1:6379` or `unix:/run/redis/redis.sock`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("unix:") {
            Some(path) => Some(PathBuf::from(path)).filter(|path| path.is_absolute()).map(Self::Unix),
            None => text.parse().ok().map(Self::Tcp),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A server, and how to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLogin {
    /// What it is.
    pub system: DatabaseSystem,
    /// Where it listens.
    pub address: Address,
    /// Its name for the agent; `None`: the server's default user, which only Redis has.
    pub user: Option<String>,
    /// PostgreSQL: the database where `pg_stat_statements` is installed; `None`: `postgres`.
    pub database: Option<String>,
    /// File with the password; `None`: none is sent.
    pub password_file: Option<PathBuf>,
}
