//! Asks the database servers that `[[subsystems.server]]` names for their own figures, on a thread of its own: a connection,
//! a login, a few questions, every 15 seconds. No other server is ever connected to.

mod connection;
mod mariadb;
mod postgresql;
mod redis;

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use tracer_host::files;
use tracer_results::subsystems::DatabaseSystem;
use tracer_results::subsystems::login::ServerLogin;
use tracer_results::subsystems::own_figures::OwnFigures;

use self::connection::Connection;

/// Between two questions to a server.
const EVERY: Duration = Duration::from_secs(15);
/// Longest password, bytes.
const PASSWORD: u64 = 4096;
/// Most rows of an answer: users with databases, or commands.
const ROWS: usize = 200;

/// What servers reported of themselves.
#[derive(Debug)]
pub(super) struct DatabaseFigures {
    read: Receiver<OwnFigures>,
    /// Dropped, it ends the thread.
    _alive: std::sync::mpsc::Sender<()>,
}

impl DatabaseFigures {
    /// Starts the thread; `None` without a server to ask.
    pub(super) fn start(logins: &[ServerLogin]) -> io::Result<Option<Self>> {
        if logins.is_empty() {
            return Ok(None);
        }
        let (send, read) = sync_channel(logins.len());
        let (alive, ended) = channel();
        let mut servers: Vec<_> = logins.iter().cloned().map(|login| (login, None)).collect();
        std::thread::Builder::new().name("tracer-databases".into()).spawn(move || {
            loop {
                if !ask_all(&mut servers, &send) || ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Some(Self { read, _alive: alive }))
    }

    /// What was read since the last call.
    pub(super) fn take(&self) -> impl Iterator<Item = OwnFigures> + '_ {
        self.read.try_iter()
    }
}

/// Asks each server once; reports a failure when it is another than before. False: the agent ends.
fn ask_all(servers: &mut [(ServerLogin, Option<String>)], send: &SyncSender<OwnFigures>) -> bool {
    for (login, failure) in servers {
        let failed = match ask(login) {
            Ok(figures) => match send.try_send(figures) {
                // The pipeline is late; newer figures follow.
                Ok(()) | Err(TrySendError::Full(_)) => None,
                Err(TrySendError::Disconnected(_)) => return false,
            },
            Err(error) => Some(error.to_string()),
        };
        match &failed {
            Some(why) if *failure != failed => log::warn!("[[subsystems.server]] {}: {why}", login.address),
            None if failure.is_some() => log::info!("[[subsystems.server]] {} answers again", login.address),
            _ => {}
        }
        *failure = failed;
    }
    true
}

fn ask(login: &ServerLogin) -> io::Result<OwnFigures> {
    let password = login.password_file.as_deref().map(|path| files::read_secret(path, PASSWORD)).transpose()?;
    let password = password.as_deref().map(|text| text.trim_end_matches(['\r', '\n']));
    let mut connection = Connection::open(&login.address)?;
    match login.system {
        DatabaseSystem::Redis => redis::ask(&mut connection, login.user.as_deref(), password),
        DatabaseSystem::PostgreSql => postgresql::ask(&mut connection, login, password),
        DatabaseSystem::MariaDb => mariadb::ask(&mut connection, login, password),
    }
}

/// The server did not answer in its protocol.
fn unexpected(system: DatabaseSystem) -> io::Error {
    let name = match system {
        DatabaseSystem::PostgreSql => "PostgreSQL",
        DatabaseSystem::MariaDb => "MariaDB",
        DatabaseSystem::Redis => "Redis",
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("it does not answer as {name} does"))
}
