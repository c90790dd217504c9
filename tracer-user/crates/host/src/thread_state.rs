//! What a thread does at this moment, from `/proc`.

use std::fs;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It runs, or waits for a CPU.
    Running,
    /// It waits for a lock, a condition or another thread (`futex`).
    Lock,
    /// It waits for data from a socket or for room in it.
    Socket,
    /// It waits for a pipe, a terminal, or another descriptor that is no socket and no file.
    Pipe,
    /// It waits for a file or a disk.
    Disk,
    /// It waits for any of several descriptors: an event loop, or a client library that polls.
    Poll,
    /// It sleeps for a time that it chose.
    Sleep,
    /// It waits for a child process.
    Child,
    /// It is stopped by a signal or a debugger.
    Stopped,
    /// It waits for something else.
    Other,
}

impl Activity {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Lock => "lock",
            Self::Socket => "socket",
            Self::Pipe => "pipe",
            Self::Disk => "disk",
            Self::Poll => "poll",
            Self::Sleep => "sleep",
            Self::Child => "child",
            Self::Stopped => "stopped",
            Self::Other => "other",
        }
    }
}

/// The state of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Its name.
    pub name: String,
    /// What it does.
    pub activity: Activity,
    /// The kernel's function in which it sleeps; empty while it runs, or if the kernel does not say.
    pub kernel_function: String,
}

/// Reads the state of a thread; `None` if it is gone or may not be read.
pub fn read(pid: u32, tid: u32) -> Option<ThreadState> {
    let task = format!("/proc/{pid}/task/{tid}");
    let (name, state) = name_and_state(&fs::read_to_string(format!("{task}/stat")).ok()?)?;
    let text = |file: &str| fs::read_to_string(format!("{task}/{file}")).unwrap_or_default();
    let kernel_function = Some(text("wchan")).filter(|function| function != "0").unwrap_or_default();
    let activity = match state {
        'R' => Activity::Running,
        'T' | 't' => Activity::Stopped,
        'D' => Activity::Disk,
        _ => match system_call(&text("syscall")) {
            Some((number, descriptor)) => waits_in(number, || {
                fs::read_link(format!("/proc/{pid}/fd/{descriptor}"))
                    .map(|link| link.to_string_lossy().into_owned())
                    .unwrap_or_default()
            }),
            None => Activity::Other,
        },
    };
    Some(ThreadState { name, activity, kernel_function })
}

/// The name and the state's letter in a line of `/proc/PID/stat`. The name may hold parentheses and blanks.
fn name_and_state(stat: &str) -> Option<(String, char)> {
    let (_, rest) = stat.split_once('(')?;
    let (name, rest) = rest.rsplit_once(") ")?;
    Some((name.to_owned(), rest.chars().next()?))
}

/// The number of the system call and its first argument, from `/proc/PID/syscall`: `232 0x5 0x7ffd... ...`; `running` and `-1`
/// have none.
fn system_call(text: &str) -> Option<(i64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let first = words.next()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(first, 16).ok()?))
}

/// What a thread waits for that sleeps in this system call; `file` is what its first argument names as a descriptor.
fn waits_in(number: i64, file: impl FnOnce() -> String) -> Activity {
    let of_descriptor = |link: String| match link {
        link if link.starts_with("socket:") => Activity::Socket,
        link if link.starts_with('/') && !link.starts_with("/dev/") => Activity::Disk,
        _ => Activity::Pipe,
    };
    match number {
        libc::SYS_futex => Activity::Lock,
        libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_connect
        | libc::SYS_accept
        | libc::SYS_accept4 => Activity::Socket,
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev => of_descriptor(file()),
        libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_io_getevents => Activity::Disk,
        libc::SYS_epoll_pwait | libc::SYS_ppoll | libc::SYS_pselect6 => Activity::Poll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait | libc::SYS_poll | libc::SYS_select => Activity::Poll,
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Activity::Sleep,
        libc::SYS_wait4 | libc::SYS_waitid => Activity::Child,
        _ => Activity::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn lines_of_proc_are_read_and_others_are_not() {
        assert_eq!(name_and_state("7 (a) b) S 1 2"), Some(("a) b".into(), 'S')));
        assert_eq!(name_and_state("7 (cut"), None);
        assert_eq!(system_call("202 0x7f00 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f01\n"), Some((202, 0x7f00)));
        for none in ["running\n", "-1 0x7ffd 0x7f01\n", "", "202", "x 0x1"] {
            assert_eq!(system_call(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_descriptor_says_what_is_waited_for() {
        let read = |link: &str| waits_in(libc::SYS_read, || link.to_owned());
        assert_eq!(read("socket:[77]"), Activity::Socket);
        assert_eq!(read("pipe:[77]"), Activity::Pipe);
        assert_eq!(read("/var/lib/data"), Activity::Disk);
        assert_eq!(read("/dev/pts/0"), Activity::Pipe);
    }

    /// What a thread of this process is seen to do, once it is what it is expected to.
    fn seen(tid: u32, expected: Activity) -> Option<ThreadState> {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let state = read(std::process::id(), tid);
            if state.as_ref().is_none_or(|state| state.activity == expected) || Instant::now() > end {
                return state;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn threads_of_this_process_are_seen_to_wait() {
        let (stop, stopped) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let waits = std::thread::Builder::new().name("waits for it".into());
        let waits = waits
            .spawn(move || {
                // SAFETY: gettid takes nothing and cannot fail.
                let _ = tell.send(unsafe { libc::gettid() } as u32);
                let _ = stopped.recv();
            })
            .unwrap();
        let state = seen(told.recv().unwrap(), Activity::Lock).unwrap();
        assert_eq!((state.name.as_str(), state.activity), ("waits for it", Activity::Lock));
        drop(stop);
        waits.join().unwrap();
        // SAFETY: as above.
        let own = unsafe { libc::gettid() } as u32;
        assert_eq!(read(std::process::id(), own).unwrap().activity, Activity::Running);
        assert_eq!(read(std::process::id(), u32::MAX), None);
    }
}
