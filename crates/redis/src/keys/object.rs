//! OBJECT: reports how Redis would store a value. Thalweg stores values differently.

use crate::{
    Reply,
    command::{Subcommand, chosen, help},
    errors::Answer,
    flags::Flags,
    number::{MAX_DIGITS, parse_integer},
    store::{Kind, Read, Value},
};

/// Maximum length in bytes of a string that Redis stores in one allocation together with its header (encoding
/// `embstr`).
const MAX_EMBEDDED_BYTES: usize = 44;

const READ: Flags = Flags::KEYSPACE.and(Flags::READ_ONLY);

pub(super) const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand::of_key("object|encoding", 3, READ),
    Subcommand::of_key("object|freq", 3, READ),
    Subcommand::help("object|help", Flags::KEYSPACE),
    Subcommand::of_key("object|idletime", 3, READ),
    Subcommand::of_key("object|refcount", 3, READ),
];

/// Help text of `OBJECT`.
const HELP: &[&str] = &[
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
];

pub(super) fn object(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let name = chosen(SUBCOMMANDS, args);
    let &[_, _, key] = args else { return Ok(help(HELP)) };
    let Some(look) = read.look(key)? else { return Ok(Reply::Null) };
    Ok(match (name, look.kind) {
        ("refcount", _) => Reply::Integer(1),
        ("idletime", _) => Reply::error("ERR the time of a key's last read is not stored"),
        ("freq", _) => Reply::error(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
             between policies at runtime LRU and LFU data will take some time to adjust.",
        ),
        (_, Kind::String) => Reply::bulk(string_encoding(read, key)?.as_bytes()),
        (_, Kind::Hash) => Reply::bulk(b"hashtable"),
        (_, Kind::Stream) => Reply::bulk(b"stream"),
    })
}

fn string_encoding(read: &dyn Read, key: &[u8]) -> Result<&'static str, crate::CommandEnd> {
    Ok(match read.get(key)?.map(|found| found.value) {
        Some(Value::String(bytes)) if bytes.len() <= MAX_DIGITS && parse_integer(&bytes).is_some() => "int",
        Some(Value::String(bytes)) if bytes.len() <= MAX_EMBEDDED_BYTES => "embstr",
        _ => "raw",
    })
}
