//! Writing: the agent writes only to files of its own user, whatever stands under a name, and opening one never blocks.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::{own_user, trust};

/// Mode of files and of directories that are made.
const FILE: u32 = 0o600;
const DIRECTORY: u32 = 0o700;
/// A link is not followed, a FIFO without a reader is an error, a terminal does not become the agent's.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
/// The device that takes everything.
const NULL: (u32, u32) = (1, 3);

/// What results are written to.
#[derive(Debug)]
pub enum Output {
    /// A regular file, empty.
    File(File),
    /// A pipe, a terminal or `/dev/null`: what went through cannot be taken back.
    Stream(File),
}

/// Opens `path` for results: a regular file of the agent's own user, made or emptied, mode 0600; a FIFO of that user that
/// somebody reads; `/dev/null`, a terminal; or `/dev/stdout` and `/dev/stderr`, which are the agent's own.
pub fn output(path: &Path) -> io::Result<Output> {
    if let Some(stream) = standard(path) {
        return Ok(Output::Stream(stream.try_clone_to_owned()?.into()));
    }
    trust::check(parent(path))?;
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return create_new(path).map(Output::File),
        Err(error) => return Err(error),
    };
    let kind = about.file_type();
    if kind.is_symlink() {
        return Err(io::Error::other("it is a symbolic link, which is not followed: name the file itself"));
    }
    if kind.is_char_device() && !is_harmless(&about) {
        return Err(io::Error::other("of devices only terminals and /dev/null are written to"));
    }
    if !kind.is_file() && !kind.is_fifo() && !kind.is_char_device() {
        return Err(io::Error::other("expected a regular file, a FIFO or /dev/null"));
    }
    let file =
        OpenOptions::new().write(true).custom_flags(FLAGS).open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => io::Error::other("nothing reads this FIFO: start its reader first"),
            _ => error,
        })?;
    // Of what was opened, from here on.
    let about = file.metadata()?;
    if about.file_type() != kind {
        return Err(io::Error::other("it changed while it was opened"));
    }
    if kind.is_char_device() {
        return Ok(Output::Stream(file));
    }
    if about.uid() != own_user() {
        let uid = about.uid();
        return Err(io::Error::other(format!("it is user {uid}'s and not the user's the agent runs as")));
    }
    if kind.is_fifo() {
        return Ok(Output::Stream(file));
    }
    if about.nlink() != 1 {
        return Err(io::Error::other(
            "it has several names (hard links): it may be a file that is meant for something else",
        ));
    }
    if about.len() > 0 {
        // A new file in its place: ext4 writes one that was emptied out when it is closed, which takes seconds at the end.
        match fs::remove_file(path) {
            Ok(()) => return create_new(path).map(Output::File),
            // A mount point, for one.
            Err(error) => log::debug!("{}: {error}: it is emptied", path.display()),
        }
        file.set_len(0)?;
    }
    file.set_permissions(fs::Permissions::from_mode(FILE))?;
    Ok(Output::File(file))
}

/// Makes a file that must not exist, for the agent's user alone.
pub fn create_new(path: &Path) -> io::Result<File> {
    trust::check(parent(path))?;
    // With O_EXCL a link is not followed either, wherever it leads.
    OpenOptions::new().write(true).create_new(true).mode(FILE).custom_flags(FLAGS).open(path)
}

/// Opens a file that an earlier run of the agent made by [`create_new`], for writing.
pub fn open_own(path: &Path) -> io::Result<File> {
    trust::check(parent(path))?;
    let file = OpenOptions::new().write(true).custom_flags(FLAGS).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != own_user() || about.nlink() != 1 {
        return Err(io::Error::other("expected a regular file of the user the agent runs as"));
    }
    Ok(file)
}

/// Makes a directory for the agent's user alone where it is missing; one that is there must be that user's, no link, and
/// closed to writing by others.
pub fn directory(path: &Path) -> io::Result<()> {
    let exists = |dir: &&Path| fs::symlink_metadata(dir).is_ok();
    let whole = std::path::absolute(path)?;
    let there = whole.ancestors().find(exists).unwrap_or(Path::new("/"));
    trust::check(if there == whole { parent(&whole) } else { there })?;
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(&whole).or_else(|error| {
        match fs::symlink_metadata(&whole) {
            // The check below reports it, in more words.
            Ok(about) if about.is_symlink() => Ok(()),
            _ => Err(error),
        }
    })?;
    let about = fs::symlink_metadata(&whole)?;
    if about.is_symlink() {
        return Err(io::Error::other("it is a symbolic link, which is not followed: name the directory itself"));
    }
    if about.uid() != own_user() {
        let uid = about.uid();
        return Err(io::Error::other(format!("it is user {uid}'s and not the user's the agent runs as")));
    }
    if about.mode() & 0o022 != 0 {
        let mode = about.mode() & 0o7777;
        return Err(io::Error::other(format!("mode {mode:o}: other users could put files there; chmod 700")));
    }
    Ok(())
}

