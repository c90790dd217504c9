//! Facts of a process, from `/proc`.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{command_line, services, users};

/// Most bytes read of a file of a process.
const READ_LIMIT: u64 = 16 * 1024;
/// Most bytes searched of a command line and of an environment. The kernel allows a quarter of the stack's limit: 2 MiB by default.
const SEARCH_LIMIT: u64 = 2 * 1024 * 1024;
/// Most bytes of an environment variable that are looked at.
const VARIABLE: usize = 16 * 1024;
/// Most bytes of an argument that are looked at: a path has no more.
const ARGUMENT: usize = 4 * 1024;
/// Most parents asked for the program of a process that runs a part of them.
const PARENTS: u32 = 3;
/// Most bytes of all arguments kept.
const ARGUMENTS: usize = 16 * 1024;

/// Facts about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Its parent; 0: not known.
    #[serde(default)]
    pub parent: u32,
    /// It runs the program that its parent ran when it was forked: it has executed none.
    #[serde(default)]
    pub forked: bool,
    /// Start time in clock ticks since boot; identifies the process together with `pid`.
    pub start_time: u64,
    /// Name of its main thread.
    pub comm: String,
    /// Path of its program; empty if not readable.
    pub exe: String,
    /// Changes with the file behind `exe`: its inode and the time of its last change; 0: not readable.
    #[serde(default)]
    pub files: u64,
    /// Arguments: the first 16 KiB of them, and of each the first 4 KiB.
    pub cmdline: Vec<String>,
    /// Name and place of the program, where it is an argument that is not kept or another process's.
    #[serde(default)]
    pub program: Option<(String, Option<String>)>,
    /// Its working directory; empty if not readable. It may have changed since the program was started.
    #[serde(default)]
    pub cwd: String,
    /// Path in the cgroup hierarchy.
    pub cgroup: String,
    /// The user it runs as (its effective id): the name in this host's `/etc/passwd`, else the number; empty if not readable.
    #[serde(default)]
    pub user: String,
    /// `OTEL_SERVICE_NAME`, or `service.name` of `OTEL_RESOURCE_ATTRIBUTES`, from its environment.
    pub otel_service: Option<String>,
}

impl ProcessFacts {
    /// The command as `ps -o comm` shows it; the program's file where the first thread has a name as a thread: `node-MainThread`.
    pub fn command(&self) -> &str {
        if !is_thread_name(&self.comm) {
            return &self.comm;
        }
        self.exe.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&self.comm)
    }

    /// Whether it has no program and no arguments any more: it is ending, or it is a kernel thread.
    pub fn is_ending(&self) -> bool {
        self.exe.is_empty() && self.cmdline.is_empty()
    }

    /// Whether its program is a Python interpreter, by name.
    pub fn is_python(&self) -> bool {
        self.exe.rsplit('/').next().is_some_and(|name| name.starts_with("python"))
    }

    /// Whether its program is known to move requests between its threads: the virtual machine of Erlang and Elixir.
    pub fn moves_requests(&self) -> bool {
        self.exe.ends_with("/beam.smp")
    }
}

/// Whether a thread's name says that it is the first of its process, and not which program that runs: `MainThread` of Node.js 24,
/// `node-MainThread` of 26.
pub fn is_thread_name(comm: &str) -> bool {
    comm.ends_with("MainThread")
}

/// Reads the facts of a process; `None` if it is gone. One that is ending has neither `exe` nor `cmdline`.
pub fn read(pid: u32) -> Option<ProcessFacts> {
    read_with_parents(pid, PARENTS)
}

/// The same; a process of Python's `multiprocessing` runs the program of its parent, of which `parents` at most are read.
fn read_with_parents(pid: u32, parents: u32) -> Option<ProcessFacts> {
    let facts = read_own(pid)?;
    if parents == 0
        || !facts.is_python()
        || !command_line::is_part_of_parent(facts.cmdline.get(1..).unwrap_or_default())
    {
        return Some(facts);
    }
    // A process whose parent ended has another one.
    let parent = read_with_parents(facts.parent, parents - 1).filter(|parent| parent.exe == facts.exe);
    let program = parent.map(|parent| parent.program.clone().unwrap_or_else(|| services::program(&parent)));
    Some(ProcessFacts { program, ..facts })
}

