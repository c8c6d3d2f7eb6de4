//! A batch of Redis commands as one command of the log. Either all Redis commands of the batch are carried out, in
//! order and without other commands in between, or none is.
//!
//! Owns the encoding of a batch: the arguments as the client sent them, and the watched keys, which must not have
//! changed. Does not own the execution of the Redis commands; that is `thalweg-redis`, which the state machine calls
//! when it applies the log entry.
//!
//! The codec is written by hand: a burst of commands is copied once from the client's bytes, and decoded as a view.
//!
//! The state refers to large values in the log instead of copying them. Such a value is an argument of a Redis command,
//! and its key is the first argument after the command's name, or the argument directly before the value. A reader of
//! the log entry can therefore find all values that may still be needed (see [`RedisBatch::values`]).

use crate::{
    codec::{Malformed, Reader, by_hand, put_bytes, put_checked, put_u32},
    command::{error::CommandError, write::Write},
    ids::KeyspaceId,
    limits::{MAX_COMMAND_BYTES, MAX_REDIS_COMMANDS, MAX_REDIS_WATCHED_KEYS},
};

/// First byte of an encoded batch of Redis commands, which identifies the kind of command.
pub(super) const REDIS: u8 = 65;
/// First byte of a batch of Redis commands in the form that earlier builds wrote to the log. All commands of such a
/// batch share one budget of steps (units of work). So the reads of the batch affect which of its later commands are
/// carried out.
pub(super) const REDIS_JOINT: u8 = 64;

by_hand! {
    RedisBatch as "redis commands": "keyspace u32, watched_count u32, command_count u32, \
        watched watched_count × watch, commands command_count × request"
}

pub(super) const HEAD_BYTES: usize = 13;

/// Builder of an encoded batch of Redis commands. It has one buffer, so each argument is copied only once.
#[derive(Clone, Debug)]
pub struct RedisBuilder {
    /// Bytes of the encoded batch: the head, whose counts are filled in at the end, then the watched keys, then the
    /// commands.
    bytes: Vec<u8>,
    watched: u32,
    /// Byte offset in `bytes` at which the Redis commands begin.
    commands_at: usize,
    count: u32,
}

impl RedisBuilder {
    /// Creates a builder for a batch on `keyspace`, without commands.
    #[must_use]
    pub fn new(keyspace: KeyspaceId) -> Self {
        Self::with_capacity(keyspace, 0)
    }

    /// Creates a builder for a batch on `keyspace`, without commands, with memory for `bytes` bytes of watched keys and
    /// commands.
    #[must_use]
    pub fn with_capacity(keyspace: KeyspaceId, bytes: usize) -> Self {
        let mut head = Vec::with_capacity(HEAD_BYTES + bytes);
        head.push(REDIS);
        head.extend_from_slice(&keyspace.0.to_le_bytes());
        head.resize(HEAD_BYTES, 0);
        Self { bytes: head, watched: 0, commands_at: HEAD_BYTES, count: 0 }
    }

    /// Adds a condition to the batch: the key must have this version, or must not exist if the version is 0. If a
    /// condition does not hold, no command of the batch is carried out.
    ///
    /// # Errors
    /// The batch would have too many watched keys or bytes. The builder is unchanged.
    pub fn watch(&mut self, key: &[u8], version: u64) -> Result<&mut Self, CommandError> {
        if self.watched as usize >= MAX_REDIS_WATCHED_KEYS || !self.has_room(key.len() + 12) {
            return Err(CommandError::CommitTooLarge);
        }
        // Callers mostly watch keys before they push a command. Then no bytes are moved.
        let commands = self.bytes.split_off(self.commands_at);
        put_bytes(&mut self.bytes, key);
        put_checked(&mut self.bytes, &version);
        self.commands_at = self.bytes.len();
        self.bytes.extend_from_slice(&commands);
        self.watched += 1;
        Ok(self)
    }

    /// Adds a Redis command to the batch: its name and its arguments.
    ///
    /// # Errors
    /// The batch would have too many commands or bytes: send the commands added so far as a batch of their own first.
    /// The builder is unchanged.
    #[inline]
    pub fn push(&mut self, args: &[&[u8]]) -> Result<&mut Self, CommandError> {
        let bytes = 4 + args.iter().map(|arg| 4 + arg.len()).sum::<usize>();
        if args.is_empty() || self.count as usize >= MAX_REDIS_COMMANDS || !self.has_room(bytes) {
            return Err(CommandError::CommitTooLarge);
        }
        self.bytes.reserve(bytes);
        put_u32(&mut self.bytes, args.len());
        for arg in args {
            put_bytes(&mut self.bytes, arg);
        }
        self.count += 1;
        Ok(self)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= MAX_COMMAND_BYTES
    }

