//! Export settings: OpenTelemetry's environment variables (specification: SDK environment variables, OTLP exporter
//! configuration), and the flag that overrides them.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// Queue size in spans (`OTEL_BSP_MAX_QUEUE_SIZE`): default and maximum.
const QUEUE: usize = 2048;
const QUEUE_MOST: usize = 65_536;
/// Spans per request (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
const BATCH: usize = 512;
/// Longest a span waits for its batch to fill (`OTEL_BSP_SCHEDULE_DELAY`).
const DELAY: Duration = Duration::from_secs(5);
/// Request timeout (`OTEL_EXPORTER_OTLP_TIMEOUT`).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two exports of metrics (`OTEL_METRIC_EXPORT_INTERVAL`).
const INTERVAL: Duration = Duration::from_secs(60);

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Finished spans.
    Traces,
    /// Everything that `/metrics` has.
    Metrics,
    /// Findings.
    Logs,
    /// Stacks by request class.
    Profiles,
}

impl Signal {
    /// The variable of this signal that corresponds to one of traces.
    fn variable(self, traces: &'static str) -> &'static str {
        macro_rules! of_each_signal {
            ($($end:literal),*) => {
                &[
                    (
                        "OTEL_TRACES_EXPORTER",
                        ["OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_PROFILES_EXPORTER"],
                    ),
                    $((
                        concat!("OTEL_EXPORTER_OTLP_TRACES_", $end),
                        [
                            concat!("OTEL_EXPORTER_OTLP_METRICS_", $end),
                            concat!("OTEL_EXPORTER_OTLP_LOGS_", $end),
                            concat!("OTEL_EXPORTER_OTLP_PROFILES_", $end),
                        ],
                    ),)*
                ]
            };
        }
        const OTHERS: &[(&str, [&str; 3])] = of_each_signal!(
            "ENDPOINT",
            "PROTOCOL",
            "HEADERS",
            "COMPRESSION",
            "TIMEOUT",
            "CERTIFICATE",
            "CLIENT_CERTIFICATE",
            "CLIENT_KEY"
        );
        let others = OTHERS.iter().find(|(of_traces, _)| *of_traces == traces).map(|(_, others)| others);
        match (self, others) {
            (Self::Metrics, Some([metrics, ..])) => metrics,
            (Self::Logs, Some([_, logs, _])) => logs,
            (Self::Profiles, Some([.., profiles])) => profiles,
            _ => traces,
        }
    }

    /// Whether it is exported: by the command line's list, else by the environment. Traces and findings are unless somebody
    /// says no, metrics and profiles if somebody says so.
    fn wanted(self, listed: &[Self], flag: Option<&str>, exporter: Option<&str>) -> bool {
        match (listed, exporter) {
            ([], Some(exporter)) => match self {
                Self::Traces => flag.is_some() || !exporter.eq_ignore_ascii_case("none"),
                Self::Logs => !exporter.eq_ignore_ascii_case("none"),
                Self::Metrics | Self::Profiles => {
                    exporter.split(',').any(|one| one.trim().eq_ignore_ascii_case("otlp"))
                }
            },
            ([], None) => matches!(self, Self::Traces | Self::Logs),
            (listed, _) => listed.contains(&self),
        }
    }
}

/// Parses a signal of the command line.
///
/// # Errors
///
/// What was expected.
pub fn signal(name: &str) -> Result<Signal, String> {
    match name {
        "traces" => Ok(Signal::Traces),
        "metrics" => Ok(Signal::Metrics),
        "logs" => Ok(Signal::Logs),
        "profiles" => Ok(Signal::Profiles),
        _ => Err("expected traces, metrics, logs or profiles".into()),
    }
}

/// Transport of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP with protobuf.
    Http,
}

