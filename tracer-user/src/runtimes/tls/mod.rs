//! TLS libraries in processes: where to attach so that what they read and write is seen before it is encrypted.
//!
//! Only files are read here, and keys never are. Everything is total: a file may be any bytes, and where nothing can be
//! attached the reason is kept.

mod code;
mod go;
mod openssl;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tracer_common::runtime::UserProbe;

use super::maps::{Mapping, Maps, name};

/// Most libraries that one process is searched for.
const LIBRARIES: usize = 16;

/// A TLS library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Library {
    /// OpenSSL 1.1 and 3 as a shared library.
    OpenSsl,
    /// `crypto/tls` in a Go program.
    Go,
}

impl Library {
    /// Every library.
    pub const ALL: [Self; 2] = [Self::OpenSsl, Self::Go];

    /// Its name in settings, metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenSsl => "openssl",
            Self::Go => "go",
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
    /// The library.
    pub library: Library,
    /// The file, as the process names it.
    pub path: String,
    /// A path by which the agent can open it.
    pub open_by: PathBuf,
}

/// The files with TLS libraries that a process has mapped.
pub fn candidates(maps: &Maps, libraries: &Libraries) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    if libraries.has(Library::OpenSsl) {
        for mapping in maps.files.iter().filter(|mapping| is_openssl(&mapping.path)) {
            if found.len() < LIBRARIES && found.iter().all(|known| known.path != mapping.path) {
                found.push(Candidate {
                    library: Library::OpenSsl,
                    path: mapping.path.clone(),
                    open_by: open_by(maps, mapping),
                });
            }
        }
    }
    if libraries.has(Library::Go) {
        let exe = maps.open_by(&maps.exe);
        if open(&exe).is_some_and(|file| go::is_go(&file)) {
            found.push(Candidate { library: Library::Go, path: maps.exe.clone(), open_by: exe });
        }
    }
    found
}

fn open_by(maps: &Maps, mapping: &Mapping) -> PathBuf {
    if mapping.deleted { maps.mapped(mapping) } else { maps.open_by(&mapping.path) }
}

/// Whether a path is that of OpenSSL's shared library: `libssl.so.3`, or a copy in a Python wheel,
/// `libssl-8bd944e8.so.3`.
pub fn is_openssl(path: &str) -> bool {
    let base = name(path);
    let rest = base.strip_prefix("libssl").filter(|rest| rest.starts_with('.') || rest.starts_with('-'));
    rest.is_some_and(|rest| rest.contains(".so"))
}

/// The TLS libraries of a process that are known by name and whose text is not traced: the library and its file.
pub fn untraced(maps: &Maps) -> Vec<(&'static str, &str)> {
    let mut found: Vec<(&'static str, &str)> = Vec::new();
    for mapping in &maps.files {
        let base = name(&mapping.path);
        let library = match base {
            _ if base.starts_with("libgnutls.so") => "gnutls",
            "libssl3.so" => "nss",
            "libjvm.so" => "jsse",
            _ => continue,
        };
        if found.len() < LIBRARIES && !found.contains(&(library, &*mapping.path)) {
            found.push((library, &mapping.path));
        }
    }
    found
}

/// Where the probes of `library` go in the file at `path`.
pub fn inspect(library: Library, path: &Path) -> Result<Sites, Refusal> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Refusal::NotProgram);
    }
    let file = open(path).ok_or(Refusal::Unreadable)?;
    match library {
        Library::OpenSsl => openssl::inspect(path, &file),
        Library::Go => go::inspect(&file),
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
        assert_eq!(Libraries::parse("go, openssl"), Ok(Libraries::default()));
        assert!(!Libraries::parse("go").unwrap().has(Library::OpenSsl));
        for text in ["", "gnutls", "go,", "on"] {
            assert!(Libraries::parse(text).unwrap_err().contains("expected auto"), "{text}");
        }
    }

    #[test]
    fn names_of_openssl() {
        for (path, is) in [
            ("/usr/lib/x86_64-linux-gnu/libssl.so.3", true),
            ("/usr/lib/libssl.so.1.1", true),
            ("/venv/psycopg2_binary.libs/libssl-8bd944e8.so.3.5.8", true),
            ("/usr/lib/libssl3.so", false),
            ("/usr/lib/libsslcommon.so", false),
            ("/usr/lib/libcrypto.so.3", false),
        ] {
            assert_eq!(is_openssl(path), is, "{path}");
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
        let found = inspect(Library::OpenSsl, path).expect("OpenSSL");
        assert!(found.sites.len() >= 7, "{found:?}");
        assert!(found.sites.iter().any(|site| site.probe == UserProbe::TlsFree));
        assert_eq!(inspect(Library::Go, path), Err(Refusal::NotProgram));
        assert_eq!(inspect(Library::OpenSsl, Path::new("/proc/self/exe")), Err(Refusal::NoFunctions));
        assert_eq!(inspect(Library::OpenSsl, Path::new("/proc/self")), Err(Refusal::Unreadable));
    }
}
