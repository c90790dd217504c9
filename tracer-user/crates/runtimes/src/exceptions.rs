//! Exceptions: the functions that throw them, where these have what says an exception's type, and the number that their probes
//! carry.
//!
//! Total: a file may be any bytes. On x86-64 only.

use std::fs::OpenOptions;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tracer_common::runtime::{NO_REGISTER, OPERAND_MEMORY, OPERAND_REGISTER, Operand, Operands, declared as cookie};

use super::declared::{ProbePlace, calls, go_functions};
use super::go::image::{Image, X86_64};
use super::maps::{Maps, name};
use super::{elf, python};

#[cfg(test)]
mod fake_memory;
mod python_module;
mod type_name;

pub use python_module::PythonModules;
pub use type_name::{RawTypeName, TYPE_NAME_MAX, raw};

/// Most files of one runtime whose probes can be told apart.
pub const FILES: u64 = 64;
/// Exceptions a second beyond which a file loses its probe, unless configured.
const MAX_RATE: u32 = 1000;

/// Clauses that Python compares with one exception, for the limit: ten.
const PYTHON_CLAUSES: u32 = 10;
/// Versions of Python whose objects are known.
const PYTHON_MINORS: RangeInclusive<u8> = 9..=13;

/// What is configured of exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceptionSettings {
    /// Whether they are traced.
    pub enabled: bool,
    /// Exceptions a second beyond which a file loses its probe, until the processes that have it mapped have ended.
    pub max_rate: u32,
}

impl Default for ExceptionSettings {
    fn default() -> Self {
        Self { enabled: false, max_rate: MAX_RATE }
    }
}

/// What throws exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThrowingRuntime {
    /// C++ with GNU's library.
    Cpp,
    /// Go, whose exceptions are panics.
    Go,
    /// PHP from 8.0 on.
    Php,
    /// `CPython` 3.9 to 3.13: not where exceptions are thrown, which it does all the time, but where they are caught.
    Python,
}

impl ThrowingRuntime {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cpp, Self::Go, Self::Php, Self::Python];

    /// Its name, also a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpp => "cpp",
            Self::Go => "go",
            Self::Php => "php",
            Self::Python => "python",
        }
    }

    /// The number of its `file`th file, as probes carry it and records have it.
    pub fn number(self, file: u64) -> u64 {
        cookie::EXCEPTIONS + self as u64 * FILES + file.min(FILES - 1)
    }

    /// How many hits of the probe count as one exception: of Python's most are clauses that do not fit, or expect what they catch.
    pub fn hits_an_exception(self) -> u32 {
        if self == Self::Python { PYTHON_CLAUSES } else { 1 }
    }

    /// Whose number that is; `None`: a declared transaction's.
    pub fn of(number: u64) -> Option<Self> {
        let index = number.checked_sub(cookie::EXCEPTIONS)?;
        Self::ALL.get(usize::try_from(index / FILES).ok()?).copied()
    }

    /// The cookie of a probe with this number.
    pub fn cookie(self, number: u64) -> u64 {
        let text = match self {
            Self::Cpp => 2 << cookie::FIRST | 3 << cookie::SECOND,
            Self::Go => 3 << cookie::FIRST | cookie::GO,
            Self::Php => 4 << cookie::FIRST | 5 << cookie::SECOND,
            Self::Python => 2 << cookie::FIRST | 4 << cookie::SECOND,
        };
        number & cookie::INDEX | cookie::EXCEPTION | cookie::VALUES | text
    }
}

/// A file that may throw exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Its path, as its process sees it.
    pub path: String,
    /// A path by which the agent can open it.
    pub open_by: PathBuf,
}

/// The files of a process that may throw: its program, GNU's C++ library, and PHP and Python as libraries.
pub fn files_that_may_throw(maps: &Maps) -> Vec<MappedFile> {
    let file = |path: &str| MappedFile { path: path.to_owned(), open_by: maps.open_by(path) };
    let wanted = |path: &str| ["libstdc++.so.", "libphp", "libpython3."].iter().any(|it| name(path).starts_with(it));
    let mut found = vec![file(&maps.exe)];
    for mapping in maps.files.iter().filter(|mapping| !mapping.deleted && wanted(&mapping.path)) {
        if found.iter().all(|known| known.path != mapping.path) {
            found.push(file(&mapping.path));
        }
    }
    found
}

