//! A look at the arguments of requests that have arrived behind the current one. The requests stay in the buffer for
//! the parser.
//!
//! Owns: finding the arguments of short requests in received bytes. Does not own: the limits and errors of requests.
//! The parser (`input`) parses the same bytes again when it takes the requests. So this module stops silently at any
//! request that is unusual, incomplete or wrong.

/// Maximum number of arguments of a request that this module reads ahead.
const MAX_ARGUMENTS: usize = 8;
/// Maximum length in bytes of an argument that this module reads ahead.
const MAX_ARGUMENT_BYTES: usize = 1024;
/// Maximum number of digits in a line with the number of arguments, or with the length of an argument.
const MAX_DIGITS: usize = 4;

/// Iterator over the arguments of requests that have arrived behind the current one; see
/// [`Input::ahead`](super::Input::ahead).
#[derive(Clone, Debug)]
pub struct FollowingRequests<'b>(pub(super) &'b [u8]);

impl<'b> Iterator for FollowingRequests<'b> {
    type Item = Vec<&'b [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let count = self.number(b'*').filter(|count| (1..=MAX_ARGUMENTS).contains(count))?;
        (0..count).map(|_| self.argument()).collect()
    }
}

impl<'b> FollowingRequests<'b> {
    fn argument(&mut self) -> Option<&'b [u8]> {
        let len = self.number(b'$').filter(|len| *len <= MAX_ARGUMENT_BYTES)?;
        let (argument, rest) = self.0.split_at_checked(len)?;
        self.0 = rest.strip_prefix(b"\r\n")?;
        Some(argument)
    }

    /// Removes a line that consists of the byte `mark` and a number. Returns the number; `None` if the line is
    /// different.
    fn number(&mut self, mark: u8) -> Option<usize> {
        let line = self.0.strip_prefix(&[mark])?;
        let digits = line.iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = line.split_at(digits);
        self.0 = rest.strip_prefix(b"\r\n")?;
        (1..=MAX_DIGITS)
            .contains(&digits)
            .then(|| number.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Input, Trust},
        *,
    };

    fn seen(bytes: &[u8]) -> Vec<String> {
        FollowingRequests(bytes).map(|arguments| String::from_utf8_lossy(&arguments.join(&b' ')).into_owned()).collect()
    }

    #[test]
    fn requests_are_seen_up_to_the_first_that_is_unusual_or_incomplete() {
        let two = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(seen(two), ["GET k", "PING"]);
        for len in 0..two.len() {
            assert_eq!(seen(&two[..len]).len(), usize::from(len >= 20), "{len} bytes");
        }
        let behind = |bytes: &[u8]| seen(&[&two[..20], bytes].concat());
        for unusual in [
            &b"GET k\r\n"[..],
            b"*0\r\n",
            b"*-1\r\n",
            b"*\r\n",
            b"*99999\r\n",
            b"*9\r\n$1\r\nx\r\n",
            b"*1\r\n$+1\r\nx\r\n",
            b"*1\r\n$1\r\nxyz",
            b"*1\r\n$1025\r\n",
            b"*1\r\n:1\r\n",
        ] {
            assert_eq!(behind(unusual), ["GET k"], "{unusual:?}");
        }
        assert_eq!(seen(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), ["GET "]);
    }

    #[test]
    fn what_is_seen_ahead_is_taken_later() {
        let mut input = Input::new();
        input.feed(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n*2\r\n$3\r\nGE");
        let bytes = input.next(Trust::Known).unwrap().unwrap().wire_bytes();
        let ahead: Vec<_> = input.ahead().collect();
        assert_eq!(ahead, [[&b"GET"[..], b"b"]]);
        input.unread(bytes);
        assert_eq!(input.ahead().count(), 0, "the current request is not taken");
        assert_eq!(input.next(Trust::Known).unwrap().unwrap().get(1), Some(&b"a"[..]));
        assert_eq!(input.next(Trust::Known).unwrap().unwrap().get(1), Some(&b"b"[..]));
        assert!(input.next(Trust::Known).unwrap().is_none());
        assert_eq!(input.ahead().count(), 0, "a request is incomplete");
    }
}
