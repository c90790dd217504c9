//! What tests of encrypted connections share: certificates, and counts of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::agent::outcome;
use crate::spans::Span;
use crate::workload::prebuilt;

/// Requests by path and status.
pub type Counts = BTreeMap<(String, u16), usize>;

/// Makes a certificate for `localhost` that is valid for nine days, and its key; their paths. Guests have one made before.
pub fn certificate(dir: &Path) -> (String, String) {
    if let Some(dir) = prebuilt() {
        return (dir.join("cert.pem").display().to_string(), dir.join("key.pem").display().to_string());
    }
    let (key, certificate) = (dir.join("key.pem"), dir.join("cert.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9"]);
    command.args(["-subj", "/CN=localhost", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
    let made = outcome(&mut command, "openssl");
    assert_eq!(made.code, Some(0), "{}", made.err);
    (certificate.display().to_string(), key.display().to_string())
}

/// Counts spans by path and status.
pub fn counts<'a>(spans: impl Iterator<Item = &'a Span>) -> Counts {
    let mut counts = Counts::new();
    for span in spans {
        *counts.entry((span.path.clone(), span.status.unwrap_or(0))).or_default() += 1;
    }
    counts
}

/// Pairs of counts that differ, as lines.
pub fn differences(expected: &Counts, found: &Counts) -> Vec<String> {
    let keys: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let get = |counts: &Counts, key| counts.get(key).copied().unwrap_or(0);
    let differ = keys.into_iter().filter(|key| get(expected, key) != get(found, key));
    differ.map(|key| format!("{key:?}: {} expected, {} found", get(expected, key), get(found, key))).collect()
}
