//! The messages written of pprof's `profile.proto` (github.com/google/pprof, proto/profile.proto).

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::Frame;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    span: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    file: i64,
}

/// Stacks (outermost frame first) with samples and nanoseconds of `value`, compressed.
pub(super) fn encode(stacks: &[(Vec<Frame>, u64, u64)], value: &str) -> Vec<u8> {
    let mut profile = Profile {
        string_table: ["", "samples", "count", value, "nanoseconds"].map(String::from).to_vec(),
        sample_type: vec![ValueType { kind: 1, span: 2 }, ValueType { kind: 3, span: 4 }],
        period_type: Some(ValueType { kind: 3, span: 4 }),
        ..Profile::default()
    };
    let mut locations: HashMap<&Frame, u64> = HashMap::new();
    // By name and source file.
    let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
    let mut texts: HashMap<&str, i64> = HashMap::from([("", 0)]);
    for (frames, count, nanos) in stacks {
        let mut location_id = Vec::with_capacity(frames.len());
        for frame in frames.iter().rev() {
            let next = locations.len() as u64 + 1;
            let id = *locations.entry(frame).or_insert(next);
            if id == next {
                let (path, line) = frame.source().map_or(("", 0), |source| (&*source.path, source.line));
                let next = functions.len() as u64 + 1;
                let function_id = *functions.entry((frame.function(), path)).or_insert(next);
                if function_id == next {
                    let mut text = |text| {
                        *texts.entry(text).or_insert_with(|| {
                            profile.string_table.push(String::from(text));
                            profile.string_table.len() as i64 - 1
                        })
                    };
                    let (name, file) = (text(frame.function()), text(path));
                    profile.function.push(Function { id: function_id, name, file });
                }
                // One location per frame: tracer gives no addresses away.
                profile.location.push(Location { id, line: vec![Line { function_id, line: line.into() }] });
            }
            location_id.push(id);
        }
        profile.sample.push(Sample { location_id, value: vec![*count as i64, *nanos as i64] });
    }
    // The rate may have changed meanwhile: what a sample stands for on average.
    let (count, nanos) = stacks.iter().fold((0, 0), |(all, time), (_, count, nanos)| (all + count, time + nanos));
    profile.period = (nanos / count.max(1)) as i64;
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let _ = out.write_all(&profile.encode_to_vec());
    out.finish().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::frame::Source;
    use super::*;
    use std::io::Read;
    use std::sync::Arc;

    fn decoded(bytes: &[u8]) -> Profile {
        let mut raw = Vec::new();
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut raw).unwrap();
        Profile::decode(raw.as_slice()).unwrap()
    }

    #[test]
    fn lines_of_one_function_are_places_of_it() {
        let at = |line| Frame::at("work", None, Source { path: Arc::from("/src/a/work.c"), line }, "a/work.c");
        let profile = decoded(&encode(&[(vec![Frame::plain("root"), at(3), at(7)], 1, 10)], "cpu"));
        let text = |index: i64| &*profile.string_table[index as usize];
        let functions: Vec<_> = profile.function.iter().map(|one| (one.id, text(one.name), text(one.file))).collect();
        assert_eq!(functions, [(1, "work", "/src/a/work.c"), (2, "root", "")]);
        let lines: Vec<_> =
            profile.location.iter().map(|one| (one.id, one.line[0].function_id, one.line[0].line)).collect();
        assert_eq!((lines, &*profile.sample[0].location_id), (vec![(1, 1, 7), (2, 1, 3), (3, 2, 0)], &[1, 2, 3][..]));
    }

    /// Decodes a profile and checks that every index is valid.
    pub(in super::super) fn check(bytes: &[u8], samples: i64, nanos: i64, frame: &str) {
        let profile = decoded(bytes);
        let sum = |i: usize| profile.sample.iter().map(|sample| sample.value[i]).sum::<i64>();
        assert_eq!((sum(0), sum(1)), (samples, nanos));
        let mut names = Vec::new();
        for sample in &profile.sample {
            for id in &sample.location_id {
                let location = profile.location.iter().find(|location| location.id == *id).unwrap();
                let function = profile.function.iter().find(|f| f.id == location.line[0].function_id).unwrap();
                names.push(profile.string_table[function.name as usize].clone());
            }
        }
        assert!(names.iter().any(|name| name.contains(frame)), "{names:?}");
        assert_eq!(profile.string_table[0], "");
    }
}
