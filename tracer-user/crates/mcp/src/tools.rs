//! The tools: what each is for, what it takes, which route of the API answers it, and how the answer is shown.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::arguments::{Argument, Arguments, Kind, schema};
use super::shown::{List, Shown};

macro_rules! arguments {
    ($required:literal $($id:ident $name:literal $kind:expr, $what:literal;)*) => {
        $(const $id: &Argument = &Argument { name: $name, kind: $kind, what: $what, required: $required };)*
    };
}

arguments! {
    true
    OF_SERVICE "service" Kind::Text, "name of a service, as list_services gives it";
    OF_CLASS "class" Kind::Text, "name of a request class of that service, as list_classes gives it";
    FINDING "id" Kind::Whole(1, u64::MAX, None), "number of a finding, as what_changed gives it";
    TRACE "trace_id" Kind::Hex(32), "32 hexadecimal digits, as find_transactions and running_now give them";
}

arguments! {
    false
    SERVICE "service" Kind::Text, "only this service, by its name as list_services gives it";
    CLASS "class" Kind::Text, "only this request class, by its name as list_classes gives it";
    CONTAINS "contains" Kind::Text, "only rows with this text in a name, whatever the case";
    SINCE "since" Kind::Since, "only from so long ago on: 30s, 5m, 1h";
    SIDE "side" Kind::Word(&["server", "client", "any"]), "server: requests as the service serves them; client: calls as their caller sees them";
    SORT_SERVICES "sort" Kind::Word(&["requests", "rate", "errors", "cpu"]), "most of this first; cpu: all CPU of the service since the start";
    SORT_CLASSES "sort" Kind::Word(&["requests", "rate", "errors", "p99", "mean", "cpu"]), "most of this first; cpu: all CPU of the class";
    SORT_LISTED "sort" Kind::Word(&["newest", "slowest"]), "which come first";
    MIN_MS "min_ms" Kind::Millis, "only those that last at least so long, milliseconds";
    MAX_MS "max_ms" Kind::Millis, "only those that lasted less, milliseconds";
    STATUS "status" Kind::Text, "ok, error, unfinished, a code such as 404, or 5xx";
    TIME "kind" Kind::Word(&["cpu", "offcpu", "wall", "wakers"]), "cpu: on the CPU; offcpu: waiting; wall: both; wakers: who ended the waits";
    COMPARE "compare" Kind::Flag, "also each function's share in the service's other classes";
    WINDOWS "windows" Kind::Whole(2, 200, Some(30)), "how many windows of time around the change to show, spread evenly";
    OFFSET "offset" Kind::Whole(0, 1_000_000, Some(0)), "spans to leave out at the beginning: the next part of a long transaction";
    LIMIT "limit" Kind::Whole(1, 500, Some(30)), "how many rows at most";
    LIMIT_SPANS "limit" Kind::Whole(1, 500, Some(60)), "how many spans at most";
    LIMIT_SITES "limit" Kind::Whole(1, 200, Some(10)), "how many places at most";
}

/// A tool.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    title: &'static str,
    what: &'static str,
    pub(super) arguments: &'static [&'static Argument],
    /// The route, and for one with something in its path, the argument that stands there.
    route: (&'static str, Option<&'static str>),
    /// Arguments that are parameters of the route by the same name; the others choose from its answer.
    parameters: &'static [&'static str],
    pub(super) shown: Shown,
    /// Names of functions are looked up: that may take a while.
    pub(super) is_slow: bool,
}

const fn tool(name: &'static str, title: &'static str, route: &'static str, shown: Shown) -> Tool {
    Tool { name, title, what: "", arguments: &[], route: (route, None), parameters: &[], shown, is_slow: false }
}

