//! The load of a comparison, with a record of those options that the user gives on the command line.
//!
//! If the load consists of puts and gets, all options apply, with their defaults. A scenario has values of its own, and
//! only options that the user gives replace them.

use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

use crate::http::HttpLoad;

/// Load options, and the names of the options that the command line sets.
#[derive(Clone, Debug)]
pub struct GivenLoad {
    /// The load, with defaults for all options that are not named.
    pub load: HttpLoad,
    /// Command-line arguments of the options that the user gives, such as `--connections`.
    pub(super) given: Vec<String>,
}

impl GivenLoad {
    /// Returns the first of `options` that the user gives on the command line; `None` if none of them is given.
    pub(super) fn first_of(&self, options: &[&'static str]) -> Option<&'static str> {
        options.iter().copied().find(|option| self.given.iter().any(|argument| argument == option))
    }
}

impl FromArgMatches for GivenLoad {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let load = HttpLoad::from_arg_matches(matches)?;
        let is_named = |option: &str| {
            let id = option.trim_start_matches('-').replace('-', "_");
            matches.value_source(&id) == Some(ValueSource::CommandLine)
        };
        let given = load.arguments_if(is_named);
        Ok(Self { load, given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenLoad {
    fn augment_args(command: Command) -> Command {
        HttpLoad::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        HttpLoad::augment_args_for_update(command)
    }
}
