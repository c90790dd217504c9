//! The bill of materials (SBOM) in CycloneDX's JSON: every crate in the binary, the console's libraries, and what the image
//! takes from the distribution.
//!
//! Names, licences and edges come from `cargo metadata`, checksums from `Cargo.lock` and `vendor.toml`. Whatever has no
//! licence or no checksum is an error: a bill with gaps is worth nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::rootfs::Distributed;
use crate::{shell, vendor};

/// Manifests whose crates are in the binary, the first crate of each, and for which processor they are compiled.
const ROOTS: [(&str, &str, Target); 2] =
    [("Cargo.toml", "tracer-user", Target::Host), ("tracer-ebpf/Cargo.toml", "tracer-ebpf", Target::Any)];

/// Which platform's dependencies count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// This machine's.
    Host,
    /// All of them: cargo has no name for the kernel's.
    Any,
}

/// Whether a crate's code is in the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// It ran while the binary was built: macros and build scripts, and what they need.
    Build,
    /// It is in the binary.
    Binary,
}

/// Writes the bill of `binary`, and of the image with these files of the distribution.
pub(super) fn write(
    binary: &Path,
    distributed: &[Distributed],
    out: &Path,
    version: &str,
    time: &str,
) -> Result<PathBuf> {
    let file = out.join(format!("tracer-{version}.cdx.json"));
    let bill = bill(&shell::checksum("sha256sum", binary)?, distributed, version, time)?;
    let text = format!("{}\n", serde_json::to_string_pretty(&bill)?);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// The document. `time` is RFC 3339.
fn bill(sha256: &str, distributed: &[Distributed], version: &str, time: &str) -> Result<Value> {
    let own = format!("pkg:generic/tracer@{version}");
    let mut components = BTreeMap::new();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let top = edges.entry(own.clone()).or_default();
    for package in vendor::lock(&shell::root())?.package {
        let reference = format!("pkg:npm/{}@{}", package.name.replace('@', "%40"), package.version);
        top.insert(reference.clone());
        let mut one = component(&reference, &package.name, &package.version, &package.licence);
        one["description"] = json!(format!("in the console: {}", package.why));
        one["hashes"] = json!([{ "alg": "SHA-512", "content": package.sha512 }]);
        components.insert(reference, one);
    }
    let rust = shell::output(shell::cargo().arg("--version"))?;
    let rust = rust.split_whitespace().nth(1).context("cargo names no version")?.to_owned();
    let reference = format!("pkg:generic/rust-std@{rust}");
    top.insert(reference.clone());
    components.insert(reference.clone(), component(&reference, "rust-std", &rust, "MIT OR Apache-2.0"));
    for file in distributed {
        let (name, version) = (&file.package, &file.version);
        let reference = format!("pkg:deb/{}/{name}@{}", file.distribution, version.replace('+', "%2B"));
        let mut one = component(&reference, name, version, file.licence);
        one["description"] = json!("in the container image only");
        one["properties"] = json!([{ "name": "tracer:file", "value": file.path }]);
        // One package may give several files.
        let known = components.entry(reference.clone()).or_insert_with(|| one.clone());
        if known["properties"] != one["properties"] {
            let more = one["properties"][0].clone();
            known["properties"].as_array_mut().context("a list of properties")?.push(more);
        }
        edges.entry(own.clone()).or_default().insert(reference);
    }
    for (manifest, first, target) in ROOTS {
        crates(manifest, first, target, &own, &mut components, &mut edges)?;
    }
    for reference in components.keys() {
        edges.entry(reference.clone()).or_default();
    }
    let mut bill = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "lifecycles": [{ "phase": "build" }],
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "tracer",
                "version": version,
                "purl": own,
                "licenses": [{ "expression": "MIT AND (MIT OR GPL-2.0-only)" }],
                "hashes": [{ "alg": "SHA-256", "content": sha256 }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": edges
            .into_iter()
            .map(|(from, to)| json!({ "ref": from, "dependsOn": to }))
            .collect::<Vec<_>>(),
    });
    bill["serialNumber"] = json!(serial(&bill)?);
    Ok(bill)
}

