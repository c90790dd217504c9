//! The kernel tests: `tests/tests/SUBJECT/FILE.rs`, compiled as one program a subject, run a file at a time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// The tests of a file of `tests/tests/`, or those of what all files share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelTestFile {
    /// Name of the file, without its end; of the package where they are those of what all share.
    pub(crate) name: String,
    /// The program with this subject's tests.
    pub(crate) program: PathBuf,
    /// Path of the module in the program, which tests' names begin with; empty for what all share.
    prefix: String,
}

impl KernelTestFile {
    /// Arguments that make the program run these tests of the file (all where `only` is empty).
    pub(crate) fn arguments(&self, only: &[&str]) -> Vec<String> {
        match only {
            [] if self.prefix.is_empty() => Vec::new(),
            [] => vec![self.prefix.clone()],
            only => ["--exact".to_owned()].into_iter().chain(only.iter().map(|test| self.full(test))).collect(),
        }
    }

    /// A test's name as the program prints it.
    fn full(&self, test: &str) -> String {
        format!("{}{test}", self.prefix)
    }
}

/// The package's library, which all files share.
const LIBRARY: &str = "tracer_tests";

/// Which kernel tests to build.
pub(crate) enum Selection {
    /// Those of all files.
    All,
    /// Those of these files, and perhaps the unit tests of what all share.
    Files { names: Vec<String>, and_library: bool },
}

/// Builds kernel tests; returns those of the chosen files, by name.
pub(crate) fn build(choice: &Selection) -> Result<Vec<KernelTestFile>> {
    let mut command = shell::cargo();
    command.args(["test", "--locked"]);
    build_by(command, choice)
}

/// The same with another `cargo test` command.
pub(crate) fn build_by(mut command: Command, choice: &Selection) -> Result<Vec<KernelTestFile>> {
    // Of the whole workspace, as CI builds all tests: by itself, the package would have its dependencies with other features.
    command.args(shell::TEST_PROFILE).args(["--workspace", "--no-run"]);
    let root = shell::root();
    let mut chosen = BTreeSet::new();
    match choice {
        Selection::All => chosen.extend(subjects(&root)?.into_iter().map(|(subject, _)| subject)),
        Selection::Files { names, and_library } => {
            for name in names {
                chosen.insert(subject(&root, name)?);
            }
            if chosen.is_empty() && !and_library {
                return Ok(Vec::new());
            }
            command.args(and_library.then_some("--lib"));
        }
    }
    command.args(chosen.iter().flat_map(|subject| ["--test", subject]));
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let mut tests = Vec::new();
    for line in shell::output(&mut command)?.lines() {
        let message: Value = serde_json::from_str(line).context("cargo printed something that is not JSON")?;
        tests.extend(of_program(&message)?);
    }
    if let Selection::Files { names, and_library } = choice {
        tests.retain(|tests| if tests.prefix.is_empty() { *and_library } else { names.contains(&tests.name) });
    }
    tests.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tests)
}

/// The tests of a program that cargo says it built; none of another message.
fn of_program(message: &Value) -> Result<Vec<KernelTestFile>> {
    let target = &message["target"];
    let (Some(true), Some(program), Some(name), Some(source)) = (
        message["profile"]["test"].as_bool(),
        message["executable"].as_str(),
        target["name"].as_str(),
        target["src_path"].as_str(),
    ) else {
        return Ok(Vec::new());
    };
    let program = PathBuf::from(program);
    let source = Path::new(source);
    if !source.ends_with("main.rs") {
        // The workspace's other libraries have unit tests, too.
        if name != LIBRARY {
            return Ok(Vec::new());
        }
        return Ok(vec![KernelTestFile { name: name.to_owned(), program, prefix: String::new() }]);
    }
    let of = |name: String| KernelTestFile { prefix: format!("{name}::"), name, program: program.clone() };
    Ok(files_of(source.parent().unwrap_or(source))?.into_iter().map(of).collect())
}

/// The subject that a file belongs to.
///
/// # Errors
/// There is no such file.
pub(crate) fn subject(root: &Path, file: &str) -> Result<String> {
    let found = subjects(root)?.into_iter().find(|(_, files)| files.iter().any(|name| name == file));
    let found = found.map(|(subject, _)| subject);
    found.with_context(|| format!("there is no {file}.rs below tests/tests/; `cargo xtask test --list` names all"))
}

/// Every subject with its files.
pub(crate) fn subjects(root: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let dir = root.join("tests/tests");
    let mut subjects = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", dir.display()))?.path();
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            subjects.push((name, files_of(&path)?));
        }
    }
    subjects.sort();
    Ok(subjects)
}

/// Names of the files of a subject's directory, without the one that lists them.
fn files_of(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", dir.display()))?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "rs") && stem != "main" {
            names.push(stem);
        }
    }
    names.sort();
    Ok(names)
}

/// What is wrong with the subjects, as lines for `cargo xtask tidy`: a file that is not compiled, a name that is not unique.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (subject, files) in subjects(root)? {
        let main = root.join("tests/tests").join(&subject).join("main.rs");
        let list = fs::read_to_string(&main).with_context(|| format!("cannot read {}", main.display()))?;
        for file in &files {
            let path = format!("tests/tests/{subject}/{file}.rs:1");
            if !list.lines().any(|line| line == format!("mod {file};")) {
                wrong.push(format!("{path}: its subject's main.rs has no `mod {file};`"));
            }
            if !seen.insert(file.clone()) {
                wrong.push(format!("{path}: another subject has a file of this name"));
            }
            // A test program runs the names that contain what it is asked for.
            if let Some(longer) = files.iter().find(|other| *other != file && other.ends_with(file.as_str())) {
                wrong.push(format!("{path}: asked for {file}, its program would run {longer} too"));
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_run_by_its_module_and_a_test_by_its_name_in_it() {
        let tests =
            |prefix: &str| KernelTestFile { name: "cpu".into(), program: "/t/cpu".into(), prefix: prefix.into() };
        assert_eq!(tests("cpu::").arguments(&[]), ["cpu::"]);
        assert_eq!(tests("cpu::").arguments(&["a", "b"]), ["--exact", "cpu::a", "cpu::b"]);
        assert_eq!(tests("").arguments(&[]), [""; 0]);
    }

    #[test]
    fn every_file_is_compiled_and_has_its_subject() {
        let root = shell::root();
        assert_eq!(check(&root).expect("files"), Vec::<String>::new());
        assert_eq!(subject(&root, "relay_cost").expect("a subject"), "relay");
        assert!(subject(&root, "main").is_err() && subject(&root, "unknown").is_err());
    }
}
