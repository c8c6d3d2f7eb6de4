//! Redis's command flags and access control categories, as `COMMAND` reports them.
//!
//! Owns: flags and categories in one set of bits, their names, and the categories that follow from flags. Other
//! categories (the kind of keys, dangerous commands) have bits of their own. Does not own: access control, which does
//! not exist.

/// A set of flags and categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// The empty set. Container commands have no flags of their own; their subcommands have flags.
    pub const NONE: Self = Self(0);

    // ----- flags

    /// The command may write.
    pub const WRITE: Self = Self(1);
    /// The command only reads.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// The command may add data. Redis rejects such commands while its memory is full.
    pub const DENY_OOM: Self = Self(1 << 2);
    /// The command is for administrators.
    pub const ADMIN: Self = Self(1 << 3);
    /// The command concerns pub/sub channels.
    pub const PUBSUB: Self = Self(1 << 4);
    /// The command must not be called from scripts.
    pub const NO_SCRIPT: Self = Self(1 << 5);
    /// The command may block.
    pub const BLOCKING: Self = Self(1 << 6);
    /// The command is permitted while data is being loaded.
    pub const LOADING: Self = Self(1 << 7);
    /// The command is permitted on a replica that lags behind.
    pub const STALE: Self = Self(1 << 8);
    /// The command is not recorded in the slow log.
    pub const SKIP_SLOWLOG: Self = Self(1 << 9);
    /// The command's cost does not grow with the amount of data.
    pub const FAST: Self = Self(1 << 10);
    /// The command is permitted before `AUTH`.
    pub const NO_AUTH: Self = Self(1 << 11);
    /// The command is permitted while a script runs.
    pub const ALLOW_BUSY: Self = Self(1 << 12);
    /// The positions of the command's keys depend on other arguments.
    pub const MOVABLE_KEYS: Self = Self(1 << 13);

    // ----- categories

    /// Category of commands on keys of any kind.
    pub const KEYSPACE: Self = Self(1 << 16);
    /// Category of commands on strings.
    pub const STRING: Self = Self(1 << 17);
    /// Category of commands on hashes.
    pub const HASH: Self = Self(1 << 18);
    /// Category of commands on streams.
    pub const STREAM: Self = Self(1 << 19);
    /// Category of commands on the connection.
    pub const CONNECTION: Self = Self(1 << 20);
    /// Category of commands of transactions.
    pub const TRANSACTION: Self = Self(1 << 21);
    /// Category of commands that should not be open to every user.
    pub const DANGEROUS: Self = Self(1 << 22);
    /// Category of commands for administrators that do not have the flag [`Self::ADMIN`].
    pub const FOR_ADMINS: Self = Self(1 << 23);
    /// Category of all commands without the flag [`Self::FAST`]. Command tables do not set it, because it follows from
    /// the absence of that flag.
    const SLOW: Self = Self(1 << 24);

    /// Returns the union of this set and `others`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns true if this set contains all of `those`.
    #[must_use]
    pub const fn contains(self, those: Self) -> bool {
        self.0 & those.0 == those.0
    }

    /// Returns the names of the flags in this set, in Redis's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FLAGS.iter().filter(move |(_, flag)| self.contains(*flag)).map(|(name, _)| *name)
    }

    /// Returns the names of the categories of a command with these flags, in Redis's order.
    pub fn categories(self) -> impl Iterator<Item = &'static str> {
        let speed = if self.contains(Self::FAST) { Self::NONE } else { Self::SLOW };
        let set = self.and(speed);
        CATEGORIES.iter().filter(move |(_, any)| set.0 & any.0 != 0).map(|(name, _)| *name)
    }
}

const FLAGS: [(&str, Flags); 14] = [
    ("write", Flags::WRITE),
    ("readonly", Flags::READ_ONLY),
    ("denyoom", Flags::DENY_OOM),
    ("admin", Flags::ADMIN),
    ("pubsub", Flags::PUBSUB),
    ("noscript", Flags::NO_SCRIPT),
    ("blocking", Flags::BLOCKING),
    ("loading", Flags::LOADING),
    ("stale", Flags::STALE),
    ("skip_slowlog", Flags::SKIP_SLOWLOG),
    ("fast", Flags::FAST),
    ("no_auth", Flags::NO_AUTH),
    ("allow_busy", Flags::ALLOW_BUSY),
    ("movablekeys", Flags::MOVABLE_KEYS),
];

/// Name of each category, with a set of flags. A command with at least one of these flags belongs to the category.
const CATEGORIES: [(&str, Flags); 14] = [
    ("@keyspace", Flags::KEYSPACE),
    ("@read", Flags::READ_ONLY),
    ("@write", Flags::WRITE),
    ("@hash", Flags::HASH),
    ("@string", Flags::STRING),
    ("@stream", Flags::STREAM),
    ("@pubsub", Flags::PUBSUB),
    ("@admin", Flags::ADMIN.and(Flags::FOR_ADMINS)),
    ("@fast", Flags::FAST),
    ("@slow", Flags::SLOW),
    ("@blocking", Flags::BLOCKING),
    ("@dangerous", Flags::ADMIN.and(Flags::DANGEROUS)),
    ("@connection", Flags::CONNECTION),
    ("@transaction", Flags::TRANSACTION),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        let flags = crate::find(command.as_bytes()).unwrap().flags;
        (flags.names().collect(), flags.categories().collect())
    }

    #[test]
    fn a_set_is_told_by_the_names_of_flags_and_of_categories() {
        assert_eq!(of("get"), (vec!["readonly", "fast"], vec!["@read", "@string", "@fast"]));
        assert_eq!(of("set"), (vec!["write", "denyoom"], vec!["@write", "@string", "@slow"]));
        assert_eq!(of("xgroup"), (vec![], vec!["@slow"]));
        let role = vec!["noscript", "loading", "stale", "fast"];
        assert_eq!(of("role"), (role, vec!["@admin", "@fast", "@dangerous"]));
    }

    #[test]
    fn no_two_flags_share_a_bit_and_all_must_be_there_to_be_contained() {
        let all = FLAGS.iter().fold(0, |all, (_, flag)| all + flag.0);
        assert_eq!(all.count_ones() as usize, FLAGS.len());
        let both = Flags::WRITE.and(Flags::DENY_OOM);
        assert!(both.contains(Flags::WRITE) && both.contains(Flags::NONE) && !Flags::WRITE.contains(both));
    }
}