/// TLS settings for `https` URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates to trust (PEM) instead of the system's (`OTEL_EXPORTER_OTLP_CERTIFICATE`).
    pub trusted: Option<PathBuf>,
    /// Client certificate and its key (PEM), for collectors that require them (`OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE`
    /// and `OTEL_EXPORTER_OTLP_CLIENT_KEY`).
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The export settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The full URL of requests.
    pub uri: Uri,
    /// Used for `https`.
    pub tls: Tls,
    /// Transport.
    pub protocol: Protocol,
    /// Additional headers, such as API keys.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Additional resource attributes.
    pub resource: Vec<(String, String)>,
    /// Request timeout.
    pub timeout: Duration,
    /// Whether to compress requests with gzip.
    pub gzip: bool,
    /// Queue size in spans.
    pub queue: usize,
    /// Most spans per request.
    pub batch: usize,
    /// Longest a span waits for its batch to fill.
    pub delay: Duration,
    /// Time between two exports of metrics.
    pub interval: Duration,
    /// Share of transactions that is exported, 0 to 1; a transaction is exported whole or not at all.
    pub ratio: f64,
}

/// Invalid export settings.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name}: {why}")]
pub struct SettingsError {
    /// The variable or flag.
    name: &'static str,
    why: String,
}

pub(super) fn error(name: &'static str, why: impl Into<String>) -> SettingsError {
    SettingsError { name, why: why.into() }
}

