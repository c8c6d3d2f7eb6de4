//! Layers of a configuration. The first layer in this order that has a value decides: flags, environment, file,
//! profile, defaults.
//!
//! Owns: the reading of each layer, their merging, the source of each value, and the reduction of `max_connections` to
//! the limit on open files. Does not own: the values of a profile (`presets`), the bounds that follow from the memory
//! (`memory`), or the checks of a merged configuration (`checks`).

use std::path::{Path, PathBuf};

use thalweg_engine::Options;

use super::{
    AvailableMemory, ByteSize, Config, ConfigError, ConfigLayer, KNOBS, MemoryBudget, Profile, Setting, memory::plan,
};
use crate::limits::MAX_STATUS_CONNECTIONS;

/// Layer or rule from which a configuration value comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in default, because no layer gave a value.
    Default,
    /// The profile (a named set of values) that the configuration selects.
    Profile(Profile),
    /// The value follows from the knob `memory`.
    Memory,
    /// The value was lowered because of the process's limit on open files.
    OpenFiles,
    /// The configuration file at this path states the value.
    File(PathBuf),
    /// The environment variable of this name states the value.
    Environment(String),
    /// The command-line flag of this name states the value.
    Flag(String),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Profile(profile) => write!(f, "profile {}", profile.show()),
            Self::Memory => f.write_str("memory"),
            Self::OpenFiles => f.write_str("limit on open files"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Builder that collects the layers of a configuration, such as the file and the flags. The order of the calls does not
/// matter.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    file: Option<(PathBuf, ConfigLayer)>,
    environment: ConfigLayer,
    flags: ConfigLayer,
}

/// Prefix of the environment variables that set configuration values.
const PREFIX: &str = "THALWEG_";

/// Names of environment variables, without their prefix `THALWEG_`, that are not configuration values. The command line
/// reads or sets them.
const OTHER_VARIABLES: [&str; 6] = ["server", "admin_token", "bench_dir", "fencing_token", "lock_keyspace", "lock_key"];

/// Maximum number of wrong characters at which a name still counts as mistyped.
const MAX_SLIPS: usize = 2;

/// Returns the known name that most resembles a mistyped one. `None` if `name` itself is known, or resembles none.
#[must_use]
pub fn resembling<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let distances = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known));
    distances.min().filter(|(distance, _)| (1..=MAX_SLIPS).contains(distance)).map(|(_, known)| known)
}

