//! TLS libraries in processes: where to attach so that what they read and write is seen before it is encrypted.
//!
//! Only files are read here, and keys never are. Everything is total: a file may be any bytes, and where nothing can be
//! attached the reason is kept.

mod flow;
mod functions;
mod gnutls;
mod go;
mod inside;
mod nss;
mod openssl;
mod rustls;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tracer_common::runtime::UserProbe;

use super::maps::{Mapping, Maps, name};

/// Most libraries that one process is searched for.
const LIBRARIES: usize = 16;
/// Least size of a program that contains a TLS library, bytes: OpenSSL alone has more.
const STATIC: u64 = 1 << 20;

/// The file of NSS with its TLS.
pub const NSS: &str = "libssl3.so";

/// Most bytes of a program's constants that are searched.
const CONSTANTS: usize = 64 << 20;

/// A TLS library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Library {
    /// OpenSSL 1.1 and 3, as a shared library or inside a program.
    OpenSsl,
    /// `crypto/tls` in a Go program.
    Go,
    /// GnuTLS 3 as a shared library.
    GnuTls,
    /// NSS 3 as a shared library.
    Nss,
    /// rustls inside a program.
    Rustls,
}

impl Library {
    /// Every library.
    pub const ALL: [Self; 5] = [Self::OpenSsl, Self::Go, Self::GnuTls, Self::Nss, Self::Rustls];

    /// Its name in settings, metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenSsl => "openssl",
            Self::Go => "go",
            Self::GnuTls => "gnutls",
            Self::Nss => "nss",
            Self::Rustls => "rustls",
        }
    }
}

/// The libraries whose text is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libraries(Vec<Library>);

impl Default for Libraries {
    fn default() -> Self {
        Self(Library::ALL.to_vec())
    }
}

impl Libraries {
    /// Parses `auto`, `off`, or names separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            let names = Library::ALL.map(Library::name).join(", ");
            format!("'{text}' is no choice of TLS libraries: expected auto, off, or a list of {names}")
        };
        match text.trim() {
            "auto" => Ok(Self::default()),
            "off" => Ok(Self(Vec::new())),
            list => {
                let one = |word: &str| Library::ALL.into_iter().find(|known| known.name() == word.trim());
                let mut found = list.split(',').map(one).collect::<Option<Vec<_>>>().ok_or_else(expected)?;
                found.sort_unstable();
                found.dedup();
                Ok(Self(found))
            }
        }
    }

    /// Whether it is one of them.
    pub fn has(&self, library: Library) -> bool {
        self.0.contains(&library)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where a probe goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The probe.
    pub probe: UserProbe,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// What the probe is told (`tracer_common::runtime::tls`).
    pub cookie: u64,
}

/// The places of a library in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// All of them, returns before entries.
    pub sites: Vec<Site>,
    /// Probes at instructions that the kernel single-steps, which costs some 15 microseconds a hit instead of one.
    pub stepped: usize,
    /// Objects that read and write memory instead of a socket, as those of Node.js and asyncio do, are tied to no socket: the
    /// code does not show how. Their text is seen and belongs to no connection.
    pub memory_unbound: bool,
}

/// Why a file's library cannot be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Unreadable,
    /// Not a file for this machine.
    #[error("not an ELF file for this processor (x86-64)")]
    NotProgram,
    /// A program without a TLS library inside.
    #[error("it contains no TLS library")]
    Absent,
    /// A program with a library inside, whose functions have no names.
    #[error("it contains OpenSSL or BoringSSL, and its symbols are stripped")]
    Stripped,
    /// A program with rustls inside, whose functions have no names.
    #[error("it contains rustls, and its symbols are stripped")]
    RustlsStripped,
    /// A program with another version of rustls inside.
    #[error("the code of its rustls is not as expected (another version)")]
    RustlsUnknown,
    /// It lacks functions.
    #[error("it does not have the functions that are needed (another library, or stripped)")]
    NoFunctions,
    /// A function's code is not known.
    #[error("the code of its functions is not as expected (another version)")]
    UnknownCode,
}

/// A file with a TLS library, as a process has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The library; `None`: a program that may contain one.
    pub library: Option<Library>,
    /// The file, as the process names it.
    pub path: String,
    /// A path by which the agent can open it.
    pub open_by: PathBuf,
    /// Where it lies: a library that belongs to it is searched for beside it. May lead to no file or another one.
    pub lies_at: PathBuf,
}

