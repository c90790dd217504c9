//! Functions by their own and their total time, distinguished by whose code they are. Pure.
//!
//! Whose a function is follows from the file its code is from, or from its name where one file holds everything. Where the
//! hottest function is somebody else's, what can be changed is the function of the application that called it.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::Serialize;

use super::{Frame, FrameOrigin};

/// Callers named for a function.
const CALLERS: usize = 3;

/// Whose code a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeOrigin {
    /// The application's.
    Application,
    /// Of the system, a library or an interpreter.
    ThirdParty,
    /// The kernel's.
    Kernel,
    /// Its address has no name, or the stack says why it is missing.
    Unknown,
}

/// Prefixes of file paths or function names that override what is assumed; the longest that fits decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeOwners {
    /// The application's.
    pub application: Vec<String>,
    /// Others'.
    pub third_party: Vec<String>,
}

/// Directories of what distributions install, and of what was not written for one service.
const SYSTEM: &[&str] = &[
    "/usr/lib",
    "/lib",
    "/usr/bin/",
    "/usr/sbin/",
    "/bin/",
    "/sbin/",
    "/usr/libexec/",
    "/usr/share/",
    "/usr/local/lib",
    "/snap/",
    "/nix/store/",
    "[vdso]",
    "<frozen ",
    "node:",
];
/// Directories that package managers install into, wherever they are.
const PACKAGES: &[&str] = &[
    "/site-packages/",
    "/dist-packages/",
    "/node_modules/",
    "/vendor/",
    "/.cargo/registry/",
    "/cargo/registry/src/",
    "/go/pkg/mod/",
];
/// Where sources of standard libraries were when they were compiled.
const STANDARD_SOURCES: &[&str] = &["/rustc/", "/usr/local/go/src/", "/usr/src/"];
/// Programs that run others' code: their own functions are not the application's.
const INTERPRETERS: &[&str] = &["python", "node", "java", "php", "ruby", "perl", "beam", "dotnet", "lua"];
/// Libraries of languages whose programs hold everything in one file, by the beginning of their functions' names.
const STANDARD: &[&str] = &[
    "std::",
    "core::",
    "alloc::",
    "<std::",
    "<core::",
    "<alloc::",
    "<alloc[",
    "__rust_",
    "__rdl_",
    "__gnu_cxx::",
    "node:",
    "Ljava/",
    "Ljdk/",
    "Lsun/",
    "java.",
    "jdk.",
    "sun.",
];
/// Drivers and frameworks of Java, of whose classes nothing says where they are from: packages, by names or by signatures.
const JAVA_LIBRARIES: &[&str] = &[
    "com/fasterxml/",
    "com/mongodb/",
    "com/mysql/",
    "com/zaxxer/hikari/",
    "io/lettuce/",
    "io/netty/",
    "jakarta/",
    "javax/",
    "kotlin/",
    "okhttp3/",
    "okio/",
    "org/apache/",
    "org/eclipse/jetty/",
    "org/hibernate/",
    "org/mariadb/",
    "org/postgresql/",
    "org/springframework/",
    "reactor/",
    "redis/clients/",
    "scala/",
];

/// Whether a name is of a method of such a library: `Lorg/postgresql/…`, `org.postgresql.…`.
fn is_java_library(name: &str) -> bool {
    let name = name.strip_prefix('L').unwrap_or(name);
    let same = |(a, b): (u8, u8)| a == b || (a == b'/' && b == b'.');
    JAVA_LIBRARIES.iter().any(|prefix| prefix.len() < name.len() && prefix.bytes().zip(name.bytes()).all(same))
}
/// What names of source files end with that interpreters run.
const SOURCES: &[&str] = &["py", "js", "mjs", "cjs", "php"];
/// Packages of Go's standard library, by the first part of their path.
const GO: &[&str] = &[
    "archive",
    "bufio",
    "bytes",
    "compress",
    "container",
    "context",
    "crypto",
    "database",
    "encoding",
    "errors",
    "fmt",
    "hash",
    "html",
    "internal",
    "io",
    "iter",
    "log",
    "maps",
    "math",
    "mime",
    "net",
    "os",
    "path",
    "reflect",
    "regexp",
    "runtime",
    "slices",
    "sort",
    "strconv",
    "strings",
    "sync",
    "syscall",
    "text",
    "time",
    "unicode",
    "unsafe",
    "vendor",
];
/// What compilers append to names of C functions, which Go's never have.
const PARTS: &[&str] = &[".part.", ".constprop.", ".isra.", ".cold", ".lto_priv", ".llvm."];

