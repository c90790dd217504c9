//! `cargo xtask bench --parsers`: what a message of each protocol costs the agent, and what an idle connection holds. A
//! program with access to the parsers (`tracer-user/benches/parsers`) measures; this runs it and makes a table of its
//! lines.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::commit;
use super::results::Results;
use crate::{doc_tables, shell};

/// Limit for the average cost of a message over the protocols, nanoseconds.
const MESSAGE_NS: f64 = 1000.0;
/// Limit for an idle connection, bytes; and for 100 000 of all protocols together.
const IDLE_BYTES: f64 = 512.0;
const ALL_BYTES: f64 = 100e6;

/// One protocol, per message.
#[derive(Debug, Deserialize)]
struct Row {
    protocol: String,
    connections: u64,
    messages: u64,
    operations: u64,
    decode_ns: f64,
    parse_ns: f64,
    parse_allocations: f64,
    whole_ns: f64,
    whole_allocations: f64,
    /// None for protocols with one request per connection.
    idle_bytes: Option<f64>,
}

/// Many idle connections, of all protocols in turn.
#[derive(Debug, Deserialize)]
struct Idle {
    connections: u64,
    bytes: f64,
}

/// Measures, prints the table, writes the lines to `output` (target/parsers.json when not given).
pub(super) fn run(output: Option<&Path>, into_docs: bool) -> Result<()> {
    let mut command = shell::cargo();
    command.args(["bench", "--locked", "--profile", "release"]);
    command.args(["--package", "tracer-user", "--bench", "parsers"]);
    command.stderr(std::process::Stdio::inherit());
    shell::progress("measuring parsers (about a minute after the build)");
    let done = command.output().context("cannot run cargo bench")?;
    if !done.status.success() {
        bail!("cargo bench failed ({}); its own words are above", done.status);
    }
    let lines = String::from_utf8(done.stdout).context("the benchmark's lines are no text")?;
    let output = match output {
        Some(file) => file.to_owned(),
        None => shell::target_dir()?.join("parsers.json"),
    };
    fs::write(&output, &lines).with_context(|| format!("cannot write {}", output.display()))?;
    let (rows, idle) = read(&lines)?;
    let here = Results::here(commit());
    let origin = format!("{} on Linux {}, {}", here.commit, here.kernel, here.processor);
    let table = table(&origin, &rows, &idle);
    shell::print(&table);
    shell::progress(format!("machine-readable: {}", output.display()));
    if into_docs {
        doc_tables::put("parsers", &table)?;
    }
    let above = above(&rows);
    if !above.is_empty() {
        // Bytes held do not depend on the machine's load.
        bail!("an idle connection may hold {IDLE_BYTES:.0} bytes; more is held by those of {}", above.join(", "));
    }
    Ok(())
}

/// Protocols whose idle connections exceed the limit.
fn above(rows: &[Row]) -> Vec<&str> {
    rows.iter()
        .filter(|row| row.idle_bytes.is_some_and(|bytes| bytes > IDLE_BYTES))
        .map(|row| row.protocol.as_str())
        .collect()
}

fn read(lines: &str) -> Result<(Vec<Row>, Idle)> {
    let mut lines: Vec<&str> = lines.lines().filter(|line| line.starts_with('{')).collect();
    let idle = lines.pop().context("the benchmark printed nothing")?;
    let idle = serde_json::from_str(idle).with_context(|| format!("not the last line: {idle}"))?;
    let row = |line: &&str| serde_json::from_str(line).with_context(|| format!("not a line of a protocol: {line}"));
    Ok((lines.iter().map(row).collect::<Result<_>>()?, idle))
}

fn table(origin: &str, rows: &[Row], idle: &Idle) -> String {
    let mean = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / rows.len().max(1) as f64;
    let mut text = format!(
        "`cargo xtask bench --parsers` at {origin}: connections of real programs (`tracer-user/crates/protocols/fixtures/`), played again and \
         again as the kernel would have reported them. Per message (a request or a reply; of a WebSocket session, a send or \
         receive), their connection's beginning and end included: *decode* of records and nothing else, *parse* on top of \
         that, and *whole*: everything to metrics and store. Idle: what an open connection holds on the heap once nothing \
         moves on it.\n\n\
         | protocol | captured: connections, messages, operations | decode, ns | parse, ns | allocations | whole, ns | \
         allocations | idle connection, bytes |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {}, {}, {} | {:.0} | {:.0} | {:.1} | {:.0} | {:.1} | {} |",
            row.protocol,
            row.connections,
            row.messages,
            row.operations,
            row.decode_ns,
            row.parse_ns,
            row.parse_allocations,
            row.whole_ns,
            row.whole_allocations,
            row.idle_bytes.map_or("–".into(), |bytes| format!("{bytes:.0}")),
        );
    }
    let parse = mean(|row| row.parse_ns);
    let idle_bytes: Vec<f64> = rows.iter().filter_map(|row| row.idle_bytes).collect();
    let _ = writeln!(
        text,
        "| **mean** | | {:.0} | **{parse:.0}** | {:.1} | {:.0} | {:.1} | **{:.0}** |\n",
        mean(|row| row.decode_ns),
        mean(|row| row.parse_allocations),
        mean(|row| row.whole_ns),
        mean(|row| row.whole_allocations),
        idle_bytes.iter().sum::<f64>() / idle_bytes.len().max(1) as f64,
    );
    let met = |met: bool| if met { "met" } else { "not met" };
    let above = above(rows);
    let above = if above.is_empty() { String::new() } else { format!(" (not by {})", above.join(", ")) };
    let _ = writeln!(
        text,
        "{} idle connections of all of these in turn: {:.1} MB. Wanted: parsing at most {MESSAGE_NS:.0} ns a message on \
         average ({}), at most {IDLE_BYTES:.0} bytes an idle connection ({}{above}), at most {:.0} MB for \
         100 000 ({}).",
        idle.connections,
        idle.bytes / 1e6,
        met(parse <= MESSAGE_NS),
        met(above.is_empty()),
        ALL_BYTES / 1e6,
        met(idle.bytes <= ALL_BYTES),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_a_table() {
        let line = |name: &str, parse: u32, idle: &str| {
            format!(
                "{{\"protocol\":\"{name}\",\"connections\":1,\"messages\":12,\"operations\":13,\"decode_ns\":30.4,\
                 \"parse_ns\":{parse},\"parse_allocations\":1.25,\"whole_ns\":700.1,\"whole_allocations\":2,\
                 \"idle_bytes\":{idle}}}\n"
            )
        };
        let lines = [
            &line("http", 100, "400"),
            &line("redis", 300, "600"),
            &line("uwsgi", 200, "null"),
            "{\"connections\":100000,\"bytes\":80000000}",
        ];
        let (rows, idle) = read(&lines.map(String::from).concat()).expect("lines");
        let text = table("abc", &rows, &idle);
        assert_eq!(above(&rows), ["redis"]);
        for wanted in [
            "| http | 1, 12, 13 | 30 | 100 | 1.2 | 700 | 2.0 | 400 |",
            "| **mean** | | 30 | **200** | 1.2 | 700 | 2.0 | **500** |",
            "100000 idle connections of all of these in turn: 80.0 MB.",
            "on average (met), at most 512 bytes an idle connection (not met (not by redis)), at most 100 MB",
            "| uwsgi | 1, 12, 13 | 30 | 200 | 1.2 | 700 | 2.0 | – |",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        assert!(read("words\n").is_err());
        assert!(read("{\"connections\":1}").is_err());
    }
}
