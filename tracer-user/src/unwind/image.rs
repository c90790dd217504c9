//! A program's file as far as unwinding needs it: its code, and its `.eh_frame`. Total: any bytes.

use std::hash::BuildHasher;

use object::elf::{EM_X86_64, FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, ReadRef};

/// Most bytes of `.eh_frame`.
const UNWIND_BYTES: u64 = 48 << 20;
/// Most bytes of a file between the first and the last of its code: a directory has to fit into one chunk of the arena.
const CODE_BYTES: u64 = 256 << 20;
/// Most segments with code.
const SEGMENTS: usize = 64;

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTable {
    /// No unwind information: no program, or one that has none (Go). Frame pointers are all there is.
    Absent,
    /// More than is read.
    TooLarge,
}

/// Bytes of a file that are mapped as code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Address in the file's own terms.
    pub address: u64,
    /// Length.
    pub bytes: u64,
}

/// A file's code and its unwind information.
#[derive(Debug)]
pub struct Image<'a> {
    /// Code, by offset.
    pub segments: Vec<Segment>,
    /// `.eh_frame`.
    pub unwind: &'a [u8],
    /// Its address, that of `.text` and that of `.got`: addresses in it are relative to them.
    pub bases: [u64; 3],
    /// Where the program begins.
    pub entry: u64,
}

impl<'a> Image<'a> {
    /// Reads what is needed.
    pub fn parse(data: impl ReadRef<'a>) -> Result<Self, NoTable> {
        let file = ElfFile::<FileHeader64<LittleEndian>, _>::parse(data).map_err(|_| NoTable::Absent)?;
        let endian = LittleEndian;
        if file.elf_header().e_machine(endian) != EM_X86_64 {
            return Err(NoTable::Absent);
        }
        let code = |header: &&object::elf::ProgramHeader64<LittleEndian>| {
            header.p_type(endian) == PT_LOAD && header.p_flags(endian) & PF_X != 0 && header.p_filesz(endian) > 0
        };
        let mut segments: Vec<Segment> = file
            .elf_program_headers()
            .iter()
            .filter(code)
            .take(SEGMENTS)
            .map(|header| Segment {
                offset: header.p_offset(endian),
                address: header.p_vaddr(endian),
                bytes: header.p_filesz(endian),
            })
            // What wraps around is no segment.
            .filter(|s| s.offset.checked_add(s.bytes).is_some() && s.address.checked_add(s.bytes).is_some())
            .collect();
        segments.sort_unstable_by_key(|segment| segment.offset);
        let first = segments.first().map(|segment| segment.offset).ok_or(NoTable::Absent)?;
        let last = segments.iter().map(|segment| segment.offset + segment.bytes).max().unwrap_or(first);
        let section = file.section_by_name(".eh_frame").ok_or(NoTable::Absent)?;
        if section.size() > UNWIND_BYTES || last - first > CODE_BYTES {
            return Err(NoTable::TooLarge);
        }
        let unwind = section.data().map_err(|_| NoTable::Absent)?;
        let address = |name| file.section_by_name(name).map_or(0, |section| section.address());
        let bases = [section.address(), address(".text"), address(".got")];
        Ok(Self { segments, unwind, bases, entry: file.elf_header().e_entry(endian) })
    }

    /// Where in the file stands the code at `address`, and how many bytes of its segment are left from there.
    pub fn offset(&self, address: u64) -> Option<(u64, u64)> {
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address).filter(|into| *into < segment.bytes)?;
            Some((segment.offset + into, segment.bytes - into))
        })
    }

    /// What tells this table from others: files with the same are one. With keys of its own, so that no file can be made
    /// to look like another.
    pub fn identity(&self, keys: &impl BuildHasher) -> u64 {
        keys.hash_one((&self.segments, self.unwind, self.bases, self.entry))
    }
}