/// Every tool, in the order in which somebody who looks for a cause would use them.
pub(super) const TOOLS: &[Tool] = &[
    Tool {
        what: "Services of this host with their requests (count, errors, rates), the CPU these cost, the CPU of everything else \
               they do (overhead), their runtimes and containers. The place to start.",
        arguments: &[CONTAINS, SORT_SERVICES, LIMIT],
        ..tool(
            "list_services",
            "Services",
            "/api/v1/services",
            Shown::List(&List {
                list: "services",
                names: &["service_name"],
                sorts: &[
                    ("requests", &["count"]),
                    ("rate", &["rate_per_s"]),
                    ("errors", &["errors"]),
                    ("cpu", &["cpu_requests_s", "cpu_overhead_s"]),
                ],
                total: None,
                narrow: "contains narrows the question; a higher limit (500 at most) shows more",
            }),
        )
    },
    Tool {
        what: "Request classes (alike requests, such as GET /items/{id}) with count, errors, rate, latency percentiles and where \
               the time of one request goes: queue, CPU, run queue, blocked, waiting for calls (downstream). Since the agent's \
               start, or with since of that time only.",
        arguments: &[SERVICE, CONTAINS, SINCE, SIDE, SORT_CLASSES, LIMIT],
        parameters: &["service", "since"],
        ..tool(
            "list_classes",
            "Request classes",
            "/api/v1/classes",
            Shown::List(&List {
                list: "classes",
                names: &["service_name", "request_class"],
                sorts: &[
                    ("requests", &["count"]),
                    ("rate", &["rate_per_s"]),
                    ("errors", &["errors"]),
                    ("p99", &["p99_s"]),
                    ("mean", &["mean_s"]),
                    ("cpu", &["cpu_total_s"]),
                ],
                total: None,
                narrow: "service, contains and side narrow the question; a higher limit (500 at most) shows more",
            }),
        )
    },
    Tool {
        what: "Findings: what got dearer or slower, since when, by what ratio, and whether the application, the workload or the \
               environment changed. The newest first; until_ns is null while one lasts. An empty list: nothing was found.",
        arguments: &[SERVICE, CLASS, SINCE, LIMIT],
        parameters: &["service", "class", "since"],
        ..tool(
            "what_changed",
            "What changed",
            "/api/v1/findings",
            Shown::List(&List {
                list: "findings",
                names: &[],
                sorts: &[],
                total: None,
                narrow: "service, class and since narrow the question; a higher limit (500 at most) shows more",
            }),
        )
    },
    Tool {
        what: "What a finding rests on: cost per window of time before and after, beside what was expected and the load of the \
               host; service time at like load before and after; the service's CPU by a model of the windows before.",
        arguments: &[FINDING, WINDOWS],
        route: ("/api/v1/findings/", Some("id")),
        ..tool("explain_finding", "Explain a finding", "", Shown::Finding)
    },
    Tool {
        what: "Requests that are open now, the oldest first: how long, beyond what is usual for their class or not, the calls they \
               wait for, and what their threads do. What hangs?",
        arguments: &[SERVICE, CLASS, MIN_MS, LIMIT],
        parameters: &["service", "class", "min_ms", "limit"],
        ..tool(
            "running_now",
            "Running now",
            "/api/v1/running",
            Shown::List(&List {
                list: "running",
                names: &[],
                sorts: &[],
                total: Some("running_total"),
                narrow: "service, class and min_ms narrow the question; a higher limit (500 at most) shows more",
            }),
        )
    },
    Tool {
        what: "Functions that a service, or one of its classes, spends its time in: self_s in the function itself, total_s with \
               what it called; for code of libraries and the kernel the application's functions that called it.",
        arguments: &[OF_SERVICE, CLASS, SINCE, TIME, COMPARE, LIMIT],
        parameters: &["service", "class", "since", "kind"],
        is_slow: true,
        ..tool("hotspots", "Hotspots", "/api/v1/hotspots?limit=500", Shown::Hotspots)
    },
    Tool {
        what: "Lines of code of a service that make the calls of a class (a client-side class of that service): which line sends \
               this query?",
        arguments: &[OF_SERVICE, OF_CLASS, SINCE, LIMIT_SITES],
        parameters: &["service", "class", "since", "limit"],
        is_slow: true,
        ..tool(
            "call_sites",
            "Call sites",
            "/api/v1/call-sites",
            Shown::List(&List {
                list: "sites",
                names: &[],
                sorts: &[],
                total: Some("sites_total"),
                narrow: "since narrows the question; a higher limit (200 at most) shows more",
            }),
        )
    },
    Tool {
        what: "Who calls whom: caller, class of the call, callee or the address it went to, with calls, errors, mean duration and \
               rate, of the newest transactions.",
        arguments: &[SERVICE, CONTAINS, LIMIT],
        parameters: &["service"],
        ..tool(
            "who_calls_whom",
            "Who calls whom",
            "/api/v1/edges",
            Shown::List(&List {
                list: "edges",
                names: &["caller_service", "caller_class", "call_class", "callee_service", "callee_class", "peer"],
                sorts: &[],
                total: None,
                narrow: "service and contains narrow the question; a higher limit (500 at most) shows more",
            }),
        )
    },
    Tool {
        what: "Transactions that the agent keeps (the newest, the slowest, the failed and a sample of each class), with their \
               trace ids for get_transaction.",
        arguments: &[SERVICE, CLASS, SINCE, MIN_MS, MAX_MS, STATUS, SORT_LISTED, LIMIT],
        parameters: &["service", "class", "since", "min_ms", "max_ms", "status", "sort", "limit"],
        ..tool(
            "find_transactions",
            "Find transactions",
            "/api/v1/transactions",
            Shown::List(&List {
                list: "transactions",
                names: &[],
                sorts: &[],
                total: Some("matched"),
                narrow: "service, class, since, min_ms, max_ms and status narrow the question; a higher limit (500 at most) shows more",
            }),
        )
    },
    Tool {
        what: "One transaction: its spans (server: as served; client: a call as its caller sees it) with time, CPU, waits, status \
               and parents, and its critical path: the steps that determined when it ended.",
        arguments: &[TRACE, SERVICE, OFFSET, LIMIT_SPANS],
        route: ("/api/v1/transactions/", Some("trace_id")),
        ..tool("get_transaction", "One transaction", "", Shown::Transaction)
    },
    Tool {
        what: "State of the agent itself: ready or not, what is degraded, losses by reason, capture ratio (CPU accounted for ÷ CPU \
               used; 1 when nothing is missing), its own CPU and memory. How far can the other answers be trusted?",
        ..tool("agent_health", "Health of the agent", "/api/v1/health", Shown::Whole)
    },
];

