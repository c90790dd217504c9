//! Names of interpreted functions, and their places among the native frames.

use Native::{Glue, Loop, Other};
use Part::{Group as G, Native as N};
use proptest::prelude::*;
use tracer_common::interpreter::{FRAME_PHP, FRAME_V8, FRAME_VERSION_SHIFT, fold};

use super::*;

const BOTH: Ends = Ends { native: Outcome::Complete, python: InterpreterOutcome::Complete, greenlets: false };

#[test]
fn functions_of_javascript_stand_in_their_native_frames() {
    let frame =
        |code, place: u32| InterpretedFrame { code, cookie: 7, at: 0, flags: FRAME_V8 | place << FRAME_NATIVE_SHIFT };
    let code = |name: &str, file: &str, first| {
        FunctionLookup::Code(Code { name: name.into(), file: file.into(), first, table: Vec::new() })
    };
    let known = [
        ((1, 7), code("work", "file:///srv/shop/lib/work.mjs", 12)),
        ((5, 7), code("map", "", 0)),
        ((9, 7), code("emit", "node:events", 0)),
        ((13, 7), FunctionLookup::Missed(1)),
    ];
    let functions = Functions { known: known.into_iter().collect(), ..Functions::default() };
    let function = |name: &str, file: Option<&str>| Function { name: name.into(), file: file.map(Into::into) };
    // The last one is beyond the native frames.
    let frames = [frame(1, 0), frame(5, 2), frame(9, 3), frame(13, 4), frame(1, 9)];
    let runs = functions.in_native(&frames, 6);
    assert_eq!(
        runs,
        [
            NativeCode::Function(function("work (lib/work.mjs:12)", Some("file:///srv/shop/lib/work.mjs"))),
            NativeCode::Itself,
            NativeCode::Function(function("map (JavaScript)", None)),
            NativeCode::Function(function("emit (node:events)", Some("node:events"))),
            NativeCode::Unread(function("[JavaScript function]", None)),
            NativeCode::Itself,
        ]
    );
    let names = [UNKNOWN, "Builtins_CEntry_Return1", UNKNOWN, UNKNOWN, UNKNOWN, "main"].map(Some);
    assert_eq!(glue_of_v8(&runs, names.into_iter()), [false, true, false, false, false, false]);
}

#[test]
fn native_functions_without_a_name_are_kept_away_from_javascript() {
    let function = NativeCode::Function(Function { name: "f".into(), file: None });
    for (runs, names, glue) in [
        // Where the time goes, and a stack without any function of JavaScript.
        ("nnf", "??f", [false, true, false]),
        ("nnn", "?b?", [false, false, false]),
        // What a function calls, and what leads to it.
        ("nnf", "x?f", [false, true, false]),
        ("fnn", "f?b", [false, true, true]),
        ("fnn", "fx?", [false, false, false]),
    ] {
        let runs: Vec<NativeCode> =
            runs.chars().map(|kind| if kind == 'f' { function.clone() } else { NativeCode::Itself }).collect();
        let names = names.chars().map(|name| match name {
            '?' => Some(UNKNOWN),
            'b' => Some("Builtins_JSEntry"),
            _ => Some("uv_run"),
        });
        assert_eq!(glue_of_v8(&runs, names), glue);
    }
}

