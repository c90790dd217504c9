//! PostgreSQL in a directory of our own, for the demo and the benchmark.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

/// PostgreSQL refuses to run as root; this user has no privileges.
const USER: &str = "nobody";

/// A new cluster, and the programs that made it.
pub(crate) struct Cluster {
    /// Where the programs are.
    pub(crate) programs: PathBuf,
    data: PathBuf,
    /// Command prefix that runs a program as another user.
    become_user: Vec<String>,
    /// Command prefix before that, which runs it on another host.
    enter: Vec<String>,
}

impl Cluster {
    /// Creates one in `dir` whose only user `user` needs no password.
    pub(crate) fn create(dir: &Path, user: &str) -> Result<Self> {
        let programs = programs().context("PostgreSQL's programs are not installed; run `cargo xtask setup`")?;
        let data = dir.join("data");
        fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;
        let mut become_user = Vec::new();
        if shell::is_root() {
            let uid = shell::output(Command::new("id").args(["-u", USER]))?.trim().parse().context("no user id")?;
            chown(&data, Some(uid), None).with_context(|| format!("cannot give {} away", data.display()))?;
            reachable(dir)?;
            let setpriv = shell::find("setpriv").context("setpriv is not installed")?;
            become_user =
                [&setpriv.display().to_string(), "--reuid", USER, "--clear-groups"].map(str::to_owned).to_vec();
        }
        let cluster = Self { programs, data, become_user, enter: Vec::new() };
        let mut words = cluster.words("initdb");
        words.extend(["-U", user, "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale"].map(str::to_owned));
        let (program, arguments) = words.split_first().context("no program")?;
        shell::output(Command::new(program).args(arguments).current_dir("/"))?;
        Ok(cluster)
    }

    /// The same cluster, run behind the command prefix `enter`.
    pub(crate) fn on(self, enter: Vec<String>) -> Self {
        Self { enter, ..self }
    }

    /// Admits clients at addresses of `network` without a password. Call it before starting the server.
    pub(crate) fn admit(&self, network: &str) -> Result<()> {
        let path = self.data.join("pg_hba.conf");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // The first matching line counts; no other line is for this network.
        fs::write(&path, format!("{text}host all all {network} trust\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Starts the server; see [`Self::is_ready`].
    pub(crate) fn start(&self, address: SocketAddr, log: &Path) -> Result<SupervisedChild> {
        let (port, socket) = (address.port().to_string(), self.data.display().to_string());
        let host = address.ip().to_string();
        let mut words = self.words("postgres");
        let options = ["-h", &host, "-p", &port, "-k", &socket, "-c", "fsync=off", "-c", "autovacuum=off"];
        words.extend(options.map(str::to_owned));
        let (program, arguments) = words.split_first().context("no program")?;
        SupervisedChild::start(Root::Already, Path::new(program), arguments, &[], log)
    }

    /// Whether the server at `address` accepts connections.
    pub(crate) fn is_ready(&self, address: SocketAddr) -> bool {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let program = self.programs.join("pg_isready").display().to_string();
        let own = [&program, "-q", "-h", &host, "-p", &port].map(str::to_owned);
        let words: Vec<String> = self.enter.iter().cloned().chain(own).collect();
        words.split_first().is_some_and(|(first, rest)| shell::ask(first, rest).is_some())
    }

    /// Command words for a program of the server with the cluster's directory.
    fn words(&self, program: &str) -> Vec<String> {
        let program = self.programs.join(program).display().to_string();
        let own = [program, "-D".to_owned(), self.data.display().to_string()];
        self.enter.iter().chain(&self.become_user).cloned().chain(own).collect()
    }
}

/// The newest installed PostgreSQL's programs.
fn programs() -> Option<PathBuf> {
    let version = |path: &PathBuf| path.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let dirs = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let bins = dirs.map(|entry| entry.path().join("bin"));
    let complete = |bin: &PathBuf| ["initdb", "postgres", "pgbench"].iter().all(|name| bin.join(name).is_file());
    let newest = bins.filter(complete).max_by_key(version);
    newest.or_else(|| shell::find("initdb")?.parent().map(Path::to_path_buf).filter(complete))
}

/// Lets the server's user traverse our directories that only root may enter.
fn reachable(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let own = std::env::temp_dir();
    for dir in dir.ancestors().take_while(|dir| *dir != own && dir.starts_with(&own)) {
        let mode = fs::metadata(dir).map(|facts| facts.permissions().mode());
        let mode = mode.with_context(|| format!("cannot look at {}", dir.display()))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o111))
            .with_context(|| format!("cannot open {} for the server", dir.display()))?;
    }
    Ok(())
}
