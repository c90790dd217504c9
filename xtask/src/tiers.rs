//! Which kernel tests `cargo xtask test` runs: the quick tier, or everything with `--full`. One table decides.
//!
//! The quick tier holds one truth test per subsystem, protocol and runtime, and the faults that take seconds, as far as half
//! an hour of CI allows: what takes longest (a program that waits until Java has compiled itself, budgets that show after half
//! a minute) is left to `--full`. `cargo xtask tidy` fails for a file of `tests/tests/` missing from the table, and for a
//! name without a file.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::kernel_tests;

/// What the quick tier runs of a file of kernel tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quick {
    /// All its tests.
    All,
    /// These tests.
    Some(&'static [&'static str]),
    /// Nothing: only `--full` runs it.
    Nothing,
}

use Quick::{All, Nothing, Some as Only};

/// Every file of kernel tests by its name, and what the quick tier runs of it.
const TABLE: &[(&str, Quick)] = &[
    // HTTP, and the basis of every protocol.
    ("access_log", All),
    ("edges", Only(&["every_way_to_ask_and_answer"])),
    ("events", All),
    ("exceptions", Only(&["exceptions_of_cpp_that_end_requests_have_their_type"])),
    ("exchange_counts", Only(&["every_request_of_nginx_is_counted_though_few_are_seen_whole"])),
    ("harness", All),
    ("http2", Only(&["h2load_counts_what_is_found", "grpc_calls_and_what_came_of_them", "joined_in_the_middle"])),
    ("http2_bodies", Nothing),
    ("log_lines", Only(&["lines_of_a_c_server_stand_beside_their_requests"])),
    ("matrix", Only(&["tcp_over_ipv4", "unix_sockets"])),
    ("process_ends", All),
    ("proxy", Nothing),
    ("websocket", Only(&["sessions_of_pythons_websockets"])),
    // Other protocols: one program each. Those whose servers take longest to start are left to `--full`; what they send was
    // recorded, and is among the unit tests.
    ("amqp", All),
    ("cassandra", Nothing),
    ("dns", Only(&["questions_and_answers_are_what_the_server_logged"])),
    ("fastcgi", All),
    ("gateways", All),
    ("haproxy", All),
    ("jobs", Nothing),
    ("kafka", Nothing),
    (
        "mariadb",
        Only(&[
            "statements_errors_and_durations_are_what_the_server_says",
            "a_server_with_words_in_its_version_is_seen_in_the_clear_and_inside_tls",
        ]),
    ),
    ("mariadb_digests", Nothing),
    ("memcached", All),
    ("mongodb", Nothing),
    ("mqtt", All),
    ("nats", All),
    ("postgresql", Only(&["statements_errors_and_durations_are_what_the_server_logs"])),
    ("postgresql_notify", Nothing),
    ("postgresql_portals", Nothing),
    (
        "redis",
        Only(&["commands_errors_and_cpu_are_what_the_server_says", "subscriptions_in_a_transaction_move_no_outcome"]),
    ),
    ("stomp", Nothing),
    ("tls", Only(&["nginx_and_curl_as_the_access_log_says"])),
    ("tls_libraries", Nothing),
    ("tls_memory", Nothing),
    ("tls_node", Nothing),
    ("tls_roots", Nothing),
    ("tls_servers", Nothing),
    ("tls_under_load", Nothing),
    ("round_trips", Nothing),
    // CPU, waits and stacks.
    // A profile needs 60 windows.
    ("activity", Nothing),
    ("ad_hoc", All),
    ("cpu", All),
    ("debug_info", All),
    ("subsystems", Nothing),
    ("subsystems_threads", Nothing),
    ("workloads", All),
    // Between them C, Go, lines and requests.
    (
        "declared",
        Only(&["functions_of_a_c_program_are_what_they_measured", "a_function_within_requests_is_their_child"]),
    ),
    ("declared_calls", Only(&["lines_of_an_optimised_c_program_are_what_they_measured"])),
    (
        "declared_probes",
        Only(&["probes_of_a_c_program_are_what_it_measured", "probes_that_cannot_be_declared_say_why"]),
    ),
    ("declared_values", Nothing),
    ("flame", All),
    ("hotspots", Nothing),
    ("instrumentation", Nothing),
    ("call_sites", Nothing),
    ("moved", Nothing),
    ("off_cpu", Only(&["a_wait_for_a_call_names_whom_it_calls"])),
    ("overhead_budget", Nothing),
    // Eleven programs beside perf.
    ("perf_agreement", Nothing),
    ("java_frames", Nothing),
    ("node_frames", Only(&["a_server_shows_its_functions_with_file_and_line"])),
    ("running", All),
    ("network", Only(&["calls_have_what_tcp_says_and_failed_connects_their_cause"])),
    ("trace_contexts", Only(&["each_thread_shows_the_request_it_holds_and_none_afterwards"])),
    // Whole interpreters are copied.
    ("frames_roots", Nothing),
    ("php_frames", Only(&["a_program_shows_its_functions_with_their_lines"])),
    (
        "python_frames",
        Only(&["the_usual_version_shows_its_functions_with_their_lines", "code_that_was_freed_has_no_name"]),
    ),
    ("early_stacks", Nothing),
    ("unwind", Only(&["nginx_and_redis_are_walked_to_the_end"])),
    ("pools", Only(&["python"])),
    ("queues", All),
    // Causes of calls: one test per runtime.
    ("context", All),
    ("links", Only(&["threads_that_hold_one_request_are_certain"])),
    ("recordings", All),
    ("transactions", Only(&["python_threads_and_pools", "java_nio", "node_newer"])),
    ("transactions_compiled", Only(&["go", "tokio"])),
    ("transactions_grpc", Only(&["python_asyncio"])),
    ("transactions_served", Only(&["nginx", "puma"])),
    ("transactions_shapes", Only(&["forked_processes", "unix_sockets"])),
    // The agent: its life cycle, its limits, its output.
    // A browser takes a while to start; that pages and files answer is tested without one.
    ("console", Nothing),
    ("top", Nothing),
    // The protocol's own client and what it imports are 45 MB: wheels that only `--full` unpacks.
    ("mcp", Only(&["questions_on_standard_input_get_the_agents_answers"])),
    ("containers", Only(&["a_services_containers_are_those_of_its_processes"])),
    ("doctor", All),
    ("kubernetes", All),
    ("lifecycle", Only(&["signals_detach_within_a_second_and_a_kill_leaves_nothing", "what_cannot_run_says_why"])),
    ("limits", Only(&["a_stuck_agent_ends_when_it_is_asked_to"])),
    ("monitoring", Only(&["rules_are_right_by_promtool"])),
    (
        "names",
        Only(&[
            "a_scan_destroys_no_class_and_secrets_in_paths_name_none",
            "code_names_no_service",
            "long_command_lines_and_environments_hide_no_name",
            "paths_that_come_back_are_classes",
            "two_programs_of_one_name_are_two_services",
        ]),
    ),
    ("narrow", All),
    ("otlp", Only(&["a_collector_reads_them_by_grpc"])),
    ("tail_sampling", All),
    // Two intervals of export take half a minute.
    ("otlp_profiles", Nothing),
    ("privileges", Only(&["two_capabilities_trace_every_request", "six_capabilities_read_inside_tls"])),
    ("findings", Nothing),
    // Twelve minutes.
    ("findings_seeds", Nothing),
    ("history", All),
    ("history_bucket", Nothing),
    // ClickHouse is half a gigabyte: a wheel that only `--full` unpacks.
    ("history_engines", Only(&["duckdb_reads_windows_and_days_by_the_documented_statements"])),
    // Spark is half a gigabyte: its test runs where TRACER_PYSPARK names a directory with the package.
    ("fleet_policies", Nothing),
    ("fleet_spark", Only(&["the_jobs_own_tests"])),
    ("saved", All),
    ("hindsight", All),
    ("request_limits", All),
    ("reload", Only(&["what_stays_loses_no_call_and_what_is_wrong_changes_nothing"])),
    ("series", Nothing),
    (
        "service_classes",
        Only(&[
            "enforcement_needs_roots_own_file",
            "what_threads_inherit_or_set_themselves",
            "a_dry_run_makes_no_call",
        ]),
    ),
    ("network_priority", Only(&["replies_carry_the_priority_of_their_class_and_nothing_stays"])),
    ("secrets", All),
    ("service_manager", All),
    // Several hosts.
    ("inband", Only(&["options_alone_link_hosts"])),
    ("inband_callers", Nothing),
    // Off unless it is asked for, and half a minute.
    ("inband_header", Nothing),
    ("inband_kept", Nothing),
    ("inband_wire", Nothing),
    // Needs two guests joined by a wire: `cargo xtask vm --pair`.
    ("pair", Nothing),
    // Is for guests whose kernel preempts programs: `cargo xtask vm --preempt`.
    ("preempted", Nothing),
    ("roots", Nothing),
    ("relay", Only(&["edges_without_translation", "nothing_stays_behind"])),
    ("relay_bounds", Nothing),
    ("relay_clock", Nothing),
    ("relay_cost", Nothing),
    ("relay_nats", Only(&["nats_without_translation"])),
    ("relay_peers", Nothing),
    ("relay_recovery", Nothing),
    ("relay_tls", Nothing),
    ("relay_trust", Nothing),
    // Faults.
    ("faults_clock", All),
    ("faults_connections", Nothing),
    ("faults_disk", Only(&["a_full_disk_costs_files_and_nothing_else"])),
    ("faults_outputs", All),
    ("faults_processes", Nothing),
    ("faults_readers", All),
    ("faults_refused", Only(&["file_descriptors_run_out"])),
    ("faults_restarts", Only(&["two_agents_at_once_see_the_same"])),
    ("faults_starved", Nothing),
];

