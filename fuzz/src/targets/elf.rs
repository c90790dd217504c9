//! Arbitrary bytes as the program of a traced process: for the places of probes, those in TLS libraries included, and for symbol
//! names. blazesym reads the latter; the target calls it as the agent does.
//!
//! The agent survives a library's panic here and only loses one stack's names (`profiles/symbolize.rs`), so such a
//! panic is not a finding. A panic of our own code is, and so is anything else that ends or hangs the process.
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tracer_results::profiles::name_in_file;
use tracer_runtimes::elf::Program;
use tracer_runtimes::tls::{Candidate, Libraries, Library, inspect};

/// libFuzzer's hook ends the process at every panic; this one skips panics in libraries.
static HOOK: Once = Once::new();

pub(crate) fn run(data: &[u8]) {
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            // Cargo's directory of library sources.
            if !panic.location().is_some_and(|at| at.file().contains("/registry/src/")) {
                eprintln!("{panic}");
                std::process::abort();
            }
        }));
    });
    if let Some(program) = Program::parse(data, &["_PyRuntime", "PyContext_CopyCurrent"]) {
        let _ = program.address("_PyRuntime").and_then(|address| program.offset(address));
    }
    // A new file each time: the reader caches by inode.
    let mut file = tempfile::Builder::new().tempfile_in("/dev/shm").expect("a file in memory");
    file.write_all(data).expect("room");
    for library in Library::ALL.into_iter().map(Some).chain([None]) {
        let (open_by, lies_at) = (file.path().into(), file.path().into());
        let candidate = Candidate { library, path: String::new(), open_by, lies_at };
        let _ = inspect(&candidate, &Libraries::default());
    }
    let _ = catch_unwind(AssertUnwindSafe(|| name_in_file(file.path(), &[0, 0x10, 0x1000, 0x401000, u64::MAX])));
}
