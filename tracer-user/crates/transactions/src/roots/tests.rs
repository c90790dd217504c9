//! Rows of a class add up to the class, whatever order spans are reported in.

use std::collections::HashMap;

use proptest::prelude::*;
use tracer_model::sample_span::span;
use tracer_model::{ClassInfo, ProtocolId, ServiceId, Side};

use super::*;

/// Two classes of a proxy, and one of what is behind it.
fn names() -> Names {
    let class = |service: u32, service_name: &str, name: &str| ClassInfo {
        service: ServiceId(service),
        service_name: Arc::from(service_name),
        protocol: ProtocolId::Http,
        side: Side::Server,
        name: Arc::from(name),
        route: Arc::from(""),
    };
    let classes = vec![
        class(0, "proxy", "GET /a"),
        class(0, "proxy", "GET /b"),
        class(1, "app", "GET /work"),
        ClassInfo { side: Side::Client, ..class(0, "proxy", "GET /work") },
    ];
    Names { services: vec!["proxy".into(), "app".into()], classes }
}

const A: ClassId = ClassId(0);
const B: ClassId = ClassId(1);
const WORK: ClassId = ClassId(2);
const CALL: ClassId = ClassId(3);

fn cpu(nanos: u64) -> Cost {
    Cost { cpu: nanos, ..Cost::default() }
}

/// A span that cost `nanos`, as the pipeline passes it on.
fn report(roots: &mut Roots, id: u64, class: ClassId, link: RootLink, nanos: u64) {
    let mut one = span(1, id - 1, 10, false);
    one.class = class;
    roots.span(&names(), &one, link, cpu(nanos));
}

fn below(id: u64) -> RootLink {
    RootLink::Below(SpanId(id))
}

fn row(roots: &Roots, class: ClassId, root: &RowRoot) -> (u64, u64) {
    let found = roots.rows().into_iter().find(|row| row.class == class && row.root == *root);
    found.map_or((0, 0), |row| (row.sums.count, row.sums.cost.cpu))
}

fn named(class: &str) -> RowRoot {
    RowRoot::Class("proxy".into(), class.into())
}

#[test]
fn a_request_counts_for_the_first_of_its_transaction_once_that_is_known() {
    let mut roots = Roots::for_memory(1 << 29);
    // What is behind is reported first, then the call, then the request of the proxy.
    roots.cost(Owner::Class(WORK), cpu(70));
    report(&mut roots, 30, WORK, below(20), 70);
    report(&mut roots, 20, CALL, below(10), 0);
    roots.tick(1);
    assert_eq!(row(&roots, WORK, &RowRoot::Open), (1, 70), "its parent is not reported yet");
    report(&mut roots, 10, A, RootLink::First, 5);
    roots.cost(Owner::Class(A), cpu(5));
    roots.tick(2);
    assert_eq!((row(&roots, WORK, &named("GET /a")), row(&roots, WORK, &RowRoot::Open)), ((1, 70), (0, 0)));
    assert_eq!(row(&roots, A, &named("GET /a")), (1, 5));
    // What works on after its report counts where the request did.
    roots.cost(Owner::Class(WORK), cpu(9));
    roots.late(Some(SpanId(30)), WORK, cpu(9));
    roots.tick(3);
    assert_eq!(row(&roots, WORK, &named("GET /a")), (1, 79));
    assert_eq!(roots.known(SpanId(30)), KnownRoot::Class("proxy".into(), "GET /a".into()));
}

#[test]
fn a_call_without_a_sure_parent_has_no_root_and_one_for_no_request_begins() {
    let mut roots = Roots::for_memory(1 << 29);
    report(&mut roots, 20, CALL, RootLink::Unknown, 0);
    report(&mut roots, 30, WORK, below(20), 1);
    report(&mut roots, 40, CALL, RootLink::Begins, 0);
    report(&mut roots, 50, WORK, below(40), 1);
    // The same where the call is reported last.
    report(&mut roots, 70, WORK, below(60), 1);
    report(&mut roots, 60, CALL, RootLink::Begins, 0);
    let elsewhere = roots.named(&"shop".into(), &"GET /checkout".into());
    report(&mut roots, 80, WORK, RootLink::Named(elsewhere), 1);
    assert_eq!(row(&roots, WORK, &RowRoot::Unknown).0, 1);
    assert_eq!(row(&roots, WORK, &RowRoot::Class("app".into(), "GET /work".into())).0, 2);
    assert_eq!(row(&roots, WORK, &RowRoot::Class("shop".into(), "GET /checkout".into())).0, 1);
    assert_eq!(row(&roots, CALL, &RowRoot::Unknown).0, 3);
    assert_eq!((roots.known(SpanId(20)), roots.known(SpanId(60))), (KnownRoot::Unknown, KnownRoot::Begins));
}

