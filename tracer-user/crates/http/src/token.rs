//! The secret that changes need. It is stored only in a file that only its owner can read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use tracer_host::files;

/// Bytes of a token, at least and at most.
const LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

/// Why there is no token. The agent then does not start, because the user asked for one.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A system error.
    #[error("token file {path}: {source}")]
    Io {
        /// Path.
        path: String,
        /// The error.
        source: io::Error,
    },
    /// The file cannot be trusted, or contains no token.
    #[error("token file {path}: expected {expected}")]
    Unfit {
        /// Path.
        path: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// The token that a change must carry as `Authorization: Bearer …`.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Reads the token in `path`; creates the file with a random token if it does not exist.
    pub fn of(path: &Path) -> Result<Self, TokenError> {
        match Self::read(path) {
            Err(TokenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Self::make(path),
            read => read,
        }
    }

    fn read(path: &Path) -> Result<Self, TokenError> {
        let name = path.display().to_string();
        let failed = |source| TokenError::Io { path: name.clone(), source };
        let unfit = |expected| TokenError::Unfit { path: name.clone(), expected };
        // Does not follow a symbolic link and does not block on a FIFO.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        // SAFETY: takes nothing, cannot fail.
        let own = unsafe { libc::geteuid() };
        if !about.is_file() {
            return Err(unfit("a regular file"));
        }
        if about.uid() != own && about.uid() != 0 {
            return Err(unfit("a file owned by root or by the agent's user"));
        }
        if about.mode() & 0o077 != 0 {
            return Err(unfit("a file only its owner can read or write (chmod 600)"));
        }
        let mut text = Vec::new();
        file.take(*LENGTH.end() as u64 + 2).read_to_end(&mut text).map_err(failed)?;
        Self::parse(&text).ok_or_else(|| unfit("one line of 16 to 256 visible ASCII characters"))
    }

    /// The token in the contents of a file.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let token = text.trim_ascii();
        (LENGTH.contains(&token.len()) && token.iter().all(u8::is_ascii_graphic)).then(|| Self(token.into()))
    }

    fn make(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { path: path.display().to_string(), source };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) {
            fs::DirBuilder::new().mode(0o700).create(dir).map_err(failed)?;
        }
        let mut random = [0u8; 32];
        File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random)).map_err(failed)?;
        let hex = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
        let text: String = random.iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]).collect();
        let mut file = files::create_new(path).map_err(failed)?;
        writeln!(file, "{text}").map_err(failed)?;
        Ok(Self(text.into_bytes().into()))
    }

    /// Compares with `offered` in a time that does not depend on where they differ.
    pub fn fits(&self, offered: &[u8]) -> bool {
        let differ = self.0.iter().zip(offered).fold(0u8, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
        self.0.len() == offered.len() && differ == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_made_for_its_owner_alone_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/token");
        let made = Token::of(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim().len(), 64);
        assert!(made.fits(text.trim().as_bytes()) && Token::of(&path).unwrap().fits(text.trim().as_bytes()));
        assert_eq!(format!("{made:?}"), "Token(…)", "never printed");
    }

    #[test]
    fn files_others_can_reach_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let refused = |path: &Path, expected: &str| {
            let error = Token::of(path).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("token"), "{error}");
        };
        fs::write(&path, "0123456789abcdef\n").unwrap();
        for mode in [0o644, 0o640, 0o602, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            refused(&path, "chmod 600");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(Token::of(&path).unwrap().fits(b"0123456789abcdef"));
        let link = dir.path().join("token-link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Token::of(&link), Err(TokenError::Io { .. })), "a link is not followed");
        refused(dir.path().join("..").as_path().join(dir.path().file_name().unwrap()).as_path(), "regular file");
    }

    #[test]
    fn tokens_are_one_line_of_visible_characters() {
        let long = "x".repeat(257);
        for bad in ["", "short", "has spaces in the middle", "0123456789abcd\u{e9}f0", "0123456789\n0123456789", &long]
        {
            assert!(Token::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        let token = Token::parse(b"  0123456789abcdef \n").unwrap();
        for wrong in ["0123456789abcdeF", "0123456789abcde", "0123456789abcdef0", "", "1123456789abcdef"] {
            assert!(!token.fits(wrong.as_bytes()), "{wrong}");
        }
    }
}
