//! Arguments of tools: their JSON schema, and the check that a call keeps to it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tracer_model::quantity::duration;

use super::rpc::repeated;

/// Longest text, characters.
const TEXT: usize = 2000;

/// What an argument may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A name.
    Text,
    /// One of these words; the first is what it is unless given.
    Word(&'static [&'static str]),
    /// A whole number from the first to the second; the third is what it is unless given, if there is one.
    Whole(u64, u64, Option<u64>),
    /// Milliseconds.
    Millis,
    /// A time before now.
    Since,
    /// This many hexadecimal digits.
    Hex(usize),
    /// False unless given.
    Flag,
}

/// An argument of a tool.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) what: &'static str,
    pub(super) required: bool,
}

/// The arguments of a call: those that were given, and what others are without.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Arguments(BTreeMap<&'static str, Value>);

impl Argument {
    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({ "type": "string", "maxLength": TEXT }),
            Kind::Word(words) => json!({ "type": "string", "enum": words, "default": words.first() }),
            Kind::Whole(least, most, _) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Kind::Millis => json!({ "type": "number", "minimum": 0 }),
            Kind::Since => json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h)$" }),
            Kind::Hex(digits) => json!({ "type": "string", "pattern": format!("^[0-9a-fA-F]{{{digits}}}$") }),
            Kind::Flag => json!({ "type": "boolean", "default": false }),
        };
        if let Kind::Whole(_, _, Some(usual)) = self.kind {
            schema["default"] = json!(usual);
        }
        schema["description"] = json!(self.what);
        schema
    }

    fn expected(&self) -> String {
        match self.kind {
            Kind::Text => format!("a text of at most {TEXT} characters"),
            Kind::Word(words) => words.join(", "),
            Kind::Whole(least, most, _) if most == u64::MAX => format!("a whole number, at least {least}"),
            Kind::Whole(least, most, _) => format!("a whole number from {least} to {most}"),
            Kind::Millis => "a number of milliseconds, at least 0".into(),
            Kind::Since => "a time before now, such as 30s, 5m or 1h".into(),
            Kind::Hex(digits) => format!("{digits} hexadecimal digits"),
            Kind::Flag => "true or false".into(),
        }
    }

    /// Whether a value is what it may be.
    fn takes(&self, value: &Value) -> bool {
        let text = value.as_str();
        match self.kind {
            Kind::Text => text.is_some_and(|text| text.chars().count() <= TEXT),
            Kind::Word(words) => text.is_some_and(|text| words.contains(&text)),
            Kind::Whole(least, most, _) => value.as_u64().is_some_and(|number| (least..=most).contains(&number)),
            Kind::Millis => value.as_f64().is_some_and(|number| number >= 0.0),
            Kind::Since => text.is_some_and(|text| duration(text).is_ok()),
            Kind::Hex(digits) => {
                text.is_some_and(|text| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
            }
            Kind::Flag => value.is_boolean(),
        }
    }

    fn usual(&self) -> Option<Value> {
        match self.kind {
            Kind::Word(words) => words.first().map(|word| json!(word)),
            Kind::Whole(_, _, usual) => usual.map(Value::from),
            Kind::Flag => Some(json!(false)),
            Kind::Text | Kind::Millis | Kind::Since | Kind::Hex(_) => None,
        }
    }
}

/// The JSON schema of a tool's arguments.
pub(super) fn schema(arguments: &[&Argument]) -> Value {
    let properties: Map<String, Value> =
        arguments.iter().map(|argument| (argument.name.to_owned(), argument.schema())).collect();
    let required: Vec<&str> =
        arguments.iter().filter(|argument| argument.required).map(|argument| argument.name).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

impl Arguments {
    /// Checks what was given; the error says what was expected. `null` and empty texts count as not given.
    pub(super) fn of(known: &[&Argument], mut given: Map<String, Value>) -> Result<Self, String> {
        if let Some(stranger) = given.keys().find(|name| !known.iter().any(|argument| argument.name == *name)) {
            let names: Vec<&str> = known.iter().map(|argument| argument.name).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(format!("{}: no such argument; expected {names}", repeated(stranger)));
        }
        let mut all = BTreeMap::new();
        for argument in known {
            let value = given.remove(argument.name).filter(|value| !value.is_null() && value.as_str() != Some(""));
            match value {
                Some(value) if argument.takes(&value) => {
                    all.insert(argument.name, value);
                }
                Some(value) => {
                    let given = repeated(&value.to_string());
                    return Err(format!("{}: {given} given, expected {}", argument.name, argument.expected()));
                }
                None if argument.required => return Err(format!("{}: expected {}", argument.name, argument.what)),
                None => {
                    argument.usual().and_then(|usual| all.insert(argument.name, usual));
                }
            }
        }
        Ok(Self(all))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// The value as a query string has it, before it is encoded.
    pub(super) fn written(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: &Argument =
        &Argument { name: "limit", kind: Kind::Whole(1, 10, Some(5)), what: "rows", required: false };
    const SERVICE: &Argument = &Argument { name: "service", kind: Kind::Text, what: "a service", required: true };
    const SORT: &Argument = &Argument { name: "sort", kind: Kind::Word(&["cpu", "rate"]), what: "", required: false };
    const SINCE: &Argument = &Argument { name: "since", kind: Kind::Since, what: "", required: false };

    fn read(given: Value) -> Result<Arguments, String> {
        let Value::Object(given) = given else { panic!("{given}") };
        Arguments::of(&[LIMIT, SERVICE, SORT, SINCE], given)
    }

    #[test]
    fn what_is_not_given_is_as_usual() {
        let all = read(json!({ "service": "shop", "since": null, "sort": "" })).unwrap();
        assert_eq!((all.number("limit"), all.text("service"), all.text("sort")), (Some(5), Some("shop"), Some("cpu")));
        assert_eq!((all.text("since"), all.flag("none"), all.written("limit")), (None, false, Some("5".into())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, error) in [
            (json!({}), "service: expected a service"),
            (json!({ "service": 1 }), "service: 1 given, expected a text"),
            (json!({ "service": "a", "limit": 11 }), "limit: 11 given, expected a whole number from 1 to 10"),
            (json!({ "service": "a", "limit": "5" }), "limit: \"5\" given"),
            (json!({ "service": "a", "limit": -1 }), "limit: -1 given"),
            (json!({ "service": "a", "limit": 1.5 }), "limit: 1.5 given"),
            (json!({ "service": "a", "sort": "name" }), "sort: \"name\" given, expected cpu, rate"),
            (json!({ "service": "a", "since": "yesterday" }), "expected a time before now"),
            (
                json!({ "service": "a", "srvice": "b" }),
                "srvice: no such argument; expected limit, service, sort, since",
            ),
            (json!({ "service": "x".repeat(TEXT + 1) }), "expected a text of at most"),
        ] {
            let found = read(given.clone()).expect_err("a mistake");
            assert!(found.contains(error) && found.len() < 500, "{given}: {found}");
        }
    }

    #[test]
    fn the_schema_has_defaults_and_bounds() {
        let schema = schema(&[LIMIT, SERVICE, SORT]);
        assert_eq!(
            schema["properties"]["limit"],
            json!({ "type": "integer", "minimum": 1, "maximum": 10, "default": 5, "description": "rows" })
        );
        assert_eq!((&schema["required"], &schema["additionalProperties"]), (&json!(["service"]), &json!(false)));
        assert_eq!(schema["properties"]["sort"]["enum"], json!(["cpu", "rate"]));
    }
}
