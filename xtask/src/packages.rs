//! The distribution's packages we install, why, and how to install them without starting a service.

use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{self, Root};

/// Purpose of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Servers, loads and peers that `bench` measures.
    Bench,
    /// Building the eBPF object with Debian's compiler.
    DebianEbpf,
    /// Compiling fuzz targets.
    Fuzz,
    /// Unpacking kernels and making disks for guests.
    Guests,
    /// Building for arm64.
    Arm64,
    /// Fetching programs distributed as Python wheels.
    Wheels,
    /// Real programs the demo and the kernel tests trace.
    Programs,
}

/// One package of the distribution.
pub(crate) struct Package {
    /// Its name on Debian and Ubuntu.
    pub(crate) name: &'static str,
    /// The program that proves its presence on other distributions; empty if only Debian has it.
    program: &'static str,
    need: Need,
    /// What fails without it.
    why: &'static str,
}

const fn package(name: &'static str, program: &'static str, need: Need, why: &'static str) -> Package {
    Package { name, program, need, why }
}

/// The only list of packages.
pub(crate) const PACKAGES: &[Package] = &[
    package("rustc-web", "", Need::DebianEbpf, "a compiler that fits the prebuilt core below"),
    package("cargo-web", "", Need::DebianEbpf, "its cargo"),
    package("libstd-rust-web-dev-bpf", "", Need::DebianEbpf, "core for bpfel-unknown-none, so no nightly is needed"),
    package("llvm-22-dev", "", Need::DebianEbpf, "bpf-linker is built against it"),
    package("libzstd-dev", "", Need::DebianEbpf, "LLVM links to it"),
    package("bpftrace", "bpftrace", Need::Bench, "peer: a latency histogram"),
    package("linux-perf", "perf", Need::Programs, "walks stacks in its own way; and a peer to measure"),
    package("g++", "c++", Need::Fuzz, "libFuzzer is C++"),
    package("zstd", "zstd", Need::Guests, "newer kernels are compressed by it"),
    package("lz4", "lz4", Need::Guests, "older kernels are compressed by it"),
    package("xz-utils", "xz", Need::Guests, "some kernels are compressed by it"),
    package("e2fsprogs", "mke2fs", Need::Guests, "the guest's disk"),
    package("binutils", "strip", Need::Guests, "test programs without their debug information"),
    package("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", Need::Arm64, "links for arm64, and compiles zstd"),
    package("libc6-dev-arm64-cross", "", Need::Arm64, "the C library it links to"),
    package("python3-pip", "", Need::Wheels, "fetches wheels"),
    package("nginx-light", "nginx", Need::Programs, "web server: event loop, worker processes, sendfile, proxying"),
    package("gunicorn", "gunicorn", Need::Programs, "application server with threads"),
    package("python3", "python3", Need::Programs, "workloads whose true cost is known"),
    package("python3-yaml", "", Need::Programs, "reads Kubernetes' manifests"),
    package("python3-flask", "", Need::Programs, "the application behind gunicorn"),
    package("redis-server", "redis-server", Need::Programs, "a server that keeps its own statistics of commands"),
    package("redis-tools", "redis-benchmark", Need::Programs, "redis-benchmark and redis-cli"),
    package("python3-aiohttp", "", Need::Programs, "HTTP server and client on an event loop"),
    package("python3-uvicorn", "", Need::Programs, "an application server on an event loop"),
    package("python3-uvloop", "", Need::Programs, "another event loop for it"),
    package("python3-gevent", "", Need::Programs, "requests as greenlets"),
    package("python3-rq", "rq", Need::Programs, "workers that take jobs from Redis and fork a process for each"),
    package("ruby-sidekiq", "sidekiq", Need::Programs, "workers that take jobs from Redis with threads"),
    package("python3-redis", "", Need::Programs, "a client library as applications use it"),
    package("apache2-bin", "apache2", Need::Programs, "a web server in three kinds: processes, threads, an event loop"),
    package("varnish", "varnishd", Need::Programs, "a proxy whose threads fetch for each other"),
    package("libgrpc-java", "", Need::Programs, "gRPC's client for Java"),
    package("libperfmark-java", "", Need::Programs, "which needs it and does not say so"),
    package("golang-google-grpc-dev", "", Need::Programs, "gRPC's client for Go, as sources"),
    package("puma", "puma", Need::Programs, "an application server in Ruby"),
    package("php-fpm", "", Need::Programs, "a FastCGI server with an access log"),
    package("uwsgi-core", "uwsgi", Need::Programs, "an application server that speaks uwsgi and SCGI, with a log"),
    package("uwsgi-plugin-python3", "", Need::Programs, "its applications in Python"),
    package("strace", "strace", Need::Programs, "shows which system calls the agent makes"),
    package("memcached", "memcached", Need::Programs, "a server that keeps its own statistics of commands"),
    package("python3-pymemcache", "", Need::Programs, "a client library as applications use it"),
    package("python3-websockets", "", Need::Programs, "WebSocket server and client"),
    package("debuginfod", "debuginfod", Need::Programs, "serves debug files by build id"),
    package("nghttp2-server", "nghttpd", Need::Programs, "an HTTP/2 server"),
    package("nghttp2-client", "h2load", Need::Programs, "HTTP/2 load that reports what it got"),
    package("nghttp2-proxy", "nghttpx", Need::Programs, "a proxy that takes upgrades to HTTP/2"),
    package("haproxy", "haproxy", Need::Programs, "a proxy that names its client (PROXY protocol)"),
    package("nodejs", "node", Need::Programs, "HTTP/2 as applications use it, in both roles"),
    package(
        "openjdk-17-jdk-headless",
        "java",
        Need::Programs,
        "applications whose pools of threads work for each other",
    ),
    package("node-ws", "", Need::Programs, "WebSocket as applications use it, compressed, in both roles"),
    package("python3-grpcio", "", Need::Programs, "gRPC server and client"),
    package("postgresql", "", Need::Programs, "a server with a process for each connection, and pgbench"),
    package("python3-psycopg", "", Need::Programs, "a client library with prepared statements and pipelines"),
    package("python3-psycopg2", "", Need::Programs, "a client library of simple queries and function calls"),
    package("mariadb-server-core", "mariadbd", Need::Programs, "a server with a thread for each connection"),
    package("mariadb-client-core", "mariadb", Need::Programs, "its client"),
    package("python3-pymysql", "", Need::Programs, "a client library that sends text"),
    package("libdbd-mariadb-perl", "", Need::Programs, "a client library that prepares statements"),
    package("nats-server", "nats-server", Need::Programs, "a broker that counts messages"),
    package("mosquitto", "mosquitto", Need::Programs, "a broker that counts messages"),
    package("python3-paho-mqtt", "", Need::Programs, "a client library as applications use it"),
    package("rabbitmq-server", "rabbitmq-server", Need::Programs, "a broker that counts messages by queue"),
    package("python3-stomp", "", Need::Programs, "a client library of STOMP"),
    package("python3-pika", "", Need::Programs, "a client library as applications use it"),
    package(
        "python3-pymongo",
        "",
        Need::Programs,
        "a client library of MongoDB, and documents for the server's script",
    ),
    package("python3-cassandra", "", Need::Programs, "a client library of Cassandra"),
    package("python3-kafka", "", Need::Programs, "a client library of Kafka"),
    package("openssl", "openssl", Need::Programs, "a server of TLS, and certificates for it"),
    package("openssh-server", "sshd", Need::Programs, "an SSH server"),
    package("openssh-client", "ssh", Need::Programs, "its client"),
    package("python3-aiosmtpd", "", Need::Programs, "an SMTP server"),
    package("slapd", "slapd", Need::Programs, "an LDAP server"),
    package("ldap-utils", "ldapsearch", Need::Programs, "its clients"),
    package("dnsmasq-base", "dnsmasq", Need::Programs, "a name server that logs questions and answers"),
    package("bind9-dnsutils", "dig", Need::Programs, "questions of every kind to name servers"),
    package("wrk", "wrk", Need::Programs, "load at a chosen rate"),
    package("iproute2", "ip", Need::Programs, "network namespaces as hosts"),
    package("nftables", "nft", Need::Programs, "address translation between hosts"),
    package("tshark", "tshark", Need::Programs, "reads segments independently of this project"),
    package("chromium", "chromium", Need::Programs, "opens the console as people do"),
    package("tmux", "tmux", Need::Programs, "a terminal for `tracer top`"),
    package("prometheus", "prometheus", Need::Programs, "scrapes the agent, and promtool checks rules"),
    package("podman", "podman", Need::Programs, "an engine that starts containers without a daemon"),
    package("runc", "runc", Need::Programs, "its runtime on machines with both versions of control groups"),
    package("curl", "curl", Need::Programs, "single requests with a known answer"),
    package("wget", "wget", Need::Programs, "a client that uses GnuTLS"),
    package("libcurl3-nss", "", Need::Programs, "clients that use NSS"),
    package("libnss3-tools", "selfserv", Need::Programs, "a server that does"),
    package("libssl-dev", "", Need::Programs, "OpenSSL to be contained in a program"),
];

