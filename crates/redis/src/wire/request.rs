//! A request: its arguments as positions in the receive buffer.
//!
//! Does not own parsing; see [`input`](super::input) and [`inline`](super::inline).

/// Position and length of an argument in bytes, relative to the start of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    begin: u32,
    len: u32,
}

impl Part {
    /// Creates the position of an argument that begins at byte `begin` of its request and has `len` bytes.
    ///
    /// # Panics
    /// Panics if the position is beyond 4 GiB. Requests are always smaller.
    pub(super) fn new(begin: usize, len: usize) -> Self {
        let fits = "a request is smaller than 4 GiB";
        Self { begin: u32::try_from(begin).expect(fits), len: u32::try_from(len).expect(fits) }
    }

    fn of(self, request: &[u8]) -> &[u8] {
        &request[self.begin as usize..][..self.len as usize]
    }
}

/// A request with its arguments. The first argument is the name of the command.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    bytes: &'b [u8],
    parts: &'b [Part],
    bytes_behind: usize,
}

/// Maximum number of arguments for which [`Request::with`] needs no allocation.
pub(super) const FEW: usize = 16;

impl<'b> Request<'b> {
    pub(super) fn new(bytes: &'b [u8], parts: &'b [Part], bytes_behind: usize) -> Self {
        Self { bytes, parts, bytes_behind }
    }

    /// Number of arguments of the request, including the name of the command.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Name of the command: the first argument.
    #[must_use]
    pub fn name(&self) -> &'b [u8] {
        self.parts[0].of(self.bytes)
    }

    /// Returns the argument at an index; index 0 is the name of the command.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&'b [u8]> {
        self.parts.get(at).map(|part| part.of(self.bytes))
    }

    /// Iterates over all arguments, including the name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'b [u8]> + Clone {
        let bytes = self.bytes;
        self.parts.iter().map(move |part| part.of(bytes))
    }

    /// Number of bytes that the request had on the wire.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number of bytes after this request that the parser had received when it parsed the request.
    #[must_use]
    pub fn bytes_behind(&self) -> usize {
        self.bytes_behind
    }

    /// Calls `act` with a slice of all arguments. Allocates only if there are more than 16.
    pub fn with<R>(&self, act: impl FnOnce(&[&'b [u8]]) -> R) -> R {
        if self.len() <= FEW {
            let mut few: [&[u8]; FEW] = [&[]; FEW];
            for (place, argument) in few.iter_mut().zip(self.iter()) {
                *place = argument;
            }
            act(&few[..self.len()])
        } else {
            act(&self.iter().collect::<Vec<_>>())
        }
    }
}
