//! `[subsystems]`: whose names books of databases show, and which servers are asked for their own figures.

use serde::Deserialize;
use toml::Spanned;

use super::{Config, ConfigError, Source};
use crate::subsystems::Settings;
use crate::subsystems::login::{Address, ServerLogin};

/// Most servers that are asked.
const SERVERS: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SubsystemsFile {
    users: bool,
    user_metrics: bool,
    server: Vec<Spanned<ServerFile>>,
}

impl Default for SubsystemsFile {
    fn default() -> Self {
        let Settings { users, user_metrics } = Settings::default();
        Self { users, user_metrics, server: Vec::new() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerFile {
    system: Spanned<String>,
    address: Spanned<String>,
    user: Option<String>,
    password_file: Option<Spanned<String>>,
}

impl SubsystemsFile {
    pub(super) fn apply(self, source: &Source<'_>, config: &mut Config) -> Result<(), ConfigError> {
        config.subsystems = Settings { users: self.users, user_metrics: self.user_metrics };
        if let Some(more) = self.server.get(SERVERS) {
            return Err(source.wrong(&more.span(), format!("expected at most {SERVERS} servers")));
        }
        for server in self.server {
            let server = server.into_inner();
            if server.system.get_ref() != "redis" {
                return Err(source.wrong(&server.system.span(), "expected \"redis\""));
            }
            // Passwords travel in the clear.
            let address = Address::parse(server.address.get_ref());
            let near = |address: &Address| !matches!(address, Address::Tcp(to) if !to.ip().is_loopback());
            let address = address.filter(near).ok_or_else(|| {
                let what = "expected \"unix:/PATH\" or a loopback address with a port, such as \"127.0.0.1:6379\"";
                source.wrong(&server.address.span(), what)
            })?;
            let password_file = source.absolute(server.password_file)?;
            config.database_logins.push(ServerLogin { address, user: server.user, password_file });
        }
        Ok(())
    }
}
