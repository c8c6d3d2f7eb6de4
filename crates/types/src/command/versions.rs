//! Versions of the state machine: the version that must be in force before a command can be carried out.
//!
//! Owns: the wrapper around commands that need a later version than the first. Does not own the version in force, nor
//! the treatment of commands that need another version than the one in force: see
//! `crates/state/src/machine/upgrade.rs`.
//!
//! ```text
//! command := 0xfe | version u16 | command      needs this version, 2 or above; the inner command is of another kind
//! ```
//! Invariant: each command has one encoding. A wrapper of version 0 or 1, an empty wrapper, and a wrapper around
//! another one are malformed for every version.

/// First byte of an encoded version wrapper, which identifies it among the kinds of commands.
const WRAPPED: u8 = 0xfe;
/// First byte of the command that raises the version of the state machine in force.
pub(super) const RAISE_VERSION: u8 = 27;

/// Version of the state machine in a new data directory. Commands without a wrapper need this version.
pub const FIRST_VERSION: u16 = 1;

/// Appends a command to `out`, in a wrapper for version `version` of the state machine. `encode` writes the command. A
/// command for the first version gets no wrapper.
pub fn encode_versioned(out: &mut Vec<u8>, version: u16, encode: impl FnOnce(&mut Vec<u8>)) {
    if version > FIRST_VERSION {
        out.push(WRAPPED);
        out.extend_from_slice(&version.to_le_bytes());
    }
    encode(out);
}

/// A command without its version wrapper, and the version that the command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwrapped<'a> {
    /// Version of the state machine that the command needs.
    pub version: u16,
    /// Bytes of the inner command, or all bytes of the command if it has no well-formed wrapper.
    pub bytes: &'a [u8],
}

/// Removes the version wrapper of a command. Bytes with a malformed wrapper are returned unchanged, and decode as an
/// unknown kind of command.
#[inline]
#[must_use]
pub fn unwrap(bytes: &[u8]) -> Unwrapped<'_> {
    match bytes {
        [WRAPPED, low, high, inner @ ..] => unwrap_inner(bytes, u16::from_le_bytes([*low, *high]), inner),
        _ => Unwrapped { version: FIRST_VERSION, bytes },
    }
}

#[cold]
fn unwrap_inner<'a>(bytes: &'a [u8], version: u16, inner: &'a [u8]) -> Unwrapped<'a> {
    if version > FIRST_VERSION && inner.first().is_some_and(|&kind| kind != WRAPPED) {
        return Unwrapped { version, bytes: inner };
    }
    Unwrapped { version: FIRST_VERSION, bytes }
}

/// Returns the version of the state machine that a command needs. The command that raises the version in force needs
/// the new version, because a node that does not know the new version could not continue.
#[inline]
#[must_use]
pub fn version_needed(bytes: &[u8]) -> u16 {
    let Unwrapped { version, bytes } = unwrap(bytes);
    match bytes {
        [RAISE_VERSION, low, high] => version.max(u16::from_le_bytes([*low, *high])),
        _ => version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Commands, encode_digest, encode_raise_version};

    #[test]
    fn layouts_are_pinned() {
        let mut out = Vec::new();
        encode_digest(&mut out, 0x0102);
        assert_eq!(out, b"\x1a\x02\x01\0\0\0\0\0\0");
        assert!(matches!(Command::decode(&out), Ok(Command::Digest { id: 0x0102 })));
        out.clear();
        encode_raise_version(&mut out, 0x0203);
        assert_eq!(out, b"\x1b\x03\x02");
        assert!(matches!(Command::decode(&out), Ok(Command::RaiseVersion { to: 0x0203 })));
        for cut in 0..out.len() {
            assert!(Command::decode(&out[..cut]).is_err());
        }
        let mut wrapped = Vec::new();
        encode_versioned(&mut wrapped, 0x0405, |out| out.extend_from_slice(b"\x0b\x01\0\0\0"));
        assert_eq!(wrapped, b"\xfe\x05\x04\x0b\x01\0\0\0");
        assert_eq!(unwrap(&wrapped), Unwrapped { version: 0x0405, bytes: b"\x0b\x01\0\0\0" });
        let mut first = Vec::new();
        encode_versioned(&mut first, FIRST_VERSION, |out| out.push(11));
        assert_eq!(first, [11]);
    }

    #[test]
    fn a_command_needs_the_version_of_its_wrapper_or_the_first() {
        for (bytes, needed) in [
            (&b""[..], 1),
            (b"\x01", 1),
            (b"\x7f\0", 1),
            (b"\xfe\x02\0\x7f", 2),
            (b"\x1b\x07\0", 7),
            (b"\x1b\0\0", 1),
            (b"\xfe\x09\0\x1b\x07\0", 9),
        ] {
            assert_eq!(version_needed(bytes), needed, "{bytes:?}");
        }
    }

    #[test]
    fn a_malformed_wrapper_is_an_unknown_kind_for_every_version() {
        for bytes in
            [&b"\xfe"[..], b"\xfe\x02", b"\xfe\x02\0", b"\xfe\0\0\x0b\x01\0\0\0", b"\xfe\x01\0\x0b", b"\xfe\x02\0\xfe"]
        {
            assert_eq!(unwrap(bytes), Unwrapped { version: FIRST_VERSION, bytes });
            assert_eq!(version_needed(bytes), FIRST_VERSION);
            assert!(Command::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn commands_of_an_entry_come_without_their_wrappers() {
        let payload = b"\x01\0\0\0\x0b\x04\0\0\0\xfe\x02\0\x0c\x01\0\0\0\x0d";
        let mut commands = Commands::new(payload);
        let mut seen = Vec::new();
        while let Some(command) = commands.next() {
            let (at, bytes) = command.unwrap();
            assert_eq!(payload[at..at + bytes.len()], *bytes);
            seen.push((bytes, commands.version()));
        }
        assert_eq!(seen, [(&b"\x0b"[..], 1), (b"\x0c", 2), (b"\x0d", 1)]);
    }
}
