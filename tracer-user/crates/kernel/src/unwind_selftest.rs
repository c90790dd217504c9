//! The test at start of walking stacks: does the kernel side find the mapping a thread of our own runs in? It reads the
//! kernel's tree of mappings, whose layout is only partly described by the kernel's types.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use aya::programs::PerfEvent;
use tracer_common::unwind::TableRequest;

use super::loader::Kernel;
use super::probes::SAMPLER;
use super::rings::Rings;
use super::sampler;

/// How long a sample of the thread may take to come.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time between samples, nanoseconds.
const PERIOD: u64 = 200_000;

impl Kernel {
    /// Runs the test, and has stacks walked by unwind tables from then on if it passed; why not otherwise.
    pub fn try_unwinding(&mut self, rings: &mut Rings) -> Result<(), String> {
        if let Some(missing) = &self.no_unwind {
            return Err(missing.clone());
        }
        let text = |error: super::loader::LoadError| error.to_string();
        self.policy.unwind(true).map_err(text)?;
        self.policy.sample_period(PERIOD).map_err(text)?;
        let found = self.find_own_mapping();
        self.policy.sample_period(0).map_err(text)?;
        rings.samples(usize::MAX, &mut |_| ());
        if found.is_err() {
            self.policy.unwind(false).map_err(text)?;
        }
        self.no_unwind = found.clone().err();
        found
    }

    /// Runs until the kernel side asks for the table of what this thread runs in.
    fn find_own_mapping(&mut self) -> Result<(), String> {
        let tables = self.tables.as_mut().ok_or("the tables are taken")?;
        let program: Option<&PerfEvent> = self.ebpf.program(SAMPLER).and_then(|program| program.try_into().ok());
        let program = program.and_then(|program| program.fd().ok()).ok_or("there is no sampler")?;
        let clock = sampler::of_this_thread(program, PERIOD).map_err(|error| error.to_string())?;
        log::trace!("the self-test's clock is descriptor {}", clock.as_raw_fd());
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            while let Some(request) = tables.request() {
                // Whoever needs it asks again.
                tables.forget(request.key);
                if request.tgid == std::process::id() {
                    return compare(&request);
                }
            }
        }
        Err(format!("self-test: no mapping was found within {} ms", PATIENCE.as_millis()))
    }
}

/// Whether what the kernel side found is mapped as code here.
fn compare(request: &TableRequest) -> Result<(), String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let range = format!("{:x}-{:x} ", request.start, request.end);
    let line = maps.lines().find(|line| line.starts_with(&range));
    let inode = line.and_then(|line| line.split_ascii_whitespace().nth(4)).and_then(|text| text.parse().ok());
    match line {
        Some(line) if line.contains("r-x") && inode == Some(request.key.inode) => Ok(()),
        _ => Err(format!("self-test: {range}of inode {} is not what is mapped: {line:?}", request.key.inode)),
    }
}
