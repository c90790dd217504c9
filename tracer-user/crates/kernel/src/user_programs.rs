//! Loads the programs of probes in user programs.
//!
//! Not by aya: a program must be loaded for `uprobe_multi` to be attached so, and aya 0.14 cannot say that. Its object reader
//! does the rest: maps and calls are relocated here as it does for the programs it loads.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya_obj::btf::BtfFeatures;
use aya_obj::{Function, Object, ProgramSection};
use rustc_hash::FxHashMap;
use tracer_common::runtime::UserProbe;

use super::bpf_call::{self, bpf, bpf_open};
use super::btf::Btf;
use super::load_retry;
use super::loader::{Attached, Built, When, chain};
use super::loading::{built, side_by_side};
use super::private_stack;
use super::probes::{CALLED, EXCEPTION_STACK, FRAMES_TEXT, PYTHON_TRACEBACK};

/// The kernel function that detaches without waiting for each probe. Kernels that have it attach probes by `uprobe_multi`
/// links, which go in a thirtieth of the time and side by side. Others have such links since Linux 6.6, but before 6.10 a
/// probe of one process ran for its first thread only.
const MULTI: &str = "uprobe_unregister_nosync";

// include/uapi/linux/bpf.h
const PROGRAM_KPROBE: u32 = 2;
/// `enum bpf_attach_type`.
pub(super) const UPROBE_MULTI: u32 = 48;
/// Bytes for the verifier's reasons.
const LOG: usize = 1 << 20;
/// Longest program name with its zero byte.
const NAME: usize = 16;

/// A loaded program.
pub(super) struct UserProgram {
    pub(super) fd: OwnedFd,
    /// It runs when a function returns, not when a place is reached.
    pub(super) returns: bool,
}

/// The loaded programs by name, and how they can be attached.
pub(super) struct UserPrograms {
    programs: FxHashMap<&'static str, UserProgram>,
    /// They can be attached by `uprobe_multi`, and in no other way.
    pub(super) multi: bool,
}

impl UserPrograms {
    /// A loaded program.
    pub(super) fn get(&self, name: &str) -> Option<&UserProgram> {
        self.programs.get(name)
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.programs.iter().map(|(name, program)| (*name, program.fd.as_fd()))
    }
}

/// The maps of a loaded object, by name, with descriptors of their own.
pub(super) struct ObjectMaps(Vec<(String, OwnedFd)>);

impl ObjectMaps {
    /// Those that nothing has taken out yet.
    pub(super) fn of(ebpf: &Ebpf) -> io::Result<Self> {
        let own = |(name, map)| Ok((String::from(name), data(map).fd().as_fd().try_clone_to_owned()?));
        ebpf.maps().map(own).collect::<io::Result<_>>().map(Self)
    }

    fn get(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, fd)| fd.as_fd())
    }
}

fn data(map: &Map) -> &MapData {
    match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::BloomFilter(data)
        | Map::CgroupArray(data)
        | Map::CgroupStorage(data)
        | Map::CgrpStorage(data)
        | Map::CpuMap(data)
        | Map::DevMap(data)
        | Map::DevMapHash(data)
        | Map::HashMap(data)
        | Map::HashOfMaps(data)
        | Map::InodeStorage(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::PerCpuCgroupStorage(data)
        | Map::PerCpuHashMap(data)
        | Map::PerCpuLruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::ProgramArray(data)
        | Map::Queue(data)
        | Map::ReusePortSockArray(data)
        | Map::RingBuf(data)
        | Map::SkStorage(data)
        | Map::SockHash(data)
        | Map::SockMap(data)
        | Map::Stack(data)
        | Map::StackTraceMap(data)
        | Map::Unsupported(data)
        | Map::XskMap(data) => data,
    }
}

/// Whether this kernel attaches probes by `uprobe_multi`.
pub(super) fn multi(btf: &Btf) -> bool {
    btf.has_function(MULTI)
}

