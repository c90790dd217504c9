//! Has the kernel side count exchanges itself where user space cannot keep up.

use tracer_host::guard::shed::Level;
use tracer_kernel::loader::monotonic;
use tracer_model::quantity::Detail;

use super::agent::Agent;
use crate::config::Config;
use crate::pipeline::{CountingOrder, Pipeline};

/// Share of the exchanges that are seen whole while load is shed.
const DETAIL_SHED: f64 = 1.0 / 16.0;

/// Whether exchanges may be counted without being seen whole: nothing that is configured needs every request's headers or
/// passes its context on.
pub(super) fn is_possible(config: &Config) -> bool {
    let relay = &config.relay;
    let relays = relay.listen.is_some() || !relay.peers.is_empty() || relay.nats.is_some();
    let passes_on = relays || relay.tcp_option || !relay.headers.is_empty();
    let looks = !config.header_names().is_empty() || config.wants_host() || !config.dimensions.is_empty();
    // An exception, and a line of a log, belongs to a request that is seen whole.
    let belongs = config.exceptions.enabled || config.logs.is_on();
    !passes_on && !looks && !belongs && config.service_classes.is_empty()
}

impl Agent {
    /// Carries out what the pipeline decided since.
    pub(super) fn follow_counting(&mut self, pipeline: &mut Pipeline) {
        // Beginnings that the kernel side may have found before.
        let mut forgot = false;
        for order in pipeline.exchange_counts.take_orders() {
            // A number must not become another class's while requests are still taken for this one's.
            if matches!(order, CountingOrder::Clear(_)) && std::mem::take(&mut forgot) {
                self.look_again();
            }
            match order {
                CountingOrder::Process(pid, rule) => {
                    if let Err(error) = self.kernel.policy.count_exchanges(pid, rule) {
                        log::warn!("{error}");
                    }
                }
                CountingOrder::Learn(prefix, class) => self.kernel.exchange_counts.learn(*prefix, class),
                CountingOrder::Forget(prefix) => {
                    self.kernel.exchange_counts.forget(*prefix);
                    forgot = true;
                }
                CountingOrder::Limit(class, limits) => self.kernel.exchange_counts.limit(class, limits),
                CountingOrder::Clear(class) => self.kernel.exchange_counts.clear(class),
            }
        }
        if forgot {
            self.look_again();
        }
    }

    fn look_again(&mut self) {
        if let Err(error) = self.kernel.policy.look_again() {
            log::warn!("{error}");
        }
    }

    /// Reads what the kernel side has counted, once a second.
    pub(super) fn read_counts(&mut self, pipeline: &mut Pipeline) {
        if pipeline.exchange_counts.is_in_use() {
            let numbers: Vec<u32> = pipeline.exchange_counts.numbers().collect();
            let kernel = &self.kernel.exchange_counts;
            let sums = kernel.sums(&numbers);
            let costs: Vec<_> =
                numbers.into_iter().filter_map(|number| Some((number, kernel.costs(number)?))).collect();
            pipeline.counted(monotonic(), &sums, &costs);
        }
        let counts = &pipeline.exchange_counts;
        pipeline.metrics.set_detailed(counts.detail(), &counts.states());
    }

    /// Sets how many exchanges are seen whole: as configured, less while load is shed.
    pub(super) fn limit_detail(&mut self, level: Level) {
        let share = if let Detail::Share(share) = self.config.sampling.detail { share } else { 1.0 };
        let most = if level == Level::Full { 1.0 } else { DETAIL_SHED };
        if let Err(error) = self.kernel.policy.detail(share.min(most)) {
            log::warn!("{error}");
        }
    }
}
