//! The table of routes.

use super::answers::{
    ACTIVITY, ASKED, BUILD, CALL_SITES, CLASS_ROW, DIMENSIONS, DURATIONS, EDGE, EVIDENCE, FINDING, HEALTH, HINDSIGHT,
    HOTSPOTS, INSTANT_OR_NULL, INSTRUMENTATION, KEPT, PEERS, REPORT, ROOT_ROW, RUNNING, SAMPLING, SERIES,
    SERVICE_CLASSES, SERVICE_ROW, SLOW, SUBSYSTEM, TAKEN, TEXT_OR_NULL, TIERS, TRANSACTION, TRANSACTIONS, WORKLOADS,
};
use super::shape::Shape::{Any, Between, Both, Count, Hex, List, Map, Nullable, Number, Object, Text, Word};
use super::{AnswerForm, Parameter, Route};

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
    ROOT_SERVICE "root_service" Text, "name of the service that served the first request of the transaction";
    ROOT_CLASS "root_class" Text, "class of that request";
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
    LIMIT_200 "limit" Between(1, 200), "how many rows at most";
    LIMIT_256 "limit" Between(1, 256), "how many rows at most";
    CURSOR "cursor" Text, "the next_cursor of the page before: the next page";
    MIN_MS "min_ms" Number, "least duration, milliseconds";
    MAX_MS "max_ms" Number, "the duration is below this, milliseconds";
    STATUS "status" Text, "ok, error, unfinished, a code such as 404, or 5xx";
    SORT "sort" Word(&["newest", "slowest"]), "order of the list";
    KIND "kind" Word(&["cpu", "offcpu", "wall", "wakers"]), "which time";
    DIMENSION "dimension" Text, "name of a declared dimension: only requests with one value of it";
    VALUE "value" Text, "that value";
    BEFORE_VALUE "before_value" Text, "the value to compare with; the same if missing";
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

const HTML: AnswerForm = AnswerForm::Media("text/html");

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
    DIMENSION,
    VALUE,
    BEFORE_VALUE,
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
    DIMENSION,
    VALUE,
    BEFORE_VALUE,
    SPAN,
    ANNOTATE,
];
const HOTSPOT: &[&Parameter] =
    &[SERVICE, CLASS, DIMENSION, VALUE, KIND, SINCE, FROM, TO, FROM_NS, UNTIL_NS, SPAN, LIMIT_500];

