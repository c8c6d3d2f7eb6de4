//! A request: its arguments as positions in the receive buffer.
//!
//! Does not own parsing; see [`input`](super::input) and [`inline`](super::inline).

/// Position of an argument, relative to the start of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    begin: u32,
    len: u32,
}

impl Part {
    /// # Panics
    /// Panics if the position is beyond 4 GiB; requests are smaller.
    pub fn new(begin: usize, len: usize) -> Self {
        let fits = "a request is smaller than 4 GiB";
        Self { begin: u32::try_from(begin).expect(fits), len: u32::try_from(len).expect(fits) }
    }

    fn of(self, request: &[u8]) -> &[u8] {
        &request[self.begin as usize..][..self.len as usize]
    }
}

/// A request with its arguments, name first. There is at least one.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    bytes: &'b [u8],
    parts: &'b [Part],
}

/// Maximum number of arguments that [`Request::with`] passes without an allocation.
pub(super) const FEW: usize = 16;

impl<'b> Request<'b> {
    pub(super) fn new(bytes: &'b [u8], parts: &'b [Part]) -> Self {
        Self { bytes, parts }
    }

    /// Number of arguments, including the name.
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

    /// Returns an argument; 0 is the name.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&'b [u8]> {
        self.parts.get(at).map(|part| part.of(self.bytes))
    }

    /// Iterates over all arguments, including the name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'b [u8]> + Clone {
        let bytes = self.bytes;
        self.parts.iter().map(move |part| part.of(bytes))
    }

    /// Number of bytes in which the request arrived.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Passes all arguments as a slice. Allocates only if there are many.
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
