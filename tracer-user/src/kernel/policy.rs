//! What user space tells the kernel, write side. After start, the only file that writes kernel maps.

use aya::maps::{Array, HashMap, Map, MapData};
use tracer_common::limits::ASKS_MAX;
use tracer_common::policy::{
    Ask, CONTROL_DEFAULT_IGNORE, CONTROL_OWN, CONTROL_PORTS, CONTROL_SOCKETS, CONTROL_UDP, Control, PROCESS_IGNORE,
    PROCESS_TRACE, Statics,
};
use tracer_common::runtime::Runtime;

use super::load::{LoadError, Pod, refused};

/// The maps that carry policy.
pub struct Policy {
    control: Array<MapData, Pod<Control>>,
    processes: HashMap<MapData, u32, u32>,
    ports: HashMap<MapData, u16, u8>,
    asks: HashMap<MapData, u64, Pod<Ask>>,
    handovers: HashMap<MapData, u32, Pod<Statics>>,
    runtimes: HashMap<MapData, u32, Pod<Runtime>>,
    current: Control,
    /// Processes with a policy of their own.
    listed: usize,
    /// Processes whose policy found no place.
    pub processes_refused: u64,
    /// Processes whose threads' wake-ups are not looked at because there are too many.
    pub handovers_refused: u64,
    /// Processes whose runtime could not be told because there are too many.
    pub runtimes_refused: u64,
    /// Answers that could not be written: the connection stays as it is, at a higher cost.
    pub asks_refused: u64,
}

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: sockets are not reported.
    Nothing,
    /// Only the agent itself, UDP included: the self-test.
    SelfTest,
    /// Every process that was not excluded.
    Everything,
    /// Only processes that were included.
    Listed,
}

impl Policy {
    pub(super) fn new(
        control: Map,
        processes: Map,
        ports: Map,
        asks: Map,
        handovers: Map,
        runtimes: Map,
    ) -> Result<Self, LoadError> {
        let bad = |name: &str, error: &dyn std::fmt::Display| refused(&format!("map {name}"), error);
        Ok(Self {
            control: Array::try_from(control).map_err(|error| bad("CONTROL", &error))?,
            processes: HashMap::try_from(processes).map_err(|error| bad("PROCESSES", &error))?,
            ports: HashMap::try_from(ports).map_err(|error| bad("PORTS", &error))?,
            asks: HashMap::try_from(asks).map_err(|error| bad("ASKS", &error))?,
            handovers: HashMap::try_from(handovers).map_err(|error| bad("HANDOVERS", &error))?,
            runtimes: HashMap::try_from(runtimes).map_err(|error| bad("RUNTIMES", &error))?,
            current: Control {
                flags: 0,
                generation: 0,
                sample_period: 0,
                head_max: tracer_common::limits::HEAD_MAX as u32,
                names: 0,
                names_too: 0,
            },
            listed: 0,
            processes_refused: 0,
            handovers_refused: 0,
            runtimes_refused: 0,
            asks_refused: 0,
        })
    }

    fn write(&mut self) -> Result<(), LoadError> {
        // Threads compare generations; 0 is what a fresh record has.
        self.current.generation = self.current.generation.wrapping_add(1).max(1);
        self.control
            .set(0, Pod(self.current), 0)
            .map_err(|error| refused("the control map could not be written", &error))
    }

    /// Says what is traced from now on.
    pub fn scope(&mut self, scope: Scope) -> Result<(), LoadError> {
        let keep = self.current.flags & CONTROL_PORTS;
        self.current.flags = keep
            | match scope {
                Scope::Nothing => 0,
                Scope::SelfTest => CONTROL_SOCKETS | CONTROL_OWN | CONTROL_UDP | CONTROL_DEFAULT_IGNORE,
                Scope::Everything => CONTROL_SOCKETS,
                Scope::Listed => CONTROL_SOCKETS | CONTROL_DEFAULT_IGNORE,
            };
        self.write()
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

    /// Forgets a process that is gone. Its id may come back as another's.
    pub fn forget_process(&mut self, tgid: u32) {
        // Not there is what is wanted.
        let _ = self.handovers.remove(&tgid);
        self.forget_runtime(tgid);
        self.listed -= usize::from(self.listed > 0 && self.processes.remove(&tgid).is_ok());
    }

    /// What runs in the process is known.
    pub fn runtime(&mut self, tgid: u32, runtime: Runtime) -> Result<(), LoadError> {
        if self.runtimes.insert(tgid, Pod(runtime), 0).is_err() {
            self.runtimes_refused += 1;
            return Ok(());
        }
        // Threads look again.
        self.write()
    }

    /// The process is gone, or runs another program.
    pub fn forget_runtime(&mut self, tgid: u32) {
        // Not there is what is wanted. Threads that look at their own word for it find nothing there.
        let _ = self.runtimes.remove(&tgid);
    }

    /// Wake-ups between threads of the process are looked at from now on, but for futexes in `statics`.
    pub fn handover(&mut self, tgid: u32, statics: Statics) {
        self.handovers_refused += u64::from(self.handovers.insert(tgid, Pod(statics), 0).is_err());
    }

    /// Processes with a policy of their own.
    pub fn listed(&self) -> usize {
        self.listed
    }

    /// Wishes waiting in the kernel, counted one by one: some 10 ms when it is full.
    pub fn asks_waiting(&self) -> usize {
        self.asks.keys().take(ASKS_MAX as usize).flatten().count()
    }

    /// Carries at most this much payload from the front of an operation, whatever was asked for; bytes.
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

    /// Traces only connections with one of these ports, when there are any.
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

    /// Tells samples which period is in force, nanoseconds; 0 stops stacks.
    pub fn sample_period(&mut self, nanos: u64) -> Result<(), LoadError> {
        self.current.sample_period = nanos;
        self.write()
    }

    /// What is wanted of the connection `cookie`.
    pub fn ask(&mut self, cookie: u64, ask: Ask) {
        if self.asks.insert(cookie, Pod(ask), 0).is_err() {
            self.asks_refused += 1;
        }
    }
}
