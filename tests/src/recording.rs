//! Recordings as sequences of frames: small ones made of long ones, copies with records dropped, doubled and swapped, and
//! what a build gives of them in words.
//!
//! The format is that of `tracer-user/crates/results/src/record/mod.rs`; it is read here again, so that a comparison needs neither build's code.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Numbers;

/// What every recording begins with; the version follows.
const MAGIC: &[u8] = b"TRACERF";
/// Bytes before the host's name: magic and version, byte order, clock offset, seed, the name's length.
const HEADER: usize = 8 + 4 + 8 + 8 + 1;
/// A frame's kind and length.
const FRAME_HEADER: usize = 5;
/// The kind of frames that hold a kernel record. Others (facts about processes, ticks) are never spoilt: an agent makes
/// them itself and loses none.
const RECORD: u8 = 1;
/// Facts about a process, as JSON; a tick; records lost.
const PROCESS: u8 = 2;
const TICK: u8 = 3;
const LOST: u8 = 8;
/// Where a kernel record names its process (`tracer_common::event::Header`).
const TGID: std::ops::Range<usize> = 16..20;
/// One record in this many is dropped, doubled or swapped with the next.
const ONE_IN: u64 = 60;

/// A recording: its header, and its frames with their own headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    header: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// What is wrong with it, as text.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&bytes).ok_or_else(|| format!("{} is no whole recording", path.display()))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let name = usize::from(*bytes.get(HEADER - 1).filter(|_| bytes.starts_with(MAGIC))?);
        let (header, mut rest) = bytes.split_at_checked(HEADER + name)?;
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(rest.get(1..FRAME_HEADER)?.try_into().ok()?) as usize;
            let (frame, after) = rest.split_at_checked(FRAME_HEADER + length)?;
            frames.push(frame.to_vec());
            rest = after;
        }
        Some(Self { header: header.to_vec(), frames })
    }

    /// Writes it to a file.
    ///
    /// # Errors
    ///
    /// Why the file cannot be written, as text.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let bytes = [self.header.as_slice(), &self.frames.concat()].concat();
        fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// The first `records` records of processes that the program of tests `program` started, without anything of the machine
    /// it was made on: programs have no paths, other processes do not occur. None if that program is not in it.
    #[must_use]
    pub fn reduced(&self, program: &str, records: usize) -> Option<Self> {
        let facts: Vec<Value> = self.of(PROCESS).filter_map(|frame| serde_json::from_slice(frame).ok()).collect();
        let pid = |facts: &Value, member: &str| facts[member].as_u64().unwrap_or_default();
        let is_test = |facts: &&Value| facts["exe"].as_str().is_some_and(|exe| exe.contains(&format!("/{program}-")));
        let all: BTreeSet<u64> = facts.iter().filter(is_test).map(|facts| pid(facts, "pid")).collect();
        // What it started is still its program when it was forked and has not executed another one yet.
        let first =
            facts.iter().filter(|facts| all.contains(&pid(facts, "pid")) && !all.contains(&pid(facts, "parent")));
        let tests: BTreeSet<u64> = first.map(|facts| pid(facts, "pid")).collect();
        let mut own = tests.clone();
        loop {
            let children = facts.iter().filter(|facts| own.contains(&pid(facts, "parent")));
            let children: Vec<u64> = children.map(|facts| pid(facts, "pid")).collect();
            let before = own.len();
            own.extend(children);
            if own.len() == before {
                break;
            }
        }
        let is_own = |id: u64| own.contains(&id) && !tests.contains(&id);
        let (mut frames, mut count) = (Vec::new(), 0);
        for frame in &self.frames {
            let (kind, content) = (frame[0], &frame[FRAME_HEADER..]);
            match kind {
                RECORD => {
                    let tgid = content.get(TGID).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes);
                    if count < records && is_own(u64::from(tgid)) {
                        count += 1;
                        frames.push(frame.clone());
                    }
                }
                PROCESS => {
                    let facts: Option<Value> = serde_json::from_slice(content).ok();
                    if let Some(facts) = facts.filter(|facts| count < records && is_own(pid(facts, "pid"))) {
                        frames.push(framed(PROCESS, anonymous(facts).to_string().as_bytes()));
                    }
                }
                TICK | LOST if count >= records => {}
                _ => frames.push(frame.clone()),
            }
        }
        let mut header = self.header[..HEADER].to_vec();
        header[HEADER - 1] = HOST.len() as u8;
        header.extend(HOST);
        (count > 0).then_some(Self { header, frames })
    }

    fn of(&self, kind: u8) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().filter(move |frame| frame[0] == kind).map(|frame| &frame[FRAME_HEADER..])
    }

    /// A copy whose records were dropped, doubled and swapped with the next as this seed has it; seed 0 changes nothing.
    #[must_use]
    pub fn spoilt(&self, seed: u64) -> Self {
        if seed == 0 {
            return self.clone();
        }
        let mut numbers = Numbers::new(seed);
        let mut frames: Vec<Vec<u8>> = Vec::with_capacity(self.frames.len());
        // A record that changes places with the next one.
        let mut held: Option<Vec<u8>> = None;
        for frame in &self.frames {
            let is_record = frame.first() == Some(&RECORD);
            let spoil = is_record && held.is_none() && numbers.below(ONE_IN) == 0;
            match (spoil, numbers.below(3)) {
                (true, 0) => {}
                (true, 1) => frames.extend([frame.clone(), frame.clone()]),
                (true, _) => held = Some(frame.clone()),
                (false, _) => {
                    // Nothing may stand behind the frame that ends the recording.
                    if !is_record {
                        frames.extend(held.take());
                    }
                    frames.push(frame.clone());
                    frames.extend(held.take());
                }
            }
        }
        frames.extend(held);
        Self { header: self.header.clone(), frames }
    }
}

