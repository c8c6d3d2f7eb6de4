//! Settings for Redis clients: address, databases, and password.
//!
//! Owns: the types of these values, their parsing and formatting, and the comparison of a password. Does not own: the
//! stores behind the databases, or authentication (`thalweg_resp`).
//!
//! Invariants: parsed databases ascend by number and begin with 0. Neither `show` nor `Debug` contains a password.

use std::{fmt, net::SocketAddr, sync::Arc};

use thalweg_types::limits::MAX_NAME_BYTES;

use super::{Setting, units::optional_address};

/// Address at which Redis clients are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespAddress {
    /// Redis clients are not served.
    Off,
    /// Redis clients are served at this address.
    At(SocketAddr),
}

optional_address!(RespAddress, "off, or an address and port such as 127.0.0.1:7379");

/// Store behind one numbered database of Redis clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespDatabase {
    /// The database is the keyspace of this name.
    Keyspace(String),
    /// The database is the cache of this name.
    Cache(String),
    /// The database holds the native streams of the server.
    Streams,
}

/// Databases of Redis clients with their numbers, in ascending order. Number 0 is always present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RespDatabases(pub Vec<(u32, RespDatabase)>);

/// Exclusive upper bound of the numbers of Redis clients' databases.
const MAX_DATABASES: u32 = 256;

impl RespDatabase {
    /// Returns the default durable database with this number: the keyspace `redis` for 0, `redis-1` for 1, and so on.
    fn durable(number: u32) -> Self {
        Self::Keyspace(if number == 0 { "redis".to_owned() } else { format!("redis-{number}") })
    }
}

impl RespDatabases {
    /// Creates `count` durable databases, each with a keyspace of its own.
    #[must_use]
    pub fn durable(count: u32) -> Self {
        Self((0..count).map(|number| (number, RespDatabase::durable(number))).collect())
    }

    /// Returns the number of databases if the short notation, such as `16,15=cache:sessions`, can describe them. This
    /// notation gives a number of [`durable`](Self::durable) databases, and then lists the databases that differ from
    /// them. Returns `None` if the numbers have gaps, or if fewer than two databases are durable ones.
    fn mostly_durable(&self) -> Option<u32> {
        let has_gaps = self.0.iter().zip(0..).any(|((number, _), expected)| *number != expected);
        let durable = self.0.iter().filter(|(number, database)| *database == RespDatabase::durable(*number)).count();
        (!has_gaps && durable > 1).then_some(self.0.len() as u32)
    }
}

impl Setting for RespDatabases {
    const VALUE_NAME: &'static str = "DATABASES";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let expected = "a number of durable databases such as 16, or distinct numbers below 256 with their databases, \
             including 0, such as 0=keyspace:redis,1=cache:redis,2=streams, or both, such as 16,15=cache:sessions";
        let mut databases = Vec::new();
        let mut defaults = Vec::new();
        for (at, part) in text.split(',').enumerate() {
            if at == 0
                && let Ok(count) = part.trim().parse::<u32>()
            {
                if !(1..=MAX_DATABASES).contains(&count) {
                    return Err(expected);
                }
                defaults = Self::durable(count).0;
                continue;
            }
            let (number, what) = part.trim().split_once('=').ok_or(expected)?;
            let number: u32 = number.parse().map_err(|_| expected)?;
            if what == "streams" {
                databases.push((number, RespDatabase::Streams));
                continue;
            }
            let (kind, name) = what.split_once(':').ok_or(expected)?;
            let name = (1..=MAX_NAME_BYTES).contains(&name.len()).then(|| name.to_owned()).ok_or(expected)?;
            let database = match kind {
                "keyspace" => RespDatabase::Keyspace(name),
                "cache" => RespDatabase::Cache(name),
                _ => return Err(expected),
            };
            databases.push((number, database));
        }
        defaults.retain(|(number, _)| databases.iter().all(|(replaced, _)| replaced != number));
        databases.append(&mut defaults);
        databases.sort_by_key(|(number, _)| *number);
        let is_clear = databases.windows(2).all(|pair| pair[0].0 != pair[1].0);
        let first = databases.first().map(|(number, _)| *number);
        let last = databases.last().map_or(0, |(number, _)| *number);
        if is_clear && first == Some(0) && last < MAX_DATABASES { Ok(Self(databases)) } else { Err(expected) }
    }

    fn show(&self) -> String {
        let part = |(number, database): &(u32, RespDatabase)| match database {
            RespDatabase::Keyspace(name) => format!("{number}=keyspace:{name}"),
            RespDatabase::Cache(name) => format!("{number}=cache:{name}"),
            RespDatabase::Streams => format!("{number}=streams"),
        };
        let Some(count) = self.mostly_durable() else {
            return self.0.iter().map(part).collect::<Vec<_>>().join(",");
        };
        let replaced = self.0.iter().filter(|(number, database)| *database != RespDatabase::durable(*number)).map(part);
        std::iter::once(count.to_string()).chain(replaced).collect::<Vec<_>>().join(",")
    }
}

