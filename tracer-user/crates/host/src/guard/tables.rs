//! Use of every bounded table. The structures below have no default, so constructing one requires every field: a table
//! without its use does not compile.

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUse {
    /// Current entries.
    pub entries: u64,
    /// Maximum entries.
    pub limit: u64,
    /// Times since the start that the full table rejected or evicted an entry.
    pub reached: u64,
}

impl TableUse {
    /// From sizes.
    pub fn new(entries: usize, limit: usize, reached: u64) -> Self {
        Self { entries: entries as u64, limit: limit as u64, reached }
    }
}

/// Memory limit that the tables' bounds are stated for, bytes: the default.
pub const MEMORY: u64 = 512 << 20;

/// Scales a bound of `most` entries at a memory limit of [`MEMORY`] to a limit of `memory` bytes: in proportion,
/// between a sixteenth and eight times.
pub fn scaled(most: usize, memory: u64) -> usize {
    let proportional = (most as u128 * u128::from(memory) / u128::from(MEMORY)) as usize;
    proportional.clamp((most / 16).max(1), most.saturating_mul(8))
}

/// Declares a structure of table uses and their exported names.
macro_rules! table_use {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: TableUse,)+
        }

        impl $name {
            /// Name (label `table` of the metrics) and use of each table.
            pub fn all(&self) -> Vec<(&'static str, TableUse)> {
                let Self { $($field,)+ } = self;
                vec![$((stringify!($field), *$field),)+]
            }
        }
    };
}

table_use! {
    /// Tables of the pipeline.
    PipelineTables {
        /// Connections followed.
        connections,
        /// Closed connections, kept for a moment.
        connections_closing,
        /// Threads followed.
        threads,
        /// Requests and calls that are open or wait for late evidence.
        spans,
        /// Calls of declared functions that have not returned.
        declared_calls,
        /// Users of declared transactions that have sums of their own.
        declared_users,
        /// Ends of requests on this host that wait for their other end.
        joins,
        /// Requests from other hosts, and contexts that other agents sent for them.
        relay_requests,
        /// Calls to other hosts that may get an answer from the other end's agent.
        relay_calls,
        /// In-band contexts that wait for their request.
        inband_contexts,
        /// Trace ids of reported spans, for their parents and children that are reported later.
        reported_traces,
        /// Bytes of message heads being assembled, and of replies that wait for their request.
        head_bytes,
        /// Tasks of runtimes (contexts, goroutines) that are followed.
        tasks,
        /// Callbacks of event loops whose async ids are remembered.
        callbacks,
        /// Remembered intervals in which tasks ran.
        task_intervals,
        /// Tasks with tracked wakers, if that is configured.
        task_wakers,
        /// Processes whose service is known.
        processes,
        /// Ended processes, remembered for a moment.
        processes_leaving,
        /// Forked processes that run no other program and belong to their parent's service.
        processes_forked,
        /// Programs that processes executed before they could be inspected, and what processes inherit.
        processes_executed,
        /// Forked processes that may work for a request; reached: of their calls that wait, too.
        child_processes,
        /// Processes that take jobs from queues.
        queue_workers,
        /// Threads and tasks that take jobs from queues.
        job_workers,
        /// Jobs that wait in queues, for the link to what put them there; reached: of queues that are asked for jobs.
        jobs_waiting,
        /// Processes of which it is remembered whether their requests stay on the threads that read them.
        thread_affinity,
        /// Processes of which it is known whether the kernel side may count their exchanges.
        counted_processes,
        /// Classes of exchanges that it counts; reached: requests of others, which it reports.
        counted_classes,
        /// Beginnings of requests by which it knows them; reached: times that those not seen lately made room.
        request_prefixes,
        /// Request classes with activity profiles.
        activity_classes,
        /// CPU by process and class, of one second.
        process_costs,
        /// Services, ports and errors of connects that failed within a second; reached: of which the port is not known.
        failed_connects,
        /// Services, ports and errors of failed connects with a series of their own; reached: connects that share one.
        failed_connect_series,
        /// Pairs of services whose network has series of its own; reached: calls that share those of others.
        network_pairs,
        /// Classes and types of exceptions with a series of their own; reached: failures that share one.
        exception_series,
        /// Logs of processes whose lines are followed; reached: writes to further logs, whose lines are not looked at.
        log_streams,
        /// Bytes of the texts of log lines; reached: lines of which only the place is kept.
        log_text_bytes,
        /// Processes whose groups are known.
        workload_processes,
        /// Groups of processes, of the kind with the most of them.
        workload_groups,
        /// Processes of databases.
        subsystem_processes,
        /// Databases with books of their own; reached: users that share a sum, too.
        subsystem_instances,
        /// Services with their own name.
        services,
        /// Request classes of all services.
        classes,
        /// Positions in the trees of paths of all services.
        path_positions,
        /// Exact requests whose class is remembered.
        class_cache,
        /// Label combinations with their own duration histogram.
        duration_series,
        /// Spans of the kept transactions.
        store_spans,
        /// Transactions kept because a class wants them.
        store_wanted,
        /// Transactions kept for a minute because a list showed them.
        store_listed,
        /// Spans that wait for the decision whether they are exported; reached: transactions that were decided early.
        export_held_spans,
        /// Exported transactions, remembered for spans that come later.
        export_decisions,
        /// Distinct stacks kept.
        stacks,
        /// Sample counts per stack and owner, over all periods.
        stack_counts,
        /// Samples of open requests, kept until it is known whether they are slow.
        ad_hoc_open,
        /// Samples of slow requests.
        ad_hoc_kept,
        /// Stacks of calls that have not ended.
        call_stacks_open,
        /// Tasks of Python with an exception whose request is not known yet.
        task_exceptions,
        /// Stacks of exceptions whose requests have not ended.
        exception_stacks_open,
        /// Stacks by process and class that wait to be exported.
        unsent_stacks,
        /// Stacks that wait for their names.
        symbol_queue,
        /// Names of functions that are shared.
        symbol_names,
        /// Processes whose symbol tables are open.
        symbol_processes,
        /// Addresses whose names are known.
        symbol_addresses,
        /// Bytes of names that processes wrote of their own code (`/tmp/perf-PID.map`).
        perf_map_bytes,
        /// Open requests of service classes for which a priority may be changed.
        service_class_requests,
        /// Values of declared dimensions; reached: requests of others.
        dimension_values,
        /// Open requests whose threads' contexts are published.
        trace_context_requests,
        /// Service classes by service whose attainment is measured.
        service_class_rows,
        /// Names of first requests of transactions; reached: requests below others.
        root_names,
        /// Request classes by the first request of the transaction; reached: rows that went into that of others.
        root_rows,
        /// Reported spans whose transaction's first request is remembered.
        root_reported,
        /// Charges that wait until the first request of their transaction is known.
        root_waiting,
        /// Callers and callees of the history's window; reached: what shares the rows of others.
        edge_rows,
        /// Other hosts' services and addresses that such rows name; reached: what has no name there.
        edge_peers,
        /// Processes whose wake-ups between tasks can be watched on demand; reached: too many that need it, too.
        wake_demand,
    }
}

