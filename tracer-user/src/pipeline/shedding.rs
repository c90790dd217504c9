//! Counters and table use of the stages, and load shedding.

use tracer_common::event::Kind;
use tracer_host::guard::shed::Level;
use tracer_host::guard::tables::{PipelineTables, TableUse};
use tracer_model::decode::Malformed;
use tracer_model::{HostCpu, ServiceId};
use tracer_policies::tail_sampling::TailSampling;
use tracer_results::analysis::finding;
use tracer_results::history::collector;
use tracer_results::profiles::ProfileTables;
use tracer_transactions::classes::ClassTables;
use tracer_transactions::engine::limits::EngineTables;

use super::services::SERVICES;
use super::{LEAVING, Pipeline};

impl Pipeline {
    /// Publishes the counters of the stages.
    pub(super) fn publish(&mut self) {
        for (kind, count) in Kind::ALL.into_iter().zip(self.events) {
            self.metrics.set_events(kind.name(), count);
        }
        for (why, count) in Malformed::ALL.into_iter().zip(self.malformed) {
            self.metrics.set_lost(why.name(), count);
        }
        let counters = self.engine.counters();
        let declared = self.engine.declared_losses();
        for (reason, count) in [
            ("parser_gap_bytes", counters.gap_bytes),
            ("reply_without_request", counters.unpaired),
            ("connections_evicted", counters.connections_evicted),
            ("text_unbound", counters.text_unbound),
            ("text_missed", counters.text_missed),
            ("text_rejoined", counters.text_rejoined),
            ("text_unplaced", counters.text_unplaced),
            ("threads_refused", counters.threads_refused),
            ("declared_unreturned", declared.unreturned),
            ("declared_unmatched", declared.unmatched),
            ("declared_refused", declared.refused),
            ("declared_moved", declared.moved),
            ("declared_samples_dropped", declared.samples_dropped),
            ("declared_spans_not_kept", self.declared_not_kept),
            ("declared_values_unread", self.declared_reports.unread()),
            ("spans_evicted", counters.spans_evicted),
            ("processes_forgotten", counters.processes_forgotten),
            ("thread_operations_missing", counters.threads_doubted),
            ("samples_dropped", counters.samples_dropped),
            ("samples_late", counters.samples_late),
            ("services_refused", self.services_refused),
            ("spans_not_written", self.not_written + self.writers.iter().map(|writer| writer.dropped()).sum::<u64>()),
            ("heads_given_up", counters.heads_given_up),
            ("requests_unnamed", counters.unnamed),
            ("heads_cut", counters.heads_cut),
            ("streams_given_up", counters.streams_given_up),
            ("detached_calls_given_up", counters.detached_calls_given_up),
            ("statements_refused", counters.statements_refused),
            ("lookup_ends_unclear", self.engine.lookups_unclear()),
            ("task_relations_missing", self.engine.kins_lost()),
        ] {
            self.metrics.set_lost(reason, count);
        }
        self.publish_exceptions();
        self.publish_logs();
        self.metrics.set_unlinked(&[("unread", counters.messages_unread), ("limit", counters.links_dropped)]);
        self.metrics.set_inband(&self.engine.inband_outcomes().all());
        let (classifier, services) = (&self.classifier, self.names.services.len());
        let ids = (0..services).map(|index| ServiceId(index as u32));
        self.metrics.set_classes(ids.map(|id| (id, classifier.classes(id), classifier.merged_total(id))));
        self.publish_export();
        self.metrics.set_table_use(&self.table_use().all());
    }

