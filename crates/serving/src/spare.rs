//! Spare receive buffers of threads.
//!
//! Owns: at most one buffer per thread. A connection whose socket has no bytes gives its buffer to the thread, so that
//! idle connections hold no buffer. The next connection on that thread that reads takes the buffer. Without this reuse,
//! every request would allocate and free 64 KiB.
//!
//! Bound: connections free a buffer that has grown large instead of passing it on (`Input::release`,
//! `Decoder::release`).

use std::cell::Cell;

use bytes::BytesMut;

thread_local! {
    static SPARE: Cell<Option<BytesMut>> = const { Cell::new(None) };
}

/// Takes the thread's spare receive buffer, which is empty. If the thread has none, returns a new buffer without
/// allocated memory.
pub fn take() -> BytesMut {
    SPARE.with(Cell::take).unwrap_or_default()
}

/// Keeps the receive buffer of an idle connection as the thread's spare buffer.
pub fn keep(buffer: Option<BytesMut>) {
    if let Some(buffer) = buffer.filter(|buffer| buffer.capacity() > 0) {
        SPARE.with(|spare| spare.set(Some(buffer)));
    }
}

#[cfg(test)]
mod tests {
    use thalweg_redis::wire::{Input, READ_BYTES, Trust};
    use thalweg_wire::Decoder;

    use super::*;

    #[test]
    fn connections_of_a_thread_read_into_the_same_memory() {
        let (mut first, mut second, mut native) = (Input::new(), Input::new(), Decoder::new());
        assert_eq!(take().capacity(), 0);
        first.buffer_or(take).extend_from_slice(b"PING\r\n");
        let memory = first.buffer_or(take).as_ptr();
        assert_eq!(first.next(Trust::Known).unwrap().unwrap().name(), b"PING");
        keep(first.release());
        let again = second.buffer_or(take);
        assert!(again.is_empty() && again.capacity() >= READ_BYTES);
        assert_eq!(again.as_ptr(), memory);
        keep(second.release());
        assert_eq!(native.buffer_or(take).as_ptr(), memory);
        // The buffer belongs to one thread; another thread has none.
        std::thread::spawn(|| assert_eq!(take().capacity(), 0)).join().unwrap();
    }

    #[test]
    fn half_a_request_keeps_its_buffer_and_a_large_one_is_not_spare() {
        let mut input = Input::new();
        input.buffer_or(take).extend_from_slice(b"*2\r\n$3\r\nGET\r\n$500000\r\n");
        for _ in 0..50 {
            assert!(input.next(Trust::Known).unwrap().is_none());
            assert!(input.release().is_none());
            input.buffer_or(take).extend_from_slice(&[b'x'; 10_000]);
        }
        input.buffer_or(take).extend_from_slice(b"\r\n");
        assert_eq!(input.next(Trust::Known).unwrap().unwrap().len(), 2);
        assert!(input.release().is_none());
        assert_eq!(input.pending_bytes(), 0);
        // A decoder with half a frame does not release its buffer either.
        let mut native = Decoder::new();
        native.buffer_or(take).extend_from_slice(&[0; 3]);
        assert!(native.release().is_none());
        assert_eq!(native.pending_bytes(), 3);
    }
}
