//! What an interpreter runs: an installed script, module or class, or what a title calls itself; never code or data from its
//! command line.

use std::path::Path;

/// The program that a command line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program<'a> {
    /// A script file.
    File(&'a str),
    /// A module or class, by its full name.
    Module(&'a str),
    /// Code, standard input, or anything else that cannot have been installed.
    Unnamed,
}

/// Command line syntax of an interpreter. Strings list the letters of short options, which may be joined: `-lane`.
struct Syntax {
    /// Code follows, or comes from standard input: no later argument is a name.
    code: &'static str,
    /// The module's name follows.
    module: &'static str,
    /// The script's name follows.
    file: &'static str,
    /// A value follows, joined or as the next argument.
    value: &'static str,
    /// The rest of the argument is a value.
    joined: &'static str,
    /// Long options whose value is the next argument.
    long_values: &'static [&'static str],
    /// Long options whose next argument is code.
    long_code: &'static [&'static str],
    /// Subcommands of the interpreter.
    commands: &'static [&'static str],
}

const NONE: Syntax =
    Syntax { code: "", module: "", file: "", value: "", joined: "", long_values: &[], long_code: &[], commands: &[] };
const PYTHON: Syntax =
    Syntax { code: "c", module: "m", value: "WXQ", long_values: &["--check-hash-based-pycs"], ..NONE };
const NODE: Syntax = Syntax {
    code: "ep",
    value: "rC",
    long_code: &["--eval", "--print"],
    long_values: &[
        "--require",
        "--import",
        "--loader",
        "--experimental-loader",
        "--conditions",
        "--env-file",
        "--title",
        "--cwd",
        "--icu-data-dir",
        "--openssl-config",
        "--diagnostic-dir",
        "--redirect-warnings",
        "--watch-path",
        "--config",
        "--preload",
        "--import-map",
        "--stack-trace-limit",
        "--input-type",
    ],
    commands: &["run", "serve", "start"],
    ..NONE
};
const RUBY: Syntax = Syntax { code: "e", value: "rICE", joined: "FKTWx0i", ..NONE };
const PERL: Syntax = Syntax { code: "eE", value: "I", joined: "MmiFCDdxV0", ..NONE };
const PHP: Syntax = Syntax { code: "rBRE", file: "fF", value: "dctSzbT", ..NONE };
const SHELL: Syntax = Syntax { code: "cs", value: "oO", long_values: &["--rcfile", "--init-file"], ..NONE };
/// Options of `java` whose value is the next argument.
const JAVA_VALUES: [&str; 14] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--add-opens",
    "--add-exports",
    "--add-modules",
    "--add-reads",
    "--limit-modules",
    "--upgrade-module-path",
    "--patch-module",
    "--source",
    "--enable-native-access",
];
/// Options of `elixir` whose value is the next argument.
const ELIXIR_VALUES: [&str; 8] = ["-pa", "-pz", "-r", "-pr", "--cookie", "--name", "--sname", "--rpc-eval"];
/// Modules that start others on the virtual machine of Erlang.
const ERLANG_STARTERS: [&str; 6] = ["elixir", "init", "application", "inets", "ssl", "crypto"];
/// What follows the program's name in titles that have no colon: `starman worker -l :80`, `unicorn worker[0]`.
const ROLES: [&str; 10] =
    ["master", "worker", "manager", "server", "parent", "child", "scheduler", "supervisor", "dispatcher", "monitor"];
/// Longest name.
const NAME: usize = 64;

/// What the interpreter `kind` (a program's name without its version) runs; `None` for programs that are not
/// interpreters.
pub(super) fn program<'a>(kind: &str, arguments: &'a [String]) -> Option<Program<'a>> {
    let syntax = match kind {
        "python" | "pypy" => &PYTHON,
        "node" | "nodejs" | "bun" | "deno" => &NODE,
        "ruby" | "jruby" => &RUBY,
        "perl" => &PERL,
        "php" | "php-cgi" => &PHP,
        "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" => &SHELL,
        "java" => return Some(java(arguments).unwrap_or(Program::Unnamed)),
        "beam.smp" | "beam" => return Some(erlang(arguments).unwrap_or(Program::Unnamed)),
        _ => return None,
    };
    Some(interpreted(syntax, arguments).unwrap_or(Program::Unnamed))
}

/// Whether a text is a plausible name of a program, script or module.
pub(super) fn is_name(text: &str) -> bool {
    let of_names = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '$');
    text.len() <= NAME && text.chars().all(of_names) && text.chars().any(char::is_alphabetic)
}

