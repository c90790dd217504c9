//! Two builds' spans of one recording, compared by what a span is and not by its generated ids: these come from a
//! sequence, so that one span more changes all that follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result};
use serde_json::Value;

/// Members that hold generated ids.
const IDS: [&str; 3] = ["trace_id", "span_id", "parent_span_id"];

/// What differed, over any number of recordings.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Spans of the base.
    spans: u64,
    /// Spans that are equal in every member; the parent as the span it is.
    same: u64,
    /// Of the others, how many differ in which member; `missing` and `new` are spans that only one build gave.
    by_member: BTreeMap<String, u64>,
    /// Differences as people read them.
    pub(super) examples: Vec<String>,
}

/// One span that is not the same in both.
#[derive(Debug)]
pub(super) struct Difference {
    members: BTreeSet<String>,
    text: String,
}

/// What one comparison of two files gave.
#[derive(Debug, Default)]
pub(super) struct Compared {
    spans: u64,
    same: u64,
    differences: Vec<Difference>,
}

impl Comparison {
    /// Adds a comparison of the recording `name`.
    pub(super) fn add(&mut self, compared: &Compared, name: &str) {
        self.spans += compared.spans;
        self.same += compared.same;
        for difference in &compared.differences {
            for member in &difference.members {
                *self.by_member.entry(member.clone()).or_default() += 1;
            }
            self.examples.push(format!("  {name}: {}", difference.text));
        }
    }

    /// Adds the counts of another one.
    pub(super) fn merge(&mut self, other: &Self) {
        self.spans += other.spans;
        self.same += other.same;
        for (member, count) in &other.by_member {
            *self.by_member.entry(member.clone()).or_default() += count;
        }
    }

    /// Whether anything differs.
    pub(super) fn differs(&self) -> bool {
        !self.by_member.is_empty()
    }

    /// One line of the result.
    pub(super) fn row(&self, name: &str) -> String {
        let members: Vec<String> = self.by_member.iter().map(|(member, count)| format!("{member} {count}")).collect();
        let differ = if members.is_empty() { "none differs".to_owned() } else { members.join(", ") };
        format!("{name}: {} of {} spans are the same; {differ}", self.same, self.spans)
    }
}

/// What a span is, whatever ids it has: process, side, protocol, times, and what tells calls of one time apart.
type Identity = (u64, String, String, u64, String);

struct Spans {
    /// By identity, in the order they were written.
    by_identity: BTreeMap<Identity, Vec<Value>>,
    /// Who has which id, in words.
    words: HashMap<String, String>,
}

fn text(span: &Value, member: &str) -> String {
    span[member].as_str().unwrap_or_default().to_owned()
}

/// A span in the words that reports use.
fn words(span: &Value) -> String {
    let path = span["attributes"]["url.path"].as_str().map(|path| format!(" {path}")).unwrap_or_default();
    format!(
        "{} {} \"{}\"{path} at {}",
        text(span, "service_name"),
        text(span, "side"),
        text(span, "request_class"),
        span["start_ns"]
    )
}

impl Spans {
    fn read(lines: &str) -> Result<Self> {
        let mut spans = Self { by_identity: BTreeMap::new(), words: HashMap::new() };
        for line in lines.lines() {
            let span: Value = serde_json::from_str(line).with_context(|| format!("not a span: {line}"))?;
            spans.words.insert(text(&span, "span_id"), words(&span));
            let apart = format!("{} {}", span["attributes"]["network.peer.port"], span["attributes"]["url.path"]);
            let number = |member: &str| span[member].as_u64().unwrap_or_default();
            let identity = (number("start_ns"), text(&span, "side"), text(&span, "protocol"), number("pid"), apart);
            spans.by_identity.entry(identity).or_default().push(span);
        }
        Ok(spans)
    }