/// Whether a name is of a function of Go's standard library: `encoding/json.Marshal`.
fn is_of_go(name: &str) -> bool {
    let head = name.split(['/', '.']).next().unwrap_or_default();
    name.contains('.') && GO.contains(&head) && !PARTS.iter().any(|part| name.contains(part))
}

/// Length of the longest of `prefixes` that the frame's file or name begins with.
fn longest(prefixes: &[String], frame: &Frame) -> Option<usize> {
    let fits = |prefix: &&String| {
        !prefix.is_empty()
            && (frame.starts_with(&***prefix)
                || frame.file().is_some_and(|file| file.starts_with(&***prefix))
                || frame.source().is_some_and(|source| source.path.starts_with(&***prefix)))
    };
    prefixes.iter().filter(fits).map(String::len).max()
}

impl CodeOwners {
    /// Whose code a frame is.
    pub fn code(&self, frame: &Frame) -> CodeOrigin {
        if frame.ends_with("_[k]") {
            return CodeOrigin::Kernel;
        }
        match (longest(&self.application, frame), longest(&self.third_party, frame)) {
            (Some(own), others) if others.is_none_or(|others| own >= others) => return CodeOrigin::Application,
            (_, Some(_)) => return CodeOrigin::ThirdParty,
            _ => {}
        }
        // A function without a symbol is known by its file.
        if is_word(frame) || (frame.file().is_none() && frame.starts_with('[') && frame.ends_with(']')) {
            return CodeOrigin::Unknown;
        }
        // Functions that an interpreter has itself are from no file.
        let is_own = matches!(frame.parts().origin, FrameOrigin::Interpreted(_)) && frame.file().is_none();
        if STANDARD.iter().any(|prefix| frame.starts_with(prefix)) || is_of_go(frame) || is_own {
            return CodeOrigin::ThirdParty;
        }
        if let Some(source) = frame.source()
            && (PACKAGES.iter().any(|part| source.path.contains(part))
                || STANDARD_SOURCES.iter().any(|directory| source.path.starts_with(directory)))
        {
            return CodeOrigin::ThirdParty;
        }
        // Code made while running has no file: a virtual machine makes it of the application's, mostly.
        let Some(file) = frame.file() else {
            return if is_java_library(frame) { CodeOrigin::ThirdParty } else { CodeOrigin::Application };
        };
        let program = file.rsplit('/').next().unwrap_or(file);
        let is_installed = SYSTEM.iter().any(|directory| file.starts_with(directory))
            || PACKAGES.iter().any(|part| file.contains(part))
            || file.contains("/lib/python3.");
        let is_source = Path::new(program).extension().is_some_and(|end| SOURCES.iter().any(|source| end == *source));
        let runs_others = !is_source && Self::is_interpreter(file);
        if is_installed || runs_others { CodeOrigin::ThirdParty } else { CodeOrigin::Application }
    }

    /// Whether a file is an interpreter or a virtual machine.
    pub(super) fn is_interpreter(file: &str) -> bool {
        let program = file.rsplit('/').next().unwrap_or(file);
        INTERPRETERS.iter().any(|name| is_called(program, name))
    }

    /// Whether the configuration says that a frame is not the application's.
    pub(super) fn is_declared_third_party(&self, frame: &Frame) -> bool {
        longest(&self.third_party, frame).is_some()
    }
}

/// Whether a file is this interpreter, in some version, or its library: `python3.11`, `libpython3.11.so.1.0`, `node`.
fn is_called(program: &str, interpreter: &str) -> bool {
    let rest = program.strip_prefix("lib").unwrap_or(program).strip_prefix(interpreter);
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(['.', '-']) || rest.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Whether a frame is no function but says something about the stack.
fn is_word(frame: &str) -> bool {
    [
        "[off CPU",
        "[stack incomplete",
        "[callers unknown",
        "[Python functions missing",
        "[PHP functions missing",
        "[JavaScript functions missing",
        "[not named",
    ]
    .iter()
    .any(|word| frame.starts_with(word))
}

/// A function of the application that called a hot one of somebody else's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caller {
    /// Its name.
    pub function: String,
    /// The file its code is from.
    pub file: Option<String>,
    /// The hot function's own time below it, seconds.
    pub self_s: f64,
}

