//! What an interpreter runs: an installed script, module or class; never code or data from its command line.

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
        _ => return None,
    };
    Some(interpreted(syntax, arguments).unwrap_or(Program::Unnamed))
}

/// Whether a text is a plausible name of a program, script or module.
pub(super) fn is_name(text: &str) -> bool {
    let of_names = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '$');
    text.len() <= NAME && text.chars().all(of_names) && text.chars().any(char::is_alphabetic)
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
            ("java|-Dkey=secret|-cp|a:b|com.acme.Main|x", "module com.acme.Main"),
        ] {
            assert_eq!(named(line).as_deref(), Some(expected), "{line}");
        }
    }
}
