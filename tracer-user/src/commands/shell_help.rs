//! `tracer completions` and `tracer man-pages`: help made from the command line's own definition.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Failure;
use crate::cli::Cli;

/// Prints the completion script of a shell.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tracer", &mut script);
    std::io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::Running(format!("cannot write the completion script: {error}")))
}

/// Writes `tracer.1` and a page for each subcommand into `dir`.
pub fn man_pages(dir: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(Cli::command(), dir)
        .map_err(|error| Failure::Running(format!("cannot write manual pages into {}: {error}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_every_subcommand_users_see() {
        let dir = tempfile::tempdir().expect("a directory");
        man_pages(dir.path()).expect("pages");
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = format!("tracer-{}.1", command.get_name());
            assert!(page(&name).contains(".SH OPTIONS"), "{name}");
        }
        assert!(page("tracer-run.1").contains("max\\-memory"));
        assert!(page("tracer.1").contains("tracer\\-run(1)"));
    }
}
