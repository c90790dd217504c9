//! USDT probes of declared transactions: uprobes with a semaphore, a counter in the program that is zero while nobody
//! traces and lets the program skip the probe.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, MapData};
use tracer_common::runtime::{Operands, UserProbe, declared as cookie};
use tracer_runtimes::declared::ProbePlace;

use super::loader::{LoadError, Pod, chain, refused, take};
use super::uprobes::Prober;

/// Where the arguments of probes are: a map that the kernel side reads, and the visit that each element is of.
pub(super) struct OperandMap {
    map: Array<MapData, Pod<Operands>>,
    visits: Vec<Option<u64>>,
}

/// Takes the map out of the loaded object.
pub(super) fn operands(ebpf: &mut Ebpf) -> Result<Arc<Mutex<OperandMap>>, LoadError> {
    let map: Array<MapData, Pod<Operands>> = Array::try_from(take(ebpf, "DECLARED_OPERANDS")?)
        .map_err(|error| refused("map DECLARED_OPERANDS", &chain(&error)))?;
    let visits = vec![None; map.len() as usize];
    Ok(Arc::new(Mutex::new(OperandMap { map, visits })))
}

impl OperandMap {
    /// The number of an element that says where these arguments are.
    fn put(&mut self, visit: u64, operands: &Operands) -> Result<u64, String> {
        let free = self.visits.iter().position(Option::is_none);
        let number = free.ok_or_else(|| format!("{} probes with arguments are in use", self.visits.len()))?;
        self.map.set(number as u32, Pod(*operands), 0).map_err(|error| chain(&error))?;
        if let Some(place) = self.visits.get_mut(number) {
            *place = Some(visit);
        }
        Ok(number as u64)
    }

    /// Frees the elements of a visit, whose probes are gone.
    pub(super) fn free(&mut self, visit: u64) {
        for place in &mut self.visits {
            place.take_if(|of| *of == visit);
        }
    }
}

impl Prober {
    /// Attaches to a USDT probe of a file in every process that has it mapped, now or later. The program reads `cookie`;
    /// `visit` is the number under which [`Self::detach_file`] finds it.
    pub fn attach_place(&mut self, visit: u64, file: &Path, place: &ProbePlace, cookie: u64) -> Result<(), String> {
        let (probe, cookie) = match &place.operands {
            Some(operands) => {
                let number = self.operands.lock().unwrap_or_else(PoisonError::into_inner).put(visit, operands)?;
                (UserProbe::DeclaredArguments, cookie | number << cookie::OPERANDS)
            }
            None => (UserProbe::DeclaredPlace, cookie),
        };
        self.attach_with_semaphore(probe, visit, (file, place.at, place.semaphore), cookie)
    }
}
