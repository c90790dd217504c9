//! The table of routes.

use super::shape::Shape::{
    self, Any, Between, Bool, Both, Count, Hex, Integer, List, Map, Nullable, Number, Object, Optional, Text, Word,
};
use super::{Answer, Parameter, Route};

macro_rules! parameters {
    ($required:literal $($id:ident $name:literal $shape:expr, $what:literal;)*) => {
        $(const $id: &Parameter = &Parameter { name: $name, shape: $shape, what: $what, required: $required };)*
    };
}

parameters! {
    true
    OF_SERVICE "service" Text, "name of a service";
    OF_CLASS "class" Text, "name of a request class";
    OF_NAME "name" Text, "name of a service";
    OF_ID "id" Text, "what the page is about";
}

parameters! {
    false
    SERVICE "service" Text, "name of a service";
    CLASS "class" Text, "name of a request class";
    FROM "from" Count, "start of the time range, nanoseconds since the epoch";
    TO "to" Count, "end of the time range, outside of it; nanoseconds since the epoch";
    SINCE "since" Text, "in place of from and to: how long ago the range begins, such as 30s, 5m or 1h";
    FROM_NS "from_ns" Count, "the name of from before";
    UNTIL_NS "until_ns" Count, "the name of to before";
    BEFORE_SERVICE "before_service" Text, "the service to compare with; the same if missing";
    BEFORE_CLASS "before_class" Text, "the class to compare with; the same if missing";
    BEFORE_FROM "before_from" Count, "start of the time range to compare with";
    BEFORE_TO "before_to" Count, "end of the time range to compare with";
    BEFORE_FROM_NS "before_from_ns" Count, "the name of before_from before";
    BEFORE_UNTIL_NS "before_until_ns" Count, "the name of before_to before";
    LIMIT "limit" Between(1, 10_000), "how many rows at most";
    LIMIT_1000 "limit" Between(1, 1000), "how many rows at most";
    LIMIT_500 "limit" Between(1, 500), "how many rows at most";
    LIMIT_256 "limit" Between(1, 256), "how many rows at most";
    CURSOR "cursor" Text, "the next_cursor of the page before: the next page";
    MIN_MS "min_ms" Number, "least duration, milliseconds";
    MAX_MS "max_ms" Number, "the duration is below this, milliseconds";
    STATUS "status" Text, "ok, error, unfinished, a code such as 404, or 5xx";
    SORT "sort" Word(&["newest", "slowest"]), "order of the list";
    KIND "kind" Word(&["cpu", "offcpu", "wall"]), "which time";
    SPAN "span" Text, "id of a slow request: only its own samples";
    ANNOTATE "annotate" Word(&["code"]), "functions of libraries and runtimes end with _[l], those without a symbol name their file; not in a comparison";
    BY "by" Word(&["command", "user", "cgroup", "unit"]), "how processes are grouped";
    FORMAT "format" Word(&["json", "csv"]), "form of the answer";
    TRACE_ID "trace_id" Hex(32), "32 hexadecimal digits";
    SPAN_ID "span_id" Hex(16), "16 hexadecimal digits";
    ID "id" Count, "number of a finding";
    NAME "name" Text, "name of a service";
    RANGE "range" Text, "time range of charts";
    FILE "name" Text, "a file of the console";
}

const NUMBER_OR_NULL: Shape = Nullable(&Number);
const TEXT_OR_NULL: Shape = Nullable(&Text);
const INSTANT_OR_NULL: Shape = Nullable(&Integer);
const NUMBERS: Shape = List(&Number);

const ASKED: Shape = Object(&[("from", INSTANT_OR_NULL), ("to", INSTANT_OR_NULL)]);
/// What was asked for, and what memory has of it.
const KEPT: Shape = Both(&[ASKED, Object(&[("kept_from", INSTANT_OR_NULL), ("kept_to", INSTANT_OR_NULL)])]);

