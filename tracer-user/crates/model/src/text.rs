//! Text from outside (names of programs, paths, topics) as it may stand in labels, JSON and pages.
//!
//! Control bytes move a terminal's cursor, and marks of direction make a name look like another: both are written as what they
//! are, `\u{202e}`.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character does something else than show itself: control characters, marks of direction and other invisible ones.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The same text with such characters written out.
pub fn printable(text: &str) -> Cow<'_, str> {
    written_with("\\u", text)
}

/// The same, where the backslash needs one of its own.
pub fn written_with<'a>(escape: &str, text: &'a str) -> Cow<'a, str> {
    // Most texts are plain, and that is quick to see.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{escape}{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_show_itself_is_written_out() {
        for (text, expected) in [
            ("plain", "plain"),
            ("naïve ü 漢字", "naïve ü 漢字"),
            ("a\nb\x1b[31m", "a\\u{a}b\\u{1b}[31m"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            ("x\u{2066}y\u{200b}\u{7f}\u{85}", "x\\u{2066}y\\u{200b}\\u{7f}\\u{85}"),
        ] {
            assert_eq!(printable(text), expected);
            assert!(!printable(text).chars().any(is_unsafe));
        }
    }
}