/// The name in a title that a program gave itself in place of its arguments, and which of several it is:
/// `nginx: worker process`, `puma 6.6.0 (tcp://127.0.0.1:8080) [shop]`, `sidekiq 7.3.2 shop [0 of 8 busy]`, `starman worker`.
pub(super) fn title(first: &str) -> Option<(&str, Option<&str>)> {
    if let Some((name, _)) = first.split_once(": ")
        && is_name(name.trim_start_matches('['))
    {
        return Some((name.trim_start_matches('['), None));
    }
    let (name, rest) = first.split_once(' ').filter(|(name, _)| is_name(name))?;
    let mut words = rest.split(' ');
    let next = words.next()?;
    if next.starts_with(|c: char| c.is_ascii_digit()) && next.contains('.') && is_version(next) {
        let bracketed = rest.strip_suffix(']').and_then(|rest| rest.rsplit('[').next());
        let tag = words.next().filter(|word| is_name(word)).or(bracketed).filter(|tag| is_name(tag));
        return Some((name, tag));
    }
    let role = next.split('[').next().unwrap_or(next);
    ROLES.contains(&role).then_some((name, None))
}

fn is_version(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
}

/// Whether Python runs a part of the process that started it: a worker of a pool that does not fork, or a helper of it.
pub(super) fn is_part_of_parent(arguments: &[String]) -> bool {
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        match argument {
            "-c" => return rest.next().is_some_and(|code| code.starts_with("from multiprocessing.")),
            "-m" => return rest.next().is_some_and(|module| module.starts_with("joblib.externals.loky")),
            "-X" | "-W" => {
                rest.next();
            }
            option if option.starts_with('-') => {}
            _ => return false,
        }
    }
    false
}

fn interpreted<'a>(syntax: &Syntax, arguments: &'a [String]) -> Option<Program<'a>> {
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        if argument == "--" {
            return file(rest.next()?);
        }
        if argument.starts_with("--") {
            let name = argument.split('=').next().unwrap_or(argument);
            if syntax.long_code.contains(&name) {
                return None;
            }
            if syntax.long_values.contains(&argument) {
                rest.next();
            }
        } else if let Some(letters) = argument.strip_prefix('-').or_else(|| argument.strip_prefix('+')) {
            if letters.is_empty() {
                return None;
            }
            for (at, letter) in letters.char_indices() {
                let joined = letters.get(at + letter.len_utf8()..).unwrap_or_default();
                let mut following = || if joined.is_empty() { rest.next() } else { Some(joined) };
                if syntax.code.contains(letter) {
                    return None;
                } else if syntax.module.contains(letter) {
                    return following().filter(|name| is_name(name)).map(Program::Module);
                } else if syntax.file.contains(letter) {
                    return file(following()?);
                } else if syntax.value.contains(letter) {
                    following();
                    break;
                } else if syntax.joined.contains(letter) {
                    break;
                }
            }
        } else if !syntax.commands.contains(&argument) {
            return file(argument);
        }
    }
    None
}

/// A script; a path that is no file, or only a descriptor, has no name.
fn file(path: &str) -> Option<Program<'_>> {
    let base = path.rsplit('/').next().unwrap_or(path);
    let installed = !path.starts_with("/dev/") && !path.starts_with("/proc/") && is_name(base);
    installed.then_some(Program::File(path))
}

/// The name of the node, else the script, else the module that is started: `beam.smp -- -root … -sname shop@host -s shop -extra …`.
fn erlang(arguments: &[String]) -> Option<Program<'_>> {
    let (mut node, mut module, mut script) = (None, None, None);
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        match argument {
            // A shell at another node.
            "-remsh" => return None,
            "-name" | "-sname" => node = rest.next()?.split('@').next().filter(|name| is_name(name)).or(node),
            "-s" | "-run" => {
                let name = rest.next()?;
                let name = name.strip_prefix("Elixir.").unwrap_or(name);
                module = module.or(Some(name).filter(|name| is_name(name) && !ERLANG_STARTERS.contains(name)));
            }
            "-extra" => {
                script = elixir(rest);
                break;
            }
            _ => {}
        }
    }
    node.map(Program::Module).or(script).or(module.map(Program::Module))
}

/// The script among the arguments of `elixir`.
fn elixir<'a>(mut rest: impl Iterator<Item = &'a str>) -> Option<Program<'a>> {
    while let Some(argument) = rest.next() {
        match argument {
            "-e" | "--eval" => return None,
            value if ELIXIR_VALUES.contains(&value) => {
                rest.next();
            }
            option if option.starts_with(['-', '+']) => {}
            script => return file(script),
        }
    }
    None
}

