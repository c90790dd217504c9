//! Stacks are counted by class, named once, and let go by age.

use tracer_common::off_cpu::Reason;
use tracer_model::{ClassId, ClassInfo, Owner, ProtocolId, ServiceId, Side};

use super::*;

#[inline(never)]
fn landmark() -> u64 {
    std::hint::black_box(7)
}

fn names() -> Names {
    let class = |name: &str| ClassInfo {
        service: ServiceId(0),
        service_name: Arc::from("shop"),
        protocol: ProtocolId::Http,
        side: Side::Server,
        name: Arc::from(name),
        route: Arc::from(""),
    };
    Names { services: vec![Arc::from("shop")], classes: vec![class("GET /a"), class("GET /<b>")] }
}

fn sample(owner: Owner, user: Vec<u64>) -> StackSample {
    let pid = std::process::id();
    StackSample {
        nanos: 1,
        pid,
        tid: pid,
        weight: 10_000,
        user,
        kernel: vec![],
        outcome: tracer_common::unwind::Outcome::FramePointers,
        interpreted: tracer_model::Interpreted::default(),
        off_cpu: None,
        waker: None,
        owner,
        span: None,
        dimensions: tracer_model::DimensionValues::default(),
        ad_hoc: false,
    }
}

#[test]
fn old_stacks_make_room_for_new_ones() {
    let bounds = Bounds { stacks: 100, pairs: 250, debug: 0, maps: 0 };
    let mut profiles = Profiles::new().within(bounds);
    let at = |profiles: &mut Profiles, second: u64, address: u64| {
        let sample = sample(Owner::Class(ClassId(0)), vec![address]);
        profiles.sample(&names(), &StackSample { nanos: second * 1_000_000_000, ..sample });
        let table_use = profiles.table_use();
        assert!(
            table_use.stacks.entries <= table_use.stacks.limit && table_use.pairs.entries <= table_use.pairs.limit,
            "{table_use:?}"
        );
    };
    for address in 0..300 {
        at(&mut profiles, 10, address);
    }
    assert_eq!((profiles.len(), profiles.refused), (100, 200), "the first hundred");
    // An hour later, the first ones are gone.
    for address in 1000..1100 {
        at(&mut profiles, 4000, address);
    }
    assert_eq!((profiles.len(), profiles.refused, profiles.table_use().pairs.reached), (100, 200, 1));
    for second in [4040, 4080] {
        for address in 1000..1090 {
            at(&mut profiles, second, address);
        }
    }
    assert_eq!((profiles.refused, profiles.table_use().pairs.reached), (200, 2));
    let refused = profiles.refused;
    profiles.keep_part(4);
    assert!(profiles.table_use().pairs.entries <= 62 && profiles.len() <= 25, "{:?}", profiles.table_use());
    profiles.keep_part(0);
    assert!(profiles.is_empty());
    at(&mut profiles, 4100, 1);
    assert_eq!((profiles.len(), profiles.refused), (0, refused + 1));
    profiles.keep_part(1);
    at(&mut profiles, 4200, 1);
    assert_eq!(profiles.len(), 1);
}

#[test]
fn stacks_with_the_same_names_become_one() {
    assert_eq!(landmark(), 7);
    let mut profiles = Profiles::new();
    profiles.set_process(std::process::id(), "shop");
    let here = landmark as *const () as u64 + 1;
    let owners = [Owner::Class(ClassId(0)), Owner::Class(ClassId(1)), Owner::Class(ClassId(0))];
    for round in 0..2 {
        for (offset, owner) in owners.into_iter().enumerate() {
            profiles.sample(&names(), &sample(owner, vec![here + offset as u64]));
        }
        profiles.sample(&names(), &sample(owners[0], vec![1]));
        // Named on their thread: whoever asks waits for it, and what is kept is named before.
        let all = Filter::default();
        assert_eq!(profiles.snapshot(&names(), &all).folded(None).lines().count(), 2);
        profiles.tick(round + 2);
        assert_eq!((profiles.len(), profiles.table_use().pairs.entries), (2, 3), "{profiles:?}");
        assert!(profiles.ids.is_empty() && profiles.shapes.len() == 2, "addresses are not kept");
    }
    let of = |class: &str| {
        let filter = Filter { service: Some("shop".into()), class: Some(class.into()), ..Filter::default() };
        profiles.snapshot(&names(), &filter).folded(None)
    };
    let (one, other) = (of("GET /a"), of("GET /<b>"));
    assert!(one.contains("landmark 40\n") && one.contains("shop;[callers unknown] 20\n"), "{one}");
    assert!(other.ends_with("landmark 20\n") && other.lines().count() == 1, "{other}");
    profiles.keep_part(0);
    assert!(profiles.shapes.is_empty() && profiles.is_empty());
}

