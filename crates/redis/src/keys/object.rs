//! OBJECT: what Redis tells about how it keeps a value, told of how it would keep ours.

use thalweg_types::limits::MAX_KEY_BYTES;

use crate::{
    Reply,
    command::Answer,
    errors::{key_too_long, unknown_subcommand, wrong_arity},
    number::{MAX_DIGITS, parse_integer},
    store::{Kind, Read, Value},
};

/// Longest string that Redis keeps beside its header.
const MAX_EMBEDDED_BYTES: usize = 44;

pub(super) fn object(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let subcommand = args[1];
    let names = ["encoding", "freq", "idletime", "refcount"];
    let Some(name) = names.into_iter().find(|name| subcommand.eq_ignore_ascii_case(name.as_bytes())) else {
        return Ok(unknown_subcommand("OBJECT", subcommand));
    };
    let &[_, _, key] = args else { return Ok(wrong_arity(&format!("object|{name}"))) };
    if key.len() > MAX_KEY_BYTES {
        return Ok(key_too_long());
    }
    let Some(look) = read.look(key)? else { return Ok(Reply::Null) };
    Ok(match (name, look.kind) {
        ("refcount", _) => Reply::Integer(1),
        ("idletime", _) => Reply::error("ERR when a key was read last is not kept"),
        ("freq", _) => Reply::error(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
             between policies at runtime LRU and LFU data will take some time to adjust.",
        ),
        (_, Kind::String) => Reply::bulk(string_encoding(read, key)?.as_bytes()),
        (_, Kind::Hash) => Reply::bulk(b"hashtable"),
        (_, Kind::Stream) => Reply::bulk(b"stream"),
    })
}

fn string_encoding(read: &dyn Read, key: &[u8]) -> Result<&'static str, crate::Stop> {
    Ok(match read.get(key)?.map(|found| found.value) {
        Some(Value::String(bytes)) if bytes.len() <= MAX_DIGITS && parse_integer(&bytes).is_some() => "int",
        Some(Value::String(bytes)) if bytes.len() <= MAX_EMBEDDED_BYTES => "embstr",
        _ => "raw",
    })
}
