//! Functions of Rust programs, found in the symbol table by parts of their mangled names that both mangling schemes contain.

use std::collections::HashMap;

use memchr::memmem::Finder;

use super::go::Source;
use super::go::image::{Image, Section, number};

/// Most bytes searched of symbols and of their names.
const SYMBOLS: u64 = 64 << 20;
const NAMES: u64 = 256 << 20;
/// Bytes read at once: programs have hundreds of megabytes of names, and the agent has a memory limit.
const PIECE: usize = 1 << 20;
/// Longest name that is matched.
const NAME_MOST: usize = 4096;
/// Most matching names.
const FOUND: usize = 4096;
/// Size of a symbol (ELF-64); `STT_FUNC`.
pub(super) const SYMBOL: usize = 24;
pub(super) const FUNCTION: u8 = 2;

/// A name that is looked for: two parts of it (the second may be empty), and what the function is to the caller.
pub(super) type WantedName<R> = (&'static [u8], &'static [u8], R);

/// A function of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundFunction<R> {
    pub(super) role: R,
    pub(super) address: u64,
    pub(super) size: u64,
}

/// Finds functions; `None` if the program has no readable symbol table.
pub(super) fn find<S: Source + ?Sized, R: Copy>(
    image: &Image<'_, S>,
    wanted: &[WantedName<R>],
) -> Option<Vec<FoundFunction<R>>> {
    let symbols = fragments(image, ".symtab", SYMBOLS, (PIECE / SYMBOL * SYMBOL, 0))?;
    let names = names(image, wanted)?;
    let mut found = Vec::new();
    if names.is_empty() {
        return Some(found);
    }
    for (_, bytes) in symbols {
        for symbol in bytes.chunks_exact(SYMBOL) {
            let (Some(name), Some(address), Some(size)) =
                (number::<4>(symbol, 0), number::<8>(symbol, 8), number::<8>(symbol, 16))
            else {
                continue;
            };
            if symbol.get(4).is_none_or(|info| info & 0xf != FUNCTION) || address == 0 {
                continue;
            }
            if let Some(role) = names.get(&name).filter(|_| found.len() < FOUND) {
                found.push(FoundFunction { role: *role, address, size });
            }
        }
    }
    Some(found)
}

/// Reads a section of at most `most` bytes in pieces of `size` bytes, each with its offset; consecutive pieces overlap
/// by `again` bytes. `None` if the section is missing or larger.
fn fragments<'a, S: Source + ?Sized>(
    image: &'a Image<'_, S>,
    end: &str,
    most: u64,
    (size, again): (usize, usize),
) -> Option<impl Iterator<Item = (u64, Vec<u8>)> + 'a> {
    let section = image.section(end).filter(|section| section.size <= most)?.clone();
    let mut from = 0;
    Some(std::iter::from_fn(move || {
        let left = usize::try_from(section.size.checked_sub(from)?).ok().filter(|left| *left > 0)?;
        let piece = Section { offset: section.offset.checked_add(from)?, ..section.clone() };
        let bytes = image.bytes(&piece, left.min(size))?;
        let begin = from;
        from = if left <= size { section.size } else { from + (size - again) as u64 };
        Some((begin, bytes))
    }))
}

/// Roles of the wanted names that are there, by their offset in the string table.
fn names<S: Source + ?Sized, R: Copy>(image: &Image<'_, S>, wanted: &[WantedName<R>]) -> Option<HashMap<u64, R>> {
    let finders: Vec<_> =
        wanted.iter().map(|(part, other, role)| (Finder::new(part), Finder::new(other), *role)).collect();
    let mut found = HashMap::new();
    for (from, bytes) in fragments(image, ".strtab", NAMES, (PIECE, NAME_MOST))? {
        for (part, other, role) in &finders {
            for at in part.find_iter(&bytes) {
                let (before, rest) = bytes.split_at_checked(at).unwrap_or_default();
                let begin = memchr::memrchr(0, before).map_or(0, |end| end + 1);
                let end = at + memchr::memchr(0, rest).unwrap_or(rest.len());
                let name = bytes.get(begin..end).unwrap_or_default();
                if found.len() < FOUND && other.find(name).is_some() && !is_closure(name) {
                    found.entry(from + begin as u64).or_insert(*role);
                }
            }
        }
    }
    Some(found)
}

/// Whether a mangled name is that of a closure, or of a function in one, in either scheme: it contains the names of the functions around it.
fn is_closure(name: &[u8]) -> bool {
    name.starts_with(b"_RNC") || memchr::memmem::find(name, b"$u7b$$u7b$closure$u7d$$u7d$").is_some()
}

#[cfg(test)]
pub(super) mod fixture {
    use super::{FUNCTION, SYMBOL};
    use crate::go::fixture;

    /// A program with `constants` and with functions of these names and code, 128 bytes each.
    pub(crate) fn program(constants: &str, functions: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut code, mut symbols, mut names) = (Vec::new(), vec![0; SYMBOL], vec![0]);
        for (name, bytes) in functions {
            let address = fixture::BASE + fixture::TEXT + code.len() as u64;
            symbols.extend((names.len() as u32).to_le_bytes());
            symbols.extend([FUNCTION, 0, 1, 0]);
            symbols.extend(address.to_le_bytes());
            symbols.extend((bytes.len() as u64).to_le_bytes());
            names.extend(name.as_bytes());
            names.push(0);
            code.extend(*bytes);
            code.resize(code.len().next_multiple_of(128), 0xcc);
        }
        let text: (&str, &[u8]) = (".text", &code);
        let constants: (&str, &[u8]) = (".rodata", constants.as_bytes());
        if functions.is_empty() {
            return fixture::file(&[text, constants]);
        }
        fixture::file(&[text, constants, (".symtab", &symbols), (".strtab", &names)])
    }
}
