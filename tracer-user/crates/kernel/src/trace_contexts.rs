//! The map by which other programs of this host learn which request a thread holds: pinned where OpenTelemetry's profiler
//! and eBPF instrumentation look for it. Whoever comes first makes it; the agent uses a map that it finds there.
//!
//! Whatever way the agent ends by itself, its entries go, and the pin if the agent made it. After `kill -9` they stay until
//! the next start, which recognises the map by its name.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{HashMap as BpfMap, Map, MapData};
use tracer_common::limits::{TRACE_CONTEXT_BYTES, TRACE_CONTEXTS_MAX};
use tracer_host::file_system::file_system;
use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;

use super::loader::chain;

/// Where the map is pinned, below the BPF file system.
const DIRECTORY: &str = "otel";
const PIN: &str = "traces_ctx_v1";
/// The map's name in the kernel, if the agent made it.
const NAME: &str = "tracer_ctx_v1";
/// Its name in the BPF object.
pub(super) const MAP: &str = "TRACE_CONTEXTS";
/// `BPF_MAP_TYPE_LRU_HASH` (`include/uapi/linux/bpf.h`), and bytes of a key.
const LRU_HASH: u32 = 9;
const KEY_BYTES: u32 = 8;
/// `BPF_FS_MAGIC` (`include/uapi/linux/magic.h`).
const BPF_FS: i64 = 0xcafe_4a11;
/// The kernel side may have removed an entry although the thread still holds the request, as when a server asks for the
/// request's body first: it is written again after this long, nanoseconds.
const AGAIN: Nanos = 100_000_000;

/// Whether contexts are published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TraceContextMode {
    /// No.
    #[default]
    Off,
    /// Load the programs as if they were, to see whether this kernel accepts them.
    Tried,
    /// Yes, in a map pinned below this BPF file system.
    On(PathBuf),
}

/// A thread, and the context of the request that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadContext {
    /// Process.
    pub tgid: u32,
    /// Thread.
    pub tid: u32,
    /// Trace id, then span id, as they are sent.
    pub ids: [u8; TRACE_CONTEXT_BYTES],
}

impl ThreadContext {
    fn key(&self) -> u64 {
        u64::from(self.tgid) << 32 | u64::from(self.tid)
    }
}

/// The pinned map.
#[derive(Debug)]
struct PinnedMap {
    path: PathBuf,
    data: MapData,
    /// The agent made the map; and the directory of its pin.
    made: bool,
    made_directory: bool,
}

/// A map's type, and bytes of its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    kind: u32,
    key: u32,
    value: u32,
}

const SHAPE: Shape = Shape { kind: LRU_HASH, key: KEY_BYTES, value: TRACE_CONTEXT_BYTES as u32 };

impl Shape {
    /// From `/proc/self/fdinfo/FD`; `None` if that is of no map.
    fn parse(info: &str) -> Option<Self> {
        let number = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(':')?.trim().parse().ok()
        };
        Some(Self { kind: number("map_type")?, key: number("key_size")?, value: number("value_size")? })
    }
}

impl PinnedMap {
    /// Opens the map below `bpffs`, or makes it.
    fn open(bpffs: &Path) -> Result<Self, String> {
        if file_system(bpffs) != Some(BPF_FS) {
            return Err(format!(
                "no BPF file system is mounted at {0}: mount -t bpf bpf {0}, or name another with [profiles] bpffs",
                bpffs.display()
            ));
        }
        let path = bpffs.join(DIRECTORY).join(PIN);
        if fs::symlink_metadata(&path).is_ok() {
            return Self::adopt(path);
        }
        let directory = bpffs.join(DIRECTORY);
        let made_directory = match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(format!("{}: {error}", directory.display())),
        };
        let definition = aya_obj::Map::new_from_params(LRU_HASH, KEY_BYTES, SHAPE.value, TRACE_CONTEXTS_MAX, 0);
        let data = MapData::create(definition, NAME, None).map_err(|error| chain(&error))?;
        match data.pin(&path) {
            Ok(()) => Ok(Self { path, data, made: true, made_directory }),
            // Another program was faster.
            Err(_) if fs::symlink_metadata(&path).is_ok() => Self::adopt(path),
            Err(error) => {
                if made_directory {
                    // What cannot be removed is empty, and harmless.
                    let _ = fs::remove_dir(&directory);
                }
                Err(format!("{}: {}", path.display(), chain(&error)))
            }
        }
    }

    fn adopt(path: PathBuf) -> Result<Self, String> {
        let data = MapData::from_pin(&path).map_err(|error| format!("{}: {}", path.display(), chain(&error)))?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd()));
        let found = info.ok().and_then(|info| Shape::parse(&info));
        if found != Some(SHAPE) {
            let what = found.map_or_else(
                || "no map".to_owned(),
                |Shape { kind, key, value }| {
                    format!("a map of type {kind} with keys of {key} and values of {value} bytes")
                },
            );
            return Err(format!(
                "{} is {what}; expected an LRU hash (type {LRU_HASH}) with keys of {KEY_BYTES} and values of \
                 {TRACE_CONTEXT_BYTES} bytes",
                path.display()
            ));
        }
        // A killed agent left it.
        let made = data.info().is_ok_and(|info| info.name() == NAME.as_bytes());
        Ok(Self { path, data, made, made_directory: made })
    }
}

