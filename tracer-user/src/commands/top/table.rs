//! Which rows `tracer top` shows, in which order, with which figures. Pure: snapshots in, rows out.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Instant;

use serde::Deserialize;

/// A request class as `/api/v1/classes` gives it; `_s` are seconds.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Class {
    pub(super) service_name: String,
    pub(super) request_class: String,
    pub(super) protocol: String,
    pub(super) side: String,
    pub(super) rate_per_s: f64,
    pub(super) error_rate_per_s: f64,
    pub(super) p50_s: f64,
    pub(super) p95_s: f64,
    pub(super) p99_s: f64,
    pub(super) mean_s: f64,
    pub(super) queue_s: f64,
    pub(super) cpu_s: f64,
    pub(super) runqueue_s: f64,
    pub(super) blocked_s: f64,
    pub(super) downstream_s: f64,
    /// CPU since the agent's start.
    pub(super) cpu_total_s: f64,
}

impl Class {
    /// What a request waits for, seconds: queue, run queue, blocked.
    pub(super) fn waits(&self) -> f64 {
        self.queue_s + self.runqueue_s + self.blocked_s
    }

    pub(super) fn key(&self) -> ClassKey {
        ClassKey {
            service_name: self.service_name.clone(),
            request_class: self.request_class.clone(),
            protocol: self.protocol.clone(),
            side: self.side.clone(),
        }
    }
}

/// What tells a class from others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    pub(super) service_name: String,
    pub(super) request_class: String,
    pub(super) protocol: String,
    pub(super) side: String,
}

impl ClassKey {
    /// A whole service.
    pub(super) fn service(name: &str) -> Self {
        Self { service_name: name.into(), ..Self::default() }
    }

    /// Whether it stands for all that a service serves.
    pub(super) fn is_service(&self) -> bool {
        self.side.is_empty()
    }
}

/// A service as `/api/v1/services` gives it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Service {
    pub(super) service_name: String,
    pub(super) cpu_overhead_cores: f64,
}

/// What the head of the screen shows, from `/api/v1/health`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Health {
    pub(super) ready: bool,
    pub(super) host: String,
    pub(super) events_lost: u64,
    pub(super) capture_ratio: Option<f64>,
    pub(super) agent: Own,
}

/// What the agent itself takes.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Own {
    pub(super) cpu_cores: f64,
    pub(super) memory_bytes: u64,
}

/// One look at the agent.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    pub(super) classes: Vec<Class>,
    pub(super) services: Vec<Service>,
    pub(super) health: Health,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// CPU now, cores.
    #[default]
    Cpu,
    /// Requests a second.
    Rate,
    /// 95th percentile of the latency.
    Latency,
    /// Errors a second.
    Errors,
    /// Seconds a request waits.
    Waits,
    /// Service and class.
    Name,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) enum TableRow {
    /// A service with the sums of the classes it serves; in the tree.
    Service(Sums),
    /// A class and its CPU, cores.
    Class(Class, f64),
}

impl TableRow {
    /// What tells the row from others.
    fn key(&self) -> ClassKey {
        match self {
            Self::Class(class, _) => class.key(),
            Self::Service(sums) => ClassKey::service(&sums.name),
        }
    }
}

/// What a service's row shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) name: String,
    pub(super) classes: usize,
    pub(super) rate: f64,
    pub(super) errors: f64,
    pub(super) cpu: f64,
    pub(super) overhead: f64,
    latency: f64,
    waits: f64,
}

/// The table: the newest snapshot, and how it is shown.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) now: Option<Snapshot>,
    /// CPU by class, cores, between the last two snapshots.
    cores: HashMap<ClassKey, f64>,
    pub(super) sort: Sort,
    pub(super) ascending: bool,
    pub(super) tree: bool,
    /// Also calls as their callers see them.
    pub(super) clients: bool,
    pub(super) paused: bool,
    pub(super) filter: String,
    pub(super) selected: usize,
}

