//! Evidence and doubts about a span's parent: each with its text for people and its weight.
//!
//! An evidence comes from one mechanism (the thread, the task, the callback group, a fork, …); a doubt makes any evidence
//! void. [`super::combine`] makes the verdict of both.

/// What shows a call's parent, or that it has none; of a request: what shows whose CPU it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    // The thread that sent the call.
    /// It held one request.
    OneRequest,
    /// It polled since its last operation: it may have waited for the request's own call, or for a timer.
    AfterPoll,
    /// The same, and the request may have been over by then.
    MaybeOver,
    /// It has answered the request and goes on working for it.
    AfterReply,
    /// It holds a request of a connection with many streams.
    Stream,
    /// It holds several requests of one connection.
    SeveralOfConnection,
    /// It holds no request.
    NoRequest,
    /// What it had read turned out to be no request.
    WasNoRequest,
    /// It has several requests, and read nothing before the call.
    NothingRead,
    /// Its request is not known any more.
    RequestOver,
    /// The call has no operation.
    NoOperation,
    /// No other thread makes calls by the connection.
    OnlySender,
    /// The call is a round trip, whose meaning is unknown, on a thread that held one request.
    RoundTrip,
    /// The beginning of the round trip was not seen.
    RoundTripUnseen,
    /// The task contradicts the thread.
    Contradicted,

    // The process.
    /// It serves no requests.
    Begins,
    /// It was not seen to serve requests, but a record may have been lost.
    EventsLost,
    /// It was not seen to serve requests, but may serve one that it read before tracing began.
    JustBegun,
    /// It was seen to serve requests a little later.
    ServesLater,
    /// It takes jobs from a queue.
    OfJob,
    /// A thread with one request forked it.
    Forked,
    /// It was forked for the request, and ended soon after the answer.
    ForkedAndLeft,
    /// The task that answered the request forked it.
    ForkedByTask,
    /// It was forked for a request; what it did is not known yet.
    ForkUndecided,
    /// It was forked for a request and outlived it.
    ForkOutlived,
    /// A process that serves requests forked it.
    ForkOfServer,

    // A job of a queue.
    /// The thread does one job at a time.
    OneJob,
    /// The thread holds a job, but waited for something else.
    JobAfterWait,
    /// The thread holds a job, but does other work.
    JobMeanwhile,
    /// The thread took an element of a list that it asked for once.
    JobOnce,
    /// The call asks a queue for a job.
    AsksForJob,

    // The callback group of the thread.
    /// The group opened the connection.
    OpenedInGroup,
    /// The group sent it.
    InGroup,
    /// The group of a message that nothing answers sent it.
    InGroupOfMessage,
    /// The group sent it, and the group of its reply answered the request.
    BothSides,
    /// The group of its reply answered the request, and that is all.
    OnlyReply,

    // Callbacks of an event loop that tells them apart.
    /// The callback that read the request sent it.
    ReadingCallback,
    /// All its callbacks belong to one request.
    OneRequestsCallbacks,
    /// The callback is unknown.
    CallbackUnknown,
    /// The callback is of no request.
    NoCallback,
    /// No callback ties it to a request.
    Untied,

    // A task of the runtime.
    /// Which task it was is not known.
    TaskUnknown,
    /// Its runtime has tasks; which one it was is not known.
    TaskOfRuntimeUnknown,
    /// The task was made anew since.
    TaskMadeAnew,
    /// The task answered no request.
    TaskWithoutRequest,
    /// The task, or its maker, answered the request.
    TaskAnswered,
    /// The task that gave the work and took its result answered the request.
    TaskPassed,
    /// The task's request was read later.
    SentBeforeTask,
    /// A doubt is all that is known of its task.
    Doubtful(Doubt),

    // The thread that waits for a result.
    /// The thread that read the reply answered the request.
    TookReply,
    /// The thread that held the request waited for the result.
    AwaitedResult,

    // The content.
    /// It forwards the only request of that method and target.
    Forwards,
    /// The message itself names its producer.
    Delivery,
    /// The session's upgrade.
    Session,

    // Requests: whose CPU it is.
    /// Its thread ran one request at a time.
    ThreadAlone,
    /// Its callback group.
    Group,
    /// Several were answered by one operation.
    BatchShares,
    /// Several streams were sent by one operation.
    StreamShares,
    /// A round trip.
    RoundTripCost,
    /// A job that its worker hands over.
    JobHandedOver,
    /// A job whose worker may do other work.
    JobAmongOthers,
}

/// What an evidence is worth where no doubt stands against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Nothing else is possible.
    Certain,
    /// Evidence of both sides.
    Confirmed,
    /// Confirmed once the answer of the request bears it out.
    WithAnswer,
    /// One side of a callback group: confirmed once the other side agrees.
    OneSide,
}

