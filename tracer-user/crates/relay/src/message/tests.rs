//! Messages and their encoding: round trips, arbitrary input, and size.

use proptest::prelude::*;

use super::*;

fn some_key() -> impl Strategy<Value = RequestKey> {
    any::<[u32; 3]>().prop_map(|[opener, accepting, seq]| RequestKey { opener, accepting, seq })
}

fn some_carried() -> impl Strategy<Value = Option<Arc<PropagatedContext>>> {
    let member = ("[a-z]{1,4}", "[a-zé%]{0,9}").prop_map(|(name, value)| (Arc::<str>::from(name), Box::from(value)));
    let members = proptest::collection::vec(member, 0..3);
    ("[a-z=,é]{0,30}", members, "[a-z]{0,9}").prop_map(|(state, mut baggage, class)| {
        // A member's name stands once.
        baggage.dedup_by(|one, other| one.0 == other.0);
        let carried = PropagatedContext { state: state.into(), baggage, service_class: class.into() };
        (carried != PropagatedContext::default()).then(|| Arc::new(carried))
    })
}

fn some_message() -> impl Strategy<Value = Message> {
    let context = (some_key(), 1u128.., 1u64.., any::<(bool, bool, Option<u8>)>(), "[a-z]{0,4}", "[a-zé ]{0,90}");
    let root = prop_oneof![
        Just(ContextRoot::Unknown),
        Just(ContextRoot::Callee),
        ("[a-z]{1,4}", "[a-z ]{1,9}").prop_map(|(service, class)| ContextRoot::Class(service.into(), class.into())),
    ];
    let summary = (some_key(), any::<(u64, u64, u64, u64, i64, u16, bool)>());
    prop_oneof![
        (context, some_carried(), root).prop_map(
            |((key, trace, parent, (settled, broadcast, flags), service, class), carried, root)| {
                let trace_flags = flags.map(TraceFlags::new);
                let (service, class) = (text(service.as_bytes()), text(cut(&class).as_bytes()));
                let (trace, parent) = (TraceId(trace), SpanId(parent));
                let context =
                    Context { key, trace, parent, settled, broadcast, trace_flags, service, class, carried, root };
                Message::Context(context)
            }
        ),
        summary.prop_map(|(key, (span, duration, queue, cpu, start, status, error))| {
            Message::Summary(Summary { key, span: SpanId(span), duration, queue, cpu, start, status, error })
        }),
        Just(Message::Alive),
        (any::<(u16, u64)>(), "[a-z]{0,9}").prop_map(|((version, agent), host)| {
            Message::Hello(Hello { version, least: version / 2, agent, host: Arc::from(host) })
        }),
    ]
}

proptest! {
    #[test]
    fn messages_come_back(messages in proptest::collection::vec(some_message(), 0..12)) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let (mut bytes, mut found) = (Vec::new(), Vec::new());
        for message in &messages {
            encoder.put(message, &mut bytes);
        }
        decoder.read(&bytes, &mut found).unwrap();
        prop_assert_eq!(&found, &messages);
        // Truncated anywhere: the whole messages before the cut, or garbage; never anything else.
        for at in 0..bytes.len() {
            let mut part = Vec::new();
            let _ = Decoder::default().read(&bytes[..at], &mut part);
            prop_assert!(messages.starts_with(&part));
        }
    }

    #[test]
    fn never_panics_on_arbitrary_input(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Decoder::default().read(&bytes, &mut Vec::new());
    }
}

#[test]
fn what_later_versions_add_is_skipped() {
    let mut bytes = Vec::new();
    Encoder::default().put(&Message::Alive, &mut bytes);
    bytes.extend([200, 3, 1, 2, 3, ALIVE, 2, 9, 9]);
    let mut found = Vec::new();
    Decoder::default().read(&bytes, &mut found).unwrap();
    assert_eq!(found, [Message::Alive, Message::Alive]);
}

/// A context with everything that can be propagated.
fn laden() -> Context {
    let key = RequestKey { opener: 1, accepting: 2, seq: 3 };
    let member = |name: &str, value: &str| (Arc::from(name), Box::from(value));
    let carried = PropagatedContext {
        state: "s".repeat(512).into(),
        baggage: vec![member("tenant", "t1"), member("long", &"v".repeat(300)), member("plan", "gold")],
        service_class: "gold".into(),
    };
    let (settled, broadcast, trace_flags) = (false, false, Some(TraceFlags::of(false, true)));
    let (service, class, carried) = ("shop".into(), "GET /".into(), Some(Arc::new(carried)));
    let (trace, parent) = (TraceId(1), SpanId(1));
    let root = ContextRoot::Class("web".into(), "GET /checkout".into());
    Context { key, trace, parent, settled, broadcast, trace_flags, service, class, carried, root }
}

