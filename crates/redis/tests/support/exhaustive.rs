//! Every command of a table, not by hand: each with every number of arguments that it may and may not have, on keys of every
//! kind, with words that commands know. What is answered first (a wrong number, a wrong kind, a wrong option) is compared
//! byte for byte.

use super::{
    Rng,
    compare::{Compare, Pair},
    connection::Args,
    generate::{Step, exact},
};
use crate::args;

/// A command as its table has it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its name, and its subcommand's.
    pub words: Vec<String>,
    /// As `COMMAND INFO` says it.
    pub arity: i64,
    /// Where its first key is; 0: nowhere that is known.
    pub first_key: usize,
    /// Whether it is about the connection.
    pub is_session: bool,
}

impl Shape {
    /// From a name as `COMMAND INFO` says it.
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

/// Each command with each number of arguments that it does not take. Returns how many were asked.
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
            pair.step(&exact(args![container, "nope"]), "a subcommand that is none");
        }
    }
    asked
}

/// Words that commands know, and what may stand beside them.
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

/// A key of each kind, and one that is not there.
const KINDS: &[&str] = &["number", "text", "hash", "stream", "nothing"];

/// Each command that is about keys, on keys of each kind, with so many sets of words.
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

/// The same keys each time.
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
        pair.step(&exact(args), "a new beginning");
    }
}

/// How a command's replies are compared; none: what it answers is declared to differ, or not the same twice.
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