/// Password that Redis clients must send; empty means that none is required. The password is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(Option<Arc<[u8]>>);

impl Password {
    /// Returns true if Redis clients must send a password.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the password, for uses other than a comparison.
    #[must_use]
    pub fn reveal(&self) -> Option<&str> {
        self.0.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Returns true if `given` is the password. The comparison takes the same time for all guesses of one length.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.as_ref().is_some_and(|password| {
            let differ = password.iter().zip(given).fold(0, |differ, (right, given)| differ | (right ^ given));
            password.len() == given.len() && std::hint::black_box(differ) == 0
        })
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl Setting for Password {
    const VALUE_NAME: &'static str = "PASSWORD";

    fn parse(text: &str) -> Result<Self, &'static str> {
        Ok(Self((!text.is_empty()).then(|| text.as_bytes().into())))
    }

    /// Hides the password, because the text goes into logs and explanations.
    fn show(&self) -> String {
        if self.is_set() { "(set)".to_owned() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_have_numbers_of_their_own_and_zero_is_among_them() {
        let parse = |text: &str| RespDatabases::parse(text);
        let two = parse("1=cache:c, 0=keyspace:k:x").unwrap();
        assert_eq!(two.show(), "0=keyspace:k:x,1=cache:c");
        assert_eq!(parse(&two.show()), Ok(two));
        assert_eq!(parse("0=streams").unwrap().show(), "0=streams");
        assert_eq!(parse("16"), Ok(RespDatabases::durable(16)));
        assert_eq!(parse("1").unwrap().show(), "0=keyspace:redis");
        let replaced = parse("16, 15=cache:c, 0=streams").unwrap();
        assert_eq!((replaced.show().as_str(), replaced.0.len()), ("16,0=streams,15=cache:c", 16));
        assert_eq!(parse(&replaced.show()), Ok(replaced));
        assert_eq!(parse("2,200=cache:c").unwrap().show(), "0=keyspace:redis,1=keyspace:redis-1,200=cache:c");
        for wrong in [
            "",
            "0",
            "257",
            "1=cache:c,2",
            "16,1=cache:a,1=cache:b",
            "0=k",
            "0=keyspace:",
            "1=cache:c",
            "0=cache:a,0=cache:b",
            "0=cache:a,256=cache:b",
            "0=x:y",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_is_shown_to_nobody() {
        let password = Password::parse("hunter2").unwrap();
        assert!(password.is(b"hunter2") && !password.is(b"hunter3") && !password.is(b"hunter22") && !password.is(b""));
        assert!(!format!("{password:?} {}", password.show()).contains("hunter"));
        let none = Password::parse("").unwrap();
        assert!(!none.is_set() && !none.is(b"") && none.show().is_empty());
    }
}