const RUNTIME: Shape = Object(&[
    ("name", Text),
    ("version", Text),
    ("state", Text),
    ("meaning", Text),
    ("wakes", Bool),
    ("processes", Count),
]);
const CONTAINER: Shape = Object(&[
    ("id", Text),
    ("runtime", Optional(&Text)),
    ("pod_uid", Optional(&Text)),
    ("processes", Count),
    ("name", Optional(&Text)),
    ("image", Optional(&Text)),
    ("pod", Optional(&Text)),
    ("namespace", Optional(&Text)),
]);
const SERVICE_ROW: Shape = Object(&[
    ("service_name", Text),
    ("classes", Count),
    ("count", Count),
    ("errors", Count),
    ("unfinished", Count),
    ("rate_per_s", Number),
    ("error_rate_per_s", Number),
    ("cpu_requests_s", Number),
    ("cpu_overhead_s", Number),
    ("cpu_requests_cores", Number),
    ("cpu_overhead_cores", Number),
    ("runtimes", List(&RUNTIME)),
    ("containers", List(&CONTAINER)),
]);
const CLASS_NAME: Shape = Object(&[
    ("service_name", Text),
    ("request_class", Text),
    ("protocol", Text),
    ("side", Word(&["server", "client"])),
]);
const CLASS_ROW: Shape = Both(&[
    CLASS_NAME,
    Object(&[
        ("count", Count),
        ("errors", Count),
        // These three are not known of a range of time.
        ("unfinished", Optional(&Count)),
        ("accept_queue_s", Optional(&Number)),
        ("socket_queue_s", Optional(&Number)),
        ("rate_per_s", Number),
        ("error_rate_per_s", Number),
        ("mean_s", Number),
        ("p50_s", Number),
        ("p95_s", Number),
        ("p99_s", Number),
        ("queue_s", Number),
        ("cpu_s", Number),
        ("runqueue_s", Number),
        ("blocked_s", Number),
        ("downstream_s", Number),
        ("cpu_total_s", Number),
    ]),
]);
const EDGE: Shape = Object(&[
    ("caller_service", Text),
    ("caller_class", TEXT_OR_NULL),
    ("call_class", Text),
    ("protocol", Text),
    ("callee_service", TEXT_OR_NULL),
    ("callee_class", TEXT_OR_NULL),
    ("peer", TEXT_OR_NULL),
    ("calls", Count),
    ("errors", Count),
    ("mean_s", NUMBER_OR_NULL),
    ("rate_per_s", Number),
]);
const SERIES: Shape = Both(&[
    CLASS_NAME,
    Object(&[
        ("t", NUMBERS),
        ("rate_per_s", NUMBERS),
        ("error_rate_per_s", NUMBERS),
        ("p50_s", NUMBERS),
        ("p95_s", NUMBERS),
        ("p99_s", NUMBERS),
        ("mean_s", NUMBERS),
        ("cpu_s", NUMBERS),
        ("queue_s", NUMBERS),
        ("runqueue_s", NUMBERS),
        ("blocked_s", NUMBERS),
        ("downstream_s", NUMBERS),
    ]),
]);
const DURATIONS: Shape = Object(&[
    ("service_name", Text),
    ("request_class", Text),
    ("range", KEPT),
    ("window_s", Number),
    ("bounds_s", NUMBERS),
    (
        "windows",
        List(&Object(&[("start_ns", Count), ("length_s", Number), ("steps", List(&Count)), ("counts", List(&Count))])),
    ),
]);
const BUILD: Shape = Object(&[("service_name", Text), ("build", Text), ("from", Count), ("to", Count)]);
const TRANSACTION_ROW: Shape = Object(&[
    ("trace_id", Text),
    ("service_name", Text),
    ("request_class", Text),
    ("start_ns", Integer),
    ("duration_s", Number),
    ("status", Nullable(&Count)),
    ("failure", Optional(&Text)),
    ("error", Bool),
    ("outcome", Text),
    ("spans", Count),
    ("failed_spans", Count),
]);
const TRANSACTIONS: Shape = Object(&[
    ("transactions", List(&TRANSACTION_ROW)),
    ("matched", Count),
    ("next_cursor", TEXT_OR_NULL),
    ("range", Nullable(&ASKED)),
    ("fresh", Object(&[("rows", Count), ("for_s", Number)])),
    ("memory", Object(&[("transactions", Count), ("forgotten", Count), ("complete_from", INSTANT_OR_NULL)])),
]);
const SPAN_ROW: Shape = Object(&[
    ("trace_id", Text),
    ("span_id", Text),
    ("parent_span_id", TEXT_OR_NULL),
    ("links", Optional(&List(&Object(&[("trace_id", Text), ("span_id", Text)])))),
    ("links_dropped", Optional(&Count)),
    ("messages_unread", Optional(&Count)),
    ("parent_from", Optional(&Text)),
    ("service_name", Text),
    ("request_class", Text),
    ("protocol", Text),
    ("side", Word(&["server", "client"])),
    ("host", Text),
    ("pid", Count),
    ("start_ns", Integer),
    ("duration_s", Number),
    ("queue_s", Number),
    ("accept_queue_s", NUMBER_OR_NULL),
    ("socket_queue_s", NUMBER_OR_NULL),
    ("pool_queue_s", Optional(&Number)),
    ("after_reply_s", Optional(&Number)),
    ("after_reply_cpu_s", Optional(&Number)),
    ("cpu_s", Number),
    ("runqueue_s", Number),
    ("blocked_s", Number),
    ("downstream_s", Number),
    ("switches", Count),
    ("status", Nullable(&Count)),
    ("failure", Optional(&Text)),
    ("error", Bool),
    ("grade", Word(&["certain", "confirmed", "ambiguous", "orphan"])),
    ("evidence", Text),
    ("attributes", Map(&Any)),
]);
const STEP: Shape = Object(&[
    ("span_id", Text),
    ("kind", Word(&["queue", "own", "network", "remote"])),
    ("start_ns", Integer),
    ("duration_s", Number),
]);
const TRANSACTION: Shape = Object(&[("trace_id", Text), ("critical_path", List(&STEP)), ("spans", List(&SPAN_ROW))]);
const FUNCTION: Shape = Object(&[
    ("function", Text),
    ("file", TEXT_OR_NULL),
    ("code", Text),
    ("self_s", Number),
    ("total_s", Number),
    ("self_share", Number),
    ("total_share", Number),
    ("called_by", List(&Object(&[("function", Text), ("file", TEXT_OR_NULL), ("self_s", Number)]))),
    ("classes", List(&Object(&[("request_class", Text), ("self_share", Number), ("total_share", Number)]))),
]);
const HOTSPOTS: Shape = Object(&[
    ("service_name", TEXT_OR_NULL),
    ("request_class", TEXT_OR_NULL),
    ("kind", Text),
    ("seconds", Number),
    ("functions", List(&FUNCTION)),
    ("classes", List(&Object(&[("request_class", Text), ("seconds", Number)]))),
]);
const SLOW: Shape = Object(&[
    ("span_id", Text),
    ("trace_id", Text),
    ("service_name", TEXT_OR_NULL),
    ("request_class", TEXT_OR_NULL),
    ("start_ns", Integer),
    ("duration_s", Number),
    ("threshold_s", Number),
    ("samples", Count),
    ("off_cpu_samples", Count),
    ("samples_dropped", Count),
]);
const TAKEN: Shape = Object(&[
    ("at_s", Number),
    ("weight_s", Number),
    ("count", Count),
    ("kind", Text),
    ("thread", Count),
    ("stack", List(&Text)),
]);
const FINDING: Shape = Object(&[
    ("id", Count),
    ("kind", Word(&["anomaly", "application_change", "workload_change", "environment"])),
    ("service_name", Text),
    ("request_classes", List(&Text)),
    ("since_ns", Count),
    ("until_ns", INSTANT_OR_NULL),
    ("found_ns", Count),
    ("change_ratio", Number),
    ("resource", Text),
    ("cause", Text),
    ("confidence", Number),
    ("summary", Text),
]);
const BUCKET: Shape = Object(&[
    ("utilisation", Number),
    ("windows", Count),
    ("p10_s", Number),
    ("p50_s", Number),
    ("p90_s", Number),
    ("cpu_s", Number),
    ("blocked_s", Number),
]);
const EVIDENCE: Shape = Both(&[
    FINDING,
    Object(&[
        (
            "windows",
            Object(&[
                ("t", NUMBERS),
                ("utilisation", NUMBERS),
                ("foreign", NUMBERS),
                ("steal", NUMBERS),
                ("requests", NUMBERS),
                ("cost", NUMBERS),
                ("expected", NUMBERS),
            ]),
        ),
        ("signature", Object(&[("before", List(&BUCKET)), ("after", List(&BUCKET)), ("ratio", NUMBER_OR_NULL)])),
        ("regression", Nullable(&Map(&Any))),
    ]),
]);
const GOAL: Shape = Object(&[("kind", Text), ("response_s", NUMBER_OR_NULL)]);
const ATTAINMENT: Shape = Object(&[
    ("service_name", Text),
    ("count", Count),
    ("errors", Count),
    ("cpu_s", Number),
    ("recent_count", Count),
    ("p50_s", NUMBER_OR_NULL),
    ("p95_s", NUMBER_OR_NULL),
    ("p99_s", NUMBER_OR_NULL),
    ("mean_s", NUMBER_OR_NULL),
    ("actual_s", NUMBER_OR_NULL),
    ("trend", Nullable(&Word(&["rising", "steady", "falling"]))),
    ("time_shares", Object(&[("queue", Number), ("runqueue", Number), ("cpu", Number), ("blocked", Number)])),
    ("attained", Nullable(&Bool)),
    ("late", Nullable(&LATE)),
]);
/// Why a goal is missed.
const LATE: Shape = Object(&[
    ("waits_for", Word(&["cpu", "work", "others"])),
    ("cpu_taken_by", List(&Object(&[("service_class", TEXT_OR_NULL), ("cpu_s", Number), ("cpu_share", Number)]))),
]);
const FEEDBACK: Shape = Object(&[
    ("nice", Count),
    ("decisions", Map(&Count)),
    (
        "last",
        Nullable(&Object(&[
            ("decision", Word(&["lowered", "relaxed", "gave_up"])),
            ("at_ns", Count),
            ("for_class", TEXT_OR_NULL),
            ("actual_to_goal_ratio", NUMBER_OR_NULL),
        ])),
    ),
]);
const SERVICE_CLASSES: Shape = Object(&[
    ("enforcement", Word(&["off", "dry-run", "on"])),
    ("threads_changed", Count),
    ("connections_changed", Count),
    ("unknown_class_requests", Count),
    (
        "service_classes",
        List(&Object(&[
            ("service_class", Text),
            ("importance", Count),
            ("cpu_priority", Text),
            ("feedback", Nullable(&FEEDBACK)),
            ("goal", GOAL),
            ("services", List(&ATTAINMENT)),
            (
                "actions",
                Object(&[("applied", Count), ("would_apply", Count), ("restored", Count), ("refused", Map(&Count))]),
            ),
            ("network_priority", Text),
            (
                "network_actions",
                Object(&[("applied", Count), ("would_apply", Count), ("restored", Count), ("refused", Count)]),
            ),
            ("end_after_s", NUMBER_OR_NULL),
            ("max_open", Nullable(&Count)),
            ("end_actions", Object(&[("ended", Map(&Count)), ("would_end", Map(&Count)), ("refused", Map(&Count))])),
        ])),
    ),
]);
/// Hotspots that are traced as functions, and why.
const INSTRUMENTATION: Shape = Object(&[
    ("enabled", Bool),
    ("budget_ratio", Number),
    ("cost_ratio", Number),
    (
        "functions",
        List(&Object(&[
            ("program", Text),
            ("function", Text),
            ("state", Word(&["traced", "waiting", "resting", "refused"])),
            ("reason", TEXT_OR_NULL),
            ("detail", TEXT_OR_NULL),
            ("cpu_ratio", Number),
            ("cost_ratio", Number),
            ("calls_per_second", NUMBER_OR_NULL),
            ("count", Count),
            ("mean_s", NUMBER_OR_NULL),
            ("cpu_mean_s", NUMBER_OR_NULL),
        ])),
    ),
    (
        "decisions",
        List(&Object(&[
            ("at_ns", Count),
            ("program", Text),
            ("function", Text),
            ("action", Word(&["added", "removed", "refused"])),
            ("reason", Text),
            ("detail", TEXT_OR_NULL),
            ("cpu_ratio", Number),
            ("cost_ratio", Number),
            ("calls_per_second", NUMBER_OR_NULL),
        ])),
    ),
    ("decision_counts", Map(&Count)),
    ("hotspots_not_kept", Count),
]);
const HEALTH: Shape = Object(&[
    ("ready", Bool),
    ("not_ready", List(&Text)),
    ("degraded", List(&Text)),
    ("host", Text),
    ("events_lost", Count),
    ("events_lost_by_reason", Map(&Count)),
    ("otlp_spans_dropped", Count),
    ("sampling_hertz", Count),
    ("profiler", Object(&[("hertz", Count), ("max_hertz", Count), ("cost_ratio", Number), ("budget_ratio", Number)])),
    ("capture_ratio", NUMBER_OR_NULL),
    (
        "cpu_s",
        Object(&[
            ("requests", Number),
            ("overhead", Number),
            ("kernel", Number),
            ("unreported", Number),
            ("idle", Number),
            ("system_busy", Number),
        ]),
    ),
    (
        "agent",
        Object(&[
            ("cpu_s", Number),
            ("cpu_cores", Number),
            ("rss_bytes", Count),
            ("memory_bytes", Count),
            ("max_cpu_cores", NUMBER_OR_NULL),
            ("max_memory_bytes", Nullable(&Count)),
        ]),
    ),
    (
        "configuration",
        Object(&[
            ("reloads_applied", Count),
            ("reloads_refused", Count),
            ("mistake", TEXT_OR_NULL),
            ("last", TEXT_OR_NULL),
            ("last_ns", Count),
        ]),
    ),
    ("shed", Object(&[("level", Count), ("what", Text), ("meaning", Text)])),
]);
const WORKLOADS: Shape = Object(&[
    ("by", Word(&["command", "user", "cgroup", "unit"])),
    (
        "workloads",
        List(&Object(&[
            ("name", Text),
            ("cpu_s", Number),
            ("requests_cpu_s", Number),
            ("overhead_cpu_s", Number),
            ("cores", Number),
            ("processes", Count),
            ("processes_started", Count),
        ])),
    ),
    ("workloads_total", Count),
    ("workloads_cpu_s", Number),
    ("kernel_cpu_s", Number),
    ("unreported_cpu_s", Number),
    ("attributed_cpu_s", Number),
    ("system_cpu_s", Number),
    ("capture_ratio", NUMBER_OR_NULL),
]);
const SUBSYSTEM: Shape = Object(&[
    ("system", Text),
    ("service_name", Text),
    ("instance", Text),
    ("pid", Nullable(&Count)),
    ("processes", Count),
    ("cpu_s", Number),
    ("proc_cpu_s", NUMBER_OR_NULL),
    ("checked_cpu_s", NUMBER_OR_NULL),
    ("capture_ratio", NUMBER_OR_NULL),
    ("components", List(&Object(&[("component", Text), ("cpu_s", Number)]))),
    (
        "own",
        Nullable(&Object(&[
            ("cpu_s", Number),
            ("book_cpu_s", Number),
            ("commands", List(&Object(&[("command", Text), ("calls", Count), ("time_s", Number)]))),
        ])),
    ),
    (
        "users",
        List(&Object(&[
            ("user", Text),
            ("database", Text),
            ("cpu_s", Number),
            ("requests_cpu_s", Number),
            ("connection_cpu_s", Number),
            ("workers_cpu_s", Number),
            ("sessions", Count),
            ("sessions_ended", Count),
            ("classes", List(&Object(&[("request_class", Text), ("cpu_s", Number)]))),
        ])),
    ),
    (
        "sessions",
        List(&Object(&[
            ("pid", Count),
            ("user", Text),
            ("database", Text),
            ("cpu_s", Number),
            ("requests_cpu_s", Number),
        ])),
    ),
    ("sessions_total", Count),
]);
/// What is usual of a class at one hour of the week, or at all of them: resources by name.
const ACTIVITY: Shape = Object(&[
    ("service_name", Text),
    ("request_class", Text),
    ("windows", Count),
    ("basis", Word(&["hour", "all"])),
    ("resources", Map(&Any)),
    ("recommended", Object(&[("goal", Text), ("response_s", NUMBER_OR_NULL)])),
    ("shifts", List(&Object(&[("shift", Text), ("windows", Count), ("resources", Map(&Any))]))),
]);
const PEERS: Shape =
    Object(&[("enabled", Bool), ("listen", TEXT_OR_NULL), ("peers", List(&Map(&Any))), ("outcomes", Map(&Count))]);
