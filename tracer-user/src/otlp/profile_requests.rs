//! Converts samples to OTLP profiles. Pure.
//!
//! A resource is a process, and has a profile of its time on the CPU and one of its time off it. The strings, functions and stacks
//! that they refer to are in tables that all of a request share, so requests are made one after the other, none larger than it may
//! be.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use tracer_common::interpreter::Language;
use tracer_host::container_names::NamesCache;
use tracer_host::instance::Instance;
use tracer_model::text::printable;
use tracer_results::profiles::{Frame, FrameOrigin, FrameParts, Lines, ShownLines, UnsentSample};

use super::instance::{HostFacts, process_resource};
use super::profile_proto::{
    Attribute, Dictionary, Function, Line, Link, Location, Mapping, Profile, Request, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use super::proto::{AnyValue, Scope, Value};
use super::spans::{SCHEMA, bounded};

/// A request ends when it has this many bytes, by estimate: collectors take 4 MB by default.
const BYTES: usize = 2 << 20;
/// What a resource takes beside its samples.
const RESOURCE: usize = 2048;

/// When samples were taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// Begin, nanoseconds since the epoch.
    pub(super) start: u64,
    /// Length, nanoseconds.
    pub(super) duration: u64,
}

/// Ids by which collectors may tell a profile that was sent again from another.
pub(super) struct ProfileIds {
    random: RandomState,
    given: u64,
}

impl ProfileIds {
    pub(super) fn new() -> Self {
        Self { random: RandomState::new(), given: 0 }
    }

    fn next(&mut self) -> Vec<u8> {
        self.given += 1;
        let half = |which: u8| self.random.hash_one((self.given, which)).to_be_bytes();
        [half(0), half(1)].concat()
    }
}

/// Makes requests of samples.
pub(super) struct Requests<'a> {
    samples: Peekable<IntoIter<UnsentSample>>,
    interval: Interval,
    lines: ShownLines,
    host: &'a HostFacts,
    names: &'a NamesCache,
    /// Configured attributes of every resource.
    more: &'a [(String, String)],
    ids: &'a mut ProfileIds,
    /// Largest request, bytes.
    bytes: usize,
}

impl<'a> Requests<'a> {
    pub(super) fn new(
        mut samples: Vec<UnsentSample>,
        (interval, lines): (Interval, ShownLines),
        host: &'a HostFacts,
        names: &'a NamesCache,
        more: &'a [(String, String)],
        ids: &'a mut ProfileIds,
    ) -> Self {
        samples.sort_by(|one, other| (&one.service, &one.instance).cmp(&(&other.service, &other.instance)));
        Self { samples: samples.into_iter().peekable(), interval, lines, host, names, more, ids, bytes: BYTES }
    }

    /// The profiles of one resource: on the CPU, and off it.
    fn profiles(&mut self, tables: &mut Tables, sums: [Sums; 2]) -> Vec<Profile> {
        let unit = tables.string("nanoseconds");
        let profile = |(kind, Sums { values, count, nanos }): (&str, Sums)| {
            if values.is_empty() {
                return None;
            }
            let sample_type = ValueType { type_strindex: tables.string(kind), unit_strindex: unit };
            // The sampling rate may have changed meanwhile: what a sample stands for on average. Nothing off the CPU is sampled.
            let period = if kind == CPU { i64::try_from(nanos / count.max(1)).unwrap_or(i64::MAX) } else { 0 };
            Some(Profile {
                sample_type: Some(sample_type),
                samples: values,
                time_unix_nano: self.interval.start,
                duration_nano: self.interval.duration,
                period_type: (period > 0).then_some(sample_type),
                period,
                profile_id: self.ids.next(),
            })
        };
        [CPU, OFF_CPU].into_iter().zip(sums).filter_map(profile).collect()
    }

    fn resource(&self, service: &str, instance: &Instance, profiles: Vec<Profile>) -> ResourceProfiles {
        let names = instance.container.as_ref().and_then(|container| self.names.get(container));
        let scope = Scope { name: "tracer".into(), version: env!("CARGO_PKG_VERSION").into() };
        ResourceProfiles {
            resource: Some(process_resource(instance, service, self.host, names, self.more)),
            scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles }],
            schema_url: SCHEMA.into(),
        }
    }
}

