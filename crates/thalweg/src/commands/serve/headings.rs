//! Headings for the configuration options in `serve --help`.
//!
//! The table of options is ordered by subject, so a heading applies from its first option to the first option of the
//! next heading. A new option in the table gets the heading of its neighbours.

use thalweg_server::config::{KNOBS, Knob};

/// Headings in the order of the table of options, each with the first option under it.
const HEADINGS: &[(&str, &str)] = &[
    ("data", "Data, memory and HTTP"),
    ("native", "Native protocol"),
    ("resp", "Redis clients"),
    ("allowed_hosts", "Protection"),
    ("cluster", "Cluster"),
    ("durability", "Durability and disk"),
    ("inline_value_bytes", "State and its memory"),
    ("max_connections", "Bounds on clients and requests"),
    ("profile", "Subjects: batches and queues"),
    ("max_caches_bytes", "Caches"),
    ("header_timeout", "Timeouts"),
    ("log_format", "Log lines"),
];

/// Returns all options in the order of their table, each with its heading.
pub(super) fn in_order() -> impl Iterator<Item = (&'static str, &'static Knob)> {
    KNOBS.iter().scan("Configuration", |heading, knob| {
        *heading = HEADINGS.iter().find(|(first, _)| *first == knob.name).map_or(*heading, |(_, heading)| *heading);
        Some((*heading, knob))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_heading_has_its_options_in_one_place() {
        let mut found: Vec<_> = in_order().map(|(heading, _)| heading).collect();
        found.dedup();
        assert_eq!(found, HEADINGS.iter().map(|(_, heading)| *heading).collect::<Vec<_>>());
    }

    #[test]
    fn every_option_names_the_kind_of_its_value() {
        let unnamed: Vec<_> = KNOBS.iter().filter(|knob| knob.value_name == "VALUE").map(|knob| knob.name).collect();
        assert_eq!(unnamed, Vec::<&str>::new());
    }
}
