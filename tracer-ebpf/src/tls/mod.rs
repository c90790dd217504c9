//! Text of encrypted connections: what TLS libraries read and write, as their callers see it.
//!
//! The object of a connection in the library is bound to a socket by the operations that the socket hooks see while a
//! call with that object is under way on the same thread, by the descriptor in the object's BIO, or by the random number
//! of the client's first message, which the object has and which passed on the socket (OpenSSL); or by the descriptor in
//! the object (Go). Text is reported where it is written before it is encrypted, and where it is read once it is in its
//! reader's buffer. Keys are never touched. `rustls.rs` has another way.

mod registers;
pub(crate) mod rustls;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_get_attach_cookie, bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{map, uprobe, uretprobe},
    maps::{LruHashMap, ProgramArray},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    event::{Header, Kind, OP_AHEAD, OP_FAULT, OP_JOINED, OP_TX, Op},
    limits::{HEAD_MAX, HEAD_REPLY, HEAD_REPLY_WHOLE, HEAD_REQUEST, TAIL_MAX, TLS_OBJECTS_MAX},
    lost::Lost,
    policy::Control,
    ring::FRAMES_ROOM,
    runtime::{UserProbe, tls},
};

use crate::{
    bound, emit, hello,
    kernel::{
        mptcp::write_seq,
        task::{Task, peek},
    },
    offsets::OFF_SK_COOKIE,
    own_stack, policy, ring, runtime,
    sched::counters,
    socket::{PREFACE, frames, payload, pieces, user},
    storage::{Frames, NOT_REPORTED, SOCK_PASSIVE, THREADS, Thread},
};

use registers::{arguments, at_location, fifth, go_registers};

/// An object of a TLS library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TlsObjectKey {
    object: u64,
    tgid: u64,
}

/// What is known of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Object {
    /// Its socket, and the socket's address in the kernel.
    cookie: u64,
    sk: u64,
    /// Text it has read and written.
    pos: [u64; 2],
    /// Whether its socket was accepted.
    accepted: u32,
    /// 1: text may have passed before it was bound, and none was reported since.
    joined: u32,
    /// `CONTENT_…`.
    content: u32,
    /// `BIO_…`.
    bio: u32,
    /// Sequence number of the first byte that it wrote, if that is known; else 0.
    begins: u32,
    /// Bytes of its texts, up to [`pieces::UNDECIDED`] and the text with which they reach it.
    carried: u32,
    /// What it wrote of late.
    wrote: tls::UnsentRecords,
    /// Where frames begin in what it reads and writes.
    frames: [Frames; 2],
}

impl Object {
    #[inline(always)]
    const fn new(cookie: u64, sk: u64, accepted: bool, joined: bool) -> Self {
        let frames = Frames { next: 0, carry: 0, have: 0, known: 0, calm: 0, reserved: [0; 5] };
        Self {
            cookie,
            sk,
            pos: [0; 2],
            accepted: accepted as u32,
            joined: joined as u32,
            content: CONTENT_UNKNOWN,
            bio: BIO_UNKNOWN,
            begins: 0,
            carried: 0,
            wrote: tls::UnsentRecords::NOTHING,
            frames: [frames; 2],
        }
    }
}

impl Object {
    /// Whether its socket is still there, and the sequence number of the next byte that it sends; 0 if it is not.
    #[inline(always)]
    fn sent_up_to(&self) -> (bool, u32) {
        // The socket may be gone, and its memory another's.
        let is_there = peek(self.sk, OFF_SK_COOKIE.load()) == self.cookie;
        (is_there, if is_there { write_seq(self.sk) } else { 0 })
    }

    /// Sequence number of the next byte that a client's object writes for its caller to send: its BIO counts what it has
    /// written since its first message. 0: not known.
    #[inline(always)]
    fn next_written(&self, object: u64, cookie: u64) -> u32 {
        let bio: u64 = user(object + in_cookie(cookie, tls::WRITTEN_BIO, tls::WRITTEN_BITS, 8));
        let count: u64 = user(bio + in_cookie(cookie, tls::WRITTEN_COUNT, tls::WRITTEN_BITS, 8));
        let next = self.begins.wrapping_add(count as u32);
        let (is_there, sent) = self.sent_up_to();
        // What it wrote is yet to be sent, at least in part; else something else was sent, too.
        if is_there && next.wrapping_sub(sent) < LONGEST as u32 { next } else { 0 }
    }
}

