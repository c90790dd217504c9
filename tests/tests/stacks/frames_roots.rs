//! Functions of programs whose root is not the host's, by `chroot` alone, without a mount namespace: each runtime's files are copies
//! that only that root has.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::folded::{self, Stacks, named, since};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::workload::{source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, interpreted, php, roots, say, scratch, wait};

/// Samples a second and CPU.
const HERTZ: f64 = 499.0;

/// What is known of a server: its functions, outermost first, that burn nearly all its CPU, and a word of their frames.
struct Server<'a> {
    service: &'a str,
    path: &'a str,
    functions: &'a [&'a str],
    marker: &'a str,
}

/// A command that runs a program of `root`.
fn within(root: &Path, program: &Path) -> Command {
    let mut command = Command::new("chroot");
    command.arg(root).arg(program);
    command
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

fn agent(dir: &Path, ports: &[SocketAddr]) -> Agent {
    let mut arguments = vec!["--nice=-10".to_owned(), format!("--hertz={HERTZ}"), "--overhead-budget=100%".into()];
    arguments.extend(ports.iter().flat_map(|address| ["--port".to_owned(), address.port().to_string()]));
    Agent::start(dir, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Loads the server until it was sampled often enough: its stacks have its functions.
fn judge(agent: &Agent, address: SocketAddr, server: &Server<'_>) {
    let Server { service, path, functions, marker } = server;
    let stacks = || folded::stacks(agent, service, path, "cpu", HERTZ);
    interpreted::load_until_sampled(address, &[path], marker, || vec![stacks()]);
    // A frame whose file is still being read has its name later: the stack would then look new.
    let before = named(&Stacks::new(), stacks);
    wait("samples", Duration::from_secs(60), || {
        interpreted::ask(address, &[path], 2);
        (since(&stacks(), &before).values().sum::<f64>() >= interpreted::SAMPLES).then_some(())
    });
    let all = named(&before, stacks);
    let has_chain = |stack: &str| {
        let mut frames = stack.split(';').map(|frame| frame.split(" (").next().unwrap_or(frame));
        functions.iter().all(|function| frames.any(|frame| frame == *function))
    };
    let sum: f64 = all.values().sum();
    let right: f64 = all.iter().filter(|(stack, _)| has_chain(stack)).map(|(_, weight)| weight).sum();
    let what = format!("{:.1} % of {sum:.0} samples have its functions", 100.0 * right / sum);
    say(&format!("{service}: {what}"));
    figure(service, &what);
    assert!(right >= 0.9 * sum, "{what}: {all:?}");
}

/// Waits until the runtime is detected in one process: in this state, and in no other.
fn detected(agent: &Agent, runtime: &str, state: &str) {
    wait("the runtime of a process", Duration::from_secs(20), || {
        let metrics = agent.metrics();
        let all = metrics.sum("tracer_runtime_processes", &[("runtime", runtime)]) as u64;
        let found = metrics.sum("tracer_runtime_processes", &[("runtime", runtime), ("state", state)]) as u64;
        assert!(all <= 1, "one process has it:\n{}", agent.text("/metrics"));
        assert_eq!(found, all, "its state is another:\n{}", agent.text("/metrics"));
        (found == 1).then_some(())
    });
}

#[test]
fn node() {
    let Some(_turn) = begin("node in a chroot", &["node", "chroot", "ldd"]) else { return };
    let dir = scratch();
    let program = find("node").and_then(|path| path.canonicalize().ok()).expect("Node.js");
    let root = roots::with_program(dir.path(), &program);
    std::fs::copy(source("frames.js"), root.join("frames.js")).expect("a copy");
    let address = local();
    let mut command = within(&root, &program);
    // Inlined functions have no frame.
    command.args(["--max-inlined-bytecode-size=0", "--max-inlined-bytecode-size-small=0", "/frames.js"]);
    command.arg(address.to_string()).env("OTEL_SERVICE_NAME", "nodechroot");
    let mut process = Process::start("node", &mut command, &dir.path().join("node.log"));
    wait_for_listener(&mut process, address);
    let agent = agent(dir.path(), &[address]);
    let server =
        Server { service: "nodechroot", path: "/burn", functions: &["serve", "a", "b", "c"], marker: "frames.js:" };
    judge(&agent, address, &server);
    detected(&agent, "nodejs", "known");
    agent.stop();
}

/// Where an application server has its plugin for Python, which has the interpreter as a library.
fn plugin() -> Option<PathBuf> {
    Path::new("/usr/lib/uwsgi/plugins/python3_plugin.so").canonicalize().ok()
}

/// An application with the functions of `frames.py`.
const APPLICATION: &str = "
import frames
def application(environ, start):
    frames.ROUTES[environ['PATH_INFO']](frames.SECONDS)
    start('200 OK', [('Content-Length', '0')])
    return []
";

#[test]
fn libpython() {
    let Some(_turn) = begin("libpython in a chroot", &["uwsgi", "chroot", "ldd", "mknod"]) else { return };
    let Some(plugin) = plugin() else { return say("SKIPPED libpython in a chroot: needs uWSGI's plugin for Python 3") };
    let dir = scratch();
    let program = find("uwsgi").and_then(|path| path.canonicalize().ok()).expect("uWSGI");
    let root = roots::with_program(dir.path(), &program);
    roots::add(&root, &plugin);
    roots::add_null(&root);
    let needed = roots::libraries(&plugin);
    let library = needed.iter().find_map(|path| {
        let name = path.file_name()?.to_str()?.strip_prefix("libpython")?;
        Some(Path::new("/usr/lib").join(format!("python{}", name.split_once(".so")?.0)))
    });
    roots::add_directory(&root, &library.expect("libpython"));
    std::fs::copy(source("frames.py"), root.join("frames.py")).expect("a copy");
    std::fs::write(root.join("application.py"), APPLICATION).expect("a file");
    let address = local();
    let mut command = within(&root, &program);
    // Its name says which symbol is the plugin.
    let name = plugin.file_name().and_then(|name| name.to_str()?.strip_suffix("_plugin.so")).expect("a plugin");
    command.args(["--plugin", name, "--need-app", "--pythonpath", "/", "--wsgi-file", "/application.py"]);
    command.args(["--http11-socket", &address.to_string()]).env("OTEL_SERVICE_NAME", "pythonchroot");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let mut process = Process::start("uwsgi", &mut command, &dir.path().join("uwsgi.log"));
    wait_for_listener(&mut process, address);
    let agent = agent(dir.path(), &[address]);
    let functions = &["application", "a", "b", "c"];
    judge(&agent, address, &Server { service: "pythonchroot", path: "/burn", functions, marker: "frames.py:" });
    detected(&agent, "python", "known");
    agent.stop();
}

#[test]
fn java() {
    let Some(_turn) = begin("Java in a chroot", &["java", "javac", "chroot", "ldd"]) else { return };
    let dir = scratch();
    let program = find("java").and_then(|path| path.canonicalize().ok()).expect("Java");
    let root = roots::with_program(dir.path(), &program);
    let home = program.parent().and_then(Path::parent).expect("Java's directory");
    roots::add_directory(&root, home);
    let mut javac = Command::new(find("javac").expect("javac"));
    let done = javac.args(["--release", "17", "-d"]).arg(&root).arg(source("Frames.java")).status();
    assert!(done.is_ok_and(|status| status.success()), "javac");
    let address = local();
    let mut command = within(&root, &program);
    // Without `/proc` it finds nothing beside its program.
    command.env("LD_LIBRARY_PATH", home.join("lib")).env("OTEL_SERVICE_NAME", "javachroot");
    command.args(["-XX:CompileCommand=quiet", "-cp", "/", "Frames", &address.port().to_string()]);
    let mut process = Process::start("java", &mut command, &dir.path().join("java.log"));
    wait_for_listener(&mut process, address);
    let agent = agent(dir.path(), &[address]);
    let functions = &["Frames.answer", "Frames.outer", "Frames.middle", "Frames.inner", "Frames.spin"];
    judge(&agent, address, &Server { service: "javachroot", path: "/chain", functions, marker: "Frames.spin" });
    agent.stop();
}

/// One worker: nothing but its files differs from the PHP-FPM of other tests.
const POOL: &str = "[global]\nerror_log = /php-error.log\ndaemonize = no\n\
    [one]\nuser = root\ngroup = root\npm = static\npm.max_children = 1\n";

#[test]
fn php_fpm() {
    let Some(_turn) = begin("PHP-FPM in a chroot", &["nginx", "chroot", "ldd", "mknod"]) else { return };
    let Some(program) = php::program() else { return say("SKIPPED PHP-FPM in a chroot: needs PHP-FPM") };
    let dir = scratch();
    let root = roots::with_program(dir.path(), &program);
    roots::add_null(&root);
    // Whom it runs as.
    for file in ["/etc/passwd", "/etc/group"] {
        roots::add(&root, Path::new(file));
    }
    std::fs::copy(source("frames.php"), root.join("frames.php")).expect("a copy");
    let address = local();
    std::fs::write(root.join("fpm.conf"), format!("{POOL}listen = {address}\n")).expect("a file");
    let mut command = within(&root, &program);
    command.args(["-n", "-R", "-F", "-y", "/fpm.conf"]);
    let mut process = Process::start("php-fpm", &mut command, &dir.path().join("php-fpm.log"));
    wait_for_listener(&mut process, address);
    let location = format!(
        "location / {{ fastcgi_pass {address}; fastcgi_param SCRIPT_FILENAME /frames.php; fastcgi_param REQUEST_METHOD GET; \
         fastcgi_param SCRIPT_NAME $uri; fastcgi_param REQUEST_URI $uri; }}"
    );
    let nginx = Nginx::start(dir.path(), "", &location);
    let agent = agent(dir.path(), &[address]);
    let functions = &["{main}", "a", "b", "c"];
    judge(&agent, nginx.address, &Server { service: "php-fpm", path: "/burn", functions, marker: "frames.php:" });
    agent.stop();
}
