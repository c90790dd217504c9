//! Who decides what a path names. Where another user may rename a directory or put a link in its place, that user chooses
//! the file the agent writes to.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::own_user;

/// Most links followed on a way, as in the kernel.
const LINKS: usize = 40;
/// Bits of a mode.
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;

/// Checks that every directory on the way to `dir`, and every link, is root's or the agent's user's, and that other users
/// cannot rename what is in it. What a group may do was granted by the owner.
pub(super) fn check(dir: &Path) -> io::Result<()> {
    let mut left = steps(&std::path::absolute(dir)?);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    check_directory(&at, &fs::symlink_metadata(&at)?)?;
    while let Some(step) = left.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        let next = at.join(step);
        let about = fs::symlink_metadata(&next)?;
        if about.is_symlink() {
            links += 1;
            if links > LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            check_owner(&next, &about)?;
            let target = fs::read_link(&next)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            left.extend(steps(&target));
        } else {
            check_directory(&next, &about)?;
            at = next;
        }
    }
    Ok(())
}

/// The names of a path, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|step| match step {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

fn check_owner(path: &Path, about: &Metadata) -> io::Result<()> {
    if about.uid() == 0 || about.uid() == own_user() {
        return Ok(());
    }
    let (path, uid) = (path.display(), about.uid());
    Err(io::Error::other(format!("{path} is user {uid}'s, who could choose the file that is written to")))
}

fn check_directory(path: &Path, about: &Metadata) -> io::Result<()> {
    if !about.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    check_owner(path, about)?;
    if about.mode() & OTHERS_WRITE != 0 && about.mode() & STICKY == 0 {
        let path = path.display();
        let why = format!("{path} can be written by every user, who could choose the file that is written to");
        return Err(io::Error::other(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn another_users_directories_and_links_are_not_gone_through() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own", "own/inner", "open", "shared"] {
            fs::create_dir(at(name)).unwrap();
        }
        let allow = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        allow("open", 0o777);
        allow("shared", 0o1777);
        symlink("own/../own", at("link")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for (name, fits) in [
            ("own/inner", true),
            ("own/../link/inner", true),
            ("shared", true),
            ("open", false),
            ("loop", false),
            ("missing", false),
        ] {
            assert_eq!(check(&at(name)).is_ok(), fits, "{name}: {:?}", check(&at(name)));
        }
        if own_user() != 0 {
            return;
        }
        fs::create_dir_all(at("foreign/inner")).unwrap();
        chown(at("foreign"), Some(65534), None).unwrap();
        symlink(at("own"), at("shared/theirs")).unwrap();
        std::os::unix::fs::lchown(at("shared/theirs"), Some(65534), None).unwrap();
        for name in ["foreign", "foreign/inner", "shared/theirs/inner"] {
            let error = check(&at(name)).unwrap_err().to_string();
            assert!(error.contains("is user 65534's"), "{name}: {error}");
        }
    }
}
