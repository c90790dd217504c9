//! Interpreted functions in stacks, Python's, PHP's, JavaScript's and Java's: what they are called, and where they stand between native frames.

use rustc_hash::FxHashMap;
use tracer_common::interpreter::{
    FRAME_ENTRY, FRAME_NATIVE_SHIFT, FRAME_SHIM, InterpretedFrame, InterpreterOutcome, Language, PYTHON_GREENLETS,
};
use tracer_common::unwind::Outcome;
use tracer_runtimes::hotspot::Hotspot;
use tracer_runtimes::process_memory::MemoryFile;
use tracer_runtimes::python_code::{Code, line, read};
use tracer_runtimes::v8_constants::V8Constants;
use tracer_runtimes::{php_code, v8_code, v8_frames};

/// The interpreters' loops: one native frame of it runs one group of frames.
const LOOPS: &[&str] = &["_PyEval_EvalFrameDefault", "execute_ex"];
/// Functions of the interpreter that only lead from one function to another. Between two groups they say nothing.
const GLUE: &[&str] = &[
    "_PyEval_EvalCodeWithName",
    "_PyEval_EvalFrame",
    "_PyEval_Vector",
    "_PyFunction_FastCallDict",
    "_PyFunction_Vectorcall",
    "_PyObject_Call",
    "_PyObject_Call_Prepend",
    "_PyObject_FastCallDictTstate",
    "_PyObject_MakeTpCall",
    "_PyObject_Vectorcall",
    "_PyVectorcall_Call",
    "PyEval_EvalCodeEx",
    "PyEval_EvalFrameEx",
    "PyObject_Call",
    "PyObject_CallFunctionObjArgs",
    "PyObject_Vectorcall",
    "PyVectorcall_Call",
    UNKNOWN,
    "call_function",
    "do_call_core",
    "function_code_fastcall",
    "method_vectorcall",
    "vectorcall_method",
    "zend_call_function",
    "zend_call_known_function",
    "zend_call_known_instance_method_with_2_params",
    "zend_generator_resume",
];

/// A native function without a name.
pub(super) const UNKNOWN: &str = "[unknown]";

/// What a function is called that could not be read.
fn nameless(language: Language) -> &'static str {
    match language {
        Language::Python => "[Python function]",
        Language::Php => "[PHP function]",
        Language::JavaScript => "[JavaScript function]",
        Language::Java => "[Java method]",
    }
}

/// Between a class and its `__init__` stands a frame without a function (3.13): file and name are this.
const INIT: &str = "__init__";

/// Bytes of line tables that are kept of one process.
const TABLES: usize = 1 << 20;

/// How functions of an interpreted language are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lines {
    /// With the line their definition begins at.
    #[default]
    Definition,
    /// With the line that runs.
    Running,
}

/// The same of each language.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShownLines {
    /// Python.
    pub python: Lines,
    /// PHP.
    pub php: Lines,
}

impl ShownLines {
    /// How the function of a frame is shown.
    pub(super) fn of(self, frame: &InterpretedFrame) -> Lines {
        match Language::of_flags(frame.flags) {
            Language::Python => self.python,
            Language::Php => self.php,
            Language::JavaScript | Language::Java => Lines::Definition,
        }
    }
}

/// A function as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// The file it is from; `None` = it could not be read, or the function is the interpreter's own.
    pub(super) file: Option<String>,
}

/// What a native frame runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NativeCode {
    /// Its own code.
    Itself,
    /// An interpreted function.
    Function(Function),
    /// One that could not be read.
    Unread(Function),
}

/// What a frame stands for.
enum Named {
    /// A function.
    Function(Function),
    /// A function of the interpreter's own, which its loop does not run.
    Own(Function),
    /// Nothing that was written: a frame of the interpreter's own.
    Nothing,
    /// A function that could not be read.
    Unknown,
}

/// A function that was looked for.
#[derive(Debug)]
enum FunctionLookup {
    Code(Code),
    /// It could not be read, this many times it was seen. PHP frees functions at the end of each request and has the same ones
    /// again in the next, so one that was gone when it was read may be read another time.
    Missed(u32),
}

/// A function that could not be read is tried again each of the first times that it is seen, then once in this many times.
const ALWAYS_TRIED: u32 = 16;

