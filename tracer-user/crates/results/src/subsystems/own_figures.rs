//! What servers say of themselves, to stand beside what the agent measured: Redis' `INFO`, PostgreSQL's `pg_stat_statements` and
//! `pg_stat_activity`, MariaDB's `performance_schema`.

use super::DatabaseSystem;

/// Commands of a server that are kept apart.
const COMMANDS: usize = 200;
/// Longest name of a command, characters.
const NAME: usize = 40;
/// Users with databases that are kept apart.
const USERS: usize = 400;
/// Longest name of a user or database, characters: PostgreSQL's is 63, MariaDB's 80 for users.
const USER_NAME: usize = 80;

/// A server's own figures, since it started or was asked to begin anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFigures {
    /// What it is.
    pub system: DatabaseSystem,
    /// Its first process; 0: not known.
    pub pid: u32,
    /// CPU of the process, nanoseconds; `None`: it does not count that.
    pub cpu: Option<u64>,
    /// By command, the one with the most time first.
    pub commands: Vec<OwnCommand>,
    /// By user and database.
    pub users: Vec<OwnUser>,
}

impl OwnFigures {
    /// A server of which nothing else is known yet.
    pub fn new(system: DatabaseSystem, pid: u32) -> Self {
        Self { system, pid, cpu: None, commands: Vec::new(), users: Vec::new() }
    }

    /// A user with a database, made at first sight; `None`: there are too many.
    pub fn user(&mut self, user: &str, database: &str) -> Option<&mut OwnUser> {
        let [user, database] = [user, database]
            .map(|name| tracer_model::text::printable(name).chars().take(USER_NAME).collect::<String>());
        let known = self.users.iter().position(|known| known.user == user && known.database == database);
        let at = known.unwrap_or(self.users.len());
        if at == USERS {
            return None;
        }
        if known.is_none() {
            self.users.push(OwnUser { user, database, ..OwnUser::default() });
        }
        self.users.get_mut(at)
    }

    /// Keeps the commands with the most time, that with most first.
    pub fn rank_commands(&mut self) {
        self.commands.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        self.commands.truncate(COMMANDS);
    }
}

/// Sessions and statements of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnUser {
    /// Its name.
    pub user: String,
    /// The database; empty where the server does not tell them apart.
    pub database: String,
    /// Sessions now, without the agent's.
    pub sessions: u64,
    /// Statements so far; `None`: they are not counted.
    pub statements: Option<u64>,
    /// Time in them, waiting included, nanoseconds.
    pub time: Option<u64>,
}

/// Executions of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnCommand {
    /// Upper case; a subcommand follows a blank.
    pub name: String,
    /// How often.
    pub calls: u64,
    /// Time in them, nanoseconds.
    pub time: u64,
}

impl OwnCommand {
    /// By its name in any case.
    pub fn new(name: &str, calls: u64, time: u64) -> Self {
        let name = tracer_model::text::printable(&name.to_ascii_uppercase()).chars().take(NAME).collect();
        Self { name, calls, time }
    }
}

/// Reads the sections `server`, `cpu` and `commandstats` of Redis' `INFO`; `None` without process or CPU.
pub fn redis(info: &str) -> Option<OwnFigures> {
    let (mut pid, mut user, mut system, mut commands) = (None, None, None, Vec::new());
    for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
        match name {
            "process_id" => pid = value.parse().ok(),
            "used_cpu_user" => user = nanos(value, 1e9),
            "used_cpu_sys" => system = nanos(value, 1e9),
            _ => {
                let Some(name) = name.strip_prefix("cmdstat_") else { continue };
                if let Some(command) = command(name, value) {
                    commands.push(command);
                }
            }
        }
    }
    let cpu = Some(user?.saturating_add(system?));
    let mut figures = OwnFigures { cpu, commands, ..OwnFigures::new(DatabaseSystem::Redis, pid?) };
    figures.rank_commands();
    Some(figures)
}

/// `calls=400,usec=812345,usec_per_call=2030.86,…` of the command `name`.
fn command(name: &str, value: &str) -> Option<OwnCommand> {
    let field = |wanted: &str| value.split(',').find_map(|field| field.strip_prefix(wanted)?.strip_prefix('='));
    Some(OwnCommand::new(&name.replace('|', " "), field("calls")?.parse().ok()?, nanos(field("usec")?, 1e3)?))
}

/// A number of units of `each` nanoseconds; `None` unless it is one that time can have.
fn nanos(value: &str, each: f64) -> Option<u64> {
    let value: f64 = value.parse().ok()?;
    (0.0..1e12).contains(&value).then_some((value * each) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn redis_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nprocess_id:4242\r\n# CPU\r\nused_cpu_sys:0.500000\r\n\
                    used_cpu_user:1.250000\r\nused_cpu_user_main_thread:1.0\r\n# Commandstats\r\n\
                    cmdstat_get:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n\
                    cmdstat_config|get:calls=1,usec=25,usec_per_call=25.00\r\ncmdstat_bad:calls=x\r\n";
        let command = |name: &str, calls, time| OwnCommand { name: name.into(), calls, time };
        let expected = OwnFigures {
            cpu: Some(1_750_000_000),
            commands: vec![command("CONFIG GET", 1, 25_000), command("GET", 2, 10_000)],
            ..OwnFigures::new(DatabaseSystem::Redis, 4242)
        };
        assert_eq!(redis(info), Some(expected));
        assert_eq!(redis("process_id:1\r\nused_cpu_sys:1\r\n"), None);
        assert_eq!(redis("process_id:1\r\nused_cpu_sys:NaN\r\nused_cpu_user:-1\r\n"), None);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(info in "(.{0,40}:.{0,40}\n){0,8}") {
            let _ = redis(&info);
        }
    }
}
