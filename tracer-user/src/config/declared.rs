//! `[[transaction]]`: declared transactions.

use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use tracer_runtimes::declared::{
    Declared, FailSource, METRICS, Metric, MetricKind, Predicate, Source as ValuePlace, Target, ValueSource,
};

use super::{ConfigError, Source};

/// Most declared transactions.
pub(super) const DECLARED_MAX: usize = 64;
/// Longest names, bytes.
const NAME: usize = 120;
const FUNCTION: usize = 1024;
const METRIC_NAME: usize = 64;
/// Highest `max_rate`, calls a second.
const RATE: i64 = 1_000_000;

/// One of them, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TransactionFile {
    name: Spanned<String>,
    program: Spanned<String>,
    function: Option<Spanned<String>>,
    fail: Option<Spanned<String>>,
    call: Option<Spanned<CallFile>>,
    lines: Option<Spanned<LinesFile>>,
    probes: Option<Spanned<ProbesFile>>,
    user: Option<Spanned<String>>,
    #[serde(default)]
    metrics: Vec<MetricFile>,
    max_rate: Option<Spanned<i64>>,
}

/// A call, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallFile {
    caller: Spanned<String>,
    callee: Spanned<String>,
}

/// Lines, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinesFile {
    file: Spanned<String>,
    from: Spanned<u32>,
    to: Spanned<u32>,
}

/// USDT probes, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbesFile {
    provider: Spanned<String>,
    begin: Spanned<String>,
    end: Option<Spanned<String>>,
}

/// A metric, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricFile {
    name: Spanned<String>,
    #[serde(rename = "type")]
    kind: Spanned<String>,
    value: Spanned<String>,
}

/// Checks them.
pub(super) fn check(source: &Source<'_>, all: Vec<TransactionFile>) -> Result<Arc<[Declared]>, ConfigError> {
    if let Some(last) = all.get(DECLARED_MAX) {
        return Err(source.wrong(&last.name.span(), format!("at most {DECLARED_MAX} transactions can be declared")));
    }
    let mut checked: Vec<Declared> = Vec::new();
    for file in all {
        let declared = one(source, &file)?;
        if let Some(other) = checked.iter().find(|other| other.name == declared.name) {
            let what = format!("the name '{}' is declared twice: also at {}", declared.name, other.place);
            return Err(source.wrong(&file.name.span(), what));
        }
        let same = |other: &&Declared| other.program == declared.program && other.target == declared.target;
        if let Some(other) = checked.iter().find(same) {
            let what = format!("this function is declared twice: also at {}", other.place);
            return Err(source.wrong(&file.name.span(), what));
        }
        checked.push(declared);
    }
    Ok(checked.into())
}

