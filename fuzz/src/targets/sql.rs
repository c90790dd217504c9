//! Arbitrary bytes as a statement: its summary is bounded, and shows nothing quoted as text.
use tracer_protocols::sql::{Dialect, SUMMARY_LIMIT, summarize};

pub(crate) fn run(data: &[u8]) {
    let Some((flags, sql)) = data.split_first() else { return };
    for dialect in [Dialect::PostgreSql, Dialect::MySql] {
        let summary = summarize(sql, flags & 1 == 1, dialect);
        assert!(summary.text.len() <= SUMMARY_LIMIT + 6, "{summary:?}");
        assert!(!summary.text.is_empty() && !summary.operation.is_empty(), "{summary:?}");
    }
    // A literal is never inspected: its content makes no difference.
    let text: Vec<u8> = sql.iter().copied().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b' ').collect();
    let literal =
        [b"SELECT a FROM t WHERE b = '", &text[..text.len().min(2000)], b"' AND c IN (SELECT d FROM u)"].concat();
    for dialect in [Dialect::PostgreSql, Dialect::MySql] {
        assert_eq!(&*summarize(&literal, false, dialect).text, "SELECT t SELECT u");
    }
}
