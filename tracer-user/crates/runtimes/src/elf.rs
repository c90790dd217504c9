//! Symbols and offsets from a program's ELF file. Total: any bytes.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use object::read::ReadCacheOps;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ObjectSymbolTable, ReadCache, ReadRef, RelocationFlags, SymbolKind};

use super::go::image::Image;
use super::maps::Mapping;

/// Largest file that is parsed, bytes.
const LARGEST: u64 = 256 << 20;
/// Most bytes read of a file. A symbol's name is read 256 bytes at a time, so half a million symbols are found.
const READ_LIMIT: usize = 128 << 20;

/// Limits how much of a file is read, because the file's owner controls its headers.
pub(super) struct Bounded {
    file: File,
    left: usize,
}

impl ReadCacheOps for Bounded {
    fn len(&mut self) -> Result<u64, ()> {
        ReadCacheOps::len(&mut self.file)
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        ReadCacheOps::seek(&mut self.file, pos)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        self.left = self.left.checked_sub(buf.len()).ok_or(())?;
        ReadCacheOps::read(&mut self.file, buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ()> {
        self.left = self.left.checked_sub(buf.len()).ok_or(())?;
        ReadCacheOps::read_exact(&mut self.file, buf)
    }
}

/// Most bytes of names in debug information that are searched.
const DEBUG_STRINGS: usize = 64 << 20;

/// A function of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its symbol.
    pub name: Box<str>,
    /// Its address, as in the file.
    pub address: u64,
    /// Bytes of its code; 0: not known.
    pub size: u64,
    /// The symbol is code that chooses the function (`STT_GNU_IFUNC`).
    pub indirect: bool,
}

/// Most functions that are listed, and most bytes of a name.
const FUNCTIONS: usize = 1 << 20;
const FUNCTION_NAME: usize = 4096;

/// Opens a file to parse it, within limits.
pub(super) fn open(path: &Path) -> Option<ReadCache<Bounded>> {
    // Do not block if the path has become a FIFO or device.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let is_small = file.metadata().ok().is_some_and(|meta| meta.is_file() && meta.len() <= LARGEST);
    is_small.then(|| ReadCache::new(Bounded { file, left: READ_LIMIT }))
}

/// The functions of a file, and whether it lists all of them rather than only those it exports; `None` if it is not a
/// readable ELF file.
pub fn functions(path: &Path) -> Option<(Vec<Function>, bool)> {
    let cache = open(path)?;
    let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let mut found = Vec::new();
    for symbol in file.dynamic_symbols().chain(file.symbols()) {
        let indirect = symbol.elf_symbol().st_type() == object::elf::STT_GNU_IFUNC;
        if !symbol.is_definition() || !(indirect || symbol.kind() == SymbolKind::Text) || found.len() >= FUNCTIONS {
            continue;
        }
        if let Ok(name) = symbol.name()
            && (1..=FUNCTION_NAME).contains(&name.len())
        {
            found.push(Function { name: name.into(), address: symbol.address(), size: symbol.size(), indirect });
        }
    }
    Some((found, file.symbol_table().is_some()))
}

/// A global variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GlobalVariable {
    /// Its address, as in the file.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Each thread has its own.
    pub is_local: bool,
}

