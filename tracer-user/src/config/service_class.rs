//! `[[service_class]]`: service classes.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use tracer_policies::service_classes::hours::WeeklyHours;
use tracer_policies::service_classes::limits::{END_AFTER, OPEN_MAX, RequestLimits};
use tracer_policies::service_classes::{CLASSES_MAX, Goal, Priority, RULES_MAX, Rule, ServiceClass, ServiceClasses};
use tracer_transactions::classes::rules::Glob;

use super::class_rules::{self, HeaderFile};
use super::{ConfigError, Source};

/// Longest name, and longest condition, bytes.
const NAME: usize = 64;
const CONDITION: usize = 256;
/// Least important.
const IMPORTANCE: i64 = 100;
/// Longest goal.
const GOAL: Duration = Duration::from_secs(3600);

/// One class, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceClassFile {
    name: Spanned<String>,
    importance: Spanned<i64>,
    goal: Option<Spanned<GoalFile>>,
    cpu: Option<Spanned<String>>,
    network: Option<Spanned<String>>,
    end_after: Option<Spanned<String>>,
    max_open: Option<Spanned<i64>>,
    #[serde(default)]
    rules: Vec<Spanned<RuleFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoalFile {
    p99: Option<Spanned<String>>,
    p95: Option<Spanned<String>>,
    mean: Option<Spanned<String>>,
    discretionary: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    service: Option<Spanned<String>>,
    request_class: Option<Spanned<String>>,
    host: Option<Spanned<String>>,
    caller: Option<Spanned<String>>,
    caller_class: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    header: Option<Spanned<HeaderFile>>,
    time: Option<Spanned<String>>,
}

/// Checks them, and the names that rules for request classes use.
pub(super) fn check(
    source: &Source<'_>,
    all: Vec<ServiceClassFile>,
    rules: &[super::class_rules::RuleFile],
) -> Result<ServiceClasses, ConfigError> {
    if let Some(last) = all.get(CLASSES_MAX) {
        let what = format!("at most {CLASSES_MAX} service classes can be declared");
        return Err(source.wrong(&last.name.span(), what));
    }
    let mut checked = ServiceClasses::default();
    for file in all {
        let class = one(source, &file)?;
        if let Some(other) = checked.classes.iter().find(|other| other.name == class.name) {
            let what = format!("the service class '{}' is declared twice: also at {}", class.name, other.place);
            return Err(source.wrong(&file.name.span(), what));
        }
        for other in &checked.classes {
            // The more important one of the two must not have the lower priority.
            let (above, below) = if class.importance < other.importance { (&class, other) } else { (other, &class) };
            let cpu = |class: &ServiceClass| (class.cpu, !class.auto);
            let lower = [("cpu", cpu(above) < cpu(below)), ("network", above.network < below.network)];
            let of = lower.into_iter().find(|(_, is_lower)| *is_lower && above.importance < below.importance);
            if let Some((kind, _)) = of {
                let what = format!(
                    "contradiction: '{}' is more important than '{}' but has the lower {kind} priority; see also {}",
                    above.name, below.name, other.place
                );
                return Err(source.wrong(&file.importance.span(), what));
            }
        }
        let index = checked.classes.len();
        checked.classes.push(class);
        for rule in file.rules {
            let checked_rule = one_rule(source, &rule, index)?;
            if checked.rules.len() >= RULES_MAX {
                return Err(source.wrong(&rule.span(), format!("at most {RULES_MAX} rules in all can be given")));
            }
            if let Some(earlier) = checked.rules.iter().find(|earlier| earlier.covers(&checked_rule)) {
                let what = format!(
                    "this rule never decides: the first matching rule wins, and the one at {} matches the same requests",
                    earlier.place
                );
                return Err(source.wrong(&rule.span(), what));
            }
            checked.rules.push(checked_rule);
        }
    }
    // Once service classes are declared, a class can only be given one of them.
    for name in rules.iter().filter_map(|rule| rule.service_class.as_ref()) {
        let text = name.get_ref().trim();
        if !checked.is_empty() && checked.index(text).is_none() {
            let known: Vec<&str> = checked.classes.iter().map(|class| &*class.name).collect();
            let what = format!("no service class '{text}' is declared; declared are: {}", known.join(", "));
            return Err(source.wrong(&name.span(), what));
        }
    }
    Ok(checked)
}

