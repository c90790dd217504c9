//! A program's file as far as unwinding needs it: its code, and its `.eh_frame`. Total: any bytes.

use std::hash::BuildHasher;

use object::elf::{EM_X86_64, FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, ReadRef};
use tracer_runtimes::go;

/// Most bytes of `.eh_frame`.
const UNWIND_BYTES: u64 = 48 << 20;
/// Most bytes of a file between the first and the last of its code: a directory has to fit into one chunk of the arena.
const CODE_BYTES: u64 = 256 << 20;
/// Most segments with code.
const SEGMENTS: usize = 64;
/// Bytes that are read where the program begins, and of its `main`.
const ENTRY_BYTES: u64 = 64;
const MAIN_BYTES: u64 = 1024;

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
    /// The function that the program's beginning has the C library call: its address, and its code and what follows it.
    pub main: Option<(u64, &'a [u8])>,
    /// What Go says of its frames, by address.
    pub go: Vec<(u64, go::Frame)>,
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
        let section = file.section_by_name(".eh_frame");
        if section.as_ref().is_some_and(|section| section.size() > UNWIND_BYTES) || last - first > CODE_BYTES {
            return Err(NoTable::TooLarge);
        }
        let unwind = section.as_ref().and_then(|section| section.data().ok()).unwrap_or_default();
        let go = go::frames(data).unwrap_or_default();
        if unwind.is_empty() && go.is_empty() {
            return Err(NoTable::Absent);
        }
        let address = |name| file.section_by_name(name).map_or(0, |section| section.address());
        let bases = [section.map_or(0, |section| section.address()), address(".text"), address(".got")];
        let entry = file.elf_header().e_entry(endian);
        let mut image = Self { segments, unwind, bases, entry, main: None, go };
        let code = |image: &Self, address, bytes: u64| {
            let (offset, left) = image.offset(address)?;
            data.read_bytes_at(offset, bytes.min(left)).ok()
        };
        let main = code(&image, entry, ENTRY_BYTES).and_then(|code| main_of(code, entry));
        image.main = main.and_then(|main| Some((main, code(&image, main, MAIN_BYTES)?)));
        Ok(image)
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
        keys.hash_one((&self.segments, self.unwind, self.bases, self.entry, self.main, &self.go))
    }
}

/// The address that the code where a program begins passes to the C library as its first argument, before it calls it:
/// `lea main(%rip), %rdi` or `mov $main, %rdi`.
fn main_of(code: &[u8], address: u64) -> Option<u64> {
    let (at, loaded) = code.windows(7).enumerate().find_map(|(at, bytes)| {
        let number = i32::from_le_bytes(*bytes.last_chunk()?);
        match bytes {
            [0x48, 0x8d, 0x3d, ..] => {
                Some((at, address.wrapping_add(at as u64 + 7).wrapping_add_signed(i64::from(number))))
            }
            [0x48, 0xc7, 0xc7, ..] => Some((at, u64::try_from(number).ok()?)),
            _ => None,
        }
    })?;
    matches!(code.get(at + 7..)?, [0xff, 0x15, ..] | [0xe8, ..] | [0x67, 0xe8, ..]).then_some(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_program_begins() {
        // As in Debian's crt1.o, with and without position-independent code; another order; none.
        let begin = [0x31, 0xed, 0x49, 0x89, 0xd1];
        let check =
            |code: &[u8], expected| assert_eq!(main_of(&[&begin, code].concat(), 0x1000), expected, "{code:x?}");
        check(&[0x48, 0x8d, 0x3d, 0xf5, 0xf3, 0xff, 0xff, 0xff, 0x15, 1, 2, 3, 4], Some(0x1000 + 12 - 0xc0b));
        check(&[0x48, 0xc7, 0xc7, 0x10, 0x20, 0x40, 0, 0x67, 0xe8, 1, 2, 3, 4], Some(0x40_2010));
        check(&[0x48, 0x8d, 0x3d, 0xf5, 0xf3, 0xff, 0xff, 0x90], None);
        check(&[0xe8, 1, 2, 3, 4], None);
        check(&[], None);
    }
}
