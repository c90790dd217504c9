//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracer_kernel::header::Destination;
use tracer_kernel::sampler::MAX_HERTZ;
use tracer_model::quantity::{Detail, cores, duration, memory, share};
use tracer_policies::service_classes::Mode;
use tracer_results::history::place::HistoryPlace;
use tracer_runtimes::tls::Libraries;

use crate::otlp::Signal;

/// eBPF request tracer and profiler.
#[derive(Debug, Parser)]
#[command(
    name = "tracer",
    version,
    about = "Which classes of request a host handles, how long each takes and where, what CPU each costs and which code burns it. No change to any application.",
    after_help = "EXAMPLES:\n  sudo tracer run                              trace everything; console on http://127.0.0.1:9464/\n  sudo tracer run --port 80 --duration 30s      trace only port 80, then print a summary\n  sudo tracer record /tmp/r.tracer --duration 1m\n  tracer replay /tmp/r.tracer                  the same result again, anywhere, without root\n\nEXIT CODES:\n  0  success\n  1  failed while running\n  2  bad usage or configuration\n  3  the watchdog or a bug detached everything (stderr gives the reason; start the agent again)\n  77 the kernel or the privileges do not suffice (see `tracer doctor`)"
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: trace, and serve the console, metrics and the API.
    Run(Run),
    /// Run the agent and write every kernel record to a file.
    ///
    /// The file holds the beginnings of messages as they were sent, possibly with credentials. It is created with mode
    /// 0600; an existing file is never overwritten.
    Record(Record),
    /// Show request classes in the terminal: CPU, rate, latency, errors, waits; and with `o` the requests that run now.
    Top {
        /// The agent's console. Without it, the agent at http://127.0.0.1:9464; if none listens there, one is started
        /// with the defaults of `tracer run`, which needs its privileges, and ends with this program.
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        /// Time between two looks.
        #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
        interval: Duration,
    },
    /// Answer questions of AI agents about a running agent's data: the Model Context Protocol on standard input and output.
    ///
    /// An AI agent's program starts this one and asks by its tools: services, request classes, what changed, what runs now,
    /// hotspots, transactions. It only reads, by the agent's HTTP API, and needs no root. A program's configuration names
    /// the command `tracer` with the argument `mcp`. See docs/mcp.md.
    Mcp {
        /// The agent's console.
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
        url: String,
    },
    /// Run a recording through the same analysis again; needs no root.
    Replay(Replay),
    /// Report what this kernel and these privileges allow: each line is ok, degraded or missing.
    Doctor(Doctor),
    /// Declared transactions: list the functions of a program that can be declared, or check the declarations of a
    /// file. See docs/declared-transactions.md.
    Declare(Declare),
    /// One read-only console for all hosts of a history. Reads only; needs no root.
    Fleet(FleetOptions),
    /// Print the findings of every host of a history, as the agents found them. Reads only; needs no root.
    Verdicts(VerdictsOptions),
    /// Check a configuration file.
    CheckConfig {
        /// Configuration file (TOML).
        file: PathBuf,
    },
    /// Print the completion script of a shell (bash, zsh, fish).
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory; for packages.
    #[command(hide = true)]
    ManPages {
        /// An existing directory.
        dir: PathBuf,
    },
}

