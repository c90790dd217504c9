//! A file that stays readable when its path and the process that it was found in are gone.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use tracer_runtimes::tls::Candidate;

/// A file with the content it has now: device, inode, size, and when it last changed (seconds, nanoseconds).
pub(super) type Content = ((u64, u64), u64, (i64, i64));

/// A file that is read and gets probes even if the process it was found in has ended: that may run for a moment only.
pub(super) struct Held {
    /// Opened by [`Held::file`].
    pub(super) candidate: Candidate,
    pub(super) file: File,
}

impl Held {
    /// Opens it, if it is a file.
    pub(super) fn of(candidate: &Candidate) -> Option<Self> {
        // Do not block if the path has become a FIFO or device.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&candidate.open_by).ok()?;
        file.metadata().ok().filter(fs::Metadata::is_file)?;
        let open_by = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Some(Self { candidate: Candidate { open_by, ..candidate.clone() }, file })
    }

    /// What is in it now.
    pub(super) fn content(&self) -> Option<Content> {
        let meta = self.file.metadata().ok()?;
        Some(((meta.dev(), meta.ino()), meta.size(), (meta.ctime(), meta.ctime_nsec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tracer_common::runtime::UserProbe;
    use tracer_runtimes::file_identity::FileIdentity;
    use tracer_runtimes::tls::{Libraries, Library, inspect};

    #[test]
    fn a_held_file_is_read_after_its_path_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        fs::write(&path, "code").expect("a file");
        let candidate =
            Candidate { library: None, path: "program".to_owned(), open_by: path.clone(), lies_at: path.clone() };
        let held = Held::of(&candidate).expect("it is there");
        let numbers = |held: &Held| held.content().map(|content| content.0);
        let before = (FileIdentity::of(&path), numbers(&held));
        fs::remove_file(&path).expect("it is there");
        assert_eq!(fs::read_to_string(&held.candidate.open_by).expect("still readable"), "code");
        assert_eq!((FileIdentity::of(&held.candidate.open_by), numbers(&held)), before);
        assert!(Held::of(&candidate).is_none());
        assert!(Held::of(&Candidate { open_by: dir.path().into(), ..candidate }).is_none());
    }

    /// The code of libssl shows its places together with that of the libcrypto beside it.
    #[test]
    fn a_held_library_shows_what_its_file_shows() {
        let path = Path::new("/usr/lib/x86_64-linux-gnu/libssl.so.3");
        if !path.exists() {
            println!("SKIPPED commands::decrypting: no {} here", path.display());
            return;
        }
        let library = Some(Library::OpenSsl);
        let candidate =
            Candidate { library, path: "libssl.so.3".to_owned(), open_by: path.into(), lies_at: path.into() };
        let held = Held::of(&candidate).expect("it is there");
        let (_, of_file) = inspect(&candidate, &Libraries::default()).expect("OpenSSL");
        let (_, of_held) = inspect(&held.candidate, &Libraries::default()).expect("OpenSSL");
        assert_eq!(of_held, of_file);
        assert!(of_held.sites.iter().any(|site| site.probe == UserProbe::TlsCopy), "{of_held:?}");
    }
}
