//! `[protocols]`: what is recognised by its port.

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Source};

/// Maximum number of `timed_ports`: every connection is looked up in the list.
const TIMED_PORTS: usize = 16;
/// Maximum number of `dns_ports`: the kernel side compares with each.
const DNS_PORTS: usize = 2;

/// Protocols that are recognised by port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// Round trips are timed on connections with one of these ports whose protocol is unknown.
    pub timed_ports: Vec<u16>,
    /// UDP ports of name servers; two at most.
    pub dns_ports: Vec<u16>,
}

impl Default for Protocols {
    fn default() -> Self {
        Self { timed_ports: Vec::new(), dns_ports: vec![53] }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProtocolsFile {
    timed_ports: Option<Spanned<Vec<u16>>>,
    dns_ports: Option<Spanned<Vec<u16>>>,
}

impl ProtocolsFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(&self, source: &Source<'_>, settings: &mut Protocols) -> Result<(), ConfigError> {
        if let Some(ports) = &self.timed_ports {
            settings.timed_ports = source.ports(ports, TIMED_PORTS)?;
        }
        if let Some(ports) = &self.dns_ports {
            settings.dns_ports = source.ports(ports, DNS_PORTS)?;
        }
        Ok(())
    }
}
