//! Where members of HotSpot's structures are, as it describes them itself.

use rustc_hash::FxHashMap;

use crate::process_memory::{ProcessMemory, word};

/// The exported variables.
pub const SYMBOLS: [&str; 11] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryIsStaticOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntryArrayStride",
];
/// Most entries of a table, and bytes of one.
const ENTRIES: usize = 8192;
const ENTRY: usize = 128;
/// Most bytes of a name in the tables.
const NAME: usize = 64;

/// A text that ends with a zero within `N` bytes; near the end of its memory fewer are read.
pub(super) fn text<const N: usize>(memory: &mut impl ProcessMemory, at: u64) -> Option<String> {
    let mut bytes = [0; N];
    let read =
        [N, N / 2, N / 4, N / 8].into_iter().find(|len| memory.read(at, bytes.get_mut(..*len).unwrap_or_default()))?;
    let bytes = bytes.get(..read)?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
}

/// How the code of a blob is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeBegin {
    /// Its address stands at this offset.
    Address(u64),
    /// Its distance from the blob does, four bytes.
    Distance(u64),
}

/// Where compiled code keeps which methods were inlined: the table of positions, the descriptions they lead to, and the methods that
/// these name by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InliningTables {
    /// In the blob (as Java 17 has it): offsets of the members that hold the distance of the positions and of their end, the address
    /// of the descriptions, and the distance of the methods.
    Blob { positions: u64, end: u64, scopes: u64, methods: u64 },
    /// In memory of their own (as Java 25 has it): offsets of the members that hold its address, the distance of the positions and of the
    /// descriptions, which follow; the address of the data that can change, and the distance of the methods in it.
    Apart { memory: u64, positions: u64, scopes: u64, data: u64, methods: u64 },
}

/// Offsets of members in bytes, where nothing else is noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotspotLayout {
    /// Addresses of variables: the list of heaps of code, the lowest and the highest address of code.
    pub(super) heaps: u64,
    pub(super) low: u64,
    pub(super) high: u64,
    /// Of a list: how many, and where they are.
    pub(super) list_len: u64,
    pub(super) list_data: u64,
    /// Of a heap of code: its memory, the map of its segments, the binary logarithm of a segment's bytes.
    pub(super) heap_memory: u64,
    pub(super) heap_segments: u64,
    pub(super) heap_shift: u64,
    /// Of memory: where it begins, and where its used part ends.
    pub(super) space_low: u64,
    pub(super) space_high: u64,
    /// Of a block of code: whether it is in use; and its bytes.
    pub(super) block_used: u64,
    pub(super) block_bytes: u64,
    /// Of a blob of code: its name, the words of its frame, the beginning and the end of its code.
    pub(super) blob_name: u64,
    pub(super) blob_frame: u64,
    pub(super) blob_code: CodeBegin,
    pub(super) blob_data: u64,
    /// Of compiled code: the method.
    pub(super) method: u64,
    /// And which methods were inlined into it; `None` where it is kept in another way.
    pub(super) inlining: Option<InliningTables>,
    /// Of a method: what does not change; of that: the constants, and which of them is the name.
    pub(super) method_const: u64,
    pub(super) const_pool: u64,
    pub(super) const_name: u64,
    /// Of constants: their class; and bytes before the first one.
    pub(super) pool_class: u64,
    pub(super) pool_bytes: u64,
    /// Of a class: its name.
    pub(super) class_name: u64,
    /// Of a name: how many bytes, and where they begin.
    pub(super) symbol_length: u64,
    pub(super) symbol_body: u64,
}

/// Members by structure and name: an offset, or the address of a variable; and sizes of types.
#[derive(Debug, Default)]
pub(super) struct Described {
    members: FxHashMap<(String, String), u64>,
    sizes: FxHashMap<String, u64>,
}

