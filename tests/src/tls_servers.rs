//! Servers that speak TLS, each in a directory of its own; `certificate` makes their certificates.

use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::outcome;
use crate::postgresql::{Postgres, programs};
use crate::process::Process;
use crate::tls::certificate;
use crate::workload::wait_for_listener;
use crate::{find, free_port};

fn started(name: &str, command: &mut Command, dir: &Path, port: u16) -> Process {
    command.env("OTEL_SERVICE_NAME", name);
    let mut process = Process::start(name, command, &dir.join(format!("{name}.log")));
    wait_for_listener(&mut process, SocketAddr::from(([127, 0, 0, 1], port)));
    process
}

fn program(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| panic!("{name} is not installed: cargo xtask setup")))
}

/// PostgreSQL that offers TLS.
pub fn postgresql(dir: &Path) -> Postgres {
    postgresql_by(dir, None)
}

/// The same, with libraries of its own.
pub fn postgresql_with_libraries(dir: &Path, libraries: &Path) -> Postgres {
    postgresql_by(dir, Some(libraries))
}

fn postgresql_by(dir: &Path, libraries: Option<&Path>) -> Postgres {
    assert!(programs().is_some(), "PostgreSQL is not installed: cargo xtask setup");
    let (certificate, key) = certificate(dir);
    let user = outcome(Command::new("id").args(["-u", "nobody"]), "id").out;
    let user = user.trim().parse().unwrap_or_else(|error| panic!("{user}: {error}"));
    for (file, mode) in [(&certificate, 0o644), (&key, 0o600)] {
        let done = chown(file, Some(user), None)
            .and_then(|()| std::fs::set_permissions(file, PermissionsExt::from_mode(mode)));
        done.unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    let settings = [format!("ssl_cert_file={certificate}"), format!("ssl_key_file={key}"), "ssl=on".to_owned()];
    Postgres::start_with_libraries(dir, &settings, libraries)
}

/// Redis that listens with TLS only, and its port.
pub fn redis(dir: &Path) -> (Process, u16) {
    let (certificate, key) = certificate(dir);
    let port = free_port();
    let mut command = program("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", "0", "--tls-port", &port.to_string()]);
    command.args(["--save", "", "--appendonly", "no"]);
    command.args(["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &certificate]);
    command.args(["--tls-auth-clients", "no", "--dir"]).arg(dir);
    (started("redis", &mut command, dir, port), port)
}

/// HAProxy that decrypts and encrypts again, for the server on port `back`; its port.
pub fn haproxy(dir: &Path, back: u16) -> (Process, u16) {
    let (certificate, key) = certificate(dir);
    let port = free_port();
    let both = dir.join("both.pem");
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    write(&both, read(&certificate) + &read(&key));
    let configuration = dir.join("haproxy.cfg");
    let text = format!(
        "global\n  nbthread 2\ndefaults\n  mode http\n  timeout connect 20s\n  timeout client 60s\n  timeout server 60s\n\
         listen both\n  bind 127.0.0.1:{port} ssl crt {} alpn h2,http/1.1\n  server one 127.0.0.1:{back} ssl verify none\n",
        both.display()
    );
    write(&configuration, text);
    (started("haproxy", program("haproxy").arg("-db").arg("-f").arg(&configuration), dir, port), port)
}

/// Apache with its event loop and HTTP/2: /ok/ is a page, /e/ is 403, /again/ is a page for which it asks for the client's
/// certificate, and under TLS 1.2 so shakes hands again; none will do. Its port and its access log, of lines "PATH STATUS".
pub fn apache(dir: &Path) -> (Process, u16, PathBuf) {
    let done = |result: std::io::Result<()>| result.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    // Its workers are another user's.
    done(std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)));
    let www = dir.join("www");
    done(std::fs::create_dir_all(&www));
    done(std::fs::write(www.join("index.html"), "yes\n"));
    let (certificate, key) = certificate(dir);
    let (port, log) = (free_port(), dir.join("requests"));
    let modules = ["mpm_event", "authz_core", "alias", "ssl", "http2"];
    let modules = modules.map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let (base, www) = (dir.display(), www.display());
    let text = format!(
        "ServerName localhost\nUser nobody\nGroup nogroup\nListen 127.0.0.1:{port}\nPidFile {base}/pid\nErrorLog {base}/errors\n\
         Mutex posixsem\n{}LogFormat \"%U %>s\" brief\nCustomLog {} brief\nProtocols h2 http/1.1\nDocumentRoot {www}\n\
         AliasMatch ^/(ok|again)/ {www}/index.html\n<Location /again/>\nSSLVerifyClient optional_no_ca\n</Location>\nRedirectMatch 403 ^/e/\nSSLEngine on\nSSLCertificateFile {certificate}\n\
         SSLCertificateKeyFile {key}\nSSLSessionCache none\n",
        modules.concat(),
        log.display(),
    );
    let configuration = dir.join("apache.conf");
    done(std::fs::write(&configuration, text));
    let mut command = program("apache2");
    (started("apache", command.args(["-D", "FOREGROUND", "-f"]).arg(&configuration), dir, port), port, log)
}