const CPU: &str = "cpu";
const OFF_CPU: &str = "off_cpu";

/// Requests, and how many samples each has.
impl Iterator for Requests<'_> {
    type Item = (Request, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut tables, mut resource_profiles, mut samples) = (Tables::new(self.lines), Vec::new(), 0);
        while tables.bytes < self.bytes
            && let Some(first) = self.samples.peek()
        {
            let (service, instance) = (Arc::clone(&first.service), Arc::clone(&first.instance));
            tables.bytes += RESOURCE;
            let mut sums: [Merged; 2] = Default::default();
            while let Some(sample) = self.samples.next_if(|one| one.service == service && one.instance == instance) {
                samples += sample.count;
                let stack = tables.stack(&sample.frames);
                let attributes = match &sample.class {
                    None => Vec::new(),
                    Some((class, protocol)) => vec![
                        tables.attribute("tracer.request_class", &printable(class)),
                        tables.attribute("network.protocol.name", protocol.name()),
                    ],
                };
                sums[usize::from(sample.off_cpu)].add(&mut tables.bytes, stack, attributes, &sample);
                if tables.bytes >= self.bytes {
                    break;
                }
            }
            let profiles = self.profiles(&mut tables, sums.map(Merged::sums));
            resource_profiles.push(self.resource(&service, &instance, profiles));
        }
        let dictionary = Some(tables.dictionary());
        (!resource_profiles.is_empty()).then_some((Request { resource_profiles, dictionary }, samples))
    }
}

/// Samples of a profile: those of the same stack and class are one.
#[derive(Default)]
struct Merged {
    places: HashMap<(i32, Vec<i32>), usize>,
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    values: Vec<Sample>,
    count: u64,
    nanos: u64,
}

impl Merged {
    fn add(&mut self, bytes: &mut usize, stack_index: i32, attribute_indices: Vec<i32>, sample: &UnsentSample) {
        let nanos = i64::try_from(sample.nanos).unwrap_or(i64::MAX);
        self.sums.count += sample.count;
        self.sums.nanos += sample.nanos;
        let values = &mut self.sums.values;
        let place = *self.places.entry((stack_index, attribute_indices.clone())).or_insert(values.len());
        if let Some(sum) = values.get_mut(place).and_then(|known| known.values.first_mut()) {
            *sum = sum.saturating_add(nanos);
        } else {
            *bytes += 24 + 4 * attribute_indices.len();
            values.push(Sample { stack_index, attribute_indices, values: vec![nanos] });
        }
    }

    fn sums(self) -> Sums {
        self.sums
    }
}

/// What `profile.frame.type` is of a frame.
fn frame_type(origin: FrameOrigin) -> Option<&'static str> {
    match origin {
        FrameOrigin::Kernel => Some("kernel"),
        FrameOrigin::Mapped => Some("native"),
        FrameOrigin::Interpreted(Language::Python) => Some("cpython"),
        FrameOrigin::Interpreted(Language::Php) => Some("php"),
        FrameOrigin::Interpreted(Language::JavaScript) => Some("v8js"),
        FrameOrigin::Interpreted(Language::Java) => Some("jvm"),
        FrameOrigin::Other => None,
    }
}

/// A table without duplicates, whose first entry is the empty one.
struct Table<K, V> {
    places: HashMap<K, i32>,
    entries: Vec<V>,
}

impl<K: Eq + Hash, V: Default> Table<K, V> {
    /// With what stands for nothing, if anything does.
    fn new(nothing: Option<K>) -> Self {
        Self { places: nothing.into_iter().map(|key| (key, 0)).collect(), entries: vec![V::default()] }
    }

    fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<i32>
    where
        K: Borrow<Q>,
    {
        self.places.get(key).copied()
    }

    fn add(&mut self, key: K, entry: V) -> i32 {
        let index = self.entries.len() as i32;
        self.entries.push(entry);
        self.places.insert(key, index);
        index
    }
}

