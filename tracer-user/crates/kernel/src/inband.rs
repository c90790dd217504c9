//! The programs that carry contexts in band: loaded only if configured, attached to the cgroup root.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aya::Ebpf;
use aya::programs::{BtfTracePoint, CgroupAttachMode, FExit, SockOps};
use tracer_common::inband_context::THREADS_MAX;

use super::attachments::Attachments;
use super::header::Destination;
use super::load_retry;
use super::loader::{Attached, Built, When, chain};
use super::loading::built_of;

/// Mode of in-band contexts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InBand {
    /// Off: the programs are not loaded.
    #[default]
    Off,
    /// Load the programs without attaching them, to see whether this kernel accepts them.
    Tried,
    /// Requests carry contexts.
    On {
        /// Only in the agent's own network namespace.
        own_netns: bool,
        /// In TCP options.
        option: bool,
        /// In headers, of requests to these destinations.
        headers: Vec<Destination>,
    },
}

impl InBand {
    /// The mode the configuration asks for.
    pub fn wanted(option: bool, headers: &[Destination], own_netns: bool) -> Self {
        if !option && headers.is_empty() {
            return Self::Off;
        }
        Self::On { own_netns, option, headers: headers.to_vec() }
    }

    /// Size of the kernel-side table of threads and their requests' transactions.
    pub(super) fn threads(&self) -> u32 {
        if *self == Self::Off { 1 } else { THREADS_MAX }
    }

    /// Cookie of the only traced network namespace; 0 for all.
    pub(super) fn netns(&self) -> Result<u64, String> {
        if matches!(self, Self::On { own_netns: true, .. }) { netns_cookie() } else { Ok(0) }
    }

    /// Whether TCP segments carry contexts.
    fn option(&self) -> bool {
        matches!(self, Self::Tried | Self::On { option: true, .. })
    }

    /// Whether requests get headers.
    pub(super) fn header(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Tried => true,
            Self::On { headers, .. } => !headers.is_empty(),
        }
    }
}

/// The program that runs on TCP segments.
pub const PROGRAM: &str = "inband";
/// That program and its helpers.
pub const PROGRAMS: [&str; 7] =
    [PROGRAM, "inband_read", "inband_sent", "inband_read4", "inband_sent4", "inband_read6", "inband_sent6"];
const WITHOUT: &str = "no request carries a context in a TCP option";
const HOOK: &str = "cgroup sock_ops";

/// The helpers: on tracepoints if the kernel has them, else on function exits.
const TRACEPOINTS: [(&str, &str); 2] = [("inband_read", "sock_recv_length"), ("inband_sent", "sock_send_length")];
const EXITS: [(&str, &str); 4] = [
    ("inband_read4", "inet_recvmsg"),
    ("inband_sent4", "inet_sendmsg"),
    ("inband_read6", "inet6_recvmsg"),
    ("inband_sent6", "inet6_sendmsg"),
];

/// The identity of this network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
fn netns_cookie() -> Result<u64, String> {
    use std::os::fd::AsRawFd;
    /// `include/uapi/asm-generic/socket.h`; the same on every processor this runs on.
    const SO_NETNS_COOKIE: i32 = 71;
    let what = |error: std::io::Error| format!("the network namespace has no cookie: {error}");
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).map_err(what)?;
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if result == 0 && cookie != 0 { Ok(cookie) } else { Err(what(std::io::Error::last_os_error())) }
}

/// Mount point of the cgroup v2 root. The error says what to do.
pub fn root() -> Result<PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounted(&mounts)
        .map(Path::to_path_buf)
        .ok_or_else(|| "no control groups of version 2 are mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup".into())
}

/// The first mount of the whole cgroup v2 hierarchy in a `mountinfo` (proc(5)).
fn mounted(mounts: &str) -> Option<&Path> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(3);
        let (root, at) = (words.next()?, words.next()?);
        (root == "/" && kind.split(' ').next() == Some("cgroup2")).then(|| Path::new(at))
    })
}

