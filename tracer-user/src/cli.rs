//! What can be typed; nothing else.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::kernel::header::Destination;
use crate::span::{cores, duration, memory};
use clap::{Args, Parser, Subcommand};

/// eBPF request tracer and profiler.
#[derive(Debug, Parser)]
#[command(
    name = "tracer",
    version,
    about = "Which classes of request a host handles, how long each takes and where, what CPU each costs and which code burns it. No change to any application.",
    after_help = "EXAMPLES:\n  sudo tracer run                              trace everything; console on http://127.0.0.1:9464/\n  sudo tracer run --port 80 --duration 30s      only what uses port 80, then print a summary\n  sudo tracer record /tmp/r.tracer --duration 1m\n  tracer replay /tmp/r.tracer                  the same result again, anywhere, without root\n\nEXIT CODES:\n  0  fine\n  1  failed while running\n  2  bad usage or configuration\n  3  the watchdog, or a bug, detached everything (stderr says why; start it anew)\n  77 this kernel or these privileges cannot do it (see `tracer doctor`)"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: trace, and serve console, metrics and API.
    Run(Run),
    /// Run the agent and write every kernel record to a file.
    ///
    /// The file holds the heads of messages as they were on the wire (so possibly credentials); it is created with
    /// mode 0600 and never overwritten.
    Record(Record),
    /// Run a recorded file through the same analysis.
    Replay(Replay),
    /// Say what this kernel and these privileges allow, each line ok, degraded or missing.
    Doctor(Doctor),
    /// Check a configuration file.
    CheckConfig {
        /// The file.
        file: PathBuf,
    },
}

/// What is traced.
#[derive(Args, Clone, Debug, Default)]
pub struct Narrow {
    /// Only these services (names as the console shows them).
    #[arg(long, value_name = "NAME")]
    pub service: Vec<String>,
    /// Only these processes.
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Only connections with one of these ports at either end.
    #[arg(long, value_name = "PORT")]
    pub port: Vec<u16>,
}

