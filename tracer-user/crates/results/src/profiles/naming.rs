//! What addresses are called: symbol tables, debug information, what a process wrote of its own code; and what was found
//! so far.
//!
//! Stacks of one program differ in their innermost address and share the others, so what was found is kept by address,
//! and tables are opened again only for addresses that were never seen. What is kept of a process is believed as long
//! as it maps the same files at the same places.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::Pid;
use blazesym::symbolize::source::{Elf, Kernel, Process, Source};
use blazesym::symbolize::{Input, Reason, Symbolized, Symbolizer};
use rustc_hash::FxHashMap;
use tracer_common::interpreter::{InterpretedFrame, InterpreterOutcome, Language};
use tracer_common::unwind::Outcome;
use tracer_model::Wait;
use tracer_runtimes::hotspot::Hotspot;

use super::debug_info::{DebugFiles, DebugInfo};
use super::debug_requests::DebugRequests;
use super::frame::{Frame, KERNEL};
use super::interpreted::{self, Ends, Functions, Lines, Native, NativeCode, Part, ShownLines, UNKNOWN};
use super::jit;
use super::mapped::{mapped, trusted_code};
use super::process_names::ProcessNames;
use super::separate_debug::by_build_id;
use super::shared_names::SharedNames;

/// Frames of a stack, outermost first.
pub(super) type Frames = Arc<[Frame]>;

/// Addresses whose names are kept, of all processes and the kernel; beyond it the processes go that were not asked for for
/// longest, until half of it is free.
pub(super) const ADDRESSES: usize = 65_536;
/// Processes whose names are kept; beyond it the one goes that was not asked for for longest.
pub(super) const PROCESSES: usize = 1024;
/// Symbol tables are let go when nothing was asked of them for this long: the kernel's take a while to read, and others' are
/// unpacked, which is not to happen for each batch of stacks.
pub(super) const REST: Duration = Duration::from_secs(40);
const REST_KERNEL: Duration = Duration::from_secs(60);

/// A stack as first seen, innermost address first.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Stack {
    /// Process and how often its id was reused or its program replaced.
    pub(super) process: (u32, u32),
    pub(super) user: Box<[u64]>,
    pub(super) kernel: Box<[u64]>,
    /// How the walk over the user frames ended.
    pub(super) outcome: Outcome,
    /// Interpreters' frames, and how the walk over them ended.
    pub(super) interpreted: Box<[InterpretedFrame]>,
    pub(super) interpreter_outcome: InterpreterOutcome,
    pub(super) language: Language,
    /// Why the thread was off the CPU; `None` = it ran.
    pub(super) off_cpu: Option<Wait>,
    /// Whether the lines that run are wanted whatever is configured: the stack of a call.
    pub(super) lines: bool,
}

/// What an address without a name is.
#[derive(Clone, Debug)]
enum Nameless {
    /// Nothing is mapped there.
    Unmapped,
    /// Something is; with the names the process has for it, outermost first, if there are any.
    Mapped(Option<Frames>),
}

/// Names addresses.
pub(super) struct Namer {
    user: Option<(Symbolizer, Instant)>,
    /// Processes whose files `user` may have open.
    opened_for: HashSet<u32>,
    kernel: Option<(Symbolizer, Instant)>,
    kernel_frames: FxHashMap<u64, Frames>,
    processes: HashMap<u32, ProcessNames>,
    processes_most: usize,
    /// Counts calls, for which process was not asked for for longest.
    turn: u64,
    pub(super) names: SharedNames,
    /// Addresses in all tables.
    addresses: usize,
    /// Processes forgotten because there were too many, and times there were too many addresses.
    pub(super) processes_dropped: u64,
    pub(super) addresses_dropped: u64,
    /// Most bytes that names from files of all processes take; see [`Self::made`].
    pub(super) maps_most: usize,
    /// Times they did not fit, or others had to go for them.
    pub(super) maps_cut: u64,
    debug_info: DebugInfo,
    /// Files that may come later, and how many had come when that was last looked at.
    requests: Option<DebugRequests>,
    came: u64,
    /// Whether debug information is being read: what `user` opens meanwhile may have it.
    reads_debug: Rc<Cell<bool>>,
    /// Debug information that is open in `user`.
    open: DebugFiles,
    /// Whether functions of compiled programs are shown with the line that runs.
    pub(super) native_lines: bool,
    /// Whether methods of Java are read from the processes that run them.
    pub(super) java: bool,
    /// How interpreted functions are shown; how many were read, and how many could not be, by language.
    pub(super) lines: ShownLines,
    pub(super) functions: [(u64, u64); Language::ALL.len()],
}

