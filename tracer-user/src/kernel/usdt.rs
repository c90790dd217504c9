//! USDT probes of declared transactions: uprobes with a semaphore, a counter in the program that is zero while nobody
//! traces and lets the program skip the probe. The kernel raises it in every process that has the file mapped, and lowers it
//! when the probe goes; aya 0.14 cannot say where it is, so the event is opened here.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::UProbe;
use tracer_common::runtime::{Operands, UserProbe, declared as cookie};

use super::loader::{LoadError, Pod, chain, refused, take};
use super::sampler::{self, EventAttr};
use super::uprobes::{EVERY_PROCESS, PLACES, Prober};
use crate::runtimes::declared::ProbePlace;

// include/uapi/linux/perf_event.h
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// Where the kernel's type of a uprobe event is, and its bits of the configuration for the semaphore.
const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
const SEMAPHORE: &str = "/sys/bus/event_source/devices/uprobe/format/ref_ctr_offset";
const SEMAPHORE_BITS: &str = "config:32-63";

/// Where the arguments of probes are: a map that the kernel side reads, and the visit that each element is of.
pub(super) struct OperandMap {
    map: Array<MapData, Pod<Operands>>,
    visits: Vec<Option<u64>>,
}

/// Takes the map out of the loaded object.
pub(super) fn operands(ebpf: &mut Ebpf) -> Result<Arc<Mutex<OperandMap>>, LoadError> {
    let map: Array<MapData, Pod<Operands>> = Array::try_from(take(ebpf, "DECLARED_OPERANDS")?)
        .map_err(|error| refused("map DECLARED_OPERANDS", &chain(&error)))?;
    let visits = vec![None; map.len() as usize];
    Ok(Arc::new(Mutex::new(OperandMap { map, visits })))
}

impl OperandMap {
    /// The number of an element that says where these arguments are.
    fn put(&mut self, visit: u64, operands: &Operands) -> Result<u64, String> {
        let free = self.visits.iter().position(Option::is_none);
        let number = free.ok_or_else(|| format!("{} probes with arguments are in use", self.visits.len()))?;
        self.map.set(number as u32, Pod(*operands), 0).map_err(|error| chain(&error))?;
        if let Some(place) = self.visits.get_mut(number) {
            *place = Some(visit);
        }
        Ok(number as u64)
    }

    /// Frees the elements of a visit, whose probes are gone.
    pub(super) fn free(&mut self, visit: u64) {
        for place in &mut self.visits {
            place.take_if(|of| *of == visit);
        }
    }
}

impl Prober {
    /// Attaches to a USDT probe of a file in every process that has it mapped, now or later. The program reads `cookie`;
    /// `visit` is the number under which [`Self::detach_file`] finds it.
    pub fn attach_place(&mut self, visit: u64, file: &Path, place: &ProbePlace, cookie: u64) -> Result<(), String> {
        let (probe, cookie) = match &place.operands {
            Some(operands) => {
                let number = self.operands.lock().unwrap_or_else(PoisonError::into_inner).put(visit, operands)?;
                (UserProbe::DeclaredArguments, cookie | number << cookie::OPERANDS)
            }
            None => (UserProbe::DeclaredPlace, cookie),
        };
        let Some(semaphore) = place.semaphore else {
            return self.attach_file(probe, visit, (file, place.at), cookie);
        };
        let done = self.attach_with_semaphore(probe, visit, file, (place.at, semaphore), cookie);
        self.count(done.is_ok());
        done
    }

    fn attach_with_semaphore(
        &mut self,
        probe: UserProbe,
        visit: u64,
        file: &Path,
        place: (u64, u64),
        cookie: u64,
    ) -> Result<(), String> {
        if self.attachments.users() >= PLACES {
            return Err(format!("{PLACES} places in programs are watched already"));
        }
        let program = self.programs.get(&probe).ok_or("its program was refused when it was loaded")?;
        let link = attach(program, file, place, cookie)?;
        self.attachments.user((EVERY_PROCESS, visit), link);
        Ok(())
    }
}

/// Dropping both detaches: the link first.
fn attach(
    program: &UProbe,
    file: &Path,
    (offset, semaphore): (u64, u64),
    cookie: u64,
) -> Result<(OwnedFd, OwnedFd), String> {
    let kind = fs::read_to_string(TYPE).ok().and_then(|text| text.trim().parse().ok());
    let kind = kind.ok_or("the kernel has no uprobes (CONFIG_UPROBE_EVENTS)")?;
    if fs::read_to_string(SEMAPHORE).map_or(true, |bits| bits.trim() != SEMAPHORE_BITS) {
        return Err("the probe has a semaphore, which this kernel cannot raise".into());
    }
    let path = CString::new(file.as_os_str().as_bytes()).map_err(|_| "its path has a zero byte")?;
    let attr = EventAttr {
        kind,
        size: size_of::<EventAttr>() as u32,
        config: semaphore << 32,
        config1: path.as_ptr() as u64,
        config2: offset,
        ..EventAttr::default()
    };
    // SAFETY: `attr` says its own size, and its path lives until the call is over. All processes; for a uprobe the CPU says
    // nothing.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(format!("perf_event_open: {}", io::Error::last_os_error()));
    }
    // SAFETY: just opened and owned by nothing else.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let program = program.fd().map_err(|error| chain(&error))?;
    let link = sampler::link(program.as_fd(), &event, cookie).map_err(|error| format!("BPF_LINK_CREATE: {error}"))?;
    sampler::enable(&event).map_err(|error| format!("the probe could not be enabled: {error}"))?;
    Ok((link, event))
}
