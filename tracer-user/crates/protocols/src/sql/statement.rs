//! Reads one statement's verbs and tables, in order.

use super::names::{object, part, plain};
use super::tokens::{Token, Tokens};
use super::{Dialect, OTHER, SUMMARY_LIMIT};

/// Deepest nesting of parentheses searched for tables.
const DEPTH: usize = 32;
/// Most WITH names remembered.
const NAMED: usize = 16;
/// Words that may stand between a verb and the table.
const BEFORE: &[&str] = &[
    "ONLY",
    "LATERAL",
    "TABLE",
    "TABLES",
    "INTO",
    "IF",
    "NOT",
    "EXISTS",
    "CONCURRENTLY",
    "IGNORE",
    "LOW_PRIORITY",
    "HIGH_PRIORITY",
    "DELAYED",
    "QUICK",
    "VIEW",
];
/// Words that end a list of tables until the next FROM or JOIN.
const AFTER: &[&str] = &[
    "WHERE",
    "GROUP",
    "HAVING",
    "WINDOW",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "FETCH",
    "FOR",
    "RETURNING",
    "SET",
    "VALUES",
    "CASCADE",
    "RESTRICT",
];

/// A statement's operation and summary.
pub(super) struct Statement {
    pub(super) operation: String,
    pub(super) text: String,
}

/// State inside one pair of parentheses, or at the top level.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// A verb may come here.
    start: bool,
    /// A verb came: FROM and JOIN lead to tables.
    query: bool,
    /// A table's name is next.
    table: bool,
    /// A comma leads to another table.
    list: bool,
    /// USING leads to a table.
    using: bool,
    /// A verb can follow a closing parenthesis or AS.
    reopens: bool,
    /// The name of a common table expression is next (WITH).
    naming: bool,
    /// Commas lead to such a name.
    with: bool,
}

/// A statement being read.
struct StatementReader<'a> {
    dialect: Dialect,
    text: String,
    operation: Option<String>,
    /// The very first verb, which may stand in parentheses.
    first: Option<String>,
    /// Offset in `text` where the tables of the current verb begin.
    tables: usize,
    named: Vec<&'a [u8]>,
    levels: Vec<Level>,
    /// Open parentheses beyond the depth searched.
    deeper: usize,
}

/// Whether to read the rest of a statement.
#[derive(PartialEq, Eq)]
enum Rest {
    Read,
    /// Nothing of interest until the statement's end.
    Skip,
    /// The statement contains others, so its end cannot be recognised.
    Drop,
}

