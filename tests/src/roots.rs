//! Roots other than the host's, as services in a `chroot` and containers have them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::outcome;

/// A directory with a program and the libraries it needs.
pub fn with_program(dir: &Path, program: &Path) -> PathBuf {
    let root = dir.join("root");
    let copy = |file: &Path| {
        let to = root.join(file.strip_prefix("/").unwrap_or(file));
        let made = std::fs::create_dir_all(to.parent().unwrap_or(&to)).and_then(|()| std::fs::copy(file, &to));
        made.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    };
    copy(program);
    for library in libraries(program) {
        copy(&library);
    }
    root
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