/// What the quick tier runs of a file; all of one missing from the table, which `cargo xtask tidy` reports.
fn quick(file: &str) -> Quick {
    TABLE.iter().find(|(name, _)| *name == file).map_or(All, |(_, quick)| *quick)
}

/// Every file.
pub(crate) fn all_files() -> Vec<String> {
    TABLE.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// The files of which the quick tier runs anything.
pub(crate) fn quick_files() -> Vec<String> {
    TABLE.iter().filter(|(_, quick)| *quick != Nothing).map(|(name, _)| (*name).to_owned()).collect()
}

/// The tests of a file that the quick tier runs, where none are named all of them; `None` if it runs none.
pub(crate) fn tests(file: &str) -> Option<Vec<&'static str>> {
    match quick(file) {
        All => Some(Vec::new()),
        Only(names) => Some(names.to_vec()),
        Nothing => None,
    }
}

/// The table as text: a line per file, with what the quick tier runs of it and what it leaves to `--full`.
pub(crate) fn list(root: &Path) -> Result<String> {
    let mut text = format!("{:<24} {:<10} {:>5} {:>5}  quick tier\n", "file", "subject", "quick", "tests");
    let (mut quick_sum, mut all_sum) = (0, 0);
    for (subject, files) in kernel_tests::subjects(root)? {
        for file in files {
            let all = tests_of(root, &subject, &file)?.len();
            let (count, names) = match quick(&file) {
                All => (all, "all".to_owned()),
                Only(names) => (names.len(), names.join(", ")),
                Nothing => (0, "nothing".to_owned()),
            };
            quick_sum += count;
            all_sum += all;
            text += &format!("{file:<24} {subject:<10} {count:>5} {all:>5}  {names}\n");
        }
    }
    text += &format!("{:<24} {:<10} {quick_sum:>5} {all_sum:>5}", "sum", "");
    Ok(text)
}

