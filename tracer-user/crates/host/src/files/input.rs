//! Reading: regular files only, up to a limit. A FIFO would wait for a writer, and a device may have no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{own_user, trust};

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC).open(path)
}

fn read_open(file: File, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    // Files of /proc say they are empty, and a file may grow: the length is no bound.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_large(most));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "expected text in UTF-8"))
}

fn too_large(most: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("expected a file of at most {} KiB", most >> 10))
}

/// The text of a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<String> {
    let file = open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("expected a regular file"));
    }
    if about.len() > most {
        return Err(too_large(most));
    }
    read_open(file, most)
}

/// The same of a file that only its owner can read, and whose owner is root or the agent's user.
pub fn read_secret(path: &Path, most: u64) -> io::Result<String> {
    let file = open(path)?;
    // Of what was opened: what stands under the path may be another file by now.
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("expected a regular file"));
    }
    if about.uid() != own_user() && about.uid() != 0 {
        return Err(io::Error::other("expected a file of root or of the user the agent runs as"));
    }
    if about.mode() & 0o077 != 0 {
        let mode = about.mode() & 0o777;
        return Err(io::Error::other(format!("mode {mode:o}: other users could read the key; chmod 600")));
    }
    read_open(file, most)
}

/// Checks that only root can change a file: it is root's, nobody else can write to it, and nobody else can put another
/// one in its place.
pub fn check_roots(path: &Path) -> io::Result<()> {
    let whole = std::path::absolute(path)?;
    trust::check(whole.parent().unwrap_or(Path::new("/")))?;
    let about = open(&whole)?.metadata()?;
    if about.uid() != 0 {
        return Err(io::Error::other(format!("it is user {}'s and not root's", about.uid())));
    }
    if about.mode() & 0o022 != 0 {
        let mode = about.mode() & 0o7777;
        return Err(io::Error::other(format!("mode {mode:o}: other users could change it; chmod 644")));
    }
    Ok(())
}

/// Opens a recording: a regular file, or a pipe somebody writes to. Its reader bounds what it takes.
pub fn open_recording(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Err(io::Error::other("expected a regular file or a pipe"));
    }
    // A pipe without a writer was at its end when it was opened; one with a writer may be slow.
    // SAFETY: a descriptor this function owns.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    fn refused(path: &Path) -> String {
        let begin = Instant::now();
        let error = read(path, 1 << 20).unwrap_err().to_string();
        assert!(begin.elapsed() < Duration::from_secs(2), "{path:?} took {:?}", begin.elapsed());
        error
    }

    #[test]
    fn what_is_no_small_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for device in ["/dev/zero", "/dev/null", "/dev"] {
            assert!(refused(Path::new(device)).contains("regular file"), "{device}");
        }
        let fifo = dir.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: a zero-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(refused(&fifo).contains("regular file"));
        let huge = dir.path().join("huge");
        File::create(&huge).unwrap().set_len(1 << 40).unwrap();
        assert!(refused(&huge).contains("at most 1024 KiB"));
        let bytes = dir.path().join("bytes");
        std::fs::write(&bytes, [0xff, 0xfe]).unwrap();
        assert!(refused(&bytes).contains("UTF-8"));
        // What says nothing of its length is read, up to the limit; links to files are followed.
        assert!(read(Path::new("/proc/self/status"), 1 << 20).unwrap().contains("Name:"));
        assert!(read(Path::new("/proc/self/status"), 16).is_err());
        let link = dir.path().join("link");
        std::fs::write(dir.path().join("text"), "text").unwrap();
        std::os::unix::fs::symlink("text", &link).unwrap();
        assert_eq!(read(&link, 4).unwrap(), "text");
        assert!(read(&link, 3).is_err());
    }

    #[test]
    fn secrets_are_their_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "key").unwrap();
        for (mode, fits) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o602, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path, 10).is_ok(), fits, "{mode:o}");
        }
    }

    #[test]
    fn only_roots_files_are_roots() {
        if own_user() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, "").unwrap();
        for (mode, fits) in [(0o644, true), (0o600, true), (0o664, false), (0o646, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check_roots(&path).is_ok(), fits, "{mode:o}");
        }
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(check_roots(&path).unwrap_err().to_string().contains("user 65534's"));
        assert!(check_roots(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn a_recording_may_come_through_a_pipe() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let mut file = open_recording(Path::new(&path)).unwrap();
        let slow = std::thread::spawn(move || io::Write::write_all(&mut writer, b"some"));
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"some");
        slow.join().unwrap().unwrap();
        assert!(open_recording(Path::new("/dev/zero")).is_err());
    }
}
