//! Commands on strings: reading, setting, and partial changes.
//!
//! Owns: the table of these commands, and the commands themselves. [`options`] parses SET and GETEX, and [`counters`]
//! has the commands on numbers. Does not own: the deletion, renaming and deadlines of keys of any kind (`keys`), or
//! size checks and the reply budget (`value`).
//!
//! Invariants: a result longer than the maximum value size is rejected before any write. Commands that replace a value
//! remove its deadline; commands that modify a value keep it.

use bytes::Bytes;
use thalweg_types::limits::{MAX_KEYS_READ_AHEAD, MAX_VALUE_BYTES};

use crate::{
    Reply,
    command::{Command, Keys},
    errors::{Answer, CommandEnd, NO_REPLY_ROOM, TOO_LARGE, WRONG_TYPE, incomplete, refused},
    expiry::Unit,
    flags::Flags,
    number::integer,
    store::{NewValue, Read, Store, Value},
    value::{ReplyBudget, bulk_or_null, check_value, put_argument, put_computed, string, string_info},
};

mod counters;
mod options;

const READ_SLOW: Flags = Flags::STRING.and(Flags::READ_ONLY);
const READ: Flags = READ_SLOW.and(Flags::FAST);
const WRITE_LESS: Flags = Flags::STRING.and(Flags::WRITE).and(Flags::FAST);
const WRITE: Flags = WRITE_LESS.and(Flags::DENY_OOM);
const WRITE_SLOW: Flags = Flags::STRING.and(Flags::WRITE).and(Flags::DENY_OOM);

/// Table of the commands on strings.
pub(crate) const COMMANDS: &[Command] = &[
    Command::write("set", -3, WRITE_SLOW, Keys::ONE, options::set),
    Command::read("get", 2, READ, Keys::ONE, get),
    Command::write("getset", 3, WRITE, Keys::ONE, getset),
    Command::write("getdel", 2, WRITE_LESS, Keys::ONE, getdel),
    Command::write("getex", -2, WRITE_LESS, Keys::ONE, options::getex),
    Command::read("mget", -2, READ, Keys::ALL, mget),
    Command::write("mset", -3, WRITE_SLOW, Keys::PAIRS, mset),
    Command::write("msetnx", -3, WRITE_SLOW, Keys::PAIRS, msetnx),
    Command::write("setnx", 3, WRITE, Keys::ONE, setnx),
    Command::write("setex", 4, WRITE_SLOW, Keys::ONE, |store, args| options::set_for(store, args, Unit::Seconds)),
    Command::write("psetex", 4, WRITE_SLOW, Keys::ONE, |store, args| options::set_for(store, args, Unit::Milliseconds)),
    Command::write("append", 3, WRITE, Keys::ONE, append),
    Command::read("strlen", 2, READ, Keys::ONE, strlen),
    Command::read("getrange", 4, READ_SLOW, Keys::ONE, getrange),
    Command::read("substr", 4, READ_SLOW, Keys::ONE, getrange),
    Command::write("setrange", 4, WRITE_SLOW, Keys::ONE, setrange),
    Command::write("incr", 2, WRITE, Keys::ONE, |store, args| counters::add(store, args[1], 1)),
    Command::write("decr", 2, WRITE, Keys::ONE, |store, args| counters::add(store, args[1], -1)),
    Command::write("incrby", 3, WRITE, Keys::ONE, |store, args| counters::add(store, args[1], integer(args[2])?)),
    Command::write("decrby", 3, WRITE, Keys::ONE, counters::decrby),
    Command::write("incrbyfloat", 3, WRITE, Keys::ONE, counters::incrbyfloat),
];

fn get(read: &dyn Read, args: &[&[u8]]) -> Answer {
    match ReplyBudget::of(read).read(read, args[1])? {
        Some(Value::String(bytes)) => Ok(Reply::Bulk(bytes)),
        Some(Value::Collection(_)) => Err(refused(WRONG_TYPE)),
        None => Ok(Reply::Null),
    }
}

fn getset<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let old = string(store, args[1])?;
    put_argument(store, args[1], args[2], None)?;
    Ok(bulk_or_null(old))
}

fn getdel<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let old = string(store, args[1])?;
    if old.is_some() {
        store.delete(args[1])?;
    }
    Ok(bulk_or_null(old))
}

fn mget(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let mut budget = ReplyBudget::of(read);
    let mut replies = Vec::with_capacity(args.len() - 1);
    for keys in args[1..].chunks(MAX_KEYS_READ_AHEAD) {
        read.read_ahead(keys);
        for key in keys {
            replies.push(match budget.read(read, key)? {
                Some(Value::String(bytes)) => Reply::Bulk(bytes),
                Some(Value::Collection(_)) | None => Reply::Null,
            });
        }
    }
    Ok(Reply::Array(replies))
}