#[test]
fn each_class_has_its_own_stacks_with_names() {
    assert_eq!(landmark(), 7);
    let mut profiles = Profiles::new();
    profiles.set_process(std::process::id(), "shop");
    let here = landmark as *const () as u64 + 1;
    for _ in 0..3 {
        profiles.sample(&names(), &sample(Owner::Class(ClassId(0)), vec![here]));
    }
    profiles.sample(&names(), &sample(Owner::Class(ClassId(1)), vec![1]));
    let filter = |class: &str| Filter { service: Some("shop".into()), class: Some(class.into()), ..Filter::default() };
    let snapshot = profiles.snapshot(&names(), &filter("GET /a"));
    let folded = snapshot.folded(None);
    assert!(folded.starts_with("shop;") && folded.contains("landmark") && folded.ends_with(" 30\n"), "{folded}");
    let other = profiles.snapshot(&names(), &filter("GET /<b>"));
    assert!(!other.folded(None).contains("landmark"));
    // Whose code it is stands in the text on request only, and never of the process.
    let third_party = vec!["tracer_results::profiles::".to_owned(), "shop".to_owned()];
    let owners = CodeOwners { third_party, ..CodeOwners::default() };
    let annotated = snapshot.folded(Some(&owners));
    assert!(annotated.starts_with("shop;") && annotated.ends_with("landmark_[l] 30\n"), "{annotated}");
    assert_eq!(snapshot.folded(Some(&CodeOwners::default())), folded);
    let svg = String::from_utf8(snapshot.svg("GET /<b>")).unwrap();
    assert!(svg.contains("landmark") && !svg.contains("/<b>"), "escaped");
    let nothing = profiles.snapshot(&names(), &filter("GET /c"));
    assert!(String::from_utf8(nothing.svg("x")).unwrap().contains("no samples yet"));
    pprof::tests::check(&snapshot.pprof(), 3, 30_000, "landmark");
}

#[test]
fn old_periods_are_put_together_and_ranges_do_not_mix() {
    const SECOND: Nanos = 1_000_000_000;
    let mut profiles = Profiles::new();
    for second in 1..2400 {
        let sample = sample(Owner::Class(ClassId(0)), vec![7]);
        profiles.sample(&names(), &StackSample { nanos: second * SECOND, ..sample });
    }
    // Fifteen minutes of ten seconds each, and a minute each before.
    assert!((110..120).contains(&profiles.periods.len()), "{}", profiles.periods.len());
    assert_eq!(profiles.pairs, profiles.periods.iter().map(|period| period.counts.len()).sum::<usize>());
    let samples = |range: Option<(u64, u64)>| {
        let range = range.map(|(from, until)| (from * SECOND, until * SECOND));
        profiles.snapshot(&names(), &Filter { range, ..Filter::default() }).samples()
    };
    assert_eq!(samples(None), 2399);
    assert_eq!(samples(Some((2000, 2100))), 100);
    assert_eq!(samples(Some((2005, 2095))), 80, "only what is wholly within");
    assert_eq!(profiles.covered((2005 * SECOND, 2095 * SECOND)), Some((2010 * SECOND, 2090 * SECOND)));
    assert_eq!(profiles.covered((2001 * SECOND, 2009 * SECOND)), None);
}

fn facts(pid: u32, start_time: u64) -> tracer_host::process::ProcessFacts {
    tracer_host::process::ProcessFacts { pid, start_time, exe: "/bin/shop".into(), ..Default::default() }
}