/// Where a file throws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrowSite {
    /// What does.
    pub runtime: ThrowingRuntime,
    /// Where its probe goes.
    pub probe: ThrowProbe,
}

/// A probe of a function that throws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThrowProbe {
    /// At the function's beginning, with what says the type there.
    Thrown(ProbePlace),
    /// Where Python compares an `except` clause with what was thrown.
    PythonExcept {
        /// The calls.
        at: Vec<u64>,
        /// The version: 3.`minor`.
        minor: u8,
    },
}

/// A function that throws: its symbol, and what says the type where it begins.
type ThrowFunction = (&'static str, ThrowingRuntime, fn() -> Operands);

const FUNCTIONS: [ThrowFunction; 2] =
    [("__cxa_throw", ThrowingRuntime::Cpp, of_cpp), ("zend_throw_exception_internal", ThrowingRuntime::Php, of_php)];
/// Go's, by its own table of functions.
const GO_PANIC: &[u8] = b"runtime.gopanic";
/// The symbol of the types of a Go program.
const GO_TYPES: &str = "runtime.types";

/// Python's function that compares a clause with an exception, the loop that calls it for clauses (the interpreter's own code does so
/// five times as often), and its version, in the file since 3.11.
const PYTHON_MATCHES: &str = "PyErr_GivenExceptionMatches";
const PYTHON_LOOP: &str = "_PyEval_EvalFrameDefault";
const PYTHON_VERSION: &str = "Py_Version";

/// Where a file throws exceptions; nothing if it does not, or is no program for this machine.
pub fn sites(file: &MappedFile) -> Vec<ThrowSite> {
    let path = &*file.open_by;
    if cfg!(not(target_arch = "x86_64")) {
        return Vec::new();
    }
    let wanted: Vec<&str> =
        FUNCTIONS.iter().map(|(symbol, ..)| *symbol).chain([GO_TYPES, PYTHON_MATCHES, PYTHON_VERSION]).collect();
    let Some(program) = elf::Program::read(path, &wanted) else { return Vec::new() };
    let mut found = Vec::new();
    for (symbol, runtime, operands) in FUNCTIONS {
        if let Some(at) = program.address(symbol).and_then(|address| program.offset(address)) {
            found.push(ThrowSite { runtime, probe: ThrowProbe::Thrown(place(at, operands())) });
        }
    }
    if program.address(PYTHON_MATCHES).is_some()
        && let Some(minor) = python_minor(file, &program)
        && let Ok(at) = calls(path, PYTHON_LOOP, PYTHON_MATCHES).inspect_err(|why| {
            log::warn!("exceptions of python are not traced in {}: {why}", file.path);
        })
    {
        found.push(ThrowSite { runtime: ThrowingRuntime::Python, probe: ThrowProbe::PythonExcept { at, minor } });
    }
    if let Some((address, at)) = go_panic(path) {
        // Without its symbol the types are not found, and panics have no type.
        let types = program.address(GO_TYPES).map(|types| types.wrapping_sub(address) as i64);
        found.push(ThrowSite { runtime: ThrowingRuntime::Go, probe: ThrowProbe::Thrown(place(at, of_go(types))) });
    }
    found
}

fn place(at: u64, operands: Operands) -> ProbePlace {
    ProbePlace { at, semaphore: None, operands: Some(Box::new(operands)) }
}

/// The version of Python in a file, by its name or what it says itself; `None`: another build, or none whose objects are known.
fn python_minor(file: &MappedFile, program: &elf::Program) -> Option<u8> {
    let name = name(&file.path);
    let minor = if name.contains("python3.") {
        python::minor(name)
    } else {
        let at = program.offset(program.address(PYTHON_VERSION)?)?;
        let mut version = [0; 4];
        open(&file.open_by)?.read_exact_at(&mut version, at).ok()?;
        let [_, _, minor, major] = version;
        (major == 3).then_some(minor)
    };
    minor.filter(|minor| PYTHON_MINORS.contains(minor))
}

/// Does not block if the path has become a FIFO or device.
fn open(path: &Path) -> Option<std::fs::File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
}

