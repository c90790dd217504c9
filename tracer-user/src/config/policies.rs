//! Policies of a fleet: rules that all its hosts take from one place, signed, with a number that only grows.
//!
//! A document is a configuration of `[[class]]`, `[[transaction]]` and `[[service_class]]` below a first line
//! `version = N`, and a signature of its bytes (Ed25519). Whoever can write to the place cannot change a rule without the
//! key, and cannot bring an old document back.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use toml::Spanned;
use tracer_host::files;
use tracer_results::history::place::HistoryPlace;

use super::reload::POLICIES;
use super::{Config, ConfigError, FILE, Source};

/// Name of the document, in its place and in the cache.
pub const DOCUMENT: &str = "policies.toml";
/// Name of its signature in its place.
pub const SIGNATURE: &str = "policies.toml.sig";
/// Longest document, bytes.
pub const DOCUMENT_MAX: u64 = FILE;
/// Length of a signature, bytes.
pub const SIGNATURE_LENGTH: usize = 64;
/// Longest file of a public key, bytes.
const KEY: u64 = 16 << 10;
/// What precedes the 32 bytes of an Ed25519 key in its encoding (RFC 8410).
const KEY_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Where they come from, and who signs them.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSettings {
    /// Directory or bucket.
    pub place: HistoryPlace,
    /// File of the public key, PEM.
    pub public_key: PathBuf,
    /// Directory in which the last good document is kept.
    pub cache: PathBuf,
    /// Between two looks.
    pub poll: Duration,
}

/// `[fleet]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FleetFile {
    policies: Option<Spanned<String>>,
    public_key: Option<Spanned<String>>,
    cache: Option<Spanned<String>>,
    poll: Option<Spanned<String>>,
}

impl FleetFile {
    pub(super) fn apply(self, source: &Source<'_>, config: &mut Config) -> Result<(), ConfigError> {
        let Some(place) = self.policies.filter(|place| !place.get_ref().is_empty()) else { return Ok(()) };
        let wrong = |what: &str| source.wrong(&place.span(), what);
        let parsed = HistoryPlace::parse(place.get_ref()).map_err(|what| wrong(&what))?;
        if matches!(&parsed, HistoryPlace::Directory(path) if path.is_relative()) {
            return Err(wrong("expected an absolute path, or a URL such as \"s3://bucket/prefix\""));
        }
        let public_key = source.absolute(self.public_key)?;
        let public_key = public_key.ok_or_else(|| wrong("expected public_key, too: policies are signed"))?;
        let cache = source.absolute(self.cache)?.unwrap_or_else(|| "/var/lib/tracer/policies".into());
        let poll = match &self.poll {
            Some(poll) => source.time(poll, Duration::from_secs(1)..=Duration::from_secs(24 * 3600))?,
            None => Duration::from_secs(60),
        };
        config.fleet = Some(FleetSettings { place: parsed, public_key, cache, poll });
        Ok(())
    }
}

