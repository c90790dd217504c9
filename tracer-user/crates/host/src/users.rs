//! Names of users, from `/etc/passwd`.
//!
//! Directories of other hosts (LDAP and the like) are not asked: a look-up there can wait for a network. A user of theirs, or of a
//! container with a list of its own, shows as its number, or by the name that number has on this host.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The list.
const LIST: &str = "/etc/passwd";
/// Most bytes of it that are read, and most users taken from it.
const BYTES: u64 = 1 << 20;
const USERS: usize = 10_000;
/// Longest name.
const NAME: usize = 64;

/// The list as it was when its file was last changed.
#[derive(Debug, Default)]
struct Users {
    /// Inode, and time of the last change.
    version: (u64, i64, i64),
    names: HashMap<u32, String>,
}

impl Users {
    /// Reads the list again if it is another one.
    fn refresh(&mut self) {
        let Ok(file) = std::fs::metadata(LIST) else { return };
        let version = (file.ino(), file.mtime(), file.mtime_nsec());
        if version == self.version {
            return;
        }
        let mut text = Vec::new();
        let read = File::open(LIST).and_then(|file| file.take(BYTES).read_to_end(&mut text));
        if read.is_ok() {
            *self = Self { version, names: parse(&String::from_utf8_lossy(&text)) };
        }
    }
}

/// The name of a user, or the number as text.
pub fn name(user: u32) -> String {
    static USERS: LazyLock<Mutex<Users>> = LazyLock::new(Mutex::default);
    let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    users.refresh();
    users.names.get(&user).cloned().unwrap_or_else(|| user.to_string())
}

/// Users by number; of several with one number the first counts.
fn parse(list: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in list.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(id)) = (fields.next(), fields.nth(1).and_then(|id| id.parse().ok())) else { continue };
        if names.len() < USERS && !name.is_empty() && name.len() <= NAME {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names() {
        let names =
            parse("root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\nbad\na:b\n:x:4:4::/:\nwww-data:x:33:33::/:\n");
        assert_eq!(names.len(), 2);
        assert_eq!((names[&0].as_str(), names[&33].as_str()), ("root", "www-data"));
        assert_eq!((name(0).as_str(), name(u32::MAX - 7).as_str()), ("root", "4294967288"));
    }
}
