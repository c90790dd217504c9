//! USDT probes: places that a program's authors marked, listed in its notes (`.note.stapsdt`, SystemTap's version 3).
//!
//! Total: the notes may be any bytes.

use std::path::Path;

use object::read::elf::ElfFile64;
use object::{Architecture, Endianness, Object, ObjectSection};
use tracer_common::runtime::{Operand, Operands};

use super::operands::{self, Argument};
use super::{Binary, Declared, FailSource, Refusal, SIMILAR, Source, elf};

/// Most bytes of notes, most probes, and most bytes of a name or of the arguments' text.
const NOTES: u64 = 4 << 20;
const PROBES: usize = 1 << 16;
const TEXT: usize = 4096;
/// Most places of one probe: where it was inlined, it has several.
pub(super) const PLACES: usize = 64;
/// `NT_STAPSDT`.
const KIND: u32 = 3;
const OWNER: &[u8] = b"stapsdt\0";

/// One place of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// Who defines it: `php`.
    pub provider: Box<str>,
    /// Its name: `request__startup`.
    pub name: Box<str>,
    /// Its address, as in the file.
    pub address: u64,
    /// The address of its semaphore, a counter without which the program skips it.
    pub semaphore: Option<u64>,
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// A place where a transaction begins or ends, as offsets in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlace {
    /// Where it is.
    pub at: u64,
    /// Where its semaphore is.
    pub semaphore: Option<u64>,
    /// Where the declared values are; `None`: none is declared, or they are where the calling convention has them.
    pub operands: Option<Box<Operands>>,
}

/// The places of a transaction between two probes, or at one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtSite {
    /// Where it begins.
    pub begins: Vec<ProbePlace>,
    /// Where it ends; empty: it is counted where it begins.
    pub ends: Vec<ProbePlace>,
}

/// The probes of a file, in the order of their notes; none if it is no readable ELF file.
pub(super) fn probes(path: &Path) -> Vec<UsdtProbe> {
    let read = || {
        let cache = elf::open(path)?;
        let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let section = file.section_by_name(".note.stapsdt")?;
        let notes = (section.size() <= NOTES).then(|| section.data().ok()).flatten()?;
        let base = file.section_by_name(".stapsdt.base").map(|section| section.address());
        Some(parse(notes, base, file.is_little_endian(), file.architecture() == Architecture::X86_64))
    };
    read().unwrap_or_default()
}

/// The probes in notes. `base`: the address of the section `.stapsdt.base`, which says whether a later tool moved the file's
/// addresses. What is damaged ends the list.
pub fn parse(notes: &[u8], base: Option<u64>, is_little_endian: bool, is_x86: bool) -> Vec<UsdtProbe> {
    let (mut rest, mut found) = (notes, Vec::new());
    // Both processors that tracing runs on are little-endian.
    while is_little_endian && found.len() < PROBES {
        let Some((note, behind)) = note(rest) else { break };
        rest = behind;
        if (note.kind, note.owner) != (KIND, OWNER) {
            continue;
        }
        let Some(probe) = probe(note.body, base, is_x86) else { break };
        found.push(probe);
    }
    found
}

/// A note.
struct Note<'a> {
    kind: u32,
    owner: &'a [u8],
    body: &'a [u8],
}

