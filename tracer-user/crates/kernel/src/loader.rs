//! Loads the eBPF object into the kernel and attaches its programs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues, RingBuf};
use aya::programs::{BtfTracePoint, PerfEvent};
use aya::{Ebpf, EbpfLoader};
use tracer_common::lost::Lost;
use tracer_common::policy::{CpuBooks, ProfilerCost, RUNS_KERNEL, RUNS_USER};
use tracer_common::ring::{Shape, WORD};
use tracer_host::guard::overhead_budget::Costs;
use tracer_host::guard::self_process::release_memory;

use super::attachments::{Attachments, DetachOnDrop};
use super::btf::{Btf, BtfError};
use super::declared_calls::DeclaredCalls;
use super::exchange_counts::KernelCounts;
use super::header::{self, Headers};
use super::inband::{self, InBand};
use super::load_retry;
use super::loading::{Calls, attach, built_of, load_all};
use super::log_lines::{self, LogLineMode, LogLines};
use super::object::{OBJECT, with_kind, with_value_size};
use super::offsets;
use super::policy::Policy;
use super::probes::{CALLED, Hook, Plan, SAMPLER, Until, plan};
use super::ring::Events;
use super::rings::Rings;
use super::sampler::{Sampler, SamplerError};
use super::send_priority::{self, SendPriorities, SendPriorityMode};
use super::trace_contexts::{self, TraceContextMode, TraceContexts};
use super::uprobes;
use super::user_programs::{self, ObjectMaps, UserPrograms};
use super::{interpreter, unwind, usdt};

/// Why the kernel side cannot run. Each of these ends the agent with exit code 77.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The agent was built without the object.
    #[error("this binary was built without its BPF object; build it with `cargo xtask build --release`")]
    NoObject,
    /// Missing privileges.
    #[error(
        "loading BPF programs needs root (or CAP_BPF and CAP_PERFMON; see SECURITY.md for what more gives names): run as root, e.g. with sudo"
    )]
    Privileges,
    /// BTF is missing or malformed.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// Kernel structs lack these members.
    #[error("this kernel's structs lack what tracing needs: {}", .0.join(", "))]
    Members(Vec<String>),
    /// The kernel lacks a required hook.
    #[error("this kernel lacks the mandatory hook {hook} and what could stand in for it: {without}")]
    Hook {
        /// Name of the tracepoint or function.
        hook: &'static str,
        /// What is lost without it.
        without: &'static str,
    },
    /// The kernel refused an operation.
    #[error("{what}: {why}{hint}")]
    Refused {
        /// The operation.
        what: String,
        /// The kernel's reason.
        why: String,
        /// A remedy, or empty.
        hint: &'static str,
    },
    /// The stack sampler failed.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
}

/// When a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At start.
    Start,
    /// Once it turns out to be needed; uprobes then go into the process that needs them.
    Needed,
    /// Never: another program tail-calls it.
    Called,
    /// At start, if configured.
    Asked,
}

impl When {
    /// Its name in `tracer doctor --json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Needed => "needed",
            Self::Called => "called",
            Self::Asked => "asked",
        }
    }
}

/// One program as attached, for `doctor` and metrics.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Its function in the object.
    pub program: &'static str,
    /// Its hook.
    pub hook: &'static str,
    /// When it is attached.
    pub when: When,
    /// What the verifier and the compiler made of it.
    pub built: Built,
    /// Why it is missing, if it is.
    pub missing: Option<String>,
    /// What is lost without it.
    pub without: &'static str,
}

impl LoadError {
    /// The error in one line; of a verifier's log only its end, which has the reason.
    pub fn brief(&self) -> String {
        let text = self.to_string();
        let Some((before, log)) = text.split_once("Verifier output:") else { return text.replace('\n', " ") };
        let summary = |line: &&str| {
            let sums = ["verification time", "stack depth", "processed ", ": "];
            !line.trim().is_empty() && !sums.iter().any(|sum| line.starts_with(sum))
        };
        let reason = log.lines().rev().find(summary).unwrap_or_default();
        format!("{} The verifier: {}", before.trim(), reason.trim())
    }
}