fn read_own(pid: u32) -> Option<ProcessFacts> {
    let dir = format!("/proc/{pid}");
    let file = |name: &str| bytes(&format!("{dir}/{name}")).unwrap_or_default();
    // Reads links without following them.
    let link = |name: &str| std::fs::read_link(Path::new(&dir).join(name)).map(|path| path.into_os_string().into_vec());
    let files = Files {
        stat: &bytes(&format!("{dir}/stat"))?,
        cgroup: &file("cgroup"),
        exe: &link("exe").unwrap_or_default(),
        cwd: &link("cwd").unwrap_or_default(),
    };
    // A file that cannot be opened is like an empty one.
    let open = |name: &str| -> Box<dyn Read> {
        match File::open(Path::new(&dir).join(name)) {
            Ok(file) => Box::new(file),
            Err(_) => Box::new(std::io::empty()),
        }
    };
    let (cmdline, environ) = (open("cmdline"), open("environ"));
    let user = user(&file("status")).map(users::name).unwrap_or_default();
    // The running program's own file: no path of the process's choice is followed.
    let version = std::fs::metadata(Path::new(&dir).join("exe")).map_or(0, |file| {
        let mut hasher = DefaultHasher::new();
        (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()).hash(&mut hasher);
        hasher.finish()
    });
    let facts = facts(pid, &files, cmdline, environ)?;
    // One that began to end in between lacks some of it, such as the name in its environment.
    let mut first = [0];
    let lives = File::open(Path::new(&dir).join("cmdline")).and_then(|mut file| file.read(&mut first));
    let lives = lives.is_ok_and(|read| read > 0);
    let (exe, cmdline) = if lives { (facts.exe, facts.cmdline) } else { (String::new(), Vec::new()) };
    Some(ProcessFacts { files: version, user, exe, cmdline, ..facts })
}

/// The process of a thread; `None` if it is gone.
pub fn of_thread(tid: u32) -> Option<u32> {
    let status = bytes(&format!("/proc/{tid}/status"))?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Checks that there is a process of this id: the id of one that has ended may come back as another's.
pub fn check(pid: u32) -> Result<(), String> {
    let missing = || format!("there is no process {pid}: it has ended, or never was");
    let id = i32::try_from(pid).ok().filter(|id| *id > 0).ok_or_else(missing)?;
    // SAFETY: signal 0 is not sent.
    let found = unsafe { libc::kill(id, 0) } == 0;
    if !found && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
        return Err(missing());
    }
    // Where processes of others are hidden that one exists is all there is to know.
    let status = bytes(&format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return Err(missing());
    }
    match field("Tgid:") {
        Some(process) if process != pid.to_string() => {
            Err(format!("{pid} is a thread of process {process}: processes are traced as a whole, by their own id"))
        }
        _ => Ok(()),
    }
}

/// Files and links of a process, their first `READ_LIMIT` bytes; empty where there are none. The process decides what most
/// of them say.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// `/proc/PID/stat`.
    pub stat: &'a [u8],
    /// `/proc/PID/cgroup`.
    pub cgroup: &'a [u8],
    /// Target of the link `/proc/PID/exe`.
    pub exe: &'a [u8],
    /// Target of the link `/proc/PID/cwd`.
    pub cwd: &'a [u8],
}

/// Extracts the facts; `None` if `stat` is malformed. `cmdline` and `environ` are the files of these names, which may be long:
/// they are searched piece by piece. Total: any bytes.
pub fn facts(pid: u32, files: &Files<'_>, cmdline: impl Read, environ: impl Read) -> Option<ProcessFacts> {
    let ProcessStat { comm, parent, forked, start_time } = parse_stat(&String::from_utf8_lossy(files.stat))?;
    let facts = ProcessFacts {
        pid,
        parent,
        forked,
        start_time,
        comm,
        exe: String::from_utf8_lossy(files.exe).trim_end_matches(" (deleted)").to_owned(),
        files: 0,
        cmdline: arguments(cmdline),
        program: None,
        cwd: String::from_utf8_lossy(files.cwd).into_owned(),
        cgroup: cgroup(&String::from_utf8_lossy(files.cgroup)),
        user: String::new(),
        otel_service: otel_service(environ),
    };
    Some(shortened(facts))
}

