//! What a method is called.

use super::layout::HotspotLayout;
use crate::process_memory::{ProcessMemory, number, word};

/// Most bytes of the name of a class, and of a method.
const NAME: usize = 256;

/// Class and name of a method.
pub(super) fn name(memory: &mut impl ProcessMemory, layout: &HotspotLayout, method: u64) -> Option<String> {
    let mut follow = |from: u64, offset: u64| word(memory, from.checked_add(offset)?).filter(|to| *to != 0);
    let fixed = follow(method, layout.method_const)?;
    let pool = follow(fixed, layout.const_pool)?;
    let class = follow(pool, layout.pool_class)?;
    let class = follow(class, layout.class_name)?;
    let index = short(memory, fixed.checked_add(layout.const_name)?)?;
    let name = pool.checked_add(layout.pool_bytes)?.checked_add(8 * u64::from(index))?;
    let name = word(memory, name)?;
    let (class, name) = (symbol(memory, layout, class)?, symbol(memory, layout, name)?);
    Some(format!("{}.{name}", class_name(&class)))
}

/// A name of the machine's.
fn symbol(memory: &mut impl ProcessMemory, layout: &HotspotLayout, at: u64) -> Option<String> {
    let len = usize::from(short(memory, at.checked_add(layout.symbol_length)?)?).min(NAME);
    let mut bytes = [0; NAME];
    let bytes = bytes.get_mut(..len)?;
    if !memory.read(at.checked_add(layout.symbol_body)?, bytes) {
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.into_owned())
}

/// Two bytes of memory.
fn short(memory: &mut impl ProcessMemory, at: u64) -> Option<u16> {
    number::<2>(memory, at).map(|number| number as u16)
}

/// A class as programs write it. Classes made while running have numbers and addresses in their names, which no two runs share.
fn class_name(name: &str) -> String {
    let name = name.split(['+']).next().unwrap_or(name);
    let name = name.split("/0x").next().unwrap_or(name);
    let name = name.find("$$Lambda").and_then(|at| name.get(..at + "$$Lambda".len())).unwrap_or(name);
    name.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_called_as_programs_write_them() {
        assert_eq!(class_name("a/b/C$D"), "a.b.C$D");
        assert_eq!(class_name("a/B$$Lambda+0x00007f0008001000"), "a.B$$Lambda");
    }
}
