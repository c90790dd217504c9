//! Sums of declared transactions: by service, by user, and of their metrics, as ARM reports them.
//!
//! Users and texts are values, not labels: they are kept here in bounded tables and never become series.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{DeclaredValue, Nanos, ServiceId};
use tracer_runtimes::declared::{Declared, DeclaredTable, UnreadValue};
use tracer_transactions::finished_call::FinishedCall;

use super::quantile::Quantiles;

/// Most users with sums of their own, over all transactions and services; further ones share a row.
const USERS: usize = 4096;

/// What a metric was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricSums {
    /// Values that were read.
    pub count: u64,
    /// Calls whose value could not be read.
    pub unread: u64,
    /// Sum of the numbers; at the limits of its type it stays there.
    pub sum: i128,
    /// Smallest number.
    pub min: Option<i128>,
    /// Largest number.
    pub max: Option<i128>,
    /// The latest value.
    pub last: Option<DeclaredValue>,
}

impl MetricSums {
    fn add(&mut self, value: Option<&DeclaredValue>) {
        let Some(value) = value else {
            self.unread += 1;
            return;
        };
        self.count += 1;
        if let DeclaredValue::Number(number) = value {
            self.sum = self.sum.saturating_add(*number);
            self.min = Some(self.min.map_or(*number, |min| min.min(*number)));
            self.max = Some(self.max.map_or(*number, |max| max.max(*number)));
        }
        self.last = Some(value.clone());
    }
}

/// Sums of calls. Times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct DeclaredSums {
    /// Calls.
    pub count: u64,
    /// Failed ones.
    pub failed: u64,
    /// Response times, together.
    pub time: Nanos,
    /// The shortest.
    pub min: Nanos,
    /// The longest.
    pub max: Nanos,
    /// CPU of the calls whose CPU is known.
    pub cpu: Nanos,
    /// Calls whose CPU is not known.
    pub cpu_unknown: u64,
    /// Calls whose user could not be read.
    pub user_unread: u64,
    /// Its metrics, in the order they are declared.
    pub metrics: Vec<MetricSums>,
}

impl DeclaredSums {
    fn add(&mut self, call: &FinishedCall, values: &[Option<DeclaredValue>], failed: bool) {
        let time = call.end.saturating_sub(call.start);
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.count += 1;
        self.failed += u64::from(failed);
        self.time = self.time.saturating_add(time);
        match call.cost {
            Some(cost) => self.cpu = self.cpu.saturating_add(cost.cpu),
            None => self.cpu_unknown += 1,
        }
        self.metrics.resize(values.len(), MetricSums::default());
        for (sums, value) in self.metrics.iter_mut().zip(values) {
            sums.add(value.as_ref());
        }
    }

    /// Mean response time, seconds; 0 without calls.
    pub fn mean_s(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.time as f64 / 1e9 / self.count as f64 }
    }
}

/// A row of a report: a transaction in a service.
#[derive(Clone, Debug)]
pub struct DeclaredRow<'a> {
    /// The transaction.
    pub declared: &'a Declared,
    /// The service.
    pub service: ServiceId,
    /// The user; `None` in a row of users: all that have no row of their own.
    pub user: Option<&'a str>,
    /// The sums.
    pub sums: &'a DeclaredSums,
    /// Response times; not kept by user.
    pub times: Option<&'a Quantiles>,
}

/// Sums of all declared transactions.
#[derive(Debug)]
pub struct DeclaredReports {
    declared: DeclaredTable,
    totals: BTreeMap<(usize, ServiceId), (DeclaredSums, Quantiles)>,
    users: BTreeMap<(usize, ServiceId), BTreeMap<Arc<str>, DeclaredSums>>,
    /// Users without a row of their own.
    others: BTreeMap<(usize, ServiceId), DeclaredSums>,
    rows: usize,
    limit: usize,
    refused: u64,
    unread: u64,
}

impl DeclaredReports {
    /// Of these transactions.
    pub fn new(declared: &DeclaredTable) -> Self {
        Self {
            declared: declared.clone(),
            totals: BTreeMap::new(),
            users: BTreeMap::new(),
            others: BTreeMap::new(),
            rows: 0,
            limit: USERS,
            refused: 0,
            unread: 0,
        }
    }

    /// Within a memory limit, bytes.
    #[must_use]
    pub fn for_memory(mut self, memory: u64) -> Self {
        self.limit = scaled(USERS, memory);
        self
    }

    /// A call ended. `user`, `values` in the order of the metrics, and whether it `failed`: those that could not be read are
    /// counted.
    pub fn call(
        &mut self,
        call: &FinishedCall,
        user: &Result<Option<Arc<str>>, UnreadValue>,
        values: &[Option<DeclaredValue>],
        failed: Option<bool>,
    ) {
        let key = (call.declared, call.service);
        let unread = values.iter().filter(|value| value.is_none()).count() as u64 + u64::from(user.is_err());
        self.unread += unread + u64::from(failed.is_none());
        let failed = failed == Some(true);
        let (sums, times) = self.totals.entry(key).or_default();
        sums.add(call, values, failed);
        sums.user_unread += u64::from(user.is_err());
        times.add(call.end.saturating_sub(call.start), 1);
        let Ok(Some(user)) = user else { return };
        let users = self.users.entry(key).or_default();
        let sums = match users.get_mut(user) {
            Some(sums) => sums,
            None if self.rows >= self.limit => {
                self.refused += 1;
                self.others.entry(key).or_default()
            }
            None => {
                self.rows += 1;
                users.entry(Arc::clone(user)).or_default()
            }
        };
        sums.add(call, values, failed);
    }