/// [`Object::content`]: neither of the others.
const CONTENT_UNKNOWN: u32 = 0;
/// [`Object::content`]: messages with long bodies, in which none begins: whole only if user space asks for it.
const CONTENT_BODIES: u32 = 1;
/// [`Object::content`]: HTTP/2 frames, of which the beginnings are wanted, and never all.
const CONTENT_FRAMES: u32 = 2;
/// [`Object::bio`]: not looked at yet, or it is not known where the object has it.
const BIO_UNKNOWN: u32 = 0;
/// [`Object::bio`]: what is written moves on the socket at once, and nothing is read ahead.
const BIO_SOCKET: u32 = 1;
/// [`Object::bio`]: its caller moves the bytes when it likes.
const BIO_OTHER: u32 = 2;

/// Objects whose socket is known. The least recently used go first: an object that is used again is bound again.
#[map]
static TLS_OBJECTS: LruHashMap<TlsObjectKey, Object> = LruHashMap::with_max_entries(TLS_OBJECTS_MAX, 0);

/// Tail-called after a text with frames.
#[map]
pub(crate) static FRAMES_TEXT: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// The current thread, in a process that is traced.
struct Caller {
    control: &'static Control,
    task: Task,
    tgid: u32,
    thread: &'static mut Thread,
}

#[inline(always)]
fn caller() -> Option<Caller> {
    let control = policy::control()?;
    let task = Task::current();
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return None;
    }
    // SAFETY: not null, and only this thread's programs touch it while it runs.
    let thread = unsafe { &mut *thread };
    let tgid = task.tgid();
    policy::process_traced(control, thread, tgid).then_some(Caller { control, task, tgid, thread })
}

/// hook: uprobes at the entries of functions that read, write or shake hands. Emits [`Kind::Text`] for what is written.
#[uprobe]
pub(crate) fn tls_enter(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsEnter);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(caller) = caller() else { return 0 };
    let [object, buffer, len, count] = arguments(&ctx);
    let object = if cookie & tls::POINTS != 0 { user(object + tls::SECOND_WORD) } else { object };
    let len = if cookie & tls::INT != 0 { len as i32 as i64 } else { len as i64 };
    // What is looked at ahead is no text: no room for any.
    let looks_ahead = cookie & tls::FLAGS != 0 && count & tls::LOOKS_AHEAD != 0;
    let len = if looks_ahead { 0 } else { len };
    let thread = &mut *caller.thread;
    (thread.io_cookie, thread.tls.object) = (0, object);
    (thread.tls.buffer, thread.tls.len) = (buffer, if len > 0 { len as u64 } else { 0 });
    thread.tls.count = if cookie & tls::STORES != 0 { count } else { 0 };
    (thread.tls.start, thread.tls.seq) = (NOT_REPORTED, 0);
    if cookie & tls::CALL != tls::WRITE {
        return 0;
    }
    let Some(found) = find_or_bind(&caller, object, cookie) else { return 0 };
    let thread = &mut *caller.thread;
    let len = thread.tls.len;
    let (_, seq) = found.sent_up_to();
    if found.bio == BIO_OTHER {
        // Reported when the call returns: a client may write before it has shaken hands, and write the same again.
        let counts = found.begins != 0 && has_written(cookie);
        thread.tls.seq = if counts { found.next_written(object, cookie) } else { seq } as u64;
        return 0;
    }
    let pos = found.pos[1];
    thread.tls.start = pos;
    found.pos[1] = pos + len;
    runtime::note_text::<true>(caller.task, caller.thread, caller.tgid, None);
    report::<true>(&ctx, caller, found, Text { object, pos, buffer, len, asked: 0, seq });
    0
}

