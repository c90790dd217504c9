//! Retries program loads that a signal interrupted.

use aya::programs::ProgramError;

/// Most attempts to load a program.
const TIMES: usize = 5;

/// Loads a program, retrying if a signal interrupts the verifier (`EAGAIN`): a process that is stopped and continued,
/// or profiled, gets such signals.
pub(super) fn load(load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    repeat(load, |error| match error {
        ProgramError::LoadError { io_error, .. } => io_error.raw_os_error() == Some(libc::EAGAIN),
        _ => false,
    })
}

/// Repeats `work` while its error says that it was interrupted.
pub(super) fn repeat<T, E>(mut work: impl FnMut() -> Result<T, E>, interrupted: impl Fn(&E) -> bool) -> Result<T, E> {
    let mut done = work();
    for _ in 1..TIMES {
        if !done.as_ref().is_err_and(&interrupted) {
            break;
        }
        done = work();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether work that fails `failures` times succeeds in the end, and how many attempts it took.
    fn tried(error: &'static str, failures: usize) -> (bool, usize) {
        let mut times = 0;
        let work = || {
            times += 1;
            if times > failures { Ok(()) } else { Err(error) }
        };
        let done = repeat(work, |error| *error == "interrupted");
        (done.is_ok(), times)
    }

    #[test]
    fn what_a_signal_interrupted_is_tried_again() {
        assert_eq!(tried("interrupted", 0), (true, 1));
        assert_eq!(tried("interrupted", 3), (true, 4));
        assert_eq!(tried("interrupted", 100), (false, TIMES));
        assert_eq!(tried("refused", 1), (false, 1));
    }
}