/// What the kernel made of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Instructions the verifier processed, if the kernel reports them (5.16 and later); its limit is a million.
    pub verified: Option<u32>,
    /// Bytes of machine code; `None` if the program is interpreted.
    pub jited: Option<u32>,
    /// The kernel runs it on a stack that all threads of a CPU share; `None` if that cannot be seen.
    pub private_stack: Option<bool>,
    /// Time to load it: relocation, verifier and compiler.
    pub load: Duration,
}

/// The attached kernel side. Dropping it detaches everything; the end of the process does too, however it comes.
pub struct Kernel {
    /// First field, so that it is dropped, and detaches, first.
    held: DetachOnDrop,
    /// Keeps the programs alive.
    pub(super) ebpf: Ebpf,
    /// Writes policy to the kernel.
    pub policy: Policy,
    /// Exchanges that it counts itself.
    pub exchange_counts: KernelCounts,
    /// The attached programs.
    pub attached: Vec<Attached>,
    _calls: Calls,
    /// Programs that are loaded and attached once they are needed; all of them BTF tracepoints.
    deferred: Vec<(Until, &'static str)>,
    /// The stack sampler.
    pub sampler: Sampler,
    /// The system's CPU usage when the counters started.
    pub since: Option<tracer_host::stat::HostCpuSource>,
    logger: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    lost: PerCpuArray<MapData, u64>,
    /// Hits of user-space probes.
    pub(super) hits: PerCpuArray<MapData, u64>,
    pub(super) attempts: Arc<uprobes::Counts>,
    pub(super) user_programs: Arc<UserPrograms>,
    /// Where the arguments of USDT probes are.
    pub(super) operands: Arc<Mutex<usdt::OperandMap>>,
    /// Calls of declared transactions.
    pub declared_calls: DeclaredCalls,
    /// Counters of the header programs, if they are in use.
    pub headers: Option<Headers>,
    /// Kinds of sockets that get no headers on this kernel, and why.
    pub header_limits: Vec<String>,
    /// Priorities of connections, if they are in use.
    pub send_priorities: Option<SendPriorities>,
    /// Processes whose log lines are wanted, if any may be.
    pub log_lines: Option<LogLines>,
    /// Contexts of requests by thread, if they are published.
    pub trace_contexts: Option<TraceContexts>,
    /// Why they are not although they are to be.
    pub no_trace_contexts: Option<String>,
    cpus: PerCpuArray<MapData, Pod<CpuBooks>>,
    profiler_cost: PerCpuArray<MapData, Pod<ProfilerCost>>,
    /// Where unwind tables go, until whoever makes them takes it.
    pub tables: Option<unwind::Tables>,
    /// Walks over user stacks.
    pub walks: unwind::Walks,
    /// Why stacks are not walked by unwind tables, if they are not.
    pub no_unwind: Option<String>,
    /// Where layouts of interpreters go, until whoever finds them takes it.
    pub interpreters: Option<interpreter::InterpreterMap>,
    /// Walks over interpreters' frames.
    pub interpreter_walks: interpreter::InterpreterWalks,
}

/// Marks a wire record as plain bytes for aya.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Pod<T: Copy + 'static>(pub T);

macro_rules! pod {
    ($($ty:ty),+) => { $(
        // SAFETY: wire records are `repr(C)` integers without padding (asserted where they are declared).
        unsafe impl aya::Pod for Pod<$ty> {}
    )+ };
}
pod!(
    CpuBooks,
    tracer_common::policy::CapturePolicy,
    tracer_common::policy::Control,
    tracer_common::policy::SendPriority,
    tracer_common::exchange_counts::ExchangeSums,
    tracer_common::exchange_counts::FirstSums,
    tracer_common::exchange_counts::SumsKey,
    tracer_common::exchange_counts::ClassCosts,
    tracer_common::exchange_counts::ClassLimits,
    tracer_common::exchange_counts::RequestPrefix,
    ProfilerCost,
    tracer_common::log_write::LoggingProcess,
    tracer_common::policy::Statics,
    tracer_common::unwind::FileEntry,
    tracer_common::unwind::FileKey,
    tracer_common::unwind::Rule,
    tracer_common::interpreter::InterpreterLayout,
    tracer_common::runtime::Operands,
    tracer_common::runtime::Runtime,
    [u8; tracer_common::unwind::CHUNK_WORDS as usize * 4]
);

/// `BPF_MAP_TYPE_HASH` (`include/uapi/linux/bpf.h`).
const HASH: u32 = 1;

/// Load options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stack samples per second and CPU; 0 takes none.
    pub hertz: u32,
    /// Attach deferred programs at once.
    pub all: bool,
    /// Log level of the BPF programs; 0 is off (then the verifier removes the logging code).
    pub log_level: u8,
    /// Mode of in-band contexts.
    pub inband: InBand,
    /// Whether packets can get another priority.
    pub send_priority: SendPriorityMode,
    /// Whether writes to logs are looked at.
    pub log_lines: LogLineMode,
    /// Whether exceptions are traced.
    pub exceptions: bool,
    /// Whether contexts of requests are published.
    pub trace_contexts: TraceContextMode,
}