/// Process and its start, class, whether off the CPU, samples, nanoseconds and innermost frame of what an exporter gets.
type Row = (u32, u64, Option<String>, bool, u64, u64, String);

fn rows(samples: Option<UnsentSamples>) -> Vec<Row> {
    let row = |one: UnsentSample| {
        let class = one.class.map(|(name, _)| name.to_string());
        let frame = one.frames.last().map_or_else(String::new, |frame| frame.to_string());
        (one.instance.pid, one.instance.start_time, class, one.off_cpu, one.count, one.nanos, frame)
    };
    let mut rows: Vec<Row> = samples.map_or_else(Vec::new, UnsentSamples::named).into_iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn an_exporter_gets_each_sample_once() {
    assert_eq!(landmark(), 7);
    let mut names = names();
    names.classes.push(ClassInfo { protocol: ProtocolId::Declared, ..names.classes[0].clone() });
    let (own, here) = (std::process::id(), landmark as *const () as u64 + 1);
    let mut profiles = Profiles::new();
    profiles.set_process(own, "shop");
    profiles.sample(&names, &sample(Owner::Class(ClassId(0)), vec![here]));
    assert!(profiles.take_unsent(&names, 5).is_none(), "nobody asked for them");
    profiles.keep_unsent(10);
    profiles.set_instance(own, &facts(own, 77));
    let of = |owner| sample(owner, vec![here]);
    let class = Owner::Class(ClassId(0));
    profiles.sample(&names, &of(class));
    // The same function, elsewhere in it.
    profiles.sample(&names, &sample(class, vec![here + 1]));
    profiles.sample(&names, &of(Owner::Overhead(ServiceId(0))));
    let wait = Some(Wait::of(Reason::Futex));
    profiles.sample(&names, &StackSample { off_cpu: wait, weight: 500, ..of(class) });
    // Those of the common clocks count, once.
    profiles.sample(&names, &StackSample { ad_hoc: true, span: Some(SpanId(1)), ..of(class) });
    profiles.sample(&names, &of(Owner::Class(ClassId(2))));
    profiles.sample(&names, &of(Owner::Kernel));
    // Names arrive, and the first two stacks become one.
    profiles.snapshot(&names, &Filter::default()).folded(None);
    profiles.tick(2);
    assert_eq!(profiles.unsent().entries, 3, "{:?}", profiles.unsent);
    let taken = profiles.take_unsent(&names, 20).expect("samples");
    assert_eq!((taken.since, taken.until, taken.count()), (10, 20, 4));
    let a = Some("GET /a".to_owned());
    let frame = |rows: &[Row], at: usize| rows[at].6.clone();
    let found = rows(Some(taken));
    assert!(frame(&found, 0).contains("landmark") && frame(&found, 2) == "[off CPU: futex]", "{found:?}");
    assert_eq!(
        found,
        [
            (own, 77, None, false, 1, 10_000, frame(&found, 0)),
            (own, 77, a.clone(), false, 2, 20_000, frame(&found, 0)),
            (own, 77, a.clone(), true, 1, 500, frame(&found, 2)),
        ]
    );
    assert!(profiles.take_unsent(&names, 30).is_none(), "each is handed out once");
    // The process ends and its id becomes another's; one that was not introduced yet is, later.
    profiles.sample(&names, &of(class));
    profiles.process_gone(own);
    profiles.sample(&names, &of(class));
    profiles.set_instance(own, &facts(own, 78));
    profiles.sample(&names, &of(class));
    let found = rows(profiles.take_unsent(&names, 40));
    let starts: Vec<(u64, u64)> = found.iter().map(|row| (row.1, row.4)).collect();
    assert_eq!(starts, [(77, 1), (78, 2)]);
    assert_eq!(profiles.take_unsent_dropped(), 0);
}

#[test]
fn waits_for_locks_show_the_code_that_ended_them() {
    let names = names();
    let (own, here) = (std::process::id(), landmark as *const () as u64 + 1);
    let mut profiles = Profiles::new();
    profiles.set_process(own, "shop");
    let class = Owner::Class(ClassId(0));
    let [futex, disk] = [Reason::Futex, Reason::Disk];
    let waker = WakerStack {
        pid: own,
        user: vec![here, 7],
        outcome: Outcome::FramePointers,
        interpreted: Interpreted::default(),
    };
    let wait = |reason, weight| StackSample { weight, off_cpu: Some(Wait::of(reason)), ..sample(class, vec![5]) };
    let woken = |weight| StackSample { waker: Some(Arc::new(waker.clone())), ..wait(futex, weight) };
    for sample in [woken(300_000), woken(100_000), wait(futex, 100_000), wait(disk, 50_000)] {
        profiles.sample(&names, &sample);
    }
    // Without a stack: divided as the others.
    profiles.sample(&names, &StackSample { user: vec![], ..wait(futex, 500_000) });
    profiles.sample(&names, &StackSample { span: Some(SpanId(1)), ..woken(20_000) });
    let filter = |view| Filter { service: Some("shop".into()), view, ..Filter::default() };
    let folded = |profiles: &Profiles, view| profiles.snapshot(&names, &filter(view)).folded(None);
    let of = |folded: &str, end: &str| -> u64 {
        let lines = folded.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(stack, _)| stack.ends_with(end));
        lines.map(|(_, micros)| micros.parse::<u64>().unwrap()).sum()
    };
    let snapshot = folded(&profiles, ProfileKind::Wakers);
    // The waker's frames, innermost first, on those of the wait.
    let (wait, waker) =
        snapshot.lines().find_map(|line| line.split_once(";[off CPU: futex];[woken by shop];")).unwrap();
    assert!(wait == "shop;[callers unknown]" && waker.contains("landmark;[callers unknown] "), "{snapshot}");
    assert_eq!((of(&snapshot, "landmark;[callers unknown]"), of(&snapshot, "[waker not seen]")), (824, 196));
    assert!(!snapshot.contains("disk"), "{snapshot}");
    // Elsewhere there are no wakers.
    let off_cpu = folded(&profiles, ProfileKind::OffCpu);
    assert_eq!((of(&off_cpu, "[off CPU: futex]"), of(&off_cpu, "[off CPU: disk]")), (1020, 50), "{off_cpu}");
    // Names change nothing.
    profiles.tick(2);
    assert_eq!(folded(&profiles, ProfileKind::Wakers), snapshot);
    // Functions are those of the wakers.
    let stacks = profiles.snapshot(&names, &filter(ProfileKind::Wakers)).stacks();
    assert!(
        stacks.iter().any(|(frames, ..)| frames.last().is_some_and(|frame| frame.contains("landmark"))),
        "{stacks:?}"
    );
    // A slow request has its own.
    profiles.request_ended(SpanId(1), || Some(ad_hoc::tests::slow(1, 0)));
    let own = profiles.snapshot_of(SpanId(1), ProfileKind::Wakers).expect("kept").folded(None);
    assert!(own.contains("[woken by shop]") && own.lines().count() == 1, "{own}");
}

