//! Attaches the programs of probes to places in files: by `uprobe_multi` links where the kernel has them, else by events of
//! perf. A link of either kind is detached by dropping it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::bpf_call::{self, bpf_open};
use super::sampler::{self, EventAttr};
use super::user_programs::{UPROBE_MULTI, UserProgram, UserPrograms};

// include/uapi/linux/perf_event.h
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// Where the kernel's type of a uprobe event is, and its bits of the configuration for returns and the semaphore.
const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
const SEMAPHORE: &str = "/sys/bus/event_source/devices/uprobe/format/ref_ctr_offset";
const SEMAPHORE_BITS: &str = "config:32-63";
const RETURNS: u64 = 1;
/// `BPF_F_UPROBE_MULTI_RETURN`.
const MULTI_RETURN: u32 = 1;
/// Most threads that wait for the kernel to detach.
const DETACHERS: usize = 32;

/// Where a probe goes.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The file, by a path that leads the agent to it.
    pub(super) file: &'a Path,
    /// Where in it.
    pub(super) offset: u64,
    /// Where in it the probe's semaphore is: a counter that the kernel raises in every process that has the file mapped, and
    /// lowers when the probe goes.
    pub(super) semaphore: Option<u64>,
    /// In this process alone.
    pub(super) process: Option<u32>,
    /// What the program reads as its cookie.
    pub(super) cookie: u64,
}

/// An attached probe; dropped, it is detached, which waits until no thread is inside it. Links go before their events.
pub(super) struct UserLink {
    _link: OwnedFd,
    _event: Option<OwnedFd>,
}

impl UserPrograms {
    /// Attaches a program. The error says why it failed.
    pub(super) fn attach(&self, program: &str, place: Place<'_>) -> Result<UserLink, String> {
        let program = self.get(program).ok_or("its program was refused when it was loaded")?;
        if self.multi { by_multi(program, place, &[place.offset], &[place.cookie]) } else { by_event(program, place) }
    }

    /// Attaches a program at several places of a file, each an offset and a cookie, in every process: by one link where the kernel
    /// has such links, because it waits for each when it detaches.
    pub(super) fn attach_all(
        &self,
        program: &str,
        file: &Path,
        places: &[(u64, u64)],
    ) -> Result<Vec<UserLink>, String> {
        let program = self.get(program).ok_or("its program was refused when it was loaded")?;
        let at = |(offset, cookie)| Place { file, offset, semaphore: None, process: None, cookie };
        if self.multi {
            let (offsets, cookies): (Vec<u64>, Vec<u64>) = places.iter().copied().unzip();
            let first = places.first().copied().ok_or("no place")?;
            return by_multi(program, at(first), &offsets, &cookies).map(|link| vec![link]);
        }
        places.iter().map(|place| by_event(program, at(*place))).collect()
    }
}

/// `union bpf_attr` of `BPF_LINK_CREATE` for `uprobe_multi`.
#[repr(C)]
struct MultiAttr {
    program: u32,
    target: u32,
    kind: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    semaphores: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    process: u32,
    pad: u32,
}

/// At all of `offsets` of the place's file, with a cookie for each.
fn by_multi(program: &UserProgram, place: Place<'_>, offsets: &[u64], cookies: &[u64]) -> Result<UserLink, String> {
    debug_assert!(offsets.len() == cookies.len() && (place.semaphore.is_none() || offsets.len() == 1));
    let path = path(place.file)?;
    let semaphore = place.semaphore;
    let attr = MultiAttr {
        program: program.fd.as_raw_fd() as u32,
        target: 0,
        kind: UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        semaphores: semaphore.as_ref().map_or(0, |offset| &raw const *offset as u64),
        cookies: cookies.as_ptr() as u64,
        count: offsets.len().min(cookies.len()) as u32,
        multi_flags: if program.returns { MULTI_RETURN } else { 0 },
        process: place.process.unwrap_or_default(),
        pad: 0,
    };
    // SAFETY: as many offsets and cookies as `count` says, and a semaphore only for one; they and the path outlive the call.
    let link = unsafe { bpf_open(bpf_call::LINK_CREATE, &attr) };
    let link = link.map_err(|error| format!("the kernel attached no probe there: {error}"))?;
    Ok(UserLink { _link: link, _event: None })
}

fn by_event(program: &UserProgram, place: Place<'_>) -> Result<UserLink, String> {
    let kind = fs::read_to_string(TYPE).ok().and_then(|text| text.trim().parse().ok());
    let kind = kind.ok_or("the kernel has no uprobes (CONFIG_UPROBE_EVENTS)")?;
    if place.semaphore.is_some() && fs::read_to_string(SEMAPHORE).map_or(true, |bits| bits.trim() != SEMAPHORE_BITS) {
        return Err("the probe has a semaphore, which this kernel cannot raise".into());
    }
    let path = path(place.file)?;
    let attr = EventAttr {
        kind,
        size: size_of::<EventAttr>() as u32,
        config: place.semaphore.unwrap_or_default() << 32 | if program.returns { RETURNS } else { 0 },
        config1: path.as_ptr() as u64,
        config2: place.offset,
        ..EventAttr::default()
    };
    // Of all processes; the CPU says nothing for a uprobe, but one of the two must be given.
    let (process, cpu) = place.process.map_or((-1, 0), |process| (process as libc::pid_t, -1));
    // SAFETY: `attr` says its own size, and its path lives until the call is over.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, process, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(format!("perf_event_open: {}", io::Error::last_os_error()));
    }
    // SAFETY: just opened and owned by nothing else.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let link =
        sampler::link(program.fd.as_fd(), &event, place.cookie).map_err(|error| format!("BPF_LINK_CREATE: {error}"))?;
    sampler::enable(&event).map_err(|error| format!("the probe could not be enabled: {error}"))?;
    Ok(UserLink { _link: link, _event: Some(event) })
}

fn path(file: &Path) -> Result<CString, String> {
    CString::new(file.as_os_str().as_bytes()).map_err(|_| "its path has a zero byte".into())
}

/// Drops links side by side: for each the kernel waits some 50 milliseconds, and `uprobe_multi` links wait together.
pub(super) fn detach(links: Vec<Box<dyn Send>>) {
    let threads = links.len().min(DETACHERS);
    let links = std::sync::Mutex::new(links);
    let next = || links.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    let work = || {
        while let Some(link) = next() {
            drop(link);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without a thread the others do it.
            drop(std::thread::Builder::new().name("tracer-detach".into()).spawn_scoped(scope, work));
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attribute_is_laid_out_as_the_kernels() {
        // include/uapi/linux/bpf.h: union bpf_attr, link_create.uprobe_multi
        assert_eq!(std::mem::offset_of!(MultiAttr, path), 16);
        assert_eq!(std::mem::offset_of!(MultiAttr, count), 48);
        assert_eq!(std::mem::offset_of!(MultiAttr, process), 56);
    }

    #[test]
    fn all_links_are_dropped() {
        use std::sync::Arc;
        let held = Arc::new(());
        for number in [0, 1, 3, 100] {
            detach((0..number).map(|_| Box::new(Arc::clone(&held)) as Box<dyn Send>).collect());
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }
}
