//! Offsets at which reads and tails of streams start.
//!
//! Owns: converting the position in a request to an offset. A position by time may need a read from the disk. Does not
//! own: reading records.

use thalweg_engine::{ReadError, Stream};
use thalweg_types::Offset;
use thalweg_wire::{Position, Tailing};

use super::failure::Failure;

/// Converts the position at which a client wants to begin a tail to an offset, and returns the reply that states this
/// offset. The search for it may read a batch of the log.
pub(crate) fn tailing(stream: &Stream, from: &Position) -> Result<Tailing, Failure> {
    let next = begin(stream, from)?;
    let info = stream.info()?;
    if next > info.next {
        return Err(ReadError::BeyondEnd { requested: next, next: info.next }.into());
    }
    if next < info.start {
        return Err(ReadError::Trimmed { requested: next, start: info.start }.into());
    }
    Ok(Tailing { next, high_watermark: info.next })
}

/// Converts the position in a request to the offset at which reading begins.
pub(crate) fn begin(stream: &Stream, from: &Position) -> Result<Offset, Failure> {
    Ok(match *from {
        Position::Offset { offset } => offset,
        Position::Start {} => stream.info()?.start,
        Position::End {} => stream.info()?.next,
        Position::Time { time } => stream.offset_at(time)?,
        Position::Last { records } => {
            let info = stream.info()?;
            Offset(info.next.0.saturating_sub(records)).max(info.start)
        }
    })
}