impl Table {
    /// Takes a new snapshot, unless paused.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        if self.paused {
            return;
        }
        // The first row stays selected whatever comes to stand there; one that was chosen is followed.
        let selected = if self.selected > 0 { self.selected_key() } else { None };
        let before: HashMap<ClassKey, f64> =
            self.now.iter().flat_map(|snapshot| &snapshot.classes).map(total).collect();
        let seconds = self.now.as_ref().map_or(0.0, |old| snapshot.at.duration_since(old.at).as_secs_f64());
        let cores = snapshot.classes.iter().map(|class| {
            let key = class.key();
            let cores = match before.get(&key) {
                // The agent counts from 0 again after a restart.
                Some(old) if seconds > 0.0 && class.cpu_total_s >= *old => (class.cpu_total_s - old) / seconds,
                // Nothing to compare with: what its requests cost on average.
                _ => class.rate_per_s * class.cpu_s,
            };
            (key, cores)
        });
        self.cores = cores.collect();
        self.now = Some(snapshot);
        if let Some(key) = selected {
            let at = self.rows().iter().position(|row| row.key() == key);
            self.selected = at.unwrap_or(self.selected);
        }
        self.move_by(0);
    }

    /// The class, or the service, of the selected row.
    pub(super) fn selected_key(&self) -> Option<ClassKey> {
        self.rows().get(self.selected).map(TableRow::key)
    }

    /// A class of the newest snapshot, and its CPU; or a service as if what it serves were one class.
    pub(super) fn class(&self, key: &ClassKey) -> Option<(Class, f64)> {
        let classes = &self.now.as_ref()?.classes;
        if key.is_service() {
            let served =
                classes.iter().filter(|class| class.service_name == key.service_name && class.side == "server");
            let served: Vec<&Class> = served.collect();
            let cores = served.iter().filter_map(|class| self.cores.get(&class.key())).sum();
            return (!served.is_empty()).then(|| (together(&served), cores));
        }
        let class = classes.iter().find(|class| class.key() == *key)?;
        Some((class.clone(), self.cores.get(key).copied().unwrap_or_default()))
    }

    /// Moves the selection, within the table.
    pub(super) fn move_by(&mut self, rows: isize) {
        let last = self.rows().len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }

    /// Sorts by `sort`; the other way round when it does already.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.ascending = if self.sort == sort { !self.ascending } else { sort == Sort::Name };
        self.sort = sort;
    }

    /// All rows in their order.
    pub(super) fn rows(&self) -> Vec<TableRow> {
        let Some(now) = &self.now else { return Vec::new() };
        let filter = self.filter.to_lowercase();
        let is_shown = |class: &&Class| {
            (self.clients || class.side == "server")
                && (filter.is_empty()
                    || class.service_name.to_lowercase().contains(&filter)
                    || class.request_class.to_lowercase().contains(&filter)
                    || class.protocol.contains(&filter))
        };
        let mut classes: Vec<(Class, f64)> = now
            .classes
            .iter()
            .filter(is_shown)
            .map(|class| (class.clone(), self.cores.get(&class.key()).copied().unwrap_or_default()))
            .collect();
        classes.sort_by(|(a, a_cores), (b, b_cores)| {
            let names = (&a.service_name, &a.request_class, &a.side).cmp(&(&b.service_name, &b.request_class, &b.side));
            self.compare(figures(a, *a_cores), figures(b, *b_cores)).then(self.by_name(names))
        });
        if !self.tree {
            return classes.into_iter().map(|(class, cores)| TableRow::Class(class, cores)).collect();
        }
        let mut services: Vec<Sums> = Vec::new();
        for (class, cores) in &classes {
            let at = services.iter().position(|sums| sums.name == class.service_name).unwrap_or_else(|| {
                let service = now.services.iter().find(|service| service.service_name == class.service_name);
                let overhead = service.map_or(0.0, |service| service.cpu_overhead_cores);
                services.push(Sums { name: class.service_name.clone(), overhead, ..Sums::default() });
                services.len() - 1
            });
            services[at].add(class, *cores);
        }
        services.sort_by(|a, b| self.compare(a.figures(), b.figures()).then(self.by_name(a.name.cmp(&b.name))));
        let mut rows = Vec::new();
        for sums in services {
            let own = classes.iter().filter(|(class, _)| class.service_name == sums.name);
            let own: Vec<TableRow> = own.map(|(class, cores)| TableRow::Class(class.clone(), *cores)).collect();
            rows.push(TableRow::Service(sums));
            rows.extend(own);
        }
        rows
    }

    /// The order of names: turned, if they are what is sorted by and the first one comes last.
    fn by_name(&self, names: Ordering) -> Ordering {
        if self.sort == Sort::Name && !self.ascending { names.reverse() } else { names }
    }

    /// Most first, unless ascending; names are compared by [`Self::by_name`].
    fn compare(&self, a: [f64; 5], b: [f64; 5]) -> Ordering {
        let at = match self.sort {
            Sort::Cpu => 0,
            Sort::Rate => 1,
            Sort::Latency => 2,
            Sort::Errors => 3,
            Sort::Waits => 4,
            Sort::Name => return Ordering::Equal,
        };
        let order = b[at].total_cmp(&a[at]);
        if self.ascending { order.reverse() } else { order }
    }
}

