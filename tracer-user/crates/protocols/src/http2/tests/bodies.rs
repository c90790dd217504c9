//! Bodies longer than the capture limit, with the kernel's fragments of their frames.

use super::*;

/// Fragments that the eBPF program carries beside an operation's front: the beginning of each frame. `frames` are the
/// stream positions where frames begin; the operation is `from..to`.
fn pieces_of(stream: &[u8], frames: &[usize], (from, to): (usize, usize)) -> Vec<u8> {
    let mut fragments = Vec::new();
    for at in frames.iter().copied().filter(|at| (from..to).contains(at)) {
        let carried = HEADER + if stream[at + 3] == DATA { 7 } else { 503 };
        let next = frames.iter().copied().find(|next| *next > at).unwrap_or(stream.len());
        let bytes = &stream[at..(at + carried).min(next).min(to)];
        fragments.extend_from_slice(&((at - from) as u64 | (bytes.len() as u64) << 32).to_ne_bytes());
        fragments.extend_from_slice(bytes);
        fragments.resize(fragments.len().next_multiple_of(8), 0);
    }
    fragments
}

/// A head takes several frames where it is longer than one, and the kernel carries each as a piece of its own.
#[test]
fn a_head_of_several_frames_behind_the_front_is_read_whole() {
    // A literal that enters no table; its length as RFC 7541 §5.1 writes 20,000.
    let token = [&[0, 7][..], b"x-token", &[0x7f, 0xa1, 0x9b, 1], &vec![b'q'; 20_000]].concat();
    let block = [get("/abc"), token].concat();
    let (first, rest) = block.split_at(16_384);
    let front = [preface(), headers(END_STREAM, 1, &get("/a"))].concat();
    let frames = [frame(HEADERS, END_STREAM, 3, first), frame(CONTINUATION, END_HEADERS, 3, rest)];
    let next = headers(END_STREAM, 5, &get("/d"));
    let stream = [&front[..], &frames[0], &frames[1], &next].concat();
    let mut fragments = Vec::new();
    let mut place = front.len();
    for piece in [&frames[0], &frames[1], &next] {
        fragments.extend_from_slice(&(place as u64 | (piece.len() as u64) << 32).to_ne_bytes());
        fragments.extend_from_slice(piece);
        fragments.resize(fragments.len().next_multiple_of(8), 0);
        place += piece.len();
    }
    let mut conversation = ConnectionParser::new(false);
    let mut events = Vec::new();
    let at = Stamp { nanos: 1, pid: 1, tid: 1, reads: 0 };
    let (head, len) = (&stream[..front.len() + 20], stream.len() as u64);
    let asked = Chunk { dir: Direction::Rx, pos: 0, len, head, tail: &[], fragments: &fragments, at, arrived: 0 };
    conversation.bytes(&asked, &Settings::default(), &mut events);
    let reply = [1u32, 3, 5].map(|key| headers(END_STREAM, key, OK)).concat();
    let (head, len) = (&reply[..], reply.len() as u64);
    let answered = Chunk { dir: Direction::Tx, pos: 0, len, head, tail: &[], fragments: &[], at, arrived: 0 };
    conversation.bytes(&answered, &Settings::default(), &mut events);
    let names: Vec<String> =
        summary(&events).iter().map(|line| line.split(" @").next().unwrap_or_default().into()).collect();
    assert_eq!(names, ["GET /a", "GET /abc", "GET /d"]);
    assert!(!events.iter().any(|event| matches!(event, ExchangeEvent::HeadsCut { .. })), "{events:?}");
}

proptest! {
    /// Interleaved bodies of several streams, whose frames begin anywhere in operations of any length.
    #[test]
    fn long_bodies_at_once_are_whole_where_frames_headers_are_carried(
        order in proptest::collection::vec(0usize..4, 40),
        sizes in proptest::collection::vec(0usize..16_384, 40),
        cuts in proptest::collection::vec(1usize..70_000, 30),
        front in 0usize..1024,
    ) {
        let mut frames = vec![PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])];
        frames.extend([(1, "/0"), (3, "/1"), (5, "/2"), (7, "/3")].map(|(key, path)| headers(0, key, &get(path))));
        for (which, size) in order.iter().zip(&sizes) {
            frames.push(data(false, *which as u32 * 2 + 1, *size));
        }
        frames.extend((0..4).map(|which| data(true, which * 2 + 1, 0)));
        let stream = frames.concat();
        let begins: Vec<usize> = frames.iter().scan(0, |at, frame| { *at += frame.len(); Some(*at - frame.len()) }).collect();
        let mut conversation = ConnectionParser::new(false);
        let (mut events, mut from) = (Vec::new(), 0usize);
        let first = begins[6];
        for (nth, cut) in [first].into_iter().chain(cuts).chain([usize::MAX]).enumerate() {
            let to = from.saturating_add(cut).min(stream.len());
            let fragments = if nth == 0 { Vec::new() } else { pieces_of(&stream, &begins, (from, to)) };
            let head = &stream[from..if nth == 0 { to } else { to.min(from + 20 + front) }];
            let at = Stamp { nanos: nth as u64 + 1, pid: 1, tid: 1, reads: 0 };
            let len = (to - from) as u64;
            let chunk = Chunk { dir: Direction::Rx, pos: from as u64, len, head, tail: &[], fragments: &fragments, at, arrived: 0 };
            if len > 0 {
                conversation.bytes(&chunk, &Settings::default(), &mut events);
            }
            from = to;
        }
        let reply = [1u32, 3, 5, 7].map(|key| headers(END_STREAM, key, OK)).concat();
        let at = Stamp { nanos: 99, pid: 1, tid: 1, reads: 0 };
        let len = reply.len() as u64;
        let chunk = Chunk { dir: Direction::Tx, pos: 0, len, head: &reply, tail: &[], fragments: &[], at, arrived: 0 };
        conversation.bytes(&chunk, &Settings::default(), &mut events);
        let lines = summary(&events);
        prop_assert_eq!(lines.len(), 4, "{:?}", lines);
        for (which, line) in lines.iter().enumerate() {
            let of = |(_, size): (&usize, &usize)| HEADER + *size;
            let mine = order.iter().zip(&sizes).filter(|(whose, _)| **whose == which);
            let bytes = HEADER + get("/0").len() + mine.map(of).sum::<usize>() + HEADER;
            let wanted = format!("GET /{which} @1 -> 200 @99 complete {bytes}/10/0 @99");
            prop_assert_eq!(line, &wanted);
        }
    }
}
