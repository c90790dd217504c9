//! How much debug information the files of a process have, with the separate files that belong to them. It is looked at before
//! any of it is read: a compressed section itself says how much memory it takes, and a program of a megabyte may have a debug
//! file of a gigabyte.
//!
//! Separate files are looked for where the library that reads them looks: by build id and by name in the configured
//! directories, and beside the program. All that exist count, though one is read.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader64, PT_LOAD, SHF_COMPRESSED, SHT_NOTE};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use rustc_hash::FxHashMap;
use tracer_unwind::BoundedFile;

use super::debug_requests::DebugRequests;

/// Files whose debug information is remembered.
const FILES: usize = 4096;
/// Sections of a file that are looked at.
const SECTIONS: usize = 4096;
/// Memory that reading takes, in bytes of the sections: what is made of them, and the uncompressed sections themselves where they
/// were compressed. 10 MB of the C library's took 37 MB.
const MEMORY: u64 = 3;
const MEMORY_COMPRESSED: u64 = 4;
/// Longest link to another file.
const LINK: u64 = 4096;
/// Directories with separate debug files, where none are configured.
const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];

/// A file at one time.
type Version = (u64, u64, u64, i64);

/// Files with debug information, and how much memory that of each takes, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DebugFiles(FxHashMap<Version, u64>);

impl DebugFiles {
    /// Memory that all of them take.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().fold(0, |all, bytes| all.saturating_add(*bytes))
    }

    #[cfg(test)]
    pub(super) fn test(files: &[(u64, u64)]) -> Self {
        Self(files.iter().map(|(inode, bytes)| ((0, *inode, 0, 0), *bytes)).collect())
    }

    /// Adds those of another program.
    pub(super) fn add(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }
}

/// A part of a file that is mapped: where it is in the file, its length, and where the file wants it in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    offset: u64,
    len: u64,
    address: u64,
}

impl Segment {
    /// The address of what is at `offset` of the file.
    pub(super) fn address(self, offset: u64) -> Option<u64> {
        let within = offset.checked_sub(self.offset).filter(|within| *within < self.len)?;
        self.address.checked_add(within)
    }
}

/// What a file says of debug information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DebugSections {
    /// Memory that reading it takes.
    bytes: u64,
    /// Whether it describes functions: lines alone do not count.
    pub(super) has_functions: bool,
    /// Whether it has any that cannot be read.
    unreadable: bool,
    pub(super) build_id: Vec<u8>,
    pub(super) segments: Vec<Segment>,
    /// Name of its separate file.
    link: Option<PathBuf>,
    /// Path and build id of a file that several of them share.
    shared: Option<(PathBuf, Vec<u8>)>,
}

/// What is known of files with debug information.
#[derive(Debug)]
pub(super) struct DebugInfo {
    directories: Vec<PathBuf>,
    /// Who is asked for files that are not there.
    requests: Option<DebugRequests>,
    files: FxHashMap<Version, Option<DebugSections>>,
}

impl DebugInfo {
    /// With separate files in these directories, in their order; empty: where distributions install them.
    pub(super) fn new(directories: &[PathBuf]) -> Self {
        let usual = || DIRECTORIES.map(PathBuf::from).to_vec();
        let directories = if directories.is_empty() { usual() } else { directories.to_vec() };
        Self { directories, requests: None, files: FxHashMap::default() }
    }

    /// The same; files that are not there are asked for, and come to a directory that is looked into last.
    pub(super) fn asking(mut self, requests: DebugRequests) -> Self {
        self.directories.push(requests.directory());
        self.requests = Some(requests);
        self
    }

    /// Where separate files are looked for.
    pub(super) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The debug information that would be read for a program of these files, each with the path that the program knows it by;
    /// `None` where any of it cannot be read, or must not.
    pub(super) fn of(&mut self, files: &[(PathBuf, PathBuf)]) -> Option<DebugFiles> {
        let mut all = DebugFiles::default();
        for (file, path) in files {
            let about = self.about(file, &mut all)?;
            let mut packed = path.clone().into_os_string();
            packed.push(".dwp");
            self.if_there(Path::new(&packed), &mut all)?;
            let separate = match &about.link {
                Some(link) => self.candidates(link, &about.build_id, path),
                None if about.has_functions => Vec::new(),
                None => self.by_build_id(&about.build_id).collect(),
            };
            let mut is_there = about.has_functions;
            for separate in separate {
                let found = self.if_there(&separate, &mut all)?;
                is_there |= found.has_functions;
                if let Some((name, build_id)) = &found.shared {
                    for shared in self.candidates(name, build_id, &separate) {
                        self.if_there(&shared, &mut all)?;
                    }
                }
            }
            if let Some(requests) =
                self.requests.as_ref().filter(|_| !is_there && by_build_id(&about.build_id).is_some())
            {
                requests.ask(&about.build_id);
            }
        }
        Some(all)
    }

