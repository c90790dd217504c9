//! How V8 of a program lays its objects out: constants that it exports for debuggers, `v8dbg_…`, in every build of Node.js.
//!
//! Names of members end with their type, which changes between versions; what stands before it does not.

use super::go::image::{Image, Source, number};

/// What their symbols begin with.
const PREFIX: &[u8] = b"v8dbg_";
/// Most bytes read of a symbol table, and of its names.
const SYMBOLS: usize = 32 << 20;
/// Bytes of a symbol (ELF-64).
const SYMBOL: usize = 24;
/// What a constant is at most: offsets and kinds are small.
const LARGEST: i32 = 1 << 14;

/// Constants of a build. Offsets in bytes from the beginning of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V8Constants {
    /// In a map: the kind of the objects that have it.
    pub map_kind: u16,
    /// In a function: what it shares with its copies.
    pub function_shared: u16,
    /// In that: its name, or what its variables are; its script.
    pub shared_name: u16,
    /// Its script.
    pub shared_script: u16,
    /// In a script: source, name, ends of lines.
    pub script_source: u16,
    /// Its name.
    pub script_name: u16,
    /// Ends of its lines.
    pub script_line_ends: u16,
    /// In a string: how many characters.
    pub string_length: u16,
    /// Characters of one byte; of two bytes.
    pub string_one_byte: u16,
    /// Characters of two bytes.
    pub string_two_byte: u16,
    /// In a string of two: both.
    pub cons_first: u16,
    /// The second one.
    pub cons_second: u16,
    /// In a string that stands for another one: that one.
    pub thin_actual: u16,
    /// In a part of a string: the string, and where the part begins.
    pub sliced_parent: u16,
    /// Where the part begins.
    pub sliced_offset: u16,
    /// In a string outside of the heap: what owns it. Its characters' address stands behind.
    pub external_resource: u16,
    /// In an array: how many entries; the first one.
    pub array_length: u16,
    /// The first entry.
    pub array_data: u16,
    /// Kinds: what functions share, what their variables are, scripts, arrays.
    pub kind_shared: u16,
    /// What variables of a function are.
    pub kind_scope: u16,
    /// Scripts.
    pub kind_script: u16,
    /// Arrays.
    pub kind_array: u16,
    /// The first kind that is no string.
    pub first_no_string: u16,
    /// In the description of variables: index of the number of those in contexts; of the first one.
    pub scope_locals: u16,
    /// Index of the first variable.
    pub scope_first: u16,
}

impl V8Constants {
    /// Plausible ones, for tests and fuzz targets: those of Node.js have the same places and similar kinds.
    pub const SAMPLE: Self = Self {
        map_kind: 12,
        function_shared: 24,
        shared_name: 16,
        shared_script: 32,
        script_source: 8,
        script_name: 16,
        script_line_ends: 56,
        string_length: 12,
        string_one_byte: 16,
        string_two_byte: 16,
        cons_first: 16,
        cons_second: 24,
        thin_actual: 16,
        sliced_parent: 16,
        sliced_offset: 24,
        external_resource: 16,
        array_length: 8,
        array_data: 16,
        kind_shared: 262,
        kind_scope: 261,
        kind_script: 167,
        kind_array: 175,
        first_no_string: 128,
        scope_locals: 2,
        scope_first: 3,
    };
}

/// Names of constants, or their beginnings where they end with `__`, and where they go.
type Place = fn(&mut V8Constants) -> &mut u16;
const WANTED: &[(&str, Place)] = &[
    ("class_Map__instance_type__", |all| &mut all.map_kind),
    ("class_JSFunction__shared__", |all| &mut all.function_shared),
    ("class_SharedFunctionInfo__name_or_scope_info__", |all| &mut all.shared_name),
    ("class_SharedFunctionInfo__script__", |all| &mut all.shared_script),
    ("class_SharedFunctionInfo__script_or_debug_info__", |all| &mut all.shared_script),
    ("class_Script__source__", |all| &mut all.script_source),
    ("class_Script__name__", |all| &mut all.script_name),
    ("class_Script__line_ends__", |all| &mut all.script_line_ends),
    ("class_String__length__", |all| &mut all.string_length),
    ("class_SeqOneByteString__chars__", |all| &mut all.string_one_byte),
    ("class_SeqTwoByteString__chars__", |all| &mut all.string_two_byte),
    ("class_ConsString__first__", |all| &mut all.cons_first),
    ("class_ConsString__second__", |all| &mut all.cons_second),
    ("class_ThinString__actual__", |all| &mut all.thin_actual),
    ("class_SlicedString__parent__", |all| &mut all.sliced_parent),
    ("class_SlicedString__offset__", |all| &mut all.sliced_offset),
    ("class_ExternalString__resource__", |all| &mut all.external_resource),
    ("class_FixedArrayBase__length__", |all| &mut all.array_length),
    ("class_FixedArray__data__", |all| &mut all.array_data),
    ("type_SharedFunctionInfo__", |all| &mut all.kind_shared),
    ("type_ScopeInfo__", |all| &mut all.kind_scope),
    ("type_Script__", |all| &mut all.kind_script),
    ("type_FixedArray__", |all| &mut all.kind_array),
    ("FirstNonstringType", |all| &mut all.first_no_string),
    ("scopeinfo_idx_ncontextlocals", |all| &mut all.scope_locals),
    ("scopeinfo_idx_first_vars", |all| &mut all.scope_first),
];

