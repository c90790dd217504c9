//! Two guests under two kernels on one wire: runs half of the test `pair` in each.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::guest::{self, Boot, Wire};
use super::kernels::{self, Source};
use super::machine::Machine;
use super::{Parts, SCALE};
use crate::{doc_tables, shell};

/// The file of tests.
pub(super) const FILE: &str = "pair";
/// The test, `file:filter`.
const TEST: &str = "pair:";
/// The module of the network card: the only one of QEMU's cards that needs no other module.
const CARD: &str = "vmxnet3";
/// Most time for both: each takes a minute or two to start before it waits for the other.
const LIMIT: Duration = Duration::from_secs(900);

/// Head of the table.
const HEAD: &str = "| caller | callee | edges |\n| --- | --- | --- |\n";
/// Key columns of a row: caller and callee.
const KEY: usize = 2;

/// Boots both kernels of `chosen`, each once as caller and once as callee.
pub(super) fn run(parts: &Parts, machine: Machine, chosen: &[&Source], into_docs: bool) -> Result<()> {
    let [one, other] = chosen else { bail!("--pair wants two different kernels") };
    let mut failed = Vec::new();
    for (caller, callee) in [(*one, *other), (*other, *one)] {
        let mut outcome = both(parts, machine, caller, callee)?;
        // On a busy machine, a wait in an emulated guest can run out.
        if let Err(why) = &outcome {
            shell::progress(format!("{} to {}: {why}; once more", caller.name, callee.name));
            outcome = both(parts, machine, caller, callee)?;
        }
        match outcome {
            Ok(row) => {
                shell::print(format!("{HEAD}{row}"));
                // Immediately, because the other direction may fail separately.
                if into_docs {
                    doc_tables::put_row("pair", HEAD, &row, KEY)?;
                }
            }
            Err(why) => failed.push(format!("{} to {}: {why}", caller.name, callee.name)),
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

/// Boots both at once; returns the row of the table, or why there is none. Errors are this machine's.
fn both(parts: &Parts, machine: Machine, caller: &Source, callee: &Source) -> Result<Result<String, String>> {
    shell::progress(format!("booting {} and {}, joined by a wire", caller.name, callee.name));
    // One datagram per frame, so neither end has to start first.
    let sockets = ["caller", "callee"].map(|end| parts.base.join(format!("wire-{end}")));
    let clear = || sockets.iter().for_each(|socket| drop(fs::remove_file(socket)));
    clear();
    let end = |role, own, other, [here, there]: [usize; 2]| {
        let [local, remote] = [here, there].map(|end| sockets[end].display().to_string());
        let local = format!("local.type=unix,local.path={local}");
        let netdev = format!("dgram,id=w,{local},remote.type=unix,remote.path={remote}");
        let card = format!("{CARD},netdev=w,mac=52:54:00:00:00:{:02x}", here + 1);
        let words = ["-netdev", &netdev, "-device", &card];
        Wire { role, own, other, arguments: words.map(str::to_owned).to_vec() }
    };
    let ends = [
        (caller, end("caller", "10.77.0.1", "10.77.0.2", [0, 1])),
        (callee, end("callee", "10.77.0.2", "10.77.0.1", [1, 0])),
    ];
    let boots = std::thread::scope(|scope| {
        let threads = ends.each_ref().map(|(source, wire)| scope.spawn(|| boot(parts, machine, source, wire)));
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    clear();
    let [calls, called] = boots;
    let (calls, called) = (calls?, called?);
    for (role, boot) in [("caller", &calls), ("callee", &called)] {
        let passed = boot.tests.first().is_some_and(|(_, passed)| *passed);
        if !boot.complete || !passed {
            let what = if boot.panicked {
                "its kernel panicked"
            } else if boot.late {
                "its time was over"
            } else {
                "its test failed"
            };
            return Ok(Err(format!("the {role}: {what}; its console: {}", boot.log.display())));
        }
    }
    let edges = calls.figures.get("edges between two hosts").context("the test reported no figure")?;
    Ok(Ok(format!("| {} | {} | {edges} |\n", calls.version, called.version)))
}

fn boot(parts: &Parts, machine: Machine, source: &Source, wire: &Wire) -> Result<Boot> {
    let (kernel, _) = kernels::image(source, machine, &parts.base)?;
    let module = kernels::module(source, machine, &parts.base, CARD)?;
    let init = guest::init(&[TEST.to_owned()], SCALE, LIMIT, &wire.commands())?;
    let name = format!("{}-{}", wire.role, source.name);
    let disk = parts.disk(&name, &init, &[(module, "/guest/wire.ko".into())])?;
    let log = parts.base.join(format!("{name}.log"));
    let boot = guest::boot(&parts.qemu, (&kernel, &parts.append), &disk, &wire.arguments, &log, LIMIT);
    let _ = fs::remove_file(&disk);
    let boot = boot?;
    shell::progress(format!("{name} ran for {:.0} s", boot.took.as_secs_f64()));
    Ok(boot)
}