#[test]
fn groups_stand_where_the_loop_runs_them() {
    let cases: &[(&[Native], usize, Ends, &[Part])] = &[
        // A function called by C code that Python called.
        (&[Other, Loop, Other, Loop, Other], 2, BOTH, &[N(0), G(0), N(2), G(1), N(4)]),
        // What only leads from one to the next is left out, at the ends it is not.
        (&[Glue, Loop, Glue, Glue, Loop, Glue, Other], 2, BOTH, &[N(0), G(0), G(1), N(5), N(6)]),
        (&[Loop, Glue, Other, Loop], 2, BOTH, &[G(0), N(1), N(2), G(1)]),
        // No Python.
        (&[Loop, Other], 0, BOTH, &[N(0), N(1)]),
        // A run that has just begun has no frame.
        (&[Loop, Glue, Loop, Loop, Other], 2, BOTH, &[N(0), N(1), G(0), G(1), N(4)]),
        // A greenlet's frames end, and its native stack goes on.
        (&[Loop, Loop, Other], 1, Ends { greenlets: true, ..BOTH }, &[G(0), N(1), N(2)]),
        // The native walk ended early.
        (&[Other, Loop, Other], 3, Ends { native: Outcome::NoRule, ..BOTH }, &[N(0), G(0), N(2), G(1), G(2)]),
        (&[], 2, Ends { native: Outcome::NoRegisters, ..BOTH }, &[G(0), G(1)]),
        // Python's walk ended early.
        (
            &[Loop, Loop, Loop, Other],
            2,
            Ends { python: InterpreterOutcome::TooDeep, ..BOTH },
            &[G(0), G(1), N(2), N(3)],
        ),
        // The loop has no name in a stripped program: only the interrupted function is certain.
        (&[Other, Other, Other], 2, BOTH, &[N(0), G(0), G(1)]),
        (&[Other, Other, Loop, Other], 2, BOTH, &[N(0), G(0), G(1), N(3)]),
        (&[Loop, Other, Other], 2, Ends { native: Outcome::FramePointers, ..BOTH }, &[G(0), G(1)]),
    ];
    for (native, groups, ends, expected) in cases {
        assert_eq!(merge(native, *groups, *ends), *expected, "{native:?} {groups}");
    }
}

#[test]
fn native_functions_are_known_by_name() {
    for (name, expected) in [
        ("_PyEval_EvalFrameDefault", Loop),
        ("_PyEval_EvalFrameDefault.cold", Loop),
        ("_PyEval_EvalFrameDefault.constprop.0", Loop),
        ("execute_ex", Loop),
        ("zend_call_function", Glue),
        ("_PyFunction_Vectorcall", Glue),
        ("_PyFunction_Vectorcall.localalias", Glue),
        ("list_sort_impl", Other),
        ("", Other),
    ] {
        assert_eq!(Native::of(name), expected, "{name}");
    }
}

