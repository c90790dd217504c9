//! Roots other than the host's, as services in a `chroot` and containers have them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::outcome;

/// A directory with a program and the libraries it needs.
pub fn with_program(dir: &Path, program: &Path) -> PathBuf {
    let root = dir.join("root");
    add(&root, program);
    root
}

/// Copies a file into `root` at its own path; with a program or a library, those it needs.
pub fn add(root: &Path, file: &Path) {
    copy(root, file);
    for library in libraries(file) {
        copy(root, &library);
    }
}

/// Copies a directory into `root` at its own path, with the libraries that those in it need.
pub fn add_directory(root: &Path, dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())).flatten() {
        let path = entry.path();
        // What a link leads to may not be installed.
        let Ok(about) = std::fs::metadata(&path) else { continue };
        if about.is_dir() {
            add_directory(root, &path);
        } else if path.extension().is_some_and(|end| end == "so") {
            add(root, &path);
        } else if about.is_file() {
            copy(root, &path);
        }
    }
}

/// Makes `/dev/null` in `root`.
pub fn add_null(root: &Path) {
    std::fs::create_dir_all(root.join("dev")).unwrap_or_else(|error| panic!("/dev: {error}"));
    let made = outcome(Command::new("mknod").arg(root.join("dev/null")).args(["c", "1", "3"]), "mknod");
    assert_eq!(made.code, Some(0), "{}", made.err);
}

fn copy(root: &Path, file: &Path) {
    let to = root.join(file.strip_prefix("/").unwrap_or(file));
    if to.exists() {
        return;
    }
    let made = std::fs::create_dir_all(to.parent().unwrap_or(&to)).and_then(|()| std::fs::copy(file, &to));
    made.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// The files of the libraries that a program needs.
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = outcome(Command::new("ldd").arg(program), "ldd");
    listed.out.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Mounts an overlay above the root `$1`, its writable layer in `$2`, does `$3` in it, and runs the rest there. Both layers are of
/// one file system, as containers have them: files that are copied up keep their numbers there.
const CONTAINER: &str = r#"
mkdir "$2/upper" "$2/work" "$2/merged" &&
mount -t overlay container -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged" &&
cd "$2/merged" && eval "$3" && shift 3 && exec chroot . "$@"
"#;

/// A command that runs a program of `root`, an image's, in a container: an overlay in a mount namespace of its own, where
/// `change` was done before. `dir` is the container's, and empty.
pub fn container(root: &Path, dir: &Path, change: &str) -> Command {
    std::fs::create_dir_all(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", CONTAINER, "sh"]).arg(root).arg(dir).arg(change);
    command
}
