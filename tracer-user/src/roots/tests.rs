//! Rows of a class add up to the class, whatever order spans are reported in.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::model::sample_span::span;
use crate::model::{ClassInfo, ProtocolId, ServiceId, Side};

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
    let [.., waiting] = roots.table_use();
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
    for table in roots.table_use() {
        assert!(table.entries <= table.limit && table.reached > 0, "{table:?}");
    }
    let count = |class| roots.rows().iter().filter(|row| row.class == class).map(|row| row.sums.count).sum::<u64>();
    assert_eq!((count(WORK), count(A)), (spans, spans));
    assert!(row(&roots, WORK, &RowRoot::Other).0 > 0 && row(&roots, A, &RowRoot::Unknown).0 > 0);
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
