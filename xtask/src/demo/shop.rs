//! The traced programs: nginx in front of two gunicorn services with PostgreSQL and Redis behind them, and the load.
//! Their files are in `demo/`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::stopped;
use crate::http;
use crate::postgres::Cluster;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

const NGINX: &str = include_str!("../../../demo/nginx.conf");
const SHOP: &str = include_str!("../../../demo/shop.py");
const PRICING: &str = include_str!("../../../demo/pricing.py");
const LOAD: &str = include_str!("../../../demo/load.lua");
/// Bytes of the large file.
const LARGE: u64 = 20_000_000;

/// The running shop; everything in it ends when it is dropped.
pub(super) struct Shop {
    /// Where nginx listens.
    pub(super) front: SocketAddr,
    /// Where it listens for TLS.
    pub(super) secure: SocketAddr,
    processes: Vec<SupervisedChild>,
}

/// Starts nginx and the two services and waits until requests pass through them.
pub(super) fn start(dir: &Path) -> Result<Shop> {
    let [front, secure, shop, pricing, stock, database] = free_addresses()?;
    write(&dir.join("shop.py"), SHOP)?;
    write(&dir.join("pricing.py"), PRICING)?;
    write(&dir.join("load.lua"), LOAD)?;
    let files = dir.join("files");
    fs::create_dir(&files).with_context(|| format!("cannot create {}", files.display()))?;
    large_file(&files.join("large.bin"))?;
    write(&dir.join("nginx.conf"), &configuration(dir, (front, secure), shop))?;
    certificate(dir)?;

    let cluster = Cluster::create(&dir.join("orders"), "shop")?;
    let server = cluster.start(database, &dir.join("postgres.log"))?;
    table(&cluster, database)?;
    let upstream = pricing.to_string();
    let (cache, orders) = (format!("redis://{stock}/0"), connection(database));
    let settings = [("PRICING", &*upstream), ("REDIS", &cache), ("DATABASE", &orders)];
    let processes = vec![
        server,
        redis(dir, stock)?,
        gunicorn(dir, "pricing", pricing, &["--workers=1", "--threads=4"], &[])?,
        gunicorn(dir, "shop", shop, &["--workers=2", "--threads=8"], &settings)?,
        nginx(dir)?,
    ];
    let mut running = Shop { front, secure, processes };
    wait(&mut running, dir)?;
    Ok(running)
}

/// Starts the load: `demo/load.lua` defines the mix and the pauses. A quarter of it is encrypted.
pub(super) fn load(dir: &Path, shop: &Shop) -> Result<[SupervisedChild; 2]> {
    let script = dir.join("load.lua").display().to_string();
    let start = |connections: &str, address: String, log: &str| {
        let args = ["-t1", connections, "-d86400", "--timeout=10", "-s"].map(String::from);
        let args: Vec<String> = args.into_iter().chain([script.clone(), address]).collect();
        SupervisedChild::start(Root::Already, &program("wrk")?, &args, &[], &dir.join(log))
    };
    Ok([
        start("-c6", format!("http://{}/", shop.front), "wrk.log")?,
        start("-c2", format!("https://{}/", shop.secure), "wrk.tls.log")?,
    ])
}

/// Makes a certificate for this run.
fn certificate(dir: &Path) -> Result<()> {
    let mut openssl = Command::new(program("openssl")?);
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9"]);
    openssl.args(["-subj", "/CN=shop.example", "-keyout"]).arg(dir.join("shop.key"));
    shell::output(openssl.arg("-out").arg(dir.join("shop.crt"))).map(drop)
}

fn gunicorn(
    dir: &Path,
    name: &str,
    address: SocketAddr,
    size: &[&str],
    env: &[(&str, &str)],
) -> Result<SupervisedChild> {
    let (bind, chdir) = (format!("--bind={address}"), format!("--chdir={}", dir.display()));
    let (heartbeat, application) = (format!("--worker-tmp-dir={}", dir.display()), format!("{name}:app"));
    let mut args = vec![
        "--worker-class=gthread",
        "--keep-alive=30",
        "--graceful-timeout=3",
        &bind,
        &chdir,
        &heartbeat,
        "--log-level=warning",
    ];
    args.extend(size);
    if shell::is_root() {
        args.extend(["--user=nobody", "--group=nogroup"]);
    }
    args.push(&application);
    // The service's name; without it both would get the program's name.
    let mut variables = vec![("OTEL_SERVICE_NAME", name), ("PYTHONDONTWRITEBYTECODE", "1")];
    variables.extend(env);
    SupervisedChild::start(Root::Already, &program("gunicorn")?, &args, &variables, &dir.join(format!("{name}.log")))
}

