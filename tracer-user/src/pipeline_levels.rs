//! What the stages count, how full they are, and what detail they give up.

use tracer_common::event::Kind;

use super::serving::SERVICES;
use super::{LEAVING, Pipeline};
use crate::classes::ClassFills;
use crate::decode::Malformed;
use crate::guard::fill::{Fill, PipelineFills};
use crate::guard::shed::Level;
use crate::model::{HostBooks, ServiceId};
use crate::profiles::ProfileFills;
use crate::transactions::limits::EngineFills;

impl Pipeline {
    /// Counters of the stages.
    pub(super) fn publish(&mut self) {
        for (kind, count) in Kind::ALL.into_iter().zip(self.events) {
            self.metrics.set_events(kind.name(), count);
        }
        for (why, count) in Malformed::ALL.into_iter().zip(self.malformed) {
            self.metrics.set_lost(why.name(), count);
        }
        let counters = self.engine.counters;
        for (reason, count) in [
            ("parser_gap_bytes", counters.gap_bytes),
            ("reply_without_request", counters.unpaired),
            ("connections_evicted", counters.connections_evicted),
            ("threads_refused", counters.threads_refused),
            ("units_evicted", counters.units_evicted),
            ("processes_forgotten", counters.processes_forgotten),
            ("thread_operations_missing", counters.threads_doubted),
            ("samples_dropped", counters.samples_dropped),
            ("samples_late", counters.samples_late),
            ("services_refused", self.services_refused),
            ("units_not_written", self.not_written + self.writers.iter().map(|writer| writer.dropped()).sum::<u64>()),
            ("heads_given_up", counters.heads_given_up),
            ("requests_unnamed", counters.unnamed),
            ("streams_given_up", counters.streams_given_up),
            ("errands_given_up", counters.errands_given_up),
            ("statements_refused", counters.statements_refused),
            ("lookup_ends_unclear", self.engine.lookups_unclear()),
            ("task_relations_missing", self.engine.kins_lost()),
        ] {
            self.metrics.set_lost(reason, count);
        }
        self.metrics.set_unlinked(&[("unread", counters.messages_unread), ("limit", counters.links_dropped)]);
        self.metrics.set_inband(&self.engine.inband_outcomes().all());
        for (index, name) in self.names.services.iter().enumerate() {
            let id = ServiceId(index as u32);
            self.metrics.set_classes(name, self.classifier.classes(id), self.classifier.merged_total(id));
        }
        self.metrics.set_fills(&self.fills().all());
    }

    /// How full everything is.
    pub fn fills(&self) -> PipelineFills {
        let EngineFills {
            connections,
            closing,
            threads,
            units,
            joins,
            processes,
            head_bytes,
            tasks,
            intervals,
            wakers,
            callbacks,
            relay_requests,
            relay_calls,
            relay_lookups,
            tags,
        } = self.engine.fills();
        let ClassFills { classes, positions, cache } = self.classifier.fills();
        let ProfileFills { stacks, pairs, queue, names, processes: symbol_processes, addresses } =
            self.profiles.fills();
        let (store_units, store_wanted) = self.store.fills();
        PipelineFills {
            connections,
            connections_closing: closing,
            threads,
            units,
            joins,
            relay_requests,
            relay_calls,
            relay_lookups,
            inband_contexts: tags,
            head_bytes,
            tasks,
            callbacks,
            task_intervals: intervals,
            task_wakers: wakers,
            processes,
            processes_leaving: Fill::new(self.leaving.len(), LEAVING, self.left_early),
            processes_forked: Fill::new(self.forked.len(), LEAVING, self.forked_refused),
            services: Fill::new(self.names.services.len(), SERVICES, self.services_refused),
            classes,
            path_positions: positions,
            class_cache: cache,
            duration_series: self.metrics.series(),
            store_units,
            store_wanted,
            stacks,
            stack_counts: pairs,
            symbol_queue: queue,
            symbol_names: names,
            symbol_processes,
            symbol_addresses: addresses,
        }
    }

    /// Gives up as much detail as `level` says from now on, or takes it back. Sums, charges and counters of losses are
    /// the same at every level.
    pub fn shed(&mut self, level: Level) {
        let diet = level.diet();
        self.engine.set_head_limit(diet.head_limit);
        self.classifier.allow_new(diet.new_classes);
        self.store.keep_part(diet.store_part);
        self.profiles.keep_part(diet.store_part);
        self.profiles.allow_debug_info(diet.debug_info);
        if level > self.level {
            for taken in Level::ALL.into_iter().filter(|taken| *taken > self.level && *taken <= level) {
                self.metrics.shed(taken);
            }
        }
        self.level = level;
        self.shed_most = self.shed_most.max(level);
        self.metrics.set_shed_level(level);
    }

    /// Most detail that was given up at any time.
    pub fn shed_most(&self) -> Level {
        self.shed_most
    }

    /// Takes the host's books, once they are known.
    pub fn host_books(&mut self, books: &HostBooks) {
        self.metrics.set_host(books);
    }
}
