//! Programs that speak HTTP/2, and their own figures.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::outcome;
use crate::process::Process;
use crate::workload::wait_for_listener;

/// h2load's report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Answered requests.
    pub done: u64,
    /// Requests answered by 2xx and by 4xx.
    pub ok: u64,
    /// See `ok`.
    pub refused: u64,
    /// Bytes of all bodies.
    pub data: u64,
    /// Mean time of a request, seconds.
    pub mean_s: f64,
}

/// Runs h2load to its end, at `rate` requests per second on each connection; panics if a request got no answer.
pub fn h2load(address: SocketAddr, requests: u64, connections: u32, streams: u32, rate: u32, paths: &[&str]) -> Loaded {
    h2load_by(Command::new, address, requests, (connections, streams, rate), paths)
}

/// The same with a command that `prepare` makes from the program; `connections, streams, rate`, where 0 means
/// unlimited.
pub fn h2load_by(
    prepare: impl FnOnce(PathBuf) -> Command,
    address: SocketAddr,
    requests: u64,
    (connections, streams, rate): (u32, u32, u32),
    paths: &[&str],
) -> Loaded {
    let program = crate::find("h2load").unwrap_or_else(|| panic!("no h2load"));
    let mut command = prepare(program);
    let numbers = [requests, connections.into(), streams.into(), rate.into()].map(|number| number.to_string());
    command.args(["-n", &numbers[0], "-c", &numbers[1], "-m", &numbers[2]]);
    if rate > 0 {
        command.args(["--rps", &numbers[3]]);
    }
    command.args(paths.iter().map(|path| format!("http://{address}{path}")));
    let done = outcome(&mut command, "h2load");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let loaded = parse(&done.out).unwrap_or_else(|| panic!("h2load says: {}", done.out));
    assert_eq!(loaded.done, requests, "{}", done.out);
    loaded
}

/// Parses its report.
fn parse(text: &str) -> Option<Loaded> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    // `12 2xx`, `12 done`: the number before a word.
    let before = |line: &str, word: &str| {
        let part = line.split(',').find(|part| part.trim_end().ends_with(word))?;
        part.split_whitespace().next()?.parse::<u64>().ok()
    };
    let codes = line("status codes:")?;
    let data = line("traffic:")?.rsplit_once('(')?.1.split_once(')')?.0;
    Some(Loaded {
        done: before(line("requests:")?, "done")?,
        ok: before(codes, "2xx")?,
        refused: before(codes, "4xx")?,
        data: data.parse().ok()?,
        // Minimum, maximum, mean.
        mean_s: seconds(line("time for request:")?.split_whitespace().nth(2)?)?,
    })
}

/// Parses `1.25ms` and the like.
fn seconds(text: &str) -> Option<f64> {
    let spans = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    spans.iter().find_map(|(word, span)| Some(text.strip_suffix(word)?.parse::<f64>().ok()? * span))
}

/// A running nghttpd that serves the files of `dir`/www.
#[derive(Debug)]
pub struct Nghttpd {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Nghttpd {
    /// Starts it with two threads.
    pub fn start(dir: &Path) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let mut command = Command::new(crate::find("nghttpd").unwrap_or_else(|| panic!("no nghttpd")));
        command.args(["--no-tls", "-n", "2", "-a", "127.0.0.1", "-d"]).arg(dir.join("www"));
        command.arg(address.port().to_string()).env("OTEL_SERVICE_NAME", "nghttpd");
        let mut process = Process::start("nghttpd", &mut command, &dir.join("nghttpd.log"));
        wait_for_listener(&mut process, address);
        Self { process, address }
    }
}

/// A running nghttpx, which accepts HTTP/1, HTTP/2 and upgrades from one to the other, and speaks HTTP/2 to `backend`.
#[derive(Debug)]
pub struct Nghttpx {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Nghttpx {
    /// Starts it.
    pub fn start(dir: &Path, backend: SocketAddr) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let mut command = Command::new(crate::find("nghttpx").unwrap_or_else(|| panic!("no nghttpx")));
        command.arg(format!("--frontend=127.0.0.1,{};no-tls", address.port()));
        command.arg(format!("--backend=127.0.0.1,{};;proto=h2", backend.port()));
        command.args(["--workers=1", "--single-process", "--conf=/dev/null"]).env("OTEL_SERVICE_NAME", "nghttpx");
        command.current_dir(dir);
        let mut process = Process::start("nghttpx", &mut command, &dir.join("nghttpx.log"));
        wait_for_listener(&mut process, address);
        Self { process, address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_h2load() {
        let text = "\nfinished in 66.03ms, 75726.37 req/s, 14.59MB/s\n\
                    requests: 5000 total, 5000 started, 5000 done, 2500 succeeded, 2500 failed, 0 errored, 0 timeout\n\
                    status codes: 2500 2xx, 0 3xx, 2400 4xx, 0 5xx\n\
                    traffic: 986.78KB (1010464) total, 49.19KB (50368) headers (space savings 92.78%), 849.61KB (870000) data\n\
                    \x20                    min         max         mean         sd        +/- sd\n\
                    time for request:      104us     12.31ms       1.25ms       441us    71.20%\n";
        let loaded = Loaded { done: 5000, ok: 2500, refused: 2400, data: 870_000, mean_s: 0.00125 };
        assert_eq!(parse(text), Some(loaded));
        assert_eq!(["7us", "1.50s", "many"].map(seconds), [Some(7.0 * 1e-6), Some(1.5), None]);
        assert_eq!(parse("finished in 0 s"), None);
    }
}