/// hook: uretprobes of the same functions. Emits [`Kind::Text`] for what was read.
#[uretprobe]
pub(crate) fn tls_return(ctx: RetProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsReturn);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(caller) = caller() else { return 0 };
    let thread = &mut *caller.thread;
    let object = thread.tls.object;
    if object == 0 {
        return 0;
    }
    thread.tls.object = 0;
    let call = cookie & tls::CALL;
    // A program may do anything in a callback of the library: what it moves there proves less than the object does.
    let binds = call == tls::HANDSHAKE || !has_bio(cookie);
    if binds && thread.io_cookie != 0 && !bind(thread, object, caller.tgid, call == tls::HANDSHAKE) {
        return 0;
    }
    let returned = ctx.ret::<u64>() as i32;
    let moved = if returned <= 0 {
        0
    } else if thread.tls.count != 0 {
        user::<u64>(thread.tls.count)
    } else {
        returned as u64
    };
    // GnuTLS goes on with what it was given before when it is given nothing.
    let goes_on = call == tls::WRITE && thread.tls.buffer == 0 && thread.tls.len == 0;
    if call == tls::HANDSHAKE || (moved > thread.tls.len && !goes_on) {
        return 0;
    }
    let Some(found) = find_or_bind(&caller, object, cookie) else { return 0 };
    let thread = &mut *caller.thread;
    let (buffer, asked) = (thread.tls.buffer, thread.tls.len);
    if call == tls::WRITE && thread.tls.start != NOT_REPORTED {
        // What was not taken is written again.
        found.pos[1] = thread.tls.start + moved;
        return 0;
    }
    if moved == 0 {
        return 0;
    }
    if call == tls::WRITE {
        let pos = found.pos[1];
        found.pos[1] = pos + moved;
        let began = thread.tls.seq as u32;
        let into = if began == 0 {
            None
        } else if found.begins != 0 && has_written(cookie) {
            let next = found.next_written(object, cookie);
            let version: u32 = match in_cookie(cookie, tls::VERSION, tls::VERSION_BITS, 4) {
                0 => 0,
                to_version => user(object + to_version),
            };
            if next == 0 { None } else { tls::text_begins(moved as u32, next.wrapping_sub(began), version, pos == 0) }
        } else if found.wrote.is_placed(moved as u32, began) {
            Some(0)
        } else {
            None
        };
        let seq = into.map_or(0, |into| began.wrapping_add(into));
        runtime::note_text::<true>(caller.task, caller.thread, caller.tgid, None);
        report::<true>(&ctx, caller, found, Text { object, pos, buffer, len: moved, asked: 0, seq });
    } else {
        let pos = found.pos[0];
        runtime::note_text::<false>(caller.task, caller.thread, caller.tgid, None);
        found.pos[0] = pos + moved;
        report::<false>(&ctx, caller, found, Text { object, pos, buffer, len: moved, asked, seq: 0 });
    }
    0
}

/// hook: uprobe where OpenSSL copies text to its reader: only reads that find something come here. Emits
/// [`Kind::Text`].
#[uprobe]
pub(crate) fn tls_copy(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsCopy);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(caller) = caller() else { return 0 };
    // Handshakes are read here, too, and what is looked at ahead is read later.
    if at_location(&ctx, cookie, tls::KIND) as u8 != DATA || at_location(&ctx, cookie, tls::PEEK) as u32 != 0 {
        return 0;
    }
    let object = at_location(&ctx, cookie, tls::OBJECT);
    let Some(found) = find_or_bind(&caller, object, cookie) else {
        emit::count(Lost::TlsUnbound);
        return 0;
    };
    let [_, buffer, len, _] = arguments(&ctx);
    let asked = at_location(&ctx, cookie, tls::ASKED);
    let pos = found.pos[0];
    found.pos[0] = pos + len;
    runtime::note_text::<false>(caller.task, caller.thread, caller.tgid, None);
    report::<false>(&ctx, caller, found, Text { object, pos, buffer, len, asked, seq: 0 });
    0
}