/// The libpq connection string of the orders' database.
fn connection(database: SocketAddr) -> String {
    format!("host={} port={} user=shop dbname=postgres", database.ip(), database.port())
}

/// Waits for the database and creates its table.
fn table(cluster: &Cluster, database: SocketAddr) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    while !cluster.is_ready(database) {
        if stopped() || Instant::now() > until {
            bail!("PostgreSQL does not take connections");
        }
        thread::sleep(Duration::from_millis(100));
    }
    let mut psql = Command::new(cluster.programs.join("psql"));
    let statement = "CREATE TABLE orders (id serial PRIMARY KEY, item int, price numeric)";
    shell::output(psql.args(["-qc", statement, &connection(database)]).current_dir("/")).map(drop)
}

fn redis(dir: &Path, address: SocketAddr) -> Result<SupervisedChild> {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let args = ["--bind", &host, "--port", &port, "--save", "", "--daemonize", "no"];
    SupervisedChild::start(Root::Already, &program("redis-server")?, &args, &[], &dir.join("redis.log"))
}

fn nginx(dir: &Path) -> Result<SupervisedChild> {
    let (prefix, file) = (dir.display().to_string(), dir.join("nginx.conf").display().to_string());
    let errors = dir.join("nginx.error.log").display().to_string();
    // -e: the compiled-in log file belongs to the system's nginx.
    let args = ["-p", &prefix, "-e", &errors, "-c", &file];
    SupervisedChild::start(Root::Already, &program("nginx")?, &args, &[], &dir.join("nginx.log"))
}

/// nginx's configuration for this run.
fn configuration(dir: &Path, (front, secure): (SocketAddr, SocketAddr), shop: SocketAddr) -> String {
    // Only root may choose the workers' user.
    let user = if shell::is_root() { "user nobody nogroup;" } else { "" };
    let base = dir.display();
    let tls = format!(
        "listen {secure} ssl http2;\n        ssl_certificate {base}/shop.crt;\n        ssl_certificate_key {base}/shop.key;"
    );
    NGINX
        .replace("@dir@", &dir.display().to_string())
        .replace("@front@", &front.to_string())
        .replace("@tls@", &tls)
        .replace("@shop@", &shop.to_string())
        .replace("@user@", user)
}

/// Waits until a request has passed through all three, or one of them has ended.
fn wait(shop: &mut Shop, dir: &Path) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let reply = http::get(shop.front, "/order/1");
        if reply.as_ref().is_ok_and(|reply| reply.status == 200) {
            return Ok(());
        }
        let mut ended = false;
        for process in &mut shop.processes {
            ended |= process.ended()?.is_some();
        }
        if ended || stopped() || Instant::now() > until {
            for log in ["nginx.log", "nginx.error.log", "shop.log", "pricing.log", "redis.log", "postgres.log"] {
                let text = fs::read_to_string(dir.join(log)).unwrap_or_default();
                text.lines().for_each(|line| eprintln!("{log}: {line}"));
            }
            let last = reply.map_or_else(|e| format!("{e:#}"), |reply| format!("status {}", reply.status));
            bail!("the shop does not answer ({last}); the output of its programs is above");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Addresses, all different because all are held until all are known.
fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    let bound = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on 127.0.0.1");
    let held = (0..N).map(|_| bound()).collect::<Result<Vec<_>>>()?;
    let addresses = held.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>();
    let addresses = addresses.context("cannot read the address of a socket")?;
    addresses.try_into().map_err(|_| anyhow::anyhow!("not as many addresses as were asked for"))
}

pub(super) fn program(name: &str) -> Result<PathBuf> {
    // The distribution's own: a version manager earlier in PATH lacks its packages.
    let system = Path::new("/usr/bin").join(name);
    if system.is_file() {
        return Ok(system);
    }
    shell::find(name).with_context(|| format!("{name} is not installed; run `cargo xtask setup`"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn large_file(path: &Path) -> Result<()> {
    let file = fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.set_len(LARGE).with_context(|| format!("cannot make {} {LARGE} bytes long", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_complete() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = configuration(Path::new("/tmp/x"), (address(1), address(3)), address(2));
        assert!(text.contains("listen 127.0.0.1:1;") && text.contains("server 127.0.0.1:2;"));
        let settings = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        assert!(settings.clone().all(|line| !line.contains('@')), "{text}");
    }
}