impl Candidate {
    /// The library's name in messages.
    pub fn name(&self) -> &'static str {
        self.library.map_or("a library inside", Library::name)
    }
}

/// The files with TLS libraries that a process has mapped.
pub fn candidates(maps: &Maps, libraries: &Libraries) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for mapping in &maps.files {
        let Some(library) = shared(&mapping.path).filter(|library| libraries.has(*library)) else { continue };
        if found.len() < LIBRARIES && found.iter().all(|known| known.path != mapping.path) {
            let (path, open_by, lies_at) = (mapping.path.clone(), open_by(maps, mapping), maps.open_by(&mapping.path));
            found.push(Candidate { library: Some(library), path, open_by, lies_at });
        }
    }
    let exe = maps.open_by(&maps.exe);
    if let Some(file) = open(&exe) {
        let is_go = go::is_go(&file);
        let wanted = if is_go {
            libraries.has(Library::Go)
        } else {
            let contained = [Library::OpenSsl, Library::Rustls].iter().any(|library| libraries.has(*library));
            contained && file.metadata().is_ok_and(|meta| meta.len() >= STATIC)
        };
        if wanted {
            let (library, path, lies_at) = (is_go.then_some(Library::Go), maps.exe.clone(), exe.clone());
            found.push(Candidate { library, path, open_by: exe, lies_at });
        }
    }
    found
}

fn open_by(maps: &Maps, mapping: &Mapping) -> PathBuf {
    let (by_path, mapped) = (maps.open_by(&mapping.path), maps.mapped(mapping));
    let numbers = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    // A path may lead to no file or to another one: the mapping always leads to that which is mapped, but not for an agent
    // with few privileges.
    match numbers(&mapped) {
        Some(it) if numbers(&by_path) != Some(it) => mapped,
        None if mapping.deleted => mapped,
        _ => by_path,
    }
}

/// The library whose shared object has this path: `libssl.so.3`, or a copy in a Python wheel, `libssl-8bd944e8.so.3`.
pub fn shared(path: &str) -> Option<Library> {
    let rest = |stem| name(path).strip_prefix(stem).filter(|rest: &&str| rest.contains(".so"));
    if rest("libssl").is_some_and(|rest| rest.starts_with(['.', '-'])) {
        return Some(Library::OpenSsl);
    }
    if name(path) == NSS {
        return Some(Library::Nss);
    }
    // `libgnutls-dane` and others like it are no part of it.
    rest("libgnutls").is_some_and(|rest| rest.starts_with('.')).then_some(Library::GnuTls)
}

/// The TLS libraries of a process that are known by name and whose text is not traced: the library and its file.
pub fn untraced(maps: &Maps) -> Vec<(&'static str, &str)> {
    let mut found: Vec<(&'static str, &str)> = Vec::new();
    for mapping in &maps.files {
        let base = name(&mapping.path);
        let library = match base {
            "libjvm.so" => "jsse",
            _ => continue,
        };
        if found.len() < LIBRARIES && !found.contains(&(library, &*mapping.path)) {
            found.push((library, &mapping.path));
        }
    }
    found
}

/// The version of rustls in a program.
pub fn rustls(candidate: &Candidate) -> Option<String> {
    rustls::version(&open(&candidate.open_by)?)
}

/// Which of `libraries` a file is or contains, and where its probes go.
pub fn inspect(candidate: &Candidate, libraries: &Libraries) -> Result<(Library, Sites), Refusal> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Refusal::NotProgram);
    }
    let path = candidate.open_by.as_path();
    let file = open(path).ok_or(Refusal::Unreadable)?;
    let beside = candidate.lies_at.as_path();
    let Some(library) = candidate.library else { return inspect_program(path, beside, &file, libraries) };
    let sites = match library {
        Library::OpenSsl => openssl::inspect(path, beside, &file),
        Library::Go => go::inspect(&file),
        Library::GnuTls => gnutls::inspect(path, &file),
        Library::Nss => nss::inspect(path, &file),
        Library::Rustls => rustls::inspect(&file),
    };
    sites.map(|sites| (library, sites))
}