/// Missing packages of these needs.
pub(crate) fn missing(needs: &[Need]) -> Vec<&'static Package> {
    let wanted = PACKAGES.iter().filter(|p| needs.contains(&p.need));
    if !has_apt() {
        return wanted.filter(|p| !p.program.is_empty() && shell::find(p.program).is_none()).collect();
    }
    // dpkg-query fails if one name is unknown, but still prints the others.
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Package} ${db:Status-Status}\n"]).args(PACKAGES.iter().map(|p| p.name));
    let known = query.output().map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    wanted.filter(|p| !known.lines().any(|line| line == format!("{} installed", p.name))).collect()
}

/// Whether packages can be installed at all.
pub(crate) fn has_apt() -> bool {
    shell::find("apt-get").is_some() && shell::find("dpkg-query").is_some()
}

/// Whether a package is installed.
pub(crate) fn is_installed(name: &str) -> bool {
    shell::ask("dpkg-query", &["-W", "-f", "${db:Status-Status}", name]).is_some_and(|status| status == "installed")
}

/// Whether every package of a need is installed or installable, by the local package lists.
pub(crate) fn available(need: Need) -> bool {
    have_candidates(&missing(&[need]).iter().map(|p| p.name).collect::<Vec<_>>())
}

/// Whether the local package lists offer all of them.
fn have_candidates(names: &[&str]) -> bool {
    // One question for all: each takes half a second.
    let policy = shell::ask("apt-cache", &[&["policy"], names].concat()).unwrap_or_default();
    names.iter().all(|name| offers(&policy, name))
}