fn one(source: &Source<'_>, file: &ServiceClassFile) -> Result<ServiceClass, ConfigError> {
    let name = file.name.get_ref().trim();
    if name.is_empty() || name.len() > NAME || name.chars().any(char::is_control) {
        return Err(source.wrong(&file.name.span(), "expected a service class of 1 to 64 bytes, such as \"gold\""));
    }
    let importance = source.number(&file.importance, 1..IMPORTANCE + 1)?;
    let goal = match &file.goal {
        Some(goal) => check_goal(source, goal)?,
        None => Goal::Discretionary,
    };
    let priority = |kind: &str, given: &Option<Spanned<String>>| {
        let Some(given) = given else { return Ok(Priority::Normal) };
        match given.get_ref().as_str() {
            "normal" => Ok(Priority::Normal),
            "low" => Ok(Priority::Low),
            "high" if goal == Goal::Discretionary => {
                let what = format!(
                    "contradiction: a class without a goal cannot have high {kind} priority; give it a goal, such as \
                     {{ p99 = \"50ms\" }}"
                );
                Err(source.wrong(&given.span(), what))
            }
            "high" => Ok(Priority::High),
            _ if kind == "cpu" => {
                Err(source.wrong(&given.span(), "expected \"high\", \"normal\", \"low\" or \"auto\""))
            }
            _ => Err(source.wrong(&given.span(), "expected \"high\", \"normal\" or \"low\"")),
        }
    };
    let auto = file.cpu.as_ref().is_some_and(|cpu| cpu.get_ref() == "auto");
    let cpu = if auto { Priority::Normal } else { priority("cpu", &file.cpu)? };
    let network = priority("network", &file.network)?;
    let limits = request_limits(source, file)?;
    let place = source.place(&file.name.span()).into();
    Ok(ServiceClass { name: Arc::from(name), importance, goal, cpu, auto, network, limits, place })
}

/// Checks beyond which its requests are ended.
fn request_limits(source: &Source<'_>, file: &ServiceClassFile) -> Result<RequestLimits, ConfigError> {
    let time = |text: &Spanned<String>| {
        let time = tracer_model::quantity::duration(text.get_ref()).ok();
        time.filter(|time| (END_AFTER.0..=END_AFTER.1).contains(time))
            .ok_or_else(|| source.wrong(&text.span(), "expected a time from 1s to 24h, such as \"30s\""))
    };
    Ok(RequestLimits {
        end_after: file.end_after.as_ref().map(time).transpose()?,
        max_open: file.max_open.as_ref().map(|most| source.number(most, 1..OPEN_MAX + 1)).transpose()?,
    })
}

fn check_goal(source: &Source<'_>, goal: &Spanned<GoalFile>) -> Result<Goal, ConfigError> {
    let GoalFile { p99, p95, mean, discretionary } = goal.get_ref();
    let time = |text: &Spanned<String>| {
        let time = tracer_model::quantity::duration(text.get_ref()).ok();
        time.filter(|time| (Duration::from_millis(1)..=GOAL).contains(time))
            .ok_or_else(|| source.wrong(&text.span(), "expected a time from 1ms to 1h, such as \"50ms\""))
    };
    match (p99, p95, mean, discretionary) {
        (Some(text), None, None, None) => Ok(Goal::P99(time(text)?)),
        (None, Some(text), None, None) => Ok(Goal::P95(time(text)?)),
        (None, None, Some(text), None) => Ok(Goal::Mean(time(text)?)),
        (None, None, None, Some(given)) if *given.get_ref() => Ok(Goal::Discretionary),
        _ => {
            let what = "expected exactly one goal: { p99 = \"50ms\" }, { p95 = … }, { mean = … } or \
                        { discretionary = true }";
            Err(source.wrong(&goal.span(), what))
        }
    }
}