/// The agent's own output or error output, by the names they have.
fn standard(path: &Path) -> Option<BorrowedFd<'static>> {
    let is = |name: &str, number: &str| {
        let names = [name.to_owned(), format!("/dev/fd/{number}"), format!("/proc/self/fd/{number}")];
        names.iter().any(|name| path == Path::new(name))
    };
    let (out, error) = (is("/dev/stdout", "1"), is("/dev/stderr", "2"));
    let number = if out { 1 } else { 2 };
    // SAFETY: the process never closes them.
    (out || error).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

/// Opening and writing do nothing but that.
fn is_harmless(about: &Metadata) -> bool {
    let device = (libc::major(about.rdev()), libc::minor(about.rdev()));
    // Consoles, serial lines, `/dev/tty` and pseudo-terminals.
    device == NULL || matches!(device.0, 4 | 5 | 136..=143)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    fn refused(path: &Path, expected: &str) {
        let error = output(path).expect_err("it is not written to").to_string();
        assert!(error.contains(expected), "{}: {error}", path.display());
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn fifo(path: &Path) {
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a zero-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn another_file_is_never_emptied_or_shown() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("precious"), "precious").unwrap();
        symlink("precious", at("link")).unwrap();
        symlink("missing", at("dangling")).unwrap();
        refused(&at("link"), "symbolic link");
        refused(&at("dangling"), "symbolic link");
        assert!(create_new(&at("dangling")).is_err() && !at("missing").exists());
        fs::hard_link(at("precious"), at("name")).unwrap();
        refused(&at("name"), "hard links");
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "precious");
        refused(dir.path(), "regular file");
        if own_user() == 0 {
            fs::write(at("theirs"), "theirs").unwrap();
            chown(at("theirs"), Some(65534), None).unwrap();
            refused(&at("theirs"), "user 65534's");
            fs::create_dir(at("home")).unwrap();
            chown(at("home"), Some(65534), None).unwrap();
            refused(&at("home/new"), "user 65534's");
            assert!(create_new(&at("home/new")).is_err());
            assert_eq!(fs::read_to_string(at("theirs")).unwrap(), "theirs");
        }
        // What there was of the agent's own is gone, and only its user reads what comes.
        fs::write(at("own"), "before").unwrap();
        fs::set_permissions(at("own"), fs::Permissions::from_mode(0o644)).unwrap();
        for name in ["own", "new"] {
            assert!(matches!(output(&at(name)).unwrap(), Output::File(_)));
            assert_eq!((mode(&at(name)), fs::metadata(at(name)).unwrap().len()), (0o600, 0), "{name}");
        }
    }

    #[test]
    fn opening_never_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        fifo(&path);
        refused(&path, "start its reader first");
        let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        assert!(matches!(output(&path).unwrap(), Output::Stream(_)));
        for name in ["/dev/null", "/dev/stdout", "/dev/stderr"] {
            assert!(matches!(output(Path::new(name)).unwrap(), Output::Stream(_)), "{name}");
        }
        refused(Path::new("/dev/zero"), "of devices only");
        if own_user() == 0 {
            chown(&path, Some(65534), None).unwrap();
            refused(&path, "user 65534's");
        }
    }

    #[test]
    fn directories_are_the_agents_own() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        directory(&at("a/b")).unwrap();
        assert_eq!((mode(&at("a")), mode(&at("a/b"))), (0o700, 0o700));
        directory(&at("a/b")).unwrap();
        let refused = |name: &str, expected: &str| {
            let error = directory(&at(name)).expect_err("it is not used").to_string();
            assert!(error.contains(expected), "{name}: {error}");
        };
        symlink("a", at("link")).unwrap();
        symlink("missing", at("dangling")).unwrap();
        refused("link", "symbolic link");
        refused("dangling", "symbolic link");
        assert!(!at("missing").exists());
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        refused("open", "chmod 700");
        refused("open/below", "every user");
        assert!(!at("open/below").exists());
        if own_user() == 0 {
            chown(at("a"), Some(65534), None).unwrap();
            refused("a", "user 65534's");
            refused("a/c", "user 65534's");
        }
    }
}