    /// Where the debug file of a build id may be.
    fn by_build_id(&self, build_id: &[u8]) -> impl Iterator<Item = PathBuf> {
        let place = by_build_id(build_id);
        self.directories.iter().filter_map(move |directory| Some(directory.join(place.as_ref()?)))
    }

    /// Where a file that `from` names may be.
    fn candidates(&self, name: &Path, build_id: &[u8], from: &Path) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.by_build_id(build_id).collect();
        all.extend(self.directories.iter().map(|directory| directory.join(name)));
        let from = std::fs::canonicalize(from).unwrap_or_else(|_| from.to_owned());
        all.push(from.with_file_name(name));
        for directory in &self.directories {
            let inside = from.strip_prefix("/").unwrap_or(&from).ancestors().skip(1);
            all.extend(inside.take(64).map(|above| directory.join(above).join(name)));
        }
        all.sort();
        all.dedup();
        all.retain(|path| *path != from);
        all
    }

    /// What a file says that need not exist; `None` of one that is nothing to read.
    fn if_there(&mut self, path: &Path, all: &mut DebugFiles) -> Option<DebugSections> {
        if path.exists() { self.about(path, all) } else { Some(DebugSections::default()) }
    }

    /// What a file says, with its bytes among `all`; `None` where that is nothing to read: no regular file, of another user,
    /// unreadable.
    fn about(&mut self, path: &Path, all: &mut DebugFiles) -> Option<DebugSections> {
        let file = trusted(path)?;
        let found = file.metadata().ok()?;
        let version = (found.dev(), found.ino(), found.len(), found.mtime());
        if !self.files.contains_key(&version) {
            if self.files.len() >= FILES {
                self.files.clear();
            }
            self.files.insert(version, read(file).filter(|about| !about.unreadable));
        }
        let about = self.files.get(&version)?.clone()?;
        all.0.extend((about.bytes > 0).then_some((version, about.bytes)));
        Some(about)
    }
}

/// Opens a regular file of root or of our own user.
pub(super) fn trusted(path: &(impl AsRef<Path> + ?Sized)) -> Option<File> {
    // A FIFO must not stop this.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    // SAFETY: takes nothing, cannot fail.
    let own = unsafe { libc::geteuid() };
    (found.is_file() && (found.uid() == 0 || found.uid() == own)).then_some(file)
}

/// The build id of a debug file that describes functions.
pub fn debug_file_id(path: &Path) -> Option<Vec<u8>> {
    read(trusted(path)?).filter(|about| about.has_functions && !about.unreadable).map(|about| about.build_id)
}

