//! `[subsystems]`: whose names books of databases show, and which servers are asked for their own figures.

use serde::Deserialize;
use toml::Spanned;
use tracer_results::subsystems::login::{Address, ServerLogin};
use tracer_results::subsystems::{DatabaseSystem, Settings};

use super::{ConfigError, Source};

/// Most servers that are asked.
const SERVERS: usize = 16;

/// Books of databases.
#[derive(Clone, Debug, Default)]
pub struct Subsystems {
    /// Whose names they show.
    pub names: Settings,
    /// Database servers that are asked for their own figures.
    pub servers: Vec<ServerLogin>,
}

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
    database: Option<Spanned<String>>,
    password_file: Option<Spanned<String>>,
}

impl SubsystemsFile {
    /// Checks the section.
    pub(super) fn check(self, source: &Source<'_>) -> Result<Subsystems, ConfigError> {
        let names = Settings { users: self.users, user_metrics: self.user_metrics };
        let mut servers = Vec::new();
        if let Some(more) = self.server.get(SERVERS) {
            return Err(source.wrong(&more.span(), format!("expected at most {SERVERS} servers")));
        }
        for server in self.server {
            let whole = server.span();
            let server = server.into_inner();
            let systems = [DatabaseSystem::Redis, DatabaseSystem::PostgreSql, DatabaseSystem::MariaDb];
            let system = systems.into_iter().find(|system| system.name() == server.system.get_ref());
            let system = system.ok_or_else(|| {
                let what = "expected \"redis\", \"postgresql\" or \"mariadb\", which is MySQL as well";
                source.wrong(&server.system.span(), what)
            })?;
            if system != DatabaseSystem::Redis && server.user.is_none() {
                return Err(source.wrong(&whole, "expected a `user`: the name of the agent's role in this server"));
            }
            if let Some(database) = server.database.as_ref().filter(|_| system != DatabaseSystem::PostgreSql) {
                return Err(source.wrong(&database.span(), "only PostgreSQL is asked in a database"));
            }
            // Passwords and answers travel in the clear.
            let address = Address::parse(server.address.get_ref());
            let near = |address: &Address| !matches!(address, Address::Tcp(to) if !to.ip().is_loopback());
            let address = address.filter(near).ok_or_else(|| {
                let what = "expected \"unix:/PATH\" or a loopback address with a port, such as \"127.0.0.1:6379\"";
                source.wrong(&server.address.span(), what)
            })?;
            let password_file = source.absolute(server.password_file)?;
            let database = server.database.map(Spanned::into_inner);
            servers.push(ServerLogin { system, address, user: server.user, database, password_file });
        }
        Ok(Subsystems { names, servers })
    }
}
