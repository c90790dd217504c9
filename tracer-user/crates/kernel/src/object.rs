//! The eBPF object, built from `tracer-ebpf` and embedded by the build script, and the patches applied before loading.

use aya::include_bytes_aligned;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, elf};

/// The object's bytes; empty if the binary was built without it (`cargo check` needs no eBPF toolchain).
pub static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tracer.bpf.o"));

/// Section of map definitions (`bpf_map_def`).
const MAPS: &str = "maps";
/// Offset of `value_size` in a definition.
const VALUE_SIZE: u64 = 8;

/// `object` with values of `bytes` bytes in map `name`: the loader can only change the number of entries.
///
/// The error says what the object lacks.
pub fn with_value_size(object: &[u8], name: &str, bytes: u32) -> Result<Vec<u8>, String> {
    let at = definition(object, name)?.checked_add(VALUE_SIZE).and_then(|at| usize::try_from(at).ok());
    let mut changed = object.to_vec();
    let place = at.and_then(|at| changed.get_mut(at..)?.first_chunk_mut::<4>());
    *place.ok_or_else(|| format!("the definition of map {name} is cut"))? = bytes.to_ne_bytes();
    Ok(changed)
}

/// `object` with map `name` changed to another kind (`BPF_MAP_TYPE_…`): an unused map must not require the privileges
/// to create it.
///
/// The error says what the object lacks.
pub fn with_kind(object: &[u8], name: &str, kind: u32) -> Result<Vec<u8>, String> {
    let at = usize::try_from(definition(object, name)?).ok();
    let mut changed = object.to_vec();
    let place = at.and_then(|at| changed.get_mut(at..)?.first_chunk_mut::<4>());
    *place.ok_or_else(|| format!("the definition of map {name} is cut"))? = kind.to_ne_bytes();
    Ok(changed)
}

/// File offset of the definition of map `name`.
fn definition(object: &[u8], name: &str) -> Result<u64, String> {
    let file = ElfFile64::<Endianness>::parse(object).map_err(|error| format!("it is no ELF object: {error}"))?;
    let endian = file.endian();
    if file.elf_header().e_machine(endian) != elf::EM_BPF {
        return Err("it is for another machine".into());
    }
    let section = file.section_by_name(MAPS).ok_or_else(|| format!("it has no section {MAPS}"))?;
    let (begin, _) = section.file_range().ok_or_else(|| format!("its section {MAPS} is empty"))?;
    let of_map = |symbol: &object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
        symbol.section_index() == Some(section.index()) && symbol.name() == Ok(name)
    };
    let symbol = file.symbols().find(of_map).ok_or_else(|| format!("it has no map {name}"))?;
    begin.checked_add(symbol.address()).ok_or_else(|| format!("the definition of map {name} is nowhere"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_object_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096], &std::fs::read("/proc/self/exe").expect("this program")] {
            assert!(with_value_size(bytes, "RINGS", 1).is_err());
        }
    }

    #[test]
    fn of_the_embedded_object_four_bytes_change() {
        if OBJECT.is_empty() {
            // Built without the object, as for a check.
            return;
        }
        let changed = with_value_size(OBJECT, "RINGS", 0x1234_5678).expect("it has the map");
        let differ: Vec<usize> = (0..OBJECT.len()).filter(|at| OBJECT[*at] != changed[*at]).collect();
        assert!(changed.len() == OBJECT.len() && differ.last().expect("some") - differ[0] < 4, "{differ:?}");
        assert!(with_value_size(OBJECT, "NO_SUCH_MAP", 1).is_err());
    }
}