/// hook: uprobe where OpenSSL writes a record: each comes here once, however often the call is repeated. Emits
/// [`Kind::Text`].
#[uprobe]
pub(crate) fn tls_record(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsRecord);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(caller) = caller() else { return 0 };
    // The type, and an array of as many lengths as there are records.
    let [object, kind, buffer, lengths] = arguments(&ctx);
    if kind as u8 != DATA {
        return 0;
    }
    let Some(found) = find_or_bind(&caller, object, cookie) else {
        emit::count(Lost::TlsUnbound);
        return 0;
    };
    let len: u64 = user(lengths);
    let (is_there, seq) = found.sent_up_to();
    let wrote = found.wrote;
    let direct = found.bio == BIO_SOCKET;
    let unseen = direct && wrote.records != 0 && is_there && tls::wrote_unseen(wrote.bytes, seq.wrapping_sub(wrote.at));
    if unseen || fifth(&ctx) != 1 {
        emit::count(Lost::TlsObject);
        let (bio, begins) = (found.bio, found.begins);
        *found = Object { bio, begins, ..Object::new(found.cookie, found.sk, found.accepted != 0, true) };
    }
    if fifth(&ctx) != 1 {
        // Several records at once: what follows shows as written unseen.
        return 0;
    }
    let pos = found.pos[1];
    found.pos[1] = pos + len;
    let seq = if direct {
        found.wrote = tls::UnsentRecords { bytes: len as u32, records: 1, at: seq, overhead: 0 };
        seq
    } else if found.begins != 0 && has_written(cookie) {
        found.next_written(object, cookie)
    } else if found.wrote.is_placed(len as u32, seq) && is_there {
        seq
    } else {
        0
    };
    runtime::note_text::<true>(caller.task, caller.thread, caller.tgid, None);
    report::<true>(&ctx, caller, found, Text { object, pos, buffer, len, asked: 0, seq });
    0
}

/// The object; if its socket is not known, it is that of the descriptor in the object's BIO, if it has one, else the one
/// on which the client's random number passed.
#[inline(always)]
fn find_or_bind(caller: &Caller, object: u64, cookie: u64) -> Option<&'static mut Object> {
    let known = find(object, caller.tgid);
    if !has_bio(cookie) || known.as_ref().is_some_and(|found| found.bio != BIO_UNKNOWN) {
        return known;
    }
    let (proof, bio) = match descriptor(object, cookie) {
        Some(fd) => (hello::HelloProof { sk: caller.task.socket_of(fd), accepted: false, begins: 0 }, BIO_SOCKET),
        None => {
            let to_random = in_cookie(cookie, tls::RANDOM, tls::RANDOM_BITS, 8);
            (hello::socket_of(object, to_random, caller.tgid), BIO_OTHER)
        }
    };
    let hello::HelloProof { sk, accepted, begins } = proof;
    if let Some(found) = known {
        // Bound by its handshake.
        found.bio = bio;
        if sk == found.sk {
            found.begins = begins;
        }
        return Some(found);
    }
    let socket = peek(sk, OFF_SK_COOKIE.load());
    let made = Object { bio, begins, ..Object::new(socket, sk, accepted, true) };
    if socket == 0 || !put(object, caller.tgid, &made) {
        return None;
    }
    find(object, caller.tgid)
}

/// A number in a probe's cookie, in bytes.
#[inline(always)]
fn in_cookie(cookie: u64, which: u32, bits: u64, unit: u64) -> u64 {
    (cookie >> which & bits) * unit
}

/// Whether a probe's cookie says where the object has its BIO.
#[inline(always)]
fn has_bio(cookie: u64) -> bool {
    in_cookie(cookie, tls::BIO, tls::BIO_BITS, 8) != 0
}

/// Whether a probe's cookie says where the object counts what it has written.
#[inline(always)]
fn has_written(cookie: u64) -> bool {
    in_cookie(cookie, tls::WRITTEN_BIO, tls::WRITTEN_BITS, 1) != 0
}

