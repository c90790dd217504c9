//! What a process of PostgreSQL is, by the title it gives itself (`ps` shows it), and where its data is, by its arguments.
//!
//! Titles have been like this since PostgreSQL 10: `postgres: CLUSTER: checkpointer`, `postgres: CLUSTER: USER DATABASE HOST(PORT) STATE`,
//! where `CLUSTER: ` is there if `cluster_name` is set.

/// What a title says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Title {
    /// A session of this user with this database.
    Session(String, String),
    /// Computes for the session of another process.
    Worker(u32),
    /// A part of the server.
    Component(&'static str),
}

/// Background processes: the beginning of the title, and the component it is.
const COMPONENTS: &[(&str, &str)] = &[
    ("checkpointer", "checkpointer"),
    ("background writer", "background writer"),
    ("walwriter", "WAL writer"),
    ("wal writer", "WAL writer"),
    ("walsender", "replication"),
    ("walreceiver", "replication"),
    ("wal summarizer", "WAL summarizer"),
    ("walsummarizer", "WAL summarizer"),
    ("logical replication", "replication"),
    ("slotsync worker", "replication"),
    ("autovacuum launcher", "autovacuum"),
    ("autovacuum worker", "autovacuum"),
    ("archiver", "archiver"),
    ("startup", "recovery"),
    ("logger", "logger"),
    ("stats collector", "statistics"),
    ("io worker", "I/O workers"),
    ("bgworker:", "background workers"),
    ("background worker", "background workers"),
];
/// Longest name of a user or database in PostgreSQL, bytes.
const NAME: usize = 63;

/// What the process with this title is; `None` if the title does not say (yet).
pub(super) fn read(title: &str) -> Option<Title> {
    let title = title.trim_end().strip_prefix("postgres: ")?;
    let rest = without_cluster(title);
    if let Some(component) = component(rest) {
        return Some(Title::Component(component));
    }
    if let Some(leader) = rest.strip_prefix("parallel worker for PID ") {
        return leader.trim().parse().ok().map(Title::Worker);
    }
    let mut words = rest.split(' ');
    let (user, database, host, state) = (words.next()?, words.next()?, words.next()?, words.next());
    // With blanks in a name the parts cannot be separated.
    let is_host = host == "[local]" || host.strip_suffix(')').is_some_and(|host| host.contains('('));
    let is_name = |name: &str| !name.is_empty() && name.len() <= NAME;
    // Before the server accepted them, user and database are what a client claims.
    let is_accepted = state.is_some_and(|state| !matches!(state, "authentication" | "initializing" | "startup"));
    (is_host && is_accepted && is_name(user) && is_name(database))
        .then(|| Title::Session(user.to_owned(), database.to_owned()))
}

fn component(title: &str) -> Option<&'static str> {
    COMPONENTS.iter().find(|(begins, _)| title.starts_with(begins)).map(|(_, component)| *component)
}

/// The title without `cluster_name`. A user's name may end with a colon, too, but not before a component's name.
fn without_cluster(title: &str) -> &str {
    if component(title).is_some() {
        return title;
    }
    match title.split_once(": ") {
        // `bgworker: name` has its own.
        Some((cluster, rest)) if !cluster.contains(' ') || component(rest).is_some() => rest,
        _ => title,
    }
}

/// The directory of data in a server's command line.
pub(super) fn data_directory(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    words.next()?;
    loop {
        let word = words.next()?;
        if word == "-D" {
            return words.next();
        }
        if let Some(dir) = word.strip_prefix("-D").or_else(|| word.strip_prefix("--data_directory=")) {
            return Some(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn titles() {
        let session = |user: &str, database: &str| Some(Title::Session(user.into(), database.into()));
        for (title, expected) in [
            ("postgres: checkpointer ", Some(Title::Component("checkpointer"))),
            ("postgres: 15/main: checkpointer ", Some(Title::Component("checkpointer"))),
            ("postgres: my cluster: background writer ", Some(Title::Component("background writer"))),
            ("postgres: 15/main: autovacuum worker shop", Some(Title::Component("autovacuum"))),
            ("postgres: 17/main: io worker 2", Some(Title::Component("I/O workers"))),
            ("postgres: 15/main: logical replication launcher ", Some(Title::Component("replication"))),
            ("postgres: 15/main: parallel worker for PID 4242 ", Some(Title::Worker(4242))),
            ("postgres: 15/main: alice shop 127.0.0.1(40518) idle", session("alice", "shop")),
            ("postgres: alice shop [local] idle in transaction", session("alice", "shop")),
            ("postgres: 15/main: alice shop ::1(40518) SELECT", session("alice", "shop")),
            // A client claims to be alice.
            ("postgres: 15/main: alice shop 127.0.0.1(40518) authentication", None),
            ("postgres: 15/main: alice shop 127.0.0.1(40518) initializing", None),
            ("postgres: 15/main: alice shop 127.0.0.1(40518)", None),
            ("postgres: 15/main: al ice shop [local] idle", None),
            ("/usr/lib/postgresql/15/bin/postgres -D /var/lib/x", None),
            ("postgres: ", None),
            ("", None),
        ] {
            assert_eq!(read(title), expected, "{title}");
        }
    }

    #[test]
    fn directories() {
        for (line, expected) in [
            (
                "/usr/bin/postgres -D /var/lib/postgresql/15/main -c config_file=/etc/x",
                Some("/var/lib/postgresql/15/main"),
            ),
            ("postgres -D/data", Some("/data")),
            ("postgres --data_directory=/data -p 1", Some("/data")),
            ("postgres -p 1", None),
            ("", None),
        ] {
            assert_eq!(data_directory(line), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_title_is_survived(title in ".{0,120}") {
            let _ = (read(&title), read(&format!("postgres: {title}")), data_directory(&title));
        }
    }
}