/// Errors in the table, as lines for `cargo xtask tidy`.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut all = BTreeSet::new();
    for (subject, files) in kernel_tests::subjects(root)? {
        for file in files {
            if let Only(names) = quick(&file) {
                let tests = tests_of(root, &subject, &file)?;
                let unknown = names.iter().filter(|name| !tests.iter().any(|test| test == *name));
                wrong.extend(unknown.map(|name| format!("xtask/src/tiers.rs: {file} has no test {name}")));
            }
            all.insert(file);
        }
    }
    wrong.extend(faults(TABLE, &all));
    Ok(wrong)
}

fn faults(table: &[(&str, Quick)], files: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files {
        match table.iter().filter(|(name, _)| name == file).count() {
            0 => wrong.push(format!("xtask/src/tiers.rs: {file} of tests/tests/ has no tier")),
            1 => {}
            _ => wrong.push(format!("xtask/src/tiers.rs: {file} stands in the table twice")),
        }
    }
    let gone = table.iter().filter(|(name, _)| !files.contains(*name));
    wrong.extend(gone.map(|(name, _)| format!("xtask/src/tiers.rs: there is no {name}.rs below tests/tests/")));
    wrong
}

/// Names of the tests in a file.
fn tests_of(root: &Path, subject: &str, file: &str) -> Result<Vec<String>> {
    let path = root.join("tests/tests").join(subject).join(format!("{file}.rs"));
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(names(&text))
}

fn names(text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let mut names = Vec::new();
    while lines.by_ref().any(|line| line.trim() == "#[test]") {
        let name = lines.by_ref().find_map(|line| line.trim().strip_prefix("fn ")?.split('(').next());
        names.extend(name.map(str::to_owned));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_tier_is_a_fault() {
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let table = [("a", All), ("b", Nothing)];
        assert_eq!(faults(&table, &files(&["a", "b"])), Vec::<String>::new());
        assert_eq!(faults(&table, &files(&["a", "b", "new"])).len(), 1);
        assert_eq!(faults(&table, &files(&["a"])).len(), 1);
        assert_eq!(faults(&[("a", All), ("a", Nothing)], &files(&["a"])).len(), 1);
    }

    #[test]
    fn the_table_names_what_there_is() {
        assert_eq!(check(&crate::shell::root()).expect("files"), Vec::<String>::new());
    }

    #[test]
    fn names_of_tests_are_found_below_other_attributes() {
        let text = "#[test]\nfn a() {}\nfn helper() {}\n    #[test]\n    #[expect(x)]\n    fn b(){}\n";
        assert_eq!(names(text), ["a", "b"]);
    }

    #[test]
    fn a_file_has_all_tests_some_or_none() {
        assert_eq!(tests("pair"), None);
        assert_eq!(tests("pools"), Some(vec!["python"]));
        assert_eq!(tests("cpu"), Some(Vec::new()));
    }
}
