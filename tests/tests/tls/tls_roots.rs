//! Text of encrypted connections of servers in roots of their own: each request once, whatever files of the host or of other
//! containers theirs are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::tls::certificate;
use tracer_tests::{begin, figure, find, free_port, roots, say, scratch, tls_servers, wait};

/// What the arguments of a server are called within its root.
fn inside(file: &str) -> String {
    format!("/{}", Path::new(file).file_name().expect("a name").to_string_lossy())
}

fn ask(port: u16, path: &str) -> bool {
    let url = format!("https://127.0.0.1:{port}/{path}");
    Command::new("curl").args(["-sk", "-o", "/dev/null", &url]).status().is_ok_and(|status| status.success())
}

/// Requests served, by port, with this path.
fn served(tail: &mut Tail, path: &str) -> BTreeMap<u16, usize> {
    let mut found = BTreeMap::new();
    for span in tail.read().iter().filter(|span| span.server && span.protocol == "http" && span.path == path) {
        *found.entry(span.port).or_default() += 1;
    }
    found
}

#[test]
fn a_server_in_a_chroot_shows_its_requests() {
    let Some(_turn) = begin("tls_chroot", &["openssl", "curl", "chroot", "ldd"]) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let program = std::fs::canonicalize(find("openssl").expect("openssl")).expect("openssl");
    let root = roots::with_program(dir.path(), &program);
    for file in [&certificate, &key] {
        std::fs::copy(file, root.join(&inside(file)[1..])).expect("a copy");
    }
    let port = free_port();
    let mut command = Command::new("chroot");
    command.arg(&root).arg(&program).args(["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}")]);
    command.args(["-cert", &inside(&certificate), "-key", &inside(&key)]);
    let _server = Process::start("s_server", &mut command, &dir.path().join("s_server.log"));
    wait("the server to answer", Duration::from_secs(20), || ask(port, "early").then_some(()));
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%", "--port", &port.to_string()]);
    // Probes come once the agent has seen the process shake hands.
    let mut tail = Tail::new(&agent.transactions);
    wait("a request of the server inside TLS", Duration::from_secs(30), || {
        assert!(ask(port, "early"), "the server does not answer");
        served(&mut tail, "/early").contains_key(&port).then_some(())
    });
    for _ in 0..20 {
        assert!(ask(port, "later"), "the server does not answer");
    }
    let of = |span: &Span| span.server && span.protocol == "http" && span.path == "/later";
    tail.until(20, Duration::from_secs(20), of);
    assert_eq!(served(&mut tail, "/later")[&port], 20, "requests of the server");
    agent.stop();
}

/// Programs that containers of one image need.
const IMAGE: [&str; 6] = ["openssl", "curl", "chroot", "ldd", "unshare", "mount"];

/// The root directory of containers that run OpenSSL's program.
struct Image {
    certificate: String,
    key: String,
    program: PathBuf,
    root: PathBuf,
}

/// Makes the image for `test`; `None`, and it says so, where no overlay can be mounted.
fn image(test: &str, dir: &Path) -> Option<Image> {
    let (certificate, key) = certificate(dir);
    let program = std::fs::canonicalize(find("openssl").expect("openssl")).expect("openssl");
    let root = roots::with_program(dir, &program);
    for file in [&certificate, &key] {
        std::fs::copy(file, root.join(&inside(file)[1..])).expect("a copy");
    }
    let tried = outcome(roots::container(&root, &dir.join("trial"), "true").arg(&program).arg("version"), "unshare");
    if tried.code != Some(0) {
        say(&format!("SKIPPED {test}: no overlay can be mounted here: {}", tried.err));
        return None;
    }
    Some(Image { certificate, key, program, root })
}

/// Containers of one image show a device of their own for the same file, and the kernel keeps probes by that file.
#[test]
fn containers_of_one_image_show_each_request_once() {
    let Some(_turn) = begin("tls_overlay", &IMAGE) else { return };
    let dir = scratch();
    let Some(Image { certificate, key, program, root }) = image("tls_overlay", dir.path()) else { return };
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let mut arguments = vec!["--nice=-10".to_owned(), "--max-cpu".into(), "400%".into()];
    arguments.extend(ports.iter().flat_map(|port| ["--port".to_owned(), port.to_string()]));
    let agent = Agent::start(dir.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut servers = Vec::new();
    for port in &ports {
        let mut command = roots::container(&root, &dir.path().join(format!("container-{port}")), "true");
        command.arg(&program).args(["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}")]);
        command.args(["-cert", &inside(&certificate), "-key", &inside(&key)]);
        let name = format!("s_server-{port}");
        servers.push(Process::start(&name, &mut command, &dir.path().join(format!("{name}.log"))));
        wait("the server to answer", Duration::from_secs(20), || ask(*port, "first").then_some(()));
    }
    let mut tail = Tail::new(&agent.transactions);
    wait("requests of each server inside TLS", Duration::from_secs(30), || {
        assert!(ports.iter().all(|port| ask(*port, "early")), "a server does not answer");
        (served(&mut tail, "/early").len() == ports.len()).then_some(())
    });
    for _ in 0..20 {
        assert!(ports.iter().all(|port| ask(*port, "later")), "a server does not answer");
    }
    assert!(ports.iter().all(|port| ask(*port, "last")), "a server does not answer");
    wait("the last requests", Duration::from_secs(20), || {
        (served(&mut tail, "/last").len() == ports.len()).then_some(())
    });
    let found = served(&mut tail, "/later");
    figure("TLS in containers of one image", &format!("{found:?} of 20 each"));
    assert_eq!(found, ports.iter().map(|port| (*port, 20)).collect::<BTreeMap<_, _>>());
    agent.stop();
}