/// The first note, and what follows it.
fn note(bytes: &[u8]) -> Option<(Note<'_>, &[u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (name_size, size, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let name_end = name_size.checked_add(12)?;
    let from = name_end.checked_next_multiple_of(4)?;
    let to = from.checked_add(size)?;
    // The last one may lack its padding.
    let behind = bytes.get(to.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some((Note { kind, owner: bytes.get(12..name_end)?, body: bytes.get(from..to)? }, behind))
}

/// Three addresses and three texts.
fn probe(body: &[u8], base: Option<u64>, is_x86: bool) -> Option<UsdtProbe> {
    let word = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
    let (address, linked, semaphore) = (word(0)?, word(8)?, word(16)?);
    let moved = base.map_or(0, |base| base.wrapping_sub(linked));
    let mut texts = body.get(24..)?.splitn(4, |byte| *byte == 0);
    let mut text = || {
        let text = std::str::from_utf8(texts.next()?).ok()?;
        (text.len() <= TEXT && !text.chars().any(char::is_control)).then_some(text)
    };
    let (provider, name, arguments) = (text()?, text()?, text()?);
    Some(UsdtProbe {
        provider: provider.into(),
        name: name.into(),
        address: address.wrapping_add(moved),
        semaphore: (semaphore != 0).then(|| semaphore.wrapping_add(moved)),
        arguments: operands::arguments(arguments, is_x86),
    })
}

impl Binary {
    /// The places of every USDT probe of the file.
    pub fn usdt_probes(&self) -> Vec<UsdtProbe> {
        probes(&self.path)
    }

    /// Where the probes of a transaction between two USDT probes go.
    pub(super) fn usdt_site(
        &self,
        declared: &Declared,
        (provider, begin, end): (&str, &str, Option<&str>),
    ) -> Result<UsdtSite, Refusal> {
        let all = self.usdt_probes();
        let begins = self.usdt_places(&all, (provider, begin), |probe| wanted(self, declared, probe))?;
        let of_end = |probe: &UsdtProbe| wanted_at_end(declared, probe);
        let ends = end.map_or(Ok(Vec::new()), |end| self.usdt_places(&all, (provider, end), of_end))?;
        Ok(UsdtSite { begins, ends })
    }

    fn usdt_places(
        &self,
        all: &[UsdtProbe],
        (provider, name): (&str, &str),
        wanted: impl Fn(&UsdtProbe) -> Result<Option<Box<Operands>>, Refusal>,
    ) -> Result<Vec<ProbePlace>, Refusal> {
        let found: Vec<&UsdtProbe> =
            all.iter().filter(|probe| (&*probe.provider, &*probe.name) == (provider, name)).collect();
        if found.is_empty() {
            return Err(no_probe(all, provider, name));
        }
        if found.len() > PLACES {
            return Err(Refusal::UsdtPlaces(format!("{provider}:{name}")));
        }
        let refuse = |why: &str| Refusal::Usdt { probe: format!("{provider}:{name}"), why: why.into() };
        let place = |probe: &&UsdtProbe| {
            let at = self.program.offset(probe.address).ok_or_else(|| refuse("its place is not in the file"))?;
            let semaphore = match probe.semaphore {
                None => None,
                Some(address) => {
                    let at = self.program.offset(address).filter(|at| u32::try_from(*at).is_ok());
                    Some(at.ok_or_else(|| refuse("its semaphore is not in the file"))?)
                }
            };
            Ok(ProbePlace { at, semaphore, operands: wanted(probe)? })
        };
        found.iter().map(place).collect()
    }
}

fn no_probe(all: &[UsdtProbe], provider: &str, name: &str) -> Refusal {
    let mut similar: Vec<String> = all.iter().map(|probe| format!("{}:{}", probe.provider, probe.name)).collect();
    similar.sort_unstable();
    similar.dedup();
    let is_near = |one: &String| one.starts_with(&format!("{provider}:")) || one.ends_with(&format!(":{name}"));
    if similar.iter().any(is_near) {
        similar.retain(is_near);
    }
    similar.truncate(SIMILAR);
    Refusal::NoUsdt { probe: format!("{provider}:{name}"), similar }
}

/// Puts an argument where the record has it; `what` wants it.
fn put(probe: &UsdtProbe, number: u8, what: &str, operands: &mut Operands) -> Result<Operand, Refusal> {
    let name = format!("{}:{}", probe.provider, probe.name);
    let refuse = |why: String| Refusal::UsdtArgument { value: what.into(), probe: name.clone(), why };
    let index = usize::from(number) - 1;
    let (Some(argument), Some(place)) = (probe.arguments.get(index), operands.get_mut(index)) else {
        return Err(refuse(format!("it has {} arguments", probe.arguments.len())));
    };
    *place = argument.operand.map_err(|why| refuse(format!("{}: {why}", argument.text)))?;
    Ok(*place)
}

/// Where what says whether it failed is at this place, an end.
fn wanted_at_end(declared: &Declared, probe: &UsdtProbe) -> Result<Option<Box<Operands>>, Refusal> {
    let Some(FailSource::End(number)) = declared.fail.map(|fail| fail.source()) else { return Ok(None) };
    let mut operands = Operands::default();
    put(probe, number, &format!("end.arg{number}"), &mut operands)?;
    Ok(Some(Box::new(operands)))
}

/// Where the declared values are at this place, a beginning.
fn wanted(binary: &Binary, declared: &Declared, probe: &UsdtProbe) -> Result<Option<Box<Operands>>, Refusal> {
    let mut operands = Operands::default();
    let mut any = binary.put_globals(declared, probe.address, false, &mut operands)?;
    if let Some(FailSource::Begin(number)) = declared.fail.map(|fail| fail.source()) {
        any = true;
        put(probe, number, &format!("arg{number}"), &mut operands)?;
    }
    for value in declared.values() {
        let Source::Argument(first) = value.source() else { continue };
        any = true;
        for number in first..=value.registers() {
            let found = put(probe, number, &value.to_string(), &mut operands)?;
            if value.is_text() && number == first && found.unused_bits != 0 {
                let argument = probe.arguments.get(usize::from(number) - 1).map_or("", |argument| &*argument.text);
                let (probe, why) =
                    (format!("{}:{}", probe.provider, probe.name), format!("{argument} is not a pointer"));
                return Err(Refusal::UsdtArgument { value: value.to_string(), probe, why });
            }
        }
    }
    Ok(any.then(|| Box::new(operands)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(owner: &[u8], kind: u32, words: [u64; 3], texts: &[u8]) -> Vec<u8> {
        let size = 24 + texts.len() as u32;
        let mut all = [(owner.len() as u32).to_le_bytes(), size.to_le_bytes(), kind.to_le_bytes()].concat();
        all.extend(owner);
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend(words.into_iter().flat_map(u64::to_le_bytes));
        all.extend(texts);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    #[test]
    fn notes_are_read() {
        let one = bytes(OWNER, KIND, [0x1000, 0x5000, 0x7000], b"shop\0begin\0 8@%rax -4@$3\0");
        let other = bytes(b"GNU\0", KIND, [0; 3], b"");
        let two = bytes(OWNER, KIND, [0x1010, 0x5000, 0], b"shop\0end\0\0");
        let all = [one.clone(), other, two].concat();
        let found = parse(&all, Some(0x5000), true, true);
        let short: Vec<(&str, u64, Option<u64>, usize)> =
            found.iter().map(|one| (&*one.name, one.address, one.semaphore, one.arguments.len())).collect();
        assert_eq!(short, [("begin", 0x1000, Some(0x7000), 2), ("end", 0x1010, None, 0)]);
        // Moved by a tool such as prelink.
        assert_eq!(parse(&all, Some(0x5100), true, true)[0].address, 0x1100);
        assert_eq!(parse(&all, Some(0x5100), true, true)[1].semaphore, None);
        assert!(parse(&all, None, false, true).is_empty(), "the other byte order");
        for cut in 0..one.len() - 3 {
            assert!(parse(&one[..cut], None, true, true).is_empty(), "{cut}");
        }
        let hostile = bytes(OWNER, KIND, [u64::MAX; 3], b"a\0b\x1b\0\0");
        assert!(parse(&hostile, Some(7), true, true).is_empty(), "control characters");
        assert!(parse(&[0xff; 64], None, true, true).is_empty());
    }
}
