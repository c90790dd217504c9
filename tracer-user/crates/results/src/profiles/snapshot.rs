//! A snapshot of stacks, and its output formats.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tracer_common::unwind::Outcome;
use tracer_model::text;

use super::Frame;
use super::hotspots::{CodeOrigin, CodeOwners};
use super::naming::{Frames, Stack, incomplete};
use super::symbolize::Symbols;
use super::{ProfileKind, StoredStack, pprof, speedscope};

/// The name of a function without a symbol.
const NO_SYMBOL: &str = "[unknown]";
/// End of the names of functions of libraries and runtimes, where it is asked for; the kernel's always end with `_[k]`.
const LIBRARY: &str = "_[l]";

/// At the place of the waker's frames, where there are none.
const WAKER_NOT_SEEN: &str = "[waker not seen]";

/// The thread that ended a wait.
#[derive(Debug)]
pub(super) enum Waker {
    /// It is not asked about.
    NotShown,
    /// Its stack was not taken.
    NotSeen,
    /// Its stack, and its process.
    Seen(StoredStack, Arc<str>),
}

/// One stack of a snapshot.
#[derive(Debug)]
pub(super) struct Sum {
    pub(super) stack: StoredStack,
    pub(super) process: Arc<str>,
    pub(super) waker: Waker,
    pub(super) count: u64,
    pub(super) nanos: u64,
}

/// [`Waker`] with names, its process first.
enum NamedWaker {
    NotShown,
    NotSeen,
    Seen(Vec<Frame>),
}

/// A stack, its waker, count and nanoseconds.
type NamedSum = (Vec<Frame>, NamedWaker, u64, u64);

/// Counts at one moment, to be rendered on another thread.
#[derive(Debug)]
pub struct Snapshot {
    entries: Vec<Sum>,
    symbols: Symbols,
    view: ProfileKind,
}

/// A sample of one request, or several of the same stack.
#[derive(Clone, Debug)]
pub struct TimedSample {
    /// How long after the request's first byte was read the first of them was taken, nanoseconds.
    pub after: u64,
    /// Time they stand for, nanoseconds.
    pub weight: u64,
    /// How many they are.
    pub count: u64,
    /// How they were taken: `clock`, `thread_clock` or `off_cpu`.
    pub kind: &'static str,
    /// Thread.
    pub tid: u32,
    /// Frames, outermost first.
    pub frames: Vec<Frame>,
}

/// Samples of one request, oldest first, to be named on another thread.
#[derive(Debug)]
pub struct RequestSamples {
    pub(super) samples: Vec<TimedSample>,
    /// Their stacks, in the same order.
    pub(super) snapshot: Snapshot,
}

impl RequestSamples {
    /// With names.
    pub fn named(self) -> Vec<TimedSample> {
        let named = self.snapshot.named().into_iter();
        self.samples.into_iter().zip(named).map(|(sample, (frames, _, _))| TimedSample { frames, ..sample }).collect()
    }
}

impl Snapshot {
    pub(super) fn new(entries: Vec<Sum>, symbols: Symbols, view: ProfileKind) -> Self {
        Self { entries, symbols, view }
    }

    /// Samples in it.
    pub fn samples(&self) -> u64 {
        self.entries.iter().map(|entry| entry.count).sum()
    }

    /// Names of every stack, outermost frame first, with its count and nanoseconds. Where wakers are shown, the waker's
    /// frames follow those of the wait, innermost first: the two meet where one thread woke the other.
    pub(super) fn named(&self) -> Vec<(Vec<Frame>, u64, u64)> {
        let joined = |(mut frames, waker, count, nanos): NamedSum| {
            match waker {
                NamedWaker::NotShown => {}
                NamedWaker::NotSeen => frames.push(Frame::plain(WAKER_NOT_SEEN)),
                NamedWaker::Seen(waker) => {
                    frames.extend(waker.first().map(|process| Frame::plain(&format!("[woken by {}]", &**process))));
                    frames.extend(waker.into_iter().skip(1).rev());
                }
            }
            (frames, count, nanos)
        };
        self.named_apart().into_iter().map(joined).collect()
    }