/// Loads the programs, and attaches them if configured; missing ones say why. If one is missing, all are: they only
/// work together. `tracepoints` selects the helpers.
pub(super) fn load(
    ebpf: &mut Ebpf,
    btf: &aya::Btf,
    wanted: &InBand,
    tracepoints: bool,
    attachments: &Attachments,
) -> Vec<Attached> {
    if *wanted == InBand::Off {
        return Vec::new();
    }
    let entry = |program, hook, done: Result<Built, String>| {
        let (built, missing) = match done {
            Ok(built) => (built, None),
            Err(why) => (Built::default(), Some(why)),
        };
        Attached { program, hook, when: When::Asked, built, missing, without: WITHOUT }
    };
    let mut all = Vec::new();
    let places: &[_] = if tracepoints { &TRACEPOINTS } else { &EXITS };
    for (program, hook) in places {
        all.push(entry(program, hook, at_operations(ebpf, program, hook, btf, tracepoints)));
    }
    if wanted.option() {
        all.push(entry(PROGRAM, HOOK, at_segments(ebpf)));
    }
    if all.iter().any(|each| each.missing.is_some()) || *wanted == InBand::Tried {
        return all;
    }
    // Attach the helpers first: they detect contexts that are sent too late.
    let mut attach = |program: &str| -> Result<(), String> {
        let wrong = || format!("the BPF object's program {program} is of another kind");
        let found = ebpf.program_mut(program).ok_or_else(wrong)?;
        let words = |error| chain(&error);
        if program == PROGRAM {
            let group = File::open(root()?).map_err(|error| format!("the control groups' root: {error}"))?;
            let found: &mut SockOps = found.try_into().map_err(|_| wrong())?;
            // As a link, which coexists with other programs; flags only matter without links.
            let link = found.attach(group, CgroupAttachMode::Single).and_then(|id| found.take_link(id));
            attachments.link(link.map_err(words)?);
        } else if tracepoints {
            let found: &mut BtfTracePoint = found.try_into().map_err(|_| wrong())?;
            attachments.link(found.attach().and_then(|id| found.take_link(id)).map_err(words)?);
        } else {
            let found: &mut FExit = found.try_into().map_err(|_| wrong())?;
            attachments.link(found.attach().and_then(|id| found.take_link(id)).map_err(words)?);
        }
        Ok(())
    };
    for each in &mut all {
        each.missing = attach(each.program).err();
        if each.missing.is_some() {
            break;
        }
    }
    all
}

fn at_segments(ebpf: &mut Ebpf) -> Result<Built, String> {
    let program: Option<&mut SockOps> = ebpf.program_mut(PROGRAM).and_then(|program| program.try_into().ok());
    let program = program.ok_or("the BPF object has no such program")?;
    let begin = Instant::now();
    load_retry::load(|| program.load()).map_err(|error| chain(&error))?;
    Ok(built_of(program.fd(), begin.elapsed()))
}

fn at_operations(ebpf: &mut Ebpf, name: &str, hook: &str, btf: &aya::Btf, tracepoint: bool) -> Result<Built, String> {
    let program = ebpf.program_mut(name).ok_or("the BPF object has no such program")?;
    let wrong = "the BPF object's program is of another kind";
    let begin = Instant::now();
    if tracepoint {
        let program: &mut BtfTracePoint = program.try_into().map_err(|_| wrong)?;
        load_retry::load(|| program.load(hook, btf)).map_err(|error| chain(&error))?;
        Ok(built_of(program.fd(), begin.elapsed()))
    } else {
        let program: &mut FExit = program.try_into().map_err(|_| wrong)?;
        load_retry::load(|| program.load(hook, btf)).map_err(|error| chain(&error))?;
        Ok(built_of(program.fd(), begin.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_among_mounts() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      40 31 0:38 /a /mnt/part rw,relatime - cgroup2 cgroup2 rw\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(hybrid), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(mounted("garbage\n\n1 2 3 / - cgroup2 x\n"), None);
    }

    #[test]
    fn this_namespace_has_a_cookie() {
        assert!(netns_cookie().is_ok_and(|cookie| cookie != 0));
    }
}