/// Most of [`Namer::maps_most`] that one process gets: one part of this many.
const MAPS_EACH: usize = 2;

/// Where separate debug files are.
fn builder(directories: &[PathBuf]) -> blazesym::symbolize::Builder {
    // Without lines there are no inlined functions.
    Symbolizer::builder().enable_code_info(true).enable_inlined_fns(true).set_debug_dirs(Some(directories))
}

impl Namer {
    /// Separate debug files are looked for in `directories`.
    pub(super) fn new(directories: &[PathBuf]) -> Self {
        Self {
            user: None,
            opened_for: HashSet::new(),
            kernel: None,
            kernel_frames: FxHashMap::default(),
            processes: HashMap::new(),
            processes_most: PROCESSES,
            turn: 0,
            names: SharedNames::default(),
            addresses: 0,
            processes_dropped: 0,
            addresses_dropped: 0,
            maps_most: 0,
            maps_cut: 0,
            debug_info: DebugInfo::new(directories),
            requests: None,
            came: 0,
            reads_debug: Rc::default(),
            open: DebugFiles::default(),
            native_lines: false,
            java: false,
            lines: ShownLines::default(),
            functions: Default::default(),
        }
    }

    /// The same; debug files that are not there are asked for.
    pub(super) fn asking(mut self, requests: Option<DebugRequests>) -> Self {
        if let Some(requests) = requests.clone() {
            self.debug_info = self.debug_info.asking(requests);
        }
        self.requests = requests;
        self
    }

    /// Looks at everything again if debug files have come.
    fn look_again(&mut self) {
        let came = self.requests.as_ref().map_or(0, DebugRequests::files);
        if came == self.came {
            return;
        }
        self.came = came;
        self.user = None;
        for known in self.processes.values_mut() {
            self.addresses -= known.frames.iter().map(FxHashMap::len).sum::<usize>();
            known.frames = Default::default();
            known.files = 0;
        }
    }

    /// Bytes of names that processes wrote into files themselves.
    pub(super) fn maps_bytes(&self) -> usize {
        self.processes.values().filter_map(|known| known.jit.as_ref()).map(jit::Names::bytes).sum()
    }

    /// Reads what a process wrote of its own code. Where all of them take too much memory the largest of the others goes, to be
    /// read again when it is needed: names that were found stay.
    fn made(&mut self, pid: u32) -> jit::Names {
        let names = jit::Names::of(pid, self.maps_most / MAPS_EACH).unwrap_or_default();
        self.maps_cut += u64::from(names.is_cut);
        while self.maps_bytes() + names.bytes() > self.maps_most {
            let bytes = |known: &ProcessNames| known.jit.as_ref().map_or(0, jit::Names::bytes);
            let Some(largest) = self.processes.values_mut().max_by_key(|known| bytes(known)) else { break };
            if largest.jit.take().is_none() {
                break;
            }
            self.maps_cut += 1;
        }
        names
    }

