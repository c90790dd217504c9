//! Reports to the service manager that started the agent (systemd, `Type=notify`): datagrams to `$NOTIFY_SOCKET`, as
//! sd_notify(3) describes them. Without the variable nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager, if one wants reports.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Whether it wants to hear that the agent lives (`$WATCHDOG_USEC`).
    watchdog: bool,
}

impl ServiceManager {
    /// The one the environment names. A name that cannot be used is logged: the manager will say that the agent never
    /// became ready, and this is why.
    pub fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let watchdog = wants_watchdog(
            std::env::var("WATCHDOG_USEC").ok().as_deref(),
            std::env::var("WATCHDOG_PID").ok().as_deref(),
            std::process::id(),
        );
        match connect(&name) {
            Ok(socket) => Self { socket: Some(socket), watchdog },
            Err(error) => {
                log::warn!("NOTIFY_SOCKET={}: {error}; the service manager gets no reports", name.display());
                Self::default()
            }
        }
    }

    /// Start-up is over: programs are attached and HTTP is served. `status` is one line for people.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", status.replace('\n', "; ")));
    }

    /// The pipeline moves.
    pub fn alive(&self) {
        if self.watchdog {
            self.send("WATCHDOG=1");
        }
    }

    /// The agent ends because it was asked to.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, state: &str) {
        let Some(socket) = &self.socket else { return };
        // The socket does not block: a manager that does not read must not hold up the pipeline.
        if let Err(error) = socket.send(state.as_bytes()) {
            log::debug!("a report to the service manager: {error}");
        }
    }
}

/// A path, or a name without a file where it begins with `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "expected a path or a name that begins with @")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether reports of life are wanted, and of this process: the variables outlive a fork.
fn wants_watchdog(usec: Option<&str>, pid: Option<&str>, own: u32) -> bool {
    usec.and_then(|usec| usec.parse::<u64>().ok()).is_some_and(|usec| usec > 0)
        && pid.is_none_or(|pid| pid.parse() == Ok(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = listener.recv(&mut bytes).expect("a datagram");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn reports_arrive_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let name = format!("tracer-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).expect("an address");
        let listeners = [
            (UnixDatagram::bind(&path).expect("a socket"), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_address).expect("a socket"), format!("@{name}").into()),
        ];
        for (listener, name) in listeners {
            let manager = ServiceManager { socket: Some(connect(&name).expect("connected")), watchdog: true };
            manager.ready("two\nlines");
            manager.alive();
            manager.stopping();
            assert_eq!(received(&listener), "READY=1\nSTATUS=two; lines");
            assert_eq!(received(&listener), "WATCHDOG=1");
            assert_eq!(received(&listener), "STOPPING=1");
        }
        assert!(connect(OsStr::new("vsock:2:1")).is_err());
    }

    #[test]
    fn the_watchdog_is_wanted_for_this_process_only() {
        assert!(wants_watchdog(Some("60000000"), None, 7) && wants_watchdog(Some("1"), Some("7"), 7));
        assert!(!wants_watchdog(Some("1"), Some("8"), 7));
        assert!(!wants_watchdog(None, Some("7"), 7) && !wants_watchdog(Some("0"), None, 7));
    }
}
