//! Assigns processes to services.

use std::path::Path;

use tracer_model::text;

use super::command_line::{self, Program};
use super::process::ProcessFacts;

/// Longest service name; it is a metric label.
const NAME_LIMIT: usize = 80;
/// Longest service name with a place.
const PLACE_LIMIT: usize = 120;

/// A configured rule: matching processes form the service `name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamingRule {
    /// Name of the service.
    pub name: String,
    /// Text that the program's path must contain.
    pub exe: Option<String>,
    /// Text that the command line must contain.
    pub cmdline: Option<String>,
    /// Text that the cgroup path must contain.
    pub cgroup: Option<String>,
}

/// Rules in order; the first match decides.
pub type NamingRules = Vec<NamingRule>;

/// A service's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The service name.
    pub name: String,
    /// Where the program, unit or class behind the name was installed. Programs of one name at different places are
    /// different services. `None` if the name was configured, or the place is not known.
    pub place: Option<String>,
}

impl Identity {
    /// The name with the place, for the second service of that name.
    pub fn with_place(name: &str, place: &str) -> String {
        let room = PLACE_LIMIT.saturating_sub(name.chars().count() + 1);
        let long = place.chars().count().saturating_sub(room);
        // Cut the beginning: the end says more.
        let tail: String = if long == 0 { place.into() } else { place.chars().skip(long + 1).collect() };
        format!("{name}@{}{tail}", if long == 0 { "" } else { "…" })
    }

    /// Whether `wanted` is its name, with or without the place.
    pub fn is_called(&self, wanted: &str) -> bool {
        self.name == wanted || self.place.as_ref().is_some_and(|place| Self::with_place(&self.name, place) == wanted)
    }
}

/// The service of a process: from a rule, else `OTEL_SERVICE_NAME`, else the systemd unit, else the program (for
/// interpreters the script, module or main class). Names come from configuration or installed files, never from code or
/// data.
pub fn identify(facts: &ProcessFacts, rules: &NamingRules) -> Identity {
    let line = facts.cmdline.join(" ");
    let fits = |rule: &NamingRule| {
        let has = |want: &Option<String>, text: &str| want.as_ref().is_none_or(|want| text.contains(want.as_str()));
        // Of a process that ended early only the program's name is known.
        let exe = if facts.exe.is_empty() { &facts.comm } else { &facts.exe };
        has(&rule.exe, exe) && has(&rule.cmdline, &line) && has(&rule.cgroup, &facts.cgroup)
    };
    let declared =
        rules.iter().find(|rule| fits(rule)).map(|rule| rule.name.clone()).or_else(|| facts.otel_service.clone());
    let (name, place) = match declared {
        Some(name) => (name, None),
        None => unit(&facts.cgroup).or_else(|| facts.program.clone()).unwrap_or_else(|| program(facts)),
    };
    let name: String = text::printable(&name).chars().take(NAME_LIMIT).collect();
    let place = place.map(|place| text::printable(&place).into_owned());
    if name.is_empty() { Identity { name: "unknown".into(), place: None } } else { Identity { name, place } }
}

/// Name of the service that `facts` belong to.
pub fn service_name(facts: &ProcessFacts, rules: &NamingRules) -> String {
    identify(facts, rules).name
}

/// The systemd service in a cgroup path, and its place; user managers and sessions are not services.
fn unit(cgroup: &str) -> Option<(String, Option<String>)> {
    let unit = cgroup.rsplit('/').find(|part| part.ends_with(".service"))?;
    let name = unit.strip_suffix(".service")?;
    if name.starts_with("user@") || name.starts_with("ssh") {
        return None;
    }
    // Instances of a template are one service; equally named units of two users are not.
    let name = name.split('@').next().unwrap_or(name);
    let above = cgroup.split_once(unit).map_or("", |(above, _)| above);
    Some((name.to_owned(), Some(format!("{above}{name}.service"))))
}

fn stem(path: &str) -> String {
    let name = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
    let name = name.as_ref();
    for extension in [".py", ".pyc", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".jar", ".sh", ".exe", ".exs"]
    {
        if let Some(stem) = name.strip_suffix(extension)
            && !stem.is_empty()
        {
            return stem.to_owned();
        }
    }
    name.to_owned()
}