#[test]
fn propagated_context_is_bounded() {
    let encoded = |encoder: &mut Encoder, message: &Context| {
        let (mut bytes, mut found) = (Vec::new(), Vec::new());
        encoder.put(&Message::Context(message.clone()), &mut bytes);
        Decoder::default().read(&bytes, &mut found).map(|()| (bytes, found))
    };
    let (_, found) = encoded(&mut Encoder::default(), &laden()).unwrap();
    let [Message::Context(context)] = &found[..] else { panic!("{found:?}") };
    let carried = context.carried.as_ref().unwrap();
    assert_eq!((context.trace_flags, &*carried.service_class, carried.state.len()), (laden().trace_flags, "gold", 512));
    let names: Vec<(&str, usize)> = carried.baggage.iter().map(|(name, value)| (&**name, value.len())).collect();
    assert_eq!(names, [("tenant", 2), ("long", VALUE_MOST), ("plan", 4)], "a long value is cut");
    // With version 1 it is encoded as it was before.
    let mut old = Encoder::default();
    old.speak(1);
    let (bytes, found) = encoded(&mut old, &laden()).unwrap();
    let [Message::Context(context)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((context.carried.as_ref(), context.trace_flags), (None, laden().trace_flags));
    assert_eq!(context.root, ContextRoot::Unknown, "an agent of version 1 does not say");
    let mut plain = Encoder::default();
    assert_eq!(
        encoded(&mut plain, &Context { carried: None, root: ContextRoot::Unknown, ..laden() }).unwrap().0,
        bytes
    );
    // The encoder leaves out what is too long, and the decoder accepts it from no peer.
    let most = PropagatedContext { state: "s".repeat(CARRIED_MOST + 1).into(), ..PropagatedContext::default() };
    let (_, found) = encoded(&mut Encoder::default(), &Context { carried: Some(Arc::new(most)), ..laden() }).unwrap();
    assert!(matches!(&found[..], [Message::Context(Context { carried: None, .. })]));
    let mut bytes = Vec::new();
    for _ in 0..4 {
        framed(MORE, &mut bytes, |out| out.extend([STATE].into_iter().chain([b's'; PIECE])));
    }
    assert_eq!(Decoder::default().read(&bytes, &mut Vec::new()), Err(Garbage::Value));
    let mut longest = laden();
    let carried = Arc::make_mut(longest.carried.as_mut().unwrap());
    carried.baggage = (0..99).map(|n| member_of(n, 110)).collect();
    longest.class = "c".repeat(NAME_MOST).into();
    longest.root = ContextRoot::Class("r".repeat(NAME_MOST).into(), "q".repeat(NAME_MOST).into());
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    encoder.put(&Message::Context(longest), &mut bytes);
    assert!(bytes.len() <= CONTEXT_MOST, "{} bytes", bytes.len());
}

fn member_of(n: usize, len: usize) -> (Arc<str>, Box<str>) {
    (format!("{n:0len$}").into(), "".into())
}

#[test]
fn contexts_of_udp_questions_are_ignored() {
    // What an agent of version 3 sends: the mark with the number of times asked, the time of the answer and the
    // client's address.
    let mark = [MORE, 14, UDP_QUESTION, 1, 0, 0, 0, 0, 0, 0, 0, 7, 10, 0, 0, 1];
    let plain = Context { carried: None, ..laden() };
    let question = Context { key: RequestKey { seq: 9, ..plain.key }, ..plain.clone() };
    let settles = |context: &Context| Context { settled: true, trace: TraceId(9), ..context.clone() };
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let (mut bytes, mut found) = (mark.to_vec(), Vec::new());
    for context in [&question, &plain, &settles(&question), &settles(&plain)] {
        encoder.put(&Message::Context(context.clone()), &mut bytes);
    }
    decoder.read(&bytes, &mut found).unwrap();
    // Later messages refer to contexts by how many followed: ignored ones count.
    assert_eq!(found, [plain.clone(), settles(&plain)].map(Message::Context));
    assert_eq!((decoder.take_ignored(), decoder.take_ignored()), (2, 0));
    // A settled context, and one whose mark is truncated, are ignored too.
    for mark in [&mark[..], &[MORE, 1, UDP_QUESTION]] {
        let (mut bytes, mut found) = (mark.to_vec(), Vec::new());
        Encoder::default().put(&Message::Context(settles(&question)), &mut bytes);
        Encoder::default().put(&Message::Alive, &mut bytes);
        decoder.read(&bytes, &mut found).unwrap();
        assert_eq!((found, decoder.take_ignored()), (vec![Message::Alive], 1));
    }
}

#[test]
fn a_request_costs_less_than_a_hundred_bytes() {
    let key = RequestKey { opener: 1, accepting: 2, seq: 3 };
    let (service, class) = (Arc::from("shop"), Arc::from("GET /"));
    let context = |trace, settled| {
        let (service, class) = (Arc::clone(&service), Arc::clone(&class));
        let (trace, parent) = (TraceId(trace), SpanId(1));
        let (broadcast, trace_flags, carried) = (false, None, None);
        let root = ContextRoot::Unknown;
        let context = Context { key, trace, parent, settled, broadcast, trace_flags, service, class, carried, root };
        Message::Context(context)
    };
    let second = 1_000_000_000;
    let summary = Message::Summary(Summary {
        key,
        span: SpanId(1),
        duration: second,
        queue: second / 1000,
        cpu: second / 1000,
        start: 0,
        status: 200,
        error: false,
    });
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    encoder.put(&context(1, true), &mut bytes);
    bytes.clear();
    // The size of a call in the middle of a chain: sent twice, because its transaction is known later.
    for message in [context(1, false), context(2, true), summary] {
        encoder.put(&message, &mut bytes);
    }
    assert!(bytes.len() <= 99, "{} bytes", bytes.len());
}
