//! Lists of subject patterns as a configuration value.

use thalweg_broker::Pattern;

use super::Setting;

/// Patterns of subjects, such as `jobs.>,orders.*`; an empty list matches no subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectPatterns(pub Vec<Pattern>);

impl SubjectPatterns {
    /// Returns true if one pattern of the list matches every subject that `pattern` matches.
    #[must_use]
    pub fn covers(&self, pattern: &Pattern) -> bool {
        self.0.iter().any(|listed| listed.covers(pattern))
    }
}

impl Setting for SubjectPatterns {
    const VALUE_NAME: &'static str = "PATTERNS";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let expected = "a list of subject patterns such as jobs.>,orders.*, or empty";
        let parts = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        let patterns: Result<_, _> = parts.map(|part| Pattern::parse(part.as_bytes()).map_err(|_| expected)).collect();
        patterns.map(Self)
    }

    fn show(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_covers_what_one_of_its_patterns_covers() {
        let list = SubjectPatterns::parse("jobs.>, orders.*").unwrap();
        assert_eq!(list.show(), "jobs.>,orders.*");
        let covers = |pattern: &str| list.covers(&Pattern::parse(pattern.as_bytes()).unwrap());
        assert!(covers("jobs.a") && covers("jobs.*.b") && covers("jobs.>") && covers("orders.x") && covers("orders.*"));
        assert!(!covers("jobs") && !covers(">") && !covers("orders.>") && !covers("orders.a.b") && !covers("*.a"));
        assert_eq!(SubjectPatterns::parse("").unwrap(), SubjectPatterns::default());
        assert!(SubjectPatterns::parse("a..b").is_err() && SubjectPatterns::parse("a,").is_err());
        assert!(SubjectPatterns::parse(">").unwrap().covers(&Pattern::parse(b"a.>").unwrap()));
    }
}