/// The program's name and its place, by its arguments.
pub(super) fn program(facts: &ProcessFacts) -> (String, Option<String>) {
    let first = facts.cmdline.first().map_or(facts.comm.as_str(), String::as_str);
    let program = if facts.exe.is_empty() { first } else { &facts.exe };
    let base = stem(program);
    let kind = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    let arguments = facts.cmdline.get(1..).unwrap_or_default();
    let run = command_line::program(kind, arguments);
    let exe = (!facts.exe.is_empty()).then(|| facts.exe.clone());
    // What an interpreter runs is not visible behind a title. One without a colon could be arguments of another program.
    if let Some((title, tag)) = command_line::title(first)
        && (run.is_some() || first.contains(": "))
    {
        return (title.to_owned(), tag.map(str::to_owned).or(exe.filter(|_| run.is_none())));
    }
    match run {
        Some(Program::File(path)) => (stem(path), absolute(&facts.cwd, path)),
        Some(Program::Module(module)) => {
            let name = if kind == "java" { module.rsplit(['.', '/']).next() } else { module.split('.').next() };
            (name.unwrap_or(module).to_owned(), Some(module.to_owned()))
        }
        Some(Program::Unnamed) => (base, exe),
        None => (link(facts, &base).unwrap_or(base), exe),
    }
}

