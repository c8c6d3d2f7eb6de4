//! Help for users: the list of commands by purpose, texts wrapped to the terminal, and suggestions for unknown verbs.
//! Also converts errors of the command line to failures, which other programs can read as JSON.
//!
//! Does not own: the commands and their texts (`cli`).

use std::{
    fmt::Write as _,
    num::{IntErrorKind, ParseFloatError, ParseIntError},
};

use clap::{
    Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::failure::Failure;

/// Groups of commands, in the order of the help.
pub(crate) const GROUPS: &[(&str, &[&str])] = &[
    ("Node and cluster", &["serve", "status", "top", "space", "cluster", "doctor"]),
    (
        "Keys and values",
        &["put", "get", "del", "scan", "history", "watch", "incr", "ttl", "touch", "lease", "keyspaces"],
    ),
    ("Streams and consumer groups", &["append", "read", "tail", "streams", "consume", "groups"]),
    ("Keys and streams in one step", &["commit", "txn"]),
    ("Locks, semaphores and elections", &["lock", "semaphore", "elect", "leader"]),
    ("Subjects and caches, which store nothing on disk", &["publish", "subscribe", "request", "reply", "cache"]),
    ("Files and backups", &["import", "export", "backup", "restore"]),
    ("Maintenance", &["state", "log", "migrate"]),
    ("Tools", &["bench", "plan", "completions", "man", "help"]),
];

/// Verbs of other programs, each with the commands of this program that do the same. An error about an unknown verb
/// suggests those commands that exist at its position on the command line.
const SYNONYMS: &[(&[&str], &[&str])] = &[
    (&["set", "insert", "store", "write"], &["put", "configure"]),
    (&["add"], &["put", "append", "create"]),
    (&["ls", "list", "dir"], &["list", "scan", "keyspaces", "streams", "keys"]),
    (&["keys"], &["scan"]),
    (&["rm", "remove", "unset", "delete", "drop", "destroy"], &["drop", "del", "revoke"]),
    (&["cat", "fetch", "select", "query"], &["get", "read", "show"]),
    (&["info", "describe", "stats", "stat", "inspect", "health"], &["show", "status"]),
    (&["new", "make", "mk"], &["create", "grant"]),
    (&["update", "edit", "alter", "config"], &["configure", "put"]),
    (&["push", "produce", "xadd"], &["append", "publish"]),
    (&["send", "pub", "emit"], &["publish", "append"]),
    (&["sub", "listen"], &["subscribe", "tail"]),
    (&["follow"], &["tail", "watch"]),
    (&["start", "run", "server", "up"], &["serve"]),
    (&["transaction", "multi", "tx"], &["txn"]),
    (&["increment", "inc", "counter"], &["incr"]),
    (&["expire", "renew"], &["touch", "keep-alive"]),
    (&["dump"], &["export", "log"]),
    (&["load"], &["import"]),
    (&["topics", "topic", "stream"], &["streams"]),
    (&["keyspace", "tables", "buckets", "databases"], &["keyspaces"]),
    (&["group"], &["groups"]),
    (&["benchmark"], &["bench"]),
    (&["check", "diagnose"], &["doctor"]),
    (&["monitor", "htop"], &["top"]),
    (&["du", "df", "usage", "disk"], &["space"]),
    (&["capacity", "size"], &["plan"]),
    (&["completion"], &["completions"]),
];

/// Replaces the flat list of commands in the program's help by a list grouped by purpose.
pub(crate) fn grouped(command: Command) -> Command {
    let width = command.get_subcommands().map(|of| of.get_name().len()).max().unwrap_or(0);
    let (header, literal) = (*command.get_styles().get_header(), *command.get_styles().get_literal());
    // The command `help` is described here, because clap adds it only when it builds the command line.
    let about = |name: &str| match command.find_subcommand(name) {
        Some(found) => {
            let also = found.get_visible_aliases().fold(String::new(), |all, alias| format!("{all} [also: {alias}]"));
            found.get_about().map(|about| format!("{about}{also}"))
        }
        None => (name == "help").then(|| "Print the help of a command".to_owned()),
    };
    let mut list = String::new();
    for (title, names) in GROUPS {
        // A command may be missing, if the program was built without its feature.
        let found: Vec<_> = names.iter().filter_map(|name| Some((*name, about(name)?))).collect();
        if found.is_empty() {
            continue;
        }
        let _ = writeln!(list, "{header}{title}:{header:#}");
        for (name, about) in found {
            let padding = width.saturating_sub(name.len());
            let _ = writeln!(list, "  {literal}{name}{literal:#}{:padding$}  {about}", "");
        }
        list.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// Joins the lines of each paragraph in the text after the options, in the help of all commands. The paragraphs are
/// then wrapped only to the width of the terminal, and no longer where the lines of the source end.
pub(crate) fn joined(command: Command) -> Command {
    let text = command.get_after_help().map(|text| joined_lines(&text.to_string()));
    let command = match text {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(joined)
}

/// Joins each line with the line before it, if both are ordinary text. Lines that are empty or indented, and lines
/// after a heading, are not joined.
fn joined_lines(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut before = "";
    for line in text.lines() {
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        if is_prose(before) && is_prose(line) && !before.ends_with(':') {
            joined.push(' ');
        } else if !joined.is_empty() {
            joined.push('\n');
        }
        joined.push_str(line);
        before = line;
    }
    joined
}

/// Converts the text of a command-line error to a failure. The first paragraph becomes the message. The tip or the
/// usage below it becomes the advice on the next step.
pub(crate) fn usage_failure(text: &str) -> Failure {
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
    let lines = || text.lines().map(str::trim);
    let tip = lines().find_map(|line| line.strip_prefix("tip: ")).map(str::to_owned);
    let usage = lines().find_map(|line| line.strip_prefix("Usage: ")).map(|usage| format!("the usage is `{usage}`"));
    Failure::usage(words.join(" ")).then(tip.or(usage).unwrap_or_else(|| "`--help` explains the options".to_owned()))
}

/// Adds suggestions to the error for an unknown command: the commands of this program that do what the typed verb does
/// in other programs. `arguments` are the arguments of the process without the program's name.
pub(crate) fn suggest(mut error: Error, command: &Command, arguments: impl Iterator<Item = String>) -> Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let suggested = suggestions(typed, parent(command, typed, arguments));
    if !suggested.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(suggested));
    }
    error
}

/// Replaces an error about a mistyped number by an error that states what is expected. The original error only says
/// which digit is wrong.
pub(crate) fn expecting_numbers(error: Error) -> Error {
    let Some(expected) = std::error::Error::source(&error).and_then(expected_number) else { return error };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (argument, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let message = format!("invalid value '{value}' for '{argument}': {expected}");
    Error::raw(error.kind(), format!("{message}\n\nFor more information, try '--help'.\n"))
}

/// Returns the description of the expected number; `None` if the error is not about a mistyped number.
fn expected_number(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if error.is::<ParseFloatError>() {
        return Some("a number is expected");
    }
    Some(match error.downcast_ref::<ParseIntError>()?.kind() {
        IntErrorKind::PosOverflow => "the number is too large",
        IntErrorKind::NegOverflow => "the number is too small",
        _ => "a whole number is expected",
    })
}

/// Returns the command or subcommand under which the user has typed the unknown verb.
fn parent<'c>(root: &'c Command, typed: &str, arguments: impl Iterator<Item = String>) -> &'c Command {
    let path = arguments.take_while(|argument| argument != typed);
    path.fold(root, |command, argument| command.find_subcommand(&argument).unwrap_or(command))
}

