//! The Huffman code of HPACK (RFC 7541 appendix B). It is canonical: the lengths of its codes determine it.

/// Bits of the code of each byte, and of the end-of-string symbol, which no text may contain.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
/// Longest code, bits.
const LONGEST: usize = 30;

/// The code, by code length.
struct Code {
    /// First code of a length, left-justified in 32 bits, and the code after its last; equal if there is none.
    range: [(u32, u32); LONGEST + 1],
    /// Where the symbols of a length begin in `symbols`.
    first: [u16; LONGEST + 1],
    /// Symbols by length, then value.
    symbols: [u16; 257],
}

const CODE: Code = code();

const fn code() -> Code {
    let mut made = Code { range: [(0, 0); LONGEST + 1], first: [0; LONGEST + 1], symbols: [0; 257] };
    let mut next = 0u64;
    let mut placed = 0;
    let mut length = 1;
    while length <= LONGEST {
        made.first[length] = placed as u16;
        let from = next;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                made.symbols[placed] = symbol as u16;
                placed += 1;
                next += 1 << (32 - length);
            }
            symbol += 1;
        }
        // The end-of-string symbol has the very last code, which is never looked up.
        let to = if next > u32::MAX as u64 { u32::MAX as u64 } else { next };
        made.range[length] = (from as u32, to as u32);
        length += 1;
    }
    made
}

/// Appends the text encoded in `bytes` to `out`; `None` if they are invalid (`out` then holds a part).
pub(super) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut bits = 0u64;
    let mut have = 0u32;
    let mut rest = bytes.iter();
    loop {
        while have <= 32
            && let Some(byte) = rest.next()
        {
            bits = bits << 8 | u64::from(*byte);
            have += 8;
        }
        if have < 5 {
            break;
        }
        // Missing bits at the end count as ones, like the padding.
        let window =
            if have >= 32 { (bits >> (have - 32)) as u32 } else { ((bits << 32 | 0xffff_ffff) >> have) as u32 };
        let Some(length) = (5..=LONGEST).find(|length| {
            let (from, to) = CODE.range[*length];
            from <= window && window < to
        }) else {
            break;
        };
        if length as u32 > have {
            break;
        }
        let (from, _) = CODE.range[length];
        let index = usize::from(CODE.first[length]) + ((window - from) >> (32 - length)) as usize;
        match CODE.symbols.get(index) {
            Some(symbol) if *symbol < 256 => out.push(*symbol as u8),
            _ => return None,
        }
        have -= length as u32;
    }
    // Padding: less than a byte of ones (§5.2).
    let padding = (1u64 << have.min(63)) - 1;
    (have < 8 && bits & padding == padding).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(hex: &str) -> Option<String> {
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
        let mut out = Vec::new();
        decode(&bytes, &mut out)?;
        Some(String::from_utf8_lossy(&out).into_owned())
    }

    /// RFC 7541 appendix C.4 and C.6.
    #[test]
    fn examples_of_the_specification() {
        for (hex, expected) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95ba97d7f", "custom-key"),
            ("25a849e95bb8e8b4bf", "custom-value"),
            ("6402", "302"),
            ("640eff", "307"),
            ("aec3771a4b", "private"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
            (
                "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
            ("", ""),
        ] {
            assert_eq!(text(hex).as_deref(), Some(expected), "{hex}");
        }
    }

    #[test]
    fn what_is_no_code_is_refused() {
        // A whole byte of padding, padding that is not ones, the end-of-string symbol.
        for hex in ["a8eb10649cbfff", "a8eb10649cb0", "ffffffff"] {
            assert_eq!(text(hex), None, "{hex}");
        }
    }

    #[test]
    fn every_symbol_has_its_code() {
        // Each byte alone: its code, then ones.
        for (symbol, length) in LENGTHS.iter().take(256).enumerate() {
            let length = usize::from(*length);
            let at = CODE.symbols.iter().position(|other| usize::from(*other) == symbol).unwrap();
            let (from, _) = CODE.range[length];
            let code = (u64::from(from) >> (32 - length)) + (at - usize::from(CODE.first[length])) as u64;
            let bits = length.div_ceil(8) * 8;
            let padded = (code << (bits - length)) | ((1 << (bits - length)) - 1);
            let bytes = &padded.to_be_bytes()[8 - bits / 8..];
            let mut out = Vec::new();
            assert_eq!(decode(bytes, &mut out), Some(()), "{symbol}");
            assert_eq!(out, [symbol as u8]);
        }
    }
}