/// The dictionary of a request while it is made.
struct Tables {
    lines: ShownLines,
    strings: Table<Arc<str>, String>,
    mappings: Table<i32, Mapping>,
    functions: Table<Function, Function>,
    locations: Table<Frame, Location>,
    attributes: Table<(i32, i32), Attribute>,
    stacks: Table<Vec<i32>, Stack>,
    /// Bytes so far, by estimate.
    bytes: usize,
}

impl Tables {
    fn new(lines: ShownLines) -> Self {
        Self {
            lines,
            strings: Table::new(Some(Arc::from(""))),
            mappings: Table::new(Some(0)),
            functions: Table::new(Some(Function::default())),
            locations: Table::new(None),
            attributes: Table::new(None),
            stacks: Table::new(Some(Vec::new())),
            bytes: 0,
        }
    }

    /// Text, cut where it is too long: files make names of functions as long as they like.
    fn string(&mut self, text: &str) -> i32 {
        let text = bounded(text);
        self.strings.get(&*text).unwrap_or_else(|| {
            self.bytes += text.len() + 5;
            self.strings.add(Arc::from(&*text), text)
        })
    }

    fn attribute(&mut self, key: &str, text: &str) -> i32 {
        let (key_strindex, text_strindex) = (self.string(key), self.string(text));
        self.attributes.get(&(key_strindex, text_strindex)).unwrap_or_else(|| {
            let text = bounded(text);
            self.bytes += text.len() + 16;
            let value = Some(AnyValue { value: Some(Value::Text(text)) });
            self.attributes.add((key_strindex, text_strindex), Attribute { key_strindex, value })
        })
    }

    fn mapping(&mut self, file: &str) -> i32 {
        let filename_strindex = self.string(file);
        self.mappings.get(&filename_strindex).unwrap_or_else(|| {
            self.bytes += 8;
            self.mappings.add(filename_strindex, Mapping { filename_strindex })
        })
    }

    /// Whether the line of an interpreted function is that of its definition.
    fn is_definition(&self, origin: FrameOrigin) -> bool {
        let shown = match origin {
            FrameOrigin::Interpreted(Language::Python) => self.lines.python,
            FrameOrigin::Interpreted(Language::Php) => self.lines.php,
            FrameOrigin::Interpreted(Language::JavaScript | Language::Java) => Lines::Definition,
            _ => return false,
        };
        shown == Lines::Definition
    }

    fn location(&mut self, frame: &Frame) -> i32 {
        if let Some(known) = self.locations.get(frame) {
            return known;
        }
        let FrameParts { function, origin, mapped, source } = frame.parts();
        let (file, line) = source.unwrap_or_default();
        let (start_line, line) = if self.is_definition(origin) { (line, 0) } else { (0, line) };
        let (name_strindex, filename_strindex) = (self.string(function), self.string(file));
        let function = Function { name_strindex, filename_strindex, start_line: start_line.into() };
        let function_index = self.functions.get(&function).unwrap_or_else(|| {
            self.bytes += 16;
            self.functions.add(function, function)
        });
        let kind = frame_type(origin).map(|kind| self.attribute("profile.frame.type", kind));
        let location = Location {
            mapping_index: mapped.map_or(0, |file| self.mapping(file)),
            lines: vec![Line { function_index, line: line.into() }],
            attribute_indices: kind.into_iter().collect(),
        };
        self.bytes += 20;
        self.locations.add(frame.clone(), location)
    }

    /// The stack with these frames, outermost first.
    fn stack(&mut self, frames: &[Frame]) -> i32 {
        let location_indices: Vec<i32> = frames.iter().rev().map(|frame| self.location(frame)).collect();
        self.stacks.get(&location_indices).unwrap_or_else(|| {
            self.bytes += 4 + 4 * location_indices.len();
            self.stacks.add(location_indices.clone(), Stack { location_indices })
        })
    }