/// `tracer fleet`.
#[derive(Args, Clone, Debug)]
pub struct FleetOptions {
    /// The history: a directory, or a bucket such as s3://BUCKET/PREFIX, as `tracer run --history` takes it.
    #[arg(long, value_name = "DIR|URL", value_parser = HistoryPlace::parse)]
    pub history: HistoryPlace,
    /// Address of the console and the API.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9466")]
    pub listen: SocketAddr,
    /// How far back the history is read.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "24h")]
    pub since: Duration,
    /// Time between two looks for new files.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub refresh: Duration,
    /// Configuration file of the agents: its `[analysis]` and `[history] window`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `tracer verdicts`.
#[derive(Args, Clone, Debug)]
pub struct VerdictsOptions {
    /// The history: a directory, or a bucket such as s3://BUCKET/PREFIX, as `tracer run --history` takes it.
    #[arg(long, value_name = "DIR|URL", value_parser = HistoryPlace::parse)]
    pub history: HistoryPlace,
    /// Only this host; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Only windows of so long before now, such as 168h. The first 24 of them are the reference. [default: all]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub since: Option<Duration>,
    /// Configuration file of the agents: its `[analysis]` and `[history] window`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A JSON object a line, with the API's fields and `host`.
    #[arg(long)]
    pub json: bool,
    /// Only list the hosts, as file names have them: one a line.
    #[arg(long, conflicts_with = "json")]
    pub list_hosts: bool,
}

/// `tracer declare`.
#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Declare {
    /// List the functions of this program or library that can be declared.
    #[arg(long, value_name = "BINARY", group = "what")]
    pub list: Option<PathBuf>,
    /// Only functions whose name contains this, or fits it (`*` stands for any text).
    #[arg(value_name = "PATTERN", requires = "list")]
    pub pattern: Option<String>,
    /// Check the declared transactions of this configuration file: what each matches, what a call costs, and why one
    /// cannot be traced.
    #[arg(long, value_name = "FILE", group = "what")]
    pub check: Option<PathBuf>,
}

/// Filters that narrow what is traced.
#[derive(Args, Clone, Debug, Default)]
pub struct Narrow {
    /// Trace only this service (named as in the console); may be given several times.
    #[arg(long, value_name = "NAME")]
    pub service: Vec<String>,
    /// Trace only this process; may be given several times.
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Trace only connections with this port at either end; may be given several times.
    #[arg(long, value_name = "PORT")]
    pub port: Vec<u16>,
}

