//! Keys of any kind: whether they are there, and taking them away. [`expire`] has their deadlines, [`moves`] gives them
//! other names, [`scan`] lists them.

use crate::{
    Reply,
    command::{Answer, Command, Keys, Run},
    store::{Read, Store},
};

const READ: &[&str] = &["readonly", "fast"];

/// The commands of keys.
pub(crate) const COMMANDS: &[Command] = &[
    Command { name: "del", arity: -2, flags: &["write"], keys: Keys::ALL, run: Run::Write(del) },
    Command { name: "unlink", arity: -2, flags: &["write", "fast"], keys: Keys::ALL, run: Run::Write(del) },
    Command { name: "exists", arity: -2, flags: READ, keys: Keys::ALL, run: Run::Read(exists) },
    Command { name: "touch", arity: -2, flags: READ, keys: Keys::ALL, run: Run::Read(exists) },
    Command { name: "type", arity: 2, flags: READ, keys: Keys::ONE, run: Run::Read(kind) },
    Command { name: "dbsize", arity: 1, flags: READ, keys: Keys::NONE, run: Run::Read(dbsize) },
];

fn del<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let mut deleted = 0;
    for key in &args[1..] {
        deleted += i64::from(store.delete(key)?);
    }
    Ok(Reply::Integer(deleted))
}

fn exists(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let mut there = 0;
    for key in &args[1..] {
        there += i64::from(read.look(key)?.is_some());
    }
    Ok(Reply::Integer(there))
}

fn kind(read: &dyn Read, args: &[&[u8]]) -> Answer {
    Ok(Reply::Simple(read.look(args[1])?.map_or("none", |look| look.kind.name())))
}

fn dbsize(read: &dyn Read, _: &[&[u8]]) -> Answer {
    Ok(Reply::Integer(i64::try_from(read.len()?).unwrap_or(i64::MAX)))
}
