//! Which methods run at a place in compiled code: the one that was compiled, and those inlined into it there.
//!
//! A table of positions (`PcDesc`, `src/hotspot/share/code/pcDesc.hpp`), sorted, leads from a place to its *scope*: a method, and the
//! scope that it was inlined into (`ScopeDesc::decode_body`, `src/hotspot/share/code/scopeDesc.cpp`). Both are read from memory that may
//! say anything: a chain counts if it ends at the compiled method, and then proves how its numbers are written.

use super::code_cache::{CodeBlob, half};
use super::layout::{HotspotLayout, InliningTables};
use crate::process_memory::{ProcessMemory, word};

/// Bytes of a position: its distance from the code's begin, its scope, and two numbers that do not matter here.
const POSITION: u64 = 16;
/// Most positions of a method that are believed.
const POSITIONS: u64 = 1 << 20;
/// Most methods inlined into each other that are believed.
const DEPTH: usize = 64;
/// Most bytes of three numbers of a scope.
const SCOPE: usize = 15;

/// What a compiled method's tables lie in.
struct Scopes {
    positions: u64,
    count: u64,
    scopes: u64,
    methods: u64,
}

impl Scopes {
    fn of(memory: &mut impl ProcessMemory, place: InliningTables, blob: u64) -> Option<Self> {
        let member = |offset: u64| blob.checked_add(offset);
        let (positions, end, scopes, methods) = match place {
            InliningTables::Blob { positions, end, scopes, methods } => (
                blob.checked_add(half(memory, member(positions)?)?.into())?,
                blob.checked_add(half(memory, member(end)?)?.into())?,
                word(memory, member(scopes)?)?,
                blob.checked_add(half(memory, member(methods)?)?.into())?,
            ),
            InliningTables::Apart { memory: apart, positions, scopes, data, methods } => {
                let apart = word(memory, member(apart)?)?;
                let scopes = apart.checked_add(half(memory, member(scopes)?)?.into())?;
                (
                    apart.checked_add(half(memory, member(positions)?)?.into())?,
                    scopes,
                    scopes,
                    word(memory, member(data)?)?.checked_add(half(memory, member(methods)?)?.into())?,
                )
            }
        };
        let count = end.checked_sub(positions)? / POSITION;
        (count <= POSITIONS).then_some(Self { positions, count, scopes, methods })
    }

    /// The scope of the first position at or after `distance` from the code's begin. Calls return to theirs; between two, it is the
    /// next that was the reason for noting one.
    fn at(&self, memory: &mut impl ProcessMemory, distance: i32) -> Option<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let position = self.positions.checked_add(middle * POSITION)?;
            if (half(memory, position)? as i32) < distance { low = middle + 1 } else { high = middle }
        }
        if low == self.count {
            return None;
        }
        let position = self.positions.checked_add(low * POSITION)?;
        half(memory, position.checked_add(4)?).map(u64::from)
    }

    /// The methods from scope `at` outwards, if they end at `compiled`.
    fn chain(&self, memory: &mut impl ProcessMemory, at: u64, compiled: u64, excluded: u32) -> Option<Vec<u64>> {
        let (mut at, mut methods) = (at, Vec::new());
        while at != 0 && methods.len() < DEPTH {
            let mut bytes = [0; SCOPE];
            if !memory.read(self.scopes.checked_add(at)?, &mut bytes) {
                return None;
            }
            let mut bytes = bytes.iter().copied();
            let outer = unsigned5(&mut bytes, excluded)?;
            // Numbers of methods begin with 1.
            let number = u64::from(unsigned5(&mut bytes, excluded)?).checked_sub(1)?;
            methods.push(word(memory, self.methods.checked_add(8 * number)?)?);
            at = outer.into();
        }
        (at == 0 && methods.last() == Some(&compiled)).then_some(methods)
    }
}

/// The methods at an address in compiled code, innermost first; `None` where that is not known, or not believed.
pub(super) fn methods_at(
    memory: &mut impl ProcessMemory,
    layout: &HotspotLayout,
    blob: &CodeBlob,
    address: u64,
) -> Option<Vec<u64>> {
    let scopes = Scopes::of(memory, layout.inlining?, blob.at)?;
    let distance = i32::try_from(address.checked_sub(blob.code.start)?).ok()?;
    let at = scopes.at(memory, distance)?;
    // Newer machines write no byte that is zero.
    [1, 0].into_iter().find_map(|excluded| scopes.chain(memory, at, blob.method, excluded))
}

/// Reads a number of one to five bytes: the bytes from `excluded` to 191 end it, others count 64 times less than the next
/// (`src/hotspot/share/utilities/unsigned5.hpp`).
fn unsigned5(bytes: &mut impl Iterator<Item = u8>, excluded: u32) -> Option<u32> {
    let mut sum = 0u32;
    for place in 0..5 {
        let byte = u32::from(bytes.next()?);
        sum = sum.wrapping_add(byte.checked_sub(excluded)?.wrapping_shl(6 * place));
        if byte < 192 {
            break;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_to_five_bytes() {
        let read = |bytes: &[u8], excluded| unsigned5(&mut bytes.iter().copied(), excluded);
        assert_eq!((read(&[1], 1), read(&[191], 1), read(&[192, 1], 1)), (Some(0), Some(190), Some(191)));
        assert_eq!((read(&[0], 0), read(&[191], 0), read(&[192, 0], 0)), (Some(0), Some(191), Some(192)));
        // The largest of two bytes, and the largest of all.
        assert_eq!(read(&[255, 191], 1), Some(254 + (190 << 6)));
        assert_eq!((read(&[0, 1], 1), read(&[192, 192], 0), read(&[], 0)), (None, None, None));
        assert!(read(&[255; 5], 1).is_some());
    }
}