/// Loads and attaches everything. Socket I/O is only reported once [`Policy`] enables it.
pub fn load(options: &Options) -> Result<(Kernel, Rings), LoadError> {
    if OBJECT.is_empty() {
        return Err(LoadError::NoObject);
    }
    let kernel_btf = Btf::of_kernel()?;
    if !privileged() {
        return Err(LoadError::Privileges);
    }
    let members = offsets::resolve(&kernel_btf).map_err(LoadError::Members)?;
    let plan = plan(&kernel_btf);
    if let Some(Plan { probe, .. }) = plan.iter().find(|plan| plan.lacks_hook()) {
        let hook = probe.hooks.first().map_or(probe.program, |hook| hook.name());
        return Err(LoadError::Hook { hook, without: probe.without });
    }
    let tracepoints = plan.iter().any(|plan| plan.probe.program == "tx" && plan.hook.is_some());
    let no_unwind = offsets::without_unwinding(&kernel_btf, &members);
    let multi = user_programs::multi(&kernel_btf);
    drop(kernel_btf); // some 50 MB with its index: not needed while running

    // aya's own copy, needed only while loading; some tens of megabytes, dropped at the end of this function.
    let btf =
        aya::Btf::from_sys_fs().map_err(|error| refused("the kernel's BTF could not be parsed", &chain(&error)))?;
    let tgid = std::process::id();
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| refused("the number of CPUs is not known", &chain(&error)))?;
    let shape = Shape::of(u32::try_from(cpus).unwrap_or(u32::MAX));
    let (ring_mask, ring_last) = (shape.bytes as u64 - WORD as u64, shape.rings - 1);
    let object = with_value_size(OBJECT, "RINGS", shape.element() as u32)
        .map_err(|why| refused("the BPF object is not what this agent was built with", &why))?;
    let object = if options.inband.header() {
        object
    } else {
        // A socket map needs a capability that nothing else needs.
        with_kind(&object, header::MEMBERS, HASH)
            .map_err(|why| refused("the BPF object is not what this agent was built with", &why))?
    };
    let (trace_contexts, no_trace_contexts) = match &options.trace_contexts {
        TraceContextMode::On(bpffs) => match TraceContexts::open(bpffs) {
            Ok(contexts) => (Some(contexts), None),
            Err(why) => (None, Some(why)),
        },
        TraceContextMode::Off | TraceContextMode::Tried => (None, None),
    };
    let unpublish = trace_contexts.as_ref().map(TraceContexts::remover);
    let publishes = u32::from(trace_contexts.is_some() || options.trace_contexts == TraceContextMode::Tried);
    let netns = options.inband.netns().map_err(|why| refused("contexts in band", &why))?;
    let mut loader = EbpfLoader::new();
    loader.btf(Some(&btf)).allow_unsupported_maps();
    loader.map_max_entries("RINGS", shape.rings);
    loader.map_max_entries("HELD", options.inband.threads());
    loader.map_max_entries(send_priority::MAP, send_priority::entries(options.send_priority));
    loader.map_max_entries(log_lines::MAP, log_lines::entries(options.log_lines));
    let (sockets, destinations) = header::sizes(&options.inband);
    loader.map_max_entries(header::MEMBERS, sockets).map_max_entries(header::DESTINATIONS, destinations);
    loader.override_global("INBAND_NETNS", &netns, false);
    let by_header = u32::from(options.inband.header());
    match &trace_contexts {
        Some(contexts) => loader.map_pin_path(trace_contexts::MAP, contexts.path()),
        None => loader.map_max_entries(trace_contexts::MAP, 1),
    };
    loader.override_global("PUBLISHES_CONTEXTS", &publishes, false);
    loader.override_global("INBAND_HEADER", &by_header, false);
    loader.override_global("RING_MASK", &ring_mask, true);
    loader.override_global("RING_LAST", &ring_last, true);
    loader.override_global("AGENT_TGID", &tgid, true);
    loader.override_global("AYA_LOG_LEVEL", &options.log_level, false);
    let unwinds = u32::from(no_unwind.is_none());
    loader.override_global("UNWIND", &unwinds, false);
    for (global, offset) in &members {
        // The compiler removed globals that no program reads.
        loader.override_global(global, offset, false);
    }
    let mut ebpf =
        loader.load(&object).map_err(|error| refused("the BPF object could not be loaded", &chain(&error)))?;
    let maps = ObjectMaps::of(&ebpf).map_err(|error| refused("more descriptors of maps", &error))?;
    let mut logger = None;
    if options.log_level > 0 {
        match aya_log::EbpfLogger::init(&mut ebpf) {
            Ok(made) => logger = Some(made),
            Err(error) => log::warn!("the log of the BPF programs is not available: {error}"),
        }
    }

    let (tables, walks) = unwind::maps(&mut ebpf)?;
    let (interpreters, interpreter_walks) = interpreter::maps(&mut ebpf)?;
    let mut cpus = take_array::<Pod<CpuBooks>>(&mut ebpf, "CPUS")?;
    let lost = take_array::<u64>(&mut ebpf, "LOST")?;
    let hits = take_array::<u64>(&mut ebpf, "HITS")?;
    let operands = usdt::operands(&mut ebpf)?;
    let declared_calls = DeclaredCalls::take(&mut ebpf)?;
    let profiler_cost = take_array::<Pod<ProfilerCost>>(&mut ebpf, "PROFILER_COST")?;
    let Map::Array(events) = take(&mut ebpf, "RINGS")? else {
        return Err(refused("the BPF object's map RINGS is of another kind", &"rebuild it"));
    };
    let mapped = Events::map(events.fd().as_fd().as_raw_fd(), shape)
        .map_err(|error| refused("the event rings could not be mapped", &chain(&error)))?;
    let samples = ring("SAMPLES", take(&mut ebpf, "SAMPLES")?)?;
    let wake = ring("WAKE", take(&mut ebpf, "WAKE")?)?;
    let rings = Rings::new((mapped, events), samples, wake);
    let policy = Policy::new(
        take(&mut ebpf, "CONTROL")?,
        take(&mut ebpf, "PROCESSES")?,
        take(&mut ebpf, "PORTS")?,
        take(&mut ebpf, "ASKS")?,
        take(&mut ebpf, "HANDOVERS")?,
        take(&mut ebpf, "RUNTIMES")?,
    )?;

    let exchange_counts = KernelCounts::new(
        take(&mut ebpf, "REQUEST_PREFIXES")?,
        take(&mut ebpf, "FIRST_SUMS")?,
        take(&mut ebpf, "EXCHANGE_SUMS")?,
        take(&mut ebpf, "COUNTED_COSTS")?,
        take(&mut ebpf, "COUNTED_LIMITS")?,
    )?;

    let mut calls = Calls::take(&mut ebpf)?;
    let mut attached = Vec::new();
    let mut deferred = Vec::new();
    let mut since = None;
    let attachments = Attachments::default();
    // From here on any failure detaches what was attached before.
    let held = DetachOnDrop(attachments.clone());
    if let Some(remover) = unpublish {
        attachments.link(remover);
    }
    // In-band programs first, because their events must precede those of the request; headers before the option,
    // because a request with a header needs no option.
    let header::Loaded { attached: by_header, headers, limits: header_limits } =
        header::load(&mut ebpf, &options.inband, &attachments);
    attached.extend(by_header);
    attached.extend(inband::load(&mut ebpf, &btf, &options.inband, tracepoints, &attachments));
    let (by_priority, send_priorities) = send_priority::load(&mut ebpf, options.send_priority, &attachments);
    attached.extend(by_priority);
    let (of_logs, log_lines) = log_lines::load(&mut ebpf, &btf, options.log_lines, &attachments);
    attached.extend(of_logs);
    let mut loading = load_all(&mut ebpf, &plan, &btf);
    for Plan { probe, hook } in plan {
        let name = hook.or(probe.hooks.first().copied()).map_or(probe.program, Hook::name);
        let mut entry = Attached {
            program: probe.program,
            hook: name,
            when: match probe.until {
                None => When::Start,
                Some(Until::Called) => When::Called,
                Some(_) => When::Needed,
            },
            built: Built::default(),
            missing: None,
            without: probe.without,
        };
        if hook.is_none() {
            entry.missing = Some("the kernel has no such hook".into());
            attached.push(entry);
            continue;
        }
        if probe.program == "switch" {
            // From here on every running slice is counted: the current one starts now.
            seed(&mut cpus)?;
            since = tracer_host::stat::read();
        }
        let wait = probe.until.filter(|until| !options.all || *until == Until::Called);
        match attach(&mut ebpf, probe.program, loading.remove(probe.program), wait.is_none().then_some(&attachments)) {
            Ok(built) => {
                entry.built = built;
                if wait == Some(Until::Called) {
                    entry.missing = calls.put(&ebpf, probe.program).err();
                    if let Some(why) = entry.missing.take_if(|_| probe.mandatory) {
                        let what = format!("the program {} cannot be called", probe.program);
                        return Err(LoadError::Refused { what, why, hint: "" });
                    }
                } else {
                    if CALLED.iter().any(|(called, _)| *called == probe.program)
                        && let Err(why) = calls.put(&ebpf, probe.program)
                    {
                        log::warn!("{} is not called by other programs: {why}", probe.program);
                    }
                    deferred.extend(wait.map(|until| (until, probe.program)));
                }
            }
            Err(why) if probe.mandatory => {
                let what = format!("the program for {name} was refused");
                return Err(LoadError::Refused { what, why, hint: "" });
            }
            // If the kernel refuses before the verifier runs there is no log, and the reason appears twice.
            Err(why) => entry.missing = Some(why.split(". Verifier output: : ").next().unwrap_or_default().to_owned()),
        }
        attached.push(entry);
    }

    let program: &mut PerfEvent = ebpf
        .program_mut(SAMPLER)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| refused("the BPF object has no sampler", &"rebuild it"))?;
    let begin = Instant::now();
    load_retry::load(|| program.load()).map_err(|error| refused("the sampling program was refused", &chain(&error)))?;
    let built = built_of(program.fd(), begin.elapsed());
    let fd = program.fd().map_err(|error| refused("the sampling program has no descriptor", &chain(&error)))?;
    let sampler = Sampler::start(fd, options.hertz, &attachments)?;
    let (user_programs, in_programs) = user_programs::load(&object, &maps, multi, options.exceptions);
    attached.extend(in_programs);
    drop(btf);
    release_memory(); // Loading used memory that is not needed any more.
    attached.push(Attached {
        program: SAMPLER,
        hook: "perf_event cpu-clock",
        when: When::Start,
        built,
        missing: sampler.forbidden().map(str::to_owned),
        without: "no stacks, and a thread that never leaves the CPU is charged late",
    });
    Ok((
        Kernel {
            held,
            ebpf,
            policy,
            exchange_counts,
            _calls: calls,
            attached,
            deferred,
            sampler,
            since,
            logger,
            lost,
            hits,
            attempts: Arc::default(),
            user_programs: Arc::new(user_programs),
            operands,
            declared_calls,
            headers,
            header_limits,
            send_priorities,
            log_lines,
            trace_contexts,
            no_trace_contexts,
            cpus,
            profiler_cost,
            tables: Some(tables),
            walks,
            no_unwind,
            interpreters: Some(interpreters),
            interpreter_walks,
        },
        rings,
    ))
}