    /// Use of every table.
    pub fn table_use(&self) -> PipelineTables {
        let EngineTables {
            connections,
            closing,
            threads,
            spans,
            joins,
            declared_calls,
            task_exceptions,
            processes,
            head_bytes,
            tasks,
            intervals,
            wakers,
            callbacks,
            relay_requests,
            relay_calls,
            inband,
            reported_traces,
            child_processes,
            queue_workers,
            job_workers,
            jobs_waiting,
            thread_affinity,
            process_costs,
            failed_connects,
        } = self.engine.table_use();
        let [network_pairs, failed_connect_series] = self.metrics.network_tables();
        let exception_series = self.metrics.exception_table();
        let [log_streams, log_text_bytes] = self.logs.table_use();
        let [workload_processes, workload_groups] = self.workloads.table_use();
        let [subsystem_processes, subsystem_instances] = self.subsystems.table_use();
        let ClassTables { classes, positions, cache } = self.classifier.table_use();
        let ProfileTables {
            stacks,
            pairs,
            ad_hoc: [ad_hoc_open, ad_hoc_kept],
            open_calls: call_stacks_open,
            open_exceptions: exception_stacks_open,
            unsent: unsent_stacks,
            queue,
            names,
            processes: symbol_processes,
            addresses,
            maps,
        } = self.profiles.table_use();
        let [store_spans, store_wanted, store_listed] = self.store.table_use();
        let tail = self.tail.as_ref().map(TailSampling::table_use);
        let [export_held_spans, export_decisions] = tail.unwrap_or_default();
        let [processes_forked, processes_executed] = self.short_lived.table_use();
        let [counted_processes, counted_classes] = self.exchange_counts.table_use();
        let [root_names, root_rows, root_reported, root_waiting, edge_rows, edge_peers] = self.roots.table_use();
        PipelineTables {
            connections,
            connections_closing: closing,
            threads,
            spans,
            joins,
            declared_calls,
            task_exceptions,
            declared_users: self.declared_reports.table_use(),
            relay_requests,
            relay_calls,
            inband_contexts: inband,
            reported_traces,
            head_bytes,
            tasks,
            callbacks,
            task_intervals: intervals,
            task_wakers: wakers,
            processes,
            processes_leaving: TableUse::new(self.leaving.len(), LEAVING, self.left_early),
            processes_forked,
            processes_executed,
            child_processes,
            queue_workers,
            job_workers,
            jobs_waiting,
            thread_affinity,
            service_class_requests: self.policies.table_use(),
            dimension_values: {
                let (values, most, others) = self.dimensions.fill();
                TableUse::new(values, most, others)
            },
            trace_context_requests: self.open_requests.table_use(),
            service_class_rows: self.attainment.table_use(),
            root_names,
            root_rows,
            root_reported,
            root_waiting,
            edge_rows,
            edge_peers,
            counted_processes,
            counted_classes,
            request_prefixes: self.engine.prefixes_use(),
            activity_classes: self.activity.table_use(),
            process_costs,
            failed_connects,
            failed_connect_series,
            exception_series,
            log_streams,
            log_text_bytes,
            network_pairs,
            workload_processes,
            wake_demand: self.wake_demand.table_use(),
            workload_groups,
            subsystem_processes,
            subsystem_instances,
            services: TableUse::new(self.names.services.len(), SERVICES, self.services_refused),
            classes,
            path_positions: positions,
            class_cache: cache,
            duration_series: self.metrics.series(),
            store_spans,
            store_wanted,
            store_listed,
            export_held_spans,
            export_decisions,
            stacks,
            stack_counts: pairs,
            ad_hoc_open,
            call_stacks_open,
            exception_stacks_open,
            ad_hoc_kept,
            unsent_stacks,
            symbol_queue: queue,
            symbol_names: names,
            symbol_processes,
            symbol_addresses: addresses,
            perf_map_bytes: maps,
        }
    }

    /// Switches detail to what `level` allows. Sums, charges and loss counters are the same at every level.
    pub fn shed(&mut self, level: Level) {
        let limits = level.detail_limits();
        self.engine.set_head_limit(limits.head_limit);
        self.classifier.allow_new(limits.new_classes);
        self.store.keep_part(limits.store_part);
        self.profiles.keep_part(limits.store_part);
        self.profiles.allow_debug_info(limits.debug_info);
        if level > self.level {
            for taken in Level::ALL.into_iter().filter(|taken| *taken > self.level && *taken <= level) {
                self.metrics.shed(taken);
            }
        }
        self.level = level;
        self.shed_most = self.shed_most.max(level);
        self.metrics.set_shed_level(level);
    }

    /// The highest level of load shedding so far.
    pub fn shed_most(&self) -> Level {
        self.shed_most
    }

    /// Sets the host's CPU figures, about once a second, and ends the window of cost if it is over. `lost`: operations
    /// lost so far.
    pub fn host_books(&mut self, host_cpu: &HostCpu, lost: u64) {
        self.metrics.set_host(host_cpu);
        let operations = self.events[Kind::Op as usize - 1];
        let host = collector::Host { cpu: *host_cpu, operations, lost };
        let is_first = !self.history.is_begun();
        let Some(window) = self.history.close(&self.names, self.engine.now(), self.wall_offset, host) else {
            if is_first {
                self.begin_windows();
            }
            return;
        };
        self.add_window_rows(&window);
        if self.history.is_ending() {
            // Only a part of a window: kept, but no measure for others.
            return;
        }
        self.learn_activity(window.start_ns);
        self.detector.push(&window);
        self.add_finding_rows(&window);
        self.metrics
            .set_findings(&finding::FindingKind::ALL.map(|kind| (kind.name(), self.detector.opened()[kind as usize])));
    }
}