    /// Its stacks with names, for [`super::hotspots`]; those of wakers instead of the waits they ended, where they are shown.
    pub fn stacks(&self) -> Vec<(Vec<Frame>, u64, u64)> {
        let of = |(frames, waker, count, nanos): NamedSum| match waker {
            NamedWaker::NotShown => (frames, count, nanos),
            NamedWaker::NotSeen => (vec![Frame::plain(WAKER_NOT_SEEN)], count, nanos),
            NamedWaker::Seen(waker) => (waker, count, nanos),
        };
        self.named_apart().into_iter().map(of).collect()
    }

    /// Names of every stack and its waker's, outermost frame first.
    fn named_apart(&self) -> Vec<NamedSum> {
        let stacks = self.entries.iter().flat_map(|entry| {
            let waker = if let Waker::Seen(waker, _) = &entry.waker { Some(waker) } else { None };
            [Some(&entry.stack), waker].into_iter().flatten()
        });
        let seen = |stack: &StoredStack| match stack {
            StoredStack::Seen(stack, _) => Some(Arc::clone(stack)),
            StoredStack::Named(_) => None,
        };
        let missing: Vec<Arc<Stack>> = stacks.filter_map(seen).collect();
        let mut found = self.symbols.names(&missing).into_iter();
        // In the order that was asked in.
        let mut names = |stack: &StoredStack, process: &str| -> Vec<Frame> {
            let frames = match stack {
                StoredStack::Named(frames) => Some(Arc::clone(frames)),
                StoredStack::Seen(..) => found.next().flatten(),
            };
            let frames = frames.unwrap_or_else(|| unnamed(stack));
            std::iter::once(Frame::plain(process)).chain(frames.iter().cloned()).collect()
        };
        let of = |entry: &Sum| {
            let frames = names(&entry.stack, &entry.process);
            let waker = match &entry.waker {
                Waker::NotShown => NamedWaker::NotShown,
                Waker::NotSeen => NamedWaker::NotSeen,
                Waker::Seen(stack, process) => NamedWaker::Seen(names(stack, process)),
            };
            (frames, waker, entry.count, entry.nanos)
        };
        self.entries.iter().map(of).collect()
    }

    /// Seconds that its stacks stand for.
    pub fn seconds(&self) -> f64 {
        self.entries.iter().map(|entry| entry.nanos).sum::<u64>() as f64 / 1e9
    }

