//! From rows back to the windows that the verdicts are made from.

use std::collections::BTreeMap;

use super::rows::{ClassRow, HostRow, ServiceRow};
use crate::analysis::window::{ClassWindow, ServiceWindow, Window};

/// Name of a protocol whose requests are parts of others: no load of their own.
const DECLARED: &str = "declared";

/// A window, and whether all its rows were there: tables reach a bucket one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadWindow {
    /// The window.
    pub window: Window,
    /// Whether it is whole.
    pub whole: bool,
    /// Its row in the table of hosts: what the verdicts do not need.
    pub host: HostRow,
}

/// The windows of one host that have a row in `hosts`, by time; `last` ones, which are shorter, are left out. Rows of one
/// window that occur twice count once.
pub fn windows(hosts: Vec<HostRow>, services: Vec<ServiceRow>, classes: &[ClassRow]) -> Vec<ReadWindow> {
    let mut all: BTreeMap<u64, Window> = BTreeMap::new();
    // Rows that are missing, by window.
    let mut missing: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut rows: BTreeMap<u64, HostRow> = BTreeMap::new();
    for row in hosts.into_iter().filter(|row| row.last == 0) {
        missing.insert(row.start_ns, (row.class_rows, row.service_rows));
        all.entry(row.start_ns).or_insert(Window {
            start_ns: row.start_ns,
            length_s: row.length_s,
            cores: row.cores,
            busy_s: row.busy_s,
            foreign_s: row.foreign_s,
            steal_s: row.steal_s,
            loss: row.loss,
            services: Vec::new(),
        });
        rows.insert(row.start_ns, row);
    }
    for row in services {
        let Some(window) = all.get_mut(&row.start_ns) else { continue };
        if window.services.iter().any(|service| *service.service_name == *row.service_name) {
            continue;
        }
        if let Some((_, services)) = missing.get_mut(&row.start_ns) {
            *services = services.saturating_sub(1);
        }
        window.services.push(ServiceWindow {
            service_name: row.service_name.to_string(),
            identity: row.identity.0,
            starts: u32::try_from(row.starts).unwrap_or(u32::MAX),
            entry: row.entry != 0,
            callees: row.callees.lines().map(str::to_owned).collect(),
            overhead_s: row.overhead_s,
            ambiguous: row.ambiguous,
            classes: Vec::new(),
        });
    }
    for row in classes {
        if let Some((classes, _)) = missing.get_mut(&row.start_ns) {
            *classes = classes.saturating_sub(1);
        }
    }
    for row in classes.iter().filter(|row| &*row.side == "server" && &*row.protocol != DECLARED) {
        let Some(window) = all.get_mut(&row.start_ns) else { continue };
        let known = window.services.iter().position(|service| *service.service_name == *row.service_name);
        let at = known.unwrap_or_else(|| {
            // Of an agent that wrote no services yet.
            let (service_name, identity) = (row.service_name.to_string(), row.identity.0);
            window.services.push(ServiceWindow { service_name, identity, entry: true, ..ServiceWindow::default() });
            window.services.len() - 1
        });
        let Some(service) = window.services.get_mut(at) else { continue };
        let class = class_window(row);
        match service.classes.iter_mut().find(|known| known.request_class == class.request_class) {
            // Of two protocols.
            Some(known) => known.add(&class),
            None => service.classes.push(class),
        }
    }
    let whole = |start_ns| missing.get(&start_ns).is_none_or(|missing| *missing == (0, 0));
    let read = |(start_ns, window)| {
        let host = rows.remove(&start_ns).unwrap_or_default();
        ReadWindow { window, whole: whole(start_ns), host }
    };
    let mut all: Vec<ReadWindow> = all.into_iter().map(read).collect();
    for ReadWindow { window, .. } in &mut all {
        window.services.sort_by(|a, b| a.service_name.cmp(&b.service_name));
        for service in &mut window.services {
            service.classes.sort_by(|a, b| a.request_class.cmp(&b.request_class));
        }
    }
    all
}

