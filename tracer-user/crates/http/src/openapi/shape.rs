//! Shapes of JSON values, and the JSON schemas they are.

use serde_json::{Map, Value, json};

/// The shape of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Bool,
    /// A whole number that is not negative.
    Count,
    /// A whole number between these, both possible.
    Between(u64, u64),
    /// A whole number.
    Integer,
    Number,
    Text,
    /// So many hexadecimal digits.
    Hex(usize),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Whatever: attributes, for one.
    Any,
    Nullable(&'static Self),
    List(&'static Self),
    /// An object whose names are data.
    Map(&'static Self),
    /// Every field is there, unless it is [`Shape::Optional`].
    Object(&'static [(&'static str, Self)]),
    /// A field that may be missing.
    Optional(&'static Self),
    /// An object with the fields of several shapes.
    Both(&'static [Self]),
}

/// An error.
pub(super) const ERROR: Shape = Shape::Object(&[("error", Shape::Text)]);

impl Shape {
    /// Its fields, if it is an object.
    fn fields(self) -> Option<Vec<(&'static str, Self)>> {
        match self {
            Self::Object(fields) => Some(fields.to_vec()),
            Self::Both(shapes) => Some(shapes.iter().filter_map(|shape| shape.fields()).flatten().collect()),
            _ => None,
        }
    }

    /// The JSON schema.
    pub(super) fn schema(self) -> Value {
        match self {
            Self::Bool => json!({ "type": "boolean" }),
            Self::Count => json!({ "type": "integer", "minimum": 0 }),
            Self::Between(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Self::Integer => json!({ "type": "integer" }),
            Self::Number => json!({ "type": "number" }),
            Self::Text => json!({ "type": "string" }),
            Self::Hex(digits) => json!({ "type": "string", "pattern": format!("^[0-9a-fA-F]{{{digits}}}$") }),
            Self::Word(words) => json!({ "type": "string", "enum": words }),
            Self::Any => json!({}),
            Self::Nullable(inner) => json!({ "anyOf": [inner.schema(), { "type": "null" }] }),
            Self::List(inner) => json!({ "type": "array", "items": inner.schema() }),
            Self::Map(inner) => json!({ "type": "object", "additionalProperties": inner.schema() }),
            Self::Optional(inner) => inner.schema(),
            Self::Object(_) | Self::Both(_) => {
                let fields = self.fields().unwrap_or_default();
                let is_required = |(_, shape): &&(&str, Self)| !matches!(shape, Self::Optional(_));
                let required: Vec<&str> = fields.iter().filter(is_required).map(|(name, _)| *name).collect();
                let properties = fields.iter().map(|(name, shape)| {
                    let mut schema = shape.schema();
                    if let Some(unit) = unit(name) {
                        schema["description"] = json!(unit);
                    }
                    ((*name).to_owned(), schema)
                });
                json!({
                    "type": "object",
                    "properties": properties.collect::<Map<_, _>>(),
                    "required": required,
                    "additionalProperties": false,
                })
            }
        }
    }
}

/// What the end of a field's name says.
fn unit(name: &str) -> Option<&'static str> {
    let units = [
        ("_per_s", "per second"),
        ("_ns", "nanoseconds since the epoch"),
        ("_cores", "CPUs"),
        ("_bytes", "bytes"),
        ("_share", "part of the whole, 0 to 1"),
        ("_ratio", "ratio"),
        ("_s", "seconds"),
    ];
    units.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, unit)| unit)
}

#[cfg(test)]
impl Shape {
    /// Whether a value has the shape; if not, where it differs.
    pub(super) fn fits(self, value: &Value) -> Result<(), String> {
        let wrong = || Err(format!("{value} is not {self:?}"));
        match self {
            Self::Any => Ok(()),
            Self::Bool if value.is_boolean() => Ok(()),
            Self::Count if value.is_u64() => Ok(()),
            Self::Integer if value.is_i64() || value.is_u64() => Ok(()),
            Self::Number if value.is_number() => Ok(()),
            Self::Between(least, most) if value.as_u64().is_some_and(|number| (least..=most).contains(&number)) => {
                Ok(())
            }
            Self::Text | Self::Hex(_) if value.is_string() => Ok(()),
            Self::Word(words) if value.as_str().is_some_and(|word| words.contains(&word)) => Ok(()),
            Self::Nullable(_) if value.is_null() => Ok(()),
            Self::Nullable(inner) | Self::Optional(inner) => inner.fits(value),
            Self::List(inner) => {
                let Some(all) = value.as_array() else { return wrong() };
                all.iter().try_for_each(|one| inner.fits(one))
            }
            Self::Map(inner) => {
                let Some(all) = value.as_object() else { return wrong() };
                all.values().try_for_each(|one| inner.fits(one))
            }
            Self::Object(_) | Self::Both(_) => {
                let (Some(all), Some(fields)) = (value.as_object(), self.fields()) else { return wrong() };
                if let Some(name) = all.keys().find(|name| !fields.iter().any(|(known, _)| known == name)) {
                    return Err(format!("the field {name} is not in the table"));
                }
                for (name, shape) in fields {
                    match (all.get(name), shape) {
                        (None, Self::Optional(_)) => {}
                        (None, _) => return Err(format!("the field {name} is missing")),
                        (Some(value), shape) => shape.fits(value).map_err(|why| format!("{name}: {why}"))?,
                    }
                }
                Ok(())
            }
            _ => wrong(),
        }
    }
}