/// Reads the variables of `signal` through `env`; `flag` is the endpoint and `listed` the signals from the command line.
/// `None` if no export is configured.
pub fn read(
    signal: Signal,
    flag: Option<&str>,
    listed: &[Signal],
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<Settings>, SettingsError> {
    let set = |name: &'static str| {
        let name = signal.variable(name);
        env(name).filter(|value| !value.trim().is_empty()).map(|value| (name, value))
    };
    // The signal's own variable overrides the general one.
    let either = |special: &'static str, general: &'static str| set(special).or_else(|| set(general));
    let disabled = set("OTEL_SDK_DISABLED").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"));
    let exporter = set("OTEL_TRACES_EXPORTER").map(|(_, value)| value);
    if (flag.is_none() && disabled) || !signal.wanted(listed, flag, exporter.as_deref()) {
        return Ok(None);
    }
    let protocol = match either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") {
        None => None,
        Some((_, value)) if value == "grpc" => Some(Protocol::Grpc),
        Some((_, value)) if value == "http/protobuf" => Some(Protocol::Http),
        Some((name, value)) => return Err(error(name, format!("'{value}' is not grpc or http/protobuf"))),
    };
    let special = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    // Only the signal's own endpoint is used as is; the others get a path appended.
    let (name, endpoint, whole) = match (flag, special, set("OTEL_EXPORTER_OTLP_ENDPOINT")) {
        (Some(flag), ..) => ("--otlp", flag.to_owned(), false),
        (None, Some((name, value)), _) => (name, value, true),
        (None, None, Some((name, value))) => (name, value, false),
        (None, None, None) => return Ok(None),
    };
    let (protocol, uri) = target(signal, name, endpoint.trim(), whole, protocol)?;
    let mut headers = Vec::new();
    if let Some((name, value)) = either("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS") {
        for (key, value) in pairs(name, &value)? {
            let (Ok(header), Ok(mut content)) = (HeaderName::try_from(&key), HeaderValue::try_from(&value)) else {
                return Err(error(name, format!("'{key}' and what follows are no header")));
            };
            content.set_sensitive(true);
            headers.push((header, content));
        }
    }
    let resource = match set("OTEL_RESOURCE_ATTRIBUTES") {
        Some((name, value)) => pairs(name, &value)?,
        None => Vec::new(),
    };
    let gzip = match either("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION") {
        Some((_, value)) if value == "gzip" => true,
        Some((name, value)) if value != "none" => return Err(error(name, format!("'{value}' is not gzip or none"))),
        _ => false,
    };
    let millis = |found: Option<(&'static str, String)>, default: Duration| match found {
        None => Ok(default),
        Some((name, value)) => match value.trim().parse::<u64>() {
            Ok(millis @ 1..=600_000) => Ok(Duration::from_millis(millis)),
            _ => Err(error(name, format!("'{value}' is no number of milliseconds from 1 to 600000"))),
        },
    };
    let count = |name: &'static str, default: usize| match set(name) {
        None => Ok(default),
        Some((name, value)) => match value.trim().parse::<usize>() {
            Ok(count) if (1..=QUEUE_MOST).contains(&count) => Ok(count),
            _ => Err(error(name, format!("'{value}' is no number from 1 to {QUEUE_MOST}"))),
        },
    };
    let queue = count("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)?;
    let file = |special, general| either(special, general).map(|(_, path)| PathBuf::from(path));
    let certificate = file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE");
    let key = file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY");
    let tls = Tls {
        trusted: file("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        client: match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(error("OTEL_EXPORTER_OTLP_CLIENT_KEY", "expected the certificate's key")),
            (None, Some(_)) => {
                return Err(error("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "expected the key's certificate"));
            }
        },
    };
    Ok(Some(Settings {
        uri,
        tls,
        protocol,
        headers,
        resource,
        timeout: millis(either("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"), TIMEOUT)?,
        gzip,
        queue,
        batch: count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH)?.min(queue),
        delay: millis(set("OTEL_BSP_SCHEDULE_DELAY"), DELAY)?,
        interval: millis(set("OTEL_METRIC_EXPORT_INTERVAL"), INTERVAL)?,
        ratio: ratio(set("OTEL_TRACES_SAMPLER"), set("OTEL_TRACES_SAMPLER_ARG"))?,
    }))
}

/// The URL of requests, and the transport.
fn target(
    signal: Signal,
    name: &'static str,
    endpoint: &str,
    whole: bool,
    protocol: Option<Protocol>,
) -> Result<(Protocol, Uri), SettingsError> {
    let uri: Uri = endpoint.parse().map_err(|why| error(name, format!("'{endpoint}' is no URL: {why}")))?;
    let expected = "expected http://HOST:PORT or https://HOST:PORT, such as http://localhost:4318";
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
    let scheme = scheme.ok_or_else(|| error(name, format!("'{endpoint}': {expected}")))?;
    let authority = uri.authority().ok_or_else(|| error(name, format!("'{endpoint}': {expected}")))?;
    // If nothing else selects the transport, the port does.
    let protocol = protocol.unwrap_or(if authority.port_u16() == Some(4317) { Protocol::Grpc } else { Protocol::Http });
    let base = uri.path().trim_end_matches('/');
    let path = match protocol {
        Protocol::Grpc => match signal {
            Signal::Traces => format!("{base}/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
            Signal::Metrics => format!("{base}/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"),
            Signal::Logs => format!("{base}/opentelemetry.proto.collector.logs.v1.LogsService/Export"),
            Signal::Profiles => {
                format!("{base}/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export")
            }
        },
        Protocol::Http if whole => uri.path().to_owned(),
        Protocol::Http => match signal {
            Signal::Traces => format!("{base}/v1/traces"),
            Signal::Metrics => format!("{base}/v1/metrics"),
            Signal::Logs => format!("{base}/v1/logs"),
            Signal::Profiles => format!("{base}/v1development/profiles"),
        },
    };
    let whole = format!("{scheme}://{authority}{path}");
    let uri = whole.parse().map_err(|why| error(name, format!("'{whole}' is no URL: {why}")))?;
    Ok((protocol, uri))
}

/// `key=value,key=value`, values percent-encoded (W3C Baggage).
fn pairs(name: &'static str, text: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let mut all = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| error(name, "expected key=value, several separated by commas"))?;
        let value = decode(value.trim()).ok_or_else(|| error(name, format!("the value of '{}'", key.trim())))?;
        all.push((key.trim().to_owned(), value));
    }
    Ok(all)
}

/// The decoded text; `None` where a `%` is not followed by two hexadecimal digits, or the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let encoded =
        |rest: &str| rest.as_bytes().first_chunk::<2>().is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(encoded) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

/// Export share by `OTEL_TRACES_SAMPLER`. Parent-based samplers also decide by trace id, which is the same for all
/// spans of a transaction.
fn ratio(
    sampler: Option<(&'static str, String)>,
    argument: Option<(&'static str, String)>,
) -> Result<f64, SettingsError> {
    let Some((name, sampler)) = sampler else { return Ok(1.0) };
    match sampler.strip_prefix("parentbased_").unwrap_or(&sampler) {
        "always_on" => Ok(1.0),
        "always_off" => Ok(0.0),
        "traceidratio" => match argument {
            None => Ok(1.0),
            Some((name, text)) => match text.trim().parse::<f64>() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
                _ => Err(error(name, format!("'{text}' is no number from 0 to 1"))),
            },
        },
        _ => Err(error(name, format!("'{sampler}' is not always_on, always_off or traceidratio"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flag: Option<&str>, set: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        of(Signal::Traces, flag, &[], set)
    }

    fn of(
        signal: Signal,
        flag: Option<&str>,
        listed: &[Signal],
        set: &[(&str, &str)],
    ) -> Result<Option<Settings>, SettingsError> {
        let env = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        read(signal, flag, listed, env)
    }

    fn uri(flag: Option<&str>, set: &[(&str, &str)]) -> String {
        with(flag, set).expect("good").expect("wanted").uri.to_string()
    }

    #[test]
    fn where_spans_go() {
        let (all, traces) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let grpc = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
        assert!(with(None, &[]).expect("good").is_none());
        assert!(with(None, &[(all, " ")]).expect("good").is_none(), "empty is not set");
        assert_eq!(uri(None, &[(all, "http://c:4318")]), "http://c:4318/v1/traces");
        assert_eq!(uri(None, &[(all, "http://c:4318/base/")]), "http://c:4318/base/v1/traces");
        assert_eq!(uri(None, &[(all, "http://c:1"), (traces, "http://t:9/as/it/stands")]), "http://t:9/as/it/stands");
        assert_eq!(uri(Some("http://f:4318"), &[(traces, "http://t:9/x")]), "http://f:4318/v1/traces");
        assert_eq!(uri(Some("http://f:4317"), &[]), format!("http://f:4317{grpc}"));
        assert_eq!(uri(Some("https://f:4317"), &[]), format!("https://f:4317{grpc}"));
        assert_eq!(
            uri(Some("http://f:4317"), &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]),
            "http://f:4317/v1/traces"
        );
        assert_eq!(
            uri(Some("http://[::1]:9"), &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]),
            format!("http://[::1]:9{grpc}")
        );
        for name in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert!(with(None, &[(all, "http://c:4318"), name]).expect("good").is_none());
            assert!(with(Some("http://c:4318"), &[name]).expect("good").is_some(), "the flag wins");
        }
    }

    #[test]
    fn metrics_go_where_somebody_says_so() {
        let (all, own) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
        let wanted = ("OTEL_METRICS_EXPORTER", "otlp");
        let uri = |flag, listed: &[Signal], set: &[(&str, &str)]| {
            let settings = of(Signal::Metrics, flag, listed, set).expect("good");
            settings.map(|settings| settings.uri.to_string()).unwrap_or_default()
        };
        let both = [Signal::Traces, Signal::Metrics];
        assert_eq!(uri(Some("http://f:4318"), &[], &[]), "");
        assert_eq!(uri(Some("http://f:4318"), &both, &[]), "http://f:4318/v1/metrics");
        assert_eq!(
            uri(Some("http://f:4317"), &both, &[]),
            "http://f:4317/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
        );
        assert_eq!(uri(None, &[], &[(all, "http://c:4318"), wanted]), "http://c:4318/v1/metrics");
        assert_eq!(uri(None, &[], &[(all, "http://c:4318"), ("OTEL_METRICS_EXPORTER", "console")]), "");
        assert_eq!(uri(None, &[], &[(own, "http://m:9/as/it"), wanted]), "http://m:9/as/it");
        // The list decides for both.
        let traces =
            |listed: &[Signal]| of(Signal::Traces, Some("http://f:4318"), listed, &[]).expect("good").is_some();
        assert_eq!((traces(&[]), traces(&both), traces(&[Signal::Metrics])), (true, true, false));
        let interval = [("OTEL_METRIC_EXPORT_INTERVAL", "500")];
        let settings = of(Signal::Metrics, Some("http://f:4318"), &both, &interval).expect("good").expect("wanted");
        assert_eq!(settings.interval, Duration::from_millis(500));
        assert!(signal("baggage").is_err() && signal("metrics") == Ok(Signal::Metrics));
    }

    #[test]
    fn profiles_go_where_somebody_says_so() {
        let (all, own) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT");
        let wanted = ("OTEL_PROFILES_EXPORTER", "otlp");
        let uri = |flag, listed: &[Signal], set: &[(&str, &str)]| {
            let settings = of(Signal::Profiles, flag, listed, set).expect("good");
            settings.map(|settings| settings.uri.to_string()).unwrap_or_default()
        };
        let listed = [Signal::Traces, signal("profiles").expect("a signal")];
        assert_eq!(uri(Some("http://f:4318"), &[], &[]), "");
        assert_eq!(uri(Some("http://f:4318"), &listed, &[]), "http://f:4318/v1development/profiles");
        assert_eq!(
            uri(Some("http://f:4317"), &listed, &[]),
            "http://f:4317/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
        );
        assert_eq!(uri(None, &[], &[(all, "http://c:4318"), wanted]), "http://c:4318/v1development/profiles");
        assert_eq!(uri(None, &[], &[(all, "http://c:4318"), (own, "http://p:9/as/it"), wanted]), "http://p:9/as/it");
        assert_eq!(uri(None, &[], &[(own, "http://p:9/as/it")]), "");
    }

    #[test]
    fn findings_go_where_spans_go_unless_somebody_says_no() {
        let (all, own) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT");
        let uri = |flag, listed: &[Signal], set: &[(&str, &str)]| {
            let settings = of(Signal::Logs, flag, listed, set).expect("good");
            settings.map(|settings| settings.uri.to_string()).unwrap_or_default()
        };
        assert_eq!(uri(Some("http://f:4318"), &[], &[]), "http://f:4318/v1/logs");
        let grpc = "http://f:4317/opentelemetry.proto.collector.logs.v1.LogsService/Export";
        assert_eq!(uri(Some("http://f:4317"), &[Signal::Logs], &[]), grpc);
        assert_eq!(uri(None, &[], &[(all, "http://c:4318"), (own, "http://l:9/as/it")]), "http://l:9/as/it");
        assert_eq!(uri(Some("http://f:4318"), &[], &[("OTEL_LOGS_EXPORTER", "none")]), "");
        assert_eq!(uri(Some("http://f:4318"), &[Signal::Traces], &[]), "");
        assert_eq!(uri(None, &[], &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:4318/v1/traces")]), "");
    }

    #[test]
    fn everything_else_is_read() {
        let settings = with(
            Some("http://c:4318"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%3Db%20c , x-other = 2"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,,"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ],
        );
        let settings = settings.expect("good").expect("wanted");
        let headers: Vec<_> = settings.headers.iter().map(|(key, value)| (key.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("api-key", &b"a=b c"[..]), ("x-other", b"2")]);
        assert_eq!(settings.resource, [("deployment.environment.name".into(), "test".into())]);
        assert_eq!(
            (settings.timeout.as_millis(), settings.gzip, settings.queue, settings.batch),
            (2500, true, 100, 100)
        );
        assert_eq!((settings.ratio, settings.delay), (0.25, DELAY));
        assert!(!format!("{settings:?}").contains("a=b"), "keys are not for logs");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (flag, name, value, expected) in [
            ("localhost:4318", "", "", "--otlp: 'localhost:4318': expected http://HOST:PORT"),
            ("ftp://c:4318", "", "", "--otlp: 'ftp://c:4318': expected http://HOST:PORT or https"),
            (
                "https://c",
                "OTEL_EXPORTER_OTLP_CLIENT_KEY",
                "/k",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: expected the key's",
            ),
            ("http://", "", "", "--otlp: 'http://' is no URL"),
            ("http://c", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json' is not"),
            ("http://c", "OTEL_EXPORTER_OTLP_TIMEOUT", "-1", "OTEL_EXPORTER_OTLP_TIMEOUT: '-1' is no number"),
            ("http://c", "OTEL_EXPORTER_OTLP_HEADERS", "a", "OTEL_EXPORTER_OTLP_HEADERS: expected key=value"),
            ("http://c", "OTEL_EXPORTER_OTLP_HEADERS", "a=%z", "OTEL_EXPORTER_OTLP_HEADERS: the value of 'a'"),
            ("http://c", "OTEL_EXPORTER_OTLP_HEADERS", "a b=1", "OTEL_EXPORTER_OTLP_HEADERS: 'a b' and what follows"),
            ("http://c", "OTEL_EXPORTER_OTLP_COMPRESSION", "br", "OTEL_EXPORTER_OTLP_COMPRESSION: 'br' is not"),
            ("http://c", "OTEL_BSP_MAX_QUEUE_SIZE", "0", "OTEL_BSP_MAX_QUEUE_SIZE: '0' is no number"),
            ("http://c", "OTEL_TRACES_SAMPLER", "jaeger_remote", "OTEL_TRACES_SAMPLER: 'jaeger_remote' is not"),
        ] {
            let error = with(Some(flag), &[(name, value)]).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