fn class_window(row: &ClassRow) -> ClassWindow {
    let mut count = row.count_by_size.map(|count| count as f64);
    let mut cpu_s = row.cpu_s_by_size;
    if count.iter().sum::<f64>() <= 0.0 {
        count = [0.0, row.count as f64, 0.0];
    }
    if cpu_s.iter().sum::<f64>() <= 0.0 && row.cpu_s > 0.0 {
        // Of an agent that did not write it by size.
        let all = count.iter().sum::<f64>().max(1.0);
        cpu_s = count.map(|count| row.cpu_s * count / all);
    }
    ClassWindow {
        request_class: row.request_class.to_string(),
        count,
        cpu_s,
        cpu_s_squared: row.cpu_s_squared,
        blocked_s: row.blocked_s,
        queue_s: row.queue_s + row.runqueue_s,
        calls: row.calls as f64,
        downstream_s: row.downstream_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::rows::Identity;

    #[test]
    fn rows_of_earlier_agents_make_windows_too() {
        let host = |start_ns, last| HostRow { start_ns, length_s: 10.0, last, ..HostRow::default() };
        let class = |start_ns, side: &str, protocol: &str| ClassRow {
            start_ns,
            service_name: "shop".into(),
            request_class: "GET /".into(),
            side: side.into(),
            protocol: protocol.into(),
            identity: Identity(7),
            count: 4,
            count_by_size: [1, 3, 0],
            cpu_s: 2.0,
            ..ClassRow::default()
        };
        let classes = [
            class(5, "server", "http"),
            class(5, "server", "fastcgi"),
            class(5, "client", "http"),
            class(5, "server", "declared"),
            class(9, "server", "http"),
            class(7, "server", "http"),
        ];
        let found = windows(vec![host(7, 0), host(5, 0), host(5, 0), host(9, 1)], Vec::new(), &classes);
        assert!(found.iter().all(|read| read.whole));
        assert_eq!(found.iter().map(|read| read.window.start_ns).collect::<Vec<_>>(), [5, 7]);
        let service = &found[0].window.services[0];
        assert_eq!((service.identity, service.entry, service.classes.len()), (7, true, 1));
        assert_eq!((service.classes[0].count, service.classes[0].cpu_s), ([2.0, 6.0, 0.0], [1.0, 3.0, 0.0]));
    }

    #[test]
    fn the_same_findings_as_from_the_windows_themselves() {
        use crate::analysis::detector::{Detector, Settings};
        use crate::analysis::finding::FindingKind;
        // Two classes; one costs half more from window 60 on.
        let made: Vec<Window> = (0..120u64)
            .map(|n| {
                let class = |name: &str, each: f64| {
                    let noise = 1.0 + 0.02 * ((n * 7 % 11) as f64 / 5.0 - 1.0);
                    ClassWindow {
                        request_class: name.to_owned(),
                        count: [10.0, 80.0, 10.0],
                        cpu_s: [0.1 * each * noise, 0.8 * each * noise, 0.1 * each * noise],
                        cpu_s_squared: each * each * 0.01,
                        blocked_s: 0.3,
                        queue_s: 0.1,
                        calls: 100.0,
                        downstream_s: 0.4,
                    }
                };
                let slow = if n >= 60 { 1.5 } else { 1.0 };
                let classes = ["a", "b", "c", "d", "e"].map(|name| class(name, if name == "b" { slow } else { 1.0 }));
                let service = ServiceWindow {
                    service_name: "shop".into(),
                    identity: 7,
                    entry: true,
                    callees: vec!["db".into(), "cache".into()],
                    overhead_s: 0.2,
                    classes: classes.to_vec(),
                    ..ServiceWindow::default()
                };
                let busy_s = 8.0 + slow;
                Window {
                    start_ns: n * 10_000_000_000,
                    length_s: 10.0,
                    cores: 4.0,
                    busy_s,
                    services: vec![service],
                    ..Window::default()
                }
            })
            .collect();
        let (mut hosts, mut services, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        for window in &made {
            let (start_ns, length_s) = (window.start_ns, window.length_s);
            hosts.push(HostRow {
                start_ns,
                length_s,
                cores: window.cores,
                busy_s: window.busy_s,
                ..HostRow::default()
            });
            for service in &window.services {
                services.push(ServiceRow {
                    start_ns,
                    length_s,
                    service_name: service.service_name.as_str().into(),
                    identity: Identity(service.identity),
                    entry: 1,
                    callees: service.callees.join("\n").into(),
                    overhead_s: service.overhead_s,
                    ..ServiceRow::default()
                });
                for class in &service.classes {
                    classes.push(ClassRow {
                        start_ns,
                        length_s,
                        service_name: service.service_name.as_str().into(),
                        request_class: class.request_class.as_str().into(),
                        side: "server".into(),
                        protocol: "http".into(),
                        count: class.count.iter().sum::<f64>() as u64,
                        count_by_size: class.count.map(|count| count as u64),
                        cpu_s: class.cpu_s.iter().sum(),
                        cpu_s_by_size: class.cpu_s,
                        cpu_s_squared: class.cpu_s_squared,
                        blocked_s: class.blocked_s,
                        queue_s: class.queue_s,
                        calls: class.calls as u64,
                        downstream_s: class.downstream_s,
                        ..ClassRow::default()
                    });
                }
            }
        }
        for row in &mut hosts {
            (row.class_rows, row.service_rows) = (5, 1);
        }
        // One table lags: its windows are known to be parts.
        let early = windows(hosts.clone(), services[..100].to_vec(), &classes);
        assert_eq!(early.iter().filter(|read| read.whole).count(), 100);
        let early = windows(hosts.clone(), services.clone(), &classes[..5 * 90 + 2]);
        assert_eq!(early.iter().filter(|read| read.whole).count(), 90);
        let read = windows(hosts, services, &classes);
        assert!(read.iter().all(|read| read.whole));
        let read: Vec<Window> = read.into_iter().map(|read| read.window).collect();
        assert_eq!(read, made);
        let (mut one, mut other) = (Detector::new(Settings::default()), Detector::new(Settings::default()));
        for window in &made {
            one.push(window);
        }
        for window in &read {
            other.push(window);
        }
        let findings: Vec<_> = one.findings().cloned().collect();
        assert!(
            findings.iter().any(|f| f.kind == FindingKind::ApplicationChange && f.request_classes == ["b"]),
            "{findings:?}"
        );
        assert_eq!(findings, other.findings().cloned().collect::<Vec<_>>());
    }
}
