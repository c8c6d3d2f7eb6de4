//! Rows of consumer groups and of their consumers.
//!
//! Owns: finding groups and consumers by name, creating consumers, and the limits of their number and names. Does not
//! own: pending entries, and the commands on groups.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_types::limits::{MAX_REDIS_CONSUMERS, MAX_REDIS_GROUP_NAME_BYTES};

use super::{
    arguments::shown,
    layout::{self, Consumer, GROUPS, Group},
    stream::Stream,
    visit::{Order, visit_parts},
};
use crate::{
    errors::CommandEnd,
    store::{Read, Store, StoreError},
};

/// Finds a group of a stream by the name of the group.
pub(super) fn find(read: &dyn Read, stream: &Stream, name: &[u8]) -> Result<Option<Group>, StoreError> {
    let group = read.part(stream.at, &layout::group(name))?;
    group.map(|group| Group::decode(&group)).transpose()
}

/// Finds a stream by its key, and a group of the stream by name; `None` if the stream or the group does not exist.
pub(super) fn find_with_stream(
    read: &dyn Read,
    key: &[u8],
    name: &[u8],
) -> Result<Option<(Stream, Group)>, CommandEnd> {
    let Some(stream) = Stream::find(read, key)? else { return Ok(None) };
    let group = find(read, &stream, name)?;
    Ok(group.map(|group| (stream, group)))
}

/// Writes the row of a consumer group that a command has changed.
pub(super) fn put<'a>(
    store: &mut dyn Store<'a>,
    stream: &Stream,
    name: &[u8],
    group: &Group,
) -> Result<(), StoreError> {
    store.put_part(stream.at, &layout::group(name), &group.encode())
}

/// Returns all groups of a stream, ordered by name.
pub(super) fn all(read: &dyn Read, stream: &Stream) -> Result<Vec<(Bytes, Group)>, StoreError> {
    let mut groups = Vec::new();
    let range = (Bound::Included(GROUPS.0), Bound::Excluded(GROUPS.1));
    if stream.meta.groups > 0 {
        visit_parts(read, stream.at, range, Order::Ascending, &mut |name, value| {
            groups.push((Bytes::copy_from_slice(&name[1..]), Group::decode(value)?));
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(groups)
}

/// Returns the number that identifies a consumer of a group, given the consumer's name.
pub(super) fn consumer_number(
    read: &dyn Read,
    stream: &Stream,
    group: &Group,
    name: &[u8],
) -> Result<Option<u64>, StoreError> {
    let number = read.part(stream.at, &layout::consumer_name(group.number, name))?;
    number.map(|number| layout::decode_number(&number)).transpose()
}

/// Reads the row of a consumer, given the number that identifies the consumer.
pub(super) fn consumer(read: &dyn Read, stream: &Stream, number: u64) -> Result<Consumer, StoreError> {
    let consumer = read.part(stream.at, &layout::consumer(number))?;
    Consumer::decode(&consumer.ok_or_else(|| layout::damaged("consumer", b""))?)
}

/// Returns all consumers of a group, ordered by name, each with the number that identifies it.
pub(super) fn consumers(read: &dyn Read, stream: &Stream, group: &Group) -> Result<Vec<(u64, Consumer)>, StoreError> {
    let (lower, upper) =
        (layout::consumer_name(group.number, b""), layout::consumer_name(group.number.saturating_add(1), b""));
    let range = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
    let mut numbers = Vec::new();
    visit_parts(read, stream.at, range, Order::Ascending, &mut |_, value| {
        numbers.push(layout::decode_number(value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    numbers.into_iter().map(|number| Ok((number, consumer(read, stream, number)?))).collect()
}

/// Creates a consumer that does not exist yet. Increments the group's count of consumers. The caller must write the
/// group's row.
pub(super) fn create_consumer<'a>(
    store: &mut dyn Store<'a>,
    stream: &mut Stream,
    group: &mut Group,
    name: &[u8],
) -> Result<(u64, Consumer), CommandEnd> {
    check_room(group, name)?;
    layout::increment(&mut group.consumers);
    let number = stream.number();
    let consumer = Consumer { seen: store.now(), pending: 0, name: Bytes::copy_from_slice(name) };
    let by_name = layout::consumer_name(group.number, name);
    store.put_part(stream.at, &by_name, &layout::encode_number(number))?;
    store.put_part(stream.at, &layout::consumer(number), &consumer.encode())?;
    Ok((number, consumer))
}

/// Returns an error if a consumer does not exist and cannot be created. Callers check this before they change anything.
pub(super) fn check_consumer(read: &dyn Read, stream: &Stream, group: &Group, name: &[u8]) -> Result<(), CommandEnd> {
    match consumer_number(read, stream, group, name)? {
        Some(_) => Ok(()),
        None => check_room(group, name),
    }
}

fn check_room(group: &Group, name: &[u8]) -> Result<(), CommandEnd> {
    check_name(name)?;
    if group.consumers >= MAX_REDIS_CONSUMERS {
        let text = format!("ERR the group has {MAX_REDIS_CONSUMERS} consumers already: delete unused ones");
        return Err(CommandEnd::error(text));
    }
    Ok(())
}

/// Returns an error if the name of a group or consumer is too long.
pub(super) fn check_name(name: &[u8]) -> Result<(), CommandEnd> {
    if name.len() <= MAX_REDIS_GROUP_NAME_BYTES {
        return Ok(());
    }
    let max = MAX_REDIS_GROUP_NAME_BYTES;
    Err(CommandEnd::error(format!("ERR the name is longer than {max} bytes: use a shorter one")))
}

/// Error reply for a consumer group that the stream does not have.
pub(super) fn no_group(group: &[u8], key: &[u8]) -> CommandEnd {
    CommandEnd::error(format!("NOGROUP No such consumer group '{}' for key name '{}'", shown(group), shown(key)))
}
