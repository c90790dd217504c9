//! rustls inside a program: recognised, so that it can be named, and not traced. Its functions have no names that last, and
//! take Rust's types, whose layout no version promises.

use std::fs::File;

use super::super::go::image::Image;
use super::CONSTANTS;

/// Where the package's sources were when the program was built: panics name them, in stripped programs, too.
const SOURCES: &[u8] = b"/rustls-";
/// What follows the version.
const BEHIND: &[u8] = b"/src/";
/// Longest version.
const VERSION: usize = 24;

/// The version of rustls in a program.
pub(super) fn version(file: &File) -> Option<String> {
    let image = Image::read(file)?;
    find(&image.bytes(image.section(".rodata")?, CONSTANTS)?)
}

fn find(bytes: &[u8]) -> Option<String> {
    let version = |at: usize| {
        let rest = bytes.get(at + SOURCES.len()..)?;
        let rest = rest.get(..rest.len().min(VERSION + BEHIND.len()))?;
        let text = rest.get(..memchr::memmem::find(rest, BEHIND)?)?;
        let is_version = text.first().is_some_and(u8::is_ascii_digit) && text.contains(&b'.');
        let is_plain = text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'));
        (is_version && is_plain).then(|| String::from_utf8_lossy(text).into_owned())
    };
    memchr::memmem::find_iter(bytes, SOURCES).find_map(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_sources_name_the_version() {
        for (text, expected) in [
            ("src/index.crates.io-6f17d22bba15001f/rustls-0.23.20/src/conn.rsx", Some("0.23.20")),
            ("/x/tokio-rustls-0.26.1/src/lib.rs/x/rustls-0.21.0-alpha.1/src/a.rs", Some("0.21.0-alpha.1")),
            ("/x/rustls-pki-types-1.0.0/src/lib.rs", None),
            ("/rustls-native-certs-0.8.1/src/", None),
            ("/rustls-0.23.20/benches/x.rs", None),
            ("/rustls-", None),
            ("", None),
        ] {
            assert_eq!(find(text.as_bytes()).as_deref(), expected, "{text}");
            for end in 0..text.len() {
                let _ = find(&text.as_bytes()[..end]);
            }
        }
    }

    #[test]
    fn this_program_has_it() {
        let own = File::open("/proc/self/exe").expect("this program");
        let found = version(&own).expect("rustls, by which agents talk to each other");
        assert!(found.starts_with("0."), "{found}");
    }
}
