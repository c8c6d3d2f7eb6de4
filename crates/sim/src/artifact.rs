//! Artifacts: files with the settings, the violations and the event log of a simulation, so that it can be repeated.
//!
//! Owns: the text of an artifact, and reading its settings. An artifact is the report as JSON, an empty line, and the
//! event log, which nothing reads. Settings are read with the bounds that the command line has, so that a changed file
//! cannot start a simulation that no command could start.

use std::{collections::BTreeSet, error::Error, fmt, fs, io, ops::RangeInclusive, path::Path, time::Duration};

use serde_json::{Deserializer, Value};

use crate::{
    faults::{FaultKind, Overlap},
    plant::Plant,
    report::{Report, commit},
    settings::{CLIENTS, NODES, RATE, SECONDS, SUBSCRIBERS, Settings},
};

/// The part of an artifact that is needed to repeat its simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Settings of the simulation.
    pub settings: Settings,
    /// Version of the program that wrote the artifact.
    pub version: String,
    /// Commit of the program that wrote the artifact; `None` if the program did not know it.
    pub commit: Option<String>,
    /// Hash of the course of the simulation, as in [`Report`].
    pub fingerprint: u64,
}

/// Error of reading an artifact. The file is no artifact, or it has lost its end.
#[derive(Debug)]
pub enum ArtifactError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file has no text.
    Empty,
    /// The file does not begin with complete JSON.
    Json(serde_json::Error),
    /// The value of this name is missing, or no simulation can have it.
    Value {
        /// Name of the value.
        name: &'static str,
        /// Description of the values that are accepted.
        expected: String,
        /// Value in the file, as JSON; `None` if it is missing.
        found: Option<String>,
    },
}

impl fmt::Display for ArtifactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Empty => f.write_str("the file is empty"),
            Self::Json(error) => write!(f, "the file does not begin with complete JSON: {error}"),
            Self::Value { name, expected, found: Some(found) } => write!(f, "`{name}` is {found} and not {expected}"),
            Self::Value { name, expected, found: None } => write!(f, "`{name}` is missing: {expected}"),
        }
    }
}

impl Error for ArtifactError {}

impl Artifact {
    /// Returns the text of the artifact of a simulation.
    #[must_use]
    pub fn text(report: &Report) -> String {
        format!("{:#}\n\n{}", report.json(), report.story())
    }

    /// Reads the artifact in a file.
    pub fn read(path: &Path) -> Result<Self, ArtifactError> {
        Self::parse(&fs::read(path).map_err(ArtifactError::Io)?)
    }

    /// Reads the artifact in `bytes`. Bytes after the JSON are ignored, so the event log may be incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArtifactError> {
        let mut values = Deserializer::from_slice(bytes).into_iter::<Value>();
        let json = values.next().ok_or(ArtifactError::Empty)?.map_err(ArtifactError::Json)?;
        let settings = Settings {
            seed: number(&json, "seed", &(0..=u64::MAX))?,
            nodes: number(&json, "nodes", &NODES)?,
            clients: number(&json, "clients", &CLIENTS)?,
            rate: number(&json, "rate_per_second", &RATE)?,
            subscribers: number(&json, "subscribers", &SUBSCRIBERS)?,
            lasts: Duration::from_secs(seconds(&json)?),
            kinds: value(&json, "faults", "a list of kinds of faults", kinds_of)?,
            overlap: if value(&json, "apart", "true or false", Value::as_bool)? {
                Overlap::Never
            } else {
                Overlap::Allowed
            },
            on_leader: value(&json, "on_leader", "true or false", Value::as_bool)?,
            without: value(&json, "without", "a list of numbers of faults", numbers_of)?,
            plant: plant(&json)?,
        };
        let version = value(&json, "version", "a version", |version| version.as_str().map(str::to_owned))?;
        let hash = |text: &Value| u64::from_str_radix(text.as_str()?, 16).ok();
        let fingerprint = value(&json, "fingerprint", "a hash in hexadecimal", hash)?;
        Ok(Self { settings, version, commit: json["commit"].as_str().map(str::to_owned), fingerprint })
    }

    /// Returns a warning if another version or commit of the program has written the artifact.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let (version, commit) = (env!("CARGO_PKG_VERSION"), commit());
        if self.version == version && self.commit == commit {
            return None;
        }
        let named = |commit: &Option<String>| commit.clone().unwrap_or_else(|| "an unknown commit".to_owned());
        Some(format!(
            "the artifact is of version {} ({}), this program is version {version} ({}): the seed may take another \
             course",
            self.version,
            named(&self.commit),
            named(&commit)
        ))
    }
}

/// Reads the value `name` of an artifact with `read`, which returns `None` for a value that no simulation can have.
fn value<'a, T>(
    json: &'a Value,
    name: &'static str,
    expected: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<T, ArtifactError> {
    let found = &json[name];
    read(found).ok_or_else(|| ArtifactError::Value {
        name,
        expected: expected.to_owned(),
        found: (!found.is_null()).then(|| found.to_string()),
    })
}

fn number(json: &Value, name: &'static str, bounds: &RangeInclusive<u64>) -> Result<u64, ArtifactError> {
    let expected = format!("a number from {} to {}", bounds.start(), bounds.end());
    value(json, name, &expected, |found| found.as_u64().filter(|number| bounds.contains(number)))
}