/// Longest part of a running slice that is counted before its end, nanoseconds. The sampler reports threads that run
/// longer; a slice that looks longer may have ended with a switch that was not reported.
const SLICE: u64 = 20_000_000;

impl Kernel {
    /// The attachments, which any thread can detach.
    pub fn attachments(&self) -> Attachments {
        self.held.0.clone()
    }

    /// Losses counted in the kernel so far, in the order of `tracer_common::lost::Lost::ALL`.
    pub fn lost(&self) -> Vec<u64> {
        (0..self.lost.len()).map(|i| self.lost.get(&i, 0).map_or(0, |cpus| cpus.iter().sum())).collect()
    }

    /// Operations that the kernel side saw and could not report so far.
    pub fn lost_operations(&self) -> u64 {
        let of = |why: Lost| self.lost.get(&(why as u32), 0).map_or(0, |cpus| cpus.iter().sum::<u64>());
        [Lost::RingOp, Lost::SocketStorage, Lost::ThreadStorage].into_iter().map(of).sum()
    }

    /// CPU time by kind so far, summed over CPUs, including the running slices.
    pub fn cpu_books(&self) -> CpuBooks {
        let mut sum = CpuBooks::default();
        if let Ok(cpus) = self.cpus.get(&0, 0) {
            let now = monotonic();
            for Pod(cpu) in cpus.iter() {
                sum.user += cpu.user;
                sum.kernel += cpu.kernel;
                sum.idle += cpu.idle;
                sum.switches += cpu.switches;
                let runs = now.saturating_sub(cpu.switch_in);
                let counted = if cpu.runs == RUNS_KERNEL || cpu.runs == RUNS_USER { runs.min(SLICE) } else { 0 };
                *(if cpu.runs == RUNS_KERNEL { &mut sum.kernel } else { &mut sum.user }) += counted;
                sum.idle += (runs - counted) as i64;
            }
        }
        sum
    }