/// Body and answer of a change of the sampling rate.
pub(super) const SAMPLING: Shape = Object(&[("hertz", Count)]);

/// Rows of a report, by the report's name; their columns are in `docs/declared-transactions.md`.
const REPORT: Shape = Map(&List(&Map(&Any)));
const HTML: Answer = Answer::Media("text/html");

const PAGE: &[&Parameter] = &[CURSOR, LIMIT];
const PROFILE: &[&Parameter] = &[
    SERVICE,
    CLASS,
    KIND,
    SINCE,
    FROM,
    TO,
    FROM_NS,
    UNTIL_NS,
    BEFORE_SERVICE,
    BEFORE_CLASS,
    BEFORE_FROM,
    BEFORE_TO,
    BEFORE_FROM_NS,
    BEFORE_UNTIL_NS,
    SPAN,
];
const FOLDED: &[&Parameter] = &[
    SERVICE,
    CLASS,
    KIND,
    SINCE,
    FROM,
    TO,
    FROM_NS,
    UNTIL_NS,
    BEFORE_SERVICE,
    BEFORE_CLASS,
    BEFORE_FROM,
    BEFORE_TO,
    BEFORE_FROM_NS,
    BEFORE_UNTIL_NS,
    SPAN,
    ANNOTATE,
];
const HOTSPOT: &[&Parameter] = &[SERVICE, CLASS, KIND, SINCE, FROM, TO, FROM_NS, UNTIL_NS, SPAN, LIMIT_500];