#[test]
fn what_an_exporter_does_not_take_is_bounded_and_counted() {
    let bounds = Bounds { stacks: 40, pairs: 1000, debug: 0, maps: 0 };
    let mut profiles = Profiles::new().within(bounds);
    profiles.keep_unsent(0);
    for address in 0..50 {
        profiles.sample(&names(), &sample(Owner::Class(ClassId(0)), vec![address]));
    }
    assert_eq!((profiles.unsent().entries, profiles.unsent().limit, profiles.take_unsent_dropped()), (10, 10, 40));
    // Known stacks add up.
    profiles.sample(&names(), &sample(Owner::Class(ClassId(0)), vec![0]));
    assert_eq!(profiles.take_unsent(&names(), 1).map(|taken| taken.count()), Some(11));
    profiles.sample(&names(), &sample(Owner::Class(ClassId(0)), vec![0]));
    // While memory is short nothing is kept.
    profiles.keep_part(0);
    profiles.sample(&names(), &sample(Owner::Class(ClassId(0)), vec![0]));
    assert_eq!((profiles.unsent().entries, profiles.take_unsent_dropped()), (0, 2));
    profiles.keep_part(1);
    profiles.sample(&names(), &sample(Owner::Class(ClassId(0)), vec![0]));
    assert_eq!(profiles.unsent().entries, 1);
}