    /// What sampling has cost so far, by the programs' own clocks, summed over CPUs; the agent's part is left out.
    pub fn profiler_cost(&self) -> Costs {
        let mut sum = Costs::default();
        for Pod(cpu) in self.profiler_cost.get(&0, 0).iter().flat_map(|cpus| cpus.iter()) {
            sum.ticks += cpu.ticks;
            sum.nanos += cpu.nanos;
            sum.off_cpu_nanos += cpu.off_cpu_nanos;
            sum.off_cpu_stacks += cpu.off_cpu_stacks;
            sum.off_cpu_stack_nanos += cpu.off_cpu_stack_nanos;
            sum.ad_hoc_ticks += cpu.ad_hoc_ticks;
            sum.ad_hoc_nanos += cpu.ad_hoc_nanos;
            sum.call_stacks += cpu.call_stacks;
            sum.call_nanos += cpu.call_nanos;
        }
        sum
    }

    /// Attaches the programs deferred until `shown`, and logs the outcome; a failure is not retried.
    pub fn attach_deferred(&mut self, shown: Until) {
        for (_, name) in self.deferred.extract_if(.., |(until, _)| *until == shown) {
            let program: Option<&mut BtfTracePoint> =
                self.ebpf.program_mut(name).and_then(|program| program.try_into().ok());
            let Some(program) = program else { continue };
            match program.attach().and_then(|id| program.take_link(id)) {
                Ok(link) => {
                    self.held.0.link(link);
                    log::info!(
                        "{name} is attached: {}",
                        match shown {
                            Until::Spliced => "bytes left a socket by splice",
                            Until::Skipped => "the kernel preempts programs and skips them for others",
                            Until::WakeUps => "who wakes which thread is wanted",
                            Until::Called => "another program goes on with it",
                        }
                    );
                }
                Err(error) => log::warn!("{name} could not be attached: {}", chain(&error)),
            }
        }
    }

