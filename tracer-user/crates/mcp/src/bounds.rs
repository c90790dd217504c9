//! How long an answer may be. Rows go from the end of lists, never a part of one, and the answer says how many.

use serde_json::{Value, json};

/// Most bytes of an answer as compact JSON.
pub(super) const ANSWER: usize = 32 << 10;
/// Longest text within it, characters.
const TEXT: usize = 1000;
/// Digits of a number that is not whole: what measuring is good for.
const DIGITS: i32 = 6;

/// A list of the answer, which may be cut at its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    /// Its field.
    pub(super) list: &'static str,
    /// How many rows fit the question, those that are not in the list any more included.
    pub(super) total: u64,
    /// Which arguments narrow the question; and, behind a semicolon, which limit shows more.
    pub(super) narrow: &'static str,
}

fn size(value: &Value) -> usize {
    value.to_string().len()
}

/// Shortens numbers and texts, then cuts the lists of `cuts` until the answer has at most `most` bytes. `left_out` says what
/// was cut, here or before, and how to ask for it.
pub(super) fn fit(mut answer: Value, cuts: &[Cut], most: usize) -> Value {
    tidy(&mut answer);
    let rows: Vec<Vec<Value>> = cuts.iter().map(|cut| rows(&mut answer, cut.list)).collect();
    // What remains, and room for `left_out`.
    let mut room = most.saturating_sub(size(&answer) + 300 * cuts.len());
    let mut left_out = Vec::new();
    for (at, (cut, mut rows)) in cuts.iter().zip(rows).enumerate() {
        let share = room / (cuts.len() - at);
        let before = rows.len();
        let mut used = 0;
        let fitting = rows.iter().take_while(|row| {
            used += size(row) + 1;
            used <= share
        });
        // One row at least: what it contains can be cut.
        let kept = fitting.count().max(1).min(before);
        rows.truncate(kept);
        room = room.saturating_sub(rows.iter().map(|row| size(row) + 1).sum());
        let missing = cut.total.saturating_sub(kept as u64);
        if missing > 0 {
            // Of a full answer no limit shows more.
            let (why, how) = if kept < before {
                ("the answer is full", cut.narrow.split("; ").next().unwrap_or_default())
            } else {
                ("limit", cut.narrow)
            };
            left_out.push(json!({ "list": cut.list, "rows": missing, "because": why, "to_see_them": how }));
        }
        answer[cut.list] = Value::Array(rows);
    }
    if !left_out.is_empty() {
        answer["left_out"] = Value::Array(left_out);
    }
    let mut inner = 0;
    while size(&answer) + 40 > most {
        let Some(longest) = longest(&mut answer) else { break };
        let kept = longest.len() / 2;
        inner += longest.len() - kept;
        longest.truncate(kept);
    }
    if inner > 0 {
        answer["left_out_within_rows"] = json!(inner);
    }
    answer
}

/// Takes the rows of a list out of the answer.
pub(super) fn rows(answer: &mut Value, list: &str) -> Vec<Value> {
    match answer.get_mut(list).map(Value::take) {
        Some(Value::Array(rows)) => rows,
        _ => Vec::new(),
    }
}

/// The list with most bytes that is not empty and is in no other list's row, or in the one row of a list.
fn longest(value: &mut Value) -> Option<&mut Vec<Value>> {
    fn weigh(value: &Value) -> usize {
        match value {
            Value::Array(rows) if !rows.is_empty() => size(value),
            Value::Object(fields) => fields.values().map(weigh).max().unwrap_or(0),
            _ => 0,
        }
    }
    match value {
        Value::Array(rows) => {
            // What is in the only row, if there is a list in it, rather than the row.
            let within = match rows.as_slice() {
                [one] => weigh(one) > 0,
                _ => false,
            };
            if within { rows.first_mut().and_then(longest) } else { Some(rows).filter(|rows| !rows.is_empty()) }
        }
        Value::Object(fields) => {
            fields.values_mut().filter(|field| weigh(field) > 0).max_by_key(|field| weigh(field)).and_then(longest)
        }
        _ => None,
    }
}

/// Shortens numbers to [`DIGITS`] and texts to [`TEXT`].
fn tidy(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(number) = number.as_f64() {
                *value = json!(rounded(number));
            }
        }
        Value::String(text) if text.len() > TEXT => {
            if let Some((at, _)) = text.char_indices().nth(TEXT) {
                text.truncate(at);
                text.push('…');
            }
        }
        Value::Array(rows) => rows.iter_mut().for_each(tidy),
        Value::Object(fields) => fields.values_mut().for_each(tidy),
        _ => {}
    }
}