/// Reads the length of the simulation, which an artifact has as a decimal fraction.
fn seconds(json: &Value) -> Result<u64, ArtifactError> {
    let expected = format!("a whole number from {} to {}", SECONDS.start(), SECONDS.end());
    value(json, "seconds", &expected, |found| {
        let found = found.as_f64()?;
        let whole = found as u64;
        (whole as f64 == found && SECONDS.contains(&whole)).then_some(whole)
    })
}

fn kinds_of(names: &Value) -> Option<Vec<FaultKind>> {
    names.as_array()?.iter().map(|name| FaultKind::named(name.as_str()?)).collect()
}

fn numbers_of(numbers: &Value) -> Option<BTreeSet<usize>> {
    numbers.as_array()?.iter().map(|number| usize::try_from(number.as_u64()?).ok()).collect()
}

fn plant(json: &Value) -> Result<Option<Plant>, ArtifactError> {
    let read = |name: &Value| match name {
        Value::Null => Some(None),
        name => Plant::in_artifact(name.as_str()?).map(Some),
    };
    value(json, "plant", "a planted bug of this program", read)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::runtime::Event;

    /// Settings that all differ from the defaults.
    fn unusual() -> Settings {
        Settings {
            seed: u64::MAX,
            nodes: 5,
            clients: 3,
            rate: 1_234,
            subscribers: 0,
            lasts: Duration::from_secs(31),
            kinds: vec![FaultKind::Flipped, FaultKind::Kill, FaultKind::AllPowerLoss, FaultKind::Kill],
            overlap: Overlap::Never,
            on_leader: true,
            without: BTreeSet::from([0, 2]),
            plant: Some(Plant::OptionInApply),
        }
    }

    fn text_of(settings: Settings) -> String {
        let event = Event { at: Duration::from_millis(1_500), process: 2, text: "VIOLATION: a bug".to_owned() };
        Artifact::text(&Report {
            settings,
            violations: vec!["a bug".to_owned()],
            checked: 0,
            unknown: 0,
            searched: 0,
            undecided: 0,
            followed: 0,
            refused: 0,
            gaps: Vec::new(),
            time_behind: Duration::ZERO,
            messages: 0,
            elapsed: Duration::ZERO,
            polls: 0,
            fingerprint: 0x0123_4567_89ab_cdef,
            events: vec![event],
        })
    }

    #[test]
    fn settings_are_read_as_they_were_written() {
        let with_each_bug = Plant::value_variants().iter().map(|bug| Settings { plant: Some(*bug), ..unusual() });
        for settings in with_each_bug.chain([unusual(), Settings::default()]) {
            let artifact = Artifact::parse(text_of(settings.clone()).as_bytes()).expect("an artifact");
            assert_eq!(artifact.settings, settings);
            assert_eq!(artifact.fingerprint, 0x0123_4567_89ab_cdef);
            assert_eq!(artifact.warning(), None);
        }
    }

    #[test]
    fn an_artifact_of_another_commit_gives_a_warning() {
        let artifact = Artifact::parse(text_of(unusual()).as_bytes()).expect("an artifact");
        let other = Artifact { commit: Some("0123abcd".to_owned()), ..artifact.clone() };
        assert!(other.warning().expect("a warning").contains("0123abcd"));
        let other = Artifact { version: "99.0.0".to_owned(), ..artifact };
        assert!(other.warning().expect("a warning").contains("99.0.0"));
    }

    #[test]
    fn a_file_without_its_end_is_refused_unless_the_json_is_complete() {
        let text = text_of(unusual());
        let end = text.find("\n\n").expect("an empty line");
        for length in 0..end {
            let error = Artifact::parse(&text.as_bytes()[..length]).expect_err("incomplete JSON");
            assert!(matches!(error, ArtifactError::Empty | ArtifactError::Json(_)), "{length}: {error}");
        }
        for length in end..text.len() {
            assert_eq!(Artifact::parse(&text.as_bytes()[..length]).expect("settings").settings, unusual());
        }
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let nested = "[".repeat(100_000);
        let cases: [(&[u8], &str); 8] = [
            (b"", "empty"),
            (b" \n", "empty"),
            (b"\xff\xfe\x00", "JSON"),
            (nested.as_bytes(), "JSON"),
            (b"{\"seed\": 1e999}", "JSON"),
            (b"12 13", "`seed` is missing"),
            (b"{}", "`seed` is missing"),
            (b"{\"seed\": -1}", "`seed` is -1"),
        ];
        for (bytes, expected) in cases {
            let error = Artifact::parse(bytes).expect_err("no artifact").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn settings_that_no_command_could_have_are_refused() {
        let text = text_of(unusual());
        let cases = [
            ("\"nodes\": 5", "\"nodes\": 0", "`nodes`"),
            ("\"nodes\": 5", "\"nodes\": \"5\"", "`nodes`"),
            ("\"clients\": 3", "\"clients\": 0", "`clients`"),
            ("\"rate_per_second\": 1234", "\"rate_per_second\": 0", "`rate_per_second`"),
            ("\"seconds\": 31.0", "\"seconds\": 31.5", "`seconds`"),
            ("\"seconds\": 31.0", "\"seconds\": 1e18", "`seconds`"),
            ("\"flipped bit\"", "\"flood\"", "`faults`"),
            ("\"apart\": true", "\"apart\": 1", "`apart`"),
            ("\"OptionInApply\"", "\"OptionInSpace\"", "`plant`"),
        ];
        for (written, changed, name) in cases {
            let changed = text.replacen(written, changed, 1);
            assert_ne!(changed, text, "{written} is not in the artifact");
            let error = Artifact::parse(changed.as_bytes()).expect_err("a wrong setting").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