impl Sums {
    fn add(&mut self, class: &Class, cores: f64) {
        self.classes += 1;
        // A client's requests are another service's.
        if class.side == "server" {
            self.rate += class.rate_per_s;
            self.errors += class.error_rate_per_s;
            self.cpu += cores;
        }
        self.latency = self.latency.max(class.p95_s);
        self.waits = self.waits.max(class.waits());
    }

    fn figures(&self) -> [f64; 5] {
        [self.cpu, self.rate, self.latency, self.errors, self.waits]
    }
}

/// Classes as one: sums of rates, means by request. Percentiles of several classes are not known and stay 0.
fn together(classes: &[&Class]) -> Class {
    let sum = |of: fn(&Class) -> f64| classes.iter().map(|class| of(class)).sum::<f64>();
    let rate = sum(|class| class.rate_per_s);
    let mean = |of: fn(&Class) -> f64| {
        let weighted: f64 = classes.iter().map(|class| of(class) * class.rate_per_s).sum();
        // Nothing goes on: each class counts alike.
        if rate > 0.0 { weighted / rate } else { sum(of) / classes.len().max(1) as f64 }
    };
    Class {
        service_name: classes.first().map(|class| class.service_name.clone()).unwrap_or_default(),
        request_class: format!("all {} classes", classes.len()),
        side: "server".into(),
        rate_per_s: rate,
        error_rate_per_s: sum(|class| class.error_rate_per_s),
        mean_s: mean(|class| class.mean_s),
        queue_s: mean(|class| class.queue_s),
        cpu_s: mean(|class| class.cpu_s),
        runqueue_s: mean(|class| class.runqueue_s),
        blocked_s: mean(|class| class.blocked_s),
        downstream_s: mean(|class| class.downstream_s),
        cpu_total_s: sum(|class| class.cpu_total_s),
        ..Class::default()
    }
}

fn total(class: &Class) -> (ClassKey, f64) {
    (class.key(), class.cpu_total_s)
}