/// The host's name in a reduced recording.
const HOST: &[u8] = b"host";

fn framed(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind][..], &(content.len() as u32).to_ne_bytes(), content].concat()
}

/// Facts about a process without places of this machine.
fn anonymous(mut facts: Value) -> Value {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let exe = last(facts["exe"].as_str().unwrap_or_default());
    let command = facts["cmdline"].as_array().into_iter().flatten().take(3).filter_map(Value::as_str).map(last);
    facts["cmdline"] = command.collect();
    facts["exe"] = format!("/usr/bin/{exe}").into();
    (facts["cwd"], facts["cgroup"]) = ("/".into(), "/".into());
    (facts["program"], facts["files"]) = (Value::Null, 0.into());
    facts
}

/// What attribution decided about spans (one JSON object a line): a digest of each span's parent, grade, evidence and cost,
/// whatever ids were drawn; then how many calls of which class have which parent, by grade and evidence.
///
/// # Errors
///
/// The line that is no span.
pub fn summary(spans: &str) -> Result<String, String> {
    let read = |line: &str| serde_json::from_str::<Value>(line).map_err(|error| format!("no span ({error}): {line}"));
    let spans: Vec<Value> = spans.lines().map(read).collect::<Result<_, _>>()?;
    let text = |span: &Value, member: &str| span[member].as_str().unwrap_or_default().to_owned();
    let name = |span: &Value| format!("{} {}", text(span, "service_name"), text(span, "request_class"));
    let by_id: HashMap<String, &Value> = spans.iter().map(|span| (text(span, "span_id"), span)).collect();
    let (mut rows, mut each) = (BTreeMap::<String, usize>::new(), Vec::with_capacity(spans.len()));
    for span in &spans {
        let parent = span["parent_span_id"].as_str();
        let above = parent.map(|id| by_id.get(id).copied());
        let words = match above {
            None => "none".to_owned(),
            Some(None) => "another".to_owned(),
            Some(Some(above)) => name(above),
        };
        let same_trace = above.flatten().is_none_or(|above| above["trace_id"] == span["trace_id"]);
        let start = above.flatten().map_or(0, |above| above["start_ns"].as_u64().unwrap_or_default());
        let (grade, evidence) = (text(span, "grade"), text(span, "evidence"));
        let costs =
            ["cpu_s", "runqueue_s", "blocked_s", "downstream_s", "duration_s"].map(|member| span[member].to_string());
        each.push(format!(
            "{} {} {} {words} {start} {same_trace} {grade} {evidence} {costs:?}",
            span["start_ns"],
            name(span),
            text(span, "side")
        ));
        if span["side"] == "client" {
            *rows.entry(format!("{}, of {words}: {grade}, {evidence}", name(span))).or_default() += 1;
        }
    }
    each.sort_unstable();
    let digest = each
        .iter()
        .flat_map(|line| line.bytes().chain([b'\n']))
        .fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    let more = rows.len().saturating_sub(ROWS);
    let mut text = format!("{} spans, {digest:016x}\n", spans.len());
    for (row, count) in rows.iter().take(ROWS) {
        text += &format!("{count:>6}  {row}\n");
    }
    if more > 0 {
        text += &format!("        and {more} more kinds\n");
    }
    Ok(text)
}

