//! Splits SQL into tokens: names, literals, comments. Total: anything not understood is [`Token::Other`], and
//! unterminated tokens extend to the end.

use memchr::{memchr, memmem};

use super::Dialect;

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A keyword or an unquoted name.
    Word(&'a [u8]),
    /// A quoted name, without its quotes.
    Quoted(&'a [u8]),
    /// `(`
    Open,
    /// `)`
    Close,
    /// `,`
    Comma,
    /// `.`
    Dot,
    /// `;`
    End,
    /// A literal, a parameter, an operator.
    Other,
}

/// Reads tokens off the front of a text.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
    dialect: Dialect,
    /// The text continues beyond its captured part, so a word at its end may be incomplete.
    cut: bool,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(text: &'a [u8], cut: bool, dialect: Dialect) -> Self {
        Self { text, at: 0, dialect, cut }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Takes everything up to and including the first `end`, or to the end of the text; returns the bytes before it.
    fn until(&mut self, end: &[u8]) -> &'a [u8] {
        let rest = self.rest();
        let found = memmem::find(rest, end);
        self.at += found.map_or(rest.len(), |found| found + end.len());
        rest.get(..found.unwrap_or(rest.len())).unwrap_or_default()
    }

    fn while_is(&mut self, is: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.rest();
        let len = rest.iter().position(|byte| !is(*byte)).unwrap_or(rest.len());
        self.at += len;
        rest.get(..len).unwrap_or_default()
    }

    /// Skips a comment; false if none begins here.
    fn comment(&mut self) -> bool {
        let my = self.dialect == Dialect::MySql;
        match (self.peek(0), self.peek(1)) {
            (Some(b'-'), Some(b'-')) if !my || self.peek(2).is_none_or(|byte| byte <= b' ') => {
                self.until(b"\n");
            }
            (Some(b'#'), _) if my => {
                self.until(b"\n");
            }
            // A comment that MySQL and MariaDB execute and others skip: its words count. Its end is a token of its own.
            (Some(b'/'), Some(b'*')) if my && (self.peek(2) == Some(b'!') || self.rest().starts_with(b"/*M!")) => {
                self.at += if self.peek(2) == Some(b'!') { 3 } else { 4 };
                self.while_is(|byte| byte.is_ascii_digit());
            }
            (Some(b'*'), Some(b'/')) if my => self.at += 2,
            (Some(b'/'), Some(b'*')) if my => {
                self.at += 2;
                self.until(b"*/");
            }
            (Some(b'/'), Some(b'*')) => {
                // PostgreSQL's comments nest.
                let mut depth = 0_usize;
                while self.at < self.text.len() {
                    match (self.peek(0), self.peek(1)) {
                        (Some(b'/'), Some(b'*')) => (self.at, depth) = (self.at + 2, depth + 1),
                        (Some(b'*'), Some(b'/')) => {
                            (self.at, depth) = (self.at + 2, depth - 1);
                            if depth == 0 {
                                break;
                            }
                        }
                        _ => self.at += 1,
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes a quoted text from its opening quote on; a doubled quote stands for itself.
    fn quoted(&mut self, quote: u8, escapes: bool) -> &'a [u8] {
        self.at += 1;
        let from = self.at;
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            if byte == quote {
                if self.peek(0) != Some(quote) {
                    return self.text.get(from..self.at - 1).unwrap_or_default();
                }
                self.at += 1;
            } else if escapes && byte == b'\\' {
                self.at += 1;
            }
        }
        // Unterminated: its content is unknown.
        self.at = self.text.len();
        &[]
    }

    /// Handles a `$`: PostgreSQL's parameters and quotes.
    fn dollar(&mut self) {
        self.at += 1;
        if self.dialect == Dialect::MySql || self.peek(0).is_some_and(|byte| byte.is_ascii_digit()) {
            self.while_is(is_word);
            return;
        }
        let rest = self.rest();
        let Some(end) = memchr(b'$', rest) else {
            if rest.iter().all(|byte| is_word(*byte)) {
                // A dollar quote cut at its beginning.
                self.at = self.text.len();
            }
            return;
        };
        let tag = rest.get(..end).unwrap_or_default();
        if !tag.iter().all(|byte| is_word(*byte)) {
            return;
        }
        let mark = self.text.get(self.at - 1..=self.at + end).unwrap_or_default();
        self.at += end + 1;
        self.until(mark);
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            self.while_is(|byte| byte <= b' ');
            if !self.comment() {
                break;
            }
        }
        let my = self.dialect == Dialect::MySql;
        let first = self.peek(0)?;
        Some(match first {
            b'(' | b')' | b',' | b'.' | b';' => {
                self.at += 1;
                match first {
                    b'(' => Token::Open,
                    b')' => Token::Close,
                    b',' => Token::Comma,
                    b'.' if self.peek(0).is_some_and(|byte| byte.is_ascii_digit()) => {
                        self.while_is(is_word);
                        Token::Other
                    }
                    b'.' => Token::Dot,
                    _ => Token::End,
                }
            }
            b'\'' => {
                self.quoted(b'\'', my);
                Token::Other
            }
            b'"' if my => {
                self.quoted(b'"', true);
                Token::Other
            }
            b'"' | b'`' if first == b'"' || my => match self.quoted(first, false) {
                b"" => Token::Other,
                name => Token::Quoted(name),
            },
            b'$' => {
                self.dollar();
                Token::Other
            }
            b'@' | b':' => {
                // A variable, a parameter or a cast: no table name follows.
                self.while_is(|byte| matches!(byte, b'@' | b':'));
                self.while_is(is_word);
                Token::Other
            }
            b'0'..=b'9' => {
                self.while_is(|byte| is_word(byte) || byte == b'.');
                Token::Other
            }
            _ if is_word(first) => {
                let word = self.while_is(|byte| is_word(byte) || byte == b'$');
                if self.peek(0) == Some(b'\'')
                    && matches!(word, [b'e' | b'E' | b'b' | b'B' | b'x' | b'X' | b'n' | b'N'])
                {
                    self.quoted(b'\'', my || word.eq_ignore_ascii_case(b"e"));
                    Token::Other
                } else if self.cut && self.at == self.text.len() {
                    return None;
                } else {
                    Token::Word(word)
                }
            }
            _ => {
                self.at += 1;
                Token::Other
            }
        })
    }
}