impl Described {
    /// Reads both tables.
    pub(super) fn read(memory: &mut impl ProcessMemory, symbol: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let mut value = |name: &str| word(memory, symbol(name)?);
        let mut described = Self::default();
        let [structs, owner, name, fixed, offset, address, stride] = [
            value("gHotSpotVMStructs")?,
            value("gHotSpotVMStructEntryTypeNameOffset")?,
            value("gHotSpotVMStructEntryFieldNameOffset")?,
            value("gHotSpotVMStructEntryIsStaticOffset")?,
            value("gHotSpotVMStructEntryOffsetOffset")?,
            value("gHotSpotVMStructEntryAddressOffset")?,
            value("gHotSpotVMStructEntryArrayStride")?,
        ];
        let [types, type_name, size, type_stride] = [
            value("gHotSpotVMTypes")?,
            value("gHotSpotVMTypeEntryTypeNameOffset")?,
            value("gHotSpotVMTypeEntrySizeOffset")?,
            value("gHotSpotVMTypeEntryArrayStride")?,
        ];
        let mut names: FxHashMap<u64, String> = FxHashMap::default();
        let mut named = |memory: &mut _, at: u64| -> Option<String> {
            if let Some(name) = names.get(&at) {
                return Some(name.clone());
            }
            // Names of templates are longer than is wanted: they are none of those that are looked for.
            let name = text::<NAME>(memory, at).unwrap_or_default();
            names.insert(at, name.clone());
            Some(name)
        };
        for entry in entries(memory, structs, stride) {
            let field = |at: u64| part(&entry, at);
            let Some(of) = field(owner).filter(|of| *of != 0) else { break };
            let is_static = field(fixed)? as u32 != 0;
            let at = field(if is_static { address } else { offset })?;
            let key = (named(memory, of)?, named(memory, field(name)?)?);
            described.members.insert(key, at);
        }
        for entry in entries(memory, types, type_stride) {
            let Some(of) = part(&entry, type_name).filter(|of| *of != 0) else { break };
            described.sizes.insert(named(memory, of)?, part(&entry, size)?);
        }
        Some(described)
    }

    #[cfg(test)]
    pub(super) fn describe(&mut self, of: &str, name: &str, at: u64) {
        self.members.insert((of.to_owned(), name.to_owned()), at);
    }

    /// An offset, or the address of a variable.
    pub(super) fn member(&self, of: &str, name: &str) -> Option<u64> {
        self.members.get(&(of.to_owned(), name.to_owned())).copied()
    }

    /// An offset, of any of these structures: a member moved to its base, or from it.
    pub(super) fn offset(&self, of: &[&str], name: &str) -> Option<u64> {
        of.iter().find_map(|of| self.member(of, name)).filter(|at| *at < 1 << 16)
    }
}

/// The entries of a table, as bytes; the reader stops at the last one.
fn entries(memory: &mut impl ProcessMemory, table: u64, stride: u64) -> Vec<[u8; ENTRY]> {
    let mut all = Vec::new();
    let Some(bytes) = usize::try_from(stride).ok().filter(|stride| (1..=ENTRY).contains(stride)) else { return all };
    for number in 0..ENTRIES as u64 {
        let mut entry = [0; ENTRY];
        let Some(at) = number.checked_mul(stride).and_then(|offset| table.checked_add(offset)) else { return all };
        let Some(into) = entry.get_mut(..bytes) else { return all };
        if !memory.read(at, into) {
            return all;
        }
        let last = into.iter().all(|byte| *byte == 0);
        all.push(entry);
        if last {
            return all;
        }
    }
    all
}