/// The path of a debug file below a directory of them.
pub fn by_build_id(build_id: &[u8]) -> Option<PathBuf> {
    // Shorter ones are none.
    let (first, rest) = build_id.split_first().filter(|_| (8..=64).contains(&build_id.len()))?;
    let mut name = String::new();
    for byte in rest {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    Some(Path::new(".build-id").join(format!("{first:02x}")).join(name + ".debug"))
}

/// Reads what a file says of debug information; nothing of one that is no program, `None` of one that is broken.
pub(super) fn read(file: File) -> Option<DebugSections> {
    let data = ReadCache::new(BoundedFile::new(file));
    let data = &data;
    let magic: &[u8] = object::ReadRef::read_bytes_at(data, 0, 4).unwrap_or_default();
    if magic != object::elf::ELFMAG {
        return Some(DebugSections::default());
    }
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    let endian = LittleEndian;
    let sections = header.sections(endian, data).ok()?;
    let mut about = DebugSections::default();
    let segments = header.program_headers(endian, data).ok()?.iter().take(SECTIONS);
    about.segments.extend(segments.filter(|segment| segment.p_type(endian) == PT_LOAD).map(|segment| Segment {
        offset: segment.p_offset(endian),
        len: segment.p_filesz(endian),
        address: segment.p_vaddr(endian),
    }));
    for (nth, section) in sections.iter().enumerate() {
        if nth >= SECTIONS {
            return None;
        }
        let name = sections.section_name(endian, section).ok()?;
        // Compressed ones are nothing that a linker writes.
        let is_plain = section.sh_size(endian) <= LINK && section.sh_flags(endian) & u64::from(SHF_COMPRESSED) == 0;
        let content = || section.data(endian, data).ok().filter(|_| is_plain);
        if name.starts_with(b".debug_") || name.starts_with(b".zdebug_") {
            about.has_functions |= name == b".debug_info" || name == b".zdebug_info";
            about.bytes = about.bytes.saturating_add(match section.compression(endian, data).ok()? {
                Some((compression, ..)) => {
                    let kind = object::read::elf::CompressionHeader::ch_type(compression, endian);
                    about.unreadable |= kind != ELFCOMPRESS_ZLIB && kind != ELFCOMPRESS_ZSTD;
                    object::read::elf::CompressionHeader::ch_size(compression, endian).saturating_mul(MEMORY_COMPRESSED)
                }
                None => section.sh_size(endian).saturating_mul(MEMORY),
            });
        } else if name == b".gnu_debuglink" {
            about.link = text(content()?).map(|(name, _)| name);
        } else if name == b".gnu_debugaltlink" {
            about.shared = text(content()?).map(|(name, build_id)| (name, build_id.to_vec()));
        } else if section.sh_type(endian) == SHT_NOTE && is_plain {
            let mut notes = section.notes(endian, data).ok()??;
            while let Ok(Some(note)) = notes.next() {
                if note.name() == object::elf::ELF_NOTE_GNU && note.n_type(endian) == object::elf::NT_GNU_BUILD_ID {
                    about.build_id = note.desc().to_vec();
                }
            }
        }
    }
    Some(about)
}

/// A path, and what follows its end.
fn text(content: &[u8]) -> Option<(PathBuf, &[u8])> {
    let end = content.iter().position(|byte| *byte == 0)?;
    let (path, rest) = content.split_at_checked(end)?;
    let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(path);
    (!path.is_empty()).then(|| (path.into(), rest.get(1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run(command: &mut Command) {
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn separate_and_compressed_files_count_by_what_they_take() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a.c"), "int twice(int n) { return 2 * n; }\nint main(void) { return twice(3); }\n").unwrap();
        let compile = |to: &str, flags: &[&str]| {
            run(Command::new("cc").args(flags).args(["-Wl,--build-id", "-o"]).arg(at(to)).arg(at("a.c")));
            (at(to), at(to))
        };
        let bytes = |info: &mut DebugInfo, file: &(PathBuf, PathBuf)| {
            info.of(std::slice::from_ref(file)).map(|all| all.bytes())
        };
        let mut info = DebugInfo::new(&[at("debug")]);
        let plain = compile("plain", &["-g"]);
        let all = bytes(&mut info, &plain).unwrap();
        assert!(all > 200, "{all}");
        // As much once it is read, and more for what it is made of.
        let packed = compile("packed", &["-g", "-gz=zlib"]);
        let unpacked = bytes(&mut info, &packed).unwrap();
        assert!((all..2 * all).contains(&unpacked), "{unpacked} {all}");
        let mut compress = Command::new("objcopy");
        compress.arg("--compress-debug-sections=zstd").arg(at("plain")).arg(at("zstd"));
        // Before binutils 2.40 there is no such way.
        if compress.status().unwrap().success() {
            // Small sections may stay as they are.
            let unpacked = bytes(&mut info, &(at("zstd"), at("zstd"))).unwrap();
            assert!((all..2 * all).contains(&unpacked), "{unpacked} {all}");
        }
        assert_eq!(bytes(&mut info, &compile("none", &["-s"])), Some(0));

        // A separate file, by its build id and beside the program.
        run(Command::new("objcopy").arg("--only-keep-debug").arg(at("plain")).arg(at("plain.debug")));
        let strip = Command::new("objcopy")
            .arg("--strip-debug")
            .arg(format!("--add-gnu-debuglink={}", at("plain.debug").display()))
            .arg(at("plain"))
            .arg(at("stripped"))
            .status();
        assert!(strip.unwrap().success());
        let stripped = (at("stripped"), at("stripped"));
        assert_eq!(bytes(&mut info, &stripped), Some(all));
        let about = read(File::open(at("stripped")).unwrap()).unwrap();
        let place = at("debug").join(by_build_id(&about.build_id).unwrap());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::rename(at("plain.debug"), &place).unwrap();
        assert_eq!(bytes(&mut info, &stripped), Some(all));
        assert_eq!(bytes(&mut DebugInfo::new(&[at("elsewhere")]), &stripped), Some(0));
        // Shared files count once.
        let mut both = info.of(std::slice::from_ref(&plain)).unwrap();
        let one = info.of(&[plain, stripped.clone()]).unwrap();
        assert_eq!((both.bytes(), one.bytes()), (all, 2 * all));
        both.add(&one);
        assert_eq!(both, one);

        // Nothing that could stop the reader, and nothing of another user.
        std::fs::remove_file(&place).unwrap();
        run(Command::new("mkfifo").arg(&place));
        assert_eq!(bytes(&mut info, &stripped), None);
        std::fs::remove_file(&place).unwrap();
        std::fs::write(&place, b"\x7fELF and nothing else").unwrap();
        assert_eq!(bytes(&mut info, &stripped), None);
        std::fs::write(&place, b"no program").unwrap();
        assert_eq!(bytes(&mut info, &stripped), Some(0));
    }

    #[test]
    fn build_ids_are_paths() {
        let path = by_build_id(&[0xab, 0xcd, 1, 2, 3, 4, 5, 0x6f]).unwrap();
        assert_eq!(path, Path::new(".build-id/ab/cd01020304056f.debug"));
        assert_eq!((by_build_id(&[1; 7]), by_build_id(&[1; 65])), (None, None));
    }
}
