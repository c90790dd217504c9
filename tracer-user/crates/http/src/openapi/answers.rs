//! Shapes of what the routes answer.

use super::shape::Shape::{
    self, Any, Bool, Both, Count, Integer, List, Map, Nullable, Number, Object, Optional, Text, Word,
};

const NUMBER_OR_NULL: Shape = Nullable(&Number);
pub(super) const TEXT_OR_NULL: Shape = Nullable(&Text);
pub(super) const INSTANT_OR_NULL: Shape = Nullable(&Integer);
const NUMBERS: Shape = List(&Number);

pub(super) const ASKED: Shape = Object(&[("from", INSTANT_OR_NULL), ("to", INSTANT_OR_NULL)]);
/// What was asked for, and what memory has of it.
pub(super) const KEPT: Shape = Both(&[ASKED, Object(&[("kept_from", INSTANT_OR_NULL), ("kept_to", INSTANT_OR_NULL)])]);

const RUNTIME: Shape = Object(&[
    ("name", Text),
    ("version", Text),
    ("state", Text),
    ("meaning", Text),
    ("wakes", Bool),
    ("wakes_state", Text),
    ("wakes_meaning", Text),
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
pub(super) const SERVICE_ROW: Shape = Object(&[
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
pub(super) const CLASS_ROW: Shape = Both(&[
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
const TOTALS: Shape = Object(&[
    ("count", Count),
    ("errors", Count),
    ("unfinished", Count),
    ("duration_total_s", Number),
    ("queue_total_s", Number),
    ("cpu_total_s", Number),
    ("runqueue_total_s", Number),
    ("blocked_total_s", Number),
    ("downstream_total_s", Number),
]);
pub(super) const ROOT_ROW: Shape = Both(&[
    CLASS_NAME,
    Object(&[
        ("root", Word(&["class", "unknown", "other", "open"])),
        ("root_service", TEXT_OR_NULL),
        ("root_class", TEXT_OR_NULL),
    ]),
    TOTALS,
]);
pub(super) const TIERS: Shape = Object(&[
    ("root_service", Text),
    ("root_class", Text),
    ("count", Count),
    ("cpu_total_s", Number),
    ("cpu_s", NUMBER_OR_NULL),
    (
        "tiers",
        List(&Both(&[
            Object(&[
                ("service_name", Text),
                ("classes", List(&Both(&[Object(&[("request_class", Text), ("protocol", Text)]), TOTALS]))),
            ]),
            TOTALS,
        ])),
    ),
]);
pub(super) const EDGE: Shape = Object(&[
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
pub(super) const SERIES: Shape = Both(&[
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
pub(super) const DURATIONS: Shape = Object(&[
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
pub(super) const BUILD: Shape = Object(&[("service_name", Text), ("build", Text), ("from", Count), ("to", Count)]);
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
    ("process_end", Optional(&Text)),
    ("exception_type", Optional(&Text)),
    ("spans", Count),
    ("failed_spans", Count),
]);
pub(super) const TRANSACTIONS: Shape = Object(&[
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
    ("connect_start_ns", Optional(&Integer)),
    ("tls_start_ns", Optional(&Integer)),
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
const FAILED_AT: Shape = Object(&[
    ("span_id", Text),
    ("service_name", Text),
    ("request_class", Text),
    ("error_type", Text),
    ("exception_type", Optional(&Text)),
    ("exception_function", Optional(&Text)),
    ("exception_file", Optional(&Text)),
    ("exception_line", Optional(&Count)),
]);
const LOG_LINE: Shape = Object(&[
    ("span_id", Text),
    ("service_name", Text),
    ("time_ns", Integer),
    ("file", Text),
    ("offset", Nullable(&Count)),
    ("bytes", Count),
    ("text", TEXT_OR_NULL),
    ("cut", Bool),
]);
pub(super) const TRANSACTION: Shape = Object(&[
    ("trace_id", Text),
    ("critical_path", List(&STEP)),
    ("failed_at", Nullable(&FAILED_AT)),
    ("spans", List(&SPAN_ROW)),
    ("log_lines", List(&LOG_LINE)),
    ("log_lines_dropped", Count),
    ("log_texts", Bool),
]);
const FUNCTION: Shape = Object(&[
    ("function", Text),
    ("file", TEXT_OR_NULL),
    ("code", Text),
    ("self_s", Number),
    ("total_s", Number),
    ("self_share", Number),
    ("total_share", Number),
    ("samples", Count),
    ("self_share_interval", List(&Number)),
    ("called_by", List(&Object(&[("function", Text), ("file", TEXT_OR_NULL), ("self_s", Number)]))),
    ("classes", List(&Object(&[("request_class", Text), ("self_share", Number), ("total_share", Number)]))),
]);
pub(super) const HOTSPOTS: Shape = Object(&[
    ("service_name", TEXT_OR_NULL),
    ("request_class", TEXT_OR_NULL),
    ("kind", Text),
    ("seconds", Number),
    ("functions", List(&FUNCTION)),
    ("classes", List(&Object(&[("request_class", Text), ("seconds", Number)]))),
]);
const CALLER_FRAME: Shape = Object(&[
    ("function", Text),
    ("file", TEXT_OR_NULL),
    ("line", Optional(&Count)),
    ("code", Word(&["application", "third_party", "kernel", "unknown"])),
]);
const CALLER: Shape =
    Object(&[("function", Text), ("file", TEXT_OR_NULL), ("line", Optional(&Count)), ("calls", Count)]);
const CALL_SITE: Shape = Object(&[
    ("function", TEXT_OR_NULL),
    ("file", TEXT_OR_NULL),
    ("line", Optional(&Count)),
    ("calls", Count),
    ("share", Number),
    ("callers", List(&CALLER)),
    ("stacks", List(&Object(&[("calls", Count), ("frames", List(&CALLER_FRAME))]))),
    ("more_stacks", Count),
]);
pub(super) const CALL_SITES: Shape = Object(&[
    ("service_name", Text),
    ("request_class", Text),
    ("calls_with_stack", Count),
    ("sites", List(&CALL_SITE)),
    ("sites_total", Count),
]);
pub(super) const DIMENSIONS: Shape = Object(&[(
    "dimensions",
    List(&Object(&[
        ("name", Text),
        ("values", List(&Object(&[("value", Text), ("requests", Count)]))),
        ("values_max", Count),
    ])),
)]);
pub(super) const SLOW: Shape = Object(&[
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
const RUNNING_CALL: Shape = Object(&[
    ("span_id", Text),
    ("request_class", Text),
    ("protocol", Text),
    ("peer", Text),
    ("peer_port", Count),
    ("age_s", Number),
    ("certain", Bool),
]);
const THREAD_STATE: Shape = Object(&[
    ("name", Text),
    ("state", Word(&["running", "lock", "socket", "pipe", "disk", "poll", "sleep", "child", "stopped", "other"])),
    ("kernel_function", Text),
]);
pub(super) const RUNNING: Shape = Object(&[
    ("trace_id", Text),
    ("span_id", Text),
    ("service_name", Text),
    ("request_class", Text),
    ("protocol", Text),
    ("side", Word(&["server", "client"])),
    ("pid", Count),
    ("tid", Count),
    ("peer", Text),
    ("peer_port", Count),
    ("start_ns", Integer),
    ("age_s", Number),
    ("p99_s", NUMBER_OR_NULL),
    ("longer_than_p99", Bool),
    ("replying", Bool),
    ("queue_s", Number),
    ("cpu_s", Number),
    ("runqueue_s", Number),
    ("blocked_s", Number),
    ("calls", List(&RUNNING_CALL)),
    ("calls_open", Count),
    ("thread", Nullable(&THREAD_STATE)),
]);
pub(super) const TAKEN: Shape = Object(&[
    ("at_s", Number),
    ("weight_s", Number),
    ("count", Count),
    ("kind", Text),
    ("thread", Count),
    ("stack", List(&Text)),
]);
pub(super) const FINDING: Shape = Object(&[
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
pub(super) const EVIDENCE: Shape = Both(&[
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
pub(super) const SERVICE_CLASSES: Shape = Object(&[
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
pub(super) const INSTRUMENTATION: Shape = Object(&[
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
pub(super) const HEALTH: Shape = Object(&[
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
pub(super) const WORKLOADS: Shape = Object(&[
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
pub(super) const SUBSYSTEM: Shape = Object(&[
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
            ("cpu_s", NUMBER_OR_NULL),
            ("book_cpu_s", NUMBER_OR_NULL),
            ("commands", List(&Object(&[("command", Text), ("calls", Count), ("time_s", Number)]))),
            (
                "users",
                List(&Object(&[
                    ("user", Text),
                    ("database", Text),
                    ("sessions", Count),
                    ("statements", Nullable(&Count)),
                    ("time_s", NUMBER_OR_NULL),
                ])),
            ),
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
pub(super) const ACTIVITY: Shape = Object(&[
    ("service_name", Text),
    ("request_class", Text),
    ("windows", Count),
    ("basis", Word(&["hour", "all"])),
    ("resources", Map(&Any)),
    ("recommended", Object(&[("goal", Text), ("response_s", NUMBER_OR_NULL)])),
    ("shifts", List(&Object(&[("shift", Text), ("windows", Count), ("resources", Map(&Any))]))),
]);
pub(super) const PEERS: Shape =
    Object(&[("enabled", Bool), ("listen", TEXT_OR_NULL), ("peers", List(&Map(&Any))), ("outcomes", Map(&Count))]);
/// Body and answer of a change of the sampling rate.
pub(super) const SAMPLING: Shape = Object(&[("hertz", Count)]);

/// Where a recording of the last seconds is.
pub(super) const HINDSIGHT: Shape = Object(&[("path", Text)]);

/// Rows of a report, by the report's name; their columns are in `docs/declared-transactions.md`.
pub(super) const REPORT: Shape = Map(&List(&Map(&Any)));
