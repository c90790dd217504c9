//! Declared transactions: functions of programs that the configuration names, calls and lines in them, or USDT probes; and
//! where their probes go.
//!
//! Everything here is total: the file may be any bytes, and what cannot be declared says why.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracer_common::runtime::Operands;

use super::elf::{self, Function};
use super::go::functions::{self, Functions};
use super::go::image::{self, Image};
use super::return_instructions::returns;

mod calls;
mod code;
pub mod depths;
mod globals;
mod interpreters;
mod lines;
mod operands;
mod predicate;
mod table;
mod usdt;
mod values;

pub use interpreters::Language;
pub use operands::Argument;
pub use predicate::{Comparison, FailSource, Predicate};
pub use table::{DeclaredChanges, DeclaredTable};
pub use usdt::{ProbePlace, UsdtProbe, UsdtSite, parse as usdt_notes};
pub use values::{Captured, METRICS, Metric, MetricKind, Source, UnreadValue, ValueSource};

/// Most bytes of a Go function that are searched for return instructions.
const CODE: u64 = 256 << 10;
/// Most return instructions of a function.
pub const RETURNS: usize = 64;
/// Most names listed in an error.
const SIMILAR: usize = 5;

/// What is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A function, by its symbol: from entry to return.
    Function(Box<str>),
    /// The call of a function within another.
    Call {
        /// The one that calls.
        caller: Box<str>,
        /// The one that is called.
        callee: Box<str>,
    },
    /// Lines of a source file: from where the first is entered to every way out of them.
    Lines {
        /// The end of the file's path.
        file: Box<str>,
        /// The first line.
        from: u32,
        /// The last one.
        to: u32,
    },
    /// From one USDT probe to another; or hits of one.
    Probes {
        /// Who defines them.
        provider: Box<str>,
        /// The one that begins it.
        begin: Box<str>,
        /// The one that ends it; `None`: it has no duration.
        end: Option<Box<str>>,
    },
}

/// How the end of a call is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPairing {
    /// By the depth of the stack: code that is entered and left.
    Depth,
    /// By thread: two USDT probes, which need not be in one function.
    Thread,
    /// It has none: it is counted where it begins.
    None,
}

impl Target {
    /// How the end of a call of it is found.
    pub fn pairing(&self) -> CallPairing {
        match self {
            Self::Function(_) | Self::Call { .. } | Self::Lines { .. } => CallPairing::Depth,
            Self::Probes { end: Some(_), .. } => CallPairing::Thread,
            Self::Probes { end: None, .. } => CallPairing::None,
        }
    }

    /// `function`, `call`, `lines` or `probes`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Function(_) => "function",
            Self::Call { .. } => "call",
            Self::Lines { .. } => "lines",
            Self::Probes { .. } => "probes",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => f.write_str(name),
            Self::Call { caller, callee } => write!(f, "{callee} in {caller}"),
            Self::Lines { file, from, to } => write!(f, "{file}:{from}-{to}"),
            Self::Probes { provider, begin, end: Some(end) } => write!(f, "{provider}:{begin} to {end}"),
            Self::Probes { provider, begin, end: None } => write!(f, "{provider}:{begin}"),
        }
    }
}

/// A declared transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The request class.
    pub name: Arc<str>,
    /// Path or glob of the program or library.
    pub program: Box<str>,
    /// What of it is declared.
    pub target: Target,
    /// When a call failed.
    pub fail: Option<Predicate>,
    /// Who the call is for.
    pub user: Option<ValueSource>,
    /// What is measured of a call; at most [`METRICS`].
    pub metrics: Vec<Metric>,
    /// Calls a second beyond which its probes are detached for good; `None`: no limit.
    pub max_rate: Option<u32>,
    /// Where it is declared: `FILE:LINE`.
    pub place: Box<str>,
}

impl Declared {
    /// Whether it is the same transaction, wherever it is declared.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { name, program, target, fail, user, metrics, max_rate, place: _ } = self;
        (name, program, target) == (&other.name, &other.program, &other.target)
            && (fail, user, metrics, max_rate) == (&other.fail, &other.user, &other.metrics, &other.max_rate)
    }

    /// Its user and metrics.
    pub fn values(&self) -> impl Iterator<Item = &ValueSource> {
        self.user.iter().chain(self.metrics.iter().map(|metric| &metric.value))
    }
}