/// The descriptor in an object's BIO.
#[inline(always)]
fn descriptor(object: u64, cookie: u64) -> Option<u32> {
    let bio: u64 = user(object + in_cookie(cookie, tls::BIO, tls::BIO_BITS, 8));
    let method: u64 = user(bio + in_cookie(cookie, tls::METHOD, tls::METHOD_BITS, 8));
    if user::<u32>(method) & tls::HAS_DESCRIPTOR == 0 {
        return None;
    }
    Some(user(bio + in_cookie(cookie, tls::DESCRIPTOR, tls::DESCRIPTOR_BITS, 4)))
}

/// Record type of text.
const DATA: u8 = 23;

/// hook: uprobes where a library forgets a connection.
#[uprobe]
pub(crate) fn tls_free(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsFree);
    let [object, ..] = arguments(&ctx);
    let _ = TLS_OBJECTS.remove(&TlsObjectKey { object, tgid: Task::current().tgid() as u64 });
    0
}

/// hook: uprobe where `crypto/tls.(*Conn).Write` has set up its frame. Emits [`Kind::Text`].
#[uprobe]
pub(crate) fn tls_go_write(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsGoWrite);
    let Some(caller) = caller() else { return 0 };
    let [connection, buffer, len, _] = go_registers(&ctx);
    let Some((fd, found)) = bind_go(&caller, connection) else {
        emit::count(Lost::TlsUnbound);
        return 0;
    };
    let (pos, cookie) = (found.pos[1], found.cookie);
    found.pos[1] = pos + len;
    let seq = write_seq(found.sk);
    runtime::note_text::<true>(caller.task, caller.thread, caller.tgid, Some((fd, cookie)));
    report::<true>(&ctx, caller, found, Text { object: connection, pos, buffer, len, asked: 0, seq });
    0
}

/// hook: uprobe where `crypto/tls.(*Conn).Read` copies text. Emits [`Kind::Text`].
#[uprobe]
pub(crate) fn tls_go_read(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsGoRead);
    let Some(caller) = caller() else { return 0 };
    let [_, buffer, len, frame] = go_registers(&ctx);
    // Room for the first argument, above the return address.
    let connection: u64 = user(frame + 16);
    let Some((_, found)) = bind_go(&caller, connection) else {
        emit::count(Lost::TlsUnbound);
        return 0;
    };
    let pos = found.pos[0];
    found.pos[0] = pos + len;
    runtime::note_text::<false>(caller.task, caller.thread, caller.tgid, None);
    report::<false>(&ctx, caller, found, Text { object: connection, pos, buffer, len, asked: 0, seq: 0 });
    0
}

/// The object, if its socket is known.
#[inline(always)]
fn find(object: u64, tgid: u32) -> Option<&'static mut Object> {
    // SAFETY: calls of one object do not overlap; if they do, positions show a gap.
    TLS_OBJECTS.get_ptr_mut(TlsObjectKey { object, tgid: tgid as u64 }).map(|found| unsafe { &mut *found })
}

/// Binds the object to the socket that the call which just ended used. False if the object belongs to another socket.
#[inline(always)]
fn bind(thread: &Thread, object: u64, tgid: u32, handshake: bool) -> bool {
    let cookie = thread.io_cookie;
    if let Some(found) = find(object, tgid) {
        if found.cookie == cookie {
            found.sk = thread.io_sk;
            return true;
        }
        if !handshake {
            emit::count(Lost::TlsObject);
            let _ = TLS_OBJECTS.remove(&TlsObjectKey { object, tgid: tgid as u64 });
            return false;
        }
    }
    let accepted = thread.io_flags & SOCK_PASSIVE as u64 != 0;
    put(object, tgid, &Object::new(cookie, thread.io_sk, accepted, !handshake))
}

#[inline(always)]
fn put(object: u64, tgid: u32, value: &Object) -> bool {
    let done = TLS_OBJECTS.insert(&TlsObjectKey { object, tgid: tgid as u64 }, value, 0).is_ok();
    if !done {
        emit::count(Lost::TlsObject);
    }
    done
}

