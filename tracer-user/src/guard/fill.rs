//! Everything that is bounded, with its fill level. A structure of one owner's tables has no default and every field
//! must be given where it is made, so that a table without a fill level does not compile.

/// How full something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// What is in it now.
    pub entries: u64,
    /// Most there can be.
    pub limit: u64,
    /// Times something found no room since the start, or something else had to go for it.
    pub reached: u64,
}

impl Fill {
    /// From sizes.
    pub fn new(entries: usize, limit: usize, reached: u64) -> Self {
        Self { entries: entries as u64, limit: limit as u64, reached }
    }
}

/// Memory the bounds of tables are given for, bytes: the default ceiling.
pub const MEMORY: u64 = 512 << 20;

/// A bound of `most` entries at a ceiling of [`MEMORY`], for a ceiling of `memory` bytes: in proportion, between a
/// sixteenth and eight times.
pub fn scaled(most: usize, memory: u64) -> usize {
    let proportional = (most as u128 * u128::from(memory) / u128::from(MEMORY)) as usize;
    proportional.clamp((most / 16).max(1), most.saturating_mul(8))
}

/// Declares a structure of fill levels, and the names they are exported by.
macro_rules! fills {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: Fill,)+
        }

        impl $name {
            /// Name (label `what` of the metrics) and level of each.
            pub fn all(&self) -> Vec<(&'static str, Fill)> {
                let Self { $($field,)+ } = self;
                vec![$((stringify!($field), *$field),)+]
            }
        }
    };
}

fills! {
    /// What the pipeline keeps.
    PipelineFills {
        /// Connections followed.
        connections,
        /// Connections that closed and are kept for a moment.
        connections_closing,
        /// Threads followed.
        threads,
        /// Requests and calls that are open or wait for late evidence.
        units,
        /// Ends of requests on this host that wait for their other end.
        joins,
        /// Requests from other hosts, and what other agents said of some.
        relay_requests,
        /// Calls to other hosts whose other end may tell of them.
        relay_calls,
        /// Lookups by UDP whose other end may be on another host.
        relay_lookups,
        /// Contexts in band that wait for their request.
        inband_contexts,
        /// Bytes of heads that are being put together, and of replies that wait for their request.
        head_bytes,
        /// Tasks of runtimes (contexts, goroutines) that are followed.
        tasks,
        /// Callbacks of event loops whose async ids are remembered.
        callbacks,
        /// Stretches of their time that are remembered.
        task_intervals,
        /// Tasks that others wake, where that is asked for.
        task_wakers,
        /// Processes whose service is known.
        processes,
        /// Processes that ended and are remembered for a moment.
        processes_leaving,
        /// Processes that were forked and run no other program, for whose service their parent's stands.
        processes_forked,
        /// Services with a name of their own.
        services,
        /// Request classes of all services.
        classes,
        /// Positions in the trees of paths of all services.
        path_positions,
        /// Exact requests whose class is remembered.
        class_cache,
        /// Combinations of labels with a duration histogram of their own.
        duration_series,
        /// Units of work kept of transactions.
        store_units,
        /// Transactions kept because a class wants them.
        store_wanted,
        /// Different stacks kept.
        stacks,
        /// Counts of a stack and whom it was for, of all periods.
        stack_counts,
        /// Stacks that wait for their names.
        symbol_queue,
        /// Names of functions that are shared.
        symbol_names,
        /// Processes whose symbol tables are open.
        symbol_processes,
        /// Addresses whose names are known.
        symbol_addresses,
    }
}

fills! {
    /// What is around it: the kernel side and the console.
    AgentFills {
        /// Bytes in the ring of events: most at a drain of the last second.
        ring_event_bytes,
        /// Bytes in the ring of stacks: likewise.
        ring_sample_bytes,
        /// Wishes for connections that wait in the kernel.
        kernel_asks,
        /// Processes with a policy of their own in the kernel.
        kernel_processes,
        /// Processes whose runtime is known.
        runtimes,
        /// Places in programs that are watched.
        user_probes,
        /// Connections whose requests get headers.
        header_connections,
        /// Bytes that wait to be written to files.
        file_bytes,
        /// Units of work that wait to be sent as spans.
        otlp_queue,
        /// Questions of the console that wait for the pipeline.
        http_jobs,
        /// Connections to the console.
        http_connections,
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
        let fill = |entries| Fill { entries, limit: 2, reached: 3 };
        let agent = AgentFills {
            ring_event_bytes: fill(1),
            ring_sample_bytes: fill(2),
            kernel_asks: fill(3),
            kernel_processes: fill(4),
            runtimes: fill(5),
            user_probes: fill(6),
            header_connections: fill(10),
            file_bytes: fill(11),
            otlp_queue: fill(7),
            http_jobs: fill(8),
            http_connections: fill(9),
        };
        let all = agent.all();
        assert_eq!((all[0], all[10]), (("ring_event_bytes", fill(1)), ("http_connections", fill(9))));
        assert_eq!(all.len(), 11);
    }
}