/// Where a call is seen to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEnd {
    /// Offset in the file, bytes.
    pub at: u64,
    /// The place is also reached in other ways.
    pub shared: bool,
    /// By how many bytes the stack pointer is above what it was at entry.
    pub stack: i32,
}

/// Where the probes of a function go. Offsets in the file, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The function's name in the file.
    pub name: String,
    /// Where a call is seen to begin.
    pub entry: u64,
    /// Where a call is seen to end; empty: a return probe.
    pub ends: Vec<CallEnd>,
    /// Whether it is a Go function.
    pub go: bool,
    /// Where the values at its beginning are, if one of them is a global variable's.
    pub operands: Option<Box<Operands>>,
}

impl Site {
    /// Argument registers of its calling convention.
    pub fn arguments(&self) -> u8 {
        match (self.go, cfg!(target_arch = "aarch64")) {
            (true, _) => 9,
            (false, true) => 8,
            (false, false) => 6,
        }
    }

    /// Number of probes.
    pub fn probes(&self) -> usize {
        1 + self.ends.len().max(1)
    }
}

/// Where the probes of a declared transaction go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredSite {
    /// In code that is entered and left.
    Code(Site),
    /// At USDT probes.
    Usdt(UsdtSite),
}

/// Why a function cannot be declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Not a program for this machine.
    #[error("is not an ELF program or library for this machine")]
    NotProgram,
    /// A script.
    #[error("is a script of '{0}', not an ELF program: declare functions of that, or of its extensions")]
    Script(String),
    /// The function is not one of the interpreter itself.
    #[error("no function '{name}' in the interpreter itself, and {language}")]
    Interpreted {
        /// The name.
        name: String,
        /// What the interpreter runs.
        language: Language,
    },
    /// Its symbols were removed.
    #[error(
        "stripped: the file has no table of its own functions, and '{0}' is not among those it exports; keep the symbols \
         (no `strip`, no `-s`) or export the function"
    )]
    Stripped(String),
    /// The debug information knows it, the code does not have it.
    #[error("inlined away: the debug information names '{0}', but no code has its symbol; mark it noinline")]
    Inlined(String),
    /// No such symbol.
    #[error("no such symbol '{name}'{}", Similar(.similar))]
    NoSymbol {
        /// The name.
        name: String,
        /// Names like it.
        similar: Vec<String>,
    },
    /// The compiler made parts or variants of it.
    #[error("'{name}' is compiled as {}: declare one of them", .variants.join(", "))]
    Variants {
        /// The name.
        name: String,
        /// The symbols.
        variants: Vec<String>,
    },
    /// Several functions have that name.
    #[error("several matches: {count} functions are called '{name}' (at {}); rename one, or give the full symbol", Hex(.addresses))]
    Several {
        /// The name.
        name: String,
        /// How many.
        count: usize,
        /// Where, as addresses in the file.
        addresses: Vec<u64>,
    },
    /// It is chosen when the program is loaded.
    #[error("'{0}' is an indirect function (IFUNC): the symbol is the code that chooses one; declare the chosen one")]
    Indirect(String),
    /// Go, and not x86-64.
    #[error("'{0}' is a Go function: those can be declared on x86-64 only")]
    GoProcessor(String),
    /// Go, and its code was not understood.
    #[error("the returns of '{0}' were not found: an instruction at {1:#x} is not known")]
    UnknownCode(String, u64),
    /// Go, and too large or with too many returns.
    #[error("'{0}' is too large: more than 256 KB of code or {RETURNS} return instructions")]
    TooLarge(String),
    /// It never returns.
    #[error("'{0}' never returns")]
    NoReturn(String),
    /// The size of a caller is not known.
    #[error("the symbol of '{0}' has no size: where its code ends is not known")]
    NoSize(String),
    /// No such call.
    #[error(
        "'{caller}' has no call of '{callee}': it was inlined there or optimised away{}",
        if *.pointers == 0 { String::new() } else { format!(", or is one of {pointers} calls through pointers, which are not followed") }
    )]
    NoCall {
        /// The one that calls.
        caller: String,
        /// The one that is called.
        callee: String,
        /// Calls through pointers in the caller.
        pointers: usize,
    },
    /// It calls a variant.
    #[error("'{caller}' calls '{variant}', which the compiler made of '{callee}': declare that as the callee")]
    CallsVariant {
        /// The one that calls.
        caller: String,
        /// The one that is called.
        callee: String,
        /// The symbol.
        variant: String,
    },
    /// The call is the last thing its caller does.
    #[error("tail-called: '{caller}' ends with a jump to '{callee}' (at {}), which returns to the caller's caller; declare the function '{callee}'", Hex(.addresses))]
    TailCall {
        /// The one that calls.
        caller: String,
        /// The one that is called.
        callee: String,
        /// Where.
        addresses: Vec<u64>,
    },
    /// The lines have no region of code with one entry.
    #[error("lines {from} to {to} of {file}: {why}")]
    Lines {
        /// The file.
        file: String,
        /// The first line.
        from: u32,
        /// The last one.
        to: u32,
        /// Why not.
        why: String,
    },
    /// Several calls.
    #[error("several matches: '{caller}' calls '{callee}' at {} places ({}); declare the function '{callee}'", .addresses.len(), Hex(.addresses))]
    SeveralCalls {
        /// The one that calls.
        caller: String,
        /// The one that is called.
        callee: String,
        /// Where, tail calls included.
        addresses: Vec<u64>,
    },
    /// No such USDT probe.
    #[error(
        "no USDT probe '{probe}'{}",
        if .similar.is_empty() { ": the file has none".into() } else { Similar(.similar).to_string() }
    )]
    NoUsdt {
        /// The probe.
        probe: String,
        /// Probes like it.
        similar: Vec<String>,
    },
    /// It is not where a probe can be.
    #[error("the USDT probe '{probe}': {why}")]
    Usdt {
        /// The probe.
        probe: String,
        /// Why not.
        why: String,
    },
    /// It has too many places.
    #[error("the USDT probe '{0}' has more than {max} places", max = usdt::PLACES)]
    UsdtPlaces(String),
    /// An argument cannot be read.
    #[error("`{value}` of the USDT probe '{probe}' cannot be read: {why}")]
    UsdtArgument {
        /// The value.
        value: String,
        /// The probe.
        probe: String,
        /// Why not.
        why: String,
    },
    /// A global variable cannot be read.
    #[error("`{value}`: {why}")]
    Global {
        /// The value.
        value: String,
        /// Why not.
        why: String,
    },
    /// An argument that is passed on the stack.
    #[error(
        "`{value}`: only the first {registers} registers of arguments can be read here; further arguments are on the stack"
    )]
    NoRegister {
        /// The value.
        value: String,
        /// Argument registers of the calling convention.
        registers: u8,
    },
}

