//! Finds the end of a RESP value (redis.io/docs: protocol specification) without keeping any of it.
//!
//! A value is a line, a string with a length, or an aggregate of values. Nesting depth does not matter for the end: an
//! aggregate of `n` just adds `n` to the values still to come.

use memchr::memchr;

use super::stream::Fed;

/// Longest string, and most values in one message, accepted as plausible; Redis itself stops at 512 MiB and 2^31.
const LIMIT: u64 = 1 << 40;

/// Position in a RESP value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Values still to come, the current one included.
    left: u64,
    line: Line,
}

/// Position in the current value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Its first byte is next.
    Begin,
    /// In the number after the type byte.
    Number { kind: u8, value: u64, negative: bool },
    /// In a line whose end alone matters.
    Text,
    /// This many bytes of a string and its line end are left.
    Data(u64),
}

impl Elements {
    /// `count` values follow; at least one.
    pub(super) fn new(count: u64) -> Self {
        Self { left: count.max(1), line: Line::Begin }
    }

    /// Takes captured bytes.
    pub(super) fn feed(mut self, bytes: &[u8]) -> Fed<Self> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let over = match self.line {
                Line::Data(n) => {
                    let take = n.min((bytes.len() - at) as u64);
                    at += take as usize;
                    self.line = Line::Data(n - take);
                    n == take
                }
                Line::Text => {
                    let end = bytes.get(at..).and_then(|rest| memchr(b'\n', rest));
                    at = end.map_or(bytes.len(), |end| at + end + 1);
                    end.is_some()
                }
                Line::Begin => {
                    at += 1;
                    self.line = match byte {
                        b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => Line::Text,
                        b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                            Line::Number { kind: *byte, value: 0, negative: false }
                        }
                        _ => return Fed::Invalid,
                    };
                    false
                }
                Line::Number { kind, value, negative } => {
                    at += 1;
                    match byte {
                        b'0'..=b'9' if value < LIMIT / 10 => {
                            self.line = Line::Number { kind, value: value * 10 + u64::from(byte - b'0'), negative };
                            false
                        }
                        b'-' if value == 0 => {
                            self.line = Line::Number { kind, value, negative: true };
                            false
                        }
                        b'\r' => false,
                        b'\n' => self.announced(kind, if negative { None } else { Some(value) }),
                        _ => return Fed::Invalid,
                    }
                }
            };
            if over {
                self.line = Line::Begin;
                self.left -= 1;
                if self.left == 0 {
                    return Fed::End(at);
                }
            }
            if self.left > LIMIT {
                return Fed::Invalid;
            }
        }
        Fed::More(self)
    }

    /// A length or count was read; `None`: null. Returns whether the value is over.
    fn announced(&mut self, kind: u8, number: Option<u64>) -> bool {
        let more = match (kind, number) {
            (_, None) => 0,
            (b'$' | b'=' | b'!', Some(n)) => {
                self.line = Line::Data(n + 2);
                return false;
            }
            (b'%', Some(n)) => n * 2,
            // Attributes precede a value and are not values themselves.
            (b'|', Some(n)) => n * 2 + 1,
            (_, Some(n)) => n,
        };
        self.left += more;
        true
    }

    /// Takes `bytes` uncaptured bytes: their end is known only inside strings.
    pub(super) fn skip(self, bytes: u64) -> Fed<Self> {
        match self.line {
            Line::Data(n) if bytes < n => Fed::More(Self { line: Line::Data(n - bytes), ..self }),
            Line::Data(n) if self.left == 1 => Fed::End(n as usize),
            Line::Data(n) if bytes == n => Fed::More(Self { left: self.left - 1, line: Line::Begin }),
            _ => Fed::Invalid,
        }
    }

    /// The bytes left, if known: in the last string.
    pub(super) fn rest(self) -> Option<u64> {
        match self.line {
            Line::Data(n) if self.left == 1 => Some(n),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the value ends when it arrives in these fragments.
    fn end(fragments: &[&[u8]]) -> Option<usize> {
        let mut state = Elements::new(1);
        let mut before = 0;
        for piece in fragments {
            match state.feed(piece) {
                Fed::More(next) => state = next,
                Fed::End(at) => return Some(before + at),
                Fed::Invalid => return None,
            }
            before += piece.len();
        }
        None
    }

    #[test]
    fn values_end_where_they_say_for_every_cut() {
        for value in [
            &b"+OK\r\n"[..],
            b"-ERR unknown command\r\n",
            b":-5\r\n",
            b"$5\r\nhello\r\n",
            b"$0\r\n\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n*1\r\n:1\r\n$2\r\n\r\n\r\n",
            b"%2\r\n+a\r\n:1\r\n$1\r\nb\r\n*2\r\n_\r\n#t\r\n",
            b"~3\r\n,1.5\r\n(123456\r\n=7\r\ntxt:abc\r\n",
            b"|1\r\n+ttl\r\n:3600\r\n$1\r\nx\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            b"!6\r\nERR no\r\n",
        ] {
            let whole = [value, b"+NEXT\r\n"].concat();
            for first in 0..value.len() {
                for second in first..value.len() {
                    let fragments = [&whole[..first], &whole[first..second], &whole[second..]];
                    assert_eq!(end(&fragments), Some(value.len()), "{}", String::from_utf8_lossy(value));
                }
            }
        }
        for bad in [&b"x"[..], b"$x\r\n", b"$99999999999999999999\r\n", b"\x16\x03\x01"] {
            assert_eq!(end(&[bad]), None);
        }
    }

    #[test]
    fn uncaptured_bytes_are_followed_in_strings() {
        let inside = |bytes: &[u8]| match Elements::new(1).feed(bytes) {
            Fed::More(state) => state,
            _ => panic!("over"),
        };
        let last = inside(b"$1000\r\nab");
        assert_eq!(last.rest(), Some(1000));
        assert!(matches!(last.skip(1000), Fed::End(1000)));
        assert!(matches!(last.skip(5000), Fed::End(1000)));
        assert!(matches!(last.skip(10), Fed::More(_)));
        let first = inside(b"*2\r\n$1000\r\nab");
        assert_eq!(first.rest(), None);
        assert!(matches!(first.skip(1000), Fed::More(_)));
        assert!(matches!(first.skip(1001), Fed::Invalid));
        assert!(matches!(inside(b"*2\r\n").skip(1), Fed::Invalid));
    }
}