/// Address and offset of the function that Go's panics go through.
fn go_panic(path: &Path) -> Option<(u64, u64)> {
    let file = open(path)?;
    let image = Image::read(&file)?;
    if image.machine != X86_64 || image.section(".gopclntab").is_none() {
        return None;
    }
    let (table, text) = go_functions(&image)?;
    let mut found = None;
    table.each(|name, range| {
        if name == GO_PANIC {
            found = text.checked_add(range.start);
        }
    });
    found.and_then(|address| Some((address, image.place(address)?)))
}

/// Offsets of registers in `pt_regs` of x86-64.
const RAX: u8 = 80;
const RSI: u8 = 104;
const RDI: u8 = 112;
const RIP: u8 = 128;

const NONE: Operand = Operand {
    displacement: 0,
    kind: OPERAND_REGISTER,
    base: NO_REGISTER,
    index: NO_REGISTER,
    scale: 0,
    unused_bits: 0,
    is_signed: 0,
    adds_previous: 0,
    reserved: 0,
};

/// What a register has.
fn register(base: u8) -> Operand {
    Operand { base, ..NONE }
}

/// A word in memory.
fn word(base: u8, displacement: i64) -> Operand {
    Operand { base, displacement, kind: OPERAND_MEMORY, ..NONE }
}

/// An operand at, or beyond, the value of the one before.
fn from_previous(operand: Operand) -> Operand {
    Operand { adds_previous: 1, ..operand }
}

fn operands(these: impl IntoIterator<Item = Operand>) -> Operands {
    let mut all = Operands::default();
    for (place, operand) in all.iter_mut().zip(these) {
        *place = operand;
    }
    all
}

/// `__cxa_throw(object, std::type_info *, …)`: the type, its name, and what follows the name's first 63 bytes.
fn of_cpp() -> Operands {
    let name = word(RSI, type_name::CPP_NAME as i64);
    let rest = Operand { displacement: type_name::PART as i64, ..NONE };
    operands([register(RSI), name, from_previous(rest)])
}

/// `runtime.gopanic(any)`: the type; with the place of `types` as seen from the function the offset of its name among these, the
/// name itself behind one byte of flags and one of length, that length, and the type's own flags.
fn of_go(types: Option<i64>) -> Operands {
    let Some(types) = types else { return operands([register(RAX)]) };
    let offset = Operand { unused_bits: 32, ..word(RAX, type_name::GO_NAME as i64) };
    let name = Operand { displacement: types.wrapping_add(type_name::GO_NAME_HEAD as i64), ..register(RIP) };
    let len = Operand { unused_bits: 56, ..word(NO_REGISTER, -1) };
    let flags = Operand { unused_bits: 56, ..word(RAX, type_name::GO_FLAGS as i64) };
    operands([register(RAX), offset, from_previous(name), from_previous(len), flags])
}

/// `zend_throw_exception_internal(zend_object *)`: the object, its class, the string with that one's name, its bytes, and what
/// follows the first 63.
fn of_php() -> Operands {
    let class = word(RDI, type_name::PHP_CLASS as i64);
    let name = word(NO_REGISTER, type_name::PHP_NAME as i64);
    let bytes = Operand { displacement: type_name::PHP_BYTES as i64, ..NONE };
    let rest = Operand { displacement: type_name::PART as i64, ..NONE };
    operands([register(RDI), class, from_previous(name), from_previous(bytes), from_previous(rest)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_whose_they_are() {
        for runtime in ThrowingRuntime::ALL {
            for file in [0, 1, FILES - 1, FILES, u64::MAX] {
                let number = runtime.number(file);
                assert_eq!(ThrowingRuntime::of(number), Some(runtime), "{file}");
                assert!(number < u64::from(cookie::NUMBERS));
                let whole = runtime.cookie(number);
                assert_eq!(whole & cookie::INDEX | cookie::EXCEPTIONS, number);
                assert_eq!(whole >> cookie::OPERANDS, 0, "room for the number of its operands");
            }
        }
        for number in [0, cookie::CALIBRATION, cookie::EXCEPTIONS + 4 * FILES, u64::MAX] {
            assert_eq!(ThrowingRuntime::of(number), None);
        }
    }

    #[test]
    fn what_does_not_throw_has_no_place() {
        let of = |path: &str| sites(&MappedFile { path: path.into(), open_by: path.into() });
        assert!(of("/proc/self/status").is_empty());
        assert!(of("/").is_empty());
        // Rust's own panics are others.
        assert!(of("/proc/self/exe").is_empty());
    }
}