const fn get(
    path: &'static str,
    what: &'static str,
    parameters: &'static [&'static Parameter],
    answer: AnswerForm,
) -> Route {
    Route { method: "get", path, what, parameters, body: None, answer }
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
    get("/running", "console: requests that are open now", &[], HTML),
    get("/health", "console: what the agent cannot see, and its cost", &[], HTML),
    get("/assets/{*name}", "scripts and styles of the console", &[FILE], AnswerForm::Media("*/*")),
    get("/metrics", "Prometheus metrics", &[], AnswerForm::Media("text/plain")),
    get("/healthz", "liveness", &[], AnswerForm::Media("text/plain")),
    get("/readyz", "readiness", &[], AnswerForm::Media("text/plain")),
    get("/api/v1/openapi.json", "this document", &[], AnswerForm::Json(Map(&Any))),
    get(
        "/api/v1/services",
        "services",
        PAGE,
        AnswerForm::Json(Object(&[("services", List(&SERVICE_ROW)), ("next_cursor", TEXT_OR_NULL)])),
    ),
    get(
        "/api/v1/classes",
        "request classes, since the start or in a time range",
        &[SERVICE, CLASS, FROM, TO, SINCE, CURSOR, LIMIT],
        AnswerForm::Json(Object(&[
            ("classes", List(&CLASS_ROW)),
            ("next_cursor", TEXT_OR_NULL),
            ("range", Nullable(&KEPT)),
        ])),
    ),
    get(
        "/api/v1/roots",
        "what request classes cost by the first request of the transaction, since the start",
        &[SERVICE, CLASS, ROOT_SERVICE, ROOT_CLASS, CURSOR, LIMIT],
        AnswerForm::Json(Object(&[("roots", List(&ROOT_ROW)), ("next_cursor", TEXT_OR_NULL)])),
    ),
    get(
        "/api/v1/tiers",
        "what requests of a class that begin transactions cost, by service of this host, since the start",
        &[OF_SERVICE, OF_CLASS],
        AnswerForm::Json(TIERS),
    ),
    get("/api/v1/service-classes", "goals and attainment", &[], AnswerForm::Json(SERVICE_CLASSES)),
    get("/api/v1/instrumentation", "hotspots traced as functions", &[], AnswerForm::Json(INSTRUMENTATION)),
    get("/api/v1/arm/definitions", "declared transactions", &[FORMAT], AnswerForm::JsonOrCsv(REPORT)),
    get("/api/v1/arm/measurements", "their measurements", &[FORMAT], AnswerForm::JsonOrCsv(REPORT)),
    get("/api/v1/arm/users", "their measurements by user", &[FORMAT], AnswerForm::JsonOrCsv(REPORT)),
    get("/api/v1/arm/metrics", "their metrics", &[FORMAT], AnswerForm::JsonOrCsv(REPORT)),
    get(
        "/api/v1/edges",
        "who calls whom",
        &[SERVICE, CURSOR, LIMIT],
        AnswerForm::Json(Object(&[("edges", List(&EDGE)), ("next_cursor", TEXT_OR_NULL)])),
    ),
    get("/api/v1/workloads", "the host's CPU by groups of processes", &[BY, LIMIT_1000], AnswerForm::Json(WORKLOADS)),
    get(
        "/api/v1/subsystems",
        "CPU of databases by component, user and session",
        &[],
        AnswerForm::Json(Object(&[("subsystems", List(&SUBSYSTEM))])),
    ),
    get(
        "/api/v1/profiles/activity",
        "what is usual for request classes at this hour of the week",
        &[SERVICE, CLASS],
        AnswerForm::Json(Object(&[("window_s", Number), ("shift", Text), ("profiles", List(&ACTIVITY))])),
    ),
    get(
        "/api/v1/series",
        "request classes over time",
        &[SERVICE, CLASS, FROM, TO, SINCE],
        AnswerForm::Json(Object(&[("window_s", Number), ("series", List(&SERIES)), ("range", KEPT)])),
    ),
    get(
        "/api/v1/durations",
        "requests of a class by time and duration",
        &[OF_SERVICE, OF_CLASS, FROM, TO, SINCE],
        AnswerForm::Json(DURATIONS),
    ),
    get(
        "/api/v1/builds",
        "when services ran which program",
        &[SERVICE],
        AnswerForm::Json(Object(&[("builds", List(&BUILD))])),
    ),
    get(
        "/api/v1/findings",
        "what changed",
        &[SERVICE, CLASS, FROM, TO, SINCE, LIMIT, CURSOR],
        AnswerForm::Json(Object(&[("findings", List(&FINDING)), ("next_cursor", TEXT_OR_NULL), ("range", ASKED)])),
    ),
    get("/api/v1/findings/{id}", "what a finding rests on", &[ID], AnswerForm::Json(EVIDENCE)),
    get(
        "/api/v1/transactions",
        "transactions that are kept",
        &[SERVICE, CLASS, FROM, TO, SINCE, MIN_MS, MAX_MS, STATUS, SORT, LIMIT, CURSOR],
        AnswerForm::Json(TRANSACTIONS),
    ),
    get(
        "/api/v1/transactions/{trace_id}",
        "a transaction and its critical path",
        &[TRACE_ID],
        AnswerForm::Json(TRANSACTION),
    ),
    get("/api/v1/dimensions", "declared dimensions and their values", &[], AnswerForm::Json(DIMENSIONS)),
    get("/api/v1/hotspots", "functions by their time", HOTSPOT, AnswerForm::Json(HOTSPOTS)),
    get(
        "/api/v1/call-sites",
        "lines that make the calls of a class",
        &[OF_SERVICE, OF_CLASS, SINCE, FROM, TO, LIMIT_200],
        AnswerForm::Json(CALL_SITES),
    ),
    get(
        "/api/v1/running",
        "requests that are open now, the oldest first",
        &[SERVICE, CLASS, MIN_MS, LIMIT],
        AnswerForm::Json(Object(&[("running", List(&RUNNING)), ("running_total", Count)])),
    ),
    get(
        "/api/v1/slow-requests",
        "slow requests with samples of their own",
        &[SERVICE, CLASS, FROM, TO, SINCE, LIMIT_256, CURSOR],
        AnswerForm::Json(Object(&[
            ("slow_requests", List(&SLOW)),
            ("next_cursor", TEXT_OR_NULL),
            ("range", Both(&[ASKED, Object(&[("kept_from", INSTANT_OR_NULL)])])),
        ])),
    ),
    get(
        "/api/v1/slow-requests/{span_id}",
        "one of them and its samples",
        &[SPAN_ID],
        AnswerForm::Json(Both(&[SLOW, Object(&[("taken", List(&TAKEN))])])),
    ),
    get("/api/v1/health", "state and cost of the agent", &[], AnswerForm::Json(HEALTH)),
    get("/api/v1/peers", "agents of other hosts", &[], AnswerForm::Json(PEERS)),
    Route {
        method: "put",
        path: "/api/v1/sampling",
        what: "changes the sampling rate",
        parameters: &[],
        body: Some(SAMPLING),
        answer: AnswerForm::Json(SAMPLING),
    },
    Route {
        method: "post",
        path: "/api/v1/hindsight",
        what: "writes the last seconds as a recording",
        parameters: &[],
        body: None,
        answer: AnswerForm::Json(HINDSIGHT),
    },
    Route {
        method: "post",
        path: "/mcp",
        what: "answers a message of the Model Context Protocol",
        parameters: &[],
        body: Some(Map(&Any)),
        answer: AnswerForm::Json(Map(&Any)),
    },
    get("/flamegraph.svg", "a profile as a flame graph", PROFILE, AnswerForm::Media("image/svg+xml")),
    get("/profile.folded", "a profile as folded stacks", FOLDED, AnswerForm::Media("text/plain")),
    get("/profile.pb.gz", "a profile as pprof", PROFILE, AnswerForm::Media("application/octet-stream")),
    get("/profile.speedscope.json", "a profile for speedscope", PROFILE, AnswerForm::Media("application/json")),
];
