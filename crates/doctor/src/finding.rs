//! Findings of `thalweg doctor`. A check of the machine adds a finding for each observation that an operator should
//! know: its severity, its meaning for a node, and the next step.

use serde::Serialize;

/// Severity of a finding. Reports list the worst findings first, in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Acknowledged data may be lost, or a node cannot work here.
    Problem,
    /// A node works, but is slower or tolerates fewer failures than it could.
    Weakness,
    /// A property that an operator should know, or a property that this command cannot determine.
    Note,
}

impl Severity {
    /// Name of the severity, for people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Weakness => "weakness",
            Self::Note => "note",
        }
    }
}

/// One observation about the machine, made by a check of the doctor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Code that identifies the check for programs. It does not change between versions.
    pub code: &'static str,
    /// Description of the finding, with the measured value.
    pub message: String,
    /// Consequence of the finding for a node on this machine.
    pub meaning: String,
    /// Action that the operator should take.
    pub next: String,
}

/// List of all findings of one examination of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Adds a finding of severity `Problem`.
    pub fn problem(
        &mut self,
        code: &'static str,
        message: String,
        meaning: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Problem, code, message, meaning.into(), next.into());
    }

    /// Adds a finding of severity `Weakness`.
    pub fn weakness(
        &mut self,
        code: &'static str,
        message: String,
        meaning: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Weakness, code, message, meaning.into(), next.into());
    }

    /// Adds a finding of severity `Note`.
    pub fn note(&mut self, code: &'static str, message: String, meaning: impl Into<String>, next: impl Into<String>) {
        self.add(Severity::Note, code, message, meaning.into(), next.into());
    }

    fn add(&mut self, severity: Severity, code: &'static str, message: String, meaning: String, next: String) {
        self.0.push(Finding { severity, code, message, meaning, next });
    }

    /// Sorts the findings by severity, the worst first. Findings of one severity stay in the order in which they were
    /// added.
    pub fn sort(&mut self) {
        self.0.sort_by_key(|finding| finding.severity);
    }

    /// Returns the number of findings of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.0.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Returns the codes of all findings.
    #[must_use]
    pub fn codes(&self) -> Vec<&'static str> {
        self.0.iter().map(|finding| finding.code).collect()
    }
}