#[test]
fn charges_do_not_wait_for_ever() {
    let mut roots = Roots::for_memory(1 << 29);
    report(&mut roots, 30, WORK, below(20), 0);
    report(&mut roots, 40, WORK, below(30), 0);
    for seconds in [700, 1400] {
        roots.tick(seconds * 1_000_000_000);
    }
    assert_eq!(row(&roots, WORK, &RowRoot::Unknown).0, 2);
    let [_, _, _, waiting, ..] = roots.table_use();
    assert_eq!((waiting.entries, waiting.reached > 0), (0, true));
}

#[test]
fn tables_stay_within_their_bounds_and_nothing_is_lost() {
    let mut roots = Roots::for_memory(0);
    let mut spans = 0;
    for number in 0..20_000_u64 {
        let root = roots.named(&"shop".into(), &format!("GET /{number}").into());
        report(&mut roots, 4 * number + 1, WORK, RootLink::Named(root), 1);
        // Their parents never come.
        report(&mut roots, 4 * number + 2, A, below(4 * number + 3), 1);
        spans += 1;
    }
    for table in roots.table_use().into_iter().take(4) {
        assert!(table.entries <= table.limit && table.reached > 0, "{table:?}");
    }
    let count = |class| roots.rows().iter().filter(|row| row.class == class).map(|row| row.sums.count).sum::<u64>();
    assert_eq!((count(WORK), count(A)), (spans, spans));
    assert!(row(&roots, WORK, &RowRoot::Other).0 > 0 && row(&roots, A, &RowRoot::Unknown).0 > 0);
}

/// A span of a service, as the pipeline passes it on: reported and charged.
fn reported(roots: &mut Roots, id: u64, class: ClassId, link: RootLink, edit: impl FnOnce(&mut Span)) {
    let mut one = span(1, id - 1, 10, false);
    (one.class, one.side) = (class, if class == CALL { Side::Client } else { Side::Server });
    edit(&mut one);
    roots.span(&names(), &one, link, cpu(1));
    roots.cost(Owner::Class(class), cpu(1));
}

fn key(class: ClassId, caller: Caller, root: Option<RootId>) -> EdgeKey {
    EdgeKey { class, caller, callee: Callee::Unknown, root }
}

#[test]
fn a_window_has_requests_by_who_called_them_and_by_root() {
    let mut roots = Roots::for_memory(1 << 29);
    roots.collect_edges();
    let called = Callee::Service(ServiceId(1));
    // A request that calls, and what is behind it; a program that calls and serves nothing; a caller on another host; a call
    // that may be of two requests.
    reported(&mut roots, 30, WORK, below(20), |_| ());
    reported(&mut roots, 20, CALL, below(10), |one| one.callee = Some(ServiceId(1)));
    reported(&mut roots, 10, A, RootLink::First, |_| ());
    reported(&mut roots, 50, WORK, below(40), |_| ());
    reported(&mut roots, 40, CALL, RootLink::Begins, |one| one.peer_port = 81);
    let elsewhere = roots.named(&"shop".into(), &"GET /checkout".into());
    reported(&mut roots, 60, WORK, RootLink::Named(elsewhere), |one| {
        let (host, service) = ("web-2".into(), "front".into());
        one.remote = Some(Box::new(tracer_model::Remote { host, service, class: "GET /x".into(), end: None }));
    });
    reported(&mut roots, 80, WORK, below(70), |_| ());
    reported(&mut roots, 70, CALL, RootLink::Unknown, |one| one.callee = Some(ServiceId(1)));
    roots.tick(1);
    let rows: HashMap<EdgeKey, EdgeSums> = roots.take_edges().into_iter().collect();
    let (a, work) = (roots.names.of_class(&names(), A), roots.names.of_class(&names(), WORK));
    let once = |key: EdgeKey, first| assert_eq!((rows[&key].count, rows[&key].cpu, rows[&key].first), (1, 1, first));
    once(key(A, Caller::Unknown, Some(a)), 1);
    once(EdgeKey { callee: called, ..key(CALL, Caller::Request(A), Some(a)) }, 0);
    once(key(WORK, Caller::Request(A), Some(a)), 0);
    once(key(WORK, Caller::Program(CALL), Some(work)), 1);
    once(key(WORK, Caller::Program(CALL), Some(RootId::UNKNOWN)), 0);
    once(EdgeKey { callee: called, ..key(CALL, Caller::Program(CALL), Some(RootId::UNKNOWN)) }, 0);
    let named = |of: fn(&EdgeKey) -> Option<ExternalPeerId>| {
        rows.keys().filter_map(of).map(|id| roots.external_peer(id)).next()
    };
    let caller = named(|key| if let Caller::Remote(peer) = key.caller { Some(peer) } else { None });
    assert_eq!(caller, Some(ExternalPeer::Remote("web-2".into(), "front".into())));
    let callee = named(|key| if let Callee::External(peer) = key.callee { Some(peer) } else { None });
    assert!(matches!(callee, Some(ExternalPeer::Address(_, 81))), "{callee:?}");
    assert_eq!(rows.len(), 8);
    assert!(roots.take_edges().is_empty());
}

