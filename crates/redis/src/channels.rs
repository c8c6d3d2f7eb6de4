//! Mapping of Redis channels to the node's subjects, and of globs to patterns of subjects.
//!
//! Owns: the conversion between a channel's name and its subject, and the subjects that a glob may match. Does not own:
//! subscriptions.
//!
//! ```text
//!   channel                       subject
//!   orders.eu, user:1             the same: it is a valid subject
//!   a..b, *, (empty), $redis.x    $redis.⟨one token⟩, in which . and % are %2E and %25, a single * or > is %2A or %3E,
//!                                 and the empty name is a single %
//! ```
//! Invariants: two channels never share a subject, and every escaped name can be unescaped. A channel name that begins
//! with `$redis.` is escaped too, so no escaped subject is the plain name of another channel. A native client can
//! publish to a subject that begins with `$redis.` but is not a valid escape. For Redis clients, such a subject is a
//! channel with exactly this name, and only pattern subscriptions receive its messages.
//!
//! Limit: a name whose subject would exceed [`MAX_SUBJECT_BYTES`] is rejected.

use std::borrow::Cow;

use thalweg_types::limits::{MAX_REDIS_PATTERN_BYTES, MAX_SUBJECT_BYTES, MAX_SUBJECT_TOKENS};

use crate::{
    command::{Command, Keys, Subcommand},
    flags::Flags,
};

/// Prefix of the subjects of all escaped channel names. The prefix ends with a dot, so it is a token of its own.
const MARK: &[u8] = b"$redis.";

/// Error returned for a channel name whose subject would be too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ERR a channel's name is at most {MAX_SUBJECT_BYTES} bytes long after escaping")]
pub struct ChannelTooLong;

const fn pub_sub(name: &'static str, arity: i16, flags: Flags, keys: Keys) -> Command {
    Command::session(name, arity, flags, keys, &[])
}

const ASKING: Flags = Flags::PUBSUB.and(Flags::LOADING).and(Flags::STALE);
const SUBSCRIBING: Flags = ASKING.and(Flags::NO_SCRIPT);
const PUBLISHING: Flags = ASKING.and(Flags::FAST);

/// Table of the commands on pub/sub channels. The server implements these commands.
pub const COMMANDS: &[Command] = &[
    pub_sub("psubscribe", -2, SUBSCRIBING, Keys::NONE),
    pub_sub("publish", 3, PUBLISHING, Keys::NONE),
    pub_sub("pubsub", -2, Flags::NONE, Keys::NONE).with(&[
        Subcommand::new("pubsub|channels", -2, ASKING),
        Subcommand::help("pubsub|help", Flags::NONE),
        Subcommand::new("pubsub|numpat", 2, ASKING),
        Subcommand::new("pubsub|numsub", -2, ASKING),
        Subcommand::new("pubsub|shardchannels", -2, ASKING),
        Subcommand::new("pubsub|shardnumsub", -2, ASKING),
    ]),
    pub_sub("punsubscribe", -1, SUBSCRIBING, Keys::NONE),
    pub_sub("spublish", 3, PUBLISHING, Keys::ONE),
    pub_sub("ssubscribe", -2, SUBSCRIBING, Keys::ALL),
    pub_sub("subscribe", -2, SUBSCRIBING, Keys::NONE),
    pub_sub("sunsubscribe", -1, SUBSCRIBING, Keys::ALL),
    pub_sub("unsubscribe", -1, SUBSCRIBING, Keys::NONE),
];

/// Returns the subject to which messages of a Redis channel are published.
pub fn subject_of(channel: &[u8]) -> Result<Cow<'_, [u8]>, ChannelTooLong> {
    if is_plain(channel) {
        return Ok(Cow::Borrowed(channel));
    }
    let mut subject = MARK.to_vec();
    match channel {
        b"" => subject.push(b'%'),
        b"*" => subject.extend_from_slice(b"%2A"),
        b">" => subject.extend_from_slice(b"%3E"),
        _ => {
            for byte in channel.iter().take(MAX_SUBJECT_BYTES) {
                match byte {
                    b'.' => subject.extend_from_slice(b"%2E"),
                    b'%' => subject.extend_from_slice(b"%25"),
                    other => subject.push(*other),
                }
            }
        }
    }
    if channel.len() > MAX_SUBJECT_BYTES || subject.len() > MAX_SUBJECT_BYTES {
        return Err(ChannelTooLong);
    }
    Ok(Cow::Owned(subject))
}

/// Returns the Redis channel that a subject of the node represents.
#[must_use]
pub fn channel_of(subject: &[u8]) -> Cow<'_, [u8]> {
    match subject.strip_prefix(MARK).and_then(unescape) {
        // Accepts only the canonical escape; otherwise two subjects would map to one channel.
        Some(channel) if !is_plain(&channel) && subject_of(&channel).is_ok_and(|again| *again == *subject) => {
            Cow::Owned(channel)
        }
        _ => Cow::Borrowed(subject),
    }
}

