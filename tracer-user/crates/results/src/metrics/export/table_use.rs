//! How full the agent's tables, queues, caches and rings are.

use prometheus::{IntGaugeVec, Opts};
use tracer_host::guard::tables::TableUse;

use super::Metrics;
use crate::metrics::families::{Families, vec};
use crate::metrics::totals::Totals;

const LABELS: [&str; 1] = ["table"];

/// Use and limit of tables that are bounded in one unit.
#[derive(Debug)]
struct Bounded {
    used: IntGaugeVec,
    limit: IntGaugeVec,
}

/// The families.
#[derive(Debug)]
pub(super) struct TableFamilies {
    entries: Bounded,
    /// Tables whose names end in `_bytes`.
    bytes: Bounded,
    evictions: Totals,
}

impl TableFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let gauge = |name: &str, help: &str| vec(r, IntGaugeVec::new(Opts::new(name, help), &LABELS));
        let evictions = "Times a full table rejected an entry or evicted another one.";
        Self {
            entries: Bounded {
                used: gauge("tracer_table_entries", "Entries in a table, queue or cache of the agent."),
                limit: gauge("tracer_table_limit_entries", "Maximum entries of a table, queue or cache of the agent."),
            },
            bytes: Bounded {
                used: gauge("tracer_table_bytes", "Bytes in a table, queue, cache or ring of the agent."),
                limit: gauge(
                    "tracer_table_limit_bytes",
                    "Maximum bytes in a table, queue, cache or ring of the agent.",
                ),
            },
            evictions: Totals::new(r, "tracer_table_evictions_total", evictions, LABELS[0]),
        }
    }

    /// Shows the use of a table, in bytes where its name says so.
    fn set(&self, table: &str, table_use: TableUse) {
        let family = if table.ends_with("_bytes") { &self.bytes } else { &self.entries };
        let shown = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        family.used.with_label_values(&[table]).set(shown(table_use.entries));
        family.limit.with_label_values(&[table]).set(shown(table_use.limit));
        self.evictions.set(table, table_use.reached);
    }
}

impl Metrics {
    /// Entries, limits and evictions of every table.
    pub fn set_table_use(&self, table_use: &[(&'static str, TableUse)]) {
        for (table, table_use) in table_use {
            self.tables.set(table, *table_use);
        }
    }
}