/// Options every live command has.
#[derive(Args, Clone, Debug)]
pub struct Live {
    /// Configuration file (TOML); command line options win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of console, metrics and API.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// File with the token that changes need (`Authorization: Bearer TOKEN`), mode 0600; made with a random one when it
    /// does not exist. Without it the server only answers questions.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Stop after this long (30s, 5m, 1h) and print a summary.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Stack samples per second and CPU; 0 takes none.
    #[arg(long, value_name = "N")]
    pub hertz: Option<u32>,
    /// Write finished units of work to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub transactions: Option<PathBuf>,
    /// Save the slowest, the failed and a sample of the transactions of every class in this directory, one JSON object a
    /// line; made when it does not exist. The oldest files go beyond 256 MB and 24 hours (`save_max_size` and
    /// `save_max_age` in the configuration).
    #[arg(long, value_name = "DIR")]
    pub save_transactions: Option<PathBuf>,
    /// Send finished units of work as OpenTelemetry spans to this collector: http://HOST:4318 (OTLP/HTTP) or
    /// http://HOST:4317 (OTLP/gRPC; OTEL_EXPORTER_OTLP_PROTOCOL says which on other ports). Without it,
    /// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT say where; where neither is set nothing is sent.
    /// The other variables of OpenTelemetry's exporter, batch processor and sampler are honoured.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Speak to the agents of other hosts, so that a transaction is one tree across them: listen on this address (such as
    /// 10.0.0.5:9465), and look for an agent at the private addresses programs here call. Needs a key beyond loopback.
    #[arg(long, value_name = "ADDRESS")]
    pub relay: Option<SocketAddr>,
    /// An agent to tell of every call, HOST:PORT; may be given several times. For callees behind address translation or a
    /// balancer, at whose address no agent answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub relay_peer: Vec<String>,
    /// File with the key all agents share: 64 hexadecimal digits (openssl rand -hex 32), mode 0600.
    #[arg(long, value_name = "FILE")]
    pub relay_key: Option<PathBuf>,
    /// Send each request's context along in a TCP option (kind 25, as OpenTelemetry's eBPF instrumentation does), and read it
    /// where it comes: for callees no agent here reaches. Adds 28 bytes to a request's first segment; connections opened
    /// from now on only, both ends must be traced. See the README for its limits.
    #[arg(long)]
    pub inband_tcp_option: bool,
    /// Write a traceparent header into HTTP/1.1 requests to this destination: an address, 10.0.0.7:8080, 10.1.0.0/16:80,
    /// [fd00::/8]:80 or api.internal:80; may be given several times. For callees that read headers and have no agent. Changes
    /// what is sent; connections opened from now on only. See the README for its limits.
    #[arg(long, value_name = "DESTINATION", value_parser = destination)]
    pub inband_header: Vec<Destination>,
    /// The NATS server agents meet at (nats://HOST:4222, or tls://), in the place of dialling each other: for networks where they reach it and
    /// not each other. Peers are found by their hosts' own addresses and names there. Needs a key or certificates, end to end.
    #[arg(long, value_name = "URL")]
    pub relay_nats: Option<String>,
    /// This agent's certificate (PEM), in the place of a key: agents speak mutual TLS 1.3. Issue it for TLS servers and
    /// clients, and for the names and addresses other agents dial this one by. Read again when it has changed.
    #[arg(long, value_name = "FILE", conflicts_with = "relay_key")]
    pub relay_cert: Option<PathBuf>,
    /// The certificate's key (PEM), mode 0600.
    #[arg(long, value_name = "FILE")]
    pub relay_cert_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities whose agents are spoken to. Use one that issues to agents only: whoever has a
    /// certificate of it is believed.
    #[arg(long, value_name = "FILE")]
    pub relay_ca: Option<PathBuf>,
    /// Trace only sockets of the network namespace the agent runs in.
    #[arg(long)]
    pub own_netns: bool,
    /// Most memory the agent may take (256M, 2G; at least 64M), pages of mapped files not counted. From 85 % of it on it gives up detail, never
    /// sums; when that does not help, it detaches everything and ends. [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub max_memory: Option<u64>,
    /// Most CPU the agent may take, in percent of one core, averaged over seconds (10%, 150%). As with memory.
    /// [default: 100%]
    #[arg(long, value_name = "PERCENT", value_parser = cores)]
    pub max_cpu: Option<f64>,
    /// Nice value of the agent's pipeline, -20 (first) to 19 (last); its other threads are at 10 at least. Low priority
    /// loses events where every CPU is busy (counted). [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..20))]
    pub nice: Option<i32>,
    /// Log level of the agent: error, warn, info, debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log: log::LevelFilter,
    /// Log of the BPF programs themselves: off (costs nothing), or a level.
    #[arg(long, value_name = "LEVEL", default_value = "off")]
    pub bpf_log: log::LevelFilter,
    /// What is traced; everything by default.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `tracer run`.
#[derive(Args, Clone, Debug)]
pub struct Run {
    /// Options.
    #[command(flatten)]
    pub live: Live,
    /// Also write every kernel record to this file, as `tracer record` does.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// `tracer record`.
#[derive(Args, Clone, Debug)]
pub struct Record {
    /// The file to create.
    pub file: PathBuf,
    /// Options.
    #[command(flatten)]
    pub live: Live,
}

/// `tracer replay`.
#[derive(Args, Clone, Debug)]
pub struct Replay {
    /// A file of `tracer record`.
    pub file: PathBuf,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write finished units of work to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub transactions: Option<PathBuf>,
    /// Print the classes as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `tracer doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// Also say how this configuration fares with the agents of other hosts: key or certificates, the address that is listened on,
    /// and of a running agent its peers and their clocks.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A destination of headers.
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
}