/// The descriptor and the record of a `crypto/tls.Conn`.
#[inline(always)]
fn bind_go(caller: &Caller, connection: u64) -> Option<(u32, &'static mut Object)> {
    let fd = runtime::go::tls_descriptor(connection)?;
    let sk = caller.task.socket_of(fd);
    let cookie = peek(sk, OFF_SK_COOKIE.load());
    if cookie == 0 {
        return None;
    }
    let known = find(connection, caller.tgid);
    if known.is_none_or(|found| found.cookie != cookie)
        && !put(connection, caller.tgid, &Object::new(cookie, sk, false, true))
    {
        return None;
    }
    find(connection, caller.tgid).map(|found| (fd, found))
}

/// A text.
struct Text {
    /// What its object is found by.
    object: u64,
    pos: u64,
    buffer: u64,
    len: u64,
    asked: u64,
    seq: u32,
}

/// Longest text reported as one: longer ones are cut, and their rest is a gap.
const LONGEST: u64 = 1 << 30;

#[inline(always)]
fn report<const TX: bool>(ctx: &impl EbpfContext, caller: Caller, object: &mut Object, text: Text) {
    report_by::<TX, false>(ctx, caller, object, text, &FRAMES_TEXT);
}

/// `OWN`: it is in the pieces of the thread's unsent text, not in one buffer. `frames`: programs of the same hook that search it for frames.
#[inline(always)]
fn report_by<const TX: bool, const OWN: bool>(
    ctx: &impl EbpfContext,
    caller: Caller,
    object: &mut Object,
    text: Text,
    frames: &ProgramArray,
) {
    let Caller { control, task, tgid, thread } = caller;
    let Text { object: address, pos, buffer, len, asked, seq } = text;
    if len == 0 || len > LONGEST {
        return;
    }
    let bytes = len as u32;
    runtime::counted(thread, tgid);
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    // Who replies sends what it accepted.
    let is_reply = (object.accepted != 0) == TX;
    let front = if is_reply && bytes > HEAD_REPLY_WHOLE as u32 { HEAD_REPLY } else { HEAD_REQUEST } as u32;
    let Some(wished) = policy::text(object.cookie) else { return };
    let wanted = if wished == 0 { front } else { wished };
    // In memory, so that the verifier forgets which it is: it would walk what follows once per answer.
    // SAFETY: the thread's own record.
    unsafe { (&raw mut thread.walk.whole).write_volatile(is_wanted_whole(object, control, wished, bytes)) };
    thread.ops = thread.ops.wrapping_add(1);
    let least = if wanted < control.head_max { wanted } else { control.head_max };
    let carried = bytes.min(least + TAIL_MAX as u32) as u64;
    let room = carried + FRAMES_ROOM as u64;
    let Some(slot) = ring::reserve(size_of::<Op>() as u64 + room, Lost::RingText) else {
        thread.walk.whole = 0;
        return;
    };
    let op = slot.record.cast::<Op>();
    // Through memory, so that the verifier forgets which value it holds.
    // SAFETY: the record is written last; until then its place is free.
    let cap = unsafe {
        op.cast::<u64>().write_volatile(least as u64);
        bound::at_most::<{ HEAD_MAX as u64 }>(op.cast::<u64>().read_volatile()) as u32
    };
    // SAFETY: in the slot, which has the room.
    let found = unsafe {
        if OWN {
            payload::own(op, thread, bytes, cap)
        } else {
            payload::one(op, &raw mut thread.walk.source, buffer, bytes, cap)
        }
    };
    let mut flags = if TX { OP_TX } else { 0 };
    if found.fault {
        flags |= OP_FAULT;
        emit::count(Lost::PayloadFault);
    }
    if object.joined != 0 {
        object.joined = 0;
        flags |= OP_JOINED;
    }
    if object.bio == BIO_OTHER {
        flags |= OP_AHEAD;
    }
    let head = bound::at_most::<{ HEAD_MAX as u64 }>(found.head as u64);
    let tail = bound::at_most::<{ TAIL_MAX as u64 }>(found.tail as u64);
    if pos == 0 && head >= PREFACE.len() as u64 {
        // SAFETY: behind the record, which the slot has room for.
        let first = unsafe { op.add(1).cast::<u32>().read_volatile() };
        let is_framed = first == u32::from_ne_bytes(PREFACE);
        if is_framed || pieces::are_bodies(first) {
            object.content = if is_framed { CONTENT_FRAMES } else { CONTENT_BODIES };
            // SAFETY: as above.
            unsafe { (&raw mut thread.walk.whole).write_volatile(0) };
        }
    }
    let len = size_of::<Op>() as u64 + head + tail;
    // SAFETY: at the beginning of the slot.
    unsafe {
        *op = Op {
            header: Header {
                kind: Kind::Text as u8,
                flags,
                cpu: bpf_get_smp_processor_id() as u16,
                len: len as u32,
                nanos: now,
                tgid,
                tid: task.tid(),
            },
            cookie: object.cookie,
            pos,
            arrived: asked,
            bytes,
            seq,
            head: head as u16,
            tail: tail as u16,
            nth: thread.ops,
            sent_cookie: 0,
            sent_pos: thread.io_path_of,
            sent_end: bytes as u64,
            sent_at: 0,
            entity: thread.entity,
            edge_seq: thread.edge_seq,
            frames: 0,
            path: thread.io_path,
            counters: counters(task, thread, now),
        };
    }
    // SAFETY: as above.
    let is_whole = unsafe { (&raw const thread.walk.whole).read_volatile() } != 0 && bytes as u64 > head;
    if (object.content == CONTENT_FRAMES || is_whole) && !found.fault {
        thread.tls.framed = address;
        thread.walk.slot = slot.park();
        // SAFETY: the caller's promise.
        unsafe { frames.tail_call(ctx, 0) };
    }
    thread.walk.whole = 0;
    slot.complete_short(len);
}