fn one(source: &Source<'_>, file: &TransactionFile) -> Result<Declared, ConfigError> {
    let is_text =
        |text: &str, most| !text.trim().is_empty() && text.len() <= most && !text.chars().any(char::is_control);
    if !is_text(file.name.get_ref(), NAME) {
        return Err(source.wrong(&file.name.span(), "expected a name of 1 to 120 bytes"));
    }
    if !file.program.get_ref().starts_with('/') || file.program.get_ref().len() > libc::PATH_MAX as usize {
        let what =
            "expected an absolute path of a program or library, such as \"/opt/shop/bin/shop\" or \"/opt/shop/*\"";
        return Err(source.wrong(&file.program.span(), what));
    }
    let symbol = |name: &Spanned<String>| {
        if is_text(name.get_ref(), FUNCTION) {
            Ok(Box::from(name.get_ref().trim()))
        } else {
            Err(source.wrong(&name.span(), "expected the symbol of a function"))
        }
    };
    let spans = [
        file.function.as_ref().map(Spanned::span),
        file.call.as_ref().map(Spanned::span),
        file.lines.as_ref().map(Spanned::span),
        file.probes.as_ref().map(Spanned::span),
    ];
    let (target, span) = match (&file.function, &file.call, &file.lines, &file.probes) {
        _ if spans.iter().flatten().count() > 1 => {
            let last = spans.into_iter().flatten().max_by_key(|span| span.start).unwrap_or_else(|| file.name.span());
            let what = "either `function`, `call`, `lines` or `probes`: a transaction is one of them";
            return Err(source.wrong(&last, what));
        }
        (Some(function), ..) => (Target::Function(symbol(function)?), function.span()),
        (_, Some(call), ..) => {
            let CallFile { caller, callee } = call.get_ref();
            (Target::Call { caller: symbol(caller)?, callee: symbol(callee)? }, call.span())
        }
        (_, _, Some(lines), _) => (of_lines(source, file, lines.get_ref())?, lines.span()),
        (_, _, _, Some(probes)) => (of_probes(source, file, probes.get_ref())?, probes.span()),
        (None, None, None, None) => {
            let what = "expected `function`, the symbol of the function to declare, or `call`, `lines` or `probes`";
            return Err(source.wrong(&file.name.span(), what));
        }
    };
    let fail = file.fail.as_ref().map(|fail| fail_of(source, fail, &target)).transpose()?;
    let user = match &file.user {
        Some(user) => Some(ValueSource::parse(user.get_ref(), false).map_err(|what| source.wrong(&user.span(), what))?),
        None => None,
    };
    let max_rate = file.max_rate.as_ref().map(|rate| source.number(rate, 1..RATE + 1)).transpose()?;
    let mut declared = Declared {
        name: Arc::from(file.name.get_ref().trim()),
        program: file.program.get_ref().as_str().into(),
        target,
        fail,
        user,
        metrics: metrics(source, &file.metrics)?,
        max_rate,
        place: source.place(&span).into(),
    };
    declared.number_globals().map_err(|what| source.wrong(&file.name.span(), what))?;
    Ok(declared)
}

/// When a call of `target` failed.
fn fail_of(source: &Source<'_>, fail: &Spanned<String>, target: &Target) -> Result<Predicate, ConfigError> {
    let wrong = |what: String| source.wrong(&fail.span(), what);
    let predicate = Predicate::parse(fail.get_ref()).map_err(wrong)?;
    match (target, predicate.source()) {
        (Target::Probes { .. }, FailSource::Return) => {
            Err(wrong("probes return nothing: expected an argument, \"arg1 != 0\" or \"end.arg1 != 0\"".into()))
        }
        (Target::Probes { end: None, .. }, FailSource::End(_)) => {
            Err(wrong("it has no `end`: expected an argument of `begin`, \"arg1 != 0\"".into()))
        }
        (Target::Probes { .. }, _) | (_, FailSource::Return) => Ok(predicate),
        _ => Err(wrong("arguments are compared of USDT probes only: expected \"return != 0\"".into())),
    }
}

fn of_lines(source: &Source<'_>, file: &TransactionFile, lines: &LinesFile) -> Result<Target, ConfigError> {
    let name = lines.file.get_ref().trim();
    if name.is_empty() || name.len() > libc::PATH_MAX as usize || name.chars().any(char::is_control) {
        return Err(
            source.wrong(&lines.file.span(), "expected the path of a source file, or its end, such as \"sort.c\"")
        );
    }
    let (from, to) = (*lines.from.get_ref(), *lines.to.get_ref());
    if from == 0 {
        return Err(source.wrong(&lines.from.span(), "lines are counted from 1"));
    }
    if to < from {
        return Err(source.wrong(&lines.to.span(), format!("expected a line from {from} on: the last one of them")));
    }
    let values = [
        ("fail", file.fail.as_ref().map(Spanned::span)),
        ("user", file.user.as_ref().map(Spanned::span)),
        ("metrics", file.metrics.first().map(|metric| metric.name.span())),
    ];
    for (key, span) in values {
        if let Some(span) = span {
            let what = format!("`{key}` does not go with `lines`: lines have no arguments and return nothing");
            return Err(source.wrong(&span, what));
        }
    }
    Ok(Target::Lines { file: name.into(), from, to })
}