/// Returns the keys and values of MSET or MSETNX, after checking that no value is missing or too long.
fn pairs<'s, 'a>(args: &'s [&'a [u8]]) -> Result<std::slice::ChunksExact<'s, &'a [u8]>, CommandEnd> {
    let pairs = args[1..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(incomplete(args));
    }
    for pair in pairs.clone() {
        check_value(pair[1].len())?;
    }
    Ok(pairs)
}

fn mset<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    for pair in pairs(args)? {
        put_argument(store, pair[0], pair[1], None)?;
    }
    Ok(Reply::Ok)
}

fn msetnx<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let pairs = pairs(args)?;
    for pair in pairs.clone() {
        if store.look(pair[0])?.is_some() {
            return Ok(Reply::Integer(0));
        }
    }
    for pair in pairs {
        put_argument(store, pair[0], pair[1], None)?;
    }
    Ok(Reply::Integer(1))
}

fn setnx<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    if store.look(args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    put_argument(store, args[1], args[2], None)?;
    Ok(Reply::Integer(1))
}

fn append<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let Some((old, deadline)) = string(store, args[1])? else {
        put_argument(store, args[1], args[2], None)?;
        return Ok(length(args[2].len()));
    };
    let len = old.len() + args[2].len();
    check_value(len)?;
    store.prepare_value(len)?;
    let mut new = Vec::with_capacity(len);
    new.extend_from_slice(&old);
    new.extend_from_slice(args[2]);
    put_computed(store, args[1], new, deadline)?;
    Ok(length(len))
}

fn strlen(read: &dyn Read, args: &[&[u8]]) -> Answer {
    Ok(length(string_info(read, args[1])?.map_or(0, |look| look.len)))
}

fn getrange(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let (first, last) = (integer(args[2])?, integer(args[3])?);
    let room = read.reply_room();
    if room < usize::MAX
        && let Some(info) = string_info(read, args[1])?
        && range(first, last, info.len).is_some_and(|(begin, end)| end - begin > room)
    {
        return Err(refused(NO_REPLY_ROOM));
    }
    let Some((bytes, _)) = string(read, args[1])? else { return Ok(Reply::Bulk(Bytes::new())) };
    Ok(Reply::Bulk(match range(first, last, bytes.len()) {
        Some((begin, end)) => bytes.slice(begin..end),
        None => Bytes::new(),
    }))
}

/// Converts two inclusive byte indices of a string of `len` bytes to a half-open range. Negative indices count from the
/// end. Returns `None` if the range is empty.
fn range(first: i64, last: i64, len: usize) -> Option<(usize, usize)> {
    if first < 0 && last < 0 && first > last {
        return None;
    }
    let len = i64::try_from(len).ok()?;
    let from_begin = |index: i64| if index < 0 { (len + index).max(0) } else { index };
    let (begin, end) = (from_begin(first), from_begin(last).min(len - 1));
    if begin > end || len == 0 {
        return None;
    }
    Some((usize::try_from(begin).ok()?, usize::try_from(end).ok()? + 1))
}

fn setrange<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let offset = integer(args[2])?;
    let Ok(offset) = usize::try_from(offset) else {
        return Ok(Reply::error("ERR offset is out of range"));
    };
    let patch = args[3];
    let (old, deadline) = string(store, args[1])?.unwrap_or_default();
    if patch.is_empty() {
        return Ok(length(old.len()));
    }
    let end = offset.checked_add(patch.len()).filter(|end| *end <= MAX_VALUE_BYTES);
    let end = end.ok_or_else(|| refused(TOO_LARGE))?;
    let len = old.len().max(end);
    store.prepare_value(len)?;
    let mut new = Vec::with_capacity(len);
    new.extend_from_slice(&old);
    new.resize(len, 0);
    new[offset..end].copy_from_slice(patch);
    store.put(args[1], NewValue::String(new.into()), deadline)?;
    Ok(length(len))
}

