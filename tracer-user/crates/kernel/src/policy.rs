//! Writes policy to the kernel. After start, this is the only file that writes kernel maps.

use aya::maps::{Array, HashMap, Map, MapData};
use tracer_common::exchange_counts::CountingRule;
use tracer_common::limits::ASKS_MAX;
use tracer_common::policy::{
    CONTROL_COUNTING, CONTROL_DEFAULT_IGNORE, CONTROL_HANDOVERS, CONTROL_OWN, CONTROL_PORTS, CONTROL_SOCKETS,
    CONTROL_TABLES_FIRST, CONTROL_UDP, CONTROL_UNWIND, CapturePolicy, Control, PROCESS_IGNORE, PROCESS_TRACE, Statics,
};
use tracer_common::runtime::Runtime;

use super::loader::{LoadError, Pod, refused};

/// The policy maps.
pub struct Policy {
    control: Array<MapData, Pod<Control>>,
    processes: HashMap<MapData, u32, u32>,
    ports: HashMap<MapData, u16, u8>,
    policies: HashMap<MapData, u64, Pod<CapturePolicy>>,
    handovers: HashMap<MapData, u32, Pod<Statics>>,
    runtimes: HashMap<MapData, u32, Pod<Runtime>>,
    current: Control,
    /// Number of processes with their own policy.
    listed: usize,
    /// Processes whose policy did not fit into the table.
    pub processes_refused: u64,
    /// Processes whose wake-ups are not traced because the table was full.
    pub handovers_refused: u64,
    /// Processes whose runtime was not passed to the kernel because the table was full.
    pub runtimes_refused: u64,
    /// Capture policies that could not be written: the connection keeps its old policy, at a higher cost.
    pub asks_refused: u64,
}

/// Which processes are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// None: sockets are not reported.
    Nothing,
    /// Only the agent itself, including UDP: for the self-test.
    SelfTest,
    /// Every process that is not excluded.
    Everything,
    /// Only included processes.
    Listed,
}

impl Policy {
    pub(super) fn new(
        control: Map,
        processes: Map,
        ports: Map,
        policies: Map,
        handovers: Map,
        runtimes: Map,
    ) -> Result<Self, LoadError> {
        let bad = |name: &str, error: &dyn std::fmt::Display| refused(&format!("map {name}"), error);
        Ok(Self {
            control: Array::try_from(control).map_err(|error| bad("CONTROL", &error))?,
            processes: HashMap::try_from(processes).map_err(|error| bad("PROCESSES", &error))?,
            ports: HashMap::try_from(ports).map_err(|error| bad("PORTS", &error))?,
            policies: HashMap::try_from(policies).map_err(|error| bad("ASKS", &error))?,
            handovers: HashMap::try_from(handovers).map_err(|error| bad("HANDOVERS", &error))?,
            runtimes: HashMap::try_from(runtimes).map_err(|error| bad("RUNTIMES", &error))?,
            current: Control {
                flags: 0,
                generation: 0,
                sample_period: 0,
                off_cpu: 0,
                head_max: tracer_common::limits::HEAD_MAX as u32,
                names: 0,
                names_too: 0,
                off_cpu_share: u32::MAX,
                call_share: 0,
                detail: u32::MAX,
                reserved: 0,
            },
            listed: 0,
            processes_refused: 0,
            handovers_refused: 0,
            runtimes_refused: 0,
            asks_refused: 0,
        })
    }

    fn write(&mut self) -> Result<(), LoadError> {
        // Threads compare generations; 0 means a new thread record.
        self.current.generation = self.current.generation.wrapping_add(1).max(1);
        self.write_switches()
    }

    /// Writes what is not about processes: threads need not look up their policies again.
    fn write_switches(&mut self) -> Result<(), LoadError> {
        self.control
            .set(0, Pod(self.current), 0)
            .map_err(|error| refused("the control map could not be written", &error))
    }

    /// Sets which processes are traced.
    pub fn scope(&mut self, scope: Scope) -> Result<(), LoadError> {
        let keep = self.current.flags
            & (CONTROL_PORTS | CONTROL_UNWIND | CONTROL_HANDOVERS | CONTROL_TABLES_FIRST | CONTROL_COUNTING);
        self.current.flags = keep
            | match scope {
                Scope::Nothing => 0,
                Scope::SelfTest => CONTROL_SOCKETS | CONTROL_OWN | CONTROL_UDP | CONTROL_DEFAULT_IGNORE,
                Scope::Everything => CONTROL_SOCKETS,
                Scope::Listed => CONTROL_SOCKETS | CONTROL_DEFAULT_IGNORE,
            };
        self.write()
    }

    /// Says whether stacks are walked by unwind tables; without, frame pointers are followed.
    pub fn unwind(&mut self, on: bool) -> Result<(), LoadError> {
        self.current.flags = self.current.flags & !CONTROL_UNWIND | if on { CONTROL_UNWIND } else { 0 };
        self.write()
    }

    /// Samples ask for unwind tables and are not reported, or are.
    pub fn tables_first(&mut self, on: bool) -> Result<(), LoadError> {
        self.current.flags = self.current.flags & !CONTROL_TABLES_FIRST | if on { CONTROL_TABLES_FIRST } else { 0 };
        self.write_switches()
    }