    /// One line per stack: frames from the root, separated by semicolons, and microseconds. Not samples: they stand for more
    /// time when the sampling rate is lower. With `owners`, functions of libraries and runtimes end with
    /// `_[l]`, and those without a symbol name their file.
    pub fn folded(&self, owners: Option<&CodeOwners>) -> String {
        let mut lines: Vec<_> = self.lines(owners).into_iter().collect();
        lines.sort();
        lines.into_iter().fold(String::new(), |mut out, (line, count)| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{line} {count}");
            out
        })
    }

    /// The lines of `folded` and their numbers.
    fn lines(&self, owners: Option<&CodeOwners>) -> HashMap<String, u64> {
        let mut lines: HashMap<String, u64> = HashMap::new();
        for (frames, _, nanos) in self.named() {
            let written = |(depth, frame): (usize, &Frame)| {
                let name = frame.replace([';', '\n'], ":");
                // The outermost is the process.
                let Some(owners) = owners.filter(|_| depth > 0) else { return name };
                annotated(frame, name, owners)
            };
            let line = frames.iter().enumerate().map(written).collect::<Vec<_>>().join(";");
            *lines.entry(line).or_default() += nanos;
        }
        // Once for all of a line: what is rounded adds up.
        for nanos in lines.values_mut() {
            *nanos = (*nanos + 500) / 1000;
        }
        lines.retain(|_, micros| *micros > 0);
        lines
    }

    /// One line per stack of either profile, with its number before and after: that of `before` times `scale`, so that
    /// both are of as many requests.
    pub fn folded_difference(&self, before: &Self, scale: f64) -> String {
        let mut lines: HashMap<String, (u64, u64)> = HashMap::new();
        for (line, count) in before.lines(None) {
            lines.entry(line).or_default().0 = (count as f64 * scale).round().clamp(0.0, 1e15) as u64;
        }
        for (line, count) in self.lines(None) {
            lines.entry(line).or_default().1 = count;
        }
        lines.retain(|_, (before, after)| *before > 0 || *after > 0);
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort();
        lines.into_iter().fold(String::new(), |mut out, (line, (before, after))| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{line} {before} {after}");
            out
        })
    }

    /// The flame graph of this profile, coloured by how it differs from `before`: red where there is more, blue where
    /// there is less.
    pub fn svg_difference(&self, before: &Self, scale: f64, title: &str) -> Vec<u8> {
        let (folded, title) = (self.folded_difference(before, scale), &*text::printable(title));
        let mut options = inferno::flamegraph::Options::default();
        title.clone_into(&mut options.title);
        let per = if (scale - 1.0).abs() < 1e-9 { "" } else { " for as many requests" };
        options.subtitle = Some(format!(
            "{:.3} s; red: more than before{per} ({:.3} s × {scale:.3}), blue: less",
            self.seconds(),
            before.seconds()
        ));
        options.count_name = "ms".into();
        options.factor = 1e-3;
        let mut out = Vec::new();
        let drawn =
            self.samples() > 0 && inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut out).is_ok();
        if drawn { out } else { empty(title).into_bytes() }
    }

    /// A flame graph.
    pub fn svg(&self, title: &str) -> Vec<u8> {
        let (folded, title) = (self.folded(None), &*text::printable(title));
        let mut options = inferno::flamegraph::Options::default();
        title.clone_into(&mut options.title);
        let seconds = self.seconds();
        options.subtitle = Some(match self.view {
            ProfileKind::Cpu => format!("{seconds:.3} s on the CPU, by {} samples", self.samples()),
            ProfileKind::OffCpu => format!("{seconds:.3} s off the CPU while a request was held"),
            ProfileKind::Wall => format!("{seconds:.3} s on the CPU, and off it while a request was held"),
            ProfileKind::Wakers => {
                format!("{seconds:.3} s of waits for locks and other threads, and above each the code that ended it")
            }
        });
        options.count_name = "ms".into();
        options.factor = 1e-3;
        options.hash = true;
        let mut out = Vec::new();
        let drawn =
            !folded.is_empty() && inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut out).is_ok();
        if drawn { out } else { empty(title).into_bytes() }
    }

    /// A file for speedscope.
    pub fn speedscope(&self, title: &str) -> Vec<u8> {
        speedscope::sums(title, &self.named())
    }

    /// A gzip-compressed `profile.proto`.
    pub fn pprof(&self) -> Vec<u8> {
        let value = match self.view {
            ProfileKind::Cpu => "cpu",
            ProfileKind::OffCpu => "off_cpu",
            ProfileKind::Wall => "wall",
            ProfileKind::Wakers => "wakers",
        };
        pprof::encode(&self.named(), value)
    }
}

/// A frame's name with its file, where it has no symbol, and whether its code is a library's.
fn annotated(frame: &Frame, mut name: String, owners: &CodeOwners) -> String {
    if let Some(file) = frame.file().filter(|_| name == NO_SYMBOL) {
        let program = file.rsplit('/').next().unwrap_or(file);
        let _ = write!(name, " in {}", program.replace([';', '\n'], ":"));
    }
    if owners.code(frame) == CodeOrigin::ThirdParty {
        name.push_str(LIBRARY);
    }
    name
}

/// What is shown of a stack that has no names yet.
fn unnamed(stack: &StoredStack) -> Frames {
    let (outcome, off_cpu) = match stack {
        StoredStack::Seen(stack, _) => (stack.outcome, stack.off_cpu.as_ref()),
        StoredStack::Named(_) => (Outcome::default(), None),
    };
    let root =
        incomplete(outcome).map(|why| Frame::plain(&why)).into_iter().chain([Frame::plain("[not named in time]")]);
    root.chain(off_cpu.map(|wait| Frame::plain(&wait.frame()))).collect()
}

fn empty(title: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<?xml version=\"1.0\" standalone=\"no\"?>\n<svg version=\"1.1\" width=\"1200\" height=\"80\" xmlns=\"http://www.w3.org/2000/svg\"><text x=\"600\" y=\"30\" text-anchor=\"middle\" font-family=\"sans-serif\" font-size=\"17\">{title}</text><text x=\"600\" y=\"58\" text-anchor=\"middle\" font-family=\"sans-serif\" font-size=\"12\">no samples yet</text></svg>\n"
    )
}