/// Options of the commands that trace (`run` and `record`).
#[derive(Args, Clone, Debug)]
pub struct AgentOptions {
    /// Configuration file (TOML); command line options override it. See docs/configuration.md.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the console, metrics and the API. [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// File with the token that changes over HTTP need (`Authorization: Bearer TOKEN`), mode 0600. The agent creates it
    /// with a random token when it does not exist. Without this option nothing can be changed over HTTP.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Stop after this long (30s, 5m, 1h) and print a summary, as after Ctrl-C.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Most stack samples per second and CPU, up to 10000; the overhead budget may allow fewer. 0 takes none.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_HERTZ)))]
    pub hertz: Option<u32>,
    /// Share of the CPU of the whole host that sampling stacks may cost, 0.01% to 100%: the agent measures the cost and
    /// changes the sampling rate. [default: 1%]
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub overhead_budget: Option<f64>,
    /// How many requests to see whole in processes whose requests the kernel side can count by itself: a share, 0% to 100%,
    /// or auto: about 1000 a second of a process that has more, and all of those whose other end is on this host, or if spans
    /// are written or exported (see "Less detail, no fewer requests" in docs/limits.md). Whatever it is, every request is
    /// counted, and slow and failed ones are kept. [default: auto]
    #[arg(long, value_name = "PERCENT")]
    pub detail: Option<Detail>,
    /// Write finished spans to this file, one JSON object a line; mode 0600, no link. When it is full it is renamed to
    /// FILE.1 and begun anew (`max_size` in the configuration, 1 GB for both). Also a FIFO that is read, or /dev/stdout.
    #[arg(long, value_name = "FILE")]
    pub transactions: Option<PathBuf>,
    /// Save the slowest, the failed and a sample of the transactions of every class to files in this directory, one
    /// JSON object a line. The agent creates the directory when it does not exist, and deletes the oldest files beyond
    /// 256 MB or 24 hours (`save_max_size` and `save_max_age` in the configuration).
    #[arg(long, value_name = "DIR")]
    pub save_transactions: Option<PathBuf>,
    /// Keep what request classes and the host cost, window by window, as Parquet files in this directory. The agent
    /// creates it when it does not exist, and deletes its oldest files beyond 1 GB or 90 days (`[history]` in the
    /// configuration). With a URL (s3://BUCKET/PREFIX, gs://, az://) they are written to a local directory first (`spool`)
    /// and uploaded from there; credentials come from the environment, see docs/history.md.
    #[arg(long, value_name = "DIR|URL", value_parser = HistoryPlace::parse)]
    pub history: Option<HistoryPlace>,
    /// Send finished spans to this OpenTelemetry collector: http://HOST:4318 (OTLP/HTTP) or http://HOST:4317
    /// (OTLP/gRPC). OTEL_EXPORTER_OTLP_PROTOCOL selects the protocol on other ports. Without this option the agent
    /// sends to OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or nowhere when neither is set. The
    /// other variables of OpenTelemetry's exporter, batch processor and sampler apply too.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// What is sent there: traces, metrics, logs, profiles, separated by commas. Metrics are those of /metrics under
    /// OpenTelemetry's names, once a minute (OTEL_METRIC_EXPORT_INTERVAL); logs are findings, one record when one opens and
    /// one when it ends; profiles are stacks by request class, on the CPU and off it, every 10 s (OpenTelemetry's signal
    /// for them is in development: collectors must know version 1.9 or later of it). Without this option: traces and logs,
    /// unless OTEL_TRACES_EXPORTER or OTEL_LOGS_EXPORTER is none; metrics if OTEL_METRICS_EXPORTER is otlp, profiles if
    /// OTEL_PROFILES_EXPORTER is otlp.
    #[arg(long, value_name = "SIGNALS", value_delimiter = ',', value_parser = crate::otlp::signal)]
    pub otlp_signals: Vec<Signal>,
    /// Exchange contexts with the agents of other hosts, so that a transaction is one tree across hosts. The agent
    /// listens on this address (such as 10.0.0.5:9465) and looks for other agents at the private addresses that
    /// programs here call. Needs a key or certificates, except on loopback. See docs/multi-host.md.
    #[arg(long, value_name = "ADDRESS")]
    pub relay: Option<SocketAddr>,
    /// Agent that gets the context of every call, HOST:PORT; may be given several times. For callees behind address
    /// translation or a load balancer, where no agent answers at the callee's address.
    #[arg(long, value_name = "HOST:PORT")]
    pub relay_peer: Vec<String>,
    /// File with the key that all agents share: 64 hexadecimal digits (openssl rand -hex 32), mode 0600.
    #[arg(long, value_name = "FILE")]
    pub relay_key: Option<PathBuf>,
    /// Send each request's context in a TCP option (kind 25, as OpenTelemetry's eBPF instrumentation does) and read
    /// incoming ones. For callees whose agent this one cannot reach. Adds 28 bytes to a request's first segment; works
    /// on connections opened after the agent's start and only where both ends are traced with this option. See
    /// docs/context-propagation.md for its limits.
    #[arg(long)]
    pub inband_tcp_option: bool,
    /// Insert a traceparent header into HTTP/1.1 requests to this destination: an address, 10.0.0.7:8080,
    /// 10.1.0.0/16:80, [fd00::/8]:80 or api.internal:80; may be given several times. For callees that read the header
    /// and have no agent. This changes what programs send; it works on connections opened after the agent's start. See
    /// docs/context-propagation.md for its limits.
    #[arg(long, value_name = "DESTINATION", value_parser = destination)]
    pub inband_header: Vec<Destination>,
    /// NATS server (nats://HOST:4222 or tls://) through which agents reach each other instead of connecting directly.
    /// For networks where agents reach the server but not each other. An agent is found there by its host's own
    /// addresses and name. Needs a key or certificates: sessions are encrypted end to end. See docs/multi-host.md.
    #[arg(long, value_name = "URL")]
    pub relay_nats: Option<String>,
    /// This agent's certificate (PEM), instead of a key: agents then use mutual TLS 1.3. Issue it for TLS servers and
    /// clients, and for every name and address by which other agents reach this one. The agent reloads it when it
    /// changes.
    #[arg(long, value_name = "FILE", conflicts_with = "relay_key")]
    pub relay_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM), mode 0600.
    #[arg(long, value_name = "FILE")]
    pub relay_cert_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that agents must have theirs from. Use an authority that issues to agents
    /// only: everybody with a certificate of it is believed.
    #[arg(long, value_name = "FILE")]
    pub relay_ca: Option<PathBuf>,
    /// CPU priorities of service classes: off (nothing is decided), dry-run (what would be done is counted, nothing is
    /// changed), on (the threads that serve requests of a class are changed while they do). on needs --config with a
    /// file that only root can change, and CAP_SYS_NICE. See docs/service-classes.md.
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub enforce: Mode,
    /// TLS libraries whose text is traced, so that encrypted connections show requests: auto (every known one), off, or
    /// a list (openssl,go,gnutls,nss,rustls). See docs/tls.md. [default: auto]
    #[arg(long, value_name = "LIBRARIES", value_parser = Libraries::parse)]
    pub tls: Option<Libraries>,
    /// Trace only sockets of the agent's own network namespace.
    #[arg(long)]
    pub own_netns: bool,
    /// Memory limit of the agent (256M, 2G; at least 64M), without pages of mapped files. From 85 % of it on, the agent
    /// gives up detail, never sums; when that does not help, it detaches everything and ends. See docs/limits.md.
    /// [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub max_memory: Option<u64>,
    /// CPU limit of the agent in percent of one core (10%, 150%), averaged over 5 seconds. From 85 % of it on, the
    /// agent gives up detail; when that does not help, it detaches everything and ends. See docs/limits.md. [default:
    /// 100%]
    #[arg(long, value_name = "PERCENT", value_parser = cores)]
    pub max_cpu: Option<f64>,
    /// Nice value of the agent's pipeline thread, -20 (highest priority) to 19 (lowest); its other threads run at 10 or
    /// more. With low priority the agent loses events, and counts them, while every CPU is busy. [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..20))]
    pub nice: Option<i32>,
    /// Log level of the agent: error, warn, info, debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log: log::LevelFilter,
    /// Log level of the BPF programs: off (costs nothing), error, warn, info, debug.
    #[arg(long, value_name = "LEVEL", default_value = "off")]
    pub bpf_log: log::LevelFilter,
    /// Filters; everything is traced by default.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `tracer run`.
