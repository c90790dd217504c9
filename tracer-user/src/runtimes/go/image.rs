//! An ELF file of this machine's byte order and word size, read piece by piece: what it says of itself is believed within
//! bounds only, and no more of it is in memory than is looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Segments and sections that are looked at.
const SEGMENTS: usize = 64;
const SECTIONS: usize = 1024;
/// Bytes of sections' names that are looked at.
const NAMES: usize = 64 << 10;
/// Sizes of a program header and of a section header (ELF-64).
const SEGMENT: usize = 56;
const SECTION: usize = 64;
/// `PT_LOAD`, `SHT_NOBITS`.
const LOAD: u32 = 1;
const NOBITS: u32 = 8;
/// `e_machine` of x86-64.
pub(crate) const X86_64: u16 = 62;

/// Where a file's bytes come from.
pub trait Source {
    /// The `len` bytes at `at`, all of them.
    fn piece(&self, at: u64, len: usize) -> Option<Vec<u8>>;
}

impl Source for File {
    fn piece(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        // A file may be said to be of any length; memory is taken for what it has.
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

/// A part of the file that is mapped.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    address: u64,
    size: u64,
}

/// A section that has bytes.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: Box<str>,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// What a file is made of.
#[derive(Debug)]
pub(crate) struct Image<'a, S: Source + ?Sized> {
    source: &'a S,
    pub(crate) machine: u16,
    segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
}

/// The number at `at` of `bytes`.
pub(crate) fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole.get_mut(..N)?.copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(whole))
}

impl<'a, S: Source + ?Sized> Image<'a, S> {
    /// `None` when it is no such file.
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

    /// The section whose name ends so.
    pub(crate) fn section(&self, end: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name.ends_with(end))
    }

    /// The first bytes of a section, at most `most`.
    pub(crate) fn bytes(&self, section: &Section, most: usize) -> Option<Vec<u8>> {
        self.source.piece(section.offset, usize::try_from(section.size).ok()?.min(most))
    }

    /// Where in the file stands what is mapped at `address`.
    pub(crate) fn place(&self, address: u64) -> Option<u64> {
        let within = |segment: &&Segment| address.checked_sub(segment.address).is_some_and(|at| at < segment.size);
        let segment = self.segments.iter().find(within)?;
        segment.offset.checked_add(address - segment.address)
    }

    /// The `len` bytes that are mapped at `address`.
    pub(crate) fn code(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        self.source.piece(self.place(address)?, len)
    }

    /// What is mapped lowest, by the page: what is added to addresses of a program that is mapped elsewhere is its
    /// distance from there.
    pub(crate) fn lowest(&self) -> u64 {
        self.segments.iter().map(|segment| segment.address).min().unwrap_or(0) & !0xfff
    }
}