/// Loads the program of each probe, for `multi` or not, those of `exceptions` if they are wanted; missing ones say why.
pub(super) fn load(object: &[u8], maps: &ObjectMaps, multi: bool, exceptions: bool) -> (UserPrograms, Vec<Attached>) {
    let linked = Linked::of(object, maps);
    let probes = UserProbe::ALL.map(|probe| (probe.name(), probe.place(), When::Needed, probe.without()));
    let called = [
        (FRAMES_TEXT, "called by probes of TLS libraries", When::Called, FRAMES_LOST),
        (EXCEPTION_STACK, "called by probes of exceptions", When::Called, STACKS_LOST),
        (PYTHON_TRACEBACK, "called by probes of Python's exceptions", When::Called, STACKS_LOST),
    ];
    let of_exceptions = [UserProbe::PythonExcept.name(), EXCEPTION_STACK, PYTHON_TRACEBACK];
    let wanted = probes.into_iter().chain(called).filter(|(name, ..)| exceptions || !of_exceptions.contains(name));
    let each = |(program, hook, when, without)| {
        let mut entry = Attached { program, hook, when, built: Built::default(), missing: None, without };
        let loaded = linked.as_ref().map_err(Clone::clone).and_then(|linked| linked.load(program, multi));
        let done = loaded.and_then(|(loaded, took)| {
            entry.built = built(loaded.fd.as_fd(), took);
            if entry.built.private_stack == Some(true) {
                return Err(private_stack::REFUSED.into());
            }
            if when == When::Called {
                put(maps, program, loaded.fd.as_fd())?;
            }
            Ok(loaded)
        });
        match done {
            Ok(loaded) => (entry, Some(loaded)),
            Err(why) => (Attached { missing: Some(why), ..entry }, None),
        }
    };
    let mut programs = FxHashMap::default();
    let mut attached = Vec::new();
    for (entry, loaded) in side_by_side(wanted.collect(), each) {
        programs.extend(loaded.map(|loaded| (entry.program, loaded)));
        attached.push(entry);
    }
    (UserPrograms { programs, multi }, attached)
}

/// What is lost without [`FRAMES_TEXT`].
const FRAMES_LOST: &str = "requests by HTTP/2 over TLS are missed where several frames are written at once";

/// What is lost without [`EXCEPTION_STACK`], and [`PYTHON_TRACEBACK`].
const STACKS_LOST: &str = "where exceptions were thrown is not known";

/// The programs of an object with the maps of another loader in place, and the object's types in the kernel.
struct Linked {
    object: Object,
    types: Option<OwnedFd>,
}

impl Linked {
    fn of(object: &[u8], maps: &ObjectMaps) -> Result<Self, String> {
        let mut object = Object::parse(object).map_err(|error| chain(&error))?;
        if object.has_btf_relocations() {
            return Err("the BPF object has relocations by type, which nothing does here".into());
        }
        let types = load_types(&mut object)?;
        let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let of_others: HashSet<usize> =
            object.programs.values().filter(|program| !is_probe(&program.section)).map(|p| p.section_index).collect();
        object.programs.retain(|_, program| is_probe(&program.section));
        // What stays is the probes' own code and what all programs call.
        object.functions.retain(|(section, _), _| !of_others.contains(section));
        let defined = std::mem::take(&mut object.maps);
        let known = defined.iter().filter_map(|(name, map)| Some((name.as_str(), maps.get(name)?.as_raw_fd(), map)));
        object.relocate_maps(known, &sections).map_err(|error| chain(&error))?;
        object.relocate_calls(&sections).map_err(|error| chain(&error))?;
        Ok(Self { object, types })
    }

    /// Loads one program, and how long that took.
    fn load(&self, name: &str, multi: bool) -> Result<(UserProgram, Duration), String> {
        let program = self.object.programs.get(name).ok_or("the BPF object has no such program")?;
        let function = self.object.functions.get(&program.function_key()).ok_or("the BPF object lacks its code")?;
        let begin = Instant::now();
        let interrupted = |error: &io::Error| error.raw_os_error() == Some(libc::EAGAIN);
        let load = |log: &mut [u8]| {
            load_retry::repeat(|| self.load_function(name, &program.license, function, multi, log), interrupted)
        };
        let fd = load(&mut []).map_err(|error| {
            let mut log = vec![0; LOG];
            // Again, for the reasons; should it succeed now, the first refusal counts all the same.
            drop(load(&mut log));
            let reasons = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            if reasons.is_empty() { error.to_string() } else { format!("{error}. Verifier output: {reasons}") }
        })?;
        let returns = matches!(program.section, ProgramSection::URetProbe { .. });
        Ok((UserProgram { fd, returns }, begin.elapsed()))
    }