#[derive(Args, Clone, Debug)]
pub struct Run {
    /// Options of the agent.
    #[command(flatten)]
    pub live: AgentOptions,
    /// Also write every kernel record to this file, as `tracer record` does.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// `tracer record`.
#[derive(Args, Clone, Debug)]
pub struct Record {
    /// File to create.
    pub file: PathBuf,
    /// Options of the agent.
    #[command(flatten)]
    pub live: AgentOptions,
}

/// `tracer replay`.
#[derive(Args, Clone, Debug)]
pub struct Replay {
    /// Recording made by `tracer record`.
    pub file: PathBuf,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write every finished span to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub transactions: Option<PathBuf>,
    /// Print the request classes as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `tracer doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// Also check this configuration file's relay settings: the key or the certificates, and the listener; of a running
    /// agent also its peers and their clocks.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Parses a destination that gets headers.
fn destination(text: &str) -> Result<Destination, String> {
    Destination::parse(text).ok_or_else(|| {
        "expected an address (10.0.0.7:8080, 10.1.0.0/16, [fd00::/8]:80) or a name (api.internal:80)".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn more_samples_than_there_can_be_are_refused() {
        for (hertz, fits) in [("0", true), ("10000", true), ("10001", false), ("4294967296", false), ("-1", false)] {
            let parsed = Cli::try_parse_from(["tracer", "run", "--hertz", hertz]);
            assert_eq!(parsed.is_ok(), fits, "{hertz}");
        }
        let error = Cli::try_parse_from(["tracer", "run", "--hertz", "10001"]).unwrap_err().to_string();
        assert!(error.contains("--hertz") && error.contains("10000"), "{error}");
    }
}