    /// Whether the programs deferred until `shown` are attached.
    pub fn has(&self, shown: Until) -> bool {
        self.deferred.iter().all(|(until, _)| *until != shown)
    }

    /// Forwards the programs' log, if it is enabled.
    pub fn forward_log(&mut self) {
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
    }

    /// Run count and run time (nanoseconds) of every program; only counted while kernel statistics are on.
    pub fn usage(&self) -> BTreeMap<String, super::usage::Usage> {
        super::usage::of(&self.ebpf, &self.user_programs)
    }
}

/// `CLOCK_MONOTONIC` now, nanoseconds: the clock of every record.
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn seed(cpus: &mut PerCpuArray<MapData, Pod<CpuBooks>>) -> Result<(), LoadError> {
    let n = aya::util::nr_cpus().map_err(|(_, error)| refused("the number of CPUs is not known", &chain(&error)))?;
    let now = CpuBooks { switch_in: monotonic(), ..CpuBooks::default() };
    let values = PerCpuValues::try_from(vec![Pod(now); n])
        .map_err(|error| refused("the per-CPU counters could not be prepared", &chain(&error)))?;
    cpus.set(0, values, 0).map_err(|error| refused("the per-CPU counters could not be seeded", &chain(&error)))
}

pub(super) fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, LoadError> {
    ebpf.take_map(name).ok_or_else(|| refused(&format!("the BPF object has no map {name}"), &"rebuild it"))
}