/// An absolute path; `None` if the directory it is relative to is not known.
fn absolute(cwd: &str, path: &str) -> Option<String> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{cwd}/{path}") };
    if !whole.starts_with('/') || (cwd.is_empty() && !path.starts_with('/')) {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// The name a program with several names was started by (Debian's redis-server is a link to redis-check-rdb), if its
/// `comm` and its first argument agree on one that is not the file's.
fn link(facts: &ProcessFacts, base: &str) -> Option<String> {
    let first = facts.cmdline.first()?.split(' ').next()?;
    let name = stem(first);
    // The kernel keeps 15 bytes of the name.
    let kept = name.get(..name.len().min(15))?;
    (command_line::is_name(&name) && name != base && kept == facts.comm).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(exe: &str, cmdline: &[&str]) -> String {
        let facts = ProcessFacts {
            exe: exe.into(),
            cmdline: cmdline.iter().map(ToString::to_string).collect(),
            comm: "comm".into(),
            ..ProcessFacts::default()
        };
        service_name(&facts, &Vec::new())
    }

    #[test]
    fn programs_of_several_names() {
        for (comm, cmdline, expected) in [
            ("redis-server", "redis-server 127.0.0.1:6379", "redis-server"),
            ("redis-server", "/usr/bin/redis-server", "redis-server"),
            ("a-long-program-", "/bin/a-long-program-name", "a-long-program-name"),
            ("worker", "/usr/bin/redis-server", "redis-check-rdb"),
        ] {
            let facts = ProcessFacts {
                exe: "/usr/bin/redis-check-rdb".into(),
                cmdline: vec![cmdline.into()],
                comm: comm.into(),
                ..ProcessFacts::default()
            };
            assert_eq!(service_name(&facts, &Vec::new()), expected);
        }
    }

    #[test]
    fn programs() {
        for (exe, cmdline, expected) in [
            ("/usr/sbin/nginx", &["nginx: worker process"][..], "nginx"),
            ("/usr/sbin/nginx", &["nginx: master process /usr/sbin/nginx -c x"], "nginx"),
            ("/usr/lib/postgresql/15/bin/postgres", &["postgres: checkpointer "], "postgres"),
            ("/usr/bin/redis-server", &["/usr/bin/redis-server 127.0.0.1:6379"], "redis-server"),
            ("/usr/bin/python3.11", &["/usr/bin/python3", "/usr/bin/gunicorn", "-w", "2", "app:app"], "gunicorn"),
            ("/usr/bin/python3.11", &["gunicorn: worker [app]"], "gunicorn"),
            ("/usr/bin/python3.11", &["python3", "-m", "http.server", "80"], "http"),
            ("/usr/bin/python3.11", &["python3", "-u", "-X", "dev", "/srv/shop/app.py"], "app"),
            ("/usr/bin/python3.11", &["python3", "manage.py", "runserver"], "manage"),
            ("/usr/bin/node", &["node", "--inspect", "server.js"], "server"),
            ("/usr/lib/jvm/bin/java", &["java", "-Xmx1g", "-jar", "/opt/shop.jar"], "shop"),
            ("/usr/lib/jvm/bin/java", &["java", "-cp", "a:b", "com.acme.Main", "x"], "Main"),
            ("/usr/bin/ruby3.3", &["puma 6.6.0 (tcp://127.0.0.1:8080) [shop]"], "puma"),
            ("/usr/bin/ruby3.3", &["sidekiq 7.3.2 shop [0 of 8 busy]"], "sidekiq"),
            ("/usr/bin/perl", &["starman worker -l 127.0.0.1:80 app.psgi"], "starman"),
            ("/usr/bin/x", &["starman worker -l 127.0.0.1:80 app.psgi"], "x"),
            (
                "/usr/lib/erlang/erts-15.2/bin/beam.smp",
                &["beam.smp", "--", "-noshell", "-s", "orders", "start"],
                "orders",
            ),
            ("/usr/lib/erlang/erts-15.2/bin/beam.smp", &["beam.smp", "--", "-noshell"], "beam.smp"),
            ("/opt/node_modules/bun/bin/bun.exe", &["bun", "front.ts"], "front"),
            ("/opt/node_modules/bun/bin/bun.exe", &["bun"], "bun"),
            ("/usr/bin/bash", &["bash"], "bash"),
            ("/bin/dash", &["sh", "/opt/run.sh"], "run"),
            ("/usr/local/bin/shop", &["./shop", "--port", "1"], "shop"),
            ("", &[], "comm"),
        ] {
            assert_eq!(name(exe, cmdline), expected, "{cmdline:?}");
        }
    }

    #[test]
    fn stronger_names_win() {
        let mut facts = ProcessFacts { exe: "/bin/x".into(), ..ProcessFacts::default() };
        facts.cgroup = "/system.slice/user@1000.service".into();
        assert_eq!(service_name(&facts, &Vec::new()), "x");
        facts.cgroup = "/system.slice/shop@2.service".into();
        assert_eq!(service_name(&facts, &Vec::new()), "shop");
        facts.otel_service = Some("otel".into());
        assert_eq!(service_name(&facts, &Vec::new()), "otel");
        let rule = NamingRule { name: "ruled".into(), exe: Some("/bin/".into()), cmdline: None, cgroup: None };
        assert_eq!(service_name(&facts, &vec![rule]), "ruled");
    }

    #[test]
    fn code_and_data_are_no_names() {
        for (exe, cmdline, expected) in [
            ("/usr/bin/python3.11", &["python3", "-c", "password = 'hunter2'"][..], "python3.11"),
            ("/usr/bin/bash", &["bash", "/dev/fd/3"], "bash"),
            ("/usr/bin/bash", &["bash", "-c", "curl -u a:b"], "bash"),
            ("/usr/bin/node", &["node", "-e", "secret()"], "node"),
            ("/usr/bin/x", &["my password: hunter2"], "x"),
            ("/opt/a\u{202e}b\n", &["x"], "a\\u{202e}b\\u{a}"),
        ] {
            assert_eq!(name(exe, cmdline), expected, "{cmdline:?}");
        }
    }

    #[test]
    fn places_are_where_it_was_installed() {
        let identity = |exe: &str, cwd: &str, cmdline: &[&str], cgroup: &str| {
            let facts = ProcessFacts {
                exe: exe.into(),
                cwd: cwd.into(),
                cmdline: cmdline.iter().map(ToString::to_string).collect(),
                cgroup: cgroup.into(),
                ..ProcessFacts::default()
            };
            let Identity { name, place } = identify(&facts, &Vec::new());
            (name, place.unwrap_or_default())
        };
        for (exe, cwd, cmdline, cgroup, name, place) in [
            ("/usr/bin/node", "/srv/a", &["node", "./server.js"][..], "", "server", "/srv/a/server.js"),
            ("/usr/bin/node", "/srv/b/x", &["node", "../server.js"], "", "server", "/srv/b/server.js"),
            ("/usr/bin/node", "", &["node", "server.js"], "", "server", ""),
            ("/opt/server", "/", &["server"], "", "server", "/opt/server"),
            ("/usr/bin/python3", "/", &["gunicorn: master [app]"], "", "gunicorn", ""),
            ("/usr/sbin/nginx", "/", &["nginx: worker process"], "", "nginx", "/usr/sbin/nginx"),
            ("/usr/bin/ruby3.3", "/", &["puma 6.6.0 (tcp://[::]:8080) [shop]"], "", "puma", "shop"),
            ("/bin/java", "/", &["java", "com.acme.Main"], "", "Main", "com.acme.Main"),
            (
                "/bin/x",
                "/",
                &["x"],
                "/system.slice/system-shop.slice/shop@2.service",
                "shop",
                "/system.slice/system-shop.slice/shop.service",
            ),
        ] {
            assert_eq!(identity(exe, cwd, cmdline, cgroup), (name.to_owned(), place.to_owned()), "{cmdline:?}");
        }
        assert_eq!(Identity::with_place("server", "/srv/b/server.js"), "server@/srv/b/server.js");
        assert_eq!(Identity::with_place("server", &"/x".repeat(200)).chars().count(), PLACE_LIMIT);
    }
}
