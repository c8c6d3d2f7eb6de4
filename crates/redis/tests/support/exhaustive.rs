//! Exhaustive tests of all commands of a table. Each command runs with every valid and invalid number of
//! arguments, on keys of every kind, with words that commands know. Errors (a wrong number, a wrong kind, a
//! wrong option) are compared byte by byte.

use super::{
    Rng,
    compare::{Compare, Pair},
    connection::Args,
    generate::{Step, exact},
};
use crate::args;

/// Properties of a command in its table.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name of the command, and of its subcommand.
    pub words: Vec<String>,
    /// Arity as in `COMMAND INFO`.
    pub arity: i64,
    /// Position of the first key; 0 if unknown.
    pub first_key: usize,
    /// True if the command concerns the connection.
    pub is_session: bool,
}

impl Shape {
    /// Creates a shape from a name as in `COMMAND INFO`.
    pub fn new(name: &str, arity: i64, first_key: i64, is_session: bool) -> Self {
        let words = name.split('|').map(str::to_owned).collect();
        Self { words, arity, first_key: usize::try_from(first_key).unwrap_or(0), is_session }
    }

    fn takes(&self, arguments: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity >= 0 { arguments == wanted } else { arguments >= wanted }
    }

    fn args(&self) -> Args {
        self.words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }
}

/// Runs each command with each invalid number of arguments. Returns the number of requests.
pub fn wrong_numbers(pair: &mut Pair<'_>, shapes: &[Shape]) -> usize {
    let mut asked = 0;
    for shape in shapes {
        let most = shape.arity.unsigned_abs() as usize + 3;
        for count in shape.words.len()..=most {
            if shape.takes(count) {
                continue;
            }
            let mut args = shape.args();
            args.resize(count, b"x".to_vec());
            pair.step(&exact(args), "a wrong number of arguments");
            asked += 1;
        }
        if let [container, _] = &shape.words[..] {
            pair.step(&exact(args![container, "nope"]), "an unknown subcommand");
        }
    }
    asked
}

/// Words that commands know, and possible arguments beside them.
const WORDS: &[&str] = &[
    "0",
    "1",
    "2",
    "-1",
    "9223372036854775807",
    "1.5",
    "abc",
    "",
    "field",
    "0-1",
    "1-1",
    "2-1",
    "7-7",
    "-",
    "+",
    "$",
    ">",
    "(1-1",
    "~",
    "=",
    "group",
    "alice",
    "nx",
    "XX",
    "gt",
    "LT",
    "ex",
    "PX",
    "exat",
    "PXAT",
    "keepttl",
    "GET",
    "persist",
    "COUNT",
    "match",
    "type",
    "MAXLEN",
    "minid",
    "limit",
    "NOMKSTREAM",
    "mkstream",
    "GROUP",
    "noack",
    "STREAMS",
    "idle",
    "time",
    "retrycount",
    "FORCE",
    "justid",
    "lastid",
    "entriesread",
    "entriesadded",
    "withvalues",
    "REPLACE",
    "full",
    "samples",
];

/// A key of each kind, and a missing key.
const KINDS: &[&str] = &["number", "text", "hash", "stream", "nothing"];

/// Runs each command that has keys on keys of each kind, with `rounds` random sets of words.
pub fn words_on_kinds(pair: &mut Pair<'_>, shapes: &[Shape], rounds: usize, seed: u64) {
    let mut rng = Rng(seed);
    for shape in shapes.iter().filter(|shape| !shape.is_session) {
        for kind in KINDS {
            for round in 0..rounds {
                begin_anew(pair);
                let fewest = (shape.arity.unsigned_abs() as usize).max(shape.words.len());
                let count = if shape.arity < 0 { fewest + rng.below(5) } else { fewest };
                let mut args = shape.args();
                while args.len() < count {
                    let is_key = args.len() == shape.first_key || rng.one_in(8);
                    let word = if is_key { *kind } else { *rng.pick(WORDS) };
                    args.push(word.as_bytes().to_vec());
                }
                if let Some(step) = step(args) {
                    pair.step(&step, &format!("seed {seed}, {} on {kind}, round {round}", shape.words.join(" ")));
                }
            }
        }
    }
}

/// Restores the same keys each time.
fn begin_anew(pair: &mut Pair<'_>) {
    for command in [
        "FLUSHDB",
        "SET number 10",
        "SET text some",
        "HSET hash field 1 other text",
        "XADD stream 1-1 field value",
        "XADD stream 2-1 field value",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group alice COUNT 1 STREAMS stream >",
    ] {
        let args = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        pair.step(&exact(args), "restoring the keys");
    }
}

/// Returns the comparison for a command's replies. `None` if they are documented to differ, or are random.
fn step(args: Args) -> Option<Step> {
    let word = |at: usize| args.get(at).map(|arg| String::from_utf8_lossy(arg).to_lowercase()).unwrap_or_default();
    let compare = match (&*word(0), &*word(1)) {
        ("hgetall", _) => Compare::UnorderedPairs,
        ("hkeys" | "hvals" | "keys", _) => Compare::Unordered,
        ("randomkey", _) => Compare::AmongKeys,
        ("hrandfield", _) => Compare::AmongFields,
        ("scan", "0") => Compare::Pages { cursor: 1, items: 1 },
        ("hscan", _) if word(2) == "0" => Compare::Pages { cursor: 2, items: 2 },
        ("scan" | "hscan", _) => return None,
        ("object", "encoding" | "idletime" | "refcount") => return None,
        ("memory", "help") => return None,
        ("memory", _) => Compare::Positive,
        ("ttl" | "pttl" | "expiretime" | "pexpiretime", _) => Compare::Near(5000),
        ("xinfo" | "xpending", _) => Compare::Times,
        _ => Compare::Exact,
    };
    Some(Step { args, compare })
}