/// Kinds of calls that a summary shows.
const ROWS: usize = 40;
/// FNV-1a of 64 bits (`draft-eastlake-fnv`): the same in every version of the compiler.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(records: u32) -> Recording {
        let frame = framed;
        let mut header = vec![0; HEADER];
        header[..MAGIC.len()].copy_from_slice(MAGIC);
        let mut frames: Vec<Vec<u8>> = (0..records).map(|n| frame(RECORD, &n.to_ne_bytes())).collect();
        frames.push(frame(4, &[]));
        Recording { header, frames }
    }

    #[test]
    fn files_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        recording(3).write(&path).unwrap();
        assert_eq!(Recording::read(&path).unwrap(), recording(3));
        let bytes = fs::read(&path).unwrap();
        assert!(Recording::parse(&bytes[..bytes.len() - 1]).is_none(), "cut off");
        assert!(Recording::parse(b"something else entirely, and long enough").is_none());
    }

    #[test]
    fn a_small_one_has_only_what_the_test_started_and_no_place_of_the_machine() {
        let facts = |pid: u32, parent: u32, exe: &str| {
            let facts = serde_json::json!({"pid": pid, "parent": parent, "exe": exe, "cmdline": [exe, "/home/a/app.py"],
                "cwd": "/home/a", "cgroup": "/home/a.slice", "program": null, "files": 7});
            framed(PROCESS, facts.to_string().as_bytes())
        };
        let record = |tgid: u32| framed(RECORD, &[&[0; 16][..], &tgid.to_ne_bytes(), &[0; 4]].concat());
        let mut whole = recording(0);
        let forked = facts(2, 1, "/x/deps/links-0a1b");
        let started =
            [facts(1, 0, "/x/deps/links-0a1b"), forked, facts(2, 1, "/home/a/nginx"), facts(3, 2, "/home/a/nginx")];
        whole.frames =
            [&started[..], &[facts(4, 0, "/home/a/other"), record(1), record(2), record(3), record(4)]].concat();
        whole.frames.extend([record(2), framed(4, &[])]);
        let small = whole.reduced("links", 2).unwrap();
        let tgids: Vec<u8> = small.of(RECORD).map(|record| record[TGID.start]).collect();
        assert_eq!(tgids, [2, 3]);
        assert_eq!(small.of(PROCESS).count(), 3);
        assert!(!small.frames.concat().windows(5).any(|part| part == b"/home"));
        assert_eq!(small.frames.last(), whole.frames.last());
        assert_eq!(whole.reduced("redis", 2), None);
    }

    #[test]
    fn a_summary_depends_on_parents_and_not_on_ids() {
        let span = |id: &str, parent: &str, side: &str| {
            format!(
                r#"{{"span_id":"{id}","trace_id":"t","parent_span_id":{parent},"service_name":"s","request_class":"GET /","side":"{side}","start_ns":5,"grade":"certain","evidence":"e","cpu_s":1.0}}"#
            )
        };
        let of = |id: &str, parent: &str| {
            summary(&[span(id, "null", "server"), span("b", parent, "client")].join("\n")).unwrap()
        };
        assert_eq!(of("a", "\"a\""), of("c", "\"c\""));
        assert_ne!(of("a", "\"a\"").lines().next(), of("a", "null").lines().next());
        assert!(of("a", "\"a\"").ends_with("     1  s GET /, of s GET /: certain, e\n"));
        assert!(summary("{").is_err());
    }

    #[test]
    fn copies_are_spoilt_by_their_seed_and_end_where_they_should() {
        let fresh = recording(6000);
        assert_eq!(fresh.spoilt(0), fresh);
        assert_eq!(fresh.spoilt(3), fresh.spoilt(3));
        assert_ne!(fresh.spoilt(3), fresh.spoilt(4));
        let spoilt = fresh.spoilt(3);
        assert_eq!(spoilt.frames.last(), fresh.frames.last(), "the frame that ends it");
        let mut counts = std::collections::BTreeMap::new();
        for frame in &spoilt.frames {
            *counts.entry(frame).or_insert(0) += 1;
        }
        let dropped = fresh.frames.len() - counts.len();
        let doubled = counts.values().filter(|count| **count == 2).count();
        let order: Vec<u32> = spoilt
            .frames
            .iter()
            .filter(|f| f.len() == 9)
            .map(|f| u32::from_ne_bytes(f[5..].try_into().unwrap()))
            .collect();
        let swapped = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        for (what, count) in [("dropped", dropped), ("doubled", doubled), ("swapped", swapped)] {
            assert!((10..100).contains(&count), "{count} {what}");
        }
    }
}