/// Keeps the first arguments. A Java program has its main class behind dozens of options, and a class path of any length.
fn shortened(mut facts: ProcessFacts) -> ProcessFacts {
    let mut bytes = 0;
    let fits = |argument: &&String| {
        bytes += argument.len();
        bytes <= ARGUMENTS
    };
    let kept = facts.cmdline.iter().take_while(fits).count();
    if kept < facts.cmdline.len() {
        facts.program = Some(services::program(&facts));
        facts.cmdline.truncate(kept);
        facts.cmdline.shrink_to_fit();
    }
    facts
}

/// What a process is that may change while it runs the same program: its user and its cgroup; `None` if it is gone.
pub fn placement(pid: u32) -> Option<(String, String)> {
    let user = user(&bytes(&format!("/proc/{pid}/status"))?).map(users::name).unwrap_or_default();
    let cgroup = cgroup(&String::from_utf8_lossy(&bytes(&format!("/proc/{pid}/cgroup"))?));
    Some((user, cgroup))
}

/// The arguments of a process, or the title it gave itself; `None` if it is gone.
pub fn title(pid: u32) -> Option<String> {
    let line = bytes(&format!("/proc/{pid}/cmdline"))?;
    let parts: Vec<_> = line.split(|byte| *byte == 0).filter(|part| !part.is_empty()).collect();
    Some(parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join(" "))
}

/// The effective user id in `/proc/PID/status`.
pub fn user(status: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(status);
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn bytes(path: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    File::open(path).ok()?.take(READ_LIMIT).read_to_end(&mut out).ok()?;
    Some(out)
}

/// `PF_FORKNOEXEC` (`include/linux/sched.h`): a process that was forked and has not executed a program since.
const FORKED: u64 = 0x40;

/// Facts from `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    comm: String,
    parent: u32,
    forked: bool,
    start_time: u64,
}

/// Reads `/proc/PID/stat`; the name is in parentheses and may contain any character.
fn parse_stat(stat: &str) -> Option<ProcessStat> {
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let comm = stat.get(open + 1..close)?.to_owned();
    let mut fields = stat.get(close + 1..)?.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    let start_time = fields.nth(12)?.parse().ok()?;
    Some(ProcessStat { comm, parent, forked: flags & FORKED != 0, start_time })
}

/// Passes the entries of a file, each of which ends in NUL, to `each` until it breaks; of an entry its first `limit` bytes.
fn entries(file: impl Read, limit: usize, mut each: impl FnMut(&[u8]) -> ControlFlow<()>) {
    let mut file = BufReader::new(file.take(SEARCH_LIMIT));
    let mut entry: Vec<u8> = Vec::new();
    while let Ok(read) = file.fill_buf()
        && !read.is_empty()
    {
        let end = read.iter().position(|byte| *byte == 0);
        let part = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
        entry.extend(part.iter().take(limit.saturating_sub(entry.len())));
        let used = part.len() + usize::from(end.is_some());
        file.consume(used);
        if end.is_some() {
            if each(&entry).is_break() {
                return;
            }
            entry.clear();
        }
    }
    // What is searched may end within an entry.
    let _ = each(&entry);
}

fn arguments(cmdline: impl Read) -> Vec<String> {
    let mut arguments = Vec::new();
    entries(cmdline, ARGUMENT, |argument| {
        if !argument.is_empty() {
            arguments.push(String::from_utf8_lossy(argument).into_owned());
        }
        ControlFlow::Continue(())
    });
    arguments
}

/// The path in the unified hierarchy, or in systemd's in a hybrid setup, or in any other.
fn cgroup(lines: &str) -> String {
    let path = |prefix: &str| {
        lines.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.strip_prefix(prefix).map(str::to_owned)
        })
    };
    let unified = path(":").filter(|path| path != "/");
    // Cgroup v1 without systemd: any hierarchy will do.
    let any = || {
        let mut paths = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.find(|path| path.len() > 1).map(str::to_owned)
    };
    unified.or_else(|| path("name=systemd:").filter(|path| path != "/")).or_else(any).unwrap_or_default()
}