/// 1 if all of a text of `bytes` bytes is wanted, of whose front user space has asked for `wished` bytes (0: it has not asked).
#[inline(always)]
fn is_wanted_whole(object: &mut Object, control: &Control, wished: u32, bytes: u32) -> u64 {
    // Without jumps, so that the verifier follows one path.
    let is_undecided = bound::less(wished as u64, 1) & bound::less(object.carried as u64, pieces::UNDECIDED as u64);
    object.carried += bytes * is_undecided as u32;
    let is_asked_for = bound::less(HEAD_MAX as u64, wished as u64);
    let beyond = is_undecided * CONTENT_BODIES as u64 | is_asked_for * CONTENT_FRAMES as u64;
    bound::less(object.content as u64, beyond) & bound::less(HEAD_MAX as u64 - 1, control.head_max as u64)
}

/// Tail-called by the others: copies what is behind the text's front, all of it or the starts of frames.
#[uprobe]
pub(crate) fn frames_text(ctx: ProbeContext) -> u32 {
    own_stack::keep(&ctx, &FRAMES_TEXT);
    let task = Task::current();
    let thread = THREADS.get(task.0, false);
    if thread.is_null() {
        return 0;
    }
    // SAFETY: not null, and only this thread's programs touch it while it runs.
    let thread = unsafe { &mut *thread };
    let Some(slot) = ring::Slot::unpark(&thread.walk.slot) else { return 0 };
    if thread.walk.whole != 0 {
        thread.walk.whole = 0;
        pieces::copy(&raw mut thread.walk, &raw mut thread.ops, slot);
        return 0;
    }
    // SAFETY: the record was written there.
    let sends = unsafe { (*slot.record.cast::<Op>()).header.flags } & OP_TX != 0;
    let mut fragments = 0;
    (thread.walk.piece, thread.walk.out) = (0, 0);
    if let Some(found) = find(thread.tls.framed, task.tgid()) {
        let frames = if sends { &mut found.frames[1] } else { &mut found.frames[0] };
        // SAFETY: the slot has the room.
        fragments = unsafe { frames::pieces_of(&raw mut thread.walk, slot.record, frames) };
    }
    frames::complete(&raw mut thread.walk, slot, fragments);
    0
}