    /// Users with a row of their own.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.rows, self.limit, self.refused)
    }

    /// Values that could not be read.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// What is declared.
    pub fn declared(&self) -> impl Iterator<Item = &Declared> {
        self.declared.iter().map(|(_, one)| &**one)
    }

    /// Other transactions are declared; the sums of those with the numbers `removed` are forgotten.
    pub fn replace(&mut self, declared: &DeclaredTable, removed: &[usize]) {
        self.declared = declared.clone();
        let stays = |number: &usize| !removed.contains(number);
        self.totals.retain(|(number, _), _| stays(number));
        self.others.retain(|(number, _), _| stays(number));
        self.users.retain(|(number, _), _| stays(number));
        self.rows = self.users.values().map(BTreeMap::len).sum();
    }

    /// Every transaction that was called, by service.
    pub fn totals(&self) -> impl Iterator<Item = DeclaredRow<'_>> {
        self.totals.iter().filter_map(|((index, service), (sums, times))| {
            let declared = self.declared.get(*index)?;
            Some(DeclaredRow { declared, service: *service, user: None, sums, times: Some(times) })
        })
    }

    /// Sums of the transaction with this number, of all services: calls, failures, times and CPU.
    pub fn sums(&self, number: usize) -> DeclaredSums {
        let mut all = DeclaredSums::default();
        for (_, (sums, _)) in self.totals.range((number, ServiceId(0))..=(number, ServiceId(u32::MAX))) {
            all.count += sums.count;
            all.failed += sums.failed;
            all.time = all.time.saturating_add(sums.time);
            all.cpu = all.cpu.saturating_add(sums.cpu);
            all.cpu_unknown += sums.cpu_unknown;
        }
        all
    }

    /// Every user, and last in each service those without a row of their own.
    pub fn users(&self) -> impl Iterator<Item = DeclaredRow<'_>> {
        self.users.iter().flat_map(move |(key, users)| {
            let (index, service) = *key;
            let named = users.iter().map(|(user, sums)| (Some(&**user), sums));
            let rows = named.chain(self.others.get(key).map(|sums| (None, sums)));
            rows.filter_map(move |(user, sums)| {
                let declared = self.declared.get(index)?;
                Some(DeclaredRow { declared, service, user, sums, times: None })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{Cost, SpanId, TraceId};
    use tracer_runtimes::declared::{CallPairing, Target};

    fn reports() -> DeclaredReports {
        let one = Declared {
            name: "sort".into(),
            program: "/x".into(),
            target: Target::Function("f".into()),
            fail: None,
            user: None,
            metrics: Vec::new(),
            max_rate: None,
            place: "t:1".into(),
        };
        DeclaredReports::new(&DeclaredTable::new(&[one]))
    }

    fn call(time: Nanos) -> FinishedCall {
        FinishedCall {
            declared: 0,
            span: SpanId(1),
            trace: TraceId(1),
            parent: None,
            request: None,
            service: ServiceId(0),
            pid: 1,
            tid: 1,
            start: 1000,
            end: 1000 + time,
            cost: Some(Cost { cpu: time / 2, ..Cost::default() }),
            value: 0,
            go: false,
            pairing: CallPairing::Depth,
            entry: None,
            exit: None,
        }
    }

    #[test]
    fn sums_are_kept_by_user_and_bounded() {
        let mut reports = reports();
        reports.limit = 2;
        let values = |number| vec![Some(DeclaredValue::Number(number)), None];
        for (user, time, number) in [("ann", 10, 5), ("bob", 20, -7), ("cyd", 30, 1), ("ann", 40, 6), ("dan", 50, 2)] {
            reports.call(&call(time), &Ok(Some(user.into())), &values(number), Some(number < 0));
        }
        reports.call(&call(60), &Err(UnreadValue), &values(1), None);
        let rows: Vec<_> =
            reports.users().map(|row| (row.user, row.sums.count, row.sums.time, row.sums.metrics[0].sum)).collect();
        assert_eq!(rows, [(Some("ann"), 2, 50, 11), (Some("bob"), 1, 20, -7), (None, 2, 80, 3)]);
        let total = reports.totals().next().expect("a row");
        let DeclaredSums { count, failed, time, min, max, cpu, user_unread, .. } = *total.sums;
        assert_eq!((count, failed, time, min, max, cpu, user_unread), (6, 1, 210, 10, 60, 105, 1));
        let metric = &total.sums.metrics[0];
        assert_eq!((metric.count, metric.sum, metric.min, metric.max), (6, 8, Some(-7), Some(6)));
        assert_eq!(total.sums.metrics[1].unread, 6);
        assert_eq!((reports.table_use(), reports.unread()), (TableUse::new(2, 2, 2), 8));
        reports.replace(&DeclaredTable::default(), &[0]);
        assert_eq!((reports.totals().count(), reports.users().count(), reports.table_use().entries), (0, 0, 0));
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut reports = reports();
        for number in [i128::MAX, i128::MAX, i128::from(u64::MAX)] {
            reports.call(&call(u64::MAX - 1000), &Ok(None), &[Some(DeclaredValue::Number(number))], Some(false));
        }
        assert_eq!(reports.totals().next().expect("a row").sums.metrics[0].sum, i128::MAX);
    }
}