/// The global variables of a file that `is_wanted` by their symbols, each once.
pub fn variables(path: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<GlobalVariable> {
    let Some(cache) = open(path) else { return Vec::new() };
    let Ok(file) = ElfFile64::<Endianness, _>::parse(&cache) else { return Vec::new() };
    let mut found = Vec::new();
    for symbol in file.dynamic_symbols().chain(file.symbols()) {
        let is_local = symbol.kind() == SymbolKind::Tls;
        let is_variable = symbol.is_definition() && symbol.kind() == SymbolKind::Data;
        if !(is_variable || is_local && !symbol.is_undefined()) || found.len() >= FUNCTIONS {
            continue;
        }
        if symbol.name().is_ok_and(|name| name.len() <= FUNCTION_NAME && is_wanted(name)) {
            found.push(GlobalVariable { address: symbol.address(), size: symbol.size(), is_local });
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Where the dynamic linker stores the addresses of functions of other files, by their names.
pub fn imports(path: &Path) -> Vec<(u64, Box<str>)> {
    let Some(cache) = open(path) else { return Vec::new() };
    let Ok(file) = ElfFile64::<Endianness, _>::parse(&cache) else { return Vec::new() };
    let (Some(symbols), Some(relocations)) = (file.dynamic_symbol_table(), file.dynamic_relocations()) else {
        return Vec::new();
    };
    let import = |(address, relocation): (u64, object::Relocation)| {
        let object::RelocationTarget::Symbol(index) = relocation.target() else { return None };
        let name = symbols.symbol_by_index(index).ok()?.name().ok()?;
        (1..=FUNCTION_NAME).contains(&name.len()).then(|| (address, name.into()))
    };
    relocations.filter_map(import).take(FUNCTIONS).collect()
}

/// The pointers that the dynamic linker stores at these addresses, which lead into the same file.
pub fn relative(path: &Path, addresses: Range<u64>) -> BTreeMap<u64, u64> {
    let Some(cache) = open(path) else { return BTreeMap::new() };
    let Ok(file) = ElfFile64::<Endianness, _>::parse(&cache) else { return BTreeMap::new() };
    let is_relative =
        |flags| matches!(flags, RelocationFlags::Elf { r_type } if r_type == object::elf::R_X86_64_RELATIVE);
    let found = file.dynamic_relocations().into_iter().flatten().filter(|(at, _)| addresses.contains(at));
    let found = found.filter(|(_, relocation)| is_relative(relocation.flags()));
    found.map(|(at, relocation)| (at, relocation.addend() as u64)).take(POINTERS).collect()
}

/// Most pointers that are read at once.
const POINTERS: usize = 16_384;

/// Whether the debug information of a file contains `name`.
pub fn debug_names(file: &File, name: &str) -> bool {
    let Some(image) = Image::read(file) else { return false };
    let Some(section) = image.section(".debug_str") else { return false };
    // Between zeros, as every string there.
    let needle = [b"\0", name.as_bytes(), b"\0"].concat();
    image.bytes(section, DEBUG_STRINGS).is_some_and(|bytes| memchr::memmem::find(&bytes, &needle).is_some())
}

/// The facts kept of a program's file or a library.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Segments: address, offset in the file, length in the file.
    segments: Vec<(u64, u64, u64)>,
    /// The requested symbols and their addresses.
    symbols: Vec<(String, u64)>,
    /// Size of its thread-local storage per thread.
    local: u64,
    /// Addresses where the dynamic linker stores the TLS module number.
    modules: Vec<u64>,
}

/// Most TLS module addresses kept.
const MODULES: usize = 4;

impl Program {
    /// Reads a file, keeping the addresses of `wanted` dynamic symbols; `None` if it is not a readable ELF file.
    pub fn read(path: &Path, wanted: &[&str]) -> Option<Self> {
        Self::parse(&open(path)?, wanted)
    }

    /// Parses bytes, like [`Self::read`].
    pub fn parse<'a>(data: impl ReadRef<'a>, wanted: &[&str]) -> Option<Self> {
        let file = ElfFile64::<Endianness, _>::parse(data).ok()?;
        let endian = file.endian();
        let load = |header: &&object::elf::ProgramHeader64<Endianness>| header.p_type(endian) == object::elf::PT_LOAD;
        let segments = file.elf_program_headers().iter().filter(load);
        let segments = segments.map(|h| (h.p_vaddr(endian), h.p_offset(endian), h.p_filesz(endian))).collect();
        let mut symbols = Vec::new();
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            let Some(name) = symbol.name().ok().filter(|name| wanted.contains(name)) else { continue };
            if symbol.is_definition() && !symbols.iter().any(|(known, _)| known == name) {
                symbols.push((name.to_owned(), symbol.address()));
            }
            if symbols.len() == wanted.len() {
                break;
            }
        }
        let local = file.elf_program_headers().iter().find(|h| h.p_type(endian) == object::elf::PT_TLS);
        let local = local.map_or(0, |header| header.p_memsz(endian));
        // Few programs have thread-local storage; skip the relocations of others.
        let relocations = (local != 0).then(|| file.dynamic_relocations()).flatten().into_iter().flatten();
        let is_module =
            |flags| matches!(flags, RelocationFlags::Elf { r_type } if r_type == object::elf::R_X86_64_DTPMOD64);
        let modules = relocations.filter(|(_, relocation)| is_module(relocation.flags()));
        let modules = modules.map(|(address, _)| address).take(MODULES).collect();
        Some(Self { segments, symbols, local, modules })
    }

    /// Size of the program's thread-local storage per thread, and the address that holds its TLS module number; `None`
    /// unless there is exactly one such address. On x86-64.
    pub fn thread_local(&self) -> Option<(u64, u64)> {
        let [module] = self.modules[..] else { return None };
        Some((self.local, module))
    }

    /// The address of a wanted symbol, as in the file.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(known, _)| known == name).map(|(_, address)| *address)
    }

    /// The file offset of `address`.
    pub fn offset(&self, address: u64) -> Option<u64> {
        let (from, offset, _) = self
            .segments
            .iter()
            .find(|(from, _, bytes)| address.checked_sub(*from).is_some_and(|into| into < *bytes))?;
        (address - from).checked_add(*offset)
    }

    /// The address that `offset` of the file is loaded at.
    pub fn address_at(&self, offset: u64) -> Option<u64> {
        let into = |(_, from, bytes): &&(u64, u64, u64)| offset.checked_sub(*from).is_some_and(|into| into < *bytes);
        let (address, from, _) = self.segments.iter().find(into)?;
        address.checked_add(offset - from)
    }

    /// The load bias in a process with these mappings: what to add to the file's addresses.
    pub fn bias<'a>(&self, mut mappings: impl Iterator<Item = &'a Mapping>) -> Option<u64> {
        const PAGE: u64 = 4096;
        mappings.find_map(|mapping| {
            let segment = self.segments.iter().find(|(_, offset, _)| offset & !(PAGE - 1) == mapping.offset)?;
            Some(mapping.from.wrapping_sub(segment.0 & !(PAGE - 1)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Maps;

    /// A symbol for the test to find.
    #[unsafe(no_mangle)]
    extern "C" fn tracer_runtimes_elf_here() -> u64 {
        7
    }

    #[test]
    fn a_function_of_this_program_is_where_the_file_says() {
        let maps = Maps::read(std::process::id()).expect("this process");
        let name = "tracer_runtimes_elf_here";
        let program = Program::read(Path::new("/proc/self/exe"), &[name]).expect("an ELF file");
        let address = program.address(name).expect("a symbol");
        let bias = program.bias(maps.of(&maps.exe)).expect("it is mapped");
        assert_eq!(bias.wrapping_add(address), tracer_runtimes_elf_here as *const () as u64);
        assert_eq!(program.address_at(program.offset(address).expect("in the file")), Some(address));
        let bytes = std::fs::read("/proc/self/exe").expect("this program");
        let at = program.offset(address).expect("in the file") as usize;
        assert_eq!(bytes[at..at + 4], maps.memory::<4>(bias + address).expect("memory"));
    }

    #[test]
    fn what_is_no_program_is_none() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            assert!(Program::parse(bytes, &["x"]).is_none_or(|program| program.address("x").is_none()));
        }
        assert!(Program::read(Path::new("/proc/self"), &["x"]).is_none());
    }
}