impl Evidence {
    /// What it is worth.
    pub fn weight(self) -> Weight {
        use Evidence as E;
        match self {
            E::OneRequest
            | E::AfterPoll
            | E::AfterReply
            | E::OneJob
            | E::Forked
            // That it has no parent is certain.
            | E::Begins
            | E::AsksForJob
            | E::Delivery => Weight::Certain,
            E::OnlySender | E::ReadingCallback | E::OneRequestsCallbacks | E::BothSides => Weight::Confirmed,
            E::TaskAnswered
            | E::TaskPassed
            | E::TookReply
            | E::AwaitedResult
            | E::ForkedAndLeft
            | E::ForkedByTask
            | E::Forwards => Weight::WithAnswer,
            _ => Weight::OneSide,
        }
    }

    /// As text for people.
    pub fn text(self) -> &'static str {
        use Evidence as E;
        match self {
            E::OneRequest => "same thread, one request at a time",
            E::AfterPoll => "same thread after a wait, one request at a time",
            E::MaybeOver => "same thread after a wait, and its request may have been over",
            E::AfterReply => "same thread after the reply, one request at a time",
            E::Stream => "same thread, a stream among possible others",
            E::SeveralOfConnection => "same thread, more than one request of a connection",
            E::NoRequest => "no request held",
            E::WasNoRequest => "what its thread had read was no request",
            E::NothingRead => "several requests on one thread, no read before the call",
            E::RequestOver => "the request was over",
            E::NoOperation => "no operation",
            E::OnlySender => "same thread, one request at a time, and no other makes calls by its connection",
            E::RoundTrip => "same thread, but a round trip, whose meaning is not known",
            E::RoundTripUnseen => "its beginning was not seen",
            E::Contradicted => "its thread held another request than its task answered",
            E::Begins => "its process serves no requests: the transaction begins here",
            E::EventsLost => "its process was not seen to serve requests, but events were lost",
            E::JustBegun => "its process was not seen to serve requests, but tracing had just begun",
            E::ServesLater => "its process was seen to serve requests only afterwards",
            E::OfJob => "its process takes jobs from a queue: which job it belongs to is not known",
            E::Forked => "its process was forked for the request, by a thread with one request at a time",
            E::ForkedAndLeft => "its process was forked for the request and ended soon after the answer",
            E::ForkedByTask => "its process was forked by the task that answered the request, and ended before that",
            E::ForkUndecided => Doubt::ForkUndecided.text(),
            E::ForkOutlived => Doubt::ForkOutlived.text(),
            E::ForkOfServer => "its process was forked by one that serves requests, for an unknown request or none",
            E::OneJob => "same thread, one job at a time",
            E::JobAfterWait => "its thread holds a job, but waited for something else before",
            E::JobMeanwhile => "its thread holds a job, but does other work meanwhile",
            E::JobOnce => "its thread took an element of a list, but never asked that list again before",
            E::AsksForJob => "it asks a queue for the next job",
            E::OpenedInGroup => "connection opened in its group",
            E::InGroup => "sent in its group",
            E::InGroupOfMessage => "sent in the group of a message that nothing answers",
            E::BothSides => "sent in its group, its reply answered it",
            E::OnlyReply => "only its reply answered it",
            E::ReadingCallback => "sent in the callback that read the request",
            E::OneRequestsCallbacks => "its callbacks belong to one request",
            E::CallbackUnknown => "the callback that sent it is unknown",
            E::NoCallback => "sent in no callback of a request",
            E::Untied => "nothing ties it to a request",
            E::TaskUnknown => "several requests on one thread, and which task it was is not known",
            E::TaskOfRuntimeUnknown => "which task of its runtime it was is not known",
            E::TaskMadeAnew => "its task was made anew since",
            E::TaskWithoutRequest => "its task answered no request",
            E::TaskAnswered => "its task, or the one that made it, answered the request",
            E::TaskPassed => {
                "the task that gave the work and took its result answered the request, or one that waited for it did"
            }
            E::SentBeforeTask => "sent before the request was read that its task answered",
            E::Doubtful(doubt) => doubt.text(),
            E::TookReply => "its thread read the reply and answered the request",
            E::AwaitedResult => "the thread that held the request waited for its result",
            E::Forwards => "the only open request with its method and target, and its reply was the answer",
            E::Delivery => "a delivery: linked by what the message carries",
            E::Session => "the session that its upgrade began",
            E::ThreadAlone => "its thread ran one request at a time",
            E::Group => "charged by callback group",
            E::BatchShares => "answered at once with others: even shares of their cost",
            E::StreamShares => "sent at once with other streams: even shares of their cost",
            E::RoundTripCost => "a round trip: what it cost is not known",
            E::JobHandedOver => "its worker hands it over: only that it was taken is seen",
            E::JobAmongOthers => "its worker may do other work at the same time",
        }
    }
}

