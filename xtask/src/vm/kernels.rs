//! Kernels of Debian's releases, unpacked to the format that QEMU boots fastest: the uncompressed image.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::archive::Archive;
use super::machine::Machine;
use crate::shell;

/// The source of a kernel.
pub(super) struct Source {
    /// Its name in the matrix.
    pub(super) name: &'static str,
    suites: &'static [&'static str],
    security: &'static [&'static str],
    /// The prefix of its packages' names; from 7 on the image is in `linux-binary-*`.
    prefix: &'static str,
    /// Also tested on arm64.
    pub(super) arm64: bool,
}

/// Every kernel of the matrix, oldest first.
pub(super) const SOURCES: &[Source] = &[
    Source {
        name: "5.10",
        suites: &["bullseye"],
        security: &["bullseye-security"],
        prefix: "linux-image-5.10.0-",
        arm64: false,
    },
    Source {
        name: "6.1",
        suites: &["bookworm"],
        security: &["bookworm-security"],
        prefix: "linux-image-6.1.0-",
        arm64: false,
    },
    Source {
        name: "6.12",
        suites: &["bookworm"],
        security: &["bookworm-security"],
        prefix: "linux-image-6.12.",
        arm64: true,
    },
    Source {
        name: "6.18",
        suites: &["trixie", "trixie-backports"],
        security: &[],
        prefix: "linux-image-6.18.",
        arm64: true,
    },
    Source { name: "stable", suites: &["sid"], security: &[], prefix: "linux-binary-", arm64: false },
    Source { name: "candidate", suites: &["experimental"], security: &[], prefix: "linux-binary-", arm64: false },
];

/// Excludes packages that are empty or tools, though their names fit.
fn is_image(name: &str) -> bool {
    !name.contains("-rt-") && !name.contains("unsigned") && !name.contains("-dbg")
}

/// The image of a kernel, fetched if missing; with the name of its package.
pub(super) fn image(source: &Source, machine: Machine, base: &Path) -> Result<(PathBuf, String)> {
    let dir = base.join("kernels").join(source.name);
    let (image, package) = (dir.join("vmlinux"), dir.join("package"));
    if let (true, Ok(name)) = (image.is_file(), fs::read_to_string(&package)) {
        return Ok((image, name));
    }
    shell::progress(format!("fetching kernel {}", source.name));
    let suffix = format!("-cloud-{}", machine.debian());
    let archive = Archive::open(base, source.name, machine.debian(), source.suites, source.security)?;
    let name = archive.newest(source.prefix, &suffix)?.filter(|name| is_image(name));
    let name = name.with_context(|| format!("the archive has no package {}*{suffix}", source.prefix))?;
    let unpacked = dir.join("package.d");
    let _ = fs::remove_dir_all(&unpacked);
    archive.unpack(std::slice::from_ref(&name), &unpacked)?;
    let compressed = find_image(&unpacked)?;
    let bytes = fs::read(&compressed).with_context(|| format!("cannot read {}", compressed.display()))?;
    let kernel = machine.bootable(bytes).with_context(|| format!("{} of {name}", compressed.display()))?;
    fs::write(&image, kernel).with_context(|| format!("cannot write {}", image.display()))?;
    fs::remove_dir_all(&unpacked).with_context(|| format!("cannot remove {}", unpacked.display()))?;
    fs::write(&package, &name).with_context(|| format!("cannot write {}", package.display()))?;
    Ok((image, name))
}

/// A module of a kernel with a present image, as a loadable file.
pub(super) fn module(source: &Source, machine: Machine, base: &Path, name: &str) -> Result<PathBuf> {
    let dir = base.join("kernels").join(source.name);
    let module = dir.join(format!("{name}.ko"));
    if module.is_file() {
        return Ok(module);
    }
    let package = fs::read_to_string(dir.join("package")).context("the kernel's image is not there")?;
    // From 7 on, a separate package has the modules.
    let package = package.replacen("linux-binary-", "linux-modules-", 1);
    shell::progress(format!("fetching modules of kernel {}", source.name));
    let archive = Archive::open(base, source.name, machine.debian(), source.suites, source.security)?;
    let unpacked = dir.join("modules.d");
    let _ = fs::remove_dir_all(&unpacked);
    archive.unpack(std::slice::from_ref(&package), &unpacked)?;
    let found = find(&unpacked, &format!("{name}.ko"))?;
    let found = found.with_context(|| format!("{package} has no module {name}"))?;
    let bytes = fs::read(&found).with_context(|| format!("cannot read {}", found.display()))?;
    let bytes = match found.extension().and_then(std::ffi::OsStr::to_str) {
        Some("xz") => filter("xz", &bytes)?,
        Some("zst") => filter("zstd", &bytes)?,
        _ => bytes,
    };
    fs::remove_dir_all(&unpacked).with_context(|| format!("cannot remove {}", unpacked.display()))?;
    fs::write(&module, bytes).with_context(|| format!("cannot write {}", module.display()))?;
    Ok(module)
}

fn find_image(dir: &Path) -> Result<PathBuf> {
    find(dir, "vmlinuz")?.context("the package holds no kernel image")
}

/// The first file below `dir` whose name has this prefix.
fn find(dir: &Path, prefix: &str) -> Result<Option<PathBuf>> {
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
            } else if name.starts_with(prefix) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

/// The ELF file in a bzImage, at the place its setup header names (Documentation/arch/x86/boot.rst, protocol 2.08).
pub(super) fn extract(image: &[u8]) -> Result<Vec<u8>> {
    let word = |at: usize| image.get(at..).and_then(|rest| rest.first_chunk()).map(|b| u32::from_le_bytes(*b) as usize);
    let sectors = match image.get(0x1f1) {
        Some(0) => 4,
        Some(n) => usize::from(*n),
        None => bail!("too short for a kernel image"),
    };
    let (Some(offset), Some(length)) = (word(0x248), word(0x24c)) else { bail!("too short for a kernel image") };
    let start = (sectors + 1) * 512 + offset;
    let payload = image.get(start..start + length).context("the payload lies outside of the image")?;
    // The decompressor in Linux's image knows the length that follows the stream; the tools do not.
    let stream = payload.get(..payload.len().saturating_sub(4)).unwrap_or_default();
    let kernel = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => filter("zstd", stream)?,
        [0x02, 0x21, 0x4c, 0x18, ..] => filter("lz4", stream)?,
        [0xfd, b'7', b'z', b'X', ..] => filter("xz", stream)?,
        [0x1f, 0x8b, ..] => filter("gzip", payload)?,
        _ => bail!("unknown compression"),
    };
    if !kernel.starts_with(b"\x7fELF") {
        bail!("the payload is no ELF file");
    }
    Ok(kernel)
}

pub(super) fn filter(program: &str, input: &[u8]) -> Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(["-d", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().with_context(|| format!("cannot read from {program}"))?;
    // The program may stop reading at the end of its stream.
    let _ = writer.join();
    if output.stdout.is_empty() {
        bail!("{program} gave nothing");
    }
    Ok(output.stdout)
}