fn unescape(token: &[u8]) -> Option<Vec<u8>> {
    if token == b"%" {
        return Some(Vec::new());
    }
    let (mut channel, mut rest) = (Vec::with_capacity(token.len()), token);
    loop {
        rest = match rest {
            [] => return Some(channel),
            [b'%', b'2', b'E', rest @ ..] => add(&mut channel, b'.', rest),
            [b'%', b'2', b'5', rest @ ..] => add(&mut channel, b'%', rest),
            [b'%', b'2', b'A', rest @ ..] => add(&mut channel, b'*', rest),
            [b'%', b'3', b'E', rest @ ..] => add(&mut channel, b'>', rest),
            [b'%' | b'.', ..] => return None,
            [other, rest @ ..] => add(&mut channel, *other, rest),
        };
    }
}

fn add<'a>(channel: &mut Vec<u8>, byte: u8, rest: &'a [u8]) -> &'a [u8] {
    channel.push(byte);
    rest
}

/// Returns true if a channel's name can itself be the subject: a valid subject that does not begin with `$redis.`.
fn is_plain(channel: &[u8]) -> bool {
    let tokens = || channel.split(|byte| *byte == b'.');
    channel.len() <= MAX_SUBJECT_BYTES
        && !channel.starts_with(MARK)
        && tokens().all(|token| !matches!(token, b"" | b"*" | b">"))
        && tokens().count() <= MAX_SUBJECT_TOKENS
}

/// Error returned for a glob longer than [`MAX_REDIS_PATTERN_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ERR patterns are at most {MAX_REDIS_PATTERN_BYTES} bytes long")]
pub struct GlobTooLong;

/// Returns patterns of subjects that together match every channel that the glob may match. No subject matches two of
/// the patterns. The patterns can also match other channels, so the receiver of a message must check the message's
/// channel with [`glob::matches`](crate::glob::matches).
pub fn patterns_of(glob: &[u8]) -> Result<Vec<Vec<u8>>, GlobTooLong> {
    if glob.len() > MAX_REDIS_PATTERN_BYTES {
        return Err(GlobTooLong);
    }
    let (literal, is_whole) = literal_prefix(glob);
    if is_whole {
        return Ok(subject_of(&literal).map(|subject| vec![subject.into_owned()]).unwrap_or_default());
    }
    let escaped = [MARK, b"*"].concat();
    let mut narrow = Vec::new();
    // Keeps the complete tokens of the prefix, because further tokens can follow them.
    if let Some(end) = literal.iter().rposition(|byte| *byte == b'.') {
        narrow.extend_from_slice(&literal[..=end]);
    }
    narrow.push(b'>');
    let tokens: Vec<&[u8]> = narrow[..narrow.len() - 1].split(|byte| *byte == b'.').collect();
    let known = &tokens[..tokens.len() - 1];
    let is_possible = known.iter().all(|token| !matches!(*token, b"" | b"*" | b">"))
        && known.len() < MAX_SUBJECT_TOKENS
        && narrow.len() <= MAX_SUBJECT_BYTES;
    Ok(match () {
        // This pattern also matches escaped names.
        () if narrow == b">" => vec![narrow],
        // The prefix begins with the mark. This pattern matches escaped names, and channels whose plain name begins
        // with the mark.
        () if narrow.starts_with(MARK) => vec![[MARK, b">"].concat()],
        () if is_possible => vec![narrow, escaped],
        () => vec![escaped],
    })
}

