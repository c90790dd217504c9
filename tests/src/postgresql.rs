//! PostgreSQL in a directory of its own, logging each statement with its duration: the server's own account.

use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// PostgreSQL refuses to run as root; this user has no privileges.
const USER: &str = "nobody";
/// The password of its only user, `planted_user`.
pub const PASSWORD: &str = "planted-password";

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    /// Its first process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// Directory of its UNIX socket, and of its data.
    pub data: PathBuf,
    programs: PathBuf,
}

/// A log entry about one client message.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The process that served it.
    pub pid: u32,
    /// `statement`, `execute`, `parse`, `bind`, `fastpath function call`, `connection`.
    pub step: String,
    /// The text of the query.
    pub sql: String,
    /// Seconds; `None` if it failed.
    pub duration_s: Option<f64>,
    /// SQLSTATE of its error.
    pub error: Option<String>,
}

/// The newest installed PostgreSQL's programs.
pub fn programs() -> Option<PathBuf> {
    let version = |path: &PathBuf| path.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let dirs = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let bins = dirs.map(|entry| entry.path().join("bin"));
    let complete =
        |bin: &PathBuf| ["initdb", "postgres", "pgbench", "psql"].iter().all(|name| bin.join(name).is_file());
    bins.filter(complete).max_by_key(version)
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{command:?}: {}{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

impl Postgres {
    /// Makes a cluster in `dir` and starts it; it requires passwords (SCRAM).
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[])
    }

    /// The same with further settings.
    pub fn start_with(dir: &Path, settings: &[String]) -> Self {
        Self::start_with_libraries(dir, settings, None)
    }

    /// The same; it finds libraries in the directory `libraries` first.
    pub fn start_with_libraries(dir: &Path, settings: &[String], libraries: Option<&Path>) -> Self {
        let programs = programs().unwrap_or_else(|| panic!("no PostgreSQL"));
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let data = dir.join("data");
        let password = dir.join("password");
        let ok = |result: std::io::Result<()>| result.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        ok(std::fs::create_dir(&data));
        ok(std::fs::write(&password, PASSWORD));
        let uid =
            run(Command::new("id").args(["-u", USER])).trim().parse().unwrap_or_else(|error| panic!("id: {error}"));
        ok(chown(&data, Some(uid), None));
        ok(chown(&password, Some(uid), None));
        ok(std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711)));
        let own = ["--reuid", USER, "--clear-groups"];
        let mut init = Command::new("setpriv");
        init.args(own).arg(programs.join("initdb")).arg("-D").arg(&data).arg("--pwfile").arg(&password);
        run(init.args(["-U", "planted_user", "-A", "scram-sha-256", "--no-sync", "--no-locale"]).current_dir("/"));
        let mut command = Command::new("setpriv");
        command.args(own).arg(programs.join("postgres")).arg("-D").arg(&data).arg("-k").arg(&data).current_dir("/");
        command.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
        for setting in [
            "fsync=off",
            "autovacuum=off",
            "logging_collector=on",
            "log_destination=jsonlog",
            "log_directory=log",
            "log_filename=all.log",
            "log_min_duration_statement=0",
            "log_connections=on",
            "max_wal_senders=4",
            "wal_level=logical",
        ] {
            command.args(["-c", setting]);
        }
        for setting in settings {
            command.args(["-c", setting]);
        }
        if let Some(libraries) = libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        let mut process = Process::start("postgres", &mut command, &dir.join("postgres.log"));
        wait_for_listener(&mut process, address);
        let server = Self { process, address, data, programs };
        crate::wait("the server's recovery", std::time::Duration::from_secs(30), || {
            server.psql().args(["-c", "select 1"]).output().ok()?.status.success().then_some(())
        });
        server
    }

    /// One of its programs, configured to connect to it over TCP.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        self.tell(&mut command);
        command
    }

    /// Sets a client's environment to connect to the server.
    pub fn tell(&self, command: &mut Command) {
        command.env("PGHOST", "127.0.0.1").env("PGPORT", self.address.port().to_string());
        command.env("PGUSER", "planted_user").env("PGPASSWORD", PASSWORD).env("PGDATABASE", "postgres");
    }

    /// psql without files of its own.
    pub fn psql(&self) -> Command {
        let mut command = self.program("psql");
        command.args(["-X", "-q"]);
        command
    }

    /// Its log so far, in order.
    pub fn log(&self) -> Vec<Logged> {
        let path = self.data.join("log/all.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.lines().filter_map(|line| logged(&serde_json::from_str(line).ok()?)).collect()
    }
}

/// Parses one entry of the log.
fn logged(entry: &Value) -> Option<Logged> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let pid = entry.get("pid")?.as_u64()? as u32;
    let message = text("message")?;
    if matches!(text("error_severity"), Some("ERROR" | "FATAL")) {
        let (sql, error) = (text("statement").unwrap_or_default().to_owned(), text("state_code").map(str::to_owned));
        return Some(Logged { pid, step: "error".into(), sql, duration_s: None, error });
    }
    if message.starts_with("connection authorized") {
        return Some(Logged { pid, step: "connection".into(), sql: String::new(), duration_s: None, error: None });
    }
    let (millis, rest) = message.strip_prefix("duration: ")?.split_once(" ms")?;
    let (step, sql) = rest.trim_start().split_once(": ")?;
    // `execute <unnamed>`, `parse name`.
    let step = step.split(' ').next()?.to_owned();
    Some(Logged {
        pid,
        step,
        sql: sql.to_owned(),
        duration_s: millis.parse::<f64>().ok().map(|ms| ms / 1e3),
        error: None,
    })
}