pub(super) fn take_array<T: aya::Pod>(ebpf: &mut Ebpf, name: &str) -> Result<PerCpuArray<MapData, T>, LoadError> {
    PerCpuArray::try_from(take(ebpf, name)?).map_err(|error| refused(&format!("map {name}"), &chain(&error)))
}

fn ring(name: &str, map: Map) -> Result<RingBuf<MapData>, LoadError> {
    RingBuf::try_from(map).map_err(|error| refused(&format!("ring {name}"), &chain(&error)))
}

/// Whether this process may load tracing programs (capabilities(7)); `true` if that cannot be read.
fn privileged() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON_AND_BPF: u64 = 1 << 38 | 1 << 39;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_none_or(|held| held & SYS_ADMIN != 0 || held & PERFMON_AND_BPF == PERFMON_AND_BPF)
}

/// An error with its chain of causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A refusal, with hints for the usual reasons.
pub(super) fn refused(what: &str, why: &dyn std::fmt::Display) -> LoadError {
    let why = why.to_string();
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } != 0 && (why.contains("EPERM") || why.to_lowercase().contains("permit")) {
        return LoadError::Privileges;
    }
    let hint = if why.contains("EPERM") || why.to_lowercase().contains("not permitted") {
        " (refused although root: a container without CAP_BPF/CAP_SYS_ADMIN, or kernel lockdown?)"
    } else {
        ""
    };
    LoadError::Refused { what: what.into(), why, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_verifiers_log_the_reason_is_shown() {
        let log = "Verifier output: 0: R1=ctx()\n1: (79) r2 = *(u64 *)(r0 +0)\naccess beyond the end of member nr\n\
                   verification time 10 usec\nstack depth 168+0\nprocessed 477 insns (limit 1000000)\n: Permission denied";
        let why = format!("refused with EACCES. {log}");
        let error = LoadError::Refused { what: "the program for x".into(), why, hint: "" };
        assert_eq!(
            error.brief(),
            "the program for x: refused with EACCES. The verifier: access beyond the end of member nr"
        );
        let plain = LoadError::Refused { what: "map X".into(), why: "EINVAL".into(), hint: "" };
        assert_eq!(plain.brief(), "map X: EINVAL");
    }
}