/// A function and its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hotspot {
    /// Its name.
    pub function: String,
    /// The file its code is from.
    pub file: Option<String>,
    /// Whose code it is.
    pub code: CodeOrigin,
    /// Seconds in itself, and in itself or what it called.
    pub self_s: f64,
    /// See `self_s`.
    pub total_s: f64,
    /// The same as parts of all time.
    pub self_share: f64,
    /// See `self_share`.
    pub total_share: f64,
    /// Samples in the function itself.
    pub samples: u64,
    /// Where its share in itself is with a probability of 95 %, by the number of samples (Wilson's score interval).
    pub self_share_interval: [f64; 2],
    /// Where it is not the application's: the application's functions that it was called for, those with most of its own time
    /// first.
    pub called_by: Vec<Caller>,
}

/// Time of one function.
#[derive(Debug, Default)]
struct Sum<'a> {
    own: u64,
    total: u64,
    samples: u64,
    callers: HashMap<&'a Frame, u64>,
}

/// The stacks of a profile: frames outermost first, below the name of the process; samples; nanoseconds.
pub type Stacks = [(Vec<Frame>, u64, u64)];

/// Adds the functions of one stack.
fn add<'a>(
    sums: &mut HashMap<&'a Frame, Sum<'a>>,
    (frames, samples, nanos): (&'a [Frame], u64, u64),
    owners: &CodeOwners,
) {
    let functions = || frames.iter().skip(1).filter(|frame| !is_word(frame));
    // Recursion counts once.
    for frame in functions().collect::<HashSet<_>>() {
        sums.entry(frame).or_default().total += nanos;
    }
    let Some(hot) = functions().next_back() else { return };
    let sum = sums.entry(hot).or_default();
    sum.own += nanos;
    sum.samples += samples;
    if owners.code(hot) != CodeOrigin::Application
        && let Some(caller) = functions().rev().find(|frame| owners.code(frame) == CodeOrigin::Application)
    {
        *sum.callers.entry(caller).or_default() += nanos;
    }
}

fn part(of: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { of as f64 / all as f64 }
}

/// Where a share is with a probability of 95 % that was found in `samples` samples: the score interval (E. B. Wilson, 1927). Samples
/// count as taken independently, each for as much time as the others.
fn interval(share: f64, samples: u64) -> [f64; 2] {
    /// The 97.5th percentile of the normal distribution.
    const Z: f64 = 1.959_964;
    if samples == 0 {
        return [0.0, 1.0];
    }
    let n = samples as f64;
    let (middle, scale) = (share + Z * Z / (2.0 * n), 1.0 + Z * Z / n);
    let reach = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    [((middle - reach) / scale).max(0.0), ((middle + reach) / scale).min(1.0)]
}

/// The `limit` functions of these stacks with most time of their own, hottest first.
pub fn hotspots(stacks: &Stacks, owners: &CodeOwners, limit: usize) -> Vec<Hotspot> {
    let mut sums: HashMap<&Frame, Sum<'_>> = HashMap::new();
    let (mut all, mut taken) = (0, 0);
    for (frames, samples, nanos) in stacks {
        all += nanos;
        taken += samples;
        add(&mut sums, (frames, *samples, *nanos), owners);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, x), (b, y)| (y.own, y.total).cmp(&(x.own, x.total)).then_with(|| a.cmp_name(b)));
    sums.truncate(limit);
    let file = |frame: &Frame| frame.file().map(ToString::to_string);
    let hotspot = |(frame, sum): (&Frame, Sum<'_>)| {
        let mut callers: Vec<_> = sum.callers.into_iter().collect();
        callers.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp_name(b)));
        let caller = |(caller, own): (&Frame, u64)| Caller {
            function: caller.to_string(),
            file: file(caller),
            self_s: own as f64 / 1e9,
        };
        Hotspot {
            function: frame.to_string(),
            file: file(frame),
            code: owners.code(frame),
            self_s: sum.own as f64 / 1e9,
            total_s: sum.total as f64 / 1e9,
            self_share: part(sum.own, all),
            total_share: part(sum.total, all),
            samples: sum.samples,
            self_share_interval: interval(part(sum.own, all), taken),
            called_by: callers.into_iter().take(CALLERS).map(caller).collect(),
        }
    };
    sums.into_iter().map(hotspot).collect()
}

