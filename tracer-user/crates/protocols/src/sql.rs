//! Summarizes SQL statements: verbs and the tables they use, nothing else (OpenTelemetry's `db.query.summary`,
//! "Generating a summary of the query"). Literals, parameters and comments never leave `sql/tokens.rs`.
//!
//! A small hand-written reader instead of an SQL parser: statements arrive cut, in dialects and with mistakes, and each
//! must yield a summary in one pass.

mod names;
mod statement;
mod tokens;

use std::sync::Arc;

pub(super) use self::names::{dotted, shared};
use self::statement::{Statement, statement};
use self::tokens::Tokens;
use super::pool::Pool;

/// Most bytes of a statement that are read.
pub const SQL_LIMIT: usize = 4096;
/// Longest summary, bytes.
pub const SUMMARY_LIMIT: usize = 200;
/// Name of a statement without a known verb.
pub const OTHER: &str = "_OTHER";
/// Name of a query without a statement.
pub const EMPTY: &str = "_EMPTY";

/// SQL dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `"name"`, `$tag$text$tag$`, `E'\''`, nested comments; unquoted names fold to lower case.
    PostgreSql,
    /// `` `name` ``, `"text"`, `'\''`, `# comment`, `/*! run */`.
    MySql,
}

/// Everything kept of a query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Summary {
    /// Its verb: `db.operation.name`.
    pub operation: Arc<str>,
    /// Verbs and tables: `db.query.summary`; begins with the operation unless a WITH comes first.
    pub text: Arc<str>,
}

/// Summaries of prepared statements: every connection of a service prepares the same ones.
static PREPARED: Pool<Summary> = Pool::new();

impl Summary {
    /// Shares the summary among all connections, as long as the statement is prepared.
    pub(super) fn prepared(self) -> Arc<Self> {
        PREPARED.share(self)
    }
}

/// Summarizes a query by its first [`SQL_LIMIT`] bytes; `cut`: the query is longer than `sql`.
pub fn summarize(sql: &[u8], cut: bool, dialect: Dialect) -> Summary {
    let front = sql.get(..sql.len().min(SQL_LIMIT)).unwrap_or_default();
    let mut tokens = Tokens::new(front, cut || front.len() < sql.len(), dialect);
    let Some(mut first) = statement(&mut tokens, dialect) else {
        return Summary { operation: shared(EMPTY), text: shared(EMPTY) };
    };
    let Some(second) = statement(&mut tokens, dialect) else {
        let text = if first.text == first.operation { shared(&first.text) } else { Arc::from(first.text) };
        return Summary { operation: shared(&first.operation), text };
    };
    // Several statements: their common summary, or one after the other.
    let mut same = true;
    let mut operations = true;
    let mut last = first.text.clone();
    let mut text = first.text.clone();
    let mut next = Some(second);
    while let Some(Statement { operation, text: one }) = next {
        operations &= operation == first.operation;
        same &= one == first.text;
        if one != last && text.len() + 2 + one.len() <= SUMMARY_LIMIT {
            text = text + "; " + &one;
        }
        last = one;
        next = statement(&mut tokens, dialect);
    }
    let operation = if operations { format!("BATCH {}", first.operation) } else { "BATCH".into() };
    let text = if same { format!("BATCH {}", std::mem::take(&mut first.text)) } else { text };
    Summary { operation: shared(&operation), text: Arc::from(text) }
}

#[cfg(test)]
mod tests;