/// Returns a length in bytes as an integer reply.
fn length(bytes: usize) -> Reply {
    Reply::Integer(bytes as i64)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, ops::Bound};

    use super::*;
    use crate::{
        KeyInfo, KeyValue, StoreError, execute, find,
        model::Model,
        run_read,
        store::{CollectionId, Visit, VisitKeys},
    };

    /// A store for tests that records which of its functions a command calls.
    #[derive(Default)]
    struct Listing {
        model: Model,
        calls: RefCell<Vec<String>>,
    }

    impl Read for Listing {
        fn now(&self) -> u64 {
            self.model.now()
        }

        fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
            self.model.look(key)
        }

        fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
            self.calls.borrow_mut().push(format!("get {}", String::from_utf8_lossy(key)));
            self.model.get(key)
        }

        fn read_ahead(&self, keys: &[&[u8]]) {
            self.calls.borrow_mut().push(format!("ahead {}", keys.len()));
        }

        fn len(&self) -> Result<u64, StoreError> {
            self.model.len()
        }

        fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
            self.model.keys(after, visit)
        }

        fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
            self.model.part(id, name)
        }

        fn parts(
            &self,
            id: CollectionId,
            lower: Bound<&[u8]>,
            upper: Bound<&[u8]>,
            descending: bool,
            visit: &mut Visit<'_>,
        ) -> Result<(), StoreError> {
            self.model.parts(id, lower, upper, descending, visit)
        }
    }

    #[test]
    fn mget_announces_keys_before_it_reads_the_first_of_them() {
        let names: Vec<String> = (0..=MAX_KEYS_READ_AHEAD).map(|number| number.to_string()).collect();
        let args: Vec<&[u8]> =
            std::iter::once("mget").chain(names.iter().map(String::as_str)).map(str::as_bytes).collect();
        let listing = Listing::default();
        run_read(&listing, find(args[0]).unwrap(), &args).unwrap();
        let mut expected: Vec<String> = names.iter().map(|name| format!("get {name}")).collect();
        expected.insert(MAX_KEYS_READ_AHEAD, "ahead 1".to_owned());
        expected.insert(0, format!("ahead {MAX_KEYS_READ_AHEAD}"));
        assert_eq!(*listing.calls.borrow(), expected);
    }

    #[test]
    fn ranges_count_from_both_ends() {
        assert_eq!(range(0, -1, 5), Some((0, 5)));
        assert_eq!(range(-2, -1, 5), Some((3, 5)));
        assert_eq!(range(-1, -2, 5), None);
        assert_eq!(range(-100, 1, 5), Some((0, 2)));
        assert_eq!(range(-100, -50, 5), Some((0, 1)));
        assert_eq!(range(4, 100, 5), Some((4, 5)));
        assert_eq!(range(5, 100, 5), None);
        assert_eq!(range(0, 0, 0), None);
        assert_eq!(range(i64::MIN, i64::MAX, 5), Some((0, 5)));
    }

    #[test]
    fn values_have_a_bound() {
        let mut model = Model::default();
        let largest = vec![b'v'; MAX_VALUE_BYTES];
        let larger = vec![b'v'; MAX_VALUE_BYTES + 1];
        let refused = Reply::error(TOO_LARGE);
        assert_eq!(execute(&mut model, &[b"set", b"a", &largest]).unwrap(), Reply::Ok);
        assert_eq!(execute(&mut model, &[b"append", b"a", b"v"]).unwrap(), refused);
        assert_eq!(execute(&mut model, &[b"set", b"a", &larger]).unwrap(), refused);
        assert_eq!(execute(&mut model, &[b"mset", b"b", b"v", b"a", &larger]).unwrap(), refused);
        assert_eq!(execute(&mut model, &[b"exists", b"b"]).unwrap(), Reply::Integer(0), "nothing of it happened");
        let last = (MAX_VALUE_BYTES - 1).to_string();
        let end = MAX_VALUE_BYTES.to_string();
        assert_eq!(execute(&mut model, &[b"setrange", b"b", end.as_bytes(), b"v"]).unwrap(), refused);
        assert_eq!(execute(&mut model, &[b"setrange", b"b", last.as_bytes(), b"v"]).unwrap(), length(MAX_VALUE_BYTES));
    }

    #[test]
    fn replies_have_a_bound() {
        let mut model = Model::default();
        let largest = vec![b'v'; MAX_VALUE_BYTES];
        assert_eq!(execute(&mut model, &[b"set", b"a", &largest]).unwrap(), Reply::Ok);
        let seven: Vec<&[u8]> = std::iter::once(&b"mget"[..]).chain([&b"a"[..]; 7]).collect();
        assert!(matches!(execute(&mut model, &seven).unwrap(), Reply::Array(values) if values.len() == 7));
        let eight: Vec<&[u8]> = std::iter::once(&b"mget"[..]).chain([&b"a"[..]; 8]).collect();
        assert_eq!(execute(&mut model, &eight).unwrap(), Reply::error(crate::errors::REPLY_TOO_LARGE));
    }
}