/// What classes are sorted by, in the order of [`Sort`].
fn figures(class: &Class, cores: f64) -> [f64; 5] {
    [cores, class.rate_per_s, class.p95_s, class.error_rate_per_s, class.waits()]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn class(service: &str, name: &str, side: &str, rate: f64, p95: f64, cpu_total: f64) -> Class {
        Class {
            service_name: service.into(),
            request_class: name.into(),
            side: side.into(),
            rate_per_s: rate,
            p95_s: p95,
            cpu_s: 0.01,
            cpu_total_s: cpu_total,
            ..Class::default()
        }
    }

    fn table() -> Table {
        let mut table = Table::default();
        let at = Instant::now();
        let classes = |more: f64| {
            vec![
                class("shop", "GET /slow", "server", 1.0, 2.0, 10.0 + more),
                class("shop", "GET /fast", "server", 50.0, 0.001, 5.0),
                class("db", "SELECT", "server", 30.0, 0.1, 1.0 + 4.0 * more),
                class("shop", "SELECT", "client", 90.0, 0.1, 0.0),
            ]
        };
        let snapshot = |at, more| Snapshot {
            at,
            classes: classes(more),
            services: vec![Service { service_name: "db".into(), cpu_overhead_cores: 0.25 }],
            health: Health::default(),
        };
        table.update(snapshot(at, 0.0));
        table.update(snapshot(at + Duration::from_secs(2), 1.0));
        table
    }

    fn names(table: &Table) -> Vec<String> {
        let name = |row: &TableRow| match row {
            TableRow::Service(sums) => format!("[{}]", sums.name),
            TableRow::Class(class, _) => class.request_class.clone(),
        };
        table.rows().iter().map(name).collect()
    }

    #[test]
    fn every_key_sorts_and_a_second_time_the_other_way() {
        let mut table = table();
        assert_eq!(names(&table), ["SELECT", "GET /slow", "GET /fast"], "by CPU between two looks");
        table.sort_by(Sort::Rate);
        assert_eq!(names(&table), ["GET /fast", "SELECT", "GET /slow"]);
        table.sort_by(Sort::Rate);
        assert_eq!(names(&table), ["GET /slow", "SELECT", "GET /fast"]);
        table.sort_by(Sort::Latency);
        assert_eq!(names(&table), ["GET /slow", "SELECT", "GET /fast"]);
        table.sort_by(Sort::Name);
        assert_eq!(names(&table), ["SELECT", "GET /fast", "GET /slow"]);
        table.sort_by(Sort::Name);
        assert_eq!(names(&table), ["GET /slow", "GET /fast", "SELECT"]);
    }

    #[test]
    fn cpu_is_the_difference_of_two_looks() {
        let table = table();
        let (_, cores) = table.class(&table.selected_key().expect("a class")).expect("the class");
        assert!((cores - 2.0).abs() < 1e-9, "{cores}");
        // A class without an earlier look, or after a restart: its mean.
        let mut table = Table::default();
        let (at, health) = (Instant::now(), Health::default());
        let classes = vec![class("a", "b", "server", 10.0, 0.0, 3.0)];
        table.update(Snapshot { at, classes, services: Vec::new(), health });
        let (_, cores) = table.class(&table.selected_key().expect("a class")).expect("the class");
        assert!((cores - 0.1).abs() < 1e-9, "{cores}");
    }

    #[test]
    fn the_tree_puts_classes_below_their_service() {
        let mut table = table();
        table.tree = true;
        assert_eq!(names(&table), ["[db]", "SELECT", "[shop]", "GET /slow", "GET /fast"]);
        table.clients = true;
        assert_eq!(names(&table).len(), 6);
        let Some(TableRow::Service(sums)) = table.rows().into_iter().next() else { panic!("no service") };
        assert!((sums.rate - 30.0).abs() < 1e-9 && (sums.overhead - 0.25).abs() < 1e-9 && sums.classes == 1);
    }

    #[test]
    fn a_service_is_looked_at_as_a_whole() {
        let mut table = table();
        table.tree = true;
        table.selected = 2;
        let key = table.selected_key().expect("the row of a service");
        assert_eq!((key.service_name.as_str(), key.is_service()), ("shop", true));
        let (class, cores) = table.class(&key).expect("what it serves");
        assert_eq!(class.request_class, "all 2 classes");
        assert!((class.rate_per_s - 51.0).abs() < 1e-9 && (cores - 0.5).abs() < 1e-9, "{class:?} {cores}");
        assert!((class.cpu_s - 0.01).abs() < 1e-9, "a mean by request");
        // It is followed when rows change places.
        let mut next = table.now.clone().expect("a snapshot");
        next.at += Duration::from_secs(1);
        next.classes[0].cpu_total_s += 90.0;
        table.update(next);
        assert_eq!((table.selected, table.selected_key()), (0, Some(key)));
    }

    #[test]
    fn the_filter_looks_at_services_and_classes() {
        let mut table = table();
        table.filter = "FAST".into();
        assert_eq!(names(&table), ["GET /fast"]);
        table.filter = "db".into();
        assert_eq!(names(&table), ["SELECT"]);
        table.filter = "nothing of this".into();
        assert!(names(&table).is_empty() && table.selected_key().is_none());
        table.move_by(5);
        assert_eq!(table.selected, 0);
    }

    #[test]
    fn the_selection_follows_its_class_and_a_pause_keeps_everything() {
        let mut table = table();
        table.move_by(1);
        assert_eq!(table.selected_key().map(|key| key.request_class), Some("GET /slow".into()));
        let mut next = table.now.clone().expect("a snapshot");
        next.at += Duration::from_secs(1);
        next.classes[0].cpu_total_s += 9.0;
        table.paused = true;
        table.update(next.clone());
        assert_eq!(table.selected, 1);
        table.paused = false;
        table.update(next);
        assert_eq!((table.selected, names(&table)[0].as_str()), (0, "GET /slow"));
    }
}