fn component(reference: &str, name: &str, version: &str, licence: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "scope": "required",
        "licenses": [{ "expression": expression(licence) }],
    })
}

/// Adds the crates of a manifest that `first` needs, and what each needs.
fn crates(
    manifest: &str,
    first: &str,
    target: Target,
    own: &str,
    components: &mut BTreeMap<String, Value>,
    edges: &mut BTreeMap<String, BTreeSet<String>>,
) -> Result<()> {
    let manifest = shell::root().join(manifest);
    let sums = checksums(&manifest.with_file_name("Cargo.lock"))?;
    let metadata = metadata(&manifest, target)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|one| (text(&one["id"]), one)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|one| (text(&one["id"]), one)).collect();
    let start = packages.iter().find(|(_, one)| one["name"] == first);
    let start = start.with_context(|| format!("cargo metadata does not know {first}"))?.0.clone();
    let is_macro = |id: &str| {
        let targets = packages.get(id).map(|one| list(&one["targets"])).unwrap_or_default();
        targets.iter().any(|target| list(&target["kind"]).contains(&json!("proc-macro")))
    };
    let mut found: BTreeMap<String, Scope> = BTreeMap::new();
    let mut next = vec![(start.clone(), Scope::Binary)];
    while let Some((id, scope)) = next.pop() {
        if found.get(&id).is_some_and(|known| *known >= scope) {
            continue;
        }
        found.insert(id.clone(), scope);
        for dependency in list(&nodes.get(&id).with_context(|| format!("{id} is not resolved"))?["deps"]) {
            let to = text(&dependency["pkg"]);
            for kind in list(&dependency["dep_kinds"]) {
                match kind["kind"].as_str() {
                    Some("dev") => {}
                    Some("build") => next.push((to.clone(), Scope::Build)),
                    _ if is_macro(&to) => next.push((to.clone(), Scope::Build)),
                    _ => next.push((to.clone(), scope)),
                }
            }
        }
    }
    let reference = |id: &str| -> Result<String> {
        let package = packages.get(id).with_context(|| format!("{id} is not described"))?;
        Ok(format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"])))
    };
    edges.entry(own.to_owned()).or_default().insert(reference(&start)?);
    for (id, scope) in &found {
        let package = &packages[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let this = reference(id)?;
        let Some(licence) = package["license"].as_str() else { bail!("{name} {version} names no licence") };
        let mut one = component(&this, &name, &version, licence);
        if *scope == Scope::Build {
            one["scope"] = json!("excluded");
        }
        if package["source"].is_string() {
            let sum = sums.get(&(name.clone(), version.clone()));
            let sum = sum.with_context(|| format!("Cargo.lock has no checksum of {name} {version}"))?;
            one["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        for key in ["description", "authors"] {
            match &package[key] {
                Value::String(words) => one[key] = json!(words.split_whitespace().collect::<Vec<_>>().join(" ")),
                Value::Array(all) if !all.is_empty() => {
                    one[key] = all.iter().map(|author| json!({ "name": author })).collect();
                }
                _ => {}
            }
        }
        let dependencies = list(&nodes[id]["deps"]);
        let wanted = dependencies.iter().map(|one| text(&one["pkg"])).filter(|to| found.contains_key(to));
        let wanted = wanted.map(|to| reference(&to)).collect::<Result<BTreeSet<_>>>()?;
        edges.entry(this.clone()).or_default().extend(wanted);
        // A crate on both sides is in the binary if it is so on one of them.
        let known = components.entry(this).or_insert_with(|| one.clone());
        if one["scope"] == "required" {
            *known = one;
        }
    }
    Ok(())
}

fn metadata(manifest: &Path, target: Target) -> Result<Value> {
    let mut command = shell::cargo();
    command.args(["metadata", "--format-version", "1", "--locked", "--offline", "--manifest-path"]).arg(manifest);
    if target == Target::Host {
        command.arg("--filter-platform").arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    }
    serde_json::from_str(&shell::output(&mut command)?).context("cargo metadata printed something that is not JSON")
}

/// SHA-256 of each crate's archive, by name and version.
fn checksums(lock: &Path) -> Result<BTreeMap<(String, String), String>> {
    let text = fs::read_to_string(lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let lock: toml::Table = toml::from_str(&text).with_context(|| lock.display().to_string())?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("a lock without packages")?;
    let found = packages.iter().filter_map(|package| {
        let text = |key: &str| Some(package.get(key)?.as_str()?.to_owned());
        Some(((text("name")?, text("version")?), text("checksum")?))
    });
    Ok(found.collect())
}

/// A licence as SPDX writes it; older crates have a slash for a choice.
fn expression(licence: &str) -> String {
    licence.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A serial number that depends on the content only: an RFC 9562 UUID of version 8.
fn serial(bill: &Value) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), bill.to_string())?;
    let sum = shell::checksum("sha256sum", file.path())?;
    let part = |from: usize, to: usize| sum.get(from..to).context("a short checksum");
    Ok(format!("urn:uuid:{}-{}-8{}-8{}-{}", part(0, 8)?, part(8, 12)?, part(13, 16)?, part(17, 20)?, part(20, 32)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Value {
        let file = Distributed {
            path: "/lib64/ld-linux-x86-64.so.2".into(),
            package: "libc6".into(),
            version: "2.36-9+deb12u9".into(),
            distribution: "debian".into(),
            licence: "LGPL-2.1-or-later",
        };
        bill("00", &[file], "1.2.3", "2026-01-01T00:00:00Z").expect("a bill")
    }

    #[test]
    fn everything_has_a_licence_and_a_place() {
        let bill = made();
        let components = bill["components"].as_array().expect("components");
        let by_name = |name: &str| components.iter().find(|one| one["name"] == name).unwrap_or(&Value::Null);
        // In the binary, in the kernel's programs, in a macro, in the console, in the image.
        for (name, scope) in [
            ("tokio", "required"),
            ("aya-ebpf", "required"),
            ("serde_derive", "excluded"),
            ("uplot", "required"),
            ("@dagrejs/dagre", "required"),
            ("libc6", "required"),
            ("rust-std", "required"),
        ] {
            assert_eq!(by_name(name)["scope"], scope, "{name}");
        }
        assert_eq!(by_name("libc6")["purl"], "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9");
        // Tests' and chores' crates are not part of it.
        for name in ["proptest", "rcgen", "xtask", "tracer-tests"] {
            assert!(by_name(name).is_null(), "{name}");
        }
        let mut references = BTreeSet::new();
        for one in components {
            assert!(one["licenses"][0]["expression"].as_str().is_some_and(|text| !text.contains('/')), "{one}");
            let from_registry = one["purl"].as_str().is_some_and(|purl| {
                (purl.starts_with("pkg:cargo/") && !purl.contains("/tracer-")) || purl.starts_with("pkg:npm/")
            });
            assert_eq!(one["hashes"].is_array(), from_registry, "{one}");
            assert!(references.insert(one["bom-ref"].as_str().expect("a reference")), "twice: {one}");
        }
        references.insert("pkg:generic/tracer@1.2.3");
        let edges = bill["dependencies"].as_array().expect("edges");
        assert_eq!(edges.len(), references.len());
        for edge in edges {
            let to = edge["dependsOn"].as_array().expect("a list");
            assert!(to.iter().chain([&edge["ref"]]).all(|one| references.contains(one.as_str().expect("text"))));
        }
    }

    #[test]
    fn the_same_twice() {
        assert_eq!(made(), made());
        let serial = made()["serialNumber"].as_str().expect("a number").to_owned();
        assert_eq!((serial.len(), &serial[23..24]), (45, "8"), "{serial}");
    }

    #[test]
    fn licences_as_spdx_writes_them() {
        assert_eq!(expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(expression("Apache-2.0 AND ISC"), "Apache-2.0 AND ISC");
    }
}
