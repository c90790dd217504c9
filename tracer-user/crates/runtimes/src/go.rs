//! Go: at every system call a register holds the running goroutine; the goroutine's id and its creator are in the
//! runtime's own data, at offsets known by version.
//!
//! Go functions get no return probes: a return probe replaces a return address, and Go moves its stacks.

#[cfg(test)]
pub(super) mod fixture;
mod frames;
pub(super) mod functions;
pub(super) mod image;

use std::fs::File;
use std::ops::Range;

use functions::Functions;
use image::Image;
use tracer_common::runtime::{KIND_GO, NUMBERS, Runtime, UserProbe};

pub use frames::{Frame, frames};
pub use image::Source;

use super::maps::Maps;
use super::{DetectionState, Found, Place, WatchWakes};

/// The runtime's name.
const NAME: &str = "go";

/// Bytes read of the build information.
const INFORMATION: usize = 4096;
/// Its magic (`debug/buildinfo`).
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Its flags: the version string follows at [`VERSION`], after its length.
const INLINE: u64 = 2;
const VERSION: usize = 32;

/// Prefixes of functions whose goroutines serve a connection for as long as it lasts, so that they do not work for
/// their creator alone. The last one belongs to a server and runs once per request; it makes no calls and needs no task
/// edge.
const SERVANTS: [&str; 3] = [
    "net/http.(*Transport).dialConn.",
    "google.golang.org/grpc/internal/transport.",
    "net/http.(*connReader).startBackgroundRead.",
];

/// Offsets in the Go runtime's data, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `runtime.g.m`.
    pub m: u16,
    /// `runtime.m.curg`.
    pub curg: u16,
    /// `runtime.g.goid`.
    pub goid: u16,
    /// `runtime.g.parentGoid`.
    pub parent: u16,
    /// `runtime.g.startpc`.
    pub start: u16,
    /// `runtime.g.waitreason`.
    pub waits: u16,
    /// The wait reason of a goroutine blocked on a channel send (`waitReasonChanSend`).
    pub sends: u8,
    /// The first of three consecutive wait reasons of a goroutine blocked on a lock (`waitReasonSyncMutexLock` and
    /// those of `RWMutex`).
    pub locks: u8,
}

/// Stands for an unknown wait reason: no goroutine has this value.
const NO_REASON: u8 = 0xff;

impl Layout {
    /// The layout of a minor version, from the debug information of programs of 1.21.13 to 1.27.3.
    pub fn of(minor: u32) -> Option<Self> {
        let layout = |goid, parent, start, curg, (sends, locks)| {
            Some(Self { m: 48, curg, goid, parent, start, waits: goid + 24, sends, locks })
        };
        match minor {
            21 | 22 => layout(152, 272, 296, 192, (15, 21)),
            23 | 24 => layout(160, 280, 304, 192, (15, 21)),
            25 => layout(152, 272, 296, 184, (15, 22)),
            26 => layout(152, 280, 304, 184, (NO_REASON, NO_REASON)),
            27 => layout(152, 280, 304, 184, (20, 22)),
            _ => None,
        }
    }
}

/// A Go program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its version as in the build information, `go1.27.3`.
    pub version: Box<str>,
    /// Offsets in its runtime's data.
    pub layout: Layout,
    /// File offset where new goroutines are queued.
    pub created: Option<u64>,
    /// File offset where `net/http`'s client starts to use a connection.
    pub round_trip: Option<u64>,
    /// File offset where waiting goroutines are made ready.
    pub ready: Option<u64>,
    /// Ranges of the functions that connection-serving goroutines start at, as file addresses; unused ones empty.
    pub servants: [(u64, u64); SERVANTS.len()],
    /// The lowest mapped address in the file.
    pub lowest: u64,
}

impl Program {
    /// The numbers for the kernel side, for a process that has the program mapped from `first` on;
    /// `tracer-ebpf/src/runtime/go.rs` documents their layout.
    fn numbers(&self, first: u64) -> [u64; NUMBERS] {
        let Layout { m, curg, goid, parent, start, waits, sends, locks } = self.layout;
        let packed = [m, curg, goid, parent].iter().rev().fold(0, |all, offset| all << 16 | u64::from(*offset));
        let bias = first.wrapping_sub(self.lowest);
        let start = u64::from(start) | u64::from(waits) << 16 | u64::from(sends) << 32 | u64::from(locks) << 40;
        let mut numbers = [packed, start, 0, 0, 0, 0, 0, 0];
        for (pair, servant) in numbers.iter_mut().skip(2).collect::<Vec<_>>().chunks_exact_mut(2).zip(self.servants) {
            if let [from, end] = pair
                && servant.0 < servant.1
            {
                (**from, **end) = (servant.0.wrapping_add(bias), servant.1.wrapping_add(bias));
            }
        }
        numbers
    }
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Not recognised as a Go program.
    Other,
    /// A Go program whose goroutines cannot be distinguished: its version, and why.
    Unknown(Box<str>, DetectionState),
    /// A Go program whose goroutines can be distinguished.
    Known(Box<Program>),
}

