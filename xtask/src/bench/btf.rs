//! Finds types in the kernel's BTF by name, as attach points for empty programs.

use std::collections::HashMap;

// include/uapi/linux/btf.h: kinds.
const TYPEDEF: u32 = 8;
const FUNCTION: u32 = 12;

/// Ids of all `btf_trace_*` typedefs and functions, by name. `None` if the bytes are not BTF.
pub(super) fn hooks(bytes: &[u8]) -> Option<HashMap<(bool, &[u8]), u32>> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b));
    if word(0)? & 0xffff != 0xeb9f {
        return None;
    }
    let header = word(4)? as usize;
    let types = header + word(8)? as usize;
    let end = types + word(12)? as usize;
    let strings = bytes.get(header + word(16)? as usize..)?;
    let mut found = HashMap::new();
    let mut at = types;
    let mut id = 0;
    while at < end {
        id += 1;
        let (name, info) = (word(at)? as usize, word(at + 4)?);
        let (kind, members) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
        if matches!(kind, TYPEDEF | FUNCTION) {
            let name = strings.get(name..)?.split(|byte| *byte == 0).next()?;
            match name.strip_prefix(b"btf_trace_") {
                Some(tracepoint) if kind == TYPEDEF => {
                    found.insert((true, tracepoint), id);
                }
                _ if kind == FUNCTION => {
                    found.insert((false, name), id);
                }
                _ => {}
            }
        }
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * members,
                6 | 13 => 8 * members,
                _ => 0,
            };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF with: a structure of one member, a typedef, a function.
    fn sample() -> Vec<u8> {
        let strings = b"\0s\0btf_trace_x\0f\0";
        let words: [u32; 12] = [1, 4 << 24 | 1, 8, 1, 0, 0, 3, TYPEDEF << 24, 1, 15, FUNCTION << 24, 0];
        let types = words.len() as u32 * 4;
        let mut bytes = Vec::new();
        for word in [0x0001_eb9f, 24, 0, types, types, strings.len() as u32].iter().chain(&words) {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn tracepoints_and_functions_have_numbers() {
        let bytes = sample();
        let found = hooks(&bytes).expect("BTF");
        assert_eq!(found.get(&(true, &b"x"[..])), Some(&2));
        assert_eq!(found.get(&(false, &b"f"[..])), Some(&3));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn what_is_cut_or_not_btf_is_refused() {
        assert!(hooks(b"\x7fELF............................").is_none());
        let bytes = sample();
        assert!((0..bytes.len() - 20).all(|cut| hooks(&bytes[..cut]).is_none()));
    }
}
