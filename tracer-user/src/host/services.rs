//! Which service a process belongs to.

use std::path::Path;

use super::process::ProcessFacts;

/// Longest service name; it is a label.
const NAME_LIMIT: usize = 80;

/// A rule of the configuration: processes it fits form the service `name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamingRule {
    /// Name given.
    pub name: String,
    /// Text that must be in the program's path.
    pub exe: Option<String>,
    /// Text that must be in the command line.
    pub cmdline: Option<String>,
    /// Text that must be in the cgroup path.
    pub cgroup: Option<String>,
}

/// Rules in order; the first that fits decides.
pub type NamingRules = Vec<NamingRule>;

/// Name of the service `facts` belong to: a rule's, else `OTEL_SERVICE_NAME`, else the systemd unit's, else the
/// program's (for interpreters the script's, module's or main class's).
pub fn service_name(facts: &ProcessFacts, rules: &NamingRules) -> String {
    let line = facts.cmdline.join(" ");
    let fits = |rule: &NamingRule| {
        let has = |want: &Option<String>, text: &str| want.as_ref().is_none_or(|want| text.contains(want.as_str()));
        has(&rule.exe, &facts.exe) && has(&rule.cmdline, &line) && has(&rule.cgroup, &facts.cgroup)
    };
    let name = rules
        .iter()
        .find(|rule| fits(rule))
        .map(|rule| rule.name.clone())
        .or_else(|| facts.otel_service.clone())
        .or_else(|| unit(&facts.cgroup))
        .unwrap_or_else(|| program(facts));
    let name: String = name.chars().filter(|c| !c.is_control()).take(NAME_LIMIT).collect();
    if name.is_empty() { "unknown".into() } else { name }
}

/// The systemd service of a cgroup path; user managers and sessions are no services.
fn unit(cgroup: &str) -> Option<String> {
    let unit = cgroup.rsplit('/').find(|part| part.ends_with(".service"))?;
    let name = unit.strip_suffix(".service")?;
    (!name.starts_with("user@") && !name.starts_with("ssh")).then(|| name.split('@').next().unwrap_or(name).to_owned())
}

fn stem(path: &str) -> String {
    let name = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
    let name = name.as_ref();
    for extension in [".py", ".pyc", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".jar", ".sh"] {
        if let Some(stem) = name.strip_suffix(extension)
            && !stem.is_empty()
        {
            return stem.to_owned();
        }
    }
    name.to_owned()
}

fn program(facts: &ProcessFacts) -> String {
    let first = facts.cmdline.first().map_or(facts.comm.as_str(), String::as_str);
    // A process that rewrote its title ("nginx: worker process", "postgres: checkpointer"): no path, a colon.
    if let Some((title, _)) = first.split_once(": ")
        && !title.contains('/')
        && !title.is_empty()
    {
        return title.to_owned();
    }
    let program = if facts.exe.is_empty() { first } else { &facts.exe };
    let base = stem(program);
    let kind = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    let arguments = facts.cmdline.get(1..).unwrap_or_default();
    let script = match kind {
        "python" | "pypy" => script(arguments, &["-m"], &["-W", "-X", "-Q"]),
        "node" | "nodejs" | "bun" | "deno" | "ruby" | "perl" | "php" | "php-cgi" => {
            script(arguments, &[], &["-r", "--require", "-e", "-I", "-c", "-d"])
        }
        "sh" | "bash" | "dash" => script(arguments, &[], &["-c", "-o"]),
        "java" => java(arguments),
        _ => link(facts, &base),
    };
    script.unwrap_or(base)
}

/// The name a program of several names was started by (Debian's redis-server is a link to redis-check-rdb), when the
/// kernel's word for it and its own agree on one that is not the file's.
fn link(facts: &ProcessFacts, base: &str) -> Option<String> {
    let first = facts.cmdline.first()?.split(' ').next()?;
    let name = stem(first);
    // The kernel keeps 15 bytes of it.
    let kept = name.get(..name.len().min(15))?;
    (!name.is_empty() && name != base && kept == facts.comm).then_some(name)
}

/// First argument that is a script; `modules` take the name that follows them, `values` are skipped with theirs.
fn script(arguments: &[String], modules: &[&str], values: &[&str]) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if modules.contains(&argument.as_str()) {
            let module = rest.next()?;
            return Some(module.split('.').next().unwrap_or(module).to_owned());
        }
        if values.contains(&argument.as_str()) {
            rest.next();
        } else if argument == "run" || argument.starts_with('-') {
        } else {
            return Some(stem(argument));
        }
    }
    None
}

fn java(arguments: &[String]) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "-jar" => return rest.next().map(|jar| stem(jar)),
            "-cp" | "-classpath" | "--class-path" | "-p" | "--module-path" => {
                rest.next();
            }
            other if other.starts_with('-') || other.starts_with('@') => {}
            main => return Some(main.rsplit(['.', '/']).next().unwrap_or(main).to_owned()),
        }
    }
    None
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
}
