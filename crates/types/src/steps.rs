//! Prices of work. When the state machine applies a command, it charges each kind of work with a number of steps. A
//! step is about 100 ns.
//!
//! Owns: the prices, which belong to version 1 of the state machine. Every node charges the same steps for the same
//! command, so every node rejects the same commands. A change of a price, of [`MAX_COMMAND_STEPS`], or of
//! [`MAX_COMMAND_SEARCH_STEPS`](crate::limits::MAX_COMMAND_SEARCH_STEPS) needs another version. Does not own: charging
//! ([`meter`](crate::meter)), or the bound that a proposer computes before it knows the state
//! ([`max_steps`](crate::command::max_steps)).
//!
//! A step is about 100 ns of work on rows in memory. Prices count logical work only: rows and bytes of the replicated
//! state, including rows of deleted prefixes and of expired keys until a command removes them. They never count
//! anything that differs between nodes: tombstones of a backend, and the form in which a node stores a value.

use crate::{limits::MAX_COMMAND_STEPS, parcel::RUN_BYTES};

/// Price in steps (units of work) of looking up a row by its key.
pub const READ: u64 = 8;
/// Price in steps (units of work) of opening a scan, even if the scan finds no row.
pub const SCAN: u64 = 100;
/// Price in steps (units of work) of each row that a scan examines, including rows that are hidden from readers and
/// rows that the same command has removed.
pub const ROW: u64 = 2;
/// Price in steps (units of work) of writing or removing a row.
pub const WRITE: u64 = 4;
/// Price in steps (units of work) of starting an operation, a condition, or a Redis command.
pub const OPERATION: u64 = 1;
/// Price in steps (units of work) for each attempt to deliver records that a command names in order to ack or nack
/// these records. A command that only acks or nacks has no budget and is never rejected, but its steps are counted too.
pub const SETTLED_ATTEMPT: u64 = 6;
/// Price in steps (units of work) of each range of records that a command acks or nacks.
pub const SETTLED_RANGE: u64 = 3;
/// Price in steps (units of work) for each stored run (range of consecutive records) of an attempt (delivery) if a
/// command acks or nacks some records of the attempt. The command writes the remaining runs again. The same price
/// applies to each key hash that a fetch looks up.
pub const SETTLED_RUN: u64 = 2;
/// Price in steps (units of work) of a record that a fetch delivers or turns into a dead letter. It covers the most
/// expensive case: the record was delivered alone before, and its ack deadline has passed.
pub const DELIVERED_RECORD: u64 = 4;
/// Price in steps (units of work) of returning the value of a key from a transaction, in addition to the prices of its
/// lookup and its bytes.
pub const GET: u64 = 12;
/// Steps that a read may take on a thread that serves many clients, about half a millisecond. A longer read is
/// abandoned and performed again by another thread (see [`budget`](crate::budget)). This limit can change without a new
/// version of the state machine.
pub const SHORT_READ: u64 = 5_000;
/// Steps that a read may take on one of the server's threads that perform reads from the disk. The limit also bounds
/// the bytes that the reads of all these threads hold in memory at one time. It can change without a new version of the
/// state machine.
pub const COLD_READ: u64 = 1_024;
/// Steps charged for one wait for the disk, if a thread that serves no other client at the moment performs the read.
/// They are about the time in which an SSD reads a block. The price can change without a new version of the state
/// machine.
pub const DISK_READ: u64 = 700;
/// Maximum number of bytes of a value that are charged when a scan examines the value's row without reading the value.
pub const MAX_PASSED_BYTES: usize = 64 * 1024;
/// Number of bytes that a command can read or compare for the price of one step.
const BYTES_READ: usize = 128;
/// Number of bytes that a command can compute and write for the price of one step.
const BYTES_WRITTEN: usize = 48;
/// Number of comparisons of a pattern with one byte of text for the price of one step.
const COMPARISONS: u64 = 32;
/// Number of digits of a floating-point number above which the price does not rise any more. A longer number takes at
/// most about twice the work of a number with this many digits.
pub const MAX_FLOAT_DIGITS: usize = 5_200;
/// Divisor for the price of parsing a floating-point number. The price in steps (units of work) is the square of the
/// number of digits, divided by this divisor.
const FLOAT_PARSED: usize = 20_000;
/// Divisor for the price of writing a floating-point number. The price in steps (units of work) is the square of the
/// number of digits, divided by this divisor.
const FLOAT_WRITTEN: usize = 5_000;
/// Number of items for the price of one step. An item is an argument of a Redis command, or a value in its reply that
/// was not read from the state.
const ITEMS: usize = 8;
/// Number of [units](crate::limits::clear_units) for the price of one step, when a command copies the list of deleted
/// prefixes whose rows are not removed yet.
const COPIED_CLEARS: usize = 2;

