//! Formats the figures (numbers in the status) of a node for people. The names and values come from the API's JSON, and
//! the names contain the units.

use std::time::Duration;

use serde_json::Value;

use crate::{
    render,
    span::{show_span, show_time},
};

/// Returns the name and the value of each single figure in a JSON object and in the objects inside it, for printing. A
/// name consists of `prefix`, the names of the objects around the figure, and its own name, joined by spaces.
pub(crate) fn leaves(prefix: &str, value: &Value) -> Vec<(String, Value)> {
    let named = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix} {name}") };
    value.as_object().into_iter().flatten().fold(Vec::new(), |mut all, (name, value)| {
        match value {
            Value::Object(_) => all.extend(leaves(&named(name), value)),
            _ => all.push((named(name), value.clone())),
        }
        all
    })
}

/// Returns the name of a figure in the API as words, such as `free disk` for `free_disk`.
pub(crate) fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// Suffixes of figure names that state a unit.
const UNITS: [&str; 3] = ["_bytes", "_micros", "_seconds"];

/// Returns the name of a figure without the suffix that states its unit.
pub(crate) fn without_unit(name: &str) -> &str {
    if name == "seconds" {
        return "took";
    }
    UNITS.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name)
}

/// Formats a figure with the unit that its name states.
pub(crate) fn shown(name: &str, value: &Value) -> String {
    let is_of = |unit: &str| name == &unit[1..] || name.ends_with(unit);
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| shown("", item)).collect::<Vec<_>>().join(" "),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) if is_of("_bytes") => render::bytes(bytes),
            (Some(micros), _) if name.ends_with("time_micros") => show_time(micros),
            (Some(micros), _) if is_of("_micros") => show_span(Duration::from_micros(micros)),
            (_, Some(seconds)) if is_of("_seconds") => {
                Duration::try_from_secs_f64(seconds).map_or_else(|_| number.to_string(), show_span)
            }
            (Some(count), _) => render::count(count),
            _ => number.to_string(),
        },
        Value::Object(_) => value.to_string(),
    }
}