struct Similar<'a>(&'a [String]);

impl fmt::Display for Similar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (there are: {})", self.0.join(", ")) }
    }
}

struct Hex<'a>(&'a [u64]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().take(SIMILAR).map(|address| format!("{address:#x}")).collect();
        f.write_str(&all.join(", "))?;
        if self.0.len() > SIMILAR { f.write_str(", …") } else { Ok(()) }
    }
}

/// A function and its code, as addresses in the file.
struct Found {
    name: String,
    address: u64,
    size: u64,
    go: bool,
}

/// The offsets in a file of all calls of `callee` within `caller`.
pub(super) fn calls(path: &Path, caller: &str, callee: &str) -> Result<Vec<u64>, Refusal> {
    Binary::open(path)?.all_calls(caller, callee)
}

/// The functions of a program or library.
pub struct Binary {
    path: PathBuf,
    file: File,
    program: elf::Program,
    functions: Vec<Function>,
    /// It has a table of its own functions, not only of those it exports.
    whole: bool,
    is_go: bool,
}

impl Binary {
    /// Opens and reads a file.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        // Do not block if the path has become a FIFO or device.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|error| Refusal::Unreadable(error.to_string()))?;
        let no_program = || interpreters::of_script(&file).map_or(Refusal::NotProgram, Refusal::Script);
        let (functions, whole) = elf::functions(path).ok_or_else(no_program)?;
        let program = elf::Program::read(path, &[]).ok_or(Refusal::NotProgram)?;
        let is_go = Image::read(&file).is_some_and(|image| image.section(".gopclntab").is_some());
        Ok(Self { path: path.to_owned(), file, program, functions, whole, is_go })
    }

    /// Names of the functions that can be declared, in order; demangled as users write them.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.functions.iter().map(|function| plain(&function.name)).collect();
        self.each_go(|name, _, _| names.push(name.to_owned()));
        names.sort_unstable();
        names.dedup();
        names
    }

    fn each_go(&self, mut each: impl FnMut(&str, u64, u64)) {
        if !self.is_go {
            return;
        }
        let Some(image) = Image::read(&self.file) else { return };
        let Some((table, text)) = go_functions(&image) else { return };
        table.each(|name, range| {
            if let (Ok(name), Some(from)) = (std::str::from_utf8(name), text.checked_add(range.start)) {
                each(name, from, range.end.saturating_sub(range.start));
            }
        });
    }

    /// Where the probes of a declared transaction go, and that its values are where the code has them.
    pub fn declared(&self, declared: &Declared) -> Result<DeclaredSite, Refusal> {
        let mut site = match &declared.target {
            Target::Function(function) => self.site(function)?,
            Target::Call { caller, callee } => self.call(caller, callee)?,
            Target::Lines { file, from, to } => self.lines(lines::Lines { file, from: *from, to: *to })?,
            Target::Probes { provider, begin, end } => {
                return self.usdt_site(declared, (provider, begin, end.as_deref())).map(DeclaredSite::Usdt);
            }
        };
        for value in declared.values() {
            if value.registers() > site.arguments() {
                return Err(Refusal::NoRegister { value: value.to_string(), registers: site.arguments() });
            }
        }
        site.operands = self.with_globals(declared, &site)?;
        Ok(DeclaredSite::Code(site))
    }

    /// Where the probes of `function` go.
    pub fn site(&self, function: &str) -> Result<Site, Refusal> {
        let found = self.find(function)?;
        if found.go {
            return self.go_site(function, found.address, found.size);
        }
        let entry = self.program.offset(found.address).ok_or(Refusal::NotProgram)?;
        Ok(Site { name: found.name, entry, ends: Vec::new(), go: false, operands: None })
    }

    /// The one function of that name.
    fn find(&self, function: &str) -> Result<Found, Refusal> {
        let mut go = Vec::new();
        self.each_go(|name, from, size| {
            if name == function {
                go.push((from, size));
            }
        });
        if let [(address, size)] = go[..] {
            return Ok(Found { name: function.into(), address, size, go: true });
        }
        // What has neither is a symbol as in the file; there may be a hundred thousand to demangle.
        let is_plain = function.contains("::") || function.contains('(');
        let named = |one: &&Function| &*one.name == function || is_plain && plain(&one.name) == function;
        let mut found: Vec<&Function> = self.functions.iter().filter(named).collect();
        // The symbol that knows its size first.
        found.sort_unstable_by_key(|one| (one.address, std::cmp::Reverse(one.size)));
        found.dedup_by_key(|one| one.address);
        match found[..] {
            [] => Err(self.missing(function)),
            [one] if one.indirect => Err(Refusal::Indirect(function.into())),
            [one] => Ok(Found { name: one.name.to_string(), address: one.address, size: one.size, go: false }),
            _ => Err(Refusal::Several {
                name: function.into(),
                count: found.len(),
                addresses: found.iter().take(SIMILAR).map(|one| one.address).collect(),
            }),
        }
    }

    fn missing(&self, function: &str) -> Refusal {
        let variants: Vec<String> = self
            .functions
            .iter()
            .filter(|one| one.name.strip_prefix(function).is_some_and(|rest| rest.starts_with('.')))
            .map(|one| one.name.to_string())
            .take(SIMILAR)
            .collect();
        if !variants.is_empty() {
            return Refusal::Variants { name: function.into(), variants };
        }
        if let Some(language) = self.language() {
            return Refusal::Interpreted { name: function.into(), language };
        }
        if !self.whole && !self.is_go {
            return Refusal::Stripped(function.into());
        }
        if elf::debug_names(&self.file, function) {
            return Refusal::Inlined(function.into());
        }
        let wanted = function.to_ascii_lowercase();
        let mut similar: Vec<String> =
            self.names().into_iter().filter(|name| name.to_ascii_lowercase().contains(&wanted)).collect();
        similar.truncate(SIMILAR);
        Refusal::NoSymbol { name: function.into(), similar }
    }

    /// The language that this program runs, if it is an interpreter.
    fn language(&self) -> Option<Language> {
        let imports = elf::imports(&self.path);
        let called = imports.iter().map(|(_, name)| &**name);
        Language::of(self.functions.iter().map(|one| &*one.name).chain(called))
    }

    fn go_site(&self, function: &str, from: u64, size: u64) -> Result<Site, Refusal> {
        let image = Image::read(&self.file).ok_or(Refusal::NotProgram)?;
        if image.machine != image::X86_64 || cfg!(not(target_arch = "x86_64")) {
            return Err(Refusal::GoProcessor(function.into()));
        }
        if size > CODE {
            return Err(Refusal::TooLarge(function.into()));
        }
        let code = image.code(from, size as usize).ok_or(Refusal::NotProgram)?;
        let unknown = |at: usize| Refusal::UnknownCode(function.into(), from.saturating_add(at as u64));
        let found = returns(&code).map_err(unknown)?;
        if found.is_empty() {
            return Err(Refusal::NoReturn(function.into()));
        }
        if found.len() > RETURNS {
            return Err(Refusal::TooLarge(function.into()));
        }
        let place = |at: usize| image.place(from.checked_add(at as u64)?);
        // Behind the stack check, which may start the function again.
        let entry = place(functions::frame(&code).unwrap_or(0)).ok_or(Refusal::NotProgram)?;
        let end = |at| Ok(CallEnd { at: place(at).ok_or(Refusal::NotProgram)?, shared: false, stack: 0 });
        let ends = found.into_iter().map(end).collect::<Result<_, Refusal>>()?;
        Ok(Site { name: function.into(), entry, ends, go: true, operands: None })
    }
}

