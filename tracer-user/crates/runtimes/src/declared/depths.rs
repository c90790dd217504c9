//! Where the stack pointer is at each instruction of a function, from its code alone.

use std::collections::{BTreeMap, VecDeque};

use super::code::{self, Instructions, Stack, X86_64};
use super::lines::after;

/// Where the stack pointer is before each instruction, relative to the function's beginning; `None`: not known.
pub(super) fn depths(instructions: &Instructions, start: u64) -> BTreeMap<u64, Option<i64>> {
    /// Stack pointer and frame pointer.
    type State = (Option<i64>, Option<i64>);
    let mut states: BTreeMap<u64, State> = BTreeMap::from([(start, (Some(0), None))]);
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        let (Some(one), Some((sp, fp))) = (instructions.get(&at), states.get(&at).copied()) else { continue };
        let plus = |from: Option<i64>, by: i64| from.and_then(|from| from.checked_add(by));
        let next: State = match one.stack {
            Stack::Same => (sp, fp),
            Stack::Moved(by) => (plus(sp, by), fp),
            Stack::SetFrame => (sp, sp),
            Stack::FromFrame(by) => (plus(fp, by), fp),
            Stack::PopFrame => (plus(sp, 8), None),
            Stack::Leave => (plus(fp, 8), None),
            Stack::FrameLost => (sp, None),
            Stack::Unknown => (None, fp),
        };
        for to in after(instructions, at) {
            let merged = match states.get(&to) {
                None => next,
                Some((sp, fp)) => (sp.filter(|_| *sp == next.0), fp.filter(|_| *fp == next.1)),
            };
            // A state only ever loses what it knows: this ends.
            if states.get(&to) != Some(&merged) {
                states.insert(to, merged);
                queue.push_back(to);
            }
        }
    }
    states.into_iter().map(|(at, (sp, _))| (at, sp)).collect()
}

/// The instructions of `code`, a function at `address` and what follows it, that are reached from its beginning: where they
/// begin and end, and the stack pointer before them, relative to the function's beginning; `None`: not known. x86-64. Total: the
/// bytes may be anything.
pub fn of_code(code: &[u8], address: u64) -> Vec<(u64, u64, Option<i64>)> {
    let decoded = code::decode(X86_64, code, address).or_else(|end| {
        // What cannot be decoded is no part of it, or the last instruction is cut.
        let bytes = usize::try_from(end.wrapping_sub(address)).ok().and_then(|bytes| code.get(..bytes));
        code::decode(X86_64, bytes.unwrap_or_default(), address)
    });
    let instructions = decoded.unwrap_or_default();
    let depth = |(at, depth)| instructions.get(&at).map(|one| (at, one.end, depth));
    depths(&instructions, address).into_iter().filter_map(depth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reached_from_the_beginning() {
        // push %rax; test %edi, %edi; je +3; pop %rcx; ret; int3; pop %rcx; ret; int3; cut.
        let code = [0x50, 0x85, 0xff, 0x74, 3, 0x59, 0xc3, 0xcc, 0x59, 0xc3, 0xcc, 0x48];
        let expected = [
            (0, 1, Some(0)),
            (1, 3, Some(-8)),
            (3, 5, Some(-8)),
            (5, 6, Some(-8)),
            (6, 7, Some(0)),
            (8, 9, Some(-8)),
            (9, 10, Some(0)),
        ];
        assert_eq!(of_code(&code, 0x1000), expected.map(|(at, end, depth)| (0x1000 + at, 0x1000 + end, depth)));
        // and $-16, %rsp.
        assert_eq!(of_code(&[0x48, 0x83, 0xe4, 0xf0, 0xc3], 0)[1], (4, 5, None));
        assert_eq!(of_code(&[], 0), []);
    }
}
