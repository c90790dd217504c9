//! Names in summaries: verbs from lists, and names of tables without what changes in them.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use super::Dialect;

/// Longest part of a table's name that is shown, bytes.
const PART: usize = 63;
/// Most parts of a name with dots that are shown.
const PARTS: usize = 6;
/// A name with more digits than this has a number or a date in it.
const DIGITS: usize = 3;

/// Verbs after which nothing but the statement's end is looked for.
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

/// What CREATE, ALTER and DROP are about.
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

/// Names that are often used, so that they need no new string.
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

/// `name`, shared where it is a usual one.
pub(in crate::protocols) fn shared(name: &str) -> Arc<str> {
    SHARED.get(name).cloned().unwrap_or_else(|| Arc::from(name))
}

fn find(list: &[&'static str], word: &[u8]) -> Option<&'static str> {
    list.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(word)).copied()
}

/// The verb that `word` is, of those after which nothing is looked for.
pub(super) fn plain(word: &[u8]) -> Option<&'static str> {
    find(PLAIN, word)
}

/// What kind of object `word` names, after CREATE, ALTER or DROP.
pub(super) fn object(word: &[u8]) -> Option<&'static str> {
    find(OBJECTS, word)
}

/// A name with dots in it that is no table's (of a collection, a topic), bounded and without what changes, as those are.
pub(in crate::protocols) fn dotted(text: &[u8]) -> String {
    let mut name = String::new();
    for (nth, piece) in text.split(|byte| *byte == b'.').take(PARTS).enumerate() {
        name.push_str(if nth == 0 { "" } else { "." });
        part(&mut name, piece, true, Dialect::MySql);
    }
    name
}

/// Adds a part of a table's name to `name`: bounded, without spaces and control characters, and with each number
/// replaced when there are many digits: what a partition or a temporary table has in its name.
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