/// Constants that are the same in all builds that can be read: slots of frames, how words are tagged, kinds of strings.
const EXPECTED: &[(&str, i32)] = &[
    ("off_fp_context", -8),
    ("off_fp_function", -16),
    ("SmiShiftSize", 31),
    ("SmiValueShift", 1),
    ("StringRepresentationMask", 7),
    ("ConsStringTag", 1),
    ("ExternalStringTag", 2),
    ("SlicedStringTag", 3),
    ("ThinStringTag", 5),
    ("StringEncodingMask", 8),
    ("OneByteStringTag", 8),
];

/// Why a program's V8 cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConstantsError {
    /// It has none of these symbols.
    Missing,
    /// It has, but not those that are needed, or they are others.
    Unknown,
}

/// The constants of a program's file. Total: any bytes.
pub fn constants<S: Source + ?Sized>(file: &S) -> Result<V8Constants, ConstantsError> {
    let image = Image::read(file).ok_or(ConstantsError::Missing)?;
    for (symbols, names) in [(".dynsym", ".dynstr"), (".symtab", ".strtab")] {
        let bytes = |section| image.bytes(image.section(section)?, SYMBOLS);
        let (Some(symbols), Some(names)) = (bytes(symbols), bytes(names)) else { continue };
        let mut found = V8Constants::default();
        let (mut any, mut wanted, mut expected) = (false, [false; WANTED.len()], 0);
        for symbol in symbols.chunks_exact(SYMBOL) {
            let Some(name) = name(&names, symbol) else { continue };
            let value = || {
                let value = image.code(number::<8>(symbol, 8)?, 4)?;
                Some(i32::from_le_bytes(*value.first_chunk()?))
            };
            any = true;
            let is_name = |known: &str| known == name || known.ends_with("__") && name.starts_with(known);
            for (at, (known, place)) in WANTED.iter().enumerate() {
                if is_name(known)
                    && let Some(value) = value().filter(|value| (0..LARGEST).contains(value))
                {
                    *place(&mut found) = value as u16;
                    wanted[at] = true;
                }
            }
            if let Some((_, known)) = EXPECTED.iter().find(|(known, _)| *known == name) {
                if value() != Some(*known) {
                    return Err(ConstantsError::Unknown);
                }
                expected += 1;
            }
        }
        if any {
            // The script has one of two names.
            let missing = wanted.iter().filter(|found| !**found).count();
            let whole = missing == 1 && found.shared_script != 0 && expected == EXPECTED.len();
            return if whole { Ok(found) } else { Err(ConstantsError::Unknown) };
        }
    }
    Err(ConstantsError::Missing)
}

/// The name of a symbol, behind what all begin with; `None` if it is another's.
fn name<'a>(names: &'a [u8], symbol: &[u8]) -> Option<&'a str> {
    let rest = names.get(number::<4>(symbol, 0)? as usize..)?.strip_prefix(PREFIX)?;
    let end = rest.iter().take(256).position(|byte| *byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn programs_of_this_machine() {
        // As the package of Node.js 20 has it; others' are in the tests that run them.
        if let Ok(node) = File::open("/usr/bin/node") {
            let found = constants(&node).expect("constants of V8");
            assert_eq!((found.map_kind, found.shared_name, found.shared_script), (12, 16, 32));
            assert_eq!((found.script_name, found.first_no_string, found.scope_first), (16, 128, 3));
        }
        let own = File::open("/proc/self/exe").expect("this program");
        assert_eq!(constants(&own), Err(ConstantsError::Missing));
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            assert_eq!(constants(bytes), Err(ConstantsError::Missing));
        }
    }
}