/// Returns true for variables that Kubernetes sets in every container if a service has a name that begins with
/// `thalweg`, such as `THALWEG_SERVICE_HOST` and `THALWEG_PORT_7070_TCP_ADDR`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let has_port = |protocol: &str| value.starts_with(protocol) && name.ends_with("port");
    let of_port = |rest: &str| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && ["_tcp", "_udp", "_sctp"].iter().any(|protocol| rest[digits..].starts_with(protocol))
    };
    name.ends_with("service_host")
        || name.contains("service_port")
        || ["tcp://", "udp://", "sctp://"].into_iter().any(has_port)
        || name.match_indices("port_").any(|(at, found)| of_port(&name[at + found.len()..]))
}

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

    /// Adds the text of a configuration file as a layer. Meant for callers that have read the file at `path`
    /// themselves; [`file`](Self::file) reads it.
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

    /// Adds environment variables as a layer. A variable such as `THALWEG_MAX_SCANS` names a configuration value. Other
    /// variables with the prefix are errors, unless the command or Kubernetes sets them.
    pub fn environment<I, N, V>(mut self, variables: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item = (N, V)>,
        N: AsRef<str>,
        V: AsRef<str>,
    {
        for (variable, value) in variables {
            let Some(name) = variable.as_ref().strip_prefix(PREFIX) else { continue };
            let name = name.to_ascii_lowercase();
            if !OTHER_VARIABLES.contains(&&*name) && !is_of_kubernetes(&name, value.as_ref()) {
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

    /// Merges the layers, checks the merged configuration, and returns it. Ignores the size of the system's memory; see
    /// [`resolve_within`](Self::resolve_within).
    pub fn resolve(self) -> Result<Resolved, ConfigError> {
        self.resolve_within(None)
    }

    /// Merges the layers, computes the bounds that follow from the memory, checks the configuration, and returns it.
    /// `available` is the memory that the system offers; `None` if it is unknown.
    pub fn resolve_within(self, available: Option<AvailableMemory>) -> Result<Resolved, ConfigError> {
        let mut config = Config::default();
        config.take(&self.profile().layer());
        if let Some((_, given)) = &self.file {
            config.take(given);
        }
        config.take(&self.environment);
        config.take(&self.flags);
        let memory = MemoryBudget::new(config.memory, available)?;
        let is_set = |name: &str| !matches!(self.source(name), Source::Default | Source::Profile(_));
        let followers = plan(&config, &memory, is_set);
        config.take(&followers);
        config.check()?;
        let source = |name: &str| if followers.get(name).is_some() { Source::Memory } else { self.source(name) };
        let sources = KNOBS.iter().map(|knob| source(knob.name)).collect();
        Ok(Resolved { config, sources, memory, few_files: None })
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
    /// Configuration values after merging all layers.
    pub config: Config,
    /// Sources of the configuration values, in the order of [`KNOBS`].
    pub(super) sources: Vec<Source>,
    /// Memory of the server, from which the bounds on memory follow.
    pub memory: MemoryBudget,
    /// Limit on open files because of which the server permits fewer connections than configured. `None` if the limit
    /// permits all.
    few_files: Option<FewFiles>,
}

/// Maximum number of open files that are reserved for the node itself: segments of the log, tables, links to other
/// nodes.
const MAX_FILE_RESERVE: u64 = 4096;

/// A limit on open files that permits fewer connections than the configuration states.
#[derive(Clone, Copy, Debug)]
struct FewFiles {
    limit: u64,
    /// Maximum number of connections that the configuration states (`max_connections`).
    wanted: u32,
}

impl Resolved {
    /// Returns the source of a configuration value, or `None` if there is no knob of this name.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<&Source> {
        let at = KNOBS.iter().position(|knob| knob.name == name)?;
        self.sources.get(at)
    }

    /// Lowers `max_connections` so that the connections fit into `limit` open files; `None` is no limit. Half of the
    /// files, at most 4096, stay reserved for the files of the node. Without this reserve, connections could use up all
    /// files, and the node could neither write nor report its health.
    #[must_use]
    pub fn within_open_files(mut self, limit: Option<u64>) -> Self {
        let Some(limit) = limit else { return self };
        let room = (limit - MAX_FILE_RESERVE.min(limit / 2)).saturating_sub(MAX_STATUS_CONNECTIONS as u64).max(1);
        let wanted = self.config.max_connections;
        if u64::from(wanted) > room {
            self.config.max_connections = room as u32;
            self.few_files = Some(FewFiles { limit, wanted });
            for (knob, source) in KNOBS.iter().zip(&mut self.sources) {
                if knob.name == "max_connections" {
                    *source = Source::OpenFiles;
                }
            }
        }
        self
    }

    /// Returns the options for opening the database, with the size of the page cache that the memory leaves. The
    /// command sets `create` and `repair`, because they apply to one start only.
    #[must_use]
    pub fn engine_options(&self) -> Options {
        Options { page_cache_bytes: self.memory.page_cache_bytes(), ..self.config.engine_options() }
    }

    /// Returns warnings about permitted settings that may surprise an operator. The server logs them when it starts.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let sum = self.config.memory().last().map_or(ByteSize(0), |(_, sum)| *sum);
        let files = self.few_files.map(|FewFiles { limit, wanted }| {
            format!(
                "max_connections is {} instead of {wanted}, because the process may open only {limit} files and the node \
                 needs some for its data: raise the limit (`ulimit -n`, LimitNOFILE)",
                self.config.max_connections
            )
        });
        self.memory.warning(sum).into_iter().chain(files).chain(self.config.warnings()).collect()
    }
}