/// Why a document is not used.
#[derive(Debug, thiserror::Error)]
pub enum PoliciesError {
    /// The key cannot be read.
    #[error("[fleet] public_key {path}: {why}")]
    Key {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The signature is another's, or of another document.
    #[error("the signature does not fit: the document is not what the holder of the key signed")]
    Signature,
    /// It is signed, but no document.
    #[error("{0}")]
    Document(String),
    /// What was kept cannot be read.
    #[error("{path}: {source}")]
    Cache {
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A document whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Its number.
    pub version: u64,
    document: String,
    signature: [u8; SIGNATURE_LENGTH],
}

impl Policies {
    /// Checks a document.
    pub fn verify(settings: &FleetSettings, document: Vec<u8>, signature: &[u8]) -> Result<Self, PoliciesError> {
        let key = public_key(&settings.public_key)?;
        UnparsedPublicKey::new(&ED25519, key).verify(&document, signature).map_err(|_| PoliciesError::Signature)?;
        let wrong = |what: &str| PoliciesError::Document(what.to_owned());
        let document = String::from_utf8(document).map_err(|_| wrong("the document is no text in UTF-8"))?;
        let first = document.lines().next().and_then(|line| line.strip_prefix("version = "));
        let version = first.and_then(|number| number.trim().parse().ok());
        let version = version.ok_or_else(|| wrong("the document does not begin with a line such as version = 1"))?;
        let signature = signature.try_into().map_err(|_| PoliciesError::Signature)?;
        let policies = Self { version, document, signature };
        policies.check()?;
        Ok(policies)
    }

    /// What follows the first line.
    fn rules(&self) -> &str {
        self.document.split_once('\n').map_or("", |(_, rest)| rest)
    }

    /// Checks that it is a configuration by itself, of nothing but policies.
    fn check(&self) -> Result<(), PoliciesError> {
        let wrong = |what: String| PoliciesError::Document(what);
        // With its first line as a comment, so that lines have their own numbers.
        let text = format!("# {}", self.document);
        Config::parse(DOCUMENT, &text).map_err(|error| wrong(error.to_string()))?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        match table.keys().find(|name| !POLICIES.contains(&name.as_str())) {
            Some(other) => Err(wrong(format!("[{other}] is not for a whole fleet: it belongs into a host's own file"))),
            None => Ok(()),
        }
    }

    /// The last good document, if there is one.
    pub fn cached(settings: &FleetSettings) -> Result<Option<Self>, PoliciesError> {
        let path = settings.cache.join(DOCUMENT);
        let text = match files::read(&path, DOCUMENT_MAX + 1024) {
            Ok(text) => text,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(PoliciesError::Cache { path, source }),
        };
        let kept = text.split_once('\n').and_then(|(line, document)| Some((signature_of(line)?, document)));
        let (signature, document) = kept.ok_or(PoliciesError::Signature)?;
        Self::verify(settings, document.as_bytes().to_vec(), &signature).map(Some)
    }

    /// Keeps it in the place of the one before: whole, or not at all.
    pub fn keep(&self, settings: &FleetSettings) -> Result<(), PoliciesError> {
        let path = settings.cache.join(DOCUMENT);
        let temporary = settings.cache.join(format!("{DOCUMENT}.new"));
        let kept = files::directory(&settings.cache).and_then(|()| {
            // Left behind by an agent that was killed.
            let _ = fs::remove_file(&temporary);
            let mut file = files::create_new(&temporary)?;
            io::Write::write_all(&mut file, self.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        });
        kept.map_err(|source| PoliciesError::Cache { path, source })
    }

    /// A host's own configuration with these rules after its own.
    pub(super) fn after(&self, text: &str) -> String {
        format!("{text}\n{}", self.rules())
    }
}

/// As it is kept: a line with the signature, then the document.
impl fmt::Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# ")?;
        self.signature.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "\n{}", self.document)
    }
}

fn signature_of(line: &str) -> Option<[u8; SIGNATURE_LENGTH]> {
    let digits = line.strip_prefix("# ").filter(|digits| digits.is_ascii() && digits.len() == 2 * SIGNATURE_LENGTH)?;
    let mut signature = [0; SIGNATURE_LENGTH];
    for (at, byte) in signature.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(signature)
}