    /// Number of Redis commands added so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if no Redis command has been added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size in bytes of the encoded batch so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the encoded batch.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[HEAD_BYTES - 8..HEAD_BYTES - 4].copy_from_slice(&self.watched.to_le_bytes());
        self.bytes[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&self.count.to_le_bytes());
        self.bytes
    }
}

/// A decoded batch of Redis commands and watched keys, borrowed from the log entry. All commands and keys are known to
/// decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisBatch<'a> {
    /// Keyspace of all keys in the batch.
    pub keyspace: KeyspaceId,
    /// True if reads outside of transactions have a budget of their own and affect nothing but their replies. A node
    /// then performs such a read only if one of its clients waits for the reply. False for batches that earlier builds
    /// have written to the log: their reads share the budget of the writes.
    pub reads_apart: bool,
    /// Whole encoded batch. The offset [`value_at`](Write::Put::value_at) counts from its first byte.
    pub bytes: &'a [u8],
    watched: u32,
    watched_at: usize,
    commands: u32,
    commands_at: usize,
}

impl<'a> RedisBatch<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let keyspace = KeyspaceId(reader.u32("keyspace id")?);
        let at = reader.position();
        let (watched, commands) = (reader.u32("watched key count")?, reader.u32("command count")?);
        if watched as usize > MAX_REDIS_WATCHED_KEYS || commands as usize > MAX_REDIS_COMMANDS {
            return Err(Malformed { at, expected: "counts of keys and commands within the limits" });
        }
        let watched_at = reader.position();
        for _ in 0..watched {
            argument(reader)?;
            reader.u64("version")?;
        }
        let commands_at = reader.position();
        for _ in 0..commands {
            let at = reader.position();
            let arguments = reader.u32("argument count")?;
            if arguments == 0 {
                return Err(Malformed { at, expected: "at least one argument" });
            }
            for _ in 0..arguments {
                argument(reader)?;
            }
        }
        let bytes = reader.whole();
        let reads_apart = bytes.first() != Some(&REDIS_JOINT);
        Ok(Self { keyspace, reads_apart, bytes, watched, watched_at, commands, commands_at })
    }

    /// Iterates over the watched keys, each with the version that the key must have.
    pub fn watched(&self) -> impl Iterator<Item = (&'a [u8], u64)> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.watched_at);
        (0..self.watched).map_while(move |_| Some((argument(&mut reader).ok()?, reader.u64("version").ok()?)))
    }

    /// Number of Redis commands in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands as usize
    }

    /// Returns true if the batch has no Redis commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Returns an iterator over the Redis commands in order.
    #[must_use]
    pub fn commands(&self) -> RedisCommands<'a> {
        RedisCommands { reader: Reader::at(self.bytes, self.commands_at), left: self.commands }
    }

    /// Returns an encoded batch of the commands that have no reply yet: all but the first `replies` commands. `MULTI`
    /// and `EXEC` ([marks](GroupMark)) have no replies and are not counted. The new batch has no watched keys. A caller
    /// proposes this batch if the outcome has fewer replies than commands.
    #[must_use]
    pub fn rest(&self, replies: usize) -> Vec<u8> {
        let (mut commands, mut args, mut left) = (self.commands(), Vec::new(), replies);
        let mut at = commands.clone();
        while commands.next_into(&mut args) {
            let passes = match group_mark(&args) {
                // The end of a transaction whose commands have replies.
                Some(GroupMark::End) => true,
                Some(GroupMark::Begin) => left > 0,
                None => left > 0,
            };
            if !passes {
                break;
            }
            left -= usize::from(group_mark(&args).is_none());
            at = commands.clone();
        }
        let rest = self.bytes.get(at.reader.position()..).unwrap_or_default();
        let mut batch = Vec::with_capacity(HEAD_BYTES + rest.len());
        batch.push(if self.reads_apart { REDIS } else { REDIS_JOINT });
        batch.extend_from_slice(&self.keyspace.0.to_le_bytes());
        batch.extend_from_slice(&[0; 4]);
        batch.extend_from_slice(&at.left.to_le_bytes());
        batch.extend_from_slice(rest);
        batch
    }

    /// Returns the encoded batch with the same conditions and commands, but for another keyspace.
    #[must_use]
    pub fn for_keyspace(&self, keyspace: KeyspaceId) -> Vec<u8> {
        let mut batch = self.bytes.to_vec();
        batch[1..HEAD_BYTES - 8].copy_from_slice(&keyspace.0.to_le_bytes());
        batch
    }

    /// Iterates over all pairs of a key and an argument that may have become the value of this key. The pairs include
    /// every value in the log to which the state can refer, and also some arguments that never became a value.
    pub fn values(&self) -> impl Iterator<Item = Write<'a>> + use<'a> {
        let RedisBatch { keyspace, bytes, .. } = *self;
        let mut commands = self.commands();
        let per_command = std::iter::from_fn(move || {
            let mut args = Vec::new();
            commands.next_into(&mut args).then_some(args)
        });
        per_command.flat_map(move |args| {
            (2..args.len()).flat_map(move |number| {
                let value = args[number];
                let first = Some(args[1]);
                let before = (number > 2).then(|| args[number - 1]);
                let value_at = offset_within(bytes, value).unwrap_or_default();
                let put = move |key| Write::Put { keyspace, key, value, value_at };
                first.into_iter().chain(before).map(put)
            })
        })
    }
}