/// What is known of the functions of a process.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// By [`key`].
    known: FxHashMap<(u64, u64), FunctionLookup>,
    /// Bytes of line tables.
    tables: usize,
    /// Once one of JavaScript was looked for.
    v8: Option<V8>,
    /// Once one of Java was looked for.
    java: Option<Java>,
}

/// What is known of V8 in a process: its constants, if they can be read, and where lines of scripts end.
#[derive(Debug)]
struct V8 {
    constants: Option<V8Constants>,
    lines: v8_code::ScriptLines,
}

/// What is known of the virtual machine in a process; `None`: it cannot be read.
#[derive(Debug)]
struct Java(Option<Hotspot>);

impl V8 {
    fn of(pid: u32) -> Self {
        Self { constants: v8_frames::of_process(pid), lines: v8_code::ScriptLines::default() }
    }
}

/// What tells functions of a process apart: address and cookie of the code object. Closures of PHP are copies of one function, and
/// its cookie is made of what it says of itself.
fn key(frame: &InterpretedFrame) -> (u64, u64) {
    match Language::of_flags(frame.flags) {
        Language::Python | Language::JavaScript | Language::Java => (frame.code, frame.cookie),
        Language::Php => (0, frame.cookie),
    }
}

impl Functions {
    /// Code objects that were looked at.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Reads the code objects of these frames that are not known yet: how many were read, and could not be.
    pub(super) fn learn(&mut self, pid: u32, frames: &[InterpretedFrame], shown: ShownLines) -> (u64, u64) {
        let (mut process, mut counts) = (None, (0, 0));
        for frame in frames.iter().filter(|frame| frame.flags & FRAME_SHIM == 0) {
            let key = key(frame);
            let lines = shown.python == Lines::Running && self.tables < TABLES;
            let missed = match self.known.get_mut(&key) {
                // Read before without its lines.
                Some(FunctionLookup::Code(code)) if lines && code.lacks_lines(frame) => 0,
                Some(FunctionLookup::Code(_)) => continue,
                Some(FunctionLookup::Missed(times)) => {
                    *times = times.saturating_add(1);
                    if *times > ALWAYS_TRIED && !times.is_multiple_of(ALWAYS_TRIED) {
                        continue;
                    }
                    *times
                }
                None => 1,
            };
            if process.is_none() {
                process = MemoryFile::open(pid).ok();
            }
            // Of a process that is gone; its code objects may have been seen before under another address only.
            let Some(process) = &mut process else { return counts };
            let code = match Language::of_flags(frame.flags) {
                Language::Python => read(process, frame, lines),
                Language::Php => php_code::read(process, frame),
                Language::JavaScript => {
                    let V8 { constants, lines } = self.v8.get_or_insert_with(|| V8::of(pid));
                    constants.and_then(|known| v8_code::read(process, &known, frame, lines))
                }
                Language::Java => {
                    let Java(machine) = self.java.get_or_insert_with(|| Java(Hotspot::of(pid)));
                    let name = machine.as_mut().and_then(|machine| machine.interpreted(frame));
                    name.map(|name| Code { name, file: String::new(), first: 0, table: Vec::new() })
                }
            };
            if missed == 0 && code.is_none() {
                continue;
            }
            let named = code.is_some();
            self.tables += code.as_ref().map_or(0, |code| code.table.len());
            counts = (counts.0 + u64::from(named), counts.1 + u64::from(!named));
            self.known.insert(key, code.map_or(FunctionLookup::Missed(missed), FunctionLookup::Code));
        }
        counts
    }

