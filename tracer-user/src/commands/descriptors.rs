//! Limits of file descriptors: raises the limit, and never gives the last descriptor to a console connection.

use super::Failure;

/// Maximum number of connections to the console.
const CONNECTIONS: usize = 64;
/// Minimum number of connections worth serving.
const FEWEST: usize = 4;
/// Reserved for the agent itself: files of `/proc`, programs whose symbols it reads, logs, and the probes of TLS libraries
/// and runtimes that it finds after the start (some 70 where OpenSSL, GnuTLS and Node.js are).
const OWN: usize = 128;

/// Raises the limit to what the system allows; returns how many connections to the console fit beside the open
/// descriptors and those the agent itself needs.
pub(super) fn connections() -> Result<usize, Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls that fill and read the structure they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                limit = raised;
            }
        }
    }
    let open = std::fs::read_dir("/proc/self/fd").map_or(usize::MAX, Iterator::count);
    fitting(limit.rlim_cur as usize, open).ok_or_else(|| {
        Failure::Running(format!(
            "{} file descriptors are allowed (`ulimit -n`), {open} are open, and at least {} more are needed: raise the limit",
            limit.rlim_cur,
            OWN + FEWEST
        ))
    })
}

/// Connections that fit under `limit` when `open` descriptors are open.
fn fitting(limit: usize, open: usize) -> Option<usize> {
    let free = limit.checked_sub(open)?.checked_sub(OWN)?;
    (free >= FEWEST).then_some(free.min(CONNECTIONS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_comes_first() {
        for (limit, open, fits) in [
            (1024, 60, Some(CONNECTIONS)),
            (60 + OWN + 36, 60, Some(36)),
            (60 + OWN + FEWEST, 60, Some(FEWEST)),
            (60 + OWN + FEWEST - 1, 60, None),
            (50, 60, None),
            (1024, usize::MAX, None),
        ] {
            assert_eq!(fitting(limit, open), fits, "{limit} {open}");
        }
    }
}
