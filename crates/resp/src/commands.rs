//! A list of Redis commands with all arguments in one buffer. Used for the queued commands of a transaction, and for
//! the commands of a client that are committed together in the log.

use thalweg_redis::Command;

/// Number of arguments up to which [`Commands::each`] shows a command without an allocation.
const FEW: usize = 16;

/// Returns true for `MULTI` and `EXEC` in a list of commands. They only mark the beginning and the end of a
/// transaction, and get no reply.
pub(crate) fn is_mark(command: &Command) -> bool {
    matches!(command.name, "multi" | "exec")
}

/// Returns true for a command that deletes all keys of a database.
pub(crate) fn empties(command: &Command) -> bool {
    matches!(command.name, "flushdb" | "flushall")
}

/// List of commands with their arguments, in one buffer. Clearing the list keeps some of its memory for reuse.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
    /// Position in `bytes` at which each argument ends.
    ends: Vec<u32>,
    list: Vec<QueuedCommand>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedCommand {
    command: &'static Command,
    arguments: u32,
}

/// Bytes of memory that an empty list of commands keeps for reuse.
const IDLE_BYTES: usize = 4 * 1024;

impl Commands {
    /// Appends a command with its arguments. The first argument is the command's name.
    pub(crate) fn push<'a>(&mut self, command: &'static Command, arguments: impl ExactSizeIterator<Item = &'a [u8]>) {
        let kept = QueuedCommand { command, arguments: arguments.len() as u32 };
        for argument in arguments {
            self.bytes.extend_from_slice(argument);
            // Callers limit the size of the list to far below 4 GiB.
            self.ends.push(self.bytes.len() as u32);
        }
        self.list.push(kept);
    }

    /// Number of commands in the list.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns true if the list contains no commands.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Approximate size in bytes that the commands of the list have in a log entry.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.list.len())
    }

    /// Removes all commands from the list, and releases memory above [`IDLE_BYTES`].
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.list.clear();
        self.bytes.shrink_to(IDLE_BYTES);
        self.ends.shrink_to(IDLE_BYTES / 16);
        self.list.shrink_to(IDLE_BYTES / 16);
    }

    /// Returns the commands in order, without their arguments.
    pub(crate) fn list(&self) -> impl ExactSizeIterator<Item = &'static Command> + '_ {
        self.list.iter().map(|kept| kept.command)
    }

    /// Calls `show` with each command and its arguments, which borrow from this list.
    pub(crate) fn each<'a>(&'a self, mut show: impl FnMut(&'static Command, &[&'a [u8]])) {
        let (mut many, mut begin, mut ends) = (Vec::new(), 0, self.ends.iter());
        for kept in &self.list {
            let mut next = || {
                let end = *ends.next().unwrap_or(&begin);
                let argument = &self.bytes[begin as usize..end as usize];
                begin = end;
                argument
            };
            let count = kept.arguments as usize;
            if count <= FEW {
                let mut few: [&[u8]; FEW] = [&[]; FEW];
                few[..count].iter_mut().for_each(|place| *place = next());
                show(kept.command, &few[..count]);
            } else {
                many.clear();
                many.extend((0..count).map(|_| next()));
                show(kept.command, &many);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_out_as_they_went_in() {
        let mut commands = Commands::default();
        let many: Vec<String> = (0..40).map(|at| format!("k{at}")).collect();
        let del: Vec<&[u8]> = std::iter::once(&b"del"[..]).chain(many.iter().map(|key| key.as_bytes())).collect();
        let sent: [&[&[u8]]; 4] = [&[b"set", b"k", b""], &del, &[b"get", b"k"], &[b"ping"]];
        for _ in 0..2 {
            for arguments in sent {
                let command = thalweg_redis::find(arguments[0]).unwrap();
                commands.push(command, arguments.iter().copied());
            }
            let mut seen = Vec::new();
            commands.each(|command, arguments| {
                assert_eq!(command.name.as_bytes(), arguments[0]);
                seen.push(arguments.iter().map(|argument| argument.to_vec()).collect::<Vec<_>>());
            });
            assert_eq!(
                seen,
                sent.map(|arguments| arguments.iter().map(|argument| argument.to_vec()).collect::<Vec<_>>())
            );
            assert_eq!((commands.len(), commands.list().len()), (4, 4));
            commands.clear();
            assert!(commands.is_empty() && commands.bytes() == 0);
        }
    }
}
