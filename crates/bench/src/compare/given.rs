//! The load of a comparison, with a record of the options that the command line names.
//!
//! A load of puts and gets takes all options, with their defaults. A scenario has values of its own. Only options that
//! the command line names replace them.

use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

use crate::http::HttpLoad;

/// Load options, and the names of the options that the command line sets.
#[derive(Clone, Debug)]
pub struct GivenLoad {
    /// The load, with defaults for all options that are not named.
    pub load: HttpLoad,
    /// Arguments of the options that the command line names.
    pub(super) given: Vec<String>,
}

impl GivenLoad {
    /// Returns the first of these options that the command line names.
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
