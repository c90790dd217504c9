//! `[agent]`: where the agent is reached, and what it traces.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Source};

/// The agent itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Address of the console, metrics and the API.
    pub listen: SocketAddr,
    /// File of the token that changes need; without it nothing can be changed.
    pub token_file: Option<PathBuf>,
    /// Trace only these services, if not empty.
    pub only_services: Vec<String>,
    /// Trace only these processes, if not empty.
    pub only_pids: Vec<u32>,
    /// Trace only connections with these ports, if not empty.
    pub only_ports: Vec<u16>,
    /// Trace only sockets of the agent's own network namespace.
    pub own_netns: bool,
    /// Attach at once the hooks that otherwise wait until they are needed.
    pub all_hooks: bool,
    /// Read the file again when it changes.
    pub reload_on_change: bool,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            token_file: None,
            only_services: Vec::new(),
            only_pids: Vec::new(),
            only_ports: Vec::new(),
            own_netns: false,
            all_hooks: false,
            reload_on_change: false,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AgentFile {
    listen: Option<Spanned<String>>,
    token_file: Option<Spanned<String>>,
    services: Vec<String>,
    pids: Vec<u32>,
    ports: Vec<u16>,
    own_netns: bool,
    all_hooks: bool,
    reload_on_change: bool,
}

impl AgentFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(self, source: &Source<'_>, settings: &mut Agent) -> Result<(), ConfigError> {
        if let Some(listen) = &self.listen {
            settings.listen = listen.get_ref().parse().map_err(|_| {
                source.wrong(&listen.span(), "expected an address and a port, such as \"127.0.0.1:9464\"")
            })?;
        }
        settings.token_file = source.absolute(self.token_file)?;
        settings.only_services = self.services;
        settings.only_pids = self.pids;
        settings.only_ports = self.ports;
        settings.own_netns = self.own_netns;
        settings.all_hooks = self.all_hooks;
        settings.reload_on_change = self.reload_on_change;
        Ok(())
    }
}
