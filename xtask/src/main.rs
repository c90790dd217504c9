//! Chores of this repository:
//! `cargo xtask setup|build-ebpf|build|package|check|deny|differential|docs|test|ci|demo|bench|faults|transactions|fuzz|vm|vendor|verdicts|tidy`.
//!
//! One file per subcommand; [`shell`] runs programs, [`packages`] is the only list of installed packages, with reasons.
//! Nothing here is part of the tracer.

mod attribution;
mod bench;
mod build;
mod build_ebpf;
mod check;
mod ci;
mod cross;
mod demo;
mod deny;
mod differential;
mod doc_tables;
mod docs;
mod faults;
mod fuzz;
mod http;
mod kernel_tests;
mod links;
mod newer_runtimes;
mod package;
mod packages;
mod postgres;
mod programs;
mod setup;
mod shell;
mod supervised_child;
mod tally;
mod test;
mod tidy;
mod tiers;
mod times;
mod transactions;
mod vendor;
mod verdicts;
mod vm;
mod wheels;
mod workloads;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the tracer's repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Task,
    /// How to build the eBPF object; by default whatever this machine has.
    #[arg(long, global = true, value_enum)]
    toolchain: Option<build_ebpf::Way>,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building, testing and the demo need. Quick if everything is present.
    Setup,
    /// Build the eBPF object (target/ebpf/tracer.bpf.o).
    BuildEbpf(build_ebpf::Options),
    /// Build the eBPF object and `tracer` with the object inside.
    Build(build::Options),
    /// Make the Debian package, the archive and their checksums (target/package/).
    Package(package::Options),
    /// Format, tidy, lints and documentation: every check without a run.
    Check(check::Options),
    /// Set-up, release build, then the quick tier of tests; `--full`: every test.
    Test(test::Options),
    /// What CI does: `check`, then `test`.
    Ci(test::Options),
    /// Trace a small web shop under load on this machine and print the results.
    Demo(demo::Options),
    /// Measure what tracing costs on this machine.
    Bench(bench::Options),
    /// Run the fault cases and print what happened to requests, traced programs and the agent in each.
    Faults(faults::Options),
    /// Replay recordings through another commit's build and this one, and show which spans differ.
    Differential(differential::Options),
    /// Run applications that pass an id on and print how many of their calls are linked to the right request.
    Transactions(transactions::Options),
    /// A server that sleeps 5 ms per request; part of `bench`.
    #[command(hide = true)]
    BenchSleeper {
        /// Where it listens.
        address: std::net::SocketAddr,
    },
    /// The part of `bench --counted` that runs in a guest.
    #[command(hide = true)]
    BenchInGuest {
        /// Names of the builds there.
        builds: Vec<String>,
        /// Cases to measure.
        #[arg(long, value_delimiter = ',')]
        case: Vec<String>,
    },
    /// Run every fuzz target for a bounded time.
    Fuzz(fuzz::Options),
    /// Run the agent and its truth tests on other kernels, in emulated guests.
    Vm(vm::Options),
    /// Licences, duplicate versions and sources of dependencies; known vulnerabilities if they can be looked up.
    Deny,
    /// Write the generated parts of docs/: configuration and metrics.
    Docs,
    /// Copy the console's libraries, as vendor.toml locks them, from the npm registry into the repository.
    Vendor,
    /// Judge the verdicts by a simulated shop in which something changes: confusion matrix, delays, what is named.
    Verdicts(verdicts::Options),
    /// Check what the compiler does not: file heads, file lengths, SAFETY comments, links and stale pages.
    Tidy,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let way = cli.toolchain;
    let done = match cli.command {
        Task::Setup => setup::run(way),
        Task::BuildEbpf(options) => build_ebpf::run(way, &options),
        Task::Build(options) => build::run(way, &options),
        Task::Package(options) => package::run(way, &options),
        Task::Check(options) => check::run(way, &options),
        Task::Test(options) => test::run(way, &options),
        Task::Ci(options) => ci::run(way, &options),
        Task::Demo(options) => demo::run(way, &options),
        Task::Bench(options) => bench::run(way, &options),
        Task::Faults(options) => faults::run(way, &options),
        Task::Differential(options) => differential::run(way, &options),
        Task::Transactions(options) => transactions::run(way, &options),
        Task::BenchSleeper { address } => bench::sleeper(address),
        Task::BenchInGuest { builds, case } => bench::in_guest(&builds, &case),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Vm(options) => vm::run(way, options),
        Task::Deny => deny::run(),
        Task::Docs => docs::run(),
        Task::Vendor => vendor::run(),
        Task::Verdicts(options) => verdicts::run(&options),
        Task::Tidy => tidy::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