#[test]
fn files_are_shown_by_their_end() {
    for (path, expected) in [
        ("/usr/lib/python3/dist-packages/flask/app.py", "flask/app.py"),
        ("/srv/venv/lib/python3.11/site-packages/a/b/c.py", "a/b/c.py"),
        ("/usr/lib/python3.11/json/encoder.py", "json/encoder.py"),
        ("/srv/shop/views.py", "shop/views.py"),
        ("/app.py", "app.py"),
        ("app.py", "app.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("", ""),
    ] {
        assert_eq!(short(path), expected, "{path}");
    }
}

fn frame(code: u64, flags: u32) -> InterpretedFrame {
    InterpretedFrame { code, cookie: 1, at: 0, flags }
}

const LINES: ShownLines = ShownLines { python: Lines::Running, php: Lines::Running };

#[test]
fn functions_of_php_are_shown_with_their_class() {
    let code = |name: &str, file: &str| {
        FunctionLookup::Code(Code { name: name.into(), file: file.into(), first: 3, table: Vec::new() })
    };
    let known = [((0, 1), code("Key::of", "/srv/shop/key.php")), ((0, 2), code("usort", ""))];
    let functions = Functions { known: known.into_iter().collect(), ..Functions::default() };
    let frame = |cookie, at, flags| InterpretedFrame { code: 9, cookie, at, flags: FRAME_PHP | flags };
    // A callback, called by a function of PHP's own.
    let frames = [frame(1, 7, FRAME_ENTRY), frame(2, 0, FRAME_ENTRY), frame(1, 0, FRAME_ENTRY)];
    let names = |shown| -> Vec<Vec<String>> {
        let groups = functions.groups(&frames, shown).unwrap_or_default();
        groups.into_iter().map(|group| group.into_iter().map(|function| function.name).collect()).collect()
    };
    let of = |line: u32| format!("Key::of (shop/key.php:{line})");
    assert_eq!(names(LINES), [vec![of(7)], vec!["usort (PHP)".to_owned(), of(3)]]);
    assert_eq!(names(ShownLines::default()), [vec![of(3)], vec!["usort (PHP)".to_owned(), of(3)]]);
}

#[test]
fn a_function_that_was_gone_when_it_was_read_is_named_by_a_later_request() {
    // An op array of PHP 8.2 with its name and file, in this process's own memory; what all of it stands at, and a class.
    let (mut memory, class) = (vec![0u64; 64], 0);
    let base = memory.as_ptr() as u64;
    let (name, file) = (php_code::hash_of(b"of"), php_code::hash_of(b"k.php"));
    let cookie = fold(&[name, class, file, 7]);
    let flags = FRAME_PHP | 2 << FRAME_VERSION_SHIFT;
    let frames = [InterpretedFrame { code: base, cookie, at: 0, flags }];
    let mut functions = Functions::default();
    let mut learn = || functions.learn(std::process::id(), &frames, LINES);
    for _ in 0..ALWAYS_TRIED {
        assert_eq!(learn(), (0, 1));
    }
    let tried: u64 = (0..10 * ALWAYS_TRIED).map(|_| learn().1).sum();
    assert_eq!(tried, 10);
    // The next request has the same function at the same place.
    for (at, word) in [
        (0, 2),
        (1, base + 32 * 8),
        (19, base + 40 * 8),
        (20, 7),
        (33, name),
        (34, 2),
        (35, u64::from_ne_bytes(*b"of\0\0\0\0\0\0")),
        (41, file),
        (42, 5),
        (43, u64::from_ne_bytes(*b"k.php\0\0\0")),
    ] {
        memory[at] = word;
    }
    let named: u64 = (0..ALWAYS_TRIED).map(|_| learn().0).sum();
    assert_eq!((named, memory.len()), (1, 64));
    let groups = functions.groups(&frames, LINES).unwrap_or_default();
    assert_eq!(groups.concat().first().map(|function| &*function.name), Some("of (k.php:7)"));
}

#[test]
fn frames_without_names_are_shown_beside_those_with() {
    let code = |name: &str, file: &str| {
        FunctionLookup::Code(Code { name: name.into(), file: file.into(), first: 3, table: vec![] })
    };
    let known = [((1, 1), code("a", "/x/a.py")), ((2, 1), code(INIT, INIT)), ((3, 1), FunctionLookup::Missed(1))];
    let functions = Functions { known: known.into_iter().collect(), ..Functions::default() };
    let shim = FRAME_ENTRY | FRAME_SHIM;
    let frames = [frame(0, shim), frame(1, 0), frame(2, 0), frame(9, FRAME_ENTRY), frame(3, 0)];
    let groups = functions.groups(&frames, LINES).unwrap();
    let a = Function { name: "a (x/a.py:3)".into(), file: Some("/x/a.py".into()) };
    let nameless = Function { name: nameless(Language::Python).into(), file: None };
    assert_eq!(groups, [vec![], vec![a, nameless.clone()], vec![nameless]]);
    assert_eq!(functions.groups(&[frame(3, 0), frame(9, FRAME_ENTRY)], ShownLines::default()), None);
    assert_eq!(functions.groups(&[], ShownLines::default()), Some(vec![]));
}

proptest! {
    #[test]
    fn nothing_of_python_is_lost_or_changes_its_order(
        native in proptest::collection::vec(prop_oneof![Just(Loop), Just(Glue), Just(Other)], 0..30),
        groups in 0usize..12,
        outcome in proptest::sample::select(&Outcome::ALL[..]),
        python in proptest::sample::select(&InterpreterOutcome::ALL[..]),
        greenlets: bool,
    ) {
        let parts = merge(&native, groups, Ends { native: outcome, python, greenlets });
        let of = |group: bool| parts.iter().filter_map(move |part| match part {
            G(index) => group.then_some(*index),
            N(index) => (!group).then_some(*index),
        });
        prop_assert_eq!(of(true).collect::<Vec<_>>(), (0..groups).collect::<Vec<_>>());
        prop_assert!(of(false).zip(of(false).skip(1)).all(|(one, next)| one < next && next < native.len()));
    }
}