/// Returns the price in steps (units of work) of reading or comparing `bytes` bytes.
#[inline]
#[must_use]
pub const fn read_bytes(bytes: usize) -> u64 {
    (bytes / BYTES_READ) as u64
}

/// Returns the price in steps (units of work) of computing `bytes` bytes and writing them as rows.
#[inline]
#[must_use]
pub const fn written_bytes(bytes: usize) -> u64 {
    (bytes / BYTES_WRITTEN) as u64
}

/// Returns the price in steps (units of work) of writing `runs` runs, which are ranges of consecutive records in the
/// rows of a consumer group.
#[inline]
#[must_use]
pub const fn written_runs(runs: u64) -> u64 {
    runs * RUN_BYTES as u64 / BYTES_WRITTEN as u64
}

/// Returns the price in steps (units of work) of `count` comparisons of a part of a pattern with a byte of a text.
#[inline]
#[must_use]
pub const fn comparisons(count: u64) -> u64 {
    count / COMPARISONS
}

/// Returns the price in steps (units of work) of parsing a floating-point number with `digits` digits. The price grows
/// with the square of the digits. An exponent counts as the digits for which it stands.
#[inline]
#[must_use]
pub const fn parsed_float(digits: usize) -> u64 {
    squared(digits) / FLOAT_PARSED as u64
}

/// Returns the price in steps (units of work) of writing a floating-point number with `digits` digits.
#[inline]
#[must_use]
pub const fn written_float(digits: usize) -> u64 {
    squared(digits) / FLOAT_WRITTEN as u64
}

const fn squared(digits: usize) -> u64 {
    let digits = if digits < MAX_FLOAT_DIGITS { digits } else { MAX_FLOAT_DIGITS };
    (digits * digits) as u64
}

/// Returns the price in steps (units of work) of a change of the list of deleted prefixes whose rows are not removed
/// yet. A change copies the list, which counts `entries` [units](crate::limits::clear_units).
#[inline]
#[must_use]
pub const fn copied_clears(entries: usize) -> u64 {
    (entries / COPIED_CLEARS) as u64
}

/// Returns the price in steps (units of work) of processing `count` arguments, or of producing `count` reply values
/// that were not read from the state.
#[inline]
#[must_use]
pub const fn items(count: usize) -> u64 {
    (count / ITEMS) as u64
}

// A command may change a value of the maximum size.
const _: () = assert!(
    read_bytes(crate::limits::MAX_VALUE_BYTES) + written_bytes(crate::limits::MAX_VALUE_BYTES) + 10_000
        < MAX_COMMAND_STEPS
);
// The first read behind a write may return a value of the maximum size.
const _: () = assert!(read_bytes(crate::limits::MAX_VALUE_BYTES) + 1_000 < crate::limits::MAX_BATCH_READ_STEPS / 2);
// A delivery that must stop has enough steps left for the next entry, which it reads to find out that it must stop.
const _: () = assert!(
    crate::limits::MAX_REDIS_DELIVERY_STEPS + read_bytes(crate::limits::MAX_VALUE_BYTES) + 4_000 < MAX_COMMAND_STEPS
);
const _: () = assert!(
    read_bytes(crate::limits::MAX_REDIS_COPY_BYTES) + written_bytes(crate::limits::MAX_REDIS_COPY_BYTES) + 4_000
        < MAX_COMMAND_STEPS
);
// A commit with the maximum number of deletes is never rejected, although each delete also pays for the row that it
// replaces.
const _: () = assert!(crate::limits::MAX_COMMIT_WRITES as u64 * (OPERATION + READ + WRITE) < MAX_COMMAND_STEPS);
