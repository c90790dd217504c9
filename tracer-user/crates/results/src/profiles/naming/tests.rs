//! Names of the test program's own functions, and what is kept of them.

use super::*;

#[inline(never)]
fn landmark() -> u64 {
    std::hint::black_box(7)
}

fn stack(user: &[u64]) -> Arc<Stack> {
    Arc::new(Stack {
        process: (std::process::id(), 0),
        user: user.into(),
        kernel: Box::default(),
        outcome: Outcome::FramePointers,
        interpreted: Box::default(),
        interpreter_outcome: InterpreterOutcome::None,
        language: Language::Python,
        off_cpu: None,
        lines: false,
    })
}

/// A child with a file of names; both go with it.
struct Child(std::process::Child);

impl Child {
    fn with(names: &str) -> Self {
        let child = Self(std::process::Command::new("sleep").arg("60").spawn().unwrap());
        std::fs::write(child.path(), names).unwrap();
        child
    }

    fn path(&self) -> String {
        format!("/tmp/perf-{}.map", self.0.id())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn names_that_processes_wrote_stay_within_their_room() {
    let lines: Vec<String> = (0..5000).map(|n| format!("{n:x} 1 {}{n}\n", "x".repeat(80))).collect();
    let text = lines.concat();
    let children = [(); 5].map(|()| Child::with(&text));
    let mut namer = Namer::new(&[]);
    namer.maps_most = 200_000;
    for child in children.iter().chain(&children) {
        let pid = child.0.id();
        let mut known = namer.processes.remove(&pid).unwrap_or_default();
        let names = known.jit.take().unwrap_or_else(|| namer.made(pid));
        assert!(names.is_cut && names.bytes() <= 100_000 && names.find(7).is_some(), "{}", names.bytes());
        known.jit = Some(names);
        namer.processes.insert(pid, known);
        assert!(namer.maps_bytes() <= 200_000, "{}", namer.maps_bytes());
    }
    let kept = namer.processes.values().filter(|known| known.jit.is_some()).count();
    assert!((1..=2).contains(&kept) && namer.maps_cut > 10, "{kept} {}", namer.maps_cut);
    namer.clear();
    assert_eq!(namer.maps_bytes(), 0);
}

#[test]
fn what_was_found_once_is_not_looked_for_again() {
    assert_eq!(landmark(), 7);
    let (pid, here) = (std::process::id(), landmark as *const () as u64 + 1);
    let mut namer = Namer::new(&[]);
    let first = namer.name(pid, &[stack(&[here]), stack(&[here, 1]), stack(&[])], u64::MAX, 4);
    assert!(first[0].len() == 1 && first[0][0].contains("landmark"), "{first:?}");
    assert_eq!((&*first[1][0], first[1].len()), ("[callers unknown]", 2));
    assert_eq!(&*first[2][0], "[no stack]");
    assert_eq!(namer.sizes().2, 1, "an address that nothing is mapped at may be something tomorrow");
    assert!(namer.next_rest().is_some());
    assert!(namer.rest(Instant::now() + REST_KERNEL) && namer.next_rest().is_none());
    // Without any table open: the name itself is the same one.
    let again = namer.name(pid, &[stack(&[here])], u64::MAX, 4);
    assert!(namer.next_rest().is_none(), "tables were opened");
    assert_eq!(again[0][0].address(), first[0][0].address());
    assert!(first[0][0].file().is_some_and(|file| file.contains("tracer_results")), "{first:?}");
    namer.forget(pid);
    assert_eq!(namer.sizes().2, 0);
    // Unused names go with the tables.
    drop((first, again));
    namer.name(pid, &[stack(&[1])], u64::MAX, 4);
    namer.rest(Instant::now() + REST_KERNEL);
    assert_eq!(namer.sizes().0, 0);
    namer.processes_most = 4;
    for other in 0..5 {
        namer.name(u32::MAX - other, &[stack(&[2])], u64::MAX, 4);
    }
    // The longest unused one goes for each that is too many.
    assert_eq!((namer.processes_dropped, namer.sizes().1), (2, 4));
    assert_eq!((namer.known_for(pid), namer.known_for(u32::MAX)), (None, None));
    assert!(namer.known_for(u32::MAX - 1).is_some());
}

#[test]
fn lines_are_shown_where_they_are_wanted() {
    let (pid, here) = (std::process::id(), landmark as *const () as u64 + 1);
    let mut namer = Namer::new(&[]);
    namer.native_lines = true;
    let named = namer.name(pid, &[stack(&[here])], u64::MAX, 4);
    let frame = named[0].last().unwrap();
    assert!(frame.contains("(naming/tests.rs:") && frame.function().ends_with("landmark"), "{frame:?}");
    let source = frame.source().unwrap();
    assert!(frame.ends_with(&format!(":{})", source.line)) && source.path.ends_with("naming/tests.rs"), "{frame:?}");
    // Without debug information there are none.
    let mut little = Namer::new(&[]);
    little.native_lines = true;
    assert!(little.name(pid, &[stack(&[here])], 0, 4)[0].last().unwrap().source().is_none());
}

#[test]
fn tables_of_few_processes_are_open() {
    let mut namer = Namer::new(&[]);
    for (pid, open) in [(1, 1), (2, 2), (1, 2), (3, 1), (2, 2)] {
        namer.make_room(pid, 2);
        assert_eq!(namer.opened_for.len(), open, "{pid}");
        let symbolizer = namer.symbolizer(None, 0);
        namer.user = Some((symbolizer, Instant::now()));
    }
    namer.rest(Instant::now() + REST);
    namer.make_room(4, 2);
    assert_eq!(namer.opened_for.len(), 1, "those let go are not counted");
}

#[test]
fn debug_information_that_is_open_stays_within_its_bound() {
    let one = |n: u64| DebugFiles::test(&[(n, 60)]);
    let mut namer = Namer::new(&[]);
    for n in [1, 1, 2, 3] {
        let symbolizer = namer.symbolizer(Some(&one(n)), 125);
        namer.user = Some((symbolizer, Instant::now()));
        assert!(namer.open.bytes() <= 125);
    }
    // The third did not fit beside the others.
    assert_eq!(namer.open, one(3));
    namer.symbolizer(None, 125);
    assert_eq!(namer.open, one(3));
    // Taken away, and nothing in its place.
    namer.symbolizer(None, 125);
    assert_eq!(namer.open, DebugFiles::default());
}

#[test]
fn an_incomplete_stack_says_so_at_its_root() {
    let here = landmark as *const () as u64 + 1;
    let of = |outcome| {
        let process = (std::process::id(), 0);
        Arc::new(Stack {
            process,
            user: [here, 1].into(),
            kernel: Box::default(),
            outcome,
            interpreted: Box::default(),
            interpreter_outcome: InterpreterOutcome::None,
            language: Language::Python,
            off_cpu: None,
            lines: false,
        })
    };
    let stacks = [Outcome::NoRule, Outcome::Complete, Outcome::FramePointers].map(of);
    let named = Namer::new(&[]).name(std::process::id(), &stacks, u64::MAX, 4);
    let roots: Vec<&str> = named.iter().map(|frames| &*frames[0]).collect();
    // A walk has found mappings at all its addresses; of a chain of frame pointers that is unknown.
    assert_eq!(roots, ["[stack incomplete: no unwind information]", "[unknown]", "[callers unknown]"]);
    assert_eq!(named[0].len(), 3);
}