fn of_probes(source: &Source<'_>, file: &TransactionFile, probes: &ProbesFile) -> Result<Target, ConfigError> {
    let name = |name: &Spanned<String>| {
        let is_plain = |c: char| c.is_ascii_graphic() && c != ':';
        if name.get_ref().is_empty() || name.get_ref().len() > FUNCTION || !name.get_ref().chars().all(is_plain) {
            let what = "expected a name as `tracer declare --list` shows it: usdt:PROVIDER:NAME";
            return Err(source.wrong(&name.span(), what));
        }
        Ok(Box::from(name.get_ref().as_str()))
    };
    let end = probes.end.as_ref().map(name).transpose()?;
    let target = Target::Probes { provider: name(&probes.provider)?, begin: name(&probes.begin)?, end };
    if let Some(end) = probes.end.as_ref().filter(|end| end.get_ref() == probes.begin.get_ref()) {
        return Err(source.wrong(&end.span(), "the end is the beginning; without an end its hits are counted"));
    }
    let values = file.user.iter().chain(file.metrics.iter().map(|metric| &metric.value));
    for value in values {
        if ValueSource::parse(value.get_ref(), false).is_ok_and(|value| value.source() == ValuePlace::Return) {
            return Err(source.wrong(&value.span(), "probes return nothing: expected an argument of `begin`, \"arg1\""));
        }
    }
    Ok(target)
}