fn one_rule(source: &Source<'_>, rule: &Spanned<RuleFile>, class: usize) -> Result<Rule, ConfigError> {
    let glob = |text: &Option<Spanned<String>>| match text {
        None => Ok(None),
        Some(text) if text.get_ref().is_empty() || text.get_ref().len() > CONDITION => {
            Err(source.wrong(&text.span(), "expected 1 to 256 bytes; `*` stands for any text"))
        }
        Some(text) => Ok(Some(Glob::new(text.get_ref()))),
    };
    let file = rule.get_ref();
    let time =
        |text: &Spanned<String>| WeeklyHours::parse(text.get_ref()).map_err(|what| source.wrong(&text.span(), what));
    if let (Some(_), Some(user)) = (&file.header, &file.user) {
        let what = "contradiction: only calls of declared functions have a user, and they have no headers";
        return Err(source.wrong(&user.span(), what));
    }
    let checked = Rule {
        class,
        service: glob(&file.service)?,
        request_class: glob(&file.request_class)?,
        host: glob(&file.host)?,
        caller: glob(&file.caller)?,
        caller_class: glob(&file.caller_class)?,
        user: glob(&file.user)?,
        header: file.header.as_ref().map(|header| class_rules::header(source, header)).transpose()?,
        time: file.time.as_ref().map(time).transpose()?,
        place: source.place(&rule.span()).into(),
    };
    if checked.is_empty() {
        let what = "a rule needs at least one of service, request_class, host, caller, caller_class, user, header, time; \
                    service = \"*\" matches every request";
        return Err(source.wrong(&rule.span(), what));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use std::time::Duration;
    use tracer_policies::service_classes::{Facts, Goal, Priority};

    const GOOD: &str = r#"
        [[service_class]]
        name = "gold"
        importance = 1
        goal = { p99 = "50ms" }
        cpu = "high"
        rules = [{ service = "shop", request_class = "GET /gold" }, { host = "vip.*" }]

        [[service_class]]
        name = "bronze"
        importance = 3
        goal = { discretionary = true }
        cpu = "low"
        rules = [{ service = "*" }]

        [[class]]
        name = "checkout"
        service_class = "gold"
    "#;

    #[test]
    fn service_classes_are_read() {
        let config = Config::parse("t.toml", GOOD).unwrap();
        let classes = &config.service_classes;
        let gold = &classes.classes[0];
        assert_eq!((&*gold.name, gold.importance, gold.cpu), ("gold", 1, Priority::High));
        assert_eq!((gold.goal, &*gold.place), (Goal::P99(Duration::from_millis(50)), "t.toml:3"));
        assert_eq!(classes.decide(&Facts { host: Some("vip.example"), ..Facts::default() }), Some(0));
        assert_eq!(classes.decide(&Facts { service: "shop", ..Facts::default() }), Some(1));
        assert!(classes.wants_host() && classes.changes_priorities());
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let class = |text: &str| format!("[[service_class]]\n{text}\n");
        let gold = class("name = \"gold\"\nimportance = 1\ngoal = { p99 = \"9ms\" }\nrules = [{ service = \"*\" }]");
        for (text, expected) in [
            (class("name = \"\"\nimportance = 1"), "t.toml:2:8: expected a service class"),
            (class("name = \"a\""), "t.toml:1:1: missing field `importance`"),
            (class("name = \"a\"\nimportance = 0"), "t.toml:3:14: 0 is out of range: expected 1 to 100"),
            (class("name = \"a\"\nimportance = 99999999999"), "t.toml:3:14: 99999999999 is out of range"),
            (class("name = \"a\"\nimportance = 1\ncolour = 1"), "t.toml:4:1: unknown field `colour`"),
            (class("name = \"a\"\nimportance = 1\ncpu = \"fast\""), "t.toml:4:7: expected \"high\""),
            (class("name = \"a\"\nimportance = 1\ncpu = \"high\""), "t.toml:4:7: contradiction: a class without"),
            (class("name = \"a\"\nimportance = 1\nnetwork = \"auto\""), "t.toml:4:11: expected \"high\""),
            (
                class("name = \"a\"\nimportance = 1\nnetwork = \"high\""),
                "t.toml:4:11: contradiction: a class without a goal cannot have high network priority",
            ),
            (
                format!(
                    "{}{}",
                    class("name = \"b\"\nimportance = 1\nnetwork = \"low\""),
                    class("name = \"c\"\nimportance = 2")
                ),
                "t.toml:7:14: contradiction: 'b' is more important than 'c' but has the lower network priority",
            ),
            (
                format!(
                    "{}{}",
                    class("name = \"b\"\nimportance = 1\ncpu = \"auto\""),
                    class("name = \"c\"\nimportance = 2")
                ),
                "t.toml:7:14: contradiction: 'b' is more important than 'c' but has the lower cpu priority",
            ),
            ("[enforcement]\npackets = { high = \"16\" }\n".to_owned(), "t.toml:2:20: expected a packet priority"),
            ("[enforcement]\npackets = { low = \"1:\" }\n".to_owned(), "t.toml:2:19: expected a packet priority"),
            (class("name = \"a\"\nimportance = 1\ngoal = {}"), "t.toml:4:8: expected exactly one goal"),
            (
                class("name = \"a\"\nimportance = 1\ngoal = { p99 = \"1s\", mean = \"1s\" }"),
                "t.toml:4:8: expected exactly",
            ),
            (class("name = \"a\"\nimportance = 1\ngoal = { p50 = \"1s\" }"), "t.toml:4:10: unknown field `p50`"),
            (class("name = \"a\"\nimportance = 1\ngoal = { p99 = \"fast\" }"), "t.toml:4:16: expected a time"),
            (class("name = \"a\"\nimportance = 1\ngoal = { p99 = \"0ms\" }"), "t.toml:4:16: expected a time"),
            (
                class("name = \"a\"\nimportance = 1\ngoal = { p99 = \"99999999999999999999h\" }"),
                "t.toml:4:16: expected a time",
            ),
            (class("name = \"a\"\nimportance = 1\ngoal = { discretionary = false }"), "t.toml:4:8: expected exactly"),
            (class("name = \"a\"\nimportance = 1\nrules = [{}]"), "t.toml:4:10: a rule needs at least one"),
            (
                class("name = \"a\"\nimportance = 1\nrules = [{ servce = \"x\" }]"),
                "t.toml:4:12: unknown field `servce`",
            ),
            (class("name = \"a\"\nimportance = 1\nrules = [{ service = \"\" }]"), "t.toml:4:22: expected 1 to 256"),
            (class("name = \"a\"\nimportance = 1\nrules = [{ time = \"noon\" }]"), "t.toml:4:19: expected days, hours"),
            (
                class("name = \"a\"\nimportance = 1\nrules = [{ header = { name = \"a b\", value = \"*\" } }]"),
                "t.toml:4:21: expected the name of a header",
            ),
            (
                class(
                    "name = \"a\"\nimportance = 1\nrules = [{ header = { name = \"a\", value = \"*\" }, user = \"x\" }]",
                ),
                "t.toml:4:57: contradiction: only calls",
            ),
            (
                format!(
                    "{}{}",
                    class("name = \"c\"\nimportance = 1\nrules = [{ time = \"mon-fri\" }]"),
                    class("name = \"b\"\nimportance = 2\nrules = [{ time = \"tue 08:00-09:00\" }]")
                ),
                "t.toml:8:10: this rule never decides: the first matching rule wins, and the one at t.toml:4",
            ),
            (format!("{gold}{}", class("name = \"gold\"\nimportance = 2")), "t.toml:7:8: the service class 'gold' is"),
            (
                format!("{gold}{}", class("name = \"b\"\nimportance = 2\nrules = [{ service = \"*\", host = \"a\" }]")),
                "t.toml:9:10: this rule never decides: the first matching rule wins, and the one at t.toml:5",
            ),
            (
                format!("{gold}{}", class("name = \"b\"\nimportance = 2\ngoal = { mean = \"1s\" }\ncpu = \"high\"")),
                "t.toml:8:14: contradiction: 'gold' is more important than 'b'",
            ),
            (
                format!("{gold}[[class]]\nname = \"a\"\nservice_class = \"silver\"\n"),
                "t.toml:8:17: no service class 'silver' is declared; declared are: gold",
            ),
            ("[enforcement]\nstate_dir = \"here\"\n".to_owned(), "t.toml:2:13: expected an absolute path"),
        ] {
            let error = Config::parse("t.toml", &text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let many: String = (0..33).map(|n| class(&format!("name = \"{n}\"\nimportance = 1"))).collect();
        assert!(Config::parse("t.toml", &many).unwrap_err().to_string().contains("at most 32"));
        let rules: Vec<String> = (0..257).map(|n| format!("{{ service = \"{n}\" }}")).collect();
        let text = class(&format!("name = \"a\"\nimportance = 1\nrules = [{}]", rules.join(", ")));
        assert!(Config::parse("t.toml", &text).unwrap_err().to_string().contains("at most 256"));
    }
}