#[test]
fn what_becomes_known_in_a_later_window_leaves_the_open_row() {
    let mut roots = Roots::for_memory(1 << 29);
    roots.collect_edges();
    reported(&mut roots, 30, WORK, below(20), |_| ());
    roots.tick(1);
    let open = roots.take_edges();
    let [(key_of, sums)] = open[..] else { panic!("{open:?}") };
    assert_eq!((key_of, sums.count, sums.cpu), (key(WORK, Caller::Unknown, None), 1, 1));
    reported(&mut roots, 20, CALL, below(10), |_| ());
    reported(&mut roots, 10, A, RootLink::First, |_| ());
    // It works on after its report.
    roots.late(Some(SpanId(30)), WORK, cpu(5));
    roots.cost(Owner::Class(WORK), cpu(5));
    roots.tick(2);
    let rows: HashMap<EdgeKey, EdgeSums> = roots.take_edges().into_iter().collect();
    let a = roots.names.of_class(&names(), A);
    let of = |key: EdgeKey| (rows[&key].count, rows[&key].cpu);
    assert_eq!(of(key(WORK, Caller::Unknown, None)), (-1, -1));
    assert_eq!(of(key(WORK, Caller::Request(A), Some(a))), (1, 6));
}

#[test]
fn rows_of_a_window_are_bounded_and_add_up() {
    let mut roots = Roots::for_memory(0);
    roots.collect_edges();
    for number in 0..2000_u64 {
        let root = roots.named(&"shop".into(), &format!("GET /{number}").into());
        reported(&mut roots, 4 * number + 1, CALL, RootLink::Named(root), |one| one.peer_port = number as u16);
        reported(&mut roots, 4 * number + 2, WORK, RootLink::Named(root), |_| ());
    }
    let [.., edges, peers] = roots.table_use();
    assert!(edges.reached > 0 && peers.reached > 0 && peers.entries <= peers.limit, "{edges:?} {peers:?}");
    let rows = roots.take_edges();
    assert!(rows.len() as u64 <= edges.limit + 2, "{}", rows.len());
    for class in [CALL, WORK] {
        let of = rows.iter().filter(|(key, _)| key.class == class);
        assert_eq!(of.map(|(_, sums)| sums.count).sum::<i64>(), 2000);
    }
    assert!(rows.iter().any(|(key, sums)| key.caller == Caller::Other && key.class == WORK && sums.count > 0));
}

/// What can happen to a transaction of a request, a call and a request behind it, each step once, in any order.
fn steps() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let all: Vec<(usize, usize)> =
        (0..12).flat_map(|transaction| (0..7).map(move |step| (transaction, step))).collect();
    Just(all).prop_shuffle()
}