/// A variable of a process's environment, as it was when its program began; `None`: it has none of this name, or is gone.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let environ = File::open(format!("/proc/{pid}/environ")).ok()?;
    let mut found = None;
    entries(environ, VARIABLE, |entry| {
        let value = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        found = value.map(|value| String::from_utf8_lossy(value).into_owned());
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// The service that OpenTelemetry's variables name. No other variable is kept, and none longer than it takes.
fn otel_service(environ: impl Read) -> Option<String> {
    let (mut named, mut attributed) = (None, None);
    entries(environ, VARIABLE, |entry| {
        let value = |name: &str| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        if let Some(name) = value("OTEL_SERVICE_NAME").filter(|name| !name.trim().is_empty()) {
            named = Some(name);
            return ControlFlow::Break(());
        }
        let attributes = value("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let name = attributes.split(',').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key.trim() == "service.name").then(|| value.trim().to_owned())
        });
        attributed = attributed.take().or(name);
        ControlFlow::Continue(())
    });
    named.or(attributed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let own = std::process::id();
        assert_eq!(variable(own, "PATH"), std::env::var("PATH").ok());
        assert_eq!((variable(own, "PAT"), variable(u32::MAX, "PATH")), (None, None));
    }

    #[test]
    fn a_process_that_has_ended_is_none() {
        assert_eq!(check(std::process::id()), Ok(()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        // Ended, and not waited for.
        while check(pid).is_ok() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        for gone in [pid, 0, u32::MAX] {
            assert!(check(gone).unwrap_err().contains(&format!("no process {gone}")), "{gone}");
        }
        let thread = || {
            // SAFETY: takes nothing, cannot fail.
            let tid = unsafe { libc::gettid() };
            check(tid as u32)
        };
        let error = std::thread::spawn(thread).join().unwrap().unwrap_err();
        assert!(error.contains(&format!("a thread of process {}", std::process::id())), "{error}");
    }

    #[test]
    fn stat_survives_odd_names() {
        // Flags of a forked process, and of one that has executed a program.
        for (flags, forked) in [(0x0040_0040, true), (0x0040_0000, false)] {
            let stat = format!("7 (a) b) S 1 2 3 4 5 {flags} 7 8 9 10 11 12 13 14 15 16 17 18 4242 20");
            let expected = ProcessStat { comm: "a) b".into(), parent: 1, forked, start_time: 4242 };
            assert_eq!(parse_stat(&stat), Some(expected));
        }
        for bad in ["", "7", "7 (x", "7 )x( 1", "7 (x) S 1"] {
            assert_eq!(parse_stat(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_has_facts() {
        let facts = read(std::process::id()).unwrap();
        assert!(facts.start_time > 0 && !facts.exe.is_empty() && !facts.cmdline.is_empty());
        assert_eq!(read(u32::MAX), None);
    }

    #[test]
    fn a_worker_of_multiprocessing_is_its_parents_program() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("shopfront.py");
        // The worker is as old as the pool's first answer.
        let text = "import multiprocessing, os, sys\nif __name__ == '__main__':\n    multiprocessing.set_start_method(sys.argv[1])\n    \
                    with multiprocessing.Pool(1) as pool:\n        print(pool.apply(os.getpid), flush=True)\n        sys.stdin.read()\n";
        std::fs::write(&script, text).unwrap();
        for method in ["spawn", "forkserver", "fork"] {
            let mut command = std::process::Command::new("python3");
            command.arg(&script).arg(method);
            let piped = std::process::Stdio::piped;
            let mut child = command.stdin(piped()).stdout(piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let worker = read(line.trim().parse().unwrap()).unwrap();
            drop(child.stdin.take());
            child.wait().unwrap();
            let identity = services::identify(&ProcessFacts { cgroup: String::new(), ..worker }, &Vec::new());
            assert_eq!(identity.name, "shopfront", "{method}");
            assert_eq!(identity.place.as_deref(), script.to_str(), "{method}");
        }
    }

    #[test]
    fn effective_users() {
        for (status, expected) in [
            ("Name:\tx\nUid:\t1000\t33\t33\t33\nGid:\t1\t2\t3\t4\n", Some(33)),
            ("Uid:\t1\n", None),
            ("Uid:\ta\tb\tc\td\n", None),
            ("", None),
        ] {
            assert_eq!(user(status.as_bytes()), expected, "{status}");
        }
        let own = placement(std::process::id()).unwrap();
        assert!(!own.0.is_empty());
        assert!(title(std::process::id()).is_some_and(|title| !title.is_empty()));
    }

    #[test]
    fn environment_names() {
        for (environ, expected) in [
            (&b"A=1\0OTEL_SERVICE_NAME=shop\0"[..], Some("shop")),
            (b"OTEL_RESOURCE_ATTRIBUTES=a=b,service.name=cart\0", Some("cart")),
            (b"OTEL_SERVICE_NAME=\0OTEL_RESOURCE_ATTRIBUTES=x", None),
            (b"NOT_OTEL_SERVICE_NAME=x", None),
        ] {
            assert_eq!(otel_service(environ).as_deref(), expected);
        }
    }

    const STAT: &[u8] = b"7 (java) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";

    #[test]
    fn names_behind_long_command_lines() {
        let name = |exe: &[u8], arguments: &[String]| {
            let files = Files { stat: STAT, cgroup: b"", exe, cwd: b"/srv" };
            let facts = facts(7, &files, arguments.join("\0").as_bytes(), &b""[..]).unwrap();
            let kept: usize = facts.cmdline.iter().map(String::len).sum();
            assert!(kept <= ARGUMENTS && facts.cmdline.iter().all(|argument| argument.len() <= ARGUMENT), "{kept}");
            let identity = services::identify(&facts, &Vec::new());
            (identity.name, identity.place.unwrap_or_default())
        };
        let options = |count: usize| (0..count).map(|n| format!("-Dacme.setting.number{n}={n}"));
        let path =
            |jars: usize| (0..jars).map(|n| format!("/opt/acme/lib/dependency-{n}.jar")).collect::<Vec<_>>().join(":");
        for (options_of, jars) in [(0, 1), (45, 1), (0, 1000), (0, 40_000), (4000, 1), (30_000, 1)] {
            let class_path = ["-cp".to_owned(), path(jars), "com.acme.OrderService".to_owned(), "9000".to_owned()];
            let line: Vec<String> =
                std::iter::once("java".to_owned()).chain(options(options_of)).chain(class_path).collect();
            let expected = ("OrderService".to_owned(), "com.acme.OrderService".to_owned());
            assert_eq!(name(b"/usr/bin/java", &line), expected, "{options_of} options, {jars} jars");
        }
        let required = (0..2000).flat_map(|n| ["--require".to_owned(), format!("/srv/instrument{n}.js")]);
        let line: Vec<String> =
            std::iter::once("node".to_owned()).chain(required).chain(["front.js".to_owned()]).collect();
        assert_eq!(name(b"/usr/bin/node", &line), ("front".to_owned(), "/srv/front.js".to_owned()));
        // Beyond the limit it is the interpreter, as without arguments.
        let line: Vec<String> = std::iter::once("java".to_owned()).chain(options(100_000)).collect();
        assert_eq!(name(b"/usr/bin/java", &line).0, "java");
    }

    #[test]
    fn names_behind_long_environments() {
        let mut environ: Vec<u8> =
            (0..8000).flat_map(|n| format!("BACKEND_{n}_SERVICE_HOST=10.43.7.{n}\0").into_bytes()).collect();
        environ.extend([b"LONG=".as_slice(), &vec![b'x'; 200_000], b"\0"].concat());
        environ.extend(b"OTEL_RESOURCE_ATTRIBUTES=service.name=attributed\0");
        assert_eq!(otel_service(&*environ).as_deref(), Some("attributed"));
        environ.extend(b"OTEL_SERVICE_NAME=named");
        assert_eq!(otel_service(&*environ).as_deref(), Some("named"));
        // An entry that is as long as what is read at once, and one that ends where the search ends.
        for length in [8191, 8192, 8193] {
            let value = vec![b'x'; length];
            let environ = [b"A=".as_slice(), &value, b"\0OTEL_SERVICE_NAME=", &value, b"\0"].concat();
            assert_eq!(otel_service(&*environ).map(|name| name.len()), Some(length));
        }
        assert_eq!(otel_service(std::io::repeat(b'x')), None);
        assert_eq!(otel_service(std::io::repeat(0)), None);
    }

    #[test]
    fn cgroups_of_both_layouts() {
        assert_eq!(cgroup("0::/system.slice/nginx.service\n"), "/system.slice/nginx.service");
        assert_eq!(cgroup("1:name=systemd:/system.slice/a.service\n0::/\n"), "/system.slice/a.service");
        assert_eq!(cgroup("3:pids:/docker/a\n1:cpu,cpuacct:/docker/a\n"), "/docker/a");
        assert_eq!(cgroup("1:name=systemd:/\n0::/\n"), "");
        assert_eq!(cgroup("garbage"), "");
    }
}
