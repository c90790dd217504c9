//! The agent's own process: usage, priority, immediate exit.

use std::fs::{self, File};
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use std::time::Duration;

/// Exit code after the programs were detached by the watchdog or by a bug (a panic).
pub const EXIT_DETACHED: u8 = 3;
/// How long writing the reason may take before the process exits without it.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The same for the summary.
const LAST_TABLE: Duration = Duration::from_millis(250);

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelfMemory {
    /// Resident, bytes: what `ps` shows.
    pub resident: u64,
    /// Resident without pages of mapped files, bytes: the kernel reclaims those at will. Symbol tables are mapped
    /// files; hundreds of megabytes of them may come and go within a second at no cost.
    pub own: u64,
}

/// Memory of this process; 0 where it cannot be read.
pub fn memory() -> SelfMemory {
    parse_memory(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn parse_memory(status: &str) -> SelfMemory {
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")).and_then(|text| text.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    SelfMemory { resident: of("VmRSS"), own: of("RssAnon") + of("RssShmem") }
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU of all threads of this process, nanoseconds.
pub fn cpu() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU of the calling thread, nanoseconds.
pub fn thread_cpu() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// `CLOCK_MONOTONIC`, nanoseconds.
pub(super) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Id of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// State (`R`, `S`, `D`, …) and CPU (nanoseconds) of a thread of this process.
pub(super) fn thread(tid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The state follows the name, which may contain anything.
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    let scheduled = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    Some((state, scheduled.split_ascii_whitespace().next()?.parse().ok()?))
}

/// Sets the nice value of the calling thread and of those it starts from now on; returns the previous value.
pub fn set_nice(nice: i32) -> Result<i32, String> {
    // SAFETY: a plain system call; 0 is the calling thread. -1 is also a value; an error cannot be distinguished and need not be.
    let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    if before == nice {
        return Ok(before);
    }
    // SAFETY: as above.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } != 0 {
        return Err(format!("nice {nice}: {}", std::io::Error::last_os_error()));
    }
    Ok(before)
}

/// Sets the nice value of the session if the kernel first shares CPU among sessions (autogroup) and the session is the
/// agent's own, as a service's is; never touches other sessions.
pub fn set_session_nice(nice: i32) {
    // SAFETY: takes nothing.
    if unsafe { libc::getsid(0) as u32 } == std::process::id() {
        // Without autogroups there is nothing to do.
        let _ = fs::write("/proc/self/autogroup", nice.to_string());
    }
}

/// Sets how soon the kernel kills this process when memory is short: -1000 (never) to 1000 (first).
pub fn set_oom_score_adj(score: i32) -> Result<(), String> {
    fs::write("/proc/self/oom_score_adj", score.to_string()).map_err(|error| format!("oom_score_adj {score}: {error}"))
}

/// The current `oom_score_adj`.
pub fn oom_score_adj() -> Option<i32> {
    fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()
}

/// Makes the allocator return large blocks to the system when they are freed. By default it raises its threshold with
/// the largest block it ever saw, keeps blocks up to 32 MiB, and has one arena per thread. Call before starting
/// threads.
pub fn keep_little_freed() {
    #[cfg(target_env = "gnu")]
    {
        const BLOCK: libc::c_int = 256 * 1024;
        const STORES: libc::c_int = 2;
        // SAFETY: plain settings of the allocator; one that is refused stays as it was.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, BLOCK);
            libc::mallopt(libc::M_ARENA_MAX, STORES);
            // Merges freed blocks at once instead of all together later, while a thread waits: that was a fifth of the
            // cost of the relay's thread.
            libc::mallopt(libc::M_MXFAST, 0);
        }
    }
}

/// Returns freed memory to the system, which the allocator would keep.
pub fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no argument but the amount to keep.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back the pages of the agent's own file that it has used so far: what it still uses comes back from the page cache, what it used
/// to start does not.
pub fn release_file() {
    // SAFETY: the function keeps nothing of what it is passed.
    unsafe { libc::dl_iterate_phdr(Some(release_segments), std::ptr::null_mut()) };
}

/// Of the first object, which is the program. Stops there.
extern "C" fn release_segments(info: *mut libc::dl_phdr_info, _: libc::size_t, _: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the caller passes a valid value, with as many headers as it says.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    // SAFETY: takes a constant and cannot fail for it.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    // Of what nobody can write there is no other copy than the file's. Whole pages only: the next segment may begin in the last.
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let begin = (base + header.p_vaddr).next_multiple_of(page);
        let end = (base + header.p_vaddr + header.p_memsz) / page * page;
        if begin < end {
            // SAFETY: pages of a mapping of a file that were never written to read the same afterwards.
            unsafe { libc::madvise(begin as *mut libc::c_void, (end - begin) as usize, libc::MADV_DONTNEED) };
        }
    }
    1
}