/// Why an evidence is void. It does not say that the candidate is wrong, only that another one is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Both sides were seen, and name different requests.
    SidesDisagree,
    /// The parent was found when its trace id could not reach the spans below any more.
    FoundLate,

    // Threads.
    /// Requests of the process move between threads.
    Moves,
    /// They may: too little was seen.
    MayMove,
    /// Records of the thread are missing.
    ThreadUnseen,
    /// Several threads make calls by the connection.
    SharedStream,

    // Threads that wait for results.
    /// The thread that read the reply woke several.
    SeveralWoken,
    /// The thread that took the result may have waited for a lock.
    MaybeLock,
    /// It waited for a lock.
    Lock,
    /// There were more wake-ups or calls than are remembered.
    TooMany,
    /// The process has jobs without calls, and calls that no thread waits for.
    MixedJobs,
    /// The thread made further calls before anyone took a result.
    NotLastCall,
    /// The thread that made the call answers requests.
    AnswersItself,
    /// It has several calls open.
    Juggles,

    // Tasks.
    /// The call was made before the process was known to have tasks.
    BeforeTasks,
    /// The task runs several requests.
    SeveralOfTask,
    /// The request of the task's maker was answered before.
    MakerAnswered,
    /// The task may send for all that use the connection.
    SharedConnection,
    /// Records of the process are missing.
    ProcessUnseen,
    /// The result went to two tasks.
    SeveralTasks,

    // Callbacks of an event loop that tells them apart.
    /// Several requests meet in its callbacks.
    CallbacksMeet,
    /// Callbacks end unseen.
    EndsUnseen,
    /// The call was sent before the request was read.
    SentBeforeRead,
    /// The connection carries several calls at once.
    CallbackStream,
    /// Requests of the process wait for each other's calls.
    RequestsMeet,
    /// Too few requests were seen to know that.
    FewRequests,

    // Forwarding and callback groups.
    /// Several calls forward the same content.
    ForwardedTwice,
    /// The reply was not the request's answer.
    OtherReply,
    /// The process makes calls of its own.
    NoProxy,
    /// The process reads several requests before it sends for them.
    Batches,
    /// The content is another request's than the group's.
    OtherContent,

    // Forks.
    /// Whether the process worked for another request, too, is not known.
    ForkUndecided,
    /// It outlived the request.
    ForkOutlived,
    /// It serves requests itself.
    ForkServes,
    /// The thread that forked may have had several requests.
    ForkOfSeveral,

    // Exchanges that the kernel side counts.
    /// Nothing but its class, times, bytes and costs was seen.
    CountedOnly,
}

impl Doubt {
    /// As text for people.
    pub fn text(self) -> &'static str {
        use Doubt as D;
        match self {
            D::SidesDisagree => "the two sides disagree",
            D::FoundLate => "its parent was found after spans below it were reported",
            D::Moves => "requests of its process move between threads",
            D::MayMove => "too little was seen of its process, whose threads hand requests to each other",
            D::ThreadUnseen => "something of its thread was not seen",
            D::SharedStream => "several threads make their calls by its connection, and may send each other's",
            D::SeveralWoken => "its thread woke several that waited",
            D::MaybeLock => "who took its result may have waited for a lock",
            D::Lock => "who took its result waited for a lock",
            D::TooMany => "its thread woke more, or made more calls, than can be distinguished",
            D::MixedJobs => "its process has detached jobs, and jobs without calls",
            D::NotLastCall => "not the last call of its thread before somebody took a result",
            D::AnswersItself => "its thread answers requests itself",
            D::Juggles => "its thread does several things at once",
            D::BeforeTasks => "made before it was known that its process runs several requests on one thread",
            D::SeveralOfTask => "its task runs several requests at once",
            D::MakerAnswered => "the request of its task's maker was answered before",
            D::SharedConnection => "its task may send for all that use its connection",
            D::ProcessUnseen => "something of its process was not seen while the request was open",
            D::SeveralTasks => "its task woke several that had given it work",
            D::CallbacksMeet => "several requests meet in its callbacks",
            D::EndsUnseen => "it is not seen where callbacks of its process end",
            D::SentBeforeRead => "sent before the only request it is tied to was read",
            D::CallbackStream => "its connection carries several at once, and callbacks send each other's calls",
            D::RequestsMeet => "requests of its process wait for each other's calls",
            D::FewRequests => "too little was seen of its process",
            D::ForwardedTwice => "several calls have the method and target of one request",
            D::OtherReply => "the only open request with its method and target, but its reply was not the answer",
            D::NoProxy => "its process makes calls of its own",
            D::Batches => "its process reads for several requests before it sends for them",
            D::OtherContent => "sent in the group of another request than one with its method and target",
            D::ForkUndecided => "its process was forked for a request, but whether it worked for no other is not known",
            D::ForkOutlived => "its process was forked for a request and outlived it",
            D::ForkServes => "its process was forked for a request, but serves requests itself",
            D::CountedOnly => "counted in the kernel: its caller and its calls were not looked for",
            D::ForkOfSeveral => {
                "its process was forked for a request, but the thread that forked it may have had several"
            }
        }
    }
}

/// Why a span has its parent and its grade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What speaks for it.
    For(Evidence),
    /// What speaks against the only candidate.
    Against(Doubt),
}

impl Reason {
    /// As text for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::For(evidence) => evidence.text(),
            Self::Against(doubt) => doubt.text(),
        }
    }
}
