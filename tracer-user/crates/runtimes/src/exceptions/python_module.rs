//! The modules of Python's classes of exceptions: a class made by `class` has a short name of its own, and its module in its
//! dictionary, where the statement puts it first.
//!
//! Total and bounded: a process may say anything.

use rustc_hash::FxHashMap;

use super::type_name::RawTypeName;
use crate::process_memory::{ProcessMemory, number, word};
use crate::python_code::text;

/// In a type: its dictionary. In that: its keys.
const DICT: u64 = 264;
const KEYS: u64 = 32;
/// First version in which sizes are powers of two and keys may have no hashes beside them.
const COMPACT: u64 = 11;
/// The key, and how many entries are looked at for it.
const MODULE: &str = "__module__";
const LOOKED_AT: u64 = 8;
/// Most characters of a module that are shown.
const MODULE_MAX: usize = 96;
/// Most classes whose modules are remembered.
const KNOWN: usize = 1024;
/// The interpreter's own, which Python does not show either.
const OWN: &str = "builtins";

/// The module of a class at `class` of Python 3.`minor`.
fn module(memory: &mut impl ProcessMemory, class: u64, minor: u64) -> Option<String> {
    let dict = word(memory, class.checked_add(DICT)?)?;
    let keys = word(memory, dict.checked_add(KEYS)?)?;
    let at = |offset: u64| keys.checked_add(offset);
    let (entries, entry, key, used) = if minor >= COMPACT {
        let log = number::<1>(memory, at(9)?)?;
        let kind = number::<1>(memory, at(10)?)?;
        let begin = at(32)?.checked_add(1_u64.checked_shl(log.min(40) as u32)?)?;
        let (entry, key) = if kind == 0 { (24, 8) } else { (16, 0) };
        (begin, entry, key, word(memory, at(24)?)?)
    } else {
        let size = word(memory, at(8)?)?;
        let index = match size {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            _ => 4,
        };
        (at(40)?.checked_add(size.checked_mul(index)?)?, 24, 8, word(memory, at(32)?)?)
    };
    for n in 0..used.min(LOOKED_AT) {
        let place = entries.checked_add(n * entry + key)?;
        let (name, value) = (word(memory, place)?, word(memory, place.checked_add(8)?)?);
        if name != 0 && text(memory, minor, name).as_deref() == Some(MODULE) {
            let module = text(memory, minor, value)?;
            return (!module.is_empty() && module.chars().count() <= MODULE_MAX).then_some(module);
        }
    }
    None
}

/// Modules of classes that were thrown before, by process and address of the class.
#[derive(Debug, Default)]
pub struct PythonModules(FxHashMap<(u32, u64), KnownModule>);

/// What was found of a class with this name; another may take its place.
#[derive(Debug)]
struct KnownModule {
    of: RawTypeName,
    module: Option<Box<str>>,
}

impl PythonModules {
    /// The name with that of its module, if the class at `class` has one that can be read and is not the interpreter's own.
    pub fn qualify<M: ProcessMemory>(
        &mut self,
        name: RawTypeName,
        (tgid, class, minor): (u32, u64, u64),
        memory: impl FnOnce() -> Option<M>,
    ) -> RawTypeName {
        let known = self.0.get(&(tgid, class)).filter(|known| known.of.bytes() == name.bytes());
        let found = if let Some(known) = known {
            known.module.clone()
        } else {
            let found = memory().and_then(|mut memory| module(&mut memory, class, minor));
            let found = found.filter(|module| module != OWN).map(String::into_boxed_str);
            if self.0.len() >= KNOWN {
                self.0.clear();
            }
            self.0.insert((tgid, class), KnownModule { of: name.clone(), module: found.clone() });
            found
        };
        match found {
            Some(module) => name.in_module(&module),
            None => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake_memory::FakeMemory;
    use super::*;

    /// Puts a string object of ASCII there; its text begins at `ascii`.
    fn string(memory: &mut FakeMemory, at: u64, text: &str, ascii: u64) {
        memory.words(at, &[1, 0x10, text.len() as u64, 0, 1 << 2 | 1 << 5 | 1 << 6]);
        memory.put(at + ascii, text.as_bytes());
    }

    /// A class whose dictionary has keys at 0x3000.
    fn class(ascii: u64) -> FakeMemory {
        let mut memory = FakeMemory::default();
        memory.words(0x1000 + DICT, &[0x2000]);
        memory.words(0x2000 + KEYS, &[0x3000]);
        string(&mut memory, 0x4000, "__doc__", ascii);
        string(&mut memory, 0x5000, MODULE, ascii);
        string(&mut memory, 0x6000, "shop.errors", ascii);
        memory
    }

    #[test]
    fn the_module_is_in_the_dictionary() {
        // 3.9: one byte an index, three words an entry. 3.11: 8 bytes of indices, keys without hashes.
        let mut old = class(48);
        old.words(0x3000, &[1, 8, 0, 6, 2]);
        old.words(0x3000 + 40 + 8, &[1, 0x4000, 0x7000, 2, 0x5000, 0x6000]);
        assert_eq!(module(&mut old, 0x1000, 9).as_deref(), Some("shop.errors"));
        let mut new = class(48);
        new.words(0x3000, &[1, 3 | 3 << 8 | 1 << 16, 6, 2]);
        new.words(0x3000 + 32 + 8, &[0x4000, 0x7000, 0x5000, 0x6000]);
        assert_eq!(module(&mut new, 0x1000, 11).as_deref(), Some("shop.errors"));
        assert_eq!(module(&mut new, 0x1000, 8), None);
        assert_eq!(module(&mut new, 0x9000, 11), None);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(words in proptest::collection::vec(any::<u64>(), 64), minor in 9..=14_u64) {
            struct Any(Vec<u64>);
            impl ProcessMemory for Any {
                fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
                    for (to, at) in into.iter_mut().zip(at..) {
                        *to = self.0[(at / 8 % 64) as usize].to_le_bytes()[(at % 8) as usize];
                    }
                    !at.is_multiple_of(5)
                }
            }
            let found = module(&mut Any(words), 0x1001, minor);
            prop_assert!(found.is_none_or(|module| module.chars().count() <= MODULE_MAX));
        }
    }
}
