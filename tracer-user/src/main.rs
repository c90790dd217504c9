//! The `tracer` binary: parse, run one subcommand, exit with its code.

use std::process::ExitCode;

use clap::Parser;
use tracer_user::cli::{Cli, Command};
use tracer_user::commands;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` arrive here too, and are fine.
            let code = if error.use_stderr() { commands::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let done = match cli.command {
        Command::Run(run) => commands::run::run(&run.live, run.record.as_deref()),
        Command::Record(record) => commands::run::run(&record.live, Some(&record.file)),
        Command::Top { url, interval } => commands::top::top(url.as_deref(), interval),
        Command::Mcp { url } => commands::mcp::serve(&url),
        Command::Replay(replay) => commands::replay::replay(&replay),
        Command::Doctor(doctor) => commands::doctor::doctor(doctor.json, doctor.config.as_deref()),
        Command::Declare(declare) => match (&declare.list, &declare.check) {
            (Some(binary), _) => commands::declare::list(binary, declare.pattern.as_deref()),
            (None, Some(file)) => commands::declare::check(file),
            (None, None) => Ok(()),
        },
        Command::Fleet(options) => commands::fleet::run(&options),
        Command::Verdicts(options) => commands::verdicts::run(&options),
        Command::CheckConfig { file } => commands::check_config(&file),
        Command::Completions { shell } => commands::shell_help::completions(shell),
        Command::ManPages { dir } => commands::shell_help::man_pages(&dir),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tracer: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