/// The shares of a function in other stacks: of its own time, and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// In itself.
    pub self_share: f64,
    /// In itself or what it called.
    pub total_share: f64,
}

/// The shares that each of `functions` has of these stacks, in their order.
pub fn shares(stacks: &Stacks, functions: &[Hotspot]) -> Vec<Shares> {
    let key = |function: &Hotspot| (function.function.clone(), function.file.clone());
    let places: HashMap<_, usize> = functions.iter().enumerate().map(|(at, function)| (key(function), at)).collect();
    let (mut sums, mut all, no_owners) = (HashMap::new(), 0, CodeOwners::default());
    for (frames, _, nanos) in stacks {
        all += nanos;
        add(&mut sums, (frames, 0, *nanos), &no_owners);
    }
    let mut found = vec![Shares::default(); functions.len()];
    for (frame, sum) in sums {
        let place = places.get(&(frame.to_string(), frame.file().map(ToString::to_string)));
        if let Some(shares) = place.and_then(|at| found.get_mut(*at)) {
            *shares = Shares { self_share: part(sum.own, all), total_share: part(sum.total, all) };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::CodeOrigin::{Application, Kernel, ThirdParty, Unknown};
    use super::*;
    use std::sync::Arc;

    fn frame(name: &str, file: &str) -> Frame {
        Frame::of(name, (!file.is_empty()).then(|| Arc::from(file)))
    }

    #[test]
    fn half_of_four_samples_says_less_than_half_of_four_thousand() {
        let near =
            |[low, high]: [f64; 2], wanted: [f64; 2]| (low - wanted[0]).abs() < 1e-3 && (high - wanted[1]).abs() < 1e-3;
        assert!(near(interval(0.5, 4), [0.150, 0.850]), "{:?}", interval(0.5, 4));
        assert!(near(interval(0.5, 4000), [0.4845, 0.5155]), "{:?}", interval(0.5, 4000));
        assert!(near(interval(0.0, 10), [0.0, 0.2775]) && near(interval(1.0, 10), [0.7225, 1.0]));
        assert!(near(interval(0.5, 0), [0.0, 1.0]));
    }

    #[test]
    fn whose_code_it_is() {
        let own = CodeOwners {
            application: vec![
                "/usr/lib/shop/".into(),
                "github.com/shop/".into(),
                "/srv/venv/lib/python3.11/site-packages/shop".into(),
            ],
            third_party: vec!["github.com/".into(), "/srv/shop/vendored".into(), "tokio::".into()],
        };
        for (name, file, code) in [
            ("handle", "/srv/shop/bin/shop", Application),
            ("handle", "/tmp/burn", Application),
            ("deflate", "/usr/lib/x86_64-linux-gnu/libz.so.1", ThirdParty),
            ("ngx_http_handler", "/usr/sbin/nginx", ThirdParty),
            ("clock_gettime", "[vdso]", ThirdParty),
            ("_PyEval_EvalFrameDefault", "/opt/python/bin/python3.11", ThirdParty),
            ("PyObject_Call", "/opt/python/libpython3.11.so.1.0", ThirdParty),
            ("main", "/srv/nodes", Application),
            ("javac_like", "/srv/javascript", Application),
            ("view (shop/views.py:12)", "/srv/shop/views.py", Application),
            ("dumps (json/__init__.py:183)", "/usr/lib/python3.11/json/__init__.py", ThirdParty),
            ("loads (json/__init__.py:183)", "/opt/lib/python3.13/json/__init__.py", ThirdParty),
            ("call (flask/app.py:9)", "/srv/venv/lib/python3.11/site-packages/flask/app.py", ThirdParty),
            ("call (shop/app.py:9)", "/srv/venv/lib/python3.11/site-packages/shop/app.py", Application),
            ("run", "/usr/lib/shop/shop", Application),
            ("old", "/srv/shop/vendored/libold.so", ThirdParty),
            ("core::fmt::write", "/srv/shop/bin/shop", ThirdParty),
            ("tokio::runtime::task", "/srv/shop/bin/shop", ThirdParty),
            ("runtime.mallocgc", "/srv/shop/go", ThirdParty),
            ("encoding/json.Marshal", "/srv/shop/go", ThirdParty),
            ("main.handle", "/srv/shop/go", Application),
            ("github.com/shop/cart.Add", "/srv/shop/go", Application),
            ("github.com/other/pkg.Do", "/srv/shop/go", ThirdParty),
            ("sort.constprop.0", "/srv/shop/bin/shop", Application),
            ("copy_to_user_[k]", "", Kernel),
            ("[unknown]", "", Unknown),
            ("[unknown]", "/usr/lib/libz.so", ThirdParty),
            ("[Python function]", "", Unknown),
            ("LazyCompile:~handle /srv/app.js:3", "", Application),
        ] {
            assert_eq!(own.code(&frame(name, file)), code, "{name} {file}");
        }
    }

    fn stacks() -> Vec<(Vec<Frame>, u64, u64)> {
        let (root, app, own) = (frame("shop", ""), frame("view", "/srv/shop"), frame("parse", "/srv/shop"));
        let (deflate, libc) = (frame("deflate", "/usr/lib/libz.so"), frame("memcpy", "/usr/lib/libc.so"));
        let word = frame("[stack incomplete: no rule]", "");
        vec![
            (vec![root.clone(), app.clone(), own.clone(), deflate.clone()], 4, 4_000_000_000),
            (vec![root.clone(), app.clone(), deflate.clone(), libc.clone()], 1, 1_000_000_000),
            (vec![root.clone(), word, app.clone(), app.clone()], 3, 3_000_000_000),
            (vec![root.clone(), app, own, frame("futex_[k]", ""), frame("[off CPU: futex]", "")], 2, 2_000_000_000),
            (vec![root, libc], 0, 0),
        ]
    }

    #[test]
    fn hot_functions_of_others_name_the_application_that_called_them() {
        let all = hotspots(&stacks(), &CodeOwners::default(), 10);
        let row = |name: &str| all.iter().find(|row| row.function == name).unwrap();
        let names: Vec<&str> = all.iter().map(|row| &*row.function).collect();
        assert_eq!(names, ["deflate", "view", "futex_[k]", "memcpy", "parse"]);
        let deflate = row("deflate");
        assert_eq!(
            (deflate.self_s, deflate.total_s, deflate.self_share, deflate.code),
            (4.0, 5.0, 0.4, CodeOrigin::ThirdParty)
        );
        assert_eq!(
            (deflate.called_by.len(), &*deflate.called_by[0].function, deflate.called_by[0].self_s),
            (1, "parse", 4.0)
        );
        // Once for a recursion; the application's own functions need no caller.
        assert_eq!((row("view").self_s, row("view").total_s, row("view").called_by.len()), (3.0, 10.0, 0));
        assert_eq!((&*row("memcpy").called_by[0].function, row("futex_[k]").called_by[0].self_s), ("view", 2.0));
        let whole: f64 = all.iter().map(|row| row.self_share).sum();
        assert!((whole - 1.0).abs() < 1e-9, "{whole}");
        assert_eq!(hotspots(&stacks(), &CodeOwners::default(), 2).len(), 2);
        assert!(hotspots(&[], &CodeOwners::default(), 10).is_empty());
    }

    #[test]
    fn shares_are_those_of_the_same_function_elsewhere() {
        let here = hotspots(&stacks(), &CodeOwners::default(), 10);
        let own = shares(&stacks(), &here);
        let same = |row: &Hotspot| Shares { self_share: row.self_share, total_share: row.total_share };
        assert_eq!(own, here.iter().map(same).collect::<Vec<_>>());
        let other =
            [(vec![frame("shop", ""), frame("view", "/srv/other"), frame("deflate", "/usr/lib/libz.so")], 1, 7)];
        let found = shares(&other, &here);
        // Another file's `view` is another function.
        assert_eq!((found[0].self_share, found[1]), (1.0, Shares::default()));
        assert_eq!(shares(&[], &here)[0], Shares::default());
    }
}
