//! Loads programs into the kernel and attaches them to their hooks.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::{Program, ProgramFd};
use rustc_hash::FxHashMap;

use super::attachments::Attachments;
use super::load_retry;
use super::loader::{Built, LoadError, chain, refused, take};
use super::private_stack;
use super::probes::{CALLED, Hook, Plan};
use super::usage;

/// The program arrays for tail calls; the kernel empties an array that nothing holds.
pub(super) struct Calls(Vec<(&'static str, ProgramArray<MapData>)>);

impl Calls {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let mut arrays = Vec::new();
        for (_, array) in CALLED {
            if arrays.iter().all(|(name, _)| *name != array) {
                let map = ProgramArray::try_from(take(ebpf, array)?);
                arrays.push((array, map.map_err(|error| refused(&format!("map {array}"), &chain(&error)))?));
            }
        }
        Ok(Self(arrays))
    }

    /// Puts the loaded program `name` into the array it is tail-called from.
    pub(super) fn put(&mut self, ebpf: &Ebpf, name: &str) -> Result<(), String> {
        let program = ebpf.program(name).ok_or_else(|| format!("the BPF object has no program {name}"))?;
        let fd = match program {
            Program::BtfTracePoint(program) => program.fd(),
            Program::FExit(program) => program.fd(),
            _ => return Err(format!("the BPF object's program {name} is of another kind")),
        };
        let fd = fd.map_err(|error| chain(&error))?;
        let array = CALLED.iter().find(|(program, _)| *program == name).map(|(_, array)| *array);
        for (_, map) in self.0.iter_mut().filter(|(map, _)| Some(*map) == array) {
            map.set(0, fd, 0).map_err(|error| chain(&error))?;
        }
        Ok(())
    }
}

/// Most threads that load programs: the slowest program takes as long as all others together.
const LOADERS: usize = 4;

/// The result of loading a program, and how long it took.
pub(super) type Loading = (Result<(), String>, Duration);

/// Loads every program that has a hook, several at once because the kernel's verifier takes the time.
pub(super) fn load_all(ebpf: &mut Ebpf, plan: &[Plan], btf: &aya::Btf) -> FxHashMap<&'static str, Loading> {
    let mut wanted: Vec<(&'static str, Hook, &mut Program)> = Vec::new();
    for (name, program) in ebpf.programs_mut() {
        let planned = plan.iter().find(|plan| plan.probe.program == name);
        if let Some((probe, hook)) = planned.and_then(|plan| Some((plan.probe, plan.hook?))) {
            wanted.push((probe.program, hook, program));
        }
    }
    let each = |(name, hook, program): (&'static str, Hook, &mut Program)| {
        let begin = Instant::now();
        let loaded = load_one(program, hook, btf);
        (name, (loaded, begin.elapsed()))
    };
    side_by_side(wanted, each).into_iter().collect()
}

/// Does `work` for every item, several at once; the results in the order of the items.
pub(super) fn side_by_side<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(LOADERS);
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(items.len(), || None);
    let queue = Mutex::new(items.into_iter().zip(&mut results));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        while let Some((item, result)) = next() {
            *result = Some(work(item));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(worker);
        }
        worker();
    });
    drop(queue);
    results.into_iter().flatten().collect()
}

fn load_one(program: &mut Program, hook: Hook, btf: &aya::Btf) -> Result<(), String> {
    let loaded = match (hook, program) {
        (Hook::Tracepoint(at) | Hook::TracepointOf(at, _) | Hook::Preemptible(at), Program::BtfTracePoint(program)) => {
            load_retry::load(|| program.load(at, btf))
        }
        (Hook::Entry(at), Program::FEntry(program)) => load_retry::load(|| program.load(at, btf)),
        (Hook::Exit(at), Program::FExit(program)) => load_retry::load(|| program.load(at, btf)),
        _ => return Err("the BPF object's program is of another kind".into()),
    };
    loaded.map_err(|error| chain(&error))
}

/// Attaches the loaded program `name`; skipped if there are no `attachments` to hold the link.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    loading: Option<Loading>,
    attachments: Option<&Attachments>,
) -> Result<Built, String> {
    let missing = || format!("the BPF object has no program {name}");
    let (loaded, took) = loading.ok_or_else(missing)?;
    loaded?;
    let program = ebpf.program_mut(name).ok_or_else(missing)?;
    macro_rules! attached {
        ($program:expr) => {{
            if let Some(attachments) = attachments {
                let link = $program.attach().and_then(|id| $program.take_link(id)).map_err(|error| chain(&error))?;
                attachments.link(link);
            }
            Ok(built_of($program.fd(), took))
        }};
    }
    match program {
        Program::BtfTracePoint(program) => attached!(program),
        Program::FEntry(program) => attached!(program),
        Program::FExit(program) => attached!(program),
        _ => Err(format!("the BPF object's program {name} is of another kind")),
    }
}

pub(super) fn built_of<E>(fd: Result<&ProgramFd, E>, load: Duration) -> Built {
    fd.map_or_else(|_| Built { load, ..Built::default() }, |fd| built(fd.as_fd(), load))
}

/// What became of a loaded program.
pub(super) fn built(fd: BorrowedFd<'_>, load: Duration) -> Built {
    let size = usage::size(fd.as_raw_fd());
    let (verified, jited) = size.unwrap_or_default();
    Built { verified, jited, private_stack: private_stack::is_used(fd.as_raw_fd()), load }
}
