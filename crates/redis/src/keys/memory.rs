//! MEMORY USAGE: approximate size of a key. Redis counts the bytes of its own data structures. Thalweg counts the bytes
//! of the key and of its value, and an overhead for each stored row. For hashes and streams, it extrapolates from the
//! first rows.

use std::ops::{Bound, ControlFlow};

use thalweg_types::limits::MAX_REDIS_SCAN_ROWS;

use crate::{
    Reply,
    command::{Subcommand, chosen, help},
    errors::{Answer, CommandEnd, SYNTAX, refused},
    expiry::is,
    flags::Flags,
    number::integer,
    store::{Collection, Kind, Read, Value},
    streams,
};

/// Number of fields or entries that `MEMORY USAGE` examines, and from which it extrapolates, if the client does not
/// send the option SAMPLES.
const DEFAULT_SAMPLES: usize = 5;
/// Assumed overhead of each stored row in bytes: the prefix of its row key, its revision, and its position in an index.
const ROW_BYTES: u64 = 48;

pub(super) const SUBCOMMANDS: &[Subcommand] =
    &[Subcommand::help("memory|help", Flags::NONE), Subcommand::of_key("memory|usage", -3, Flags::READ_ONLY)];

const HELP: &[&str] = &[
    "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "USAGE <key> [SAMPLES <count>]",
    "    Approximate bytes of <key> and its value. For hashes and streams, <count>",
    "    parts are sampled (default: 5, 0 means 20000).",
];

/// `MEMORY USAGE key [SAMPLES count]`: returns the approximate number of bytes that a key and its value take.
pub(super) fn memory(read: &dyn Read, args: &[&[u8]]) -> Answer {
    if chosen(SUBCOMMANDS, args) == "help" {
        return Ok(help(HELP));
    }
    let samples = samples(&args[3..])?;
    let key = args[2];
    let Some(look) = read.look(key)? else { return Ok(Reply::Null) };
    let own = ROW_BYTES + (key.len() + look.len) as u64;
    let parts = match look.kind {
        Kind::String => 0,
        Kind::Hash | Kind::Stream => match read.get(key)?.map(|found| found.value) {
            Some(Value::Collection(collection)) => parts_bytes(read, &collection, samples)?,
            _ => 0,
        },
    };
    Ok(Reply::Integer(i64::try_from(own.saturating_add(parts)).unwrap_or(i64::MAX)))
}

fn samples(options: &[&[u8]]) -> Result<usize, CommandEnd> {
    let (mut samples, mut rest) = (DEFAULT_SAMPLES, options);
    while let [option, after @ ..] = rest {
        let [argument, after @ ..] = after else { return Err(refused(SYNTAX)) };
        if !is(option, "samples") {
            return Err(refused(SYNTAX));
        }
        samples = match integer(argument)? {
            given @ 1.. => usize::try_from(given).unwrap_or(usize::MAX).min(MAX_REDIS_SCAN_ROWS),
            0 => MAX_REDIS_SCAN_ROWS,
            _ => return Err(refused(SYNTAX)),
        };
        rest = after;
    }
    Ok(samples)
}

/// Estimates the bytes of all fields of a hash, or of all entries of a stream, from the sizes of the first `samples`
/// ones. Rows of consumer groups are not counted.
fn parts_bytes(read: &dyn Read, collection: &Collection, samples: usize) -> Result<u64, CommandEnd> {
    let (count, first) = match collection.kind {
        Kind::Stream => streams::entries_of(collection)?,
        Kind::Hash | Kind::String => (crate::hashes::fields_of(collection)?, Vec::new()),
    };
    let wanted = count.min(samples as u64);
    if wanted == 0 {
        return Ok(0);
    }
    let (mut seen, mut bytes) = (0_u64, 0_u64);
    read.parts(collection.id, Bound::Included(&first), Bound::Unbounded, false, &mut |name, value| {
        seen += 1;
        bytes += ROW_BYTES + (name.len() + value.len()) as u64;
        if seen == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let all = u128::from(bytes) * u128::from(count) / u128::from(seen.max(1));
    Ok(u64::try_from(all).unwrap_or(u64::MAX))
}
