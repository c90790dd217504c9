//! rustls inside a program: two functions that are not generic, where text is encrypted and where it was decrypted. Stripped
//! programs have no names for them; the version is known all the same.
//!
//! Their arguments are Rust's types, whose layout no version promises: what is read there counts only if its size is that of what
//! the socket moved. At clients' reads that is not known; there the place of the text is believed.

use std::fs::File;

use tracer_common::runtime::UserProbe;

use super::super::cheap_places::{CODE, place};
use super::super::go::image::{Image, X86_64};
use super::super::rust_functions::{self, FoundFunction, WantedName};
use super::{CONSTANTS, Refusal, Site, Sites};

/// Where the package's sources were when the program was built: panics name them, in stripped programs, too.
const SOURCES: &[u8] = b"/rustls-";
/// What follows the version.
const BEHIND: &[u8] = b"/src/";
/// Longest version.
const VERSION: usize = 24;
/// The version whose functions take what is expected of them.
const KNOWN: &str = "0.23.";

/// The functions, of `rustls::common_state::CommonState`.
const FUNCTIONS: [WantedName<UserProbe>; 2] = [
    (b"16buffer_plaintext", MODULE, UserProbe::TlsRustlsWrite),
    (b"23take_received_plaintext", MODULE, UserProbe::TlsRustlsRead),
];
const MODULE: &[u8] = b"6rustls12common_state";
/// Arguments that must still be in their registers.
const ARGUMENTS: usize = 2;
/// Most copies of a function: a program may have several versions of the package.
const COPIES: usize = 4;

/// The places in a program's file.
pub(super) fn inspect(file: &File) -> Result<Sites, Refusal> {
    let image = Image::read(file).filter(|image| image.machine == X86_64).ok_or(Refusal::NotProgram)?;
    let version = constants(&image).and_then(|bytes| find(&bytes)).ok_or(Refusal::Absent)?;
    if !version.starts_with(KNOWN) {
        return Err(Refusal::RustlsUnknown);
    }
    let functions = rust_functions::find(&image, &FUNCTIONS).unwrap_or_default();
    let mut sites = Sites::default();
    for (_, _, probe) in FUNCTIONS {
        let of_probe = || functions.iter().filter(|function| function.role == probe).take(COPIES);
        if of_probe().next().is_none() {
            return Err(Refusal::RustlsStripped);
        }
        for function in of_probe() {
            let (offset, stepped) = offset(&image, function).ok_or(Refusal::RustlsUnknown)?;
            sites.stepped += usize::from(stepped);
            sites.sites.push(Site { probe, offset, cookie: 0 });
        }
    }
    Ok(sites)
}

/// The offset in the file of the first instruction that the kernel need not single-step, else of the function's first; and whether
/// that is so.
fn offset(image: &Image<'_, File>, function: &FoundFunction<UserProbe>) -> Option<(u64, bool)> {
    let code = image.code(function.address, CODE.min(usize::try_from(function.size).ok()?))?;
    let into = place(&code, ARGUMENTS).map(|(into, _)| into as u64);
    Some((image.place(function.address.checked_add(into.unwrap_or(0))?)?, into.is_none()))
}

/// The version of rustls in a program.
pub(super) fn version(file: &File) -> Option<String> {
    find(&constants(&Image::read(file)?)?)
}

fn constants(image: &Image<'_, File>) -> Option<Vec<u8>> {
    image.bytes(image.section(".rodata")?, CONSTANTS)
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
pub(super) mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;

    use ::rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// Links rustls into this test program, its reading and its writing: a client that no server answers.
    pub(crate) fn use_rustls() {
        let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = "localhost".try_into().expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
        client.writer().write_all(b"a").expect("kept until the handshake is over");
        client.read_tls(&mut &b""[..]).expect("nothing to read");
        client.process_new_packets().expect("no packet");
        client.reader().read(&mut [0]).expect_err("nothing came");
    }

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
        use_rustls();
        let own = File::open("/proc/self/exe").expect("this program");
        let found = version(&own).expect("rustls, by which agents talk to each other");
        assert!(found.starts_with("0."), "{found}");
    }

    #[test]
    fn this_program_has_both_places() {
        use_rustls();
        let own = File::open("/proc/self/exe").expect("this program");
        let found = inspect(&own).expect("rustls, with the names of its functions");
        let of = |probe| found.sites.iter().filter(|site| site.probe == probe).count();
        assert!(of(UserProbe::TlsRustlsWrite) > 0 && of(UserProbe::TlsRustlsRead) > 0, "{found:?}");
        let shell = File::open("/bin/sh").expect("a shell");
        assert_eq!(inspect(&shell), Err(Refusal::Absent));
    }
}
