//! A bounded, piecewise reader for ELF files of this machine's byte order and word size: it trusts no header beyond
//! fixed limits and reads only what is asked for.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Most segments and sections that are read.
const SEGMENTS: usize = 64;
const SECTIONS: usize = 1024;
/// Most bytes of section names that are read.
const NAMES: usize = 64 << 10;
/// Sizes of a program header and of a section header (ELF-64).
const SEGMENT: usize = 56;
const SECTION: usize = 64;
/// `PT_LOAD`, `SHT_NOBITS`.
const LOAD: u32 = 1;
const NOBITS: u32 = 8;
/// `e_machine` of x86-64.
pub(crate) const X86_64: u16 = 62;

/// A source of a file's bytes.
pub trait Source {
    /// Exactly the `len` bytes at `at`.
    fn piece(&self, at: u64, len: usize) -> Option<Vec<u8>>;
}

impl Source for File {
    fn piece(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        // Check against the real size, so that a forged length cannot make the agent allocate.
        if at.checked_add(len as u64)? > self.metadata().ok()?.len() {
            return None;
        }
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

impl Source for [u8] {
    fn piece(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let at = usize::try_from(at).ok()?;
        self.get(at..at.checked_add(len)?).map(<[u8]>::to_vec)
    }
}

/// A mapped part of the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    address: u64,
    size: u64,
}

/// A section with contents.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: Box<str>,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// The segments and sections of a file.
#[derive(Debug)]
pub(crate) struct Image<'a, S: Source + ?Sized> {
    source: &'a S,
    pub(crate) machine: u16,
    segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
}

/// The little-endian number of `N` bytes at `at`.
pub(crate) fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole.get_mut(..N)?.copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(whole))
}

impl<'a, S: Source + ?Sized> Image<'a, S> {
    /// Reads the headers; `None` if the file is not such an ELF file.
    pub(crate) fn read(source: &'a S) -> Option<Self> {
        let head = source.piece(0, 64)?;
        // Magic number, 64 bits, little endian.
        if head.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let machine = number::<2>(&head, 18)? as u16;
        let table = |at: usize, size: usize, count: usize, most: usize| {
            let (count, own) = (number::<2>(&head, count)? as usize, number::<2>(&head, count.checked_sub(2)?)?);
            if own != size as u64 || count > most {
                return None;
            }
            source.piece(number::<8>(&head, at)?, count * size)
        };
        let mut segments = Vec::new();
        for entry in table(32, SEGMENT, 56, SEGMENTS)?.chunks_exact(SEGMENT) {
            if number::<4>(entry, 0)? == u64::from(LOAD) {
                let (offset, address) = (number::<8>(entry, 8)?, number::<8>(entry, 16)?);
                segments.push(Segment { offset, address, size: number::<8>(entry, 32)? });
            }
        }
        let table = table(40, SECTION, 60, SECTIONS).unwrap_or_default();
        let names = table.chunks_exact(SECTION).nth(number::<2>(&head, 62)? as usize);
        let names = names.and_then(|entry| {
            let size = usize::try_from(number::<8>(entry, 32)?).ok()?.min(NAMES);
            source.piece(number::<8>(entry, 24)?, size)
        });
        let names = names.unwrap_or_default();
        let mut sections = Vec::new();
        for entry in table.chunks_exact(SECTION) {
            let name = names.get(number::<4>(entry, 0)? as usize..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if number::<4>(entry, 4)? != u64::from(NOBITS) {
                let name = String::from_utf8_lossy(name).into();
                let (address, offset) = (number::<8>(entry, 16)?, number::<8>(entry, 24)?);
                sections.push(Section { name, address, offset, size: number::<8>(entry, 32)? });
            }
        }
        Some(Self { source, machine, segments, sections })
    }

    /// The section whose name ends with `end`.
    pub(crate) fn section(&self, end: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name.ends_with(end))
    }

    /// The first bytes of a section, at most `most`.
    pub(crate) fn bytes(&self, section: &Section, most: usize) -> Option<Vec<u8>> {
        self.source.piece(section.offset, usize::try_from(section.size).ok()?.min(most))
    }

    /// The file offset of what is mapped at `address`.
    pub(crate) fn place(&self, address: u64) -> Option<u64> {
        let within = |segment: &&Segment| address.checked_sub(segment.address).is_some_and(|at| at < segment.size);
        let segment = self.segments.iter().find(within)?;
        segment.offset.checked_add(address - segment.address)
    }

    /// The `len` bytes mapped at `address`.
    pub(crate) fn code(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        self.source.piece(self.place(address)?, len)
    }

    /// The lowest mapped address, rounded down to a page: where the process has this mapped, minus this value, is the
    /// load bias.
    pub(crate) fn lowest(&self) -> u64 {
        self.segments.iter().map(|segment| segment.address).min().unwrap_or(0) & !0xfff
    }
}