fn java(arguments: &[String]) -> Option<Program<'_>> {
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        match argument {
            "-jar" => return file(rest.next()?),
            "-m" | "--module" => {
                return rest.next()?.rsplit('/').next().filter(|name| is_name(name)).map(Program::Module);
            }
            value if JAVA_VALUES.contains(&value) => {
                rest.next();
            }
            other if other.starts_with('-') || other.starts_with('@') => {}
            source if Path::new(source).extension().is_some_and(|extension| extension == "java") => {
                return file(source);
            }
            main => return Some(main).filter(|main| main.split('/').all(is_name)).map(Program::Module),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(line: &str) -> Option<String> {
        let words: Vec<String> = line.split('|').map(str::to_owned).collect();
        match program(&words[0], &words[1..]).expect("an interpreter") {
            Program::File(path) => Some(path.to_owned()),
            Program::Module(name) => Some(format!("module {name}")),
            Program::Unnamed => None,
        }
    }

    #[test]
    fn code_and_data_name_nothing() {
        for line in [
            "python|-c|import os; password='hunter2'",
            "python|-uc|print(1)",
            "python|-cprint(1)",
            "python|-W|ignore|-Bc|print(1)|server.py",
            "python|-",
            "python|/dev/fd/3",
            "python|/proc/self/fd/3",
            "node|-e|http.createServer()",
            "node|--eval=secret",
            "node|--eval|secret",
            "node|-pe|1",
            "ruby|-rsocket|-e|puts 1",
            "perl|-lane|print $secret",
            "perl|-i.bak|-pe|s/a/b/",
            "php|-r|echo 1;",
            "bash|-c|curl -H 'Authorization: x'",
            "bash|-xec|secret",
            "bash|-s|secret",
            "bash|/dev/fd/3",
            "sh|3",
            "sh|a b",
            "java|-cp|x|hunter2!",
            "php|-S|localhost:8000",
            "python",
            "beam.smp|-K|true|--|-root|/usr/lib/erlang|-progname|erl|--|-home|/root|--|-noshell|-eval|secret()",
            "beam.smp|--|-root|/usr/lib/erlang|--|-noshell|-s|elixir|start_cli|-extra|-e|secret()",
            "beam.smp|--|-noshell|-sname|rem-77-shop@host|-remsh|shop@host",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
    }

    #[test]
    fn what_was_installed_is_named() {
        for (line, expected) in [
            ("python|-u|-X|dev|/srv/app.py", "/srv/app.py"),
            ("python|-Xdev|app.py|-c|x", "app.py"),
            ("python|-Im|http.server|80", "module http.server"),
            ("python|-mhttp.server", "module http.server"),
            ("node|--inspect|-r|dotenv/config|server.js", "server.js"),
            ("node|--require|x|--max-old-space-size=9|server.mjs", "server.mjs"),
            ("deno|run|-A|main.ts", "main.ts"),
            ("ruby|-I|lib|bin/rails|server", "bin/rails"),
            ("perl|-w|-Ilib|-MStrict|tool.pl", "tool.pl"),
            ("php|-d|a=b|-f|cron.php", "cron.php"),
            ("php|-S|localhost:80|-t|public|router.php", "router.php"),
            ("bash|-o|pipefail|-eu|/opt/run.sh|-c|x", "/opt/run.sh"),
            ("java|--add-opens|java.base/java.lang=ALL|-jar|/opt/shop.jar", "/opt/shop.jar"),
            ("java|-p|mods|-m|shop/com.acme.Main", "module com.acme.Main"),
            (
                "beam.smp|--|-root|/usr/lib/erlang|-bindir|/x|--|-home|/root|--|-noshell|-s|orders|start",
                "module orders",
            ),
            ("beam.smp|--|-pa||-noshell|-noinput|-s|rabbit|boot|-boot|start_sasl|-sname|rabbit@host", "module rabbit"),
            (
                "beam.smp|--|-noshell|-s|elixir|start_cli|-mode|embedded|-name|shop@10.1.2.3|-extra|--no-halt",
                "module shop",
            ),
            (
                "beam.smp|--|-elixir_root|/usr/lib/elixir|-noshell|-s|elixir|start_cli|-extra|--no-halt|web.exs",
                "web.exs",
            ),
            ("beam.smp|--|-noshell|-s|elixir|start_cli|-extra|/usr/bin/mix|phx.server", "/usr/bin/mix"),
            ("bun|run|front.ts", "front.ts"),
            ("java|-Dkey=secret|-cp|a:b|com.acme.Main|x", "module com.acme.Main"),
        ] {
            assert_eq!(named(line).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn titles() {
        for (text, expected) in [
            ("nginx: worker process", Some(("nginx", None))),
            ("[celeryd: celery@host:MainProcess] -active- (worker)", Some(("celeryd", None))),
            ("puma 6.6.0 (tcp://127.0.0.1:8080) [shop]", Some(("puma", Some("shop")))),
            ("puma: cluster worker 0: 4711 [shop]", Some(("puma", None))),
            ("sidekiq 7.3.2 shop [0 of 8 busy]", Some(("sidekiq", Some("shop")))),
            ("sidekiq 7.3.2  [0 of 8 busy]", Some(("sidekiq", None))),
            ("starman master -l 127.0.0.1:80 app.psgi", Some(("starman", None))),
            ("unicorn worker[0] -c unicorn.rb", Some(("unicorn", None))),
            ("my password: hunter2", None),
            ("order 17 of jane", None),
            ("/usr/bin/x worker", None),
            ("puma", None),
            ("", None),
        ] {
            assert_eq!(title(text), expected, "{text}");
        }
    }
}