proptest! {
    #[test]
    fn rows_of_a_class_always_add_up_to_the_class(steps in steps()) {
        let mut roots = Roots::for_memory(1 << 29);
        roots.collect_edges();
        let mut in_windows: HashMap<ClassId, (i64, i64)> = HashMap::new();
        let mut charged: HashMap<ClassId, Cost> = HashMap::new();
        let mut counted: HashMap<ClassId, u64> = HashMap::new();
        let mut posted = std::collections::HashSet::new();
        for (at, (transaction, step)) in steps.into_iter().enumerate() {
            let first = if transaction % 2 == 0 { A } else { B };
            let id = transaction as u64 * 10 + 1;
            // Costs are charged to a class before, with or after the report of their span; never later than the next tick.
            let mut cost = |roots: &mut Roots, class: ClassId, nanos: u64| {
                roots.cost(Owner::Class(class), cpu(nanos));
                charged.entry(class).or_default().add(cpu(nanos));
            };
            match step {
                0 => {
                    report(&mut roots, id, first, RootLink::First, 100);
                    *counted.entry(first).or_default() += 1;
                    cost(&mut roots, first, if posted.contains(&(transaction, 3)) { 60 } else { 100 });
                    posted.insert((transaction, 0));
                }
                1 => report(&mut roots, id + 1, CALL, below(id), 0),
                2 => {
                    report(&mut roots, id + 2, WORK, below(id + 1), 1000);
                    *counted.entry(WORK).or_default() += 1;
                    cost(&mut roots, WORK, if posted.contains(&(transaction, 4)) { 400 } else { 1000 });
                    posted.insert((transaction, 2));
                }
                // A part is posted while the request is open.
                3 if !posted.contains(&(transaction, 0)) => {
                    cost(&mut roots, first, 40);
                    posted.insert((transaction, 3));
                }
                4 if !posted.contains(&(transaction, 2)) => {
                    cost(&mut roots, WORK, 600);
                    posted.insert((transaction, 4));
                }
                5 if posted.contains(&(transaction, 2)) => {
                    roots.late(Some(SpanId(id + 2)), WORK, cpu(7));
                    cost(&mut roots, WORK, 7);
                }
                _ => {}
            }
            if step >= 3 || at % 3 == 0 {
                roots.tick(at as u64);
            }
            // A window ends wherever costs were passed on.
            if at % 6 == 0 {
                for (key, sums) in roots.take_edges() {
                    let sum = in_windows.entry(key.class).or_default();
                    (sum.0, sum.1) = (sum.0 + sums.count, sum.1 + sums.cpu);
                }
                for (class, cpu) in &charged {
                    let (count, sum) = in_windows.get(class).copied().unwrap_or_default();
                    let counted = counted.get(class).copied().unwrap_or(0);
                    prop_assert_eq!((count, sum), (counted as i64, cpu.cpu as i64));
                }
            }
            for (class, cpu) in &charged {
                let rows = roots.rows();
                let of = rows.iter().filter(|row| row.class == *class);
                let sum = of.clone().map(|row| row.sums.cost.cpu).sum::<u64>();
                prop_assert_eq!(sum, cpu.cpu);
                prop_assert_eq!(of.map(|row| row.sums.count).sum::<u64>(), counted.get(class).copied().unwrap_or(0));
            }
        }
        roots.tick(u64::from(u32::MAX));
        let open = |row: &RootRow| row.root == RowRoot::Open && row.class != CALL;
        prop_assert!(!roots.rows().iter().any(open), "{:?}", roots.rows());
        prop_assert_eq!(row(&roots, A, &named("GET /a")), (6, 600));
        prop_assert_eq!(row(&roots, WORK, &named("GET /a")).0, 6);
        prop_assert_eq!(row(&roots, WORK, &named("GET /b")).0, 6);
    }
}

#[test]
fn requests_below_one_of_their_own_class_are_no_roots() {
    let mut roots = Roots::for_memory(1 << 29);
    let first = |roots: &Roots| {
        let rows = roots.rows();
        rows.iter().filter(|row| row.root == named("GET /a")).map(|row| row.sums.first).sum::<u64>()
    };
    // A proxy behind itself: the inner request has the class of the outer one.
    report(&mut roots, 30, A, below(20), 1);
    report(&mut roots, 20, CALL, below(10), 0);
    report(&mut roots, 10, A, RootLink::First, 1);
    assert_eq!((row(&roots, A, &named("GET /a")).0, first(&roots)), (2, 1));
    // What a call for no request reaches is a root, whichever is reported first.
    report(&mut roots, 50, A, below(40), 1);
    report(&mut roots, 40, CALL, RootLink::Begins, 0);
    report(&mut roots, 60, A, below(40), 1);
    assert_eq!((row(&roots, A, &named("GET /a")).0, first(&roots)), (4, 3));
}

#[test]
fn a_window_that_was_full_of_addresses_leaves_room_in_the_next() {
    let mut roots = Roots::for_memory(0);
    roots.collect_edges();
    for number in 0..2000_u64 {
        reported(&mut roots, number + 1, CALL, RootLink::Begins, |one| one.peer_port = number as u16);
    }
    let peer = |key: &EdgeKey| if let Callee::External(peer) = key.callee { Some(peer) } else { None };
    let rows = roots.take_edges();
    let old = rows.iter().filter_map(|(key, _)| peer(key)).min().expect("a call with an address");
    assert!(matches!(roots.external_peer(old), ExternalPeer::Address(..)));
    reported(&mut roots, 9000, CALL, RootLink::Begins, |one| one.peer_port = 9000);
    let rows = roots.take_edges();
    let new = rows.iter().find_map(|(key, _)| peer(key)).map(|peer| roots.external_peer(peer));
    assert!(matches!(new, Some(ExternalPeer::Address(_, 9000))), "{new:?}");
    // A call that waited since the window before has no name, and not another's.
    assert_eq!(roots.external_peer(old), ExternalPeer::Other);
}
