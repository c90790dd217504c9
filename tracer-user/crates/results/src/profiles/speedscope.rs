//! Profiles in speedscope's file format (github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources): a range of time as sums,
//! and one request in the order of time.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Frame, TimedSample};

/// What says which format it is.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Debug, Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    shared: Shared<'a>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Default, Serialize)]
struct Shared<'a> {
    frames: Vec<FileFrame<'a>>,
    #[serde(skip)]
    known: HashMap<&'a Frame, usize>,
}

#[derive(Debug, Serialize)]
struct FileFrame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// Samples one after the other, each with how long it lasts; a sample without frames is a gap.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    #[serde(rename = "type")]
    form: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Frames, outermost first, by their place in [`Shared::frames`].
    samples: Vec<Vec<usize>>,
    /// Nanoseconds.
    weights: Vec<u64>,
}

impl<'a> Shared<'a> {
    fn stack(&mut self, frames: &'a [Frame]) -> Vec<usize> {
        frames.iter().map(|frame| self.frame(frame)).collect()
    }

    fn frame(&mut self, frame: &'a Frame) -> usize {
        *self.known.entry(frame).or_insert_with(|| {
            let parts = frame.parts();
            let (file, line) = match parts.source {
                Some((path, line)) => (Some(path), (line > 0).then_some(line)),
                None => (parts.mapped, None),
            };
            self.frames.push(FileFrame { name: parts.function, file, line });
            self.frames.len() - 1
        })
    }
}

impl Profile {
    fn new(name: String) -> Self {
        let (start_value, end_value) = (0, 0);
        Self {
            form: "sampled",
            name,
            unit: "nanoseconds",
            start_value,
            end_value,
            samples: Vec::new(),
            weights: Vec::new(),
        }
    }

    fn add(&mut self, stack: Vec<usize>, nanos: u64) {
        self.samples.push(stack);
        self.weights.push(nanos);
        self.end_value += nanos;
    }

    /// Adds a sample that ended at `end`, behind a gap if there is one. What it has in common with the sample before it is not drawn
    /// twice.
    fn add_until(&mut self, stack: Vec<usize>, nanos: u64, end: u64) {
        let start = end.saturating_sub(nanos).max(self.end_value);
        if start > self.end_value {
            self.add(Vec::new(), start - self.end_value);
        }
        if end > start {
            self.add(stack, end - start);
        }
    }
}

/// Sums of stacks (outermost frame first), samples and nanoseconds.
pub(super) fn sums(title: &str, stacks: &[(Vec<Frame>, u64, u64)]) -> Vec<u8> {
    let mut shared = Shared::default();
    let mut profile = Profile::new(title.to_owned());
    for (frames, _, nanos) in stacks {
        let stack = shared.stack(frames);
        profile.add(stack, *nanos);
    }
    file(title, shared, vec![profile])
}

/// The samples of one request, oldest first: a profile for each of its threads, in the order of time from its first byte on, and one
/// of each thread's samples whose times were not kept one by one.
pub fn timeline(title: &str, samples: &[TimedSample]) -> Vec<u8> {
    let mut shared = Shared::default();
    let mut threads: BTreeMap<(u32, bool), Profile> = BTreeMap::new();
    for sample in samples {
        let summed = sample.count > 1;
        let words = if summed { ": samples whose times were not kept" } else { "" };
        let profile = threads
            .entry((sample.tid, summed))
            .or_insert_with(|| Profile::new(format!("thread {}{words}", sample.tid)));
        let stack = shared.stack(&sample.frames);
        // A sample stands for the time before it; that of a wait is its end.
        if summed { profile.add(stack, sample.weight) } else { profile.add_until(stack, sample.weight, sample.after) }
    }
    file(title, shared, threads.into_values().collect())
}

fn file(name: &str, shared: Shared<'_>, profiles: Vec<Profile>) -> Vec<u8> {
    let file = File { schema: SCHEMA, exporter: concat!("tracer ", env!("CARGO_PKG_VERSION")), name, shared, profiles };
    // Numbers and text have a form in JSON.
    serde_json::to_vec(&file).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn frames(names: &[&str]) -> Vec<Frame> {
        names.iter().map(|name| Frame::plain(name)).collect()
    }

    #[test]
    fn frames_are_shared_and_weights_are_those_of_stacks() {
        let stacks = [(frames(&["main", "work"]), 2, 20_000_000), (frames(&["main", "wait"]), 1, 5_000_000)];
        let file: Value = serde_json::from_slice(&sums("shop", &stacks)).unwrap();
        assert_eq!(file["$schema"], SCHEMA);
        assert_eq!(file["shared"]["frames"], json!([{ "name": "main" }, { "name": "work" }, { "name": "wait" }]));
        let profile = &file["profiles"][0];
        assert_eq!(
            (&profile["samples"], &profile["weights"]),
            (&json!([[0, 1], [0, 2]]), &json!([20_000_000, 5_000_000]))
        );
        assert_eq!((&profile["endValue"], &profile["type"]), (&json!(25_000_000), &json!("sampled")));
    }

    #[test]
    fn a_request_is_drawn_in_the_order_of_time_by_thread() {
        let sample = |after, weight, count, tid, name: &str| TimedSample {
            after,
            weight,
            count,
            kind: "clock",
            tid,
            frames: frames(&["main", name]),
        };
        let samples = [
            sample(10, 10, 1, 7, "first"),
            // A wait of a while; then the clock, which stands for some of the same time.
            sample(50, 30, 1, 7, "wait"),
            sample(55, 10, 1, 7, "last"),
            sample(20, 100, 4, 7, "often"),
            sample(30, 90, 1, 8, "other"),
        ];
        let file: Value = serde_json::from_slice(&timeline("span", &samples)).unwrap();
        let of = |at: usize| (file["profiles"][at]["samples"].clone(), file["profiles"][at]["weights"].clone());
        assert_eq!(of(0), (json!([[0, 1], [], [0, 2], [0, 3]]), json!([10, 10, 30, 5])));
        assert_eq!(file["profiles"][1]["name"], "thread 7: samples whose times were not kept");
        assert_eq!(of(1), (json!([[0, 4]]), json!([100])));
        // Nothing is drawn before the request began.
        assert_eq!((of(2), &file["profiles"][2]["name"]), ((json!([[0, 5]]), json!([30])), &json!("thread 8")));
    }
}
