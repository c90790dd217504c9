//! Further Python interpreters, and the libraries that `cargo xtask test` installs for them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::go::wheels;

/// The version tested in addition to the system's.
const OTHER: &str = "3.13";

/// Python interpreters other than the system's: those that `TRACER_PYTHONS` names (paths, as in `PATH`), with their
/// libraries; else pyenv's for the version of the installed wheels. Each with its version, as `3.13`.
pub fn others() -> Vec<(&'static str, String)> {
    let named = std::env::var_os("TRACER_PYTHONS");
    let paths: Vec<PathBuf> = match &named {
        Some(paths) => std::env::split_paths(paths).collect(),
        None => pyenv().into_iter().collect(),
    };
    versions(&paths)
}

/// The interpreters of Debian's unstable release, which only the full tier installs.
pub fn newest() -> Vec<(&'static str, String)> {
    let paths = std::env::var_os("TRACER_NEWEST_PYTHONS").unwrap_or_default();
    versions(&std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect::<Vec<_>>())
}

fn versions(paths: &[PathBuf]) -> Vec<(&'static str, String)> {
    // Names of programs are static everywhere else; a test leaks only a few.
    let leak = |path: &PathBuf| &*Box::leak(path.to_string_lossy().into_owned().into_boxed_str());
    paths.iter().map(|path| (leak(path), version(path))).collect()
}

/// pyenv's interpreter of [`OTHER`].
fn pyenv() -> Option<PathBuf> {
    let home = || std::env::home_dir().map(|home| home.join(".pyenv"));
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home)?;
    let begin = format!("{OTHER}.");
    let all = std::fs::read_dir(root.join("versions")).into_iter().flatten().flatten();
    let mut of = all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin));
    of.find_map(|entry| Some(entry.path().join(format!("bin/python{OTHER}"))).filter(|path| path.is_file()))
}

/// An interpreter's own version.
fn version(path: &Path) -> String {
    let say = "import sys; print('%d.%d' % sys.version_info[:2])";
    let done = std::process::Command::new(path).args(["-c", say]).output();
    let done = done.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// `PYTHONPATH` with the libraries installed for an interpreter first; `None` for the system's.
pub fn libraries(program: &str) -> Option<OsString> {
    let (_, version) = Path::new(program).file_name()?.to_str()?.split_once("python3.")?;
    let end = format!("-py3.{version}");
    let all = std::fs::read_dir(wheels()).into_iter().flatten().flatten().map(|entry| entry.path());
    let of = all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&end)));
    let mut paths: Vec<PathBuf> = of.collect();
    let before = std::env::var_os("PYTHONPATH").unwrap_or_default();
    paths.extend(std::env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()));
    std::env::join_paths(paths).ok()
}