/// Whether what `apt-cache policy` printed offers a package.
fn offers(policy: &str, name: &str) -> bool {
    let mut lines = policy.lines().skip_while(|line| line.strip_suffix(':') != Some(name)).skip(1);
    let candidate = lines.find(|line| !line.starts_with(' ') || line.trim_start().starts_with("Candidate:"));
    candidate.is_some_and(|line| line.starts_with(' ') && !line.contains("(none)"))
}

/// Installs the missing packages of these needs.
pub(crate) fn install(needs: &[Need]) -> Result<()> {
    let missing = missing(needs);
    for p in &missing {
        shell::progress(format!("missing: {} ({})", p.name, p.why));
    }
    install_named(&missing.iter().map(|p| p.name).collect::<Vec<_>>())
}

/// Installs packages by name; leaves present ones alone.
pub(crate) fn install_named(names: &[&str]) -> Result<()> {
    let names: Vec<&str> = names.iter().copied().filter(|name| !is_installed(name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let list = names.join(" ");
    if !has_apt() {
        bail!("there is no apt here, and these are missing: {list}. Install what your distribution calls them");
    }
    let by_hand = format!("apt-get update && apt-get install -y --no-install-recommends {list}");
    let root = Root::obtain(&format!("install packages (by hand, as root: {by_hand})"))?;
    // Images often come without package lists.
    if !have_candidates(&names) {
        update(root)?;
    }
    shell::progress(format!("installing {list}"));
    if let Err(first) = shell::run(&mut apt_install(root, &names), "") {
        // Usually the lists name versions that the mirror no longer has.
        shell::progress(format!("{first}; refreshing the package lists and trying once more"));
        update(root)?;
        let remedy = format!("apt's own words are above; by hand, as root: {by_hand}");
        shell::run(&mut apt_install(root, &names), &remedy)?;
    }
    Ok(())
}

/// Refreshes the package lists.
pub(crate) fn update(root: Root) -> Result<()> {
    shell::progress("refreshing the package lists (apt-get update)");
    let mut command = root.command("apt-get");
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300", "update"]);
    shell::run(&mut command, "apt's own words are above; check network and /etc/apt/sources.list*")
}

/// Installs packages while `policy-rc.d` forbids every service to start: a demo must not let nginx take port 80. The
/// previous file comes back, also after Ctrl-C; the leftover of a killed run is recognised.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
saved=$policy.before-tracer-xtask
mine='# written by tracer xtask'
restore() {
    if grep -qsF "$mine" "$policy"; then rm -f "$policy"; fi
    if [ -e "$saved" ] || [ -L "$saved" ]; then mv -f "$saved" "$policy"; fi
}
restore
trap restore EXIT
trap 'exit 130' INT TERM HUP
if [ -e "$policy" ] || [ -L "$policy" ]; then mv "$policy" "$saved"; fi
printf '#!/bin/sh\n%s\nexit 101\n' "$mine" > "$policy"
chmod 755 "$policy"
# A machine of CI is thrown away: its packages need not survive a power failure, and unpack in half the time.
DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 ${CI:+-o Dpkg::Options::=--force-unsafe-io} install -y --no-remove --no-install-recommends "$@"
"#;

fn apt_install(root: Root, names: &[&str]) -> Command {
    let mut command = root.command("sh");
    command.args(["-eu", "-c", INSTALL, "install"]).args(names);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_have_reasons() {
        for (n, p) in PACKAGES.iter().enumerate() {
            assert!(!p.why.is_empty(), "{}", p.name);
            assert!(PACKAGES.iter().skip(n + 1).all(|q| q.name != p.name), "{} twice", p.name);
        }
    }

    #[test]
    fn a_candidate_belongs_to_its_package() {
        let policy = "a:\n  Installed: (none)\n  Candidate: 1.2\n  Version table:\nb:\n  Installed: (none)\n  Candidate: (none)\nc:\nd:\n  Candidate: 1\n";
        let offered: Vec<&str> = ["a", "b", "c", "d", "e"].into_iter().filter(|name| offers(policy, name)).collect();
        assert_eq!(offered, ["a", "d"]);
    }
}