    /// Includes or excludes a process.
    pub fn process(&mut self, tgid: u32, traced: bool) -> Result<(), LoadError> {
        let value = if traced { PROCESS_TRACE } else { PROCESS_IGNORE };
        let known = self.processes.get(&tgid, 0).is_ok();
        let written = self.processes.insert(tgid, value, 0);
        self.processes_refused += u64::from(written.is_err());
        written.map_err(|error| refused("the process policy could not be written (16384 at most)", &error))?;
        self.listed += usize::from(!known);
        self.write()
    }

    /// Exchanges of a process may be counted by this rule, or not any more.
    pub fn count_exchanges(&mut self, tgid: u32, rule: Option<CountingRule>) -> Result<(), LoadError> {
        let known = self.processes.get(&tgid, 0).is_ok();
        let written = self.processes.insert(tgid, PROCESS_TRACE | rule.map_or(0, CountingRule::encode), 0);
        self.processes_refused += u64::from(written.is_err());
        written.map_err(|error| refused("the process policy could not be written (16384 at most)", &error))?;
        self.listed += usize::from(!known);
        // For good: what was counted must still be seen to when nothing may be any more.
        self.current.flags |= CONTROL_COUNTING;
        self.write()
    }

    /// Has everything looked up again that the kernel side found before: beginnings of requests were forgotten.
    pub fn look_again(&mut self) -> Result<(), LoadError> {
        self.write()
    }

    /// Sets the share of the exchanges that could be counted which are reported all the same, 0 to 1.
    pub fn detail(&mut self, share: f64) -> Result<(), LoadError> {
        self.current.detail = (share * f64::from(u32::MAX)) as u32;
        self.write_switches()
    }

    /// Forgets a process that is gone: its id may be reused.
    pub fn forget_process(&mut self, tgid: u32) {
        // Fails if it is not there, which is fine.
        let _ = self.handovers.remove(&tgid);
        self.forget_runtime(tgid);
        self.listed -= usize::from(self.listed > 0 && self.processes.remove(&tgid).is_ok());
    }

    /// Sets the runtime of a process.
    pub fn runtime(&mut self, tgid: u32, runtime: Runtime) -> Result<(), LoadError> {
        if self.runtimes.insert(tgid, Pod(runtime), 0).is_err() {
            self.runtimes_refused += 1;
            return Ok(());
        }
        // Makes threads look the runtime up again.
        self.write()
    }

    /// Forgets the runtime of a process that is gone or runs another program.
    pub fn forget_runtime(&mut self, tgid: u32) {
        // Fails if it is not there, which is fine. Threads with a cached runtime check and find nothing.
        let _ = self.runtimes.remove(&tgid);
    }

    /// Traces wake-ups between threads of the process from now on, except by futexes in `statics`.
    pub fn handover(&mut self, tgid: u32, statics: Statics) {
        self.current.flags |= CONTROL_HANDOVERS;
        let done = self.handovers.insert(tgid, Pod(statics), 0).is_ok() && self.write_switches().is_ok();
        self.handovers_refused += u64::from(!done);
    }

    /// Number of processes with their own policy.
    pub fn listed(&self) -> usize {
        self.listed
    }

    /// Capture policies waiting in the kernel, counted one by one: some 10 ms when the table is full.
    pub fn asks_waiting(&self) -> usize {
        self.policies.keys().take(ASKS_MAX as usize).flatten().count()
    }

    /// Limits the payload prefix of every operation to `bytes`, whatever capture policies ask for.
    pub fn head_max(&mut self, bytes: u16) -> Result<(), LoadError> {
        self.current.head_max = u32::from(bytes);
        self.write()
    }

    /// Reports UDP sockets with one of these ports, two at most.
    pub fn names(&mut self, ports: &[u16]) -> Result<(), LoadError> {
        let mut ports = ports.iter().copied();
        self.current.names = ports.next().unwrap_or(0);
        self.current.names_too = ports.next().unwrap_or(0);
        self.write()
    }

    /// Traces only connections with one of these ports; an empty list traces all.
    pub fn only_ports(&mut self, ports: &[u16]) -> Result<(), LoadError> {
        if ports.is_empty() {
            return Ok(());
        }
        for port in ports {
            self.ports
                .insert(port, 1, 0)
                .map_err(|error| refused("the port list could not be written (256 at most)", &error))?;
        }
        self.current.flags |= CONTROL_PORTS;
        self.write()
    }

    /// Sets the sampling period, nanoseconds; 0 stops stacks.
    pub fn sample_period(&mut self, nanos: u64) -> Result<(), LoadError> {
        self.current.sample_period = nanos;
        self.write_switches()
    }

    /// Sets of how many of 2^32 threads that leave the CPU with a request the stack is taken.
    pub fn off_cpu_share(&mut self, share: u32) -> Result<(), LoadError> {
        self.current.off_cpu_share = share;
        self.write_switches()
    }

    /// Sets of how many of 2^32 calls the stack is taken; 0: of none.
    pub fn call_share(&mut self, share: u32) -> Result<(), LoadError> {
        self.current.call_share = share;
        self.write_switches()
    }

    /// Has time off the CPU reported from `nanos` on, of threads that hold a request; 0 = not at all.
    pub fn off_cpu(&mut self, nanos: u64) -> Result<(), LoadError> {
        self.current.off_cpu = nanos;
        self.write()
    }

    /// Sets the capture policy of the connection `cookie`.
    pub fn ask(&mut self, cookie: u64, ask: CapturePolicy) {
        if self.policies.insert(cookie, Pod(ask), 0).is_err() {
            self.asks_refused += 1;
        }
    }
}