fn public_key(path: &Path) -> Result<Vec<u8>, PoliciesError> {
    let wrong = |why: String| PoliciesError::Key { path: path.to_owned(), why };
    let text = files::read(path, KEY).map_err(|error| wrong(error.to_string()))?;
    let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes());
    let der = der.map_err(|_| wrong("expected a public key in PEM, as `openssl pkey -pubout` writes it".into()))?;
    let key = der.strip_prefix(&KEY_HEAD).filter(|key| key.len() == 32);
    key.map(<[u8]>::to_vec).ok_or_else(|| wrong("expected a public key of Ed25519".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    struct Signer {
        pair: Ed25519KeyPair,
        settings: FleetSettings,
        _dir: tempfile::TempDir,
    }

    /// Any 32 bytes are a private key.
    fn signer(seed: u8) -> Signer {
        let dir = tempfile::tempdir().unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let der = [&KEY_HEAD[..], pair.public_key().as_ref()].concat();
        let public_key = dir.path().join("key.pem");
        fs::write(&public_key, pem_of(&der)).unwrap();
        let cache = dir.path().join("cache");
        let place = HistoryPlace::Directory(dir.path().to_owned());
        Signer { pair, settings: FleetSettings { place, public_key, cache, poll: Duration::from_secs(1) }, _dir: dir }
    }

    fn pem_of(der: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::from("-----BEGIN PUBLIC KEY-----\n");
        for three in der.chunks(3) {
            let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
            for at in 0..4 {
                let digit = char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]);
                text.push(if at > three.len() { '=' } else { digit });
            }
        }
        text + "\n-----END PUBLIC KEY-----\n"
    }

    impl Signer {
        fn verify(&self, document: &str) -> Result<Policies, PoliciesError> {
            let signature = self.pair.sign(document.as_bytes());
            Policies::verify(&self.settings, document.into(), signature.as_ref())
        }
    }

    const DOCUMENT_3: &str = "version = 3\n[[class]]\nname = \"all\"\npath = \"/all/**\"\n";

    #[test]
    fn what_is_signed_is_used_and_kept() {
        let signer = signer(1);
        assert_eq!(Policies::cached(&signer.settings).unwrap(), None);
        let policies = signer.verify(DOCUMENT_3).unwrap();
        assert_eq!(policies.version, 3);
        policies.keep(&signer.settings).unwrap();
        assert_eq!(Policies::cached(&signer.settings).unwrap(), Some(policies.clone()));
        policies.keep(&signer.settings).unwrap();
        let config = Config::parse("local", &policies.after("[[class]]\nname = \"own\"\npath = \"/own\"")).unwrap();
        assert_eq!(config.classes.rules.len(), 2);
    }

    #[test]
    fn what_is_not_signed_by_the_key_is_not_used() {
        let (mine, other) = (signer(1), signer(2));
        let signature = mine.pair.sign(DOCUMENT_3.as_bytes());
        let refused = |settings: &FleetSettings, document: &str, signature: &[u8]| {
            matches!(Policies::verify(settings, document.into(), signature), Err(PoliciesError::Signature))
        };
        assert!(!refused(&mine.settings, DOCUMENT_3, signature.as_ref()));
        assert!(refused(&other.settings, DOCUMENT_3, signature.as_ref()));
        assert!(refused(&mine.settings, &DOCUMENT_3.replace('3', "4"), signature.as_ref()));
        assert!(refused(&mine.settings, DOCUMENT_3, &signature.as_ref()[1..]));
        assert!(refused(&mine.settings, DOCUMENT_3, &[]));
        // In the cache, too.
        mine.verify(DOCUMENT_3).unwrap().keep(&mine.settings).unwrap();
        let path = mine.settings.cache.join(DOCUMENT);
        let kept = fs::read_to_string(&path).unwrap();
        for broken in [kept.replace("/all", "/any"), kept[1..].to_owned(), String::new(), "# zz\n".into()] {
            fs::write(&path, broken).unwrap();
            assert!(matches!(Policies::cached(&mine.settings), Err(PoliciesError::Signature)));
        }
    }

    #[test]
    fn a_document_has_a_number_and_nothing_but_policies() {
        let signer = signer(1);
        for (document, expected) in [
            ("[[class]]\nname = \"a\"\n", "does not begin with a line such as version = 1"),
            ("version = -1\n", "does not begin"),
            ("version = 1\n[agent]\nlisten = \"0.0.0.0:1\"\n", "[agent] is not for a whole fleet"),
            ("version = 1\n[fleet]\npolicies = \"\"\n", "[fleet] is not for a whole fleet"),
            ("version = 1\n[[class]]\nnam = \"a\"\n", "policies.toml:3:1:"),
        ] {
            let error = signer.verify(document).unwrap_err().to_string();
            assert!(error.contains(expected), "{document}: {error}");
        }
        assert!(signer.verify("version = 1").is_ok());
    }

    #[test]
    fn keys_are_ed25519_in_pem() {
        let signer = signer(1);
        let signature = signer.pair.sign(DOCUMENT_3.as_bytes());
        for text in ["", "key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
            fs::write(&signer.settings.public_key, text).unwrap();
            let refused = Policies::verify(&signer.settings, DOCUMENT_3.into(), signature.as_ref());
            assert!(matches!(refused, Err(PoliciesError::Key { .. })), "{text}: {refused:?}");
        }
    }
}