#[derive(Debug)]
struct Published {
    ids: [u8; TRACE_CONTEXT_BYTES],
    written: Nanos,
    /// Number of the call in which it was named last.
    named: u64,
}

#[derive(Debug)]
struct Inner {
    map: BpfMap<MapData, u64, [u8; TRACE_CONTEXT_BYTES]>,
    published: HashMap<u64, Published>,
    calls: u64,
    /// Entries that could not be written.
    refused: u64,
    /// Everything was removed; nothing is written any more.
    over: bool,
    path: PathBuf,
    made: bool,
    made_directory: bool,
}

/// The contexts that are published.
#[derive(Clone, Debug)]
pub struct TraceContexts(Arc<Mutex<Inner>>);

impl TraceContexts {
    /// Opens the map below `bpffs`, or makes it. What is in it is of a killed agent, or of another program that writes it, too: a
    /// wrong label is worse than none, and whoever else writes will write again.
    pub(super) fn open(bpffs: &Path) -> Result<Self, String> {
        let PinnedMap { path, data, made, made_directory } = PinnedMap::open(bpffs)?;
        let mut map = BpfMap::try_from(Map::LruHashMap(data)).map_err(|error| chain(&error))?;
        clear(&mut map);
        let (published, calls, refused) = (HashMap::new(), 0, 0);
        Ok(Self(Arc::new(Mutex::new(Inner {
            map,
            published,
            calls,
            refused,
            over: false,
            path,
            made,
            made_directory,
        }))))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes these contexts, and no others, at `now`.
    pub fn publish(&self, held: &[ThreadContext], now: Nanos) {
        let mut inner = self.inner();
        let Inner { map, published, calls, refused, over, .. } = &mut *inner;
        if *over || held.is_empty() && published.is_empty() {
            return;
        }
        *calls += 1;
        for context in held.iter().take(TRACE_CONTEXTS_MAX as usize) {
            let key = context.key();
            if let Some(known) = published.get_mut(&key) {
                known.named = *calls;
                if known.ids == context.ids && now.saturating_sub(known.written) < AGAIN {
                    continue;
                }
            }
            if map.insert(key, context.ids, 0).is_ok() {
                published.insert(key, Published { ids: context.ids, written: now, named: *calls });
            } else {
                *refused += 1;
            }
        }
        *refused += held.len().saturating_sub(TRACE_CONTEXTS_MAX as usize) as u64;
        published.retain(|key, known| {
            let keep = known.named == *calls;
            if !keep {
                // Gone already is what is wanted.
                let _ = map.remove(key);
            }
            keep
        });
    }

    /// Where the map is pinned.
    pub(super) fn path(&self) -> PathBuf {
        self.inner().path.clone()
    }

    /// Threads whose request's context is published.
    pub fn table_use(&self) -> TableUse {
        let inner = self.inner();
        TableUse::new(inner.published.len(), TRACE_CONTEXTS_MAX as usize, inner.refused)
    }

    /// What removes them when it is dropped, from whichever thread.
    pub(super) fn remover(&self) -> CleanupOnDrop {
        CleanupOnDrop(Arc::clone(&self.0))
    }
}

fn clear(map: &mut BpfMap<MapData, u64, [u8; TRACE_CONTEXT_BYTES]>) {
    let keys: Vec<u64> = map.keys().filter_map(Result::ok).take(TRACE_CONTEXTS_MAX as usize).collect();
    for key in keys {
        let _ = map.remove(&key);
    }
}

/// Removes what is published when it is dropped.
#[derive(Debug)]
pub(super) struct CleanupOnDrop(Arc<Mutex<Inner>>);

impl Drop for CleanupOnDrop {
    fn drop(&mut self) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { map, published, over, path, made, made_directory, .. } = &mut *inner;
        if std::mem::replace(over, true) {
            return;
        }
        for (key, _) in published.drain() {
            let _ = map.remove(&key);
        }
        if !*made {
            return;
        }
        if let Err(error) = fs::remove_file(&*path)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{}: {error}: the map of trace contexts stays pinned", path.display());
        }
        if let Some(directory) = path.parent().filter(|_| *made_directory) {
            // Others may use it.
            let _ = fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_what_the_kernel_says_of_the_descriptor() {
        let info = "pos:\t0\nflags:\t02000002\nmap_type:\t9\nkey_size:\t8\nvalue_size:\t24\nmax_entries:\t16384\n";
        assert_eq!(Shape::parse(info), Some(SHAPE));
        assert_ne!(Shape::parse(&info.replace("24", "32")), Some(SHAPE));
        // A program, and nonsense.
        for other in
            ["prog_type:\t26\nprog_jited:\t1\n", "", "map_type:\nkey_size:\t8\nvalue_size:\t24\n", "map_type:\t-1\n"]
        {
            assert_eq!(Shape::parse(other), None, "{other}");
        }
    }

    #[test]
    fn where_no_such_file_system_is_the_error_names_it() {
        for path in ["/proc", "/nowhere/at/all"] {
            let error = PinnedMap::open(Path::new(path)).unwrap_err();
            assert!(error.contains(&format!("mount -t bpf bpf {path}")), "{error}");
        }
    }

    #[test]
    fn keys_are_those_of_bpf_get_current_pid_tgid() {
        let context = ThreadContext { tgid: 7, tid: 9, ids: [0; TRACE_CONTEXT_BYTES] };
        assert_eq!(context.key(), 7 << 32 | 9);
    }
}