impl Tool {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    /// As `tools/list` has it.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "title": self.title,
            "description": self.what,
            "inputSchema": schema(self.arguments),
            "annotations": {
                "title": self.title,
                "readOnlyHint": true,
                "destructiveHint": false,
                "idempotentHint": true,
                "openWorldHint": false,
            },
        })
    }

    /// The address of the API's answer.
    pub(super) fn path(&self, arguments: &Arguments) -> String {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (mut path, within) = (self.route.0.to_owned(), self.route.1);
        if let Some(within) = within {
            path += &encode(&arguments.written(within).unwrap_or_default());
        }
        for name in self.parameters {
            if let Some(value) = arguments.written(name) {
                let joint = if path.contains('?') { '&' } else { '?' };
                path += &format!("{joint}{name}={}", encode(&value));
            }
        }
        path
    }
}

/// The API's words for what was wrong, with tools in the place of its routes.
pub(super) fn in_words_of_tools(error: &str) -> String {
    [("/api/v1/services", "list_services"), ("/api/v1/classes", "list_classes"), ("/api/v1/findings", "what_changed")]
        .iter()
        .fold(error.to_owned(), |error, (route, tool)| error.replace(route, tool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_named_once_and_say_what_they_do() {
        let mut names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TOOLS.len());
        for tool in TOOLS {
            let json = tool.to_json();
            assert!(tool.what.len() > 40 && tool.what.len() < 500 && !tool.title.is_empty(), "{}", tool.name);
            assert_eq!(json["annotations"]["readOnlyHint"], true);
            let has = |name: &&str| tool.arguments.iter().any(|argument| argument.name == *name);
            assert!(tool.parameters.iter().all(has), "{}", tool.name);
            assert!(tool.route.1.as_ref().is_none_or(has), "{}", tool.name);
            for argument in tool.arguments {
                assert!(!argument.what.is_empty(), "{}", argument.name);
            }
        }
    }

    #[test]
    fn names_are_encoded_in_addresses() {
        let path = |tool: &str, given: Value| {
            let tool = Tool::named(tool).expect("a tool");
            let Value::Object(given) = given else { panic!("{given}") };
            tool.path(&Arguments::of(tool.arguments, given).expect("arguments"))
        };
        assert_eq!(path("list_services", json!({ "contains": "x" })), "/api/v1/services");
        assert_eq!(
            path("list_classes", json!({ "service": "a b&c", "since": "5m" })),
            "/api/v1/classes?service=a%20b%26c&since=5m"
        );
        assert_eq!(
            path("hotspots", json!({ "service": "shop", "class": "GET /\r\n" })),
            "/api/v1/hotspots?limit=500&service=shop&class=GET%20%2F%0D%0A&kind=cpu"
        );
        assert_eq!(path("explain_finding", json!({ "id": 7 })), "/api/v1/findings/7");
        let id = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(path("get_transaction", json!({ "trace_id": id })), format!("/api/v1/transactions/{id}"));
        assert_eq!(path("running_now", json!({ "min_ms": 1.5 })), "/api/v1/running?min_ms=1%2E5&limit=30");
    }

    #[test]
    fn errors_name_tools() {
        let api = "no such service: 'shp'; did you mean 'shop'? /api/v1/services lists all";
        assert_eq!(in_words_of_tools(api), "no such service: 'shp'; did you mean 'shop'? list_services lists all");
    }
}
