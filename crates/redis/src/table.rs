//! Table of all commands, and its search by name.
//!
//! Owns: the numbers of commands and subcommands, and two hash tables that find a command by its name in upper or lower
//! case. Does not own: the commands (the module of each family has its own table), or the arguments of a command (see
//! [`command`](crate::command)).

use std::sync::LazyLock;

use crate::{
    channels,
    command::{Command, Subcommand},
    connection, hashes, keys, streams, strings,
};

/// Command tables of all families.
const TABLES: [&[Command]; 6] =
    [channels::COMMANDS, connection::COMMANDS, hashes::COMMANDS, keys::COMMANDS, streams::COMMANDS, strings::COMMANDS];

/// All commands with their numbers. Commands must be compared by number and not by address, because the compiler may
/// store a constant such as [`TABLES`] several times.
static ALL: LazyLock<Box<[Command]>> = LazyLock::new(|| {
    let mut number = 0;
    let mut numbered = |command: &Command| {
        let numbered = Command { number, ..*command };
        // Counts the command and its subcommands.
        number += 1 + command.subcommands.len() as u16;
        numbered
    };
    TABLES.iter().flat_map(|table| table.iter()).map(&mut numbered).collect()
});

/// Names of all commands and subcommands (`get`, `xgroup|create`). The index of a name is its command's
/// [number](Command::number_of).
static FULL_NAMES: LazyLock<Box<[&'static str]>> = LazyLock::new(|| {
    let names = |command: &'static Command| {
        std::iter::once(command.name).chain(command.subcommands.iter().map(|subcommand| subcommand.name))
    };
    all().flat_map(names).collect()
});

/// Iterates over all commands, family by family.
pub fn all() -> impl Iterator<Item = &'static Command> {
    ALL.iter()
}

/// Returns the names of all commands and subcommands (`get`, `xgroup|create`). The index of a name is the
/// [number](Command::number_of) of its command.
#[must_use]
pub fn full_names() -> &'static [&'static str] {
    &FULL_NAMES
}

/// Number of slots in the hash table of commands; a power of two, several times the number of commands.
const PLACES: usize = 1024;

/// Hash table of all commands by name. Each command is in the first free slot at or after the slot of its name's
/// hash.
static BY_NAME: LazyLock<Box<[Option<&'static Command>; PLACES]>> = LazyLock::new(|| {
    let mut places = Box::new([None; PLACES]);
    for command in all() {
        let mut at = place_of(command.name.as_bytes());
        while places[at].is_some() {
            at = (at + 1) % PLACES;
        }
        places[at] = Some(command);
    }
    places
});

/// Returns the first slot to search for a command's name, ignoring case. A few special characters also hash alike,
/// which costs only one more comparison of names.
fn place_of(name: &[u8]) -> usize {
    let hash = name.iter().fold(name.len(), |hash, byte| hash.wrapping_mul(31) + usize::from(byte | 0x20));
    (hash ^ hash >> 10) % PLACES
}

/// Finds a command by the name that `COMMAND INFO` accepts, and its subcommand if the name contains one
/// (`xgroup|create`).
#[must_use]
pub fn find_full(name: &[u8]) -> Option<(&'static Command, Option<&'static Subcommand>)> {
    let Some(bar) = name.iter().position(|byte| *byte == b'|') else { return Some((find(name)?, None)) };
    let command = find(&name[..bar])?;
    let subcommand = command.subcommands.iter().find(|known| name.eq_ignore_ascii_case(known.name.as_bytes()))?;
    Some((command, Some(subcommand)))
}

/// Number of slots in the hash table of commands with short names; a power of two, several times the number of such
/// commands.
const SHORT_PLACES: usize = 1024;

/// Slot of the hash table of commands with short names.
type ShortPlace = Option<(u64, &'static Command)>;

/// Hash table of the commands whose names have at most eight letters and no other characters. The key is the [`packed`]
/// name.
static BY_SHORT_NAME: LazyLock<Box<[ShortPlace; SHORT_PLACES]>> = LazyLock::new(|| {
    let mut places = Box::new([None; SHORT_PLACES]);
    for command in all().filter(|command| command.name.bytes().all(|byte| byte.is_ascii_lowercase())) {
        let Some(name) = packed(command.name.as_bytes()) else { continue };
        let mut at = short_place_of(name);
        while places[at].is_some() {
            at = (at + 1) % SHORT_PLACES;
        }
        places[at] = Some((name, command));
    }
    places
});

/// Packs a name of two to eight bytes into a number, with letters in lower case; `None` for other lengths. Two names of
/// equal length, one of them in lower-case letters only, are equal (ignoring case) exactly if their numbers are equal.
#[inline]
fn packed(name: &[u8]) -> Option<u64> {
    let number = match name {
        [first, .., last] if name.len() <= 3 => {
            u64::from(*first) | u64::from(name[1]) << 8 | u64::from(*last) << (8 * (name.len() - 1))
        }
        [_, _, _, _, ..] if name.len() <= 8 => {
            // Two words of four bytes, which may overlap, cover the name.
            let word = |at: usize| u64::from(u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]));
            word(0) | word(name.len() - 4) << (8 * (name.len() - 4))
        }
        _ => return None,
    };
    Some(number | 0x2020_2020_2020_2020)
}

