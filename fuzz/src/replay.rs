//! Runs a target on inputs that are there already.

use std::fs;
use std::path::Path;

/// Runs `target` on nothing, on its seeds, on its corpus, and on what fuzzing found before (`artifacts/`).
pub(crate) fn known_inputs(name: &str, target: fn(&[u8])) {
    target(&[]);
    for kind in ["seeds", "corpus", "artifacts"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(name);
        let Ok(files) = fs::read_dir(&dir) else { continue };
        for file in files {
            let path = file.unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display())).path();
            let input = fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            // Stays in a failing test's output, as its last line.
            println!("{}", path.display());
            target(&input);
        }
    }
}

#[test]
fn every_file_is_in_the_table_and_seeds_belong_to_targets() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |dir: &str| -> Vec<String> {
        let entries = fs::read_dir(package.join(dir)).unwrap_or_else(|error| panic!("cannot list {dir}: {error}"));
        entries.map(|e| e.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let known = |name: &str| crate::TARGETS.iter().any(|(target, _)| *target == name);
    for dir in ["src/targets", "seeds"] {
        let unknown: Vec<String> = names(dir).into_iter().filter(|name| !known(name) && name != "mod").collect();
        assert!(unknown.is_empty(), "{dir} has {unknown:?}, which the table of targets lacks");
    }
}