fn metrics(source: &Source<'_>, all: &[MetricFile]) -> Result<Vec<Metric>, ConfigError> {
    if let Some(one) = all.get(METRICS) {
        return Err(source.wrong(&one.name.span(), format!("a transaction has at most {METRICS} metrics")));
    }
    let mut checked: Vec<Metric> = Vec::new();
    for file in all {
        let name = file.name.get_ref();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > METRIC_NAME || !name.chars().all(is_plain) {
            let what = "expected a name of 1 to 64 letters, digits, '_', '-' and '.'";
            return Err(source.wrong(&file.name.span(), what));
        }
        if checked.iter().any(|other| *other.name == **name) {
            return Err(source.wrong(&file.name.span(), format!("the metric '{name}' is declared twice")));
        }
        let kind = MetricKind::parse(file.kind.get_ref()).ok_or_else(|| {
            let what =
                format!("'{}' is no type of a metric: expected counter, gauge, id or string", file.kind.get_ref());
            source.wrong(&file.kind.span(), what)
        })?;
        let is_text = kind == MetricKind::Text;
        let wrong = |what: String| source.wrong(&file.value.span(), what);
        let value = ValueSource::parse(file.value.get_ref(), is_text).map_err(wrong)?;
        if value.is_text() != is_text {
            let what =
                format!("`{value}` does not go with the type {}: text is a string, and a string is text", kind.name());
            return Err(source.wrong(&file.value.span(), what));
        }
        if is_text && checked.iter().any(|other| other.kind == MetricKind::Text) {
            return Err(
                source.wrong(&file.kind.span(), "a transaction has at most one metric of the type string, as in ARM")
            );
        }
        checked.push(Metric { name: name.as_str().into(), kind, value });
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn declarations_are_checked() {
        let text = r#"
            [[transaction]]
            name = "sort"
            program = "/opt/bench/kernels"
            function = "sort_run"
            fail = "return != 0"
            user = "arg2:string"
            metrics = [{ name = "items", type = "counter", value = "arg1" }]
        "#;
        let config = Config::parse("t.toml", text).unwrap();
        let declared = &config.declared[0];
        let target = declared.target.to_string();
        assert_eq!((&*declared.name, &*target, &*declared.place), ("sort", "sort_run", "t.toml:5"));
        assert_eq!((declared.user.as_ref().unwrap().to_string(), declared.metrics.len()), ("arg2:string".into(), 1));
        for (text, expected) in [
            ("name = \"a\"\nprogram = \"x\"\nfunction = \"f\"", "t.toml:3:11: expected an absolute path"),
            ("name = \"a\"\nprogram = \"/x\"", "t.toml:2:8: expected `function`"),
            ("name = \"\"\nprogram = \"/x\"\nfunction = \"f\"", "t.toml:2:8: expected a name"),
            ("name = \"a\"\nprogram = \"/x\"\nfunction = \"\"", "t.toml:4:12: expected the symbol"),
            (
                "name = \"a\"\nprogram = \"/x\"\nfunction = \"f\"\nfail = \"errno\"",
                "t.toml:5:8: 'errno' is no condition",
            ),
            ("name = \"a\"\nprogram = \"/x\"\nlines = {}", "t.toml:4:9: missing field `file`"),
            (
                "name = \"a\"\nprogram = \"/x\"\nlines = { file = \"a.c\", from = 0, to = 9 }",
                "t.toml:4:32: lines are counted from 1",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nlines = { file = \"a.c\", from = 5, to = 4 }",
                "t.toml:4:40: expected a line from 5 on",
            ),
            ("name = \"a\"\nprogram = \"/x\"\nlines = { file = \"a.c\", from = 5, to = 5000000000 }", "t.toml:4:40: "),
            (
                "name = \"a\"\nprogram = \"/x\"\nlines = { file = \"a.c\", from = 5, to = 9 }\nuser = \"arg1\"",
                "t.toml:5:8: `user` does not go with `lines`",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nfunction = \"f\"\ncall = { caller = \"a\", callee = \"b\" }",
                "t.toml:5:8: either `function`, `call`, `lines` or `probes`",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nprobes = { provider = \"p\", begin = \"a b\" }",
                "t.toml:4:36: expected a name as",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nprobes = { provider = \"p\", begin = \"a\", end = \"a\" }",
                "t.toml:4:47: the end is the beginning",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nprobes = { provider = \"p\", begin = \"a\" }\nfail = \"return != 0\"",
                "t.toml:5:8: probes return nothing: expected an argument",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nprobes = { provider = \"p\", begin = \"a\" }\nfail = \"end.arg1 != 0\"",
                "t.toml:5:8: it has no `end`",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\nfunction = \"f\"\nfail = \"arg1 != 0\"",
                "t.toml:5:8: arguments are compared of USDT probes only",
            ),
            ("name = \"a\"\nprogram = \"/x\"\nfunction = \"f\"\nmax_rate = 0", "t.toml:5:12: 0 is out of range"),
            (
                "name = \"a\"\nprogram = \"/x\"\nprobes = { provider = \"p\", begin = \"a\" }\nuser = \"return:string\"",
                "t.toml:5:8: probes return nothing",
            ),
            (
                "name = \"a\"\nprogram = \"/x\"\ncall = { caller = \"a\", callee = \"\" }",
                "t.toml:4:33: expected the symbol",
            ),
            ("name = \"a\"\nprogram = \"/x\"\ncall = { caller = \"a\" }", "t.toml:4:8: missing field `callee`"),
        ] {
            let error = Config::parse("t.toml", &format!("[[transaction]]\n{text}\n")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let metric = |text: &str| {
            let text =
                format!("[[transaction]]\nname = \"a\"\nprogram = \"/x\"\nfunction = \"f\"\nmetrics = [{text}]\n");
            Config::parse("t.toml", &text).unwrap_err().to_string()
        };
        let of = |name: &str, kind: &str, value: &str| {
            format!("{{ name = \"{name}\", type = \"{kind}\", value = \"{value}\" }}, ")
        };
        for (text, expected) in [
            (of("a b", "counter", "arg1"), "expected a name of 1 to 64 letters"),
            (of("a", "sum", "arg1"), "'sum' is no type of a metric"),
            (of("a", "counter", "arg0"), "'arg0' is no value"),
            (of("a", "counter", "arg1:string"), "does not go with the type counter"),
            (of("a", "string", "arg1:i64"), "does not go with the type string"),
            (of("a", "id", "arg1").repeat(2), "the metric 'a' is declared twice"),
            (of("a", "string", "arg1") + &of("b", "string", "arg2"), "at most one metric of the type string"),
            ((0..8).map(|n| of(&format!("m{n}"), "id", "arg1")).collect(), "at most 7 metrics"),
            ("{ name = \"a\", type = \"id\", value = \"arg1\", unit = \"s\" }".into(), "unit"),
        ] {
            let error = metric(&text);
            assert!(error.starts_with("t.toml:5:") && error.contains(expected), "{text}: {error}");
        }
        let one = |n| format!("[[transaction]]\nname = \"{n}\"\nprogram = \"/x\"\nfunction = \"f{n}\"\n");
        let many = (0..65).map(one).collect::<Vec<_>>().concat();
        assert!(Config::parse("t.toml", &many).unwrap_err().to_string().contains("at most 64"));
        let twice = text.repeat(2);
        assert!(Config::parse("t.toml", &twice).unwrap_err().to_string().contains("also at t.toml:5"));
    }
}
