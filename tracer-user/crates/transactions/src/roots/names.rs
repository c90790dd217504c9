//! Numbers of roots: the service and the class of a request, each pair once.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Names};

/// A root by its number. It means the same as long as the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootId(u32);

impl RootId {
    /// No root.
    pub const UNKNOWN: Self = Self(0);
    /// Roots without a number, or without a row, of their own.
    pub const OTHER: Self = Self(1);
    const FIRST: u32 = 2;

    /// Whether it is a class, and not one of the two above.
    pub(super) fn is_class(self) -> bool {
        self.0 >= Self::FIRST
    }
}

/// Service and class.
pub(super) type RootName = (Arc<str>, Arc<str>);

/// All names.
#[derive(Debug)]
pub(super) struct RootNames {
    names: Vec<RootName>,
    ids: FxHashMap<RootName, RootId>,
    /// By class of this host.
    of_class: Vec<Option<RootId>>,
    limit: usize,
    refused: u64,
}

impl RootNames {
    pub(super) fn new(limit: usize) -> Self {
        Self { names: Vec::new(), ids: FxHashMap::default(), of_class: Vec::new(), limit, refused: 0 }
    }

    /// The number of a root of this host; a new one if there is room.
    pub(super) fn id(&mut self, service: &Arc<str>, class: &Arc<str>) -> RootId {
        self.within(self.limit, service, class)
    }

    /// The number of a root that another host's agent names. However many these are, half of the room is for this host's.
    pub(super) fn of_peer(&mut self, service: &Arc<str>, class: &Arc<str>) -> RootId {
        self.within(self.limit / 2, service, class)
    }

    fn within(&mut self, limit: usize, service: &Arc<str>, class: &Arc<str>) -> RootId {
        let name = (Arc::clone(service), Arc::clone(class));
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        if self.names.len() >= limit {
            self.refused += 1;
            return RootId::OTHER;
        }
        let id = RootId(self.names.len() as u32 + RootId::FIRST);
        self.names.push(name.clone());
        self.ids.insert(name, id);
        id
    }

    /// The number of a class of this host.
    pub(super) fn of_class(&mut self, names: &Names, class: ClassId) -> RootId {
        let index = class.0 as usize;
        if let Some(Some(id)) = self.of_class.get(index) {
            return *id;
        }
        let Some(info) = names.class(class) else { return RootId::UNKNOWN };
        let id = self.id(&info.service_name, &info.name);
        if self.of_class.len() <= index {
            self.of_class.resize(index + 1, None);
        }
        if id.is_class()
            && let Some(place) = self.of_class.get_mut(index)
        {
            *place = Some(id);
        }
        id
    }

    /// The name of a number; `None` for [`RootId::UNKNOWN`] and [`RootId::OTHER`].
    pub(super) fn get(&self, id: RootId) -> Option<RootName> {
        self.names.get(id.0.checked_sub(RootId::FIRST)? as usize).cloned()
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.names.len(), self.limit, self.refused)
    }
}