/// Reads a statement off the front of `tokens`; `None` if there is none.
pub(super) fn statement(tokens: &mut Tokens<'_>, dialect: Dialect) -> Option<Statement> {
    let mut first = tokens.next()?;
    while first == Token::End {
        first = tokens.next()?;
    }
    let mut reader = StatementReader {
        dialect,
        text: String::new(),
        operation: None,
        first: None,
        tables: 0,
        named: Vec::new(),
        levels: vec![Level { start: true, ..Level::default() }],
        deeper: 0,
    };
    let mut rest = Rest::Read;
    let mut next = Some(first);
    while let Some(token) = next {
        // A skipped part ends at the next semicolon even within parentheses, which are not tracked.
        if token == Token::End && (reader.is_outermost() || rest == Rest::Skip) {
            break;
        }
        if rest == Rest::Read {
            rest = reader.token(token, tokens);
        }
        if rest == Rest::Drop {
            tokens.by_ref().for_each(drop);
        }
        next = tokens.next();
    }
    let operation = reader.operation.or(reader.first).unwrap_or_else(|| OTHER.to_owned());
    let text = if reader.text.is_empty() { operation.clone() } else { reader.text };
    Some(Statement { operation, text })
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn among(list: &[&str], word: &[u8]) -> bool {
    list.iter().any(|name| is(word, name))
}

impl<'a> StatementReader<'a> {
    fn is_outermost(&self) -> bool {
        self.levels.len() == 1 && self.deeper == 0
    }

    fn level(&mut self) -> &mut Level {
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        let last = self.levels.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "the last of those that are there")]
        &mut self.levels[last]
    }

    fn token(&mut self, token: Token<'a>, tokens: &mut Tokens<'a>) -> Rest {
        if self.deeper > 0 {
            match token {
                Token::Open => self.deeper += 1,
                Token::Close => self.deeper -= 1,
                _ => {}
            }
            return Rest::Read;
        }
        match token {
            Token::Word(word) => return self.word(word, tokens),
            Token::Quoted(name) => self.name(name, true, tokens),
            Token::Open if self.levels.len() >= DEPTH => self.deeper = 1,
            Token::Open => {
                let outer = *self.level();
                self.level().table = false;
                // In place of a table: a subquery, or joined tables.
                let joined = outer.table;
                self.levels.push(Level { start: true, query: joined, table: joined, list: joined, ..Level::default() });
            }
            Token::Close => {
                if self.levels.len() > 1 {
                    self.levels.pop();
                }
                let level = self.level();
                level.start = level.reopens;
            }
            Token::Comma => {
                let level = self.level();
                level.start = false;
                level.table = level.list;
                level.naming = level.with;
            }
            Token::Dot | Token::Other | Token::End => {
                let level = self.level();
                level.start = false;
                level.table = false;
            }
        }
        Rest::Read
    }

    /// Handles a name where a table's may be.
    fn name(&mut self, first: &'a [u8], quoted: bool, tokens: &mut Tokens<'a>) {
        let level = self.level();
        let (table, naming) = (level.table, level.naming);
        (level.start, level.table, level.naming) = (false, false, false);
        if naming {
            if self.named.len() < NAMED {
                self.named.push(first);
            }
            return;
        }
        if !table {
            return;
        }
        let mut name = String::new();
        part(&mut name, first, quoted, self.dialect);
        let mut parts = 1;
        while tokens.clone().next() == Some(Token::Dot) {
            tokens.next();
            let (text, quoted) = match tokens.clone().next() {
                Some(Token::Word(text)) => (text, false),
                Some(Token::Quoted(text)) => (text, true),
                // Cut, or not a name.
                _ => return,
            };
            tokens.next();
            parts += 1;
            if parts <= 4 {
                name.push('.');
                part(&mut name, text, quoted, self.dialect);
            }
        }
        // Functions are not tables; only tables that are written to have a column list.
        let list = self.level().list;
        if list && tokens.clone().next() == Some(Token::Open) {
            return;
        }
        if parts == 1 && self.named.iter().any(|named| named.eq_ignore_ascii_case(first)) {
            return;
        }
        let known = self.text.get(self.tables..).unwrap_or_default();
        if !known.split(' ').any(|known| known == name) {
            self.push(&name);
        }
    }

    fn push(&mut self, word: &str) {
        if self.text.len() + 1 + word.len() <= SUMMARY_LIMIT {
            if !self.text.is_empty() {
                self.text.push(' ');
            }
            self.text.push_str(word);
        }
    }

    /// Handles a verb.
    fn verb(&mut self, name: &str, explains: bool) {
        self.push(name);
        self.tables = self.text.len();
        self.first.get_or_insert_with(|| name.to_owned());
        if self.is_outermost() && self.operation.as_deref().is_none_or(|known| known == "EXPLAIN" && !explains) {
            let known = self.operation.take();
            // EXPLAIN does not execute, so it stays the operation.
            self.operation = Some(known.unwrap_or_else(|| name.to_owned()));
        }
    }

    fn word(&mut self, word: &'a [u8], tokens: &mut Tokens<'a>) -> Rest {
        // Part of a name, whatever keyword it resembles.
        let level = *self.level();
        if level.naming && is(word, "RECURSIVE") {
            return Rest::Read;
        }
        if level.naming {
            self.name(word, false, tokens);
            return Rest::Read;
        }
        if is(word, "SELECT") {
            self.verb("SELECT", false);
            let (with, reopens) = (false, false);
            *self.level() = Level { query: true, with, reopens, ..Level::default() };
            return Rest::Read;
        }
        if level.start {
            return self.begin(word, tokens);
        }
        if level.table && !among(BEFORE, word) && !among(AFTER, word) && !is(word, "SET") {
            self.name(word, false, tokens);
            return Rest::Read;
        }
        let query = level.query;
        let level = self.level();
        if (is(word, "FROM") && query) || (is(word, "USING") && level.using) {
            (level.table, level.list) = (true, true);
            level.using &= !is(word, "USING");
        } else if query && (is(word, "JOIN") || is(word, "STRAIGHT_JOIN")) {
            (level.table, level.list) = (true, true);
        } else if query && is(word, "DISTINCT") {
            // `IS DISTINCT FROM` leads to no table, and `SELECT DISTINCT FROM` is not SQL.
            if matches!(tokens.clone().next(), Some(Token::Word(next)) if is(next, "FROM")) {
                tokens.next();
            }
        } else if among(AFTER, word) {
            (level.table, level.list) = (false, false);
        } else if is(word, "AS") {
            level.start = level.reopens;
        } else if is(word, "ON") && !query {
            // CREATE INDEX … ON table.
            level.table = level.using;
            level.using = false;
        }
        Rest::Read
    }

    /// Handles a word where a verb may be.
    fn begin(&mut self, word: &'a [u8], tokens: &mut Tokens<'a>) -> Rest {
        let outermost = self.is_outermost();
        let old = *self.level();
        let level = self.level();
        let query = Level { query: true, ..Level::default() };
        if is(word, "WITH") {
            *level = Level { naming: true, with: true, reopens: true, ..Level::default() };
        } else if is(word, "INSERT") || is(word, "REPLACE") || is(word, "MERGE") {
            let using = is(word, "MERGE");
            *level = Level { table: true, using, query: using, ..Level::default() };
            self.verb(&upper(word), false);
        } else if is(word, "UPDATE") {
            *level = Level { table: true, list: true, ..query };
            self.verb("UPDATE", false);
        } else if is(word, "DELETE") {
            *level = Level { using: true, ..query };
            self.verb("DELETE", false);
        } else if is(word, "VALUES") {
            *level = Level::default();
            if outermost {
                self.verb("VALUES", false);
            }
        } else if !outermost {
            // Not a query: an expression, columns or a call's arguments; or joined tables.
            level.start = false;
            if level.table {
                return self.word(word, tokens);
            }
        } else if is(word, "EXPLAIN") || (is(word, "PREPARE") && !old.reopens) || is(word, "DECLARE") {
            *level = Level { start: is(word, "EXPLAIN"), reopens: true, ..Level::default() };
            self.verb(&upper(word), true);
        } else if old.reopens {
            // Options of EXPLAIN; words after WITH names.
            return Rest::Read;
        } else if is(word, "TRUNCATE") || is(word, "LOCK") || is(word, "TABLE") {
            *level = Level { table: true, list: true, ..Level::default() };
            self.verb(&upper(word), false);
        } else if is(word, "COPY") || is(word, "CALL") || is(word, "EXEC") {
            // Its FROM leads to a file; its parentheses may hold a query.
            *level = Level { table: true, ..Level::default() };
            if tokens.clone().next() == Some(Token::Open) {
                level.table = false;
            }
            self.verb(&upper(word), false);
        } else if is(word, "REFRESH") {
            *level = Level { table: true, ..Level::default() };
            self.verb("REFRESH MATERIALIZED VIEW", false);
            tokens.next();
            tokens.next();
        } else if is(word, "CREATE") || is(word, "ALTER") || is(word, "DROP") {
            *level = Level::default();
            return self.define(&upper(word), tokens);
        } else {
            *level = Level::default();
            self.verb(plain(word).unwrap_or(OTHER), false);
            return Rest::Skip;
        }
        Rest::Read
    }

    /// Handles the object that is created, altered or dropped.
    fn define(&mut self, verb: &str, tokens: &mut Tokens<'a>) -> Rest {
        // Skips OR REPLACE, TEMPORARY, UNIQUE, DEFINER = … and the like.
        let mut words = 0;
        let kind = loop {
            match tokens.clone().next() {
                None | Some(Token::End) => break None,
                Some(Token::Word(word)) if object(word).is_some() => break object(word),
                _ => {}
            }
            tokens.next();
            words += 1;
            if words > 12 {
                break None;
            }
        };
        let kind = kind.unwrap_or_default();
        let name = match kind {
            "" => verb.to_owned(),
            "MATERIALIZED" => format!("{verb} MATERIALIZED VIEW"),
            _ => format!("{verb} {kind}"),
        };
        self.verb(&name, false);
        if !kind.is_empty() {
            tokens.next();
        }
        match kind {
            "TABLE" | "VIEW" | "MATERIALIZED" => {
                if verb == "DROP" {
                    *self.level() = Level { table: true, list: true, ..Level::default() };
                    return Rest::Read;
                }
                *self.level() = Level { table: true, ..Level::default() };
                // In what follows only queries count, which begin with SELECT.
                Rest::Read
            }
            "INDEX" if verb == "CREATE" => {
                *self.level() = Level { using: true, ..Level::default() };
                Rest::Read
            }
            // Code bodies, which contain statements.
            "FUNCTION" | "PROCEDURE" | "TRIGGER" | "EVENT" | "RULE" | "PACKAGE" | "ROUTINE" if verb != "DROP" => {
                Rest::Drop
            }
            _ => Rest::Skip,
        }
    }
}

fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_uppercase()
}
