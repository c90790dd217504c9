//! Names in summaries: verbs from lists, and table names without their variable parts.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use super::Dialect;

/// Longest part of a table name shown, in bytes.
const PART: usize = 63;
/// Most dot-separated parts of a name shown.
const PARTS: usize = 6;
/// A name with more digits than this contains a number or a date.
const DIGITS: usize = 3;

/// Verbs after which the rest of the statement is skipped.
const PLAIN: &[&str] = &[
    "ABORT",
    "ANALYZE",
    "BACKUP",
    "BASE_BACKUP",
    "BEGIN",
    "BINLOG",
    "CACHE",
    "CHANGE",
    "CHECK",
    "CHECKPOINT",
    "CHECKSUM",
    "CLOSE",
    "CLUSTER",
    "COMMENT",
    "COMMIT",
    "CREATE_REPLICATION_SLOT",
    "DEALLOCATE",
    "DESC",
    "DESCRIBE",
    "DISCARD",
    "DO",
    "DROP_REPLICATION_SLOT",
    "END",
    "EXECUTE",
    "FETCH",
    "FLUSH",
    "GET",
    "GRANT",
    "HANDLER",
    "HELP",
    "IDENTIFY_SYSTEM",
    "IMPORT",
    "INSTALL",
    "KILL",
    "LISTEN",
    "LOAD",
    "MOVE",
    "NOTIFY",
    "OPTIMIZE",
    "PURGE",
    "READ_REPLICATION_SLOT",
    "REASSIGN",
    "REINDEX",
    "RELEASE",
    "RENAME",
    "REPAIR",
    "RESET",
    "RESIGNAL",
    "REVOKE",
    "ROLLBACK",
    "SAVEPOINT",
    "SECURITY",
    "SET",
    "SHOW",
    "SHUTDOWN",
    "SIGNAL",
    "START",
    "START_REPLICATION",
    "STOP",
    "TIMELINE_HISTORY",
    "UNINSTALL",
    "UNLISTEN",
    "UNLOCK",
    "USE",
    "VACUUM",
    "VALUES",
    "XA",
];

/// Object kinds after CREATE, ALTER and DROP.
const OBJECTS: &[&str] = &[
    "ACCESS",
    "AGGREGATE",
    "CAST",
    "COLLATION",
    "CONVERSION",
    "DATABASE",
    "DEFAULT",
    "DOMAIN",
    "EVENT",
    "EXTENSION",
    "FOREIGN",
    "FUNCTION",
    "GROUP",
    "INDEX",
    "LANGUAGE",
    "LARGE",
    "MATERIALIZED",
    "OPERATOR",
    "OWNED",
    "PACKAGE",
    "POLICY",
    "PROCEDURE",
    "PUBLICATION",
    "ROLE",
    "ROUTINE",
    "RULE",
    "SCHEMA",
    "SEQUENCE",
    "SERVER",
    "STATISTICS",
    "SUBSCRIPTION",
    "SYSTEM",
    "TABLE",
    "TABLESPACE",
    "TEXT",
    "TRANSFORM",
    "TRIGGER",
    "TYPE",
    "USER",
    "VIEW",
];

/// Frequent names, which need no new string.
static SHARED: LazyLock<FxHashMap<&'static str, Arc<str>>> = LazyLock::new(|| {
    let others = [
        super::OTHER,
        super::EMPTY,
        "SELECT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "REPLACE",
        "COPY",
        "TRUNCATE",
        "LOCK",
        "CALL",
        "EXPLAIN",
        "PREPARE",
        "BATCH",
        "CREATE TABLE",
        "DROP TABLE",
        "ALTER TABLE",
        "CREATE INDEX",
        "CONNECT",
        "CANCEL",
        "SYNC",
        "FUNCTION CALL",
    ];
    PLAIN.iter().copied().chain(others).map(|name| (name, Arc::from(name))).collect()
});

/// `name`, shared if frequent.
pub(crate) fn shared(name: &str) -> Arc<str> {
    SHARED.get(name).cloned().unwrap_or_else(|| Arc::from(name))
}

fn find(list: &[&'static str], word: &[u8]) -> Option<&'static str> {
    list.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(word)).copied()
}

/// The verb in [`PLAIN`] that `word` is.
pub(super) fn plain(word: &[u8]) -> Option<&'static str> {
    find(PLAIN, word)
}

/// The object kind that `word` names, after CREATE, ALTER or DROP.
pub(super) fn object(word: &[u8]) -> Option<&'static str> {
    find(OBJECTS, word)
}

/// A dotted name other than a table's (a collection, a topic), bounded and without its variable parts, like table
/// names.
pub(crate) fn dotted(text: &[u8]) -> String {
    let mut name = String::new();
    for (nth, piece) in text.split(|byte| *byte == b'.').take(PARTS).enumerate() {
        name.push_str(if nth == 0 { "" } else { "." });
        part(&mut name, piece, true, Dialect::MySql);
    }
    name
}

/// Appends a part of a table name to `name`: bounded, without spaces and control characters, and with numbers replaced
/// if there are many digits, as in the names of partitions and temporary tables.
pub(super) fn part(name: &mut String, text: &[u8], quoted: bool, dialect: Dialect) {
    let text = text.get(..text.len().min(PART)).unwrap_or_default();
    let numbered = text.iter().filter(|byte| byte.is_ascii_digit()).count() > DIGITS;
    let fold = !quoted && dialect == Dialect::PostgreSql;
    let mut in_number = false;
    for character in String::from_utf8_lossy(text).chars() {
        let digit = character.is_ascii_digit() && numbered;
        match character {
            _ if digit && in_number => {}
            _ if digit => name.push('?'),
            _ if fold => name.push(character.to_ascii_lowercase()),
            _ if character.is_alphanumeric() || matches!(character, '_' | '$' | '-' | ':' | '#') => {
                name.push(character);
            }
            _ => name.push('_'),
        }
        in_number = digit;
    }
}