/// Ends the process now, whatever its threads are stuck in. Writes `why` to stderr first if that takes less than a
/// second: neither a pipe without a reader nor a held lock may keep the process alive.
pub fn end(why: &str, code: u8) -> ! {
    say(why);
    end_now(code)
}

/// Ends the process now without a message.
pub(super) fn end_now(code: u8) -> ! {
    // SAFETY: ends the process; nothing runs after it.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Writes a line to stderr; waits for it a second at most.
pub(super) fn say(line: &str) {
    write(2, format!("tracer: {line}\n"), LAST_WORDS);
}

/// Writes `text` to stdout, at the end of the agent; waits for it a moment: a pipe without a reader must not keep the agent.
pub fn print(text: String) {
    write(1, text, LAST_TABLE);
}

/// Writes to one of the standard outputs from a thread of its own, and waits for that so long.
fn write(descriptor: i32, text: String, patience: Duration) {
    let (done, wait) = std::sync::mpsc::sync_channel(1);
    let spawned = std::thread::Builder::new().name("tracer-words".into()).spawn(move || {
        // SAFETY: the descriptor is not closed by this: the file is never dropped. Not `std::io::stderr`: another thread
        // may hold its lock for ever.
        let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        let _ = out.write_all(text.as_bytes());
        let _ = done.send(());
    });
    if spawned.is_ok() {
        let _ = wait.recv_timeout(patience);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_file_are_given_back_and_come_again() {
        let file_pages = || {
            let memory = memory();
            memory.resident - memory.own
        };
        // Some of what this program says, and all of its code: read once.
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::env::current_exe().unwrap();
        let code = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(own.to_str().unwrap())).unwrap();
        let (begin, end) = code.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|number| usize::from_str_radix(number, 16).unwrap());
        let sum = || {
            // SAFETY: a readable mapping that stays.
            let bytes = unsafe { std::slice::from_raw_parts(begin as *const u8, end - begin) };
            bytes.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte))
        };
        let before = (sum(), file_pages());
        release_file();
        let released = file_pages();
        assert!(released + (end - begin) as u64 / 2 < before.1, "{released} of {}", before.1);
        assert_eq!(sum(), before.0);
    }

    #[test]
    fn this_process_uses_something() {
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let (before, cpu_before) = (memory(), cpu());
        assert!(before.own > 32 << 20 && before.resident > before.own, "{before:?}");
        let text = "Name:\tVmRSS: 5 kB\nVmRSS:\t 300 kB\nRssAnon:\t 100 kB\nRssFile:\t 150 kB\nRssShmem:\t 50 kB\n";
        assert_eq!(parse_memory(text), SelfMemory { resident: 300 << 10, own: 150 << 10 });
        assert_eq!(parse_memory("VmRSS: kB\nRssAnon:"), SelfMemory::default());
        let mut sum = 0u64;
        while cpu() < cpu_before + 1_000_000 {
            sum = std::hint::black_box(sum + u64::from(block[sum as usize % block.len()]));
        }
        let (state, used) = thread(thread_id()).unwrap();
        assert!(state == 'R' && used > 0, "{state} {used}");
        assert_eq!(thread(1 << 30), None);
    }
}
