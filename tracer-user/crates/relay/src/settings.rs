//! The relay's settings, including how agents authenticate each other.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tracer_host::files;

use super::bounds::Policy;
use super::channel::Secret;
use super::tls::Identity;

/// Longest file with a key, bytes.
const FILE: u64 = 4096;
/// Port of other agents where none is named.
pub const PORT: u16 = 9465;

/// How agents authenticate each other.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Not at all: any peer is taken for an agent.
    Anybody,
    /// A key all agents share.
    Key(Secret),
    /// A certificate for each agent.
    Certificates(Arc<Identity>),
}

impl Trust {
    /// Whether agents are not authenticated.
    pub fn is_blind(&self) -> bool {
        matches!(self, Self::Anybody)
    }
}

/// Settings of the relay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where other agents reach this one; `None`: they do not.
    pub listen: Option<SocketAddr>,
    /// Agents that receive the contexts of every call: `HOST:PORT`.
    pub peers: Vec<String>,
    /// Discover agents at the private addresses that this host's programs call.
    pub discover: bool,
    /// Port of discovered agents.
    pub port: u16,
    /// The NATS server where agents meet instead of dialling each other; includes user and password.
    pub nats: Option<String>,
    /// How agents authenticate each other.
    pub trust: Trust,
    /// Allow agents beyond loopback without a key or certificates.
    pub insecure: bool,
    /// Which connections agents may report on.
    pub policy: Policy,
    /// This host forwards packets of other hosts.
    pub forwards: bool,
}

/// Whether this host forwards packets of other hosts, in this thread's network namespace.
pub fn forwards() -> bool {
    let is_on = |file| std::fs::read_to_string(file).is_ok_and(|text| text.trim() != "0");
    is_on("/proc/sys/net/ipv4/ip_forward") || is_on("/proc/sys/net/ipv6/conf/all/forwarding")
}

impl Settings {
    /// Checks the settings; the error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if !self.trust.is_blind() || self.insecure {
            return Ok(());
        }
        if self.nats.is_some() {
            return Err("agents that meet at a NATS server need a key (relay.key_file, --relay-key) or certificates \
                        (relay.cert_file, --relay-cert), which the server does not have; or say relay.insecure = true \
                        where whoever may publish there may be believed"
                .into());
        }
        match self.listen {
            Some(address) if !address.ip().is_loopback() => Err(format!(
                "the relay would listen on {address} without a key: whoever reaches it could name parents of requests; \
                 give a file with a key (relay.key_file, --relay-key) or certificates (relay.cert_file, --relay-cert), or \
                 say relay.insecure = true on a network of your own"
            )),
            _ => Ok(()),
        }
    }
}

impl Secret {
    /// Reads a key: 64 hexadecimal digits in a file that only its owner can read.
    pub fn read(path: &Path) -> io::Result<Self> {
        let wrong = |what: String| io::Error::other(format!("{}: {what}", path.display()));
        let text = files::read_secret(path, FILE).map_err(|error| wrong(error.to_string()))?;
        Self::parse(text.trim()).ok_or_else(|| {
            wrong("expected a key of 64 hexadecimal digits, such as `openssl rand -hex 32` makes".into())
        })
    }

    fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut key = [0; 32];
        for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
            let digits = text.get(at..at + 2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_read_and_kept_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for (text, mode, fits) in [
            ("0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef\n", 0o600, true),
            ("0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef", 0o644, false),
            ("0123", 0o600, false),
            (&"é".repeat(32), 0o600, false),
            (&"+1".repeat(32), 0o600, false),
        ] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Secret::read(&path).is_ok(), fits, "{text:?} {mode:o}");
        }
        assert_eq!(format!("{:?}", Secret([7; 32])), "Secret(…)", "keys are not printed");
    }

    #[test]
    fn no_key_no_network() {
        let settings = |listen: &str, insecure| Settings {
            listen: Some(listen.parse().unwrap()),
            peers: Vec::new(),
            discover: false,
            port: PORT,
            nats: None,
            trust: Trust::Anybody,
            insecure,
            policy: Policy::default(),
            forwards: false,
        };
        assert!(settings("127.0.0.1:1", false).check().is_ok());
        assert!(settings("0.0.0.0:1", false).check().unwrap_err().contains("without a key"));
        let met = |insecure| Settings { nats: Some("nats://a:1".into()), ..settings("127.0.0.1:1", insecure) }.check();
        assert!(met(false).unwrap_err().contains("--relay-key") && met(true).is_ok());
        assert!(settings("0.0.0.0:1", true).check().is_ok());
        assert!(Settings { trust: Trust::Key(Secret([0; 32])), ..settings("0.0.0.0:1", false) }.check().is_ok());
    }
}