const fn get(
    path: &'static str,
    what: &'static str,
    parameters: &'static [&'static Parameter],
    answer: Answer,
) -> Route {
    Route { method: "get", path, what, parameters, answer }
}

/// Every route.
pub(super) const ROUTES: &[Route] = &[
    get("/", "console: the host", &[RANGE], HTML),
    get("/service", "console: a service", &[OF_NAME, RANGE, FROM, TO], HTML),
    get("/class", "console: a request class", &[OF_NAME, OF_CLASS, RANGE, FROM, TO], HTML),
    get(
        "/transactions",
        "console: a list of transactions",
        &[NAME, CLASS, FROM, TO, SINCE, MIN_MS, MAX_MS, STATUS, SORT, LIMIT, CURSOR],
        HTML,
    ),
    get("/transaction", "console: a transaction", &[OF_ID], HTML),
    get("/compare", "console: two periods, classes or builds", &[NAME, CLASS, FROM, TO], HTML),
    get("/finding", "console: a finding", &[OF_ID], HTML),
    get("/workloads", "console: CPU of the host by groups of processes", &[], HTML),
    get("/health", "console: what the agent cannot see, and its cost", &[], HTML),
    get("/assets/{*name}", "scripts and styles of the console", &[FILE], Answer::Media("*/*")),
    get("/metrics", "Prometheus metrics", &[], Answer::Media("text/plain")),
    get("/healthz", "liveness", &[], Answer::Media("text/plain")),
    get("/readyz", "readiness", &[], Answer::Media("text/plain")),
    get("/api/v1/openapi.json", "this document", &[], Answer::Json(Map(&Any))),
    get(
        "/api/v1/services",
        "services",
        PAGE,
        Answer::Json(Object(&[("services", List(&SERVICE_ROW)), ("next_cursor", TEXT_OR_NULL)])),
    ),
    get(
        "/api/v1/classes",
        "request classes, since the start or in a time range",
        &[SERVICE, CLASS, FROM, TO, SINCE, CURSOR, LIMIT],
        Answer::Json(Object(&[
            ("classes", List(&CLASS_ROW)),
            ("next_cursor", TEXT_OR_NULL),
            ("range", Nullable(&KEPT)),
        ])),
    ),
    get("/api/v1/service-classes", "goals and attainment", &[], Answer::Json(SERVICE_CLASSES)),
    get("/api/v1/instrumentation", "hotspots traced as functions", &[], Answer::Json(INSTRUMENTATION)),
    get("/api/v1/arm/definitions", "declared transactions", &[FORMAT], Answer::JsonOrCsv(REPORT)),
    get("/api/v1/arm/measurements", "their measurements", &[FORMAT], Answer::JsonOrCsv(REPORT)),
    get("/api/v1/arm/users", "their measurements by user", &[FORMAT], Answer::JsonOrCsv(REPORT)),
    get("/api/v1/arm/metrics", "their metrics", &[FORMAT], Answer::JsonOrCsv(REPORT)),
    get(
        "/api/v1/edges",
        "who calls whom",
        &[SERVICE, CURSOR, LIMIT],
        Answer::Json(Object(&[("edges", List(&EDGE)), ("next_cursor", TEXT_OR_NULL)])),
    ),
    get("/api/v1/workloads", "the host's CPU by groups of processes", &[BY, LIMIT_1000], Answer::Json(WORKLOADS)),
    get(
        "/api/v1/subsystems",
        "CPU of databases by component, user and session",
        &[],
        Answer::Json(Object(&[("subsystems", List(&SUBSYSTEM))])),
    ),
    get(
        "/api/v1/profiles/activity",
        "what is usual for request classes at this hour of the week",
        &[SERVICE, CLASS],
        Answer::Json(Object(&[("window_s", Number), ("shift", Text), ("profiles", List(&ACTIVITY))])),
    ),
    get(
        "/api/v1/series",
        "request classes over time",
        &[SERVICE, CLASS, FROM, TO, SINCE],
        Answer::Json(Object(&[("window_s", Number), ("series", List(&SERIES)), ("range", KEPT)])),
    ),
    get(
        "/api/v1/durations",
        "requests of a class by time and duration",
        &[OF_SERVICE, OF_CLASS, FROM, TO, SINCE],
        Answer::Json(DURATIONS),
    ),
    get(
        "/api/v1/builds",
        "when services ran which program",
        &[SERVICE],
        Answer::Json(Object(&[("builds", List(&BUILD))])),
    ),
    get(
        "/api/v1/findings",
        "what changed",
        &[SERVICE, CLASS, FROM, TO, SINCE, LIMIT, CURSOR],
        Answer::Json(Object(&[("findings", List(&FINDING)), ("next_cursor", TEXT_OR_NULL), ("range", ASKED)])),
    ),
    get("/api/v1/findings/{id}", "what a finding rests on", &[ID], Answer::Json(EVIDENCE)),
    get(
        "/api/v1/transactions",
        "transactions that are kept",
        &[SERVICE, CLASS, FROM, TO, SINCE, MIN_MS, MAX_MS, STATUS, SORT, LIMIT, CURSOR],
        Answer::Json(TRANSACTIONS),
    ),
    get(
        "/api/v1/transactions/{trace_id}",
        "a transaction and its critical path",
        &[TRACE_ID],
        Answer::Json(TRANSACTION),
    ),
    get("/api/v1/hotspots", "functions by their time", HOTSPOT, Answer::Json(HOTSPOTS)),
    get(
        "/api/v1/slow-requests",
        "slow requests with samples of their own",
        &[SERVICE, CLASS, FROM, TO, SINCE, LIMIT_256, CURSOR],
        Answer::Json(Object(&[
            ("slow_requests", List(&SLOW)),
            ("next_cursor", TEXT_OR_NULL),
            ("range", Both(&[ASKED, Object(&[("kept_from", INSTANT_OR_NULL)])])),
        ])),
    ),
    get(
        "/api/v1/slow-requests/{span_id}",
        "one of them and its samples",
        &[SPAN_ID],
        Answer::Json(Both(&[SLOW, Object(&[("taken", List(&TAKEN))])])),
    ),
    get("/api/v1/health", "state and cost of the agent", &[], Answer::Json(HEALTH)),
    get("/api/v1/peers", "agents of other hosts", &[], Answer::Json(PEERS)),
    Route {
        method: "put",
        path: "/api/v1/sampling",
        what: "changes the sampling rate",
        parameters: &[],
        answer: Answer::Json(SAMPLING),
    },
    get("/flamegraph.svg", "a profile as a flame graph", PROFILE, Answer::Media("image/svg+xml")),
    get("/profile.folded", "a profile as folded stacks", FOLDED, Answer::Media("text/plain")),
    get("/profile.pb.gz", "a profile as pprof", PROFILE, Answer::Media("application/octet-stream")),
];