    /// How long ago something of the process was first read; none: it was not.
    pub(super) fn known_for(&self, pid: u32) -> Option<Duration> {
        self.processes.get(&pid).map(|known| known.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Whether the process is known to make code while it runs.
    pub(super) fn makes_code(&self, pid: u32) -> bool {
        let writes_names = |known: &ProcessNames| known.jit.as_ref().is_some_and(|names| names.bytes() > 0);
        self.processes.get(&pid).is_some_and(|known| known.java.is_some() || writes_names(known))
    }

    /// Names, processes and addresses that are kept.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.names.len(), self.processes.len(), self.addresses)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.user = None;
        self.processes = HashMap::new();
        self.kernel = None;
        self.names.clear();
        self.kernel_frames = FxHashMap::default();
        self.addresses = 0;
    }

    /// Forgets the processes that were not asked for for longest, until at most so many are left, with so many addresses.
    fn forget_oldest(&mut self, most: usize, addresses: usize) {
        let mut by_use: Vec<(u64, u32)> = self.processes.iter().map(|(pid, known)| (known.used, *pid)).collect();
        by_use.sort_unstable();
        for (_, pid) in by_use {
            if self.processes.len() <= most && self.addresses <= addresses {
                return;
            }
            self.forget(pid);
        }
    }

    /// The process is gone, or another program.
    pub(super) fn forget(&mut self, pid: u32) {
        if let Some(known) = self.processes.remove(&pid) {
            self.addresses -= known.addresses();
        }
    }

    /// How interpreted functions of a stack are shown.
    fn lines_of(&self, stack: &Stack) -> ShownLines {
        if stack.lines { ShownLines { python: Lines::Running, php: Lines::Running } } else { self.lines }
    }

    /// Reads what is not known yet of the interpreted functions of a stack. At once: they are freed sooner than native code.
    pub(super) fn learn(&mut self, pid: u32, stack: &Stack) {
        if stack.interpreted.is_empty() {
            return;
        }
        let lines = self.lines_of(stack);
        if let Some(known) = self.processes.get_mut(&pid) {
            let before = known.addresses();
            let (named, unnamed) = known.functions.learn(pid, &stack.interpreted, lines);
            self.addresses += known.addresses() - before;
            let counts = &mut self.functions[stack.language as usize];
            *counts = (counts.0 + named, counts.1 + unnamed);
        }
    }

    /// Drops tables that were unused for a while, and unused names; returns whether any table went.
    pub(super) fn rest(&mut self, now: Instant) -> bool {
        let idle = |table: &Option<(Symbolizer, Instant)>, rest| {
            table.as_ref().is_some_and(|(_, used)| now.saturating_duration_since(*used) >= rest)
        };
        let (user, kernel) = (idle(&self.user, REST), idle(&self.kernel, REST_KERNEL));
        if user {
            self.user = None;
        }
        if kernel {
            self.kernel = None;
        }
        if user || kernel {
            self.names.forget_unused();
        }
        user || kernel
    }

    /// When it is time to look for that again.
    pub(super) fn next_rest(&self) -> Option<Instant> {
        let user = self.user.as_ref().map(|(_, used)| *used + REST);
        let kernel = self.kernel.as_ref().map(|(_, used)| *used + REST_KERNEL);
        user.into_iter().chain(kernel).min()
    }

    /// Names of stacks of process `pid`, in their order, from debug information too where its files have `debug` bytes at
    /// most. Symbol tables of at most `tables` processes are open at a time.
    pub(super) fn name(&mut self, pid: u32, stacks: &[Arc<Stack>], debug: u64, tables: usize) -> Vec<Frames> {
        self.look_again();
        if self.processes.len() >= self.processes_most && !self.processes.contains_key(&pid) {
            self.processes_dropped += 1;
            self.forget_oldest(self.processes_most.saturating_sub(1), usize::MAX);
        }
        if self.addresses >= ADDRESSES {
            self.addresses_dropped += 1;
            self.forget_oldest(usize::MAX, ADDRESSES / 2);
            if self.addresses > ADDRESSES / 2 {
                self.addresses -= self.kernel_frames.len();
                self.kernel_frames = FxHashMap::default();
            }
        }
        self.turn += 1;
        let known = self.processes.entry(pid).or_default();
        known.since.get_or_insert_with(Instant::now);
        known.used = self.turn;
        for stack in stacks {
            self.learn(pid, stack);
        }
        let mut known = self.processes.remove(&pid).unwrap_or_default();
        self.addresses -= known.addresses();
        let users: Vec<Vec<u64>> = stacks.iter().map(|stack| calls(&stack.user)).collect();
        let kernels: Vec<Vec<u64>> = stacks.iter().map(|stack| calls(&stack.kernel)).collect();
        let mut odd = FxHashMap::default();
        for lines in [false, true] {
            let of = users.iter().zip(stacks).filter(|(_, stack)| self.with_lines(stack) == lines);
            let of: Vec<&[u64]> = of.map(|(user, _)| &**user).collect();
            odd.extend(self.find_user(pid, &mut known, (&of, lines), debug, tables));
        }
        self.find_kernel(&kernels);
        let mut named = Vec::with_capacity(stacks.len());
        for ((user, kernel), stack) in users.iter().zip(&kernels).zip(stacks) {
            let mut frames: Vec<Frame> = Vec::with_capacity(user.len() + kernel.len());
            frames.extend(incomplete(stack.outcome).map(|root| self.names.plain(&root)));
            // Code without frame pointers leaves the frame register with anything; what it led to is no stack.
            let followed = stack.outcome == Outcome::FramePointers;
            let wild = |call: &u64| followed && matches!(odd.get(call), Some(Nameless::Unmapped));
            let sound = user.iter().position(wild).unwrap_or(user.len());
            if sound < user.len() {
                frames.push(self.names.plain("[callers unknown]"));
            }
            let mut native: Vec<Frames> = Vec::with_capacity(sound);
            for call in user.iter().take(sound) {
                let found = known.frames[usize::from(self.with_lines(stack))].get(call);
                native.push(match (found, odd.get(call)) {
                    (Some(found), _) => Arc::clone(found),
                    (None, Some(Nameless::Mapped(Some(names)))) => Arc::clone(names),
                    (None, _) => Arc::from([self.names.plain(UNKNOWN)]),
                });
            }
            self.put_together(&native, stack, &known.functions, &mut frames);
            for call in kernel.iter().rev() {
                match self.kernel_frames.get(call) {
                    Some(found) => frames.extend(found.iter().cloned()),
                    None => frames.push(self.names.plain("[unknown]_[k]")),
                }
            }
            if frames.is_empty() {
                frames.push(self.names.plain("[no stack]"));
            }
            frames.extend(stack.off_cpu.as_ref().map(|wait| self.names.plain(&wait.frame())));
            named.push(Arc::from(frames));
        }
        self.addresses += known.addresses();
        self.processes.insert(pid, known);
        named
    }

    /// Whether functions of compiled programs are shown with the line that runs in a stack.
    fn with_lines(&self, stack: &Stack) -> bool {
        self.native_lines || stack.lines
    }

    /// Puts native frames (innermost first) and interpreted functions together, outermost first.
    fn put_together(&mut self, native: &[Frames], stack: &Stack, functions: &Functions, frames: &mut Vec<Frame>) {
        if stack.language.is_in_native_frames() {
            return self.put_in_place(native, stack, functions, frames);
        }
        let groups = functions.groups(&stack.interpreted, self.lines_of(stack));
        let missing = match (stack.interpreter_outcome, &groups) {
            (outcome, Some(_)) => outcome.missing(),
            (_, None) => InterpreterOutcome::Unreadable.missing(),
        };
        frames.extend(
            missing.map(|reason| self.names.plain(&format!("[{} functions missing: {reason}]", stack.language.name()))),
        );
        let groups = groups.unwrap_or_default();
        // The function itself comes first, what is inlined into it after.
        let kinds: Vec<Native> = native
            .iter()
            .map(|names| names.first().map_or(Native::Other, |name| Native::of(name.function())))
            .collect();
        let parts = interpreted::merge(
            &kinds,
            groups.len(),
            Ends::of(stack.outcome, stack.interpreter_outcome, &stack.interpreted),
        );
        for part in parts.into_iter().rev() {
            match part {
                Part::Native(index) => {
                    frames.extend(native.get(index).into_iter().flat_map(|names| names.iter().cloned()));
                }
                Part::Group(index) => {
                    for function in groups.get(index).into_iter().flatten().rev() {
                        frames.push(self.names.interpreted(function, stack.language));
                    }
                }
            }
        }
    }

    /// Puts interpreted functions in the place of the native frames that run them; native frames innermost first, the result
    /// outermost first.
    fn put_in_place(&mut self, native: &[Frames], stack: &Stack, functions: &Functions, frames: &mut Vec<Frame>) {
        let missing = stack.interpreter_outcome.missing();
        let language = stack.language;
        frames.extend(
            missing.map(|reason| self.names.plain(&format!("[{} functions missing: {reason}]", language.name()))),
        );
        let runs = functions.in_native(&stack.interpreted, native.len());
        let glue = match language {
            Language::JavaScript => {
                interpreted::glue_of_v8(&runs, native.iter().map(|names| names.first().map(Frame::function)))
            }
            _ => vec![false; native.len()],
        };
        for ((names, runs), is_glue) in native.iter().zip(&runs).zip(glue).rev() {
            match runs {
                // As if it were compiled: which of both it is changes while the process runs.
                NativeCode::Function(function) if language == Language::Java => {
                    frames.push(self.names.plain(&function.name));
                }
                NativeCode::Function(function) => frames.push(self.names.interpreted(function, language)),
                // The process may have written its name into a file.
                NativeCode::Unread(function) if names.iter().all(|name| name.function() == UNKNOWN) => {
                    frames.push(self.names.interpreted(function, language));
                }
                NativeCode::Itself if is_glue => {}
                NativeCode::Itself | NativeCode::Unread(_) => frames.extend(names.iter().cloned()),
            }
        }
    }

    /// Lets all tables go where those of process `pid` would be too many.
    fn make_room(&mut self, pid: u32, tables: usize) {
        if self.opened_for.len() >= tables && !self.opened_for.contains(&pid) {
            self.user = None;
        }
        if self.user.is_none() {
            self.opened_for.clear();
        }
        self.opened_for.insert(pid);
    }

    /// What opens files. It keeps the debug information of all it has opened, so another one takes its place where that of the
    /// `wanted` files does not fit beside it into `most` bytes.
    fn symbolizer(&mut self, wanted: Option<&DebugFiles>, most: u64) -> Symbolizer {
        let mut open = if self.user.is_some() { std::mem::take(&mut self.open) } else { DebugFiles::default() };
        if let Some(wanted) = wanted {
            open.add(wanted);
            if open.bytes() > most {
                self.user = None;
                open = wanted.clone();
            }
        }
        self.open = open;
        if let Some((symbolizer, _)) = self.user.take() {
            return symbolizer;
        }
        let directories = self.debug_info.directories();
        let separate = by_build_id(directories.to_vec(), Rc::clone(&self.reads_debug));
        builder(directories).set_process_dispatcher(separate).build()
    }

    /// Finds the names of the addresses that have none yet, with the lines that run or without; what was found of those that get
    /// none.
    fn find_user(
        &mut self,
        pid: u32,
        known: &mut ProcessNames,
        (stacks, lines): (&[&[u64]], bool),
        debug: u64,
        tables: usize,
    ) -> FxHashMap<u64, Nameless> {
        let mut odd = FxHashMap::default();
        let table = usize::from(lines);
        if unnamed(stacks, &known.frames[table]).is_empty() {
            return odd;
        }
        // A process that is gone has no files; what was found while it lived still holds.
        let mapped = mapped(pid);
        if let Some(mapped) = &mapped
            && mapped.fingerprint != known.files
        {
            known.files = mapped.fingerprint;
            known.debug = trusted_code(pid, mapped).and_then(|files| self.debug_info.of(&files));
            known.frames.iter_mut().for_each(FxHashMap::clear);
            (known.java, known.java_sought) = (None, false);
        }
        let missing = unnamed(stacks, &known.frames[table]);
        let process = |debug_syms| {
            Source::Process(Process { map_files: true, perf_map: false, debug_syms, ..Process::new(Pid::from(pid)) })
        };
        let wanted = known.debug.clone().filter(|files| (1..=debug).contains(&files.bytes()));
        self.make_room(pid, tables);
        let symbolizer = self.symbolizer(wanted.as_ref(), debug);
        let ask = |debug| match symbolizer.symbolize(&process(debug), Input::AbsAddr(&missing)) {
            Ok(found) => Some(found),
            Err(error) => {
                log::debug!("no names of process {pid}: {error:#}");
                None
            }
        };
        // Debug information that cannot be read must not hide the symbols that can.
        let mut found = None;
        if wanted.is_some() {
            self.reads_debug.set(true);
            found = ask(true);
            self.reads_debug.set(false);
            if found.is_none() {
                // Once is enough.
                known.debug = None;
            }
        }
        for (call, symbol) in missing.iter().zip(found.or_else(|| ask(false)).into_iter().flatten()) {
            match symbol {
                Symbolized::Sym(symbol) => {
                    // Functions inlined at this address come after it, outermost first.
                    let inlined = symbol.inlined.iter().map(|inlined| (&*inlined.name, inlined.code_info.as_ref()));
                    let file = symbol.module.as_deref().map(std::ffi::OsStr::to_string_lossy);
                    let all = std::iter::once((&*symbol.name, symbol.code_info.as_deref())).chain(inlined);
                    let share =
                        |(name, code): (&str, Option<_>)| self.names.at(name, file.as_deref(), code.filter(|_| lines));
                    let frames: Vec<_> = all.map(share).collect();
                    known.frames[table].insert(*call, Arc::from(frames));
                }
                Symbolized::Unknown(Reason::Unmapped) => {
                    odd.insert(*call, Nameless::Unmapped);
                }
                Symbolized::Unknown(_) => {
                    // Memory without a file behind it: made while running, and perhaps made anew.
                    let jit = known.jit.take().unwrap_or_else(|| self.made(pid));
                    let made = jit.find(*call).map(|name| Frames::from([self.names.plain(name)]));
                    known.jit = Some(jit);
                    let file = mapped.as_ref().and_then(|mapped| mapped.file(*call));
                    match (made, file) {
                        // A function without a symbol is of its file all the same, and stays so: asking again would open
                        // the file's tables for every stack of a stripped program.
                        (None, Some(file)) => {
                            let unnamed = self.names.in_file(UNKNOWN, Some(file));
                            known.frames[table].insert(*call, Arc::from([unnamed]));
                        }
                        (made, _) => _ = odd.insert(*call, Nameless::Mapped(made)),
                    }
                }
            }
        }
        self.user = Some((symbolizer, Instant::now()));
        if self.java && mapped.as_ref().is_some_and(|mapped| mapped.has("/libjvm.so")) {
            self.find_java(pid, known, &mut odd);
        }
        odd
    }

    /// Names code that Java's virtual machine made, as far as the process wrote no names of it itself.
    fn find_java(&mut self, pid: u32, known: &mut ProcessNames, odd: &mut FxHashMap<u64, Nameless>) {
        let is_made = |nameless: &Nameless| matches!(nameless, Nameless::Mapped(None));
        let made: Vec<u64> = odd.iter().filter(|(_, nameless)| is_made(nameless)).map(|(call, _)| *call).collect();
        if made.is_empty() {
            return;
        }
        if !std::mem::replace(&mut known.java_sought, true) {
            known.java = Hotspot::of(pid);
        }
        let Some(machine) = &mut known.java else { return };
        for (call, names) in made.iter().zip(machine.names(&made)) {
            if !names.is_empty() {
                let frames = names.iter().map(|name| self.names.plain(name)).collect();
                odd.insert(*call, Nameless::Mapped(Some(frames)));
            }
        }
    }

    fn find_kernel(&mut self, stacks: &[Vec<u64>]) {
        let missing = unnamed(stacks, &self.kernel_frames);
        if missing.is_empty() {
            return;
        }
        let source = Source::Kernel(Kernel { vmlinux: blazesym::MaybeDefault::None, ..Kernel::default() });
        let symbolizer = self.kernel.take().map_or_else(
            || Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build(),
            |(symbolizer, _)| symbolizer,
        );
        match symbolizer.symbolize(&source, Input::AbsAddr(&missing)) {
            Ok(found) => {
                for (call, symbol) in missing.iter().zip(found) {
                    if let Symbolized::Sym(symbol) = symbol {
                        let name = self.names.plain(&format!("{}{KERNEL}", symbol.name));
                        self.kernel_frames.insert(*call, Arc::from([name]));
                        self.addresses += 1;
                    }
                }
            }
            Err(error) => log::debug!("no names of the kernel: {error:#}"),
        }
        self.kernel = Some((symbolizer, Instant::now()));
    }
}

/// The root of a stack whose outermost frames are missing.
pub(super) fn incomplete(outcome: Outcome) -> Option<String> {
    outcome.missing().map(|reason| format!("[stack incomplete: {reason}]"))
}

/// All but the innermost are return addresses: the call is the instruction before.
fn calls(addresses: &[u64]) -> Vec<u64> {
    addresses.iter().enumerate().map(|(i, address)| if i == 0 { *address } else { address.saturating_sub(1) }).collect()
}

/// Addresses without a name, each once, in their order.
fn unnamed(stacks: &[impl AsRef<[u64]>], known: &FxHashMap<u64, Frames>) -> Vec<u64> {
    let all = stacks.iter().flat_map(AsRef::as_ref);
    let mut all: Vec<u64> = all.filter(|call| !known.contains_key(call)).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Names of addresses in a file, as the agent would read it in a process; for fuzzing.
pub fn name_in_file(path: &Path, offsets: &[u64]) -> usize {
    let mut named = 0;
    let debug = DebugInfo::new(&[]).of(&[(path.into(), path.into())]).map(|files| files.bytes());
    let readable = debug.is_some_and(|bytes| bytes > 0 && bytes <= super::Bounds::default().debug as u64);
    for debug_syms in [readable, false] {
        let symbolizer = builder(&[]).build();
        let source = Source::Elf(Elf { debug_syms, ..Elf::new(path) });
        let found = symbolizer.symbolize(&source, Input::VirtOffset(offsets));
        named += found.map_or(0, |found| found.iter().filter(|symbol| matches!(symbol, Symbolized::Sym(_))).count());
    }
    named
}

#[cfg(test)]
mod tests;