/// `chmod` in a container copies its library up: later processes there run the copy, which shows the numbers of the file below.
#[test]
fn a_library_that_is_copied_up_while_probes_stand() {
    let Some(_turn) = begin("tls_copied_up", &IMAGE) else { return };
    let dir = scratch();
    let Some(Image { certificate, key, program, root }) = image("tls_copied_up", dir.path()) else { return };
    let library = roots::libraries(&program).into_iter().find(|path| path.to_string_lossy().contains("libssl."));
    let library = library.expect("libssl").display().to_string();
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let mut arguments = vec!["--nice=-10".to_owned(), "--max-cpu".into(), "400%".into()];
    arguments.extend(ports.iter().flat_map(|port| ["--port".to_owned(), port.to_string()]));
    let agent = Agent::start(dir.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut tail = Tail::new(&agent.transactions);
    let mut servers = Vec::new();
    // The first has the file below, and its probes stand before the others copy theirs up.
    let copied = format!("chmod o+w .{library}");
    for (port, change) in ports.iter().zip(["true", &copied, &copied]) {
        let mut command = roots::container(&root, &dir.path().join(format!("container-{port}")), change);
        command.arg(&program).args(["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}")]);
        command.args(["-cert", &inside(&certificate), "-key", &inside(&key)]);
        let name = format!("s_server-{port}");
        servers.push(Process::start(&name, &mut command, &dir.path().join(format!("{name}.log"))));
        wait("a request of the server inside TLS", Duration::from_secs(30), || {
            (ask(*port, "early") && served(&mut tail, "/early").contains_key(port)).then_some(())
        });
    }
    for _ in 0..20 {
        assert!(ports.iter().all(|port| ask(*port, "later")), "a server does not answer");
    }
    assert!(ports.iter().all(|port| ask(*port, "last")), "a server does not answer");
    wait("the last requests", Duration::from_secs(20), || {
        (served(&mut tail, "/last").len() == ports.len()).then_some(())
    });
    let found = served(&mut tail, "/later");
    figure("TLS in containers with copies of a library", &format!("{found:?} of 20 each"));
    assert_eq!(found, ports.iter().map(|port| (*port, 20)).collect::<BTreeMap<_, _>>());
    agent.stop();
}

/// A library that no other program has, as in a container's image, and a process for each connection, which may be gone before it
/// is looked at.
#[test]
fn postgresql_with_a_library_of_its_own() {
    let Some(_turn) = begin("tls_postgresql_root", &["openssl", "setpriv", "ldd"]) else { return };
    let dir = scratch();
    let own = dir.path().join("libraries");
    std::fs::create_dir_all(&own).expect("a directory");
    let postgres = tracer_tests::postgresql::programs().expect("PostgreSQL: cargo xtask setup").join("postgres");
    for library in roots::libraries(&postgres) {
        let name = library.file_name().expect("a name");
        if name.to_string_lossy().starts_with("libssl.") || name.to_string_lossy().starts_with("libcrypto.") {
            std::fs::copy(&library, own.join(name)).expect("a copy");
        }
    }
    let server = tls_servers::postgresql_with_libraries(dir.path(), &own);
    let agent =
        Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%", "--port", &server.address.port().to_string()]);
    let session = |table: &str| {
        let mut command = server.psql();
        command.env("PGSSLMODE", "require").env("LD_LIBRARY_PATH", &own);
        command.args(["-At", "-c", &format!("CREATE TEMP TABLE {table} ()"), "-c", &format!("SELECT FROM {table}")]);
        command.args(["-c", "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"]);
        let done = outcome(&mut command, "psql");
        assert!(done.out.ends_with("t\n"), "the session is not encrypted: {}{}", done.out, done.err);
    };
    let mut tail = Tail::new(&agent.transactions);
    let of = |span: &Span, server: bool, table: &str| {
        span.protocol == "postgresql" && span.server == server && span.class == format!("SELECT {table}")
    };
    wait("statements inside TLS", Duration::from_secs(30), || {
        session("early");
        let all = tail.read();
        [true, false].iter().all(|server| all.iter().any(|span| of(span, *server, "early"))).then_some(())
    });
    for _ in 0..20 {
        session("later");
    }
    tail.until(40, Duration::from_secs(20), |span| of(span, true, "later") || of(span, false, "later"));
    let count = |server| tail.spans.iter().filter(|span| of(span, server, "later")).count();
    assert_eq!([count(true), count(false)], [20, 20], "statements at the server and at its clients");
    agent.stop();
}