/// Returns the byte offset of `part` within `whole`; `None` if `part` does not lie within the memory of `whole`.
#[must_use]
pub fn offset_within(whole: &[u8], part: &[u8]) -> Option<usize> {
    let offset = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    (offset + part.len() <= whole.len()).then_some(offset)
}

/// Mark in a batch of Redis commands: `MULTI` or `EXEC`. The commands between the two are a transaction. If the
/// transaction takes too many steps (units of work), the state machine carries out none of its commands. The marks get
/// no replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMark {
    /// `MULTI`: a transaction begins.
    Begin,
    /// `EXEC`: the transaction ends.
    End,
}

/// Returns the mark (begin or end of a transaction in a batch) that the command `MULTI` or `EXEC` is; `None` for every
/// other command.
#[inline]
#[must_use]
pub fn group_mark(args: &[&[u8]]) -> Option<GroupMark> {
    match args {
        [name] if name.eq_ignore_ascii_case(b"multi") => Some(GroupMark::Begin),
        [name] if name.eq_ignore_ascii_case(b"exec") => Some(GroupMark::End),
        _ => None,
    }
}

pub(super) fn argument<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let len = reader.u32("argument length")? as usize;
    reader.take(len, "argument")
}

/// Iterator over the commands of a [`RedisBatch`].
#[derive(Clone, Debug)]
pub struct RedisCommands<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> RedisCommands<'a> {
    /// Skips the next command and returns its first argument after the name, which is the key in most commands. Returns
    /// an empty slice if the command has no arguments, and `None` after the last command.
    pub fn next_key(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let count = self.reader.u32("argument count").ok()?;
        let mut key: &[u8] = &[];
        for number in 0..count {
            let argument = argument(&mut self.reader).ok()?;
            if number == 1 {
                key = argument;
            }
        }
        Some(key)
    }

    /// Replaces the contents of `args` with the name and the arguments of the next command. Returns false if there is
    /// no next command.
    pub fn next_into(&mut self, args: &mut Vec<&'a [u8]>) -> bool {
        args.clear();
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        // decode() checked all arguments.
        let Ok(count) = self.reader.u32("argument count") else { return false };
        for _ in 0..count {
            let Ok(arg) = argument(&mut self.reader) else { return false };
            args.push(arg);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;

    const KS: KeyspaceId = KeyspaceId(0x0102);

    fn built() -> RedisBuilder {
        let mut builder = RedisBuilder::new(KS);
        builder.watch(b"w", 7).unwrap().watch(b"", 0).unwrap();
        builder.push(&[b"SET", b"k", b"value"]).unwrap().push(&[b"PING"]).unwrap();
        builder
    }

    fn batch(bytes: &[u8]) -> Result<RedisBatch<'_>, Malformed> {
        match Command::decode(bytes)? {
            Command::Redis(batch) | Command::RedisJoint(batch) => Ok(batch),
            other => panic!("not Redis commands: {other:?}"),
        }
    }

    #[test]
    fn layout_is_pinned() {
        let builder = built();
        let bytes = builder.bytes();
        let encoded = builder.finish();
        let expected: &[&[u8]] = &[
            b"\x41\x02\x01\0\0\x02\0\0\0\x02\0\0\0",
            b"\x01\0\0\0w\x07\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\0\0\0\0\0",
            b"\x03\0\0\0\x03\0\0\0SET\x01\0\0\0k\x05\0\0\0value",
            b"\x01\0\0\0\x04\0\0\0PING",
        ];
        assert_eq!((&encoded, bytes), (&expected.concat(), encoded.len()));
        let batch = batch(&encoded).unwrap();
        assert_eq!((batch.keyspace, batch.len(), batch.reads_apart), (KS, 2, true));
        assert_eq!(batch.watched().collect::<Vec<_>>(), [(b"w".as_slice(), 7), (b"", 0)]);
        let (mut commands, mut args) = (batch.commands(), Vec::new());
        assert!(commands.next_into(&mut args));
        assert_eq!(args, [b"SET".as_slice(), b"k", b"value"]);
        assert!(commands.next_into(&mut args));
        assert_eq!(args, [b"PING".as_slice()]);
        assert!(!commands.next_into(&mut args));
    }

    #[test]
    fn batches_of_earlier_builds_are_told_apart() {
        let mut encoded = built().finish();
        encoded[0] = REDIS_JOINT;
        let joint = batch(&encoded).unwrap();
        assert!(!joint.reads_apart && matches!(Command::decode(&encoded), Ok(Command::RedisJoint(_))));
        assert!(matches!(Command::decode(&joint.rest(1)), Ok(Command::RedisJoint(_))));
    }

    #[test]
    fn a_batch_for_another_keyspace_differs_in_the_keyspace_only() {
        let encoded = built().finish();
        let other = batch(&encoded).unwrap().for_keyspace(KeyspaceId(7));
        assert_eq!(batch(&other).unwrap().keyspace, KeyspaceId(7));
        assert_eq!(batch(&other).unwrap().for_keyspace(KS), encoded);
    }

    #[test]
    fn whatever_is_cut_or_left_over_is_malformed() {
        let encoded = built().finish();
        for len in 1..encoded.len() {
            assert!(batch(&encoded[..len]).is_err(), "{len}");
        }
        assert!(batch(&[&encoded[..], b"x"].concat()).is_err());
        let mut builder = RedisBuilder::new(KS);
        builder.push(&[b"A"]).unwrap();
        let mut none = builder.clone().finish();
        none[13] = 0;
        assert!(batch(&none).is_err(), "a command without a name");
        let mut many = builder.finish();
        many[5..9].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(batch(&many).is_err());
    }

    #[test]
    fn values_are_found_with_the_keys_that_may_have_them() {
        let mut builder = RedisBuilder::new(KS);
        builder.push(&[b"MSET", b"a", b"1", b"b", b"2"]).unwrap().push(&[b"GET", b"c"]).unwrap();
        let encoded = builder.finish();
        let found: Vec<_> = batch(&encoded).unwrap().values().collect();
        assert_eq!(Command::decode(&encoded).unwrap().writes().collect::<Vec<_>>(), found);
        let mut pairs = Vec::new();
        for write in &found {
            let Write::Put { key, value, value_at, .. } = *write else { panic!("{write:?}") };
            assert_eq!(&encoded[value_at..value_at + value.len()], value);
            pairs.push((key, value));
        }
        let expected: [(&[u8], &[u8]); 5] = [(b"a", b"1"), (b"a", b"b"), (b"1", b"b"), (b"a", b"2"), (b"b", b"2")];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn the_rest_of_a_batch_begins_after_the_commands_with_replies_and_their_marks() {
        let names = |bytes: &[u8]| {
            let (mut commands, mut args, mut names) = (batch(bytes).unwrap().commands(), Vec::new(), String::new());
            while commands.next_into(&mut args) {
                names.push_str(std::str::from_utf8(args[0]).unwrap());
                names.push(' ');
            }
            names
        };
        let mut builder = RedisBuilder::new(KS);
        builder.watch(b"w", 7).unwrap();
        for name in ["a", "MULTI", "b", "c", "EXEC", "multi", "d", "exec", "e"] {
            builder.push(&[name.as_bytes()]).unwrap();
        }
        let encoded = builder.finish();
        let all = batch(&encoded).unwrap();
        let expected = [
            (0, "a MULTI b c EXEC multi d exec e "),
            (1, "MULTI b c EXEC multi d exec e "),
            (3, "multi d exec e "),
            (4, "e "),
            (5, ""),
        ];
        for (replies, names_of_rest) in expected {
            let rest = all.rest(replies);
            assert_eq!(names(&rest), names_of_rest, "{replies}");
            let rest = batch(&rest).unwrap();
            assert_eq!((rest.keyspace, rest.watched().count()), (KS, 0));
        }
    }

    #[test]
    fn bounds_hold_and_leave_the_builder_as_it_was() {
        let mut builder = RedisBuilder::new(KS);
        assert!(builder.push(&[]).is_err());
        for _ in 0..MAX_REDIS_COMMANDS {
            builder.push(&[b"A"]).unwrap();
        }
        assert!(builder.push(&[b"A"]).is_err());
        assert_eq!(builder.len(), MAX_REDIS_COMMANDS);
        for _ in 0..MAX_REDIS_WATCHED_KEYS {
            builder.watch(b"", 1).unwrap();
        }
        assert!(builder.watch(b"", 1).is_err());
        assert!(batch(&builder.finish()).is_ok());
        let mut builder = RedisBuilder::new(KS);
        let room = MAX_COMMAND_BYTES - HEAD_BYTES - 8;
        assert!(builder.push(&[&vec![0; room + 1]]).is_err() && builder.is_empty());
        builder.push(&[&vec![0; room]]).unwrap();
        assert!(builder.push(&[b""]).is_err() && builder.watch(b"", 1).is_err());
        assert_eq!(builder.finish().len(), MAX_COMMAND_BYTES);
    }
}
