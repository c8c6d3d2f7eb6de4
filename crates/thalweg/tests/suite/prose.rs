//! Doc comments open with a noun or a verb.
//!
//! A doc that opens with a relative clause or a preposition ("What is refused …", "Of two …") is usually a riddle
//! without the code around it. The test counts such openings over all crates and fails above a bound. It cannot tell a
//! good sentence from a bad one; readers do.
//!
//! Types have names that say what they hold: a list of names that say nothing, which were in use once, is rejected.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Largest share of doc comments with such an opening, in percent.
const MAX_PERCENT: usize = 4;

/// First words that count. "How" and "when" open good docs too.
const OPENERS: &[&str] = &[
    "what", "whatever", "whether", "who", "whom", "whose", "whoever", "which", "where", "of", "than", "that", "so",
    "since", "until", "as", "by", "from", "with", "without", "for", "to", "in", "on", "at", "among", "above", "below",
];

#[test]
fn docs_open_with_a_noun_or_a_verb() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut docs, mut found) = (0, Vec::new());
    for file in rust_files(&crates) {
        let text = fs::read_to_string(&file).unwrap();
        for (line, first) in first_lines(&text) {
            docs += 1;
            if is_opener(first) {
                found.push(format!("{}:{line}: {first}", file.strip_prefix(&crates).unwrap().display()));
            }
        }
    }
    assert!(docs > 1000, "only {docs} docs found");
    let (some, count) = (found.iter().take(40).cloned().collect::<Vec<_>>().join("\n"), found.len());
    assert!(
        count * 100 <= docs * MAX_PERCENT,
        "{count} of {docs} docs open with a clause or preposition, such as\n{some}"
    );
}

/// Names of types that do not describe a value of the type.
const EMPTY_NAMES: &[&str] = &[
    "Ahead", "Alarm", "Apart", "Before", "Beside", "Carried", "Course", "Covered", "Ears", "Effort", "Ended", "Found",
    "Got", "Held", "Kept", "Known", "Left", "Life", "Measured", "Met", "Other", "Own", "Patience", "Phase", "Place",
    "Placed", "Rest", "Rival", "Seat", "Seen", "Sent", "Settled", "Shelf", "Since", "Solitude", "Spares", "Spent",
    "Standing", "Taken", "Terms", "Things", "Told", "Tried", "Until", "Wanted", "When", "Work", "Wrong",
];

#[test]
fn types_are_named_by_what_they_hold() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let is_source = |file: &PathBuf| file.components().any(|part| part.as_os_str() == "src");
    let mut found = Vec::new();
    for file in rust_files(&crates).into_iter().filter(is_source) {
        for line in fs::read_to_string(&file).unwrap().lines() {
            found.extend(
                declared(line)
                    .into_iter()
                    .filter(|name| EMPTY_NAMES.contains(name))
                    .map(|name| format!("{}: {name}", file.strip_prefix(&crates).unwrap().display())),
            );
        }
    }
    assert!(found.is_empty(), "name what these types hold:\n{}", found.join("\n"));
}

/// Returns the name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let keyword = words.next()?;
    let name = words.next()?.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    ["struct", "enum", "trait", "type", "union"].contains(&keyword).then_some(name)
}

#[test]
fn declarations_are_found() {
    assert_eq!(declared("    pub(crate) struct Place<'a> {"), Some("Place"));
    assert_eq!(declared("pub enum Told;"), Some("Told"));
    assert_eq!(declared("    Taken(Taken),"), None);
    assert_eq!(declared("/// struct"), None);
}

#[test]
fn openings_are_found() {
    let text =
        "/// What is refused.\n/// Of two.\nfn a() {}\n\n    //! `Of` course.\n// Who.\n///\n/// Returns.\nfn b() {}\n";
    let openings: Vec<_> = first_lines(text).map(|(line, first)| (line, is_opener(first))).collect();
    assert_eq!(openings, [(1, true), (5, true), (8, false)]);
}

/// The first line with text of each block of doc comments, with its number from 1.
fn first_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let doc = |line: &'_ str| {
        line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!")).is_some()
    };
    let content = |line: &str| -> usize { line.len() - line.trim_start()[3..].trim_start().len() };
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        if !doc(line) {
            in_block = false;
            return None;
        }
        let first = &line[content(line)..];
        (!first.is_empty() && !std::mem::replace(&mut in_block, true)).then_some((number + 1, first))
    })
}

fn is_opener(first: &str) -> bool {
    let text = first.trim_start_matches(['`', '[', '(', '*', '_']);
    let word = text.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    OPENERS.contains(&word.to_ascii_lowercase().as_str())
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