fn rounded(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let places = DIGITS - 1 - number.abs().log10().floor() as i32;
    // By way of text: a power of ten is not exact, and 0.1 would become 0.10000000000000002.
    format!("{number:.*}", usize::try_from(places).unwrap_or(0).min(17)).parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { list: "rows", total: 0, narrow: "ask for less; or raise the limit" };

    fn cut(rows: usize) -> Cut {
        Cut { total: rows as u64, ..CUT }
    }

    #[test]
    fn an_answer_that_fits_stays_as_it_is() {
        let answer = json!({ "rows": [{ "a": 1 }, { "a": 2 }], "b": "c" });
        assert_eq!(fit(answer.clone(), &[cut(2)], ANSWER), answer);
        let empty = json!({ "rows": [], "b": null });
        assert_eq!(fit(empty.clone(), &[cut(0)], ANSWER), empty);
    }

    #[test]
    fn rows_go_from_the_end_and_are_counted() {
        let rows: Vec<Value> = (0..10_000).map(|n| json!({ "name": format!("class {n}"), "count": n })).collect();
        for most in [1000, 4096, ANSWER] {
            let found = fit(json!({ "rows": rows }), &[cut(rows.len())], most);
            let kept = found["rows"].as_array().unwrap();
            assert!(size(&found) <= most && size(&found) > most * 3 / 5 - 300, "{} of {most}", size(&found));
            assert_eq!(kept[..], rows[..kept.len()]);
            assert_eq!(found["left_out"][0]["rows"], rows.len() - kept.len());
            assert_eq!(found["left_out"][0]["because"], "the answer is full");
            assert_eq!(found["left_out"][0]["to_see_them"], "ask for less");
        }
    }

    #[test]
    fn what_was_left_out_before_counts() {
        let found = fit(json!({ "rows": [1, 2] }), &[cut(7)], ANSWER);
        assert_eq!(
            found["left_out"],
            json!([{ "list": "rows", "rows": 5, "because": "limit", "to_see_them": "ask for less; or raise the limit" }])
        );
    }

    #[test]
    fn two_lists_share_the_room() {
        let long: Vec<Value> = (0..5000).map(|n| json!({ "step": n })).collect();
        let both = [Cut { list: "path", ..cut(long.len()) }, cut(long.len())];
        let found = fit(json!({ "path": long, "rows": long }), &both, ANSWER);
        let kept = |list: &str| found[list].as_array().unwrap().len();
        assert!(size(&found) <= ANSWER && kept("path") > 700 && kept("rows") > 700, "{found}");
        let found =
            fit(json!({ "path": [1], "rows": long }), &[Cut { list: "path", ..cut(1) }, cut(long.len())], ANSWER);
        assert!(found["rows"].as_array().unwrap().len() > 1900, "the room that one does not need is the other's");
    }

    #[test]
    fn a_row_that_is_too_long_is_cut_within() {
        let frames: Vec<Value> = (0..100_000).map(|n| json!(n)).collect();
        let found = fit(json!({ "rows": [{ "name": "a", "frames": frames }, { "name": "b" }] }), &[cut(2)], ANSWER);
        assert!(size(&found) <= ANSWER, "{}", size(&found));
        assert_eq!(found["rows"][0]["name"], "a");
        let kept = found["rows"][0]["frames"].as_array().unwrap().len();
        assert_eq!(found["left_out_within_rows"], 100_000 - kept);
        assert_eq!(found["left_out"][0]["rows"], 1);
    }

    #[test]
    fn any_shape_ends_within_bounds() {
        let mut deep = json!(["x".repeat(900)]);
        for n in 0..60 {
            deep = if n % 2 == 0 { json!([deep, "y".repeat(900)]) } else { json!({ "a": deep, "b": [n] }) };
        }
        let found = fit(json!({ "deep": deep }), &[], 4096);
        assert!(size(&found) <= 4096, "{}", size(&found));
        let matrix = vec![vec![1; 1000]; 1000];
        let found = fit(json!({ "a": matrix, "b": matrix }), &[], ANSWER);
        assert!(size(&found) <= ANSWER);
    }

    #[test]
    fn numbers_and_texts_are_short() {
        let mut value = json!([0.123_456_789, 1_234_567.891, 1.0e-9, 12, 0.1, -2.5e-7, 0.0, 3.0, 1e300]);
        tidy(&mut value);
        assert_eq!(value, json!([0.123_457, 1_234_568.0, 1.0e-9, 12, 0.1, -2.5e-7, 0.0, 3.0, 1e300]));
        let mut text = json!(["ü".repeat(1001), "a"]);
        tidy(&mut text);
        assert_eq!(text[0].as_str().unwrap().chars().count(), TEXT + 1);
        assert_eq!(text[1], "a");
    }
}
