//! The program that gives packets of some connections another priority: loaded only if a service class asks for it,
//! attached to the cgroup root.

use std::fs::File;
use std::time::Instant;

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType};
use tracer_common::limits::SEND_PRIORITIES_MAX;
use tracer_common::policy::SendPriority;

use super::attachments::Attachments;
use super::inband;
use super::load_retry;
use super::loader::{Attached, Built, Pod, When, chain};
use super::loading::built_of;

/// Whether packets can get another priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendPriorityMode {
    /// The program is not loaded.
    #[default]
    Off,
    /// Load it without attaching it, to see whether this kernel accepts it.
    Tried,
    /// It is attached.
    On,
}

/// The program.
pub const PROGRAM: &str = "send_priority";
/// Its map.
pub(super) const MAP: &str = "SEND_PRIORITIES";
const HOOK: &str = "cgroup skb egress";
const WITHOUT: &str = "network priorities of service classes are not enforced";

/// Priorities by connection.
#[derive(Debug)]
pub struct SendPriorities {
    map: HashMap<MapData, u64, Pod<SendPriority>>,
}

impl SendPriorities {
    /// Sends what the socket `cookie` sends with `priority`, until `until` of `CLOCK_MONOTONIC`. Whether it could.
    pub fn set(&mut self, cookie: u64, priority: u32, until: u64) -> bool {
        self.map.insert(cookie, Pod(SendPriority { until, priority, reserved: 0 }), 0).is_ok()
    }

    /// Sends what the socket sends with its own priority again.
    pub fn clear(&mut self, cookie: u64) {
        // Fails if it is not there, which is fine.
        let _ = self.map.remove(&cookie);
    }
}

/// Entries of the map.
pub(super) fn entries(mode: SendPriorityMode) -> u32 {
    if mode == SendPriorityMode::On { SEND_PRIORITIES_MAX } else { 1 }
}

/// Loads the program, and attaches it if asked for; a missing one says why.
pub(super) fn load(
    ebpf: &mut Ebpf,
    mode: SendPriorityMode,
    attachments: &Attachments,
) -> (Option<Attached>, Option<SendPriorities>) {
    if mode == SendPriorityMode::Off {
        return (None, None);
    }
    let mut made = Built::default();
    let done = program(ebpf, mode, attachments, &mut made);
    let (missing, priorities) = match done {
        Ok(priorities) => (None, priorities),
        Err(why) => (Some(why), None),
    };
    let attached = Attached { program: PROGRAM, hook: HOOK, when: When::Asked, built: made, missing, without: WITHOUT };
    (Some(attached), priorities)
}

fn program(
    ebpf: &mut Ebpf,
    mode: SendPriorityMode,
    attachments: &Attachments,
    made: &mut Built,
) -> Result<Option<SendPriorities>, String> {
    let program: Option<&mut CgroupSkb> = ebpf.program_mut(PROGRAM).and_then(|program| program.try_into().ok());
    let program = program.ok_or("the BPF object has no such program")?;
    let begin = Instant::now();
    load_retry::load(|| program.load()).map_err(|error| chain(&error))?;
    *made = built_of(program.fd(), begin.elapsed());
    if mode == SendPriorityMode::Tried {
        return Ok(None);
    }
    let group = File::open(inband::root()?).map_err(|error| format!("the control groups' root: {error}"))?;
    // As a link, which coexists with other programs and ends with this process; flags only matter without links.
    let link = program
        .attach(group, CgroupSkbAttachType::Egress, CgroupAttachMode::Single)
        .and_then(|id| program.take_link(id))
        .map_err(|error| chain(&error))?;
    let map = ebpf.take_map(MAP).and_then(|map| map.try_into().ok()).ok_or("the BPF object has no such map")?;
    attachments.link(link);
    Ok(Some(SendPriorities { map }))
}
