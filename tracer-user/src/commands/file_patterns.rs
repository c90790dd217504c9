//! Which files a pattern names.

use std::fs;
use std::path::{Component, Path, PathBuf};

use tracer_transactions::classes::rules::Glob;

/// Most files that a glob names, most directories that it leads through, and most entries of one that are read for it.
const FILES: usize = 64;
const DIRECTORIES: usize = 1024;
const ENTRIES: usize = 4096;

/// The files that a path or glob names; `*` stands for any part of one component.
pub(super) fn expand(pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for component in Path::new(pattern).components() {
        let Component::Normal(part) = component else { continue };
        let text = part.to_string_lossy();
        if !text.contains('*') {
            for path in &mut found {
                path.push(part);
            }
            continue;
        }
        let glob = Glob::new(&text);
        let entries = found.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten().take(ENTRIES));
        found =
            entries.filter(|entry| glob.fits(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect();
        found.sort_unstable();
        found.truncate(DIRECTORIES);
    }
    found.retain(|path| path.is_file());
    found.truncate(FILES);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_name_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/bin/shop", "b/bin/shop", "b/bin/shop.txt", "b/lib/shop"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let root = dir.path().display().to_string();
        assert_eq!(expand(&format!("{root}/*/bin/shop")).len(), 2);
        assert_eq!(expand(&format!("{root}/b/*/sh*")).len(), 3);
        // Directories before it that lack the file do not count.
        for n in 0..FILES {
            fs::create_dir_all(dir.path().join(format!("0{n}"))).unwrap();
        }
        assert_eq!(expand(&format!("{root}/*/bin/shop")).len(), 2);
        assert_eq!(expand(&format!("{root}/b/bin/shop")), [dir.path().join("b/bin/shop")]);
        assert!(expand(&format!("{root}/b/bin")).is_empty(), "a directory");
        assert!(expand("/nowhere/*").is_empty());
    }
}
