//! Layers of a configuration. The first layer in this order that has a value decides: flags, environment,
//! file, profile, defaults.

use std::path::{Path, PathBuf};

use super::{Config, ConfigError, ConfigLayer, KNOBS, Profile, Setting};

/// Source of a configuration value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in default, because no layer gave a value.
    Default,
    /// A profile that a layer selected.
    Profile(Profile),
    /// The configuration file at this path.
    File(PathBuf),
    /// An environment variable of this name.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Profile(profile) => write!(f, "profile {}", profile.show()),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Collects the layers of a configuration, such as the file and the flags. The order of the calls does not
/// matter.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    file: Option<(PathBuf, ConfigLayer)>,
    environment: ConfigLayer,
    flags: ConfigLayer,
}

/// Prefix of the environment variables that set configuration values. The command itself reads other
/// variables with this prefix.
const PREFIX: &str = "THALWEG_";

impl Layers {
    /// Creates a configuration without layers, in which every value is the default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the configuration file at `path` as a layer.
    pub fn file(self, path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::File { path: path.to_owned(), reason: error.to_string() })?;
        self.file_text(path, &text)
    }

    /// Adds the text of a configuration file as a layer. The caller has read the text from `path`, which
    /// [`file`](Self::file) does for other callers.
    pub fn file_text(mut self, path: &Path, text: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let mut given = ConfigLayer::default();
        for (name, value) in &table {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            given.set(name, &text).map_err(|error| at(path.display(), error))?;
        }
        self.file = Some((path.to_owned(), given));
        Ok(self)
    }

    /// Adds the environment variables that name a configuration value, such as `THALWEG_MAX_SCANS`, as a
    /// layer. Ignores other variables with the prefix, because the command and its scripts use some.
    pub fn environment<I, N, V>(mut self, variables: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item = (N, V)>,
        N: AsRef<str>,
        V: AsRef<str>,
    {
        for (variable, value) in variables {
            let Some(name) = variable.as_ref().strip_prefix(PREFIX) else { continue };
            let name = name.to_ascii_lowercase();
            if KNOBS.iter().any(|knob| knob.name == name) {
                self.environment.set(&name, value.as_ref()).map_err(|error| at(variable.as_ref(), error))?;
            }
        }
        Ok(self)
    }

    /// Adds the values that the command line gives as a layer.
    #[must_use]
    pub fn flags(mut self, flags: ConfigLayer) -> Self {
        self.flags = flags;
        self
    }

    /// Merges the layers, checks the merged configuration, and returns it.
    pub fn resolve(self) -> Result<Resolved, ConfigError> {
        let mut config = Config::default();
        config.take(&self.profile().layer());
        if let Some((_, given)) = &self.file {
            config.take(given);
        }
        config.take(&self.environment);
        config.take(&self.flags);
        config.check()?;
        let sources = KNOBS.iter().map(|knob| self.source(knob.name)).collect();
        Ok(Resolved { config, sources })
    }

    /// Returns the profile (a named set of values) that the layers select.
    fn profile(&self) -> Profile {
        let file = self.file.as_ref().and_then(|(_, given)| given.profile);
        self.flags.profile.or(self.environment.profile).or(file).unwrap_or_default()
    }

    fn source(&self, name: &str) -> Source {
        if self.flags.get(name).is_some() {
            return Source::Flag(format!("--{}", name.replace('_', "-")));
        }
        if self.environment.get(name).is_some() {
            return Source::Environment(format!("{PREFIX}{}", name.to_ascii_uppercase()));
        }
        match &self.file {
            Some((path, given)) if given.get(name).is_some() => Source::File(path.clone()),
            _ if self.profile().layer().get(name).is_some() => Source::Profile(self.profile()),
            _ => Source::Default,
        }
    }
}

fn at(place: impl std::fmt::Display, error: ConfigError) -> ConfigError {
    ConfigError::At { place: place.to_string(), error: Box::new(error) }
}

/// A checked configuration, with the source of each value.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The merged configuration values.
    pub config: Config,
    /// Sources of the configuration values, in the order of [`KNOBS`].
    pub(super) sources: Vec<Source>,
}

impl Resolved {
    /// Returns the source of a configuration value, or `None` if there is no knob of this name.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<&Source> {
        let at = KNOBS.iter().position(|knob| knob.name == name)?;
        self.sources.get(at)
    }
}