    fn load_function(
        &self,
        name: &str,
        license: &CStr,
        function: &Function,
        multi: bool,
        log: &mut [u8],
    ) -> io::Result<OwnedFd> {
        let mut short = [0; NAME];
        for (to, from) in short.iter_mut().zip(name.bytes().take(NAME - 1)) {
            *to = from;
        }
        // The kernel needs to know the functions: those that loops call must be static.
        let functions = function.func_info.func_info_bytes();
        let types = self.types.as_ref().filter(|_| function.func_info_rec_size > 0);
        let attr = ProgramAttr {
            kind: PROGRAM_KPROBE,
            instruction_count: function.instructions.len() as u32,
            instructions: function.instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            name: short,
            attach_type: if multi { UPROBE_MULTI } else { 0 },
            types: types.map_or(0, |types| types.as_raw_fd() as u32),
            function_size: types.map_or(0, |_| function.func_info_rec_size as u32),
            functions: types.map_or(0, |_| functions.as_ptr() as u64),
            function_count: types.map_or(0, |_| function.func_info.len() as u32),
            ..ProgramAttr::default()
        };
        // SAFETY: every pointer is to as much as its count says, and lives until the call is over.
        unsafe { bpf_open(bpf_call::PROGRAM_LOAD, &attr) }
    }
}

fn is_probe(section: &ProgramSection) -> bool {
    matches!(section, ProgramSection::UProbe { .. } | ProgramSection::URetProbe { .. })
}

/// Gives the kernel the object's types; `None` if it has none.
fn load_types(object: &mut Object) -> Result<Option<OwnedFd>, String> {
    // Every kernel that the agent runs on knows all kinds of types.
    let all = BtfFeatures::new(true, true, true, true, true, true, true, true);
    let Some(types) = object.fixup_and_sanitize_btf(&all).map_err(|error| chain(&error))? else { return Ok(None) };
    let bytes = types.to_bytes();
    let attr = TypesAttr { types: bytes.as_ptr() as u64, size: bytes.len() as u32, ..TypesAttr::default() };
    // SAFETY: the pointer is to `size` bytes.
    let loaded = unsafe { bpf_open(bpf_call::BTF_LOAD, &attr) };
    loaded.map(Some).map_err(|error| format!("the object's types were refused: {error}"))
}

/// Puts the program into the array it is tail-called from.
fn put(maps: &ObjectMaps, program: &str, fd: BorrowedFd<'_>) -> Result<(), String> {
    let array = CALLED.iter().find(|(name, _)| *name == program).and_then(|(_, array)| maps.get(array));
    let array = array.ok_or("the BPF object has no array for it")?;
    let (key, value) = (0_u32, fd.as_raw_fd());
    let attr = UpdateAttr {
        map: array.as_raw_fd() as u32,
        pad: 0,
        key: &raw const key as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    // SAFETY: key and value are of the sizes of a program array's.
    unsafe { bpf(bpf_call::MAP_UPDATE, &attr) }.map(drop).map_err(|error| format!("it cannot be called: {error}"))
}

/// `union bpf_attr` of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgramAttr {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME],
    interface: u32,
    attach_type: u32,
    types: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
    line_size: u32,
    lines: u64,
    line_count: u32,
    pad: u32,
}

/// `union bpf_attr` of `BPF_BTF_LOAD`.
#[repr(C)]
#[derive(Default)]
struct TypesAttr {
    types: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

/// `union bpf_attr` of `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct UpdateAttr {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn attributes_are_laid_out_as_the_kernels() {
        // include/uapi/linux/bpf.h: union bpf_attr
        assert_eq!(offset_of!(ProgramAttr, log), 32);
        assert_eq!(offset_of!(ProgramAttr, name), 48);
        assert_eq!(offset_of!(ProgramAttr, attach_type), 68);
        assert_eq!(offset_of!(ProgramAttr, functions), 80);
        assert_eq!(offset_of!(ProgramAttr, line_count), 104);
        assert_eq!(offset_of!(TypesAttr, size), 16);
        assert_eq!(size_of::<UpdateAttr>(), 32);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            let (programs, attached) = load(bytes, &ObjectMaps(Vec::new()), false, true);
            assert!(programs.programs.is_empty() && attached.iter().all(|entry| entry.missing.is_some()));
        }
    }
}