/// What a program contains: OpenSSL or BoringSSL, else rustls.
fn inspect_program(
    path: &Path,
    beside: &Path,
    file: &File,
    libraries: &Libraries,
) -> Result<(Library, Sites), Refusal> {
    let inspected = match libraries.has(Library::OpenSsl).then(|| openssl::inspect(path, beside, file)) {
        Some(Err(Refusal::NoFunctions)) if openssl::is_inside(file) => Err(Refusal::Stripped),
        // Whatever it is.
        None | Some(Err(Refusal::NoFunctions | Refusal::NotProgram)) => Err(Refusal::Absent),
        Some(done) => done.map(|sites| (Library::OpenSsl, sites)),
    };
    match inspected {
        Err(refusal @ (Refusal::Absent | Refusal::Stripped)) if libraries.has(Library::Rustls) => {
            match rustls::inspect(file) {
                Err(Refusal::Absent | Refusal::NotProgram) => Err(refusal),
                done => done.map(|sites| (Library::Rustls, sites)),
            }
        }
        done => done,
    }
}

fn open(path: &Path) -> Option<File> {
    // Do not block if the path has become a FIFO or device.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_chosen_by_name() {
        assert!(Libraries::parse("off").unwrap().is_empty());
        assert_eq!(Libraries::parse("auto"), Ok(Libraries::default()));
        assert_eq!(Libraries::parse("go, nss, gnutls,openssl,rustls"), Ok(Libraries::default()));
        assert!(!Libraries::parse("go").unwrap().has(Library::OpenSsl));
        for text in ["", "jsse", "go,", "on"] {
            assert!(Libraries::parse(text).unwrap_err().contains("expected auto"), "{text}");
        }
    }

    #[test]
    fn libraries_are_known_by_their_files_names() {
        for (path, expected) in [
            ("/usr/lib/x86_64-linux-gnu/libssl.so.3", Some(Library::OpenSsl)),
            ("/usr/lib/libssl.so.1.1", Some(Library::OpenSsl)),
            ("/venv/psycopg2_binary.libs/libssl-8bd944e8.so.3.5.8", Some(Library::OpenSsl)),
            ("/usr/lib/x86_64-linux-gnu/libgnutls.so.30.34.3", Some(Library::GnuTls)),
            ("/usr/lib/libgnutls-dane.so.0", None),
            ("/usr/lib/libssl3.so", Some(Library::Nss)),
            ("/usr/lib/libsslcommon.so", None),
            ("/usr/lib/libcrypto.so.3", None),
        ] {
            assert_eq!(shared(path), expected, "{path}");
        }
    }

    #[test]
    fn the_librarys_places_need_no_single_step() {
        let Some(path) =
            ["/usr/lib/x86_64-linux-gnu/libssl.so.3"].into_iter().map(Path::new).find(|path| path.exists())
        else {
            println!("SKIPPED runtimes::tls: no libssl.so.3 here");
            return;
        };
        let inspect = |library, path: &Path| {
            let (open_by, lies_at) = (path.into(), path.into());
            inspect(&Candidate { library, path: String::new(), open_by, lies_at }, &Libraries::default())
        };
        let (library, found) = inspect(Some(Library::OpenSsl), path).expect("OpenSSL");
        assert_eq!(library, Library::OpenSsl);
        // Forgetting (two), handshakes (two), a copy and a record.
        assert!(found.sites.len() >= 6 && found.stepped == 0, "{found:?}");
        assert!(found.sites.iter().any(|site| site.probe == UserProbe::TlsFree));
        assert_eq!(inspect(Some(Library::Go), path), Err(Refusal::NotProgram));
        assert_eq!(inspect(Some(Library::GnuTls), path), Err(Refusal::NoFunctions));
        let own = Path::new("/proc/self/exe");
        assert_eq!(inspect(Some(Library::OpenSsl), own), Err(Refusal::NoFunctions));
        rustls::tests::use_rustls();
        assert_eq!(inspect(None, own).expect("rustls").0, Library::Rustls);
        assert_eq!(inspect(Some(Library::OpenSsl), Path::new("/proc/self")), Err(Refusal::Unreadable));
        assert_eq!(inspect(None, Path::new("/bin/true")), Err(Refusal::Absent));
        // The library, as it looks inside a program without symbols.
        assert!(openssl::is_inside(&File::open(path).expect("a file")));
    }
}
