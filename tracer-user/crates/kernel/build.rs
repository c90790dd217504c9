//! Puts the eBPF object, when it has been built, where `include_bytes_aligned!` finds it.
//!
//! The object comes from `cargo xtask build-ebpf`, which needs a compiler for BPF. Without it an empty file is embedded:
//! the crate still compiles, its tests run, and `tracer run` says what to do. `TRACER_EBPF_OBJECT` names another object.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const VARIABLE: &str = "TRACER_EBPF_OBJECT";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let object = match env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            println!("cargo:rerun-if-changed={}", path.display());
            fs::read(&path).map_err(|error| format!("{VARIABLE} names {}: {error}", path.display()))?
        }
        None => built(&out)?,
    };
    let embedded = out.join("tracer.bpf.o");
    // An unchanged object keeps its date.
    if !fs::read(&embedded).is_ok_and(|old| old == object) {
        fs::write(&embedded, object).map_err(|error| format!("cannot write {}: {error}", embedded.display()))?;
    }
    Ok(())
}

/// The object in the target directory; empty when it has not been built.
fn built(out: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let dir = target_dir(out)?.join("ebpf");
    // Cargo takes a missing file for a changed one and would compile the crate each time; a directory that exists is
    // looked through, so an object that appears later is seen.
    fs::create_dir_all(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    println!("cargo:rerun-if-changed={}", dir.display());
    Ok(fs::read(dir.join("tracer.bpf.o")).unwrap_or_default())
}

/// Cargo does not say where its target directory is; it marks it, and `OUT_DIR` is inside.
fn target_dir(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(dir) = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()) {
        return Ok(dir.to_path_buf());
    }
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    Ok(package.join("../../../target"))
}
