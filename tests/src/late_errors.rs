//! Statements that fail behind many rows: what a client counted, against the spans of both ends.

use std::collections::BTreeMap;

use crate::spans::Span;
use crate::{figure, say};

/// How statements of a class ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Without an error.
    pub fine: u64,
    /// With the error that the client got.
    pub named: u64,
    /// With an error whose number is not known.
    pub other: u64,
    /// In a way that is not known, and shown as such.
    pub unknown: u64,
}

/// Checks spans of both ends against `told`: lines of a class, an error or `-`, and a count, separated by tabs. No statement may
/// end otherwise than its client says, but how one with an error ended may be unknown; returns the ends of each class, at the
/// server and at the client.
///
/// # Panics
///
/// If one did.
pub fn check(name: &str, told: &str, spans: &[Span], lost: &str) -> BTreeMap<String, [Ends; 2]> {
    let mut all = BTreeMap::new();
    for line in told.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [class, error, count] = words[..] else { panic!("{line}") };
        let count: u64 = count.parse().expect("a count");
        let ends = [true, false].map(|server| {
            let mut ends = Ends::default();
            for span in spans.iter().filter(|span| span.server == server && span.class == class) {
                match (span.error.as_str(), span.outcome.as_str()) {
                    ("", "complete") => ends.fine += 1,
                    ("", _) => ends.unknown += 1,
                    (found, _) if found == error => ends.named += 1,
                    ("_OTHER", _) => ends.other += 1,
                    found => panic!("{class} ended as {found:?}, and not with {error}"),
                }
            }
            ends
        });
        say(&format!("  {class:<16} {error:<6} {count:>3}: server {:?}, client {:?}", ends[0], ends[1]));
        all.insert(class.to_owned(), (error, count, ends));
    }
    let (mut wrong, mut failed, mut seen) = (Vec::new(), 0, [0, 0]);
    for (class, (error, count, ends)) in &all {
        failed += if *error == "-" { 0 } else { *count };
        for (side, ends) in ends.iter().enumerate() {
            let Ends { fine, named, other, unknown } = *ends;
            let right = if *error == "-" { fine == *count } else { fine == 0 };
            if !right || fine + named + other + unknown != *count {
                wrong.push(format!("{class}, {error} {count} times, side {side}: {ends:?}"));
            }
            seen[side] += named + other;
        }
    }
    figure(&format!("{name} errors behind rows"), &format!("{} served and {} called of {failed}", seen[0], seen[1]));
    assert!(wrong.is_empty(), "{wrong:#?}; lost: {lost}");
    all.into_iter().map(|(class, (_, _, ends))| (class, ends)).collect()
}
