//! Recordings of real programs, fresh and spoilt, give the spans that they gave when a change of attribution was last accepted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracer_tests::recording::{Recording, summary};
use tracer_tests::{agent, scratch};

/// Spoilt copies of each.
const COPIES: u64 = 4;

/// The files of `tests/recordings/`.
fn recordings() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let all = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut all: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
    all.retain(|path| path.to_string_lossy().ends_with(".tracer.gz"));
    all.sort();
    all
}

fn output(command: &mut Command) -> Vec<u8> {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// What the agent's binary gives of a recording: of the fresh one in words, of each spoilt copy the number of spans and their
/// digest.
fn given(recording: &Path, dir: &Path) -> String {
    let (plain, spans) = (dir.join("recording"), dir.join("spans"));
    fs::write(&plain, output(Command::new("gzip").arg("-dc").arg(recording))).expect("a file");
    let fresh = Recording::read(&plain).expect("a recording");
    let mut text = String::new();
    for seed in 0..=COPIES {
        fresh.spoilt(seed).write(&plain).expect("a file");
        output(Command::new(agent::binary()).arg("replay").arg(&plain).arg("--transactions").arg(&spans));
        let summary = summary(&fs::read_to_string(&spans).expect("spans")).expect("a summary");
        fs::remove_file(&spans).expect("a file");
        match seed {
            0 => text += &format!("fresh: {summary}"),
            _ => text += &format!("spoilt by {seed}: {}\n", summary.lines().next().expect("a line")),
        }
    }
    text
}

#[test]
fn recordings_give_the_spans_that_were_accepted() {
    let (all, dir) = (recordings(), scratch());
    assert!(all.len() >= 8, "{all:?}");
    let mut changed = String::new();
    for recording in &all {
        let name = recording.to_string_lossy().replace(".tracer.gz", ".txt");
        let given = given(recording, dir.path());
        assert!(given.contains(": c"), "{name}: no call has a grade:\n{given}");
        if std::env::var_os("TRACER_ACCEPT").is_some() {
            fs::write(&name, &given).expect("a file");
            continue;
        }
        let accepted = fs::read_to_string(&name).unwrap_or_default();
        let only = |text: &str, other: &str, mark: &str| {
            let own = text.lines().filter(|line| !other.lines().any(|known| known == *line));
            own.map(|line| [mark, line, "\n"].concat()).collect::<String>()
        };
        if accepted != given {
            changed += &format!("{name}:\n{}{}", only(&accepted, &given, "- "), only(&given, &accepted, "+ "));
        }
    }
    assert!(
        changed.is_empty(),
        "attribution changed. `cargo xtask differential main` shows each span; if that is an improvement, `cargo xtask differential --accept` takes it over:\n{changed}"
    );
}
