//! The maps of unwind tables: the arena, files, rules, and the ring by which tables are asked for.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use aya::Ebpf;
use aya::maps::{Array, ArrayOfMaps, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use tracer_common::unwind::{CHUNK_WORDS, FileEntry, FileKey, Outcome, Rule, TableRequest};

use super::loader::{LoadError, Pod, chain, refused, take};

/// `BPF_MAP_TYPE_ARRAY` and `BPF_F_MMAPABLE` (`include/uapi/linux/bpf.h`).
const ARRAY: u32 = 2;
const MMAPABLE: u32 = 1 << 10;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = CHUNK_WORDS as usize * 4;

/// One chunk of the arena, mapped.
struct Chunk {
    /// Keeps the memory where it is.
    map: Array<MapData, Pod<[u8; CHUNK_BYTES]>>,
    memory: NonNull<u32>,
}

// SAFETY: the mapping is reached through this value alone, on this side; the kernel side only reads it.
unsafe impl Send for Chunk {}

impl Chunk {
    fn new() -> Result<Self, String> {
        // `Array::create` makes the same map, but hides the descriptor that mapping it takes.
        let definition = aya_obj::Map::new_from_params(ARRAY, 4, CHUNK_BYTES as u32, 1, MMAPABLE);
        let data = MapData::create(definition, "unwind_chunk", None).map_err(|error| chain(&error))?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = data.fd().as_fd().as_raw_fd();
        // SAFETY: a fresh mapping of the map's memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), CHUNK_BYTES, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().to_string());
        }
        let memory = NonNull::new(at.cast::<u32>()).ok_or("a chunk was mapped at 0")?;
        let map = Array::try_from(Map::Array(data)).map_err(|error| chain(&error))?;
        Ok(Self { map, memory })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: what was mapped, with its length.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), CHUNK_BYTES) };
    }
}

/// What the kernel side looks up.
pub struct Tables {
    outer: ArrayOfMaps<MapData, Array<MapData, Pod<[u8; CHUNK_BYTES]>>>,
    chunks: Vec<Chunk>,
    files: HashMap<MapData, Pod<FileKey>, Pod<FileEntry>>,
    rules: Array<MapData, Pod<Rule>>,
    requests: RingBuf<MapData>,
}

/// Walks counted so far.
pub struct Walks(PerCpuArray<MapData, u64>);

impl Walks {
    /// Walks by outcome.
    pub fn counts(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL
            .into_iter()
            .map(|outcome| (outcome, self.0.get(&(outcome as u32), 0).map_or(0, |cpus| cpus.iter().sum())))
    }
}

/// Takes the maps out of the loaded object.
pub(super) fn maps(ebpf: &mut Ebpf) -> Result<(Tables, Walks), LoadError> {
    let bad = |name: &str, error: MapError| refused(&format!("map {name}"), &chain(&error));
    let mut map = |name| take(ebpf, name);
    let tables = Tables {
        outer: ArrayOfMaps::try_from(map("UNWIND_CHUNKS")?).map_err(|error| bad("UNWIND_CHUNKS", error))?,
        chunks: Vec::new(),
        files: HashMap::try_from(map("UNWIND_FILES")?).map_err(|error| bad("UNWIND_FILES", error))?,
        rules: Array::try_from(map("UNWIND_RULES")?).map_err(|error| bad("UNWIND_RULES", error))?,
        requests: RingBuf::try_from(map("UNWIND_REQUESTS")?).map_err(|error| bad("UNWIND_REQUESTS", error))?,
    };
    let walks = PerCpuArray::try_from(map("WALKS")?).map_err(|error| bad("WALKS", error))?;
    Ok((tables, Walks(walks)))
}

impl Tables {
    /// Adds a chunk, which gets the number `chunk`.
    pub fn grow(&mut self, chunk: u32) -> Result<(), String> {
        let new = Chunk::new()?;
        self.outer.set(chunk, &new.map, 0).map_err(|error| chain(&error))?;
        self.chunks.push(new);
        Ok(())
    }

    /// Writes words of the arena, of one chunk; what would not fit is not written.
    pub fn write(&mut self, at: u32, words: &[u32]) {
        let (chunk, from) = ((at / CHUNK_WORDS) as usize, (at % CHUNK_WORDS) as usize);
        let Some(chunk) = self.chunks.get(chunk).filter(|_| from + words.len() <= CHUNK_WORDS as usize) else { return };
        // SAFETY: within the mapping, as was just seen; nothing else refers to it here.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), chunk.memory.as_ptr().add(from), words.len()) };
    }

    /// Writes a rule.
    pub fn set_rule(&mut self, number: u32, rule: Rule) -> Result<(), String> {
        self.rules.set(number, Pod(rule), 0).map_err(|error| chain(&error))
    }

    /// Says what is known of a file.
    pub fn set_file(&mut self, key: FileKey, entry: FileEntry) -> Result<(), String> {
        self.files.insert(Pod(key), Pod(entry), 0).map_err(|error| chain(&error))
    }

    /// Forgets a file.
    pub fn forget(&mut self, key: FileKey) {
        // Not there is what is wanted.
        let _ = self.files.remove(&Pod(key));
    }

    /// When a file was used last.
    pub fn used(&self, key: FileKey) -> Option<u32> {
        self.files.get(&Pod(key), 0).ok().map(|Pod(entry)| entry.used)
    }

    /// Walks that ended at a file since its table was asked for.
    pub fn waiting(&self, key: FileKey) -> u32 {
        self.files.get(&Pod(key), 0).map_or(0, |Pod(entry)| entry.waiting)
    }

    /// The next request for a table.
    pub fn request(&mut self) -> Option<TableRequest> {
        self.requests.next().and_then(|bytes| TableRequest::decode(&bytes))
    }

    /// Sleeps until a table is asked for, or `millis` have passed.
    pub fn wait(&self, millis: i32) {
        let mut poll = libc::pollfd { fd: self.requests.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
    }
}
