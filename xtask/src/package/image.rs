//! The container image, as an archive of an OCI image layout: made without a registry, a daemon or a builder.
//!
//! One layer with [`rootfs`], a configuration, a manifest and an index, each named by its SHA-256. The archive also has the
//! `manifest.json` that `docker load` of before version 25 reads; podman, containerd and Kubernetes' nodes read the layout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::rootfs::{self, Distributed};
use super::{layout, reproducible_tar};
use crate::shell;

/// The image's name, until somebody pushes it to a registry of theirs.
const NAME: &str = "localhost/tracer";

/// Media types of the image specification.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// What is packed into an image, and where it goes.
pub(super) struct Recipe<'a> {
    /// The agent.
    pub(super) binary: &'a Path,
    /// The archive's directory.
    pub(super) out: &'a Path,
    /// The image's tag.
    pub(super) version: &'a str,
    /// gzip's level.
    pub(super) level: u8,
    /// The time of everything in it, seconds since the epoch.
    pub(super) epoch: &'a str,
}

impl Recipe<'_> {
    /// Makes the archive; returns its path and the files that came from the distribution.
    pub(super) fn make(&self) -> Result<(PathBuf, Vec<Distributed>)> {
        let stage = tempfile::tempdir()?;
        let root = stage.path().join("root");
        layout::directory(&root)?;
        let distributed = rootfs::files(self.binary, &root)?;
        let layer = stage.path().join("layer.tar");
        reproducible_tar(&layer, self.epoch, &root, &["."])?;
        let diff = shell::checksum("sha256sum", &layer)?;
        shell::output(Command::new("gzip").arg(format!("-n{}", self.level)).arg(&layer))?;
        let tree = stage.path().join("image");
        let blobs = Blobs(tree.join("blobs/sha256"));
        let layer = blobs.add(&layout::read(&layer.with_extension("tar.gz"))?, LAYER)?;
        let time = rfc3339(self.epoch)?;
        let config = blobs.json(&self.config(&diff, &time)?, CONFIG)?;
        let labels = self.labels(&time);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [layer],
            "annotations": labels,
        });
        let mut manifest = blobs.json(&manifest, MANIFEST)?;
        let name = format!("{NAME}:{}", self.version);
        manifest["platform"] = json!({ "architecture": layout::debian_architecture()?, "os": "linux" });
        manifest["annotations"] =
            json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": self.version });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
        let docker = json!([{ "Config": path(&config)?, "RepoTags": [name], "Layers": [path(&layer)?] }]);
        for (name, content) in
            [("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })), ("index.json", index), ("manifest.json", docker)]
        {
            layout::install(content.to_string().as_bytes(), &tree.join(name), 0o644)?;
        }
        let file = self.out.join(format!("tracer-{}-oci-{}.tar", self.version, layout::debian_architecture()?));
        reproducible_tar(&file, self.epoch, &tree, &["oci-layout", "index.json", "manifest.json", "blobs"])?;
        Ok((file, distributed))
    }

    fn config(&self, diff: &str, time: &str) -> Result<Value> {
        Ok(json!({
            "created": time,
            "architecture": layout::debian_architecture()?,
            "os": "linux",
            "config": {
                "User": "0:0",
                "Entrypoint": ["/usr/bin/tracer"],
                "Cmd": ["run", "--config", "/etc/tracer/tracer.toml"],
                "Env": ["PATH=/usr/bin"],
                "WorkingDir": "/var/lib/tracer",
                "StopSignal": "SIGTERM",
                "Labels": self.labels(time),
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff}")] },
            "history": [{ "created": time, "created_by": "cargo xtask package" }],
        }))
    }

    fn labels(&self, time: &str) -> Value {
        json!({
            "org.opencontainers.image.title": "tracer",
            "org.opencontainers.image.description": "eBPF request tracer and profiler",
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.created": time,
            "org.opencontainers.image.licenses": "MIT AND (MIT OR GPL-2.0-only)",
        })
    }
}

/// Files named by their content.
struct Blobs(PathBuf);

impl Blobs {
    /// Stores a blob; returns its descriptor.
    fn add(&self, content: &[u8], media_type: &str) -> Result<Value> {
        let new = self.0.join("new");
        layout::install(content, &new, 0o644)?;
        let sum = shell::checksum("sha256sum", &new)?;
        fs::rename(&new, self.0.join(&sum)).context("cannot rename a blob")?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{sum}"), "size": content.len() }))
    }