/// Inspects a program's file.
pub fn inspect<S: Source + ?Sized>(file: &S) -> Seen {
    let Some(image) = Image::read(file) else { return Seen::Other };
    let Some(version) = version(&image) else { return Seen::Other };
    match known(&image, &version) {
        Ok(program) => Seen::Known(Box::new(program)),
        Err(why) => Seen::Unknown(version, why),
    }
}

/// Detects Go in a process; `None` if there is none.
pub(super) fn recognise(pid: u32, maps: &Maps, ready: WatchWakes) -> Option<Found> {
    let path = maps.open_by(&maps.exe);
    let bare = Runtime { kind: KIND_GO, ..Runtime::default() };
    let found = |version: Box<str>, state| Found { state, ..Found::known(NAME, version.into(), bare) };
    let program = match inspect(&File::open(&path).ok()?) {
        Seen::Other => return None,
        Seen::Unknown(version, why) => return Some(found(version, why)),
        Seen::Known(program) => program,
    };
    log::debug!("process {pid} runs Go: {program:x?}");
    let first = maps.of(&maps.exe).next().map(|mapping| mapping.from)?;
    let found = found(program.version.clone(), DetectionState::Known);
    let Some(created) = program.created else { return Some(found.without(DetectionState::NoSymbols)) };
    let place = |probe, offset| Place { probe, file: path.clone(), offset };
    let mut places = vec![place(UserProbe::GoCreated, created)];
    places.extend(program.round_trip.map(|offset| place(UserProbe::GoRoundTrip, offset)));
    let wakes: Vec<Place> = program.ready.map(|at| place(UserProbe::GoReady, at)).into_iter().collect();
    if ready == WatchWakes::Always && wakes.is_empty() {
        log::warn!("process {pid} runs Go, and where its goroutines go on is not known");
    }
    let (extra, on_demand) = ready.split(wakes);
    Some(Found { runtime: Runtime { at: program.numbers(first), ..bare }, places, extra, on_demand, ..found })
}

/// The version in the build information.
fn version<S: Source + ?Sized>(image: &Image<'_, S>) -> Option<Box<str>> {
    let bytes = image.bytes(image.section(".go.buildinfo")?, INFORMATION)?;
    if !bytes.starts_with(MAGIC) {
        return None;
    }
    let flags = image::number::<1>(&bytes, 15)?;
    if flags & INLINE == 0 {
        // Version 1.17 and older store a pointer instead.
        return Some("older than go1.18".into());
    }
    // The length is a varint; every plausible one is a single byte.
    let len = image::number::<1>(&bytes, VERSION)? as usize;
    let text = bytes.get(VERSION + 1..VERSION + 1 + len)?;
    Some(String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect())
}

/// The `25` of `go1.25.5`, `go1.25rc1`, `go1.25.5 X:boringcrypto`, `devel go1.25-abc`.
fn minor(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("go1.")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..digits)?.parse().ok()
}