fn suggestions(typed: &str, parent: &Command) -> Vec<String> {
    let meant = SYNONYMS.iter().find(|(verbs, _)| verbs.contains(&typed)).map_or(&[][..], |(_, meant)| meant);
    let known = meant.iter().filter(|name| parent.get_subcommands().any(|of| of.get_name() == **name));
    known.map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        Command::new("thalweg")
            .subcommand(Command::new("put").about("Set the value of a key").visible_alias("assign"))
            .subcommand(Command::new("scan").about("List the pairs of a keyspace"))
            .subcommand(Command::new("streams").subcommand(Command::new("list")).subcommand(Command::new("drop")))
    }

    #[test]
    fn verbs_of_other_programs_lead_to_the_commands_that_exist() {
        let suggested = |typed: &[&str]| -> Vec<String> {
            let command = program();
            let error = program().try_get_matches_from([&["thalweg"], typed].concat()).unwrap_err();
            let arguments = typed.iter().map(|argument| (*argument).to_owned());
            match suggest(error, &command, arguments).get(ContextKind::SuggestedSubcommand) {
                Some(ContextValue::Strings(suggested)) => suggested.clone(),
                _ => Vec::new(),
            }
        };
        assert_eq!(suggested(&["set", "a", "b"]), ["put"]);
        assert_eq!(suggested(&["ls"]), ["scan", "streams"]);
        assert_eq!(suggested(&["streams", "ls"]), ["list"]);
        assert_eq!(suggested(&["streams", "rm", "a"]), ["drop"]);
        assert_eq!(suggested(&["strems"]), ["streams"], "a slip of the keyboard is found by its spelling");
        assert_eq!(suggested(&["bogus"]), Vec::<String>::new());
    }

    #[test]
    fn paragraphs_are_wrapped_to_the_terminal_only() {
        let text = "One line of\nprose.\n\nExamples:\n  thalweg put a\n    b\nNext:\n  x";
        assert_eq!(joined_lines(text), "One line of prose.\n\nExamples:\n  thalweg put a\n    b\nNext:\n  x");
        let command = Command::new("thalweg").subcommand(Command::new("put").after_help("One line of\nprose."));
        let joined = joined(command);
        assert_eq!(joined.find_subcommand("put").unwrap().get_after_help().unwrap().to_string(), "One line of prose.");
    }

    #[test]
    fn an_error_of_the_command_line_has_a_message_and_a_next_step() {
        let failure = |typed: &[&str]| {
            let command = Command::new("thalweg").arg(clap::Arg::new("server").long("server").required(true));
            usage_failure(&command.try_get_matches_from(typed).unwrap_err().render().to_string())
        };
        let missing = failure(&["thalweg"]);
        assert_eq!(missing.message, "the following required arguments were not provided: --server <server>");
        assert_eq!(missing.next.as_deref(), Some("the usage is `thalweg --server <server>`"));
        assert_eq!(missing.exit.code(), 2);
        let wrong = failure(&["thalweg", "--sever", "a"]);
        assert_eq!(wrong.message, "unexpected argument '--sever' found");
        assert_eq!(wrong.next.as_deref(), Some("a similar argument exists: '--server'"));
    }

    #[test]
    fn wrong_numbers_are_told_what_is_expected() {
        let failure = |value: &str| {
            let from = clap::Arg::new("from").long("from").value_name("N").value_parser(clap::value_parser!(u64));
            let by = clap::Arg::new("by").long("by").value_parser(clap::value_parser!(i64).range(-5..));
            let command = Command::new("thalweg").arg(from).arg(by);
            let error = command.try_get_matches_from(["thalweg", value]).unwrap_err();
            usage_failure(&expecting_numbers(error).render().to_string())
        };
        let wrong = failure("--from=x");
        assert_eq!(wrong.message, "invalid value 'x' for '--from <N>': a whole number is expected");
        assert_eq!(wrong.exit.code(), 2);
        assert_eq!(failure("--by=1.5").message, "invalid value '1.5' for '--by <by>': a whole number is expected");
        assert!(failure("--from=99999999999999999999").message.ends_with("the number is too large"));
        assert!(failure("--by=-9").message.contains("-9 is not in"), "the range is named as before");
        assert!(failure("--form=1").message.contains("unexpected argument"));
    }

    #[test]
    fn no_verb_is_listed_twice() {
        let mut verbs: Vec<_> = SYNONYMS.iter().flat_map(|(verbs, _)| *verbs).collect();
        let all = verbs.len();
        verbs.sort_unstable();
        verbs.dedup();
        assert_eq!(verbs.len(), all);
    }

    #[test]
    fn the_help_lists_commands_under_their_purpose() {
        let help = grouped(program()).render_help().to_string();
        assert!(help.contains("Keys and values:\n  put      Set the value of a key [also: assign]\n  scan"), "{help}");
        assert!(!help.contains("Commands:"), "{help}");
    }
}
