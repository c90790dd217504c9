//! What the engine lost, refused or could not tell, by reason.

/// Losses and limits of the engine by reason; counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes a parser needed but did not get.
    pub gap_bytes: u64,
    /// Replies whose request was not seen.
    pub unpaired: u64,
    /// Connections forgotten because there were too many.
    pub connections_evicted: u64,
    /// Threads not followed because there were too many.
    pub threads_refused: u64,
    /// Spans reported early because there were too many.
    pub spans_evicted: u64,
    /// Times the services of all processes were forgotten because there were too many processes.
    pub processes_forgotten: u64,
    /// Operations of threads whose earlier records were lost: a request such a thread holds may not be its only one.
    pub threads_doubted: u64,
    /// Samples dropped because too many waited for an owner.
    pub samples_dropped: u64,
    /// Samples of an interval too long ago to know its owner.
    pub samples_late: u64,
    /// Closed connections forgotten early because too many had closed.
    pub closing_early: u64,
    /// Connections that lost their unfinished heads because the sum of all heads was too large.
    pub heads_given_up: u64,
    /// Unnamed requests: the bytes that name them were sent before tracing began, or were lost.
    pub unnamed: u64,
    /// Heads captured only in part, on connections whose later heads may refer to them.
    pub heads_cut: u64,
    /// Requests given up because too many were open on one connection.
    pub streams_given_up: u64,
    /// Detached calls left without a parent because their thread had too many waiting.
    pub detached_calls_given_up: u64,
    /// Prepared statements not remembered because a connection had too many: executions of them are unnamed.
    pub statements_refused: u64,
    /// Messages moved in batches that were not searched for links: compressed, or not captured.
    pub messages_unread: u64,
    /// Links not kept because a span had too many.
    pub links_dropped: u64,
    /// Texts of TLS libraries on connections that are not known to be encrypted, or of no known protocol.
    pub text_unbound: u64,
    /// Encrypted connections whose text was lost in between.
    pub text_rejoined: u64,
    /// TLS records received by servers whose text was not seen.
    pub text_missed: u64,
    /// Texts received by servers whose TLS record is not known: their requests get no parent from another host.
    pub text_unplaced: u64,
}
