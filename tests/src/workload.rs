//! The programs of `workloads/`: tests compile C when they run, and keep no binaries.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Process;

/// Limit for a program to start listening.
const START: Duration = Duration::from_secs(30);

/// Directory of workloads compiled earlier: guests have no compiler (`TRACER_WORKLOADS`).
pub fn prebuilt() -> Option<PathBuf> {
    std::env::var_os("TRACER_WORKLOADS").map(PathBuf::from)
}

/// Path of a program that `cargo xtask setup` built (`TRACER_BUILT`); it may be missing.
pub fn built(name: &str) -> &'static str {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/workloads");
    let path = std::env::var_os("TRACER_BUILT").map_or_else(own, PathBuf::from).join(name);
    // Names of programs are static everywhere else; a test leaks only a few.
    Box::leak(path.to_string_lossy().into_owned().into_boxed_str())
}

/// Path of a source.
pub fn source(name: &str) -> PathBuf {
    if let Some(dir) = prebuilt() {
        return dir.join(name);
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(name)
}

/// Compiles `NAME.c` into `dir`, with frame pointers.
pub fn compile(dir: &Path, name: &str) -> PathBuf {
    compile_with(dir, name, &["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"])
}

/// Compiles `NAME.c` into `dir` as released programs are: `-O2` and no more.
pub fn compile_optimised(dir: &Path, name: &str) -> PathBuf {
    compile_with(dir, name, &["-O2"])
}

/// Compiles `NAME.cpp` into `dir`.
pub fn compile_cpp(dir: &Path, name: &str) -> PathBuf {
    let program = dir.join(name);
    let mut command = Command::new("c++");
    command.args(["-O1", "-g", "-Wall", "-pthread", "-o"]).arg(&program).arg(source(&format!("{name}.cpp")));
    let done = command.output().unwrap_or_else(|error| panic!("c++: {error}"));
    assert!(done.status.success(), "{name}.cpp: {}", String::from_utf8_lossy(&done.stderr));
    program
}

fn compile_with(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    if let Some(dir) = prebuilt() {
        return dir.join(format!("{name}.bin"));
    }
    let program = dir.join(name);
    let mut command = Command::new("cc");
    command.args(flags).args(["-g", "-Wall", "-pthread", "-o"]);
    command.arg(&program).arg(source(&format!("{name}.c")));
    let done = command.output().unwrap_or_else(|error| panic!("cc: {error}"));
    assert!(done.status.success(), "{name}.c: {}", String::from_utf8_lossy(&done.stderr));
    program
}

/// Compiles `NAME.c` into `dir` as a library for preloading.
pub fn library(dir: &Path, name: &str) -> PathBuf {
    let library = dir.join(format!("{name}.so"));
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-shared", "-fPIC", "-o"]).arg(&library).arg(source(&format!("{name}.c")));
    let done = command.output().unwrap_or_else(|error| panic!("cc: {error}"));
    assert!(done.status.success(), "{name}.c: {}", String::from_utf8_lossy(&done.stderr));
    library
}

/// A server that printed its port.
#[derive(Debug)]
pub struct Server {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts `command`, known to the agent as service `name`, and waits until it prints `PORT n`.
    pub fn start(name: &str, dir: &Path, command: &mut Command) -> Self {
        command.env("OTEL_SERVICE_NAME", name).current_dir(dir);
        let mut process = Process::start(name, command, &dir.join(format!("{name}.log")));
        let port = process.line("PORT", START);
        let port = port.parse::<u16>().unwrap_or_else(|error| panic!("{name}: port {port}: {error}"));
        Self { process, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    /// Compiles and starts a C workload.
    pub fn c(name: &str, dir: &Path) -> Self {
        let program = compile(dir, name);
        Self::start(name, dir, &mut Command::new(program))
    }

    /// Starts a Python workload.
    pub fn python(name: &str, dir: &Path) -> Self {
        Self::python_with(name, dir, &[])
    }

    /// The same, with arguments.
    pub fn python_with(name: &str, dir: &Path, arguments: &[&str]) -> Self {
        let python = crate::find("python3").unwrap_or_else(|| panic!("no python3"));
        Self::start(name, dir, Command::new(python).arg("-u").arg(source(&format!("{name}.py"))).args(arguments))
    }
}

/// Waits until `address` accepts connections, for as long as `process` lives.
pub fn wait_for_listener(process: &mut Process, address: SocketAddr) {
    crate::wait("a server to listen", START, || {
        let ended = process.ended();
        assert!(ended.is_none(), "a server ended ({ended:?}):\n{}", process.output());
        std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok().map(drop)
    });
}