    /// What a frame stands for.
    fn name(&self, frame: &InterpretedFrame, shown: ShownLines) -> Named {
        let Some(FunctionLookup::Code(code)) = self.known.get(&key(frame)) else { return Named::Unknown };
        let lines = shown.of(frame);
        let language = Language::of_flags(frame.flags);
        if language == Language::Java {
            return Named::Function(Function { name: code.name.clone(), file: None });
        }
        if language != Language::Python {
            if code.file.is_empty() {
                return Named::Own(Function { name: format!("{} ({})", code.name, language.name()), file: None });
            }
            let line = if lines == Lines::Running && frame.at != 0 { frame.at } else { code.first };
            let place = if line == 0 { String::new() } else { format!(":{line}") };
            let name = format!("{} ({}{place})", code.name, short(&code.file));
            return Named::Function(Function { name, file: Some(code.file.clone()) });
        }
        if code.name == INIT && code.file == INIT {
            return Named::Nothing;
        }
        let running = (lines == Lines::Running && !code.table.is_empty()).then(|| line(frame, code)).flatten();
        let Code { name, file, first, .. } = code;
        Named::Function(Function {
            name: format!("{name} ({}:{})", short(file), running.unwrap_or(*first)),
            file: Some(file.clone()),
        })
    }

    /// What each of `native` frames runs, where its slots say so.
    pub(super) fn in_native(&self, frames: &[InterpretedFrame], native: usize) -> Vec<NativeCode> {
        let mut found = vec![NativeCode::Itself; native];
        for frame in frames {
            let language = Language::of_flags(frame.flags);
            if !language.is_in_native_frames() {
                continue;
            }
            let Some(place) = found.get_mut((frame.flags >> FRAME_NATIVE_SHIFT) as usize) else { continue };
            *place = match self.name(frame, ShownLines::default()) {
                Named::Function(function) | Named::Own(function) => NativeCode::Function(function),
                Named::Nothing | Named::Unknown => {
                    NativeCode::Unread(Function { name: nameless(language).into(), file: None })
                }
            };
        }
        found
    }

    /// The functions of each group of frames, innermost first; `None` if no function has a name: then they are none.
    pub(super) fn groups(&self, frames: &[InterpretedFrame], shown: ShownLines) -> Option<Vec<Vec<Function>>> {
        let (mut groups, mut open, mut functions, mut named) = (Vec::new(), Vec::new(), 0, 0);
        for frame in frames {
            let mut ends = frame.flags & FRAME_ENTRY != 0;
            if frame.flags & FRAME_SHIM == 0 {
                functions += 1;
                match self.name(frame, shown) {
                    Named::Own(function) => {
                        named += 1;
                        ends = false;
                        open.push(function);
                    }
                    Named::Function(function) => {
                        named += 1;
                        open.push(function);
                    }
                    Named::Nothing => named += 1,
                    Named::Unknown => {
                        let name = nameless(Language::of_flags(frame.flags)).into();
                        open.push(Function { name, file: None });
                    }
                }
            }
            if ends {
                groups.push(std::mem::take(&mut open));
            }
        }
        // The walk ended inside it.
        if !open.is_empty() {
            groups.push(open);
        }
        (named > 0 || functions == 0).then_some(groups)
    }
}

/// Functions of V8 in its program that only lead from one function to another, by how their names begin.
const GLUE_OF_V8: &[&str] = &[
    "Builtins_CEntry_",
    "Builtins_Call",
    "Builtins_Construct",
    "Builtins_InterpreterEntryTrampoline",
    "Builtins_InterpreterPush",
    "Builtins_JSBuiltinsConstructStub",
    "Builtins_JSConstructStub",
    "Builtins_JSEntry",
    "Builtins_JSRunMicrotasksEntry",
    "Builtins_ReflectApply",
    "construct_stub_",
    UNKNOWN,
];

/// Which native frames say nothing: functions of V8 that only lead to functions of JavaScript or from there. `names` of the frames,
/// innermost first.
pub(super) fn glue_of_v8<'a>(runs: &[NativeCode], names: impl Iterator<Item = Option<&'a str>>) -> Vec<bool> {
    let leads = |name: Option<&str>| name.is_some_and(|name| GLUE_OF_V8.iter().any(|begin| name.starts_with(begin)));
    let mut glue: Vec<bool> =
        runs.iter().zip(names).map(|(runs, name)| *runs == NativeCode::Itself && leads(name)).collect();
    // Only runs of them beside a function of JavaScript: elsewhere a function without a name may be anything.
    let is_function = |at: Option<&NativeCode>| at.is_some_and(|runs| *runs != NativeCode::Itself);
    let mut at = 0;
    while at < glue.len() {
        let end = glue.iter().skip(at).position(|leads| !leads).map_or(glue.len(), |count| at + count);
        let beside = is_function(at.checked_sub(1).and_then(|before| runs.get(before))) || is_function(runs.get(end));
        // The innermost frame is where the time goes.
        let from = if at == 0 { 1 } else { at };
        for (place, leads) in glue.iter_mut().enumerate().take(end).skip(at) {
            *leads = beside && place >= from;
        }
        at = end + 1;
    }
    glue
}