/// Returns the bytes of a glob before its first wildcard, unescaped, and true if the glob has no wildcard.
fn literal_prefix(glob: &[u8]) -> (Vec<u8>, bool) {
    let (mut literal, mut rest) = (Vec::new(), glob);
    loop {
        rest = match rest {
            [] => return (literal, true),
            [b'*' | b'?' | b'[', ..] => return (literal, false),
            [b'\\', escaped, rest @ ..] => add(&mut literal, *escaped, rest),
            [byte, rest @ ..] => add(&mut literal, *byte, rest),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::matches;

    fn subject(channel: &[u8]) -> Vec<u8> {
        subject_of(channel).unwrap().into_owned()
    }

    /// Returns true if a pattern matches a subject, by the same rules as the broker.
    fn has(pattern: &[u8], subject: &[u8]) -> bool {
        let (mut wanted, mut given) = (pattern.split(|byte| *byte == b'.'), subject.split(|byte| *byte == b'.'));
        loop {
            match (wanted.next(), given.next()) {
                (Some(b">"), Some(_)) | (None, None) => return true,
                (Some(b"*"), Some(_)) => {}
                (Some(wanted), Some(given)) if wanted == given => {}
                _ => return false,
            }
        }
    }

    /// Returns all names of up to `longest` bytes that consist of bytes with a special meaning in subjects, globs or
    /// escapes.
    fn names(longest: usize) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        let mut last = all.clone();
        for _ in 0..longest {
            last = last
                .iter()
                .flat_map(|name| b".*>%a2E\\".iter().map(move |byte| [&name[..], &[*byte]].concat()))
                .collect();
            all.extend(last.iter().cloned());
        }
        all
    }

    #[test]
    fn plain_names_stay_as_they_are() {
        for name in [&b"orders.eu"[..], b"user:1", b"a*b", b"a b\0\xff", b"$redis", b"%2E"] {
            assert_eq!(subject(name), name);
            assert_eq!(&*channel_of(name), name);
        }
        assert_eq!(subject(b""), b"$redis.%");
        assert_eq!(subject(b"*"), b"$redis.%2A");
        assert_eq!(subject(b"a..b"), b"$redis.a%2E%2Eb");
        assert_eq!(subject(b"$redis.%"), b"$redis.$redis%2E%25");
    }

    #[test]
    fn names_come_back_and_no_two_are_one_subject() {
        let mut all = names(4);
        all.extend(names(3).iter().map(|name| [MARK, name].concat()));
        let mut subjects = std::collections::BTreeSet::new();
        let count = all.len();
        for name in all {
            let subject = subject(&name);
            assert!(subject == name || subject.starts_with(MARK));
            assert!(subject.split(|byte| *byte == b'.').all(|token| !matches!(token, b"" | b"*" | b">")));
            assert_eq!(*channel_of(&subject), *name, "{}", subject.escape_ascii());
            subjects.insert(subject);
        }
        assert_eq!(subjects.len(), count);
    }

    #[test]
    fn any_subject_is_one_channel() {
        for token in names(4).iter().filter(|name| !matches!(&name[..], b"" | b"*" | b">") && !name.contains(&b'.')) {
            let subject = [MARK, token].concat();
            let channel = channel_of(&subject);
            let is_escape = *channel != *subject;
            assert!(!is_escape || subject_of(&channel).unwrap() == subject, "{}", subject.escape_ascii());
        }
    }

    #[test]
    fn the_bound_holds_at_the_bound() {
        let plain = vec![b'x'; MAX_SUBJECT_BYTES];
        assert_eq!(subject(&plain), plain);
        assert_eq!(subject_of(&vec![b'x'; MAX_SUBJECT_BYTES + 1]), Err(ChannelTooLong));
        let dotted = |dots: usize| [vec![b'x'; MAX_SUBJECT_BYTES - MARK.len() - 3 * dots], vec![b'.'; dots]].concat();
        assert_eq!(subject(&dotted(2)).len(), MAX_SUBJECT_BYTES);
        assert_eq!(subject_of(&[&dotted(2)[..], b"x"].concat()), Err(ChannelTooLong));
        let tokens = |count: usize| vec![&b"t"[..]; count].join(&b'.');
        assert_eq!(subject(&tokens(MAX_SUBJECT_TOKENS)), tokens(MAX_SUBJECT_TOKENS));
        assert!(subject(&tokens(MAX_SUBJECT_TOKENS + 1)).starts_with(MARK));
    }

    #[test]
    fn globs_are_bounded() {
        assert!(patterns_of(&vec![b'*'; MAX_REDIS_PATTERN_BYTES]).is_ok());
        assert_eq!(patterns_of(&vec![b'*'; MAX_REDIS_PATTERN_BYTES + 1]), Err(GlobTooLong));
    }

    #[test]
    fn globs_ask_for_as_little_as_can_be() {
        let patterns = |glob: &[u8]| {
            let shown =
                patterns_of(glob).unwrap().iter().map(|pattern| pattern.escape_ascii().to_string()).collect::<Vec<_>>();
            shown.join(" ")
        };
        assert_eq!(patterns(b"*"), ">");
        assert_eq!(patterns(b"news*"), ">");
        assert_eq!(patterns(b"news.*"), "news.> $redis.*");
        assert_eq!(patterns(b"news.eu.h?llo"), "news.eu.> $redis.*");
        assert_eq!(patterns(b"news\\.[ab].x"), "news.> $redis.*");
        assert_eq!(patterns(b"news"), "news");
        assert_eq!(patterns(b"a\\*b"), "a*b");
        assert_eq!(patterns(b"..x*"), "$redis.*");
        assert_eq!(patterns(b"$redis.x*"), "$redis.>");
    }

    #[test]
    fn nothing_that_a_glob_matches_is_missed_and_nothing_comes_twice() {
        let globs = [
            &b"*"[..],
            b"a*",
            b"a.*",
            b".*",
            b"*.a",
            b"a.?",
            b"?",
            b"[a.]*",
            b"a\\.*",
            b"$redis.*",
            b"$redis.a*",
            b"*.*.*",
            b"a",
            b"%*",
            b"a.a.*",
            b"\\**",
            b">*",
            b">.*",
            b"$*",
            b"",
        ];
        let mut channels = names(4);
        channels.extend(names(2).iter().map(|name| [MARK, name].concat()));
        for glob in globs {
            let patterns = patterns_of(glob).unwrap();
            for channel in &channels {
                let subject = subject(channel);
                let times = patterns.iter().filter(|pattern| has(pattern, &subject)).count();
                let shown = (glob.escape_ascii().to_string(), channel.escape_ascii().to_string());
                assert!(times <= 1, "{shown:?} matches {times} times");
                assert!(times == 1 || !matches(glob, channel), "{shown:?} is not matched");
            }
        }
    }
}
