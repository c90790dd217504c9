//! PHP-FPM with a directory and configuration of its own, and its access log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// A running PHP-FPM with one pool over TCP and one over a UNIX socket.
#[derive(Debug)]
pub struct Php {
    /// Its master process.
    pub process: Process,
    /// Where the first pool listens.
    pub address: SocketAddr,
    /// Where the second pool listens.
    pub socket: PathBuf,
    access_log: PathBuf,
}

/// One line of the access log.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Method.
    pub method: String,
    /// Script's name.
    pub script: String,
    /// Status.
    pub status: u16,
    /// Seconds.
    pub duration_s: f64,
}

/// Path of the program: its name includes the version.
pub fn program() -> Option<PathBuf> {
    let found = std::fs::read_dir("/usr/sbin").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let mut found: Vec<PathBuf> = found
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm")))
        .collect();
    found.sort();
    found.pop()
}

impl Php {
    /// Starts it in `dir`; the web server decides where scripts are.
    pub fn start(dir: &Path) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let (socket, access_log, base) = (dir.join("php.sock"), dir.join("php-access.log"), dir.display());
        let pool = |name: &str, listen: &str| {
            format!(
                "[{name}]\nuser = root\ngroup = root\nlisten = {listen}\nlisten.mode = 0666\npm = static\n\
                 pm.max_children = 4\naccess.log = {base}/php-access.log\n\
                 access.format = \"%m %r %s %{{micro}}d\"\nphp_admin_flag[log_errors] = on\n"
            )
        };
        let configuration = format!(
            "[global]\npid = {base}/php.pid\nerror_log = {base}/php-error.log\ndaemonize = no\n{}{}",
            pool("tcp", &address.to_string()),
            pool("unix", &socket.display().to_string())
        );
        let file = dir.join("php-fpm.conf");
        std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let program = program().unwrap_or_else(|| panic!("no php-fpm"));
        let mut command = Command::new(program);
        command.args(["-n", "-R", "-F", "-y"]).arg(&file);
        let mut process = Process::start("php-fpm", &mut command, &dir.join("php-fpm.log"));
        wait_for_listener(&mut process, address);
        crate::wait("PHP-FPM's socket", Duration::from_secs(20), || socket.exists().then_some(()));
        Self { process, address, socket, access_log }
    }

    /// Every line logged so far.
    pub fn served(&self) -> Vec<Served> {
        let text = std::fs::read_to_string(&self.access_log).unwrap_or_default();
        let whole = text.rfind('\n').and_then(|at| text.get(..at)).unwrap_or_default();
        whole.lines().map(|line| parse(line).unwrap_or_else(|| panic!("access log: {line}"))).collect()
    }
}

fn parse(line: &str) -> Option<Served> {
    let mut fields = line.split(' ');
    let served = Served {
        method: fields.next()?.to_owned(),
        script: fields.next()?.to_owned(),
        status: fields.next()?.parse().ok()?,
        duration_s: fields.next()?.parse::<f64>().ok()? / 1e6,
    };
    fields.next().is_none().then_some(served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log() {
        let served = parse("GET /t/a.php 404 1250").unwrap();
        assert_eq!((served.status, served.script.as_str()), (404, "/t/a.php"));
        assert!((served.duration_s - 0.00125).abs() < 1e-9);
        assert_eq!(parse("GET /t/a.php"), None);
    }
}