fn known<S: Source + ?Sized>(image: &Image<'_, S>, version: &str) -> Result<Program, DetectionState> {
    if image.machine != image::X86_64 {
        return Err(DetectionState::Unsupported);
    }
    let layout = minor(version).and_then(Layout::of).ok_or(DetectionState::UnknownVersion)?;
    let mut program = Program {
        version: version.into(),
        layout,
        created: None,
        round_trip: None,
        ready: None,
        servants: [(0, 0); SERVANTS.len()],
        lowest: image.lowest(),
    };
    let functions = Functions::read(image).ok_or(DetectionState::Unreadable)?;
    let (mut creates, mut queues, mut sends, mut goes_on) = (None, None, None, None);
    let mut servants: [Option<Range<u64>>; SERVANTS.len()] = Default::default();
    functions.each(|name, range| match name {
        b"runtime.newproc.func1" => creates = Some(range),
        b"runtime.runqput" => queues = Some(range),
        b"net/http.(*persistConn).roundTrip" => sends = Some(range),
        b"runtime.ready" => goes_on = Some(range),
        _ => {
            let kind = SERVANTS.iter().position(|servant| name.starts_with(servant.as_bytes()));
            if let Some(all) = kind.and_then(|kind| servants.get_mut(kind)) {
                *all = Some(match all.take() {
                    Some(all) => all.start.min(range.start)..all.end.max(range.end),
                    None => range,
                });
            }
        }
    });
    let (creates, queues) = creates.zip(queues).ok_or(DetectionState::NoSymbols)?;
    let text = functions::text(image, functions.text, &creates, &queues).ok_or(DetectionState::Unreadable)?;
    let place = |at: u64| text.checked_add(at).and_then(|address| image.place(address));
    program.created = functions::call(image, text, &creates, &queues).and_then(place);
    let framed = |function: Range<u64>| {
        let code = image.code(text.checked_add(function.start)?, 32)?;
        place(function.start.checked_add(functions::frame(&code)? as u64)?)
    };
    program.round_trip = sends.and_then(framed);
    program.ready = goes_on.and_then(framed);
    for (servant, range) in program.servants.iter_mut().zip(servants) {
        if let Some(range) = range {
            *servant = (text.saturating_add(range.start), text.saturating_add(range.end));
        }
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_versions() {
        let check = |text: &str, expected: Option<u32>| assert_eq!(minor(text), expected, "{text}");
        check("go1.25.5", Some(25));
        check("go1.21", Some(21));
        check("go1.27rc1", Some(27));
        check("go1.24.4 X:nocoverageredesign", Some(24));
        check("devel go1.26-8a2f5d4 Tue", Some(26));
        check("go2.0", None);
        check("go1.", None);
        check("go1.99999999999999", None);
        check("", None);
    }

    #[test]
    fn of_other_versions_nothing_is_known() {
        assert!(Layout::of(20).is_none() && Layout::of(28).is_none());
    }

    #[test]
    fn what_is_no_go_program() {
        let own = std::fs::File::open("/proc/self/exe").expect("this program");
        assert_eq!(inspect(&own), Seen::Other);
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            assert_eq!(inspect(bytes), Seen::Other);
        }
    }

    fn found(version: &str, text: u64, ahead: usize) -> Seen {
        inspect(fixture::program(version, text, ahead).as_slice())
    }

    #[test]
    fn places_and_offsets_of_a_program() {
        let text = fixture::BASE + fixture::TEXT;
        let expected = |ahead: u64| Program {
            version: "go1.25.5".into(),
            layout: Layout { m: 48, curg: 184, goid: 152, parent: 272, start: 296, waits: 176, sends: 15, locks: 22 },
            created: Some(fixture::TEXT + ahead + 10),
            round_trip: Some(fixture::TEXT + ahead + 128 + 6),
            ready: None,
            servants: [(text + ahead + 192, text + ahead + 256), (0, 0), (0, 0)],
            lowest: fixture::BASE,
        };
        let at = expected(0).numbers(0x5555_0000_0000);
        let start = 0x5555_0000_0000 + fixture::TEXT + 192;
        assert_eq!(at, [0x0110_0098_00b8_0030, 0x160f_00b0_0128, start, start + 64, 0, 0, 0, 0]);
        // The table gives the start of the code; then C code stands in front and the table does not give it.
        assert_eq!(found("go1.25.5", text, 0), Seen::Known(Box::new(expected(0))));
        assert_eq!(found("go1.25.5", 0, 0), Seen::Known(Box::new(expected(0))));
        assert_eq!(found("go1.25.5", 0, 0x240), Seen::Known(Box::new(expected(0x240))));
        assert_eq!(found("go1.25.5", text + 64, 0), Seen::Known(Box::new(expected(0))));
    }

    #[test]
    fn an_unknown_version_is_reported() {
        assert_eq!(found("go1.99.1", 0, 0), Seen::Unknown("go1.99.1".into(), DetectionState::UnknownVersion));
        let far = found("go1.25.5", 0, 0x2_0000);
        assert_eq!(far, Seen::Unknown("go1.25.5".into(), DetectionState::Unreadable));
    }

    #[test]
    fn never_panics_on_damaged_files() {
        let whole = fixture::program("go1.25.5", 0, 0);
        fixture::survives(&whole, |bytes| drop(inspect(bytes)));
    }
}
