//! Execution of a Redis command: lookup by name, checks that need no store, and the call of the function that
//! implements the command.
//!
//! Owns: the order of these checks, which is Redis's: first the name, then the number of arguments of the command or of
//! its subcommand. Thalweg's own check of the key length comes last. Does not own: transactions, databases and
//! connections.

use thalweg_types::limits::MAX_KEY_BYTES;

use crate::{
    Reply,
    command::{Command, Run},
    errors::{Answer, CommandEnd, key_too_long, unknown_command, wrong_arity},
    store::{Read, Store, StoreError},
    table::find,
};

/// Returns the command that `args` name if it may be executed; otherwise the error reply. The first argument is the
/// name.
pub fn admit(args: &[&[u8]]) -> Result<&'static Command, Reply> {
    let Some(command) = args.first().and_then(|name| find(name)) else {
        return Err(unknown_command(args));
    };
    if !command.takes(args.len()) {
        return Err(wrong_arity(command.name));
    }
    command.subcommand(args)?;
    // Most commands have no argument longer than a key may be. Then the positions of keys need not be determined.
    let is_too_long = |argument: &[u8]| argument.len() > MAX_KEY_BYTES;
    if args.iter().any(|argument| is_too_long(argument)) && command.keys_of(args).any(is_too_long) {
        return Err(key_too_long());
    }
    Ok(command)
}

/// Executes a command that [`admit`] returned for these arguments. Rejects commands that the client's session must
/// implement.
pub fn run<'a>(store: &mut dyn Store<'a>, command: &Command, args: &[&'a [u8]]) -> Result<Reply, StoreError> {
    reply_of(match command.run {
        Run::Read(read) => read(&*store, args),
        Run::Write(write) => write(store, args),
        Run::Session => Err(not_supported(command)),
    })
}

/// Executes a reading command that [`admit`] returned for these arguments. Rejects other commands.
pub fn run_read(read: &dyn Read, command: &Command, args: &[&[u8]]) -> Result<Reply, StoreError> {
    reply_of(match command.run {
        Run::Read(run) => run(read, args),
        Run::Write(_) | Run::Session => Err(not_supported(command)),
    })
}

/// Checks a command with [`admit`], then executes it with [`run`].
pub fn execute<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Result<Reply, StoreError> {
    match admit(args) {
        Ok(command) => run(store, command, args),
        Err(reply) => Ok(reply),
    }
}

fn not_supported(command: &Command) -> CommandEnd {
    CommandEnd::error(format!("ERR '{}' is not available here", command.name))
}

fn reply_of(answer: Answer) -> Result<Reply, StoreError> {
    match answer {
        Ok(reply) | Err(CommandEnd::Refused(reply)) => Ok(reply),
        Err(CommandEnd::Failed(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    #[test]
    fn keys_have_a_bound_and_other_arguments_another() {
        let mut model = Model::default();
        let longest = vec![b'k'; MAX_KEY_BYTES];
        let too_long = vec![b'k'; MAX_KEY_BYTES + 1];
        assert_eq!(execute(&mut model, &[b"set", &longest, &too_long]).unwrap(), Reply::Ok);
        assert_eq!(execute(&mut model, &[b"set", &too_long, b"v"]).unwrap(), key_too_long());
        assert_eq!(execute(&mut model, &[b"mset", b"a", &too_long, &too_long, b"v"]).unwrap(), key_too_long());
        assert_eq!(execute(&mut model, &[b"mset", b"a", &too_long]).unwrap(), Reply::Ok);
        assert_eq!(execute(&mut model, &[b"del", b"a", b"b", &too_long]).unwrap(), key_too_long());
        assert_eq!(
            execute(&mut model, &[b"xgroup", b"create", &too_long, b"g", b"0", b"mkstream"]).unwrap(),
            key_too_long()
        );
        assert_eq!(execute(&mut model, &[b"xread", b"streams", &too_long, b"0"]).unwrap(), key_too_long());
        assert_eq!(execute(&mut model, &[b"object", b"encoding", &too_long]).unwrap(), key_too_long());
        assert_eq!(execute(&mut model, &[b"strlen", &longest]).unwrap(), Reply::Integer(MAX_KEY_BYTES as i64 + 1));
    }

    #[test]
    fn unknown_names_and_wrong_numbers_are_answered_as_redis_does() {
        let mut model = Model::default();
        let unknown = |args: &[&[u8]]| match unknown_command(args) {
            Reply::Error(text) => text.into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(unknown(&[b"nope"]), "ERR unknown command 'nope', with args beginning with: ");
        assert_eq!(unknown(&[b"no\r\npe", b"a\0b"]), "ERR unknown command 'no  pe', with args beginning with: 'a' ");
        assert_eq!(execute(&mut model, &[]).unwrap(), unknown_command(&[]));
        assert_eq!(execute(&mut model, &[b"GET"]).unwrap(), wrong_arity("get"));
    }
}
