//! Names of a run's stream and subjects.

use async_nats::Subject;

/// Names of a run's stream and subjects, which no other run uses.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Name of the stream and of its consumer.
    pub stream: String,
    /// Subject of the stream's records.
    pub records: Subject,
    /// Subject of messages that are published.
    pub messages: Subject,
    /// Subject without subscribers.
    pub nobody: Subject,
}

impl Names {
    /// Returns the names that begin with `name`. Characters that names of streams and subjects cannot have become `_`.
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