/// The word at an offset of an entry.
fn part(entry: &[u8; ENTRY], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    Some(u64::from_le_bytes(entry.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

impl HotspotLayout {
    /// As of Java 17, with variables at low addresses; for tests and fuzz targets.
    pub const SAMPLE: Self = Self {
        heaps: 0x1000,
        low: 0x1008,
        high: 0x1010,
        list_len: 0,
        list_data: 8,
        heap_memory: 8,
        heap_segments: 120,
        heap_shift: 256,
        space_low: 16,
        space_high: 24,
        block_used: 8,
        block_bytes: 16,
        blob_name: 96,
        blob_frame: 28,
        blob_code: CodeBegin::Address(32),
        blob_data: 24,
        method: 112,
        inlining: Some(InliningTables::Blob { positions: 268, end: 272, scopes: 120, methods: 260 }),
        method_const: 8,
        const_pool: 8,
        const_name: 34,
        pool_class: 24,
        pool_bytes: 72,
        class_name: 24,
        symbol_length: 4,
        symbol_body: 6,
    };

    /// Reads the virtual machine's description of itself; `symbol` gives addresses of [`SYMBOLS`]. `None` where something that is needed is
    /// not described.
    pub fn read(memory: &mut impl ProcessMemory, symbol: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let all = Described::read(memory, symbol)?;
        let list = ["GrowableArrayBase", "GenericGrowableArray", "GrowableArray<int>"];
        let code = all.offset(&["CodeBlob"], "_code_begin").map(CodeBegin::Address);
        let compiled = |name| all.offset(&["nmethod", "CompiledMethod"], name);
        let in_blob = || {
            Some(InliningTables::Blob {
                positions: compiled("_scopes_pcs_offset")?,
                end: compiled("_dependencies_offset")?,
                scopes: compiled("_scopes_data_begin")?,
                methods: compiled("_metadata_offset")?,
            })
        };
        let apart = || {
            Some(InliningTables::Apart {
                memory: compiled("_immutable_data")?,
                positions: compiled("_scopes_pcs_offset")?,
                scopes: compiled("_scopes_data_offset")?,
                data: all.offset(&["CodeBlob"], "_mutable_data")?,
                methods: all.offset(&["CodeBlob"], "_relocation_size")?,
            })
        };
        Some(Self {
            heaps: all.member("CodeCache", "_heaps")?,
            low: all.member("CodeCache", "_low_bound")?,
            high: all.member("CodeCache", "_high_bound")?,
            list_len: all.offset(&list, "_len")?,
            list_data: all.offset(&list, "_data")?,
            heap_memory: all.offset(&["CodeHeap"], "_memory")?,
            heap_segments: all.offset(&["CodeHeap"], "_segmap")?,
            heap_shift: all.offset(&["CodeHeap"], "_log2_segment_size")?,
            space_low: all.offset(&["VirtualSpace"], "_low")?,
            space_high: all.offset(&["VirtualSpace"], "_high")?,
            block_used: all.offset(&["HeapBlock::Header"], "_used")?,
            block_bytes: all.sizes.get("HeapBlock").copied().filter(|bytes| (1..=64).contains(bytes))?,
            blob_name: all.offset(&["CodeBlob"], "_name")?,
            blob_frame: all.offset(&["CodeBlob"], "_frame_size")?,
            blob_code: code.or_else(|| all.offset(&["CodeBlob"], "_code_offset").map(CodeBegin::Distance))?,
            blob_data: all.offset(&["CodeBlob"], "_data_offset")?,
            method: all.offset(&["nmethod", "CompiledMethod"], "_method")?,
            inlining: in_blob().or_else(apart),
            method_const: all.offset(&["Method"], "_constMethod")?,
            const_pool: all.offset(&["ConstMethod"], "_constants")?,
            const_name: all.offset(&["ConstMethod"], "_name_index")?,
            pool_class: all.offset(&["ConstantPool"], "_pool_holder")?,
            pool_bytes: all.sizes.get("ConstantPool").copied().filter(|bytes| (1..=1024).contains(bytes))?,
            class_name: all.offset(&["Klass"], "_name")?,
            symbol_length: all.offset(&["Symbol"], "_length")?,
            symbol_body: all.offset(&["Symbol"], "_body")?,
        })
    }
}