    /// The members to be compared: the parent in words instead of ids.
    fn members(&self, span: &Value) -> BTreeMap<String, String> {
        let mut members: BTreeMap<String, String> = span
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !IDS.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect();
        let parent = span["parent_span_id"].as_str();
        let parent = parent.map_or("none", |id| self.words.get(id).map_or("a span that is not there", String::as_str));
        members.insert("parent".into(), parent.into());
        members
    }
}

/// Compares two builds' spans.
pub(super) fn compare(before: &str, after: &str) -> Result<Compared> {
    let [before, after] = [Spans::read(before)?, Spans::read(after)?];
    let mut compared = Compared::default();
    let identities: BTreeSet<&Identity> = before.by_identity.keys().chain(after.by_identity.keys()).collect();
    for identity in identities {
        let of = |spans: &Spans| spans.by_identity.get(identity).cloned().unwrap_or_default();
        let [old, new] = [of(&before), of(&after)];
        compared.spans += old.len() as u64;
        for n in 0..old.len().max(new.len()) {
            let difference = match (old.get(n), new.get(n)) {
                (Some(old), Some(new)) => differs(&before.members(old), &after.members(new), &words(old)),
                (Some(old), None) => Some(only("missing", old)),
                (None, Some(new)) => Some(only("new", new)),
                (None, None) => None,
            };
            match difference {
                Some(difference) => compared.differences.push(difference),
                None => compared.same += 1,
            }
        }
    }
    Ok(compared)
}

fn only(what: &str, span: &Value) -> Difference {
    let text = format!("{what}: {} ({}, {})", words(span), text(span, "grade"), text(span, "evidence"));
    Difference { members: BTreeSet::from([what.to_owned()]), text }
}

fn differs(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>, span: &str) -> Option<Difference> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed: Vec<&String> = names.into_iter().filter(|name| old.get(*name) != new.get(*name)).collect();
    if changed.is_empty() {
        return None;
    }
    let value =
        |of: &BTreeMap<String, String>, name: &String| of.get(name).cloned().unwrap_or_else(|| "nothing".into());
    let changes: Vec<String> =
        changed.iter().map(|name| format!("{name} {} -> {}", value(old, name), value(new, name))).collect();
    let members = changed.into_iter().cloned().collect();
    Some(Difference { members, text: format!("{span}: {}", changes.join("; ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: &str, parent: Option<&str>, start: u64, grade: &str) -> String {
        let parent = parent.map_or("null".to_owned(), |parent| format!("\"{parent}\""));
        format!(
            r#"{{"trace_id":"t{id}","span_id":"{id}","parent_span_id":{parent},"service_name":"s","request_class":"GET /","protocol":"http","side":"server","pid":7,"start_ns":{start},"grade":"{grade}","evidence":"e","attributes":{{"url.path":"/{start}"}}}}"#
        )
    }

    fn row(before: &[String], after: &[String]) -> String {
        let mut all = Comparison::default();
        all.add(&compare(&before.join("\n"), &after.join("\n")).unwrap(), "r");
        all.row("r")
    }

    #[test]
    fn ids_alone_are_no_difference() {
        let before = [span("a", None, 1, "certain"), span("b", Some("a"), 2, "certain")];
        let after = [span("x", None, 1, "certain"), span("y", Some("x"), 2, "certain")];
        assert_eq!(row(&before, &after), "r: 2 of 2 spans are the same; none differs");
    }

    #[test]
    fn another_parent_or_grade_is_one_and_so_is_a_span_more_or_less() {
        let before =
            [span("a", None, 1, "certain"), span("b", Some("a"), 2, "certain"), span("c", Some("a"), 3, "certain")];
        let after = [span("a", None, 1, "certain"), span("b", None, 2, "orphan"), span("d", None, 4, "certain")];
        let result = row(&before, &after);
        assert_eq!(result, "r: 1 of 3 spans are the same; grade 1, missing 1, new 1, parent 1");
    }

    #[test]
    fn what_is_no_span_is_an_error() {
        assert!(compare("{", "").is_err());
    }
}