/// Go's table of functions, and the start of the code its ranges are relative to.
pub(super) fn go_functions(image: &Image<'_, File>) -> Option<(Functions<'static>, u64)> {
    let table = Functions::read(image)?;
    let (mut creates, mut queues) = (None, None);
    table.each(|name, range| match name {
        b"runtime.newproc.func1" => creates = Some(range),
        b"runtime.runqput" => queues = Some(range),
        _ => {}
    });
    let text = functions::text(image, table.text, &creates?, &queues?)?;
    Some((table, text))
}

/// A symbol as people write it.
fn plain(symbol: &str) -> String {
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return format!("{name:#}");
    }
    let is_cpp = symbol.starts_with("_Z");
    let name = is_cpp.then(|| cpp_demangle::Symbol::new(symbol).ok()?.demangle().ok()).flatten();
    name.unwrap_or_else(|| symbol.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function for the test to find.
    #[unsafe(no_mangle)]
    extern "C" fn tracer_declared_function_here() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn functions_of_this_program_are_found_or_refused_by_name() {
        assert_eq!(tracer_declared_function_here(), 7);
        let binary = Binary::open(Path::new("/proc/self/exe")).expect("a program");
        let site = binary.site("tracer_declared_function_here").expect("a function");
        assert!(site.entry > 0 && site.ends.is_empty() && site.probes() == 2);
        let missing = binary.site("tracer_declared_function").unwrap_err();
        assert!(missing.to_string().contains("tracer_declared_function_here"), "{missing}");
        assert!(matches!(Binary::open(Path::new("/proc/self/maps")), Err(Refusal::NotProgram)));
        assert!(matches!(Binary::open(Path::new("/nowhere")), Err(Refusal::Unreadable(_))));
    }
}