/// The end of a path that tells a file from others: below where libraries are installed, else with its directory.
pub(super) fn short(path: &str) -> &str {
    if path.starts_with("node:") {
        return path;
    }
    for installed in ["/site-packages/", "/dist-packages/", "/node_modules/"] {
        if let Some((_, rest)) = path.rsplit_once(installed) {
            return rest;
        }
    }
    let mut slashes = path.rmatch_indices('/').map(|(at, _)| at);
    match (slashes.next(), slashes.next()) {
        (Some(_), Some(before)) => path.get(before + 1..).unwrap_or(path),
        (Some(0), None) => path.get(1..).unwrap_or(path),
        _ => path,
    }
}

/// What a native frame is to interpreted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Native {
    /// The interpreter's loop.
    Loop,
    /// Leads from one function to another.
    Glue,
    /// Anything else.
    Other,
}

impl Native {
    /// By its name.
    pub(super) fn of(name: &str) -> Self {
        // Compilers split functions, and say so behind a dot.
        let base = name.split_once('.').map_or(name, |(base, _)| base);
        if LOOPS.contains(&base) {
            Self::Loop
        } else if GLUE.contains(&base) {
            Self::Glue
        } else {
            Self::Other
        }
    }
}

/// A part of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The native frame with this index.
    Native(usize),
    /// Python's group with this index.
    Group(usize),
}

/// How far both walks came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) native: Outcome,
    pub(super) python: InterpreterOutcome,
    /// Whether native stacks go on where Python's end.
    pub(super) greenlets: bool,
}

impl Ends {
    /// Of a stack with these frames.
    pub(super) fn of(native: Outcome, python: InterpreterOutcome, frames: &[InterpretedFrame]) -> Self {
        Self { native, python, greenlets: frames.iter().any(|frame| frame.flags & PYTHON_GREENLETS != 0) }
    }
}

/// Puts groups in the place of the native frames that run them; all innermost first.
pub(super) fn merge(native: &[Native], groups: usize, ends: Ends) -> Vec<Part> {
    let whole = matches!(ends.native, Outcome::Complete | Outcome::ChainEnd);
    let loops = native.iter().filter(|frame| **frame == Native::Loop).count();
    let all = || (0..groups).map(Part::Group);
    if groups == 0 {
        return (0..native.len()).map(Part::Native).collect();
    }
    if loops < groups && (whole || ends.native == Outcome::FramePointers) {
        // Not every run of the loop was recognised, or a walk by frame pointers passed over some: only where the thread is is
        // certain, and what is outside of all.
        let inner = native.first().filter(|frame| **frame != Native::Loop).map(|_| Part::Native(0));
        let last = native.iter().rposition(|frame| *frame == Native::Loop).filter(|_| whole);
        let outer = last.map_or(native.len(), |last| last + 1)..native.len();
        return inner.into_iter().chain(all()).chain(outer.map(Part::Native)).collect();
    }
    // Where both walks came to their ends, the innermost runs of the loop have no frame yet.
    let both = whole && ends.python == InterpreterOutcome::Complete && !ends.greenlets;
    let mut without = if both { loops - groups } else { 0 };
    let (mut parts, mut next) = (Vec::with_capacity(native.len()), 0);
    // Glue since the last group.
    let mut glue: Option<usize> = None;
    for (index, frame) in native.iter().enumerate() {
        if *frame == Native::Loop && without > 0 {
            without -= 1;
        } else if *frame == Native::Loop && next < groups {
            if let Some(from) = glue {
                parts.truncate(from);
            }
            parts.push(Part::Group(next));
            next += 1;
            glue = Some(parts.len());
            continue;
        } else if *frame != Native::Glue {
            glue = None;
        }
        parts.push(Part::Native(index));
    }
    parts.extend((next..groups).map(Part::Group));
    parts
}

#[cfg(test)]
mod tests;
