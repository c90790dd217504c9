//! MariaDB in a directory of its own, logging each statement and its duration.

use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// The server's user; it has no privileges.
const USER: &str = "nobody";
/// The password of its user `planted_user`.
pub const PASSWORD: &str = "planted-password";

/// A running server.
#[derive(Debug)]
pub struct MariaDb {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    data: PathBuf,
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{command:?}: {}{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

impl MariaDb {
    /// Makes a data directory in `dir` and starts the server.
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[])
    }

    /// The same with additional settings.
    pub fn start_with(dir: &Path, settings: &[&str]) -> Self {
        let find = |name: &str| crate::find(name).unwrap_or_else(|| panic!("no {name}"));
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let data = dir.join("data");
        let ok = |result: std::io::Result<()>| result.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        ok(std::fs::create_dir(&data));
        let uid =
            run(Command::new("id").args(["-u", USER])).trim().parse().unwrap_or_else(|error| panic!("id: {error}"));
        ok(chown(&data, Some(uid), None));
        ok(std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711)));
        let init = dir.join("init.sql");
        ok(std::fs::write(
            &init,
            format!(
                "CREATE USER 'planted_user'@'%' IDENTIFIED BY '{PASSWORD}';\n\
                 GRANT ALL ON *.* TO 'planted_user'@'%';\nCREATE DATABASE planted_db;\n"
            ),
        ));
        let mut install = Command::new(find("mariadb-install-db"));
        install.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
        run(install.arg(format!("--user={USER}")).arg(format!("--datadir={}", data.display())));
        let mut command = Command::new(find("mariadbd"));
        command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve", "--local-infile=1"]);
        command.args(["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-method=nosync"]);
        command.args(["--general-log=1", "--general-log-file=all.log", "--slow-query-log=1", "--long-query-time=0"]);
        command.args(["--slow-query-log-file=slow.log", "--innodb-flush-log-at-trx-commit=0"]);
        command.arg(format!("--user={USER}")).arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", data.join("socket").display())).arg(format!("--port={}", address.port()));
        command
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--pid-file={}", data.join("pid").display()))
            .args(settings);
        let mut process = Process::start("mariadbd", &mut command, &dir.join("mariadbd.log"));
        wait_for_listener(&mut process, address);
        Self { process, address, data }
    }

    /// Its UNIX socket.
    pub fn socket(&self) -> PathBuf {
        self.data.join("socket")
    }

    /// The client, configured for the server.
    pub fn client(&self) -> Command {
        self.client_by(self.address)
    }

    /// The client, configured for another address of the server.
    pub fn client_by(&self, address: SocketAddr) -> Command {
        let mut command = Command::new(crate::find("mariadb").unwrap_or_else(|| panic!("no mariadb")));
        command.args(["--no-defaults", "--comments", "--protocol=tcp", "--host=127.0.0.1", "--user=planted_user"]);
        command.arg(format!("--port={}", address.port())).arg(format!("--password={PASSWORD}")).arg("planted_db");
        command
    }

    /// Texts of the statements received so far, from the general log: as text, or executed after PREPARE.
    pub fn sent(&self) -> Vec<String> {
        let path = self.data.join("all.log");
        let text = String::from_utf8_lossy(
            &std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        )
        .into_owned();
        let statement = |line: &str| {
            let (front, sql) = line.rsplit_once("Query\t").or_else(|| line.rsplit_once("Execute\t"))?;
            front.trim_end().ends_with(|last: char| last.is_ascii_digit()).then(|| sql.to_owned())
        };
        text.lines().filter_map(statement).collect()
    }

    /// Statements and their durations, seconds, from the slow query log.
    pub fn times(&self) -> Vec<(String, f64)> {
        let path = self.data.join("slow.log");
        let text = String::from_utf8_lossy(
            &std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        )
        .into_owned();
        let mut seconds = 0.0;
        let mut times = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# Query_time: ") {
                seconds = rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default();
            } else if !line.starts_with('#') && !line.starts_with("SET timestamp=") {
                times.push((line.to_owned(), seconds));
            }
        }
        times
    }
}
