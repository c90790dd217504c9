//! Calls of declared transactions as the kernel side counts them: sooner than their records are read, and also of those whose
//! records were lost.

use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};

use super::loader::{LoadError, take_array};

/// The counters, for any thread.
#[derive(Clone)]
pub struct DeclaredCalls(Arc<PerCpuArray<MapData, u64>>);

impl DeclaredCalls {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        Ok(Self(Arc::new(take_array(ebpf, "DECLARED_CALLS")?)))
    }

    /// Calls that began since the start, of every transaction that had this number.
    pub fn of(&self, number: usize) -> u64 {
        self.0.get(&(number as u32), 0).map_or(0, |cpus| cpus.iter().sum())
    }
}