/// Returns the slot of the hash table at which the search for a packed name begins.
#[inline]
fn short_place_of(name: u64) -> usize {
    // The multiplier of Fibonacci hashing, 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming,
    // volume 3, section 6.4). The upper ten bits are the slot.
    (name.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize % SHORT_PLACES
}

/// Finds a command by its name, in upper or lower case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    if let Some(wanted) = packed(name) {
        let mut at = short_place_of(wanted);
        while let Some((other, command)) = BY_SHORT_NAME[at] {
            if other == wanted && command.name.len() == name.len() {
                return Some(command);
            }
            at = (at + 1) % SHORT_PLACES;
        }
    }
    find_any(name)
}

/// Finds a command by its name of any length and characters.
fn find_any(name: &[u8]) -> Option<&'static Command> {
    // The name is longer than every command's name, so it need not be hashed.
    if name.len() > 24 {
        return None;
    }
    let mut at = place_of(name);
    while let Some(command) = BY_NAME[at] {
        if name.eq_ignore_ascii_case(command.name.as_bytes()) {
            return Some(command);
        }
        at = (at + 1) % PLACES;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_a_command_has_them() {
        let keys = |line: &'static str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found: Vec<_> = find(args[0]).unwrap().keys_of(&args).map(|key| String::from_utf8_lossy(key)).collect();
            found.join(" ")
        };
        assert_eq!(keys("get a"), "a");
        assert_eq!(keys("mset a 1 b 2"), "a b");
        assert_eq!(keys("rename a b"), "a b");
        assert_eq!(keys("xgroup create a g 0"), "a");
        assert_eq!(keys("xgroup help"), "");
        assert_eq!(keys("xgroup nope a"), "");
        assert_eq!(keys("xread count 1 streams a b 1 2"), "a b");
        assert_eq!(keys("xreadgroup group g c streams a >"), "a");
        assert_eq!(keys("xreadgroup group streams c streams a >"), "a");
        assert_eq!(keys("xreadgroup noack count 1 group g streams block 0 streams\0x streams b > >"), "streams b");
        assert_eq!(keys("xreadgroup group streams"), "");
        assert_eq!(keys("flushdb"), "");
    }

    #[test]
    fn the_number_of_a_command_leads_to_its_name() {
        let number = |line: &'static str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            // A copy has another address. The number must not depend on the address.
            let copied: Command = *find(args[0]).unwrap();
            copied.number_of(&args)
        };
        for command in all() {
            assert_eq!(full_names()[number(command.name)], command.name);
            for of in command.subcommands {
                let line: &'static str = Box::leak(of.name.to_uppercase().replace('|', " ").into_boxed_str());
                assert_eq!(full_names()[number(line)], of.name);
            }
        }
        assert_eq!(full_names().len(), all().map(|command| 1 + command.subcommands.len()).sum::<usize>());
        assert_eq!(full_names()[number("client nope")], "client");
    }

    #[test]
    fn every_command_is_found_by_its_name_in_any_case_and_no_two_have_the_same() {
        for command in all() {
            assert!(command.name.len() <= 24 && command.name.bytes().all(|byte| !byte.is_ascii_uppercase()));
            let found = |name: String| find(name.as_bytes()).map(|found| (found.name, found.number));
            assert_eq!(found(command.name.to_owned()), Some((command.name, command.number)));
            assert_eq!(found(command.name.to_uppercase()), Some((command.name, command.number)));
        }
        for (command, subcommand) in all().flat_map(|command| command.subcommands.iter().map(move |of| (command, of))) {
            assert_eq!(subcommand.name, format!("{}|{}", command.name, subcommand.own_name()));
            let found = find_full(subcommand.name.to_uppercase().as_bytes());
            assert_eq!(found.and_then(|(_, of)| of).map(|of| of.name), Some(subcommand.name));
        }
        assert!(find_full(b"get|").is_none() && find_full(b"xgroup|nope").is_none() && find_full(b"|").is_none());
        assert!(find(b"get\0").is_none() && find(b"get ").is_none() && find(b"s\x05t").is_none());
        assert!(find(b"").is_none() && find(b"no such command").is_none() && find(&[b'g'; 1000]).is_none());
    }
}