table_use! {
    /// Tables around the pipeline: the kernel side and the console.
    AgentTables {
        /// Bytes in the event ring: the maximum at any drain of the last second.
        ring_event_bytes,
        /// Bytes in the stack ring: likewise.
        ring_sample_bytes,
        /// Capture policies for connections that wait in the kernel.
        kernel_asks,
        /// Processes with their own policy in the kernel.
        kernel_processes,
        /// Processes whose runtime is known.
        runtimes,
        /// Uprobes attached.
        user_probes,
        /// Connections whose requests get headers.
        header_connections,
        /// Bytes of unwind tables.
        unwind_table_bytes,
        /// Files with an unwind table, or known to have none.
        unwind_files,
        /// Different rules of unwind tables.
        unwind_rules,
        /// Processes whose interpreter's frames are read.
        interpreter_processes,
        /// Bytes that wait to be written to files.
        file_bytes,
        /// Bytes of the last seconds; reached: parts that went before their time.
        hindsight_bytes,
        /// Spans that wait for export.
        otlp_queue,
        /// Requests of the console that wait for the pipeline.
        http_jobs,
        /// Connections to the console.
        http_connections,
        /// Threads whose priority is to be another than their own.
        priority_threads,
        /// Connections whose packets have another priority than their own.
        priority_connections,
        /// Open requests that were ended by a limit of their class.
        ended_requests,
        /// Hotspots whose instrumentation is decided about.
        hotspots,
        /// Processes whose log lines are looked at.
        log_processes,
        /// Threads whose request's context is published for other programs.
        trace_contexts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_ceiling() {
        for (memory, most) in [(MEMORY, 1600), (MEMORY / 4, 400), (0, 100), (u64::MAX, 12_800), (2 * MEMORY, 3200)] {
            assert_eq!(scaled(1600, memory), most);
        }
    }

    #[test]
    fn names_are_those_of_the_fields() {
        let fill = |entries| TableUse { entries, limit: 2, reached: 3 };
        let agent = AgentTables {
            ring_event_bytes: fill(1),
            ring_sample_bytes: fill(2),
            kernel_asks: fill(3),
            kernel_processes: fill(4),
            runtimes: fill(5),
            user_probes: fill(6),
            header_connections: fill(10),
            unwind_table_bytes: fill(12),
            unwind_files: fill(13),
            unwind_rules: fill(14),
            interpreter_processes: fill(15),
            file_bytes: fill(11),
            hindsight_bytes: fill(21),
            otlp_queue: fill(7),
            http_jobs: fill(8),
            http_connections: fill(9),
            priority_threads: fill(16),
            priority_connections: fill(17),
            ended_requests: fill(18),
            hotspots: fill(19),
            trace_contexts: fill(20),
            log_processes: fill(22),
        };
        let all = agent.all();
        assert_eq!((all[0], all[15]), (("ring_event_bytes", fill(1)), ("http_connections", fill(9))));
        assert_eq!(all.len(), 22);
    }
}