    fn json(&self, content: &Value, media_type: &str) -> Result<Value> {
        self.add(content.to_string().as_bytes(), media_type)
    }
}

/// Where a descriptor's blob is in the layout.
fn path(descriptor: &Value) -> Result<String> {
    let digest = descriptor["digest"].as_str().context("a descriptor without a digest")?;
    Ok(format!("blobs/{}", digest.replace(':', "/")))
}

/// Seconds since the epoch as RFC 3339 writes them.
pub(super) fn rfc3339(epoch: &str) -> Result<String> {
    let text =
        shell::output(Command::new("date").args(["--utc", "--date", &format!("@{epoch}"), "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(text.trim().to_owned())
}

/// Unpacks an image's layer below `root` as a runtime does: from the index to the manifest to the layer, and checks the size
/// and digest of each blob on the way. Returns the configuration's process.
pub(super) fn unpack(archive: &Path, root: &Path) -> Result<Value> {
    let tree = tempfile::tempdir()?;
    shell::output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(tree.path()))?;
    let json = |path: &Path| -> Result<Value> { Ok(serde_json::from_slice(&layout::read(path)?)?) };
    let blob = |descriptor: &Value| -> Result<PathBuf> {
        let file = tree.path().join(path(descriptor)?);
        let sum = shell::checksum("sha256sum", &file)?;
        anyhow::ensure!(descriptor["digest"] == format!("sha256:{sum}"), "{descriptor}: the content has {sum}");
        anyhow::ensure!(descriptor["size"] == fs::metadata(&file)?.len(), "{descriptor}: another size");
        Ok(file)
    };
    let layout = json(&tree.path().join("oci-layout"))?;
    anyhow::ensure!(layout["imageLayoutVersion"] == "1.0.0", "oci-layout: {layout}");
    let manifest = json(&blob(&json(&tree.path().join("index.json"))?["manifests"][0])?)?;
    let config = json(&blob(&manifest["config"])?)?;
    anyhow::ensure!(config["architecture"] == layout::debian_architecture()?, "another processor: {config}");
    let layer = blob(&manifest["layers"][0])?;
    let plain = tree.path().join("layer.tar");
    fs::write(&plain, shell::bytes(Command::new("gzip").arg("-dc").arg(&layer))?)?;
    let diff = format!("sha256:{}", shell::checksum("sha256sum", &plain)?);
    anyhow::ensure!(config["rootfs"]["diff_ids"] == json!([diff]), "the layer unpacked has {diff}");
    shell::output(Command::new("tar").args(["--no-same-owner", "-xf"]).arg(&plain).arg("-C").arg(root))?;
    Ok(config["config"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images of a program every system has.
    fn make(out: &Path) -> (PathBuf, Vec<Distributed>) {
        let program = shell::find("true").expect("a program");
        Recipe { binary: &program, out, version: "1.2.3", level: 1, epoch: "1767225600" }.make().expect("an image")
    }

    #[test]
    fn the_same_bytes_twice_and_it_runs() {
        if shell::find("dpkg-query").is_none() {
            return shell::progress("no dpkg here: images are not made");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (first, distributed) = make(dir.path());
        let again = tempfile::tempdir().expect("a directory");
        assert!(fs::read(&first).expect("bytes") == fs::read(make(again.path()).0).expect("bytes"));
        assert!(distributed.iter().any(|file| file.package == "libc6"), "{distributed:?}");
        let root = dir.path().join("root");
        fs::create_dir(&root).expect("a directory");
        let process = unpack(&first, &root).expect("an image that can be unpacked");
        assert_eq!(process["Entrypoint"], json!(["/usr/bin/tracer"]));
        assert_eq!(fs::read_to_string(root.join("etc/passwd")).expect("users").lines().count(), 2);
        if shell::is_root() {
            // The loader and libc in the image are all it needs.
            shell::output(Command::new("chroot").arg(&root).arg("/usr/bin/tracer")).expect("a program that runs");
        }
        let list = shell::output(Command::new("tar").arg("-tvf").arg(&first)).expect("a list");
        assert!(list.lines().all(|line| line.contains("0/0") && line.contains("2026-01-01")), "{list}");
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339("1767225600").expect("a time"), "2026-01-01T00:00:00Z");
    }
}