    fn dictionary(self) -> Dictionary {
        Dictionary {
            mapping_table: self.mappings.entries,
            location_table: self.locations.entries,
            function_table: self.functions.entries,
            // Of the length that codecs expect of ids.
            link_table: vec![Link { trace_id: vec![0; 16], span_id: vec![0; 8] }],
            string_table: self.strings.entries,
            attribute_table: self.attributes.entries,
            stack_table: self.stacks.entries,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prost::Message;

    use super::super::proto::KeyValue;
    use super::*;
    use tracer_model::ProtocolId;

    const INTERVAL: Interval = Interval { start: 5, duration: 10 };

    fn sample(pid: u32, class: Option<&str>, frames: &[Frame], off_cpu: bool, nanos: u64) -> UnsentSample {
        UnsentSample {
            instance: Arc::new(Instance { pid, start_time: 3, exe: "/bin/shop".into(), container: None }),
            service: Arc::from("shop"),
            class: class.map(|class| (Arc::from(class), ProtocolId::Http)),
            off_cpu,
            count: 2,
            nanos,
            frames: frames.to_vec(),
        }
    }

    fn requests(samples: Vec<UnsentSample>, lines: ShownLines, bytes: usize) -> Vec<(Request, u64)> {
        let host = HostFacts { name: "host1".into(), machine: None };
        let (names, mut ids) = (NamesCache::default(), ProfileIds::new());
        let more = [("zone".to_owned(), "z1".to_owned()), ("service.name".to_owned(), "mine".to_owned())];
        let mut all = Requests::new(samples, (INTERVAL, lines), &host, &names, &more, &mut ids);
        all.bytes = bytes;
        all.collect()
    }

    /// Every sample of a request as one line: process, what is measured, class, frames from the root; and its value.
    fn read(request: &Request) -> BTreeMap<String, i64> {
        let tables = request.dictionary.as_ref().unwrap();
        assert_eq!((tables.string_table[0].as_str(), &tables.stack_table[0]), ("", &Stack::default()));
        assert_eq!(
            (&tables.location_table[0], &tables.function_table[0]),
            (&Location::default(), &Function::default())
        );
        assert_eq!(
            (&tables.mapping_table[0], &tables.attribute_table[0]),
            (&Mapping::default(), &Attribute::default())
        );
        let text = |index: i32| tables.string_table[index as usize].as_str();
        let attributes = |indices: &[i32]| {
            let one = |index: &i32| {
                let attribute = &tables.attribute_table[*index as usize];
                let value = attribute.value.clone().and_then(|value| value.value);
                let Some(Value::Text(value)) = value else { panic!("{attribute:?}") };
                format!("{}={value}", text(attribute.key_strindex))
            };
            indices.iter().map(one).collect::<Vec<_>>().join(",")
        };
        let frame = |index: &i32| {
            let location = &tables.location_table[*index as usize];
            let [line] = location.lines.as_slice() else { panic!("{location:?}") };
            let function = &tables.function_table[line.function_index as usize];
            let mapped = text(tables.mapping_table[location.mapping_index as usize].filename_strindex);
            let place = (text(function.filename_strindex), function.start_line, line.line, mapped);
            format!("{} {place:?} {}", text(function.name_strindex), attributes(&location.attribute_indices))
        };
        let mut found = BTreeMap::new();
        for of in &request.resource_profiles {
            let attributes_of = &of.resource.as_ref().unwrap().attributes;
            let pid = attributes_of.iter().find(|pair| pair.key == "process.pid").unwrap();
            let Some(Value::Int(pid)) = pid.value.clone().and_then(|value| value.value) else { panic!("{pid:?}") };
            assert!(attributes_of.contains(&KeyValue::text("service.name", "shop")));
            assert!(attributes_of.contains(&KeyValue::text("zone", "z1")));
            for profile in &of.scope_profiles[0].profiles {
                assert_eq!((profile.time_unix_nano, profile.duration_nano, profile.profile_id.len()), (5, 10, 16));
                let kind = profile.sample_type.unwrap();
                assert_eq!(text(kind.unit_strindex), "nanoseconds");
                for sample in &profile.samples {
                    let stack = &tables.stack_table[sample.stack_index as usize].location_indices;
                    let frames: Vec<String> = stack.iter().rev().map(frame).collect();
                    let class = attributes(&sample.attribute_indices);
                    let line = format!("{pid} {} {class}: {}", text(kind.type_strindex), frames.join("; "));
                    assert_eq!(found.insert(line, sample.values[0]), None, "twice");
                    assert_eq!(sample.values.len(), 1);
                }
            }
        }
        found
    }

    #[test]
    fn a_process_has_its_classes_on_the_cpu_and_off_it() {
        let libc = Some(Arc::from("/lib/libc.so.6"));
        let root = Frame::of("main", Some(Arc::from("/bin/shop")));
        let work = [root.clone(), Frame::of("work", libc.clone())];
        let wait = [root.clone(), Frame::plain("schedule_[k]"), Frame::plain("[off CPU: futex]")];
        let samples = vec![
            sample(8, Some("GET /a"), &work, false, 30),
            sample(7, Some("GET /a"), &work, false, 10),
            sample(7, None, &work, false, 5),
            // Two classes of one name are one to whoever reads it.
            sample(7, Some("GET /a"), &work, false, 7),
            sample(7, Some("GET /a"), &wait, true, 100),
        ];
        let made = requests(samples, ShownLines::default(), BYTES);
        let [(request, 10)] = made.as_slice() else { panic!("one request of ten samples: {made:?}") };
        let main = "main (\"\", 0, 0, \"/bin/shop\") profile.frame.type=native";
        let work = format!("{main}; work (\"\", 0, 0, \"/lib/libc.so.6\") profile.frame.type=native");
        let wait = format!(
            "{main}; schedule (\"\", 0, 0, \"\") profile.frame.type=kernel; [off CPU: futex] (\"\", 0, 0, \"\") "
        );
        let class = "tracer.request_class=GET /a,network.protocol.name=http";
        let expected = [
            (format!("7 cpu {class}: {work}"), 17),
            (format!("7 cpu : {work}"), 5),
            (format!("7 off_cpu {class}: {wait}"), 100),
            (format!("8 cpu {class}: {work}"), 30),
        ];
        assert_eq!(read(request), BTreeMap::from(expected));
        let [first, second] = request.resource_profiles.as_slice() else { panic!("two processes") };
        let profiles = &first.scope_profiles[0].profiles;
        // 22 ns by 6 samples; what is off the CPU is not sampled.
        assert_eq!((profiles[0].period, profiles[1].period, profiles[1].period_type), (3, 0, None));
        let ids: BTreeSet<_> =
            profiles.iter().chain(&second.scope_profiles[0].profiles).map(|of| &of.profile_id).collect();
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn interpreted_functions_have_their_source() {
        let file = Some(Arc::from("/srv/app/x.py"));
        let frames = [Frame::interpreted("view (app/x.py:12)", file, Language::Python)];
        let of = |lines| read(&requests(vec![sample(7, None, &frames, false, 1)], lines, BYTES)[0].0);
        let line = |place: &str| format!("7 cpu : view (\"/srv/app/x.py\", {place}, \"\") profile.frame.type=cpython");
        assert_eq!(of(ShownLines::default()), BTreeMap::from([(line("12, 0"), 1)]));
        let running = ShownLines { python: Lines::Running, ..ShownLines::default() };
        assert_eq!(of(running), BTreeMap::from([(line("0, 12"), 1)]));
    }

    #[test]
    fn large_profiles_are_several_requests_and_nothing_is_lost() {
        let long = "x".repeat(5000);
        let samples: Vec<_> = (0..3000)
            .map(|n| {
                sample(n % 3, Some("GET /a"), &[Frame::plain("main"), Frame::plain(&format!("f{n}_{long}"))], false, 1)
            })
            .collect();
        let made = requests(samples, ShownLines::default(), 200_000);
        assert!(made.len() > 10, "{}", made.len());
        assert_eq!(made.iter().map(|(_, samples)| samples).sum::<u64>(), 6000);
        let found: Vec<_> = made.iter().map(|(request, _)| read(request)).collect();
        assert_eq!(found.iter().map(BTreeMap::len).sum::<usize>(), 3000);
        assert_eq!(found.iter().flat_map(BTreeMap::values).sum::<i64>(), 3000);
        let largest = made.iter().map(|(request, _)| request.encoded_len()).max().unwrap();
        assert!((150_000..220_000).contains(&largest), "{largest}");
        assert!(requests(Vec::new(), ShownLines::default(), BYTES).is_empty());
    }
}
