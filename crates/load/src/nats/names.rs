//! Names of a run's stream and subjects.

use async_nats::Subject;

/// Names of a benchmark run's stream and subjects. No other run uses them.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Name of the stream and of its consumer.
    pub stream: String,
    /// Subject of the stream's records.
    pub records: Subject,
    /// Subject to which messages are published.
    pub messages: Subject,
    /// Subject that never has subscribers. The server itself answers requests to it, which shows that it has processed
    /// all earlier messages.
    pub nobody: Subject,
}

impl Names {
    /// Returns names that begin with `name`. Characters that NATS does not permit in names of streams and subjects
    /// become `_`.
    pub(super) fn new(name: &str) -> Self {
        let is_plain = |at: char| at.is_ascii_alphanumeric() || at == '-';
        let stream: String = name.chars().map(|at| if is_plain(at) { at } else { '_' }).collect();
        let subject = |end: &str| Subject::from(format!("{stream}.{end}"));
        let (records, messages, nobody) = (subject("records"), subject("messages"), subject("nobody"));
        Self { stream, records, messages, nobody }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_characters_with_a_meaning() {
        let names = Names::new("a.b*>c d-1");
        assert_eq!((&*names.stream, &*names.records), ("a_b__c_d-1", "a_b__c_d-1.records"));
    }
}
