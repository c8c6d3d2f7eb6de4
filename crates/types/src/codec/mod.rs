//! Encoding and decoding of frames and commands.
//!
//! Owns: the [`Reader`], the trait [`Field`] of all values that can be encoded, and the macros that derive a codec and
//! its documented layout from one declaration ([`structure`], [`choices`], [`variants`]). Does not own the declarations
//! themselves: `thalweg-wire` declares frames, [`command`](crate::command) declares commands.
//!
//! Each type reports the name of its layout in the format documents (`docs/formats/wire.md`,
//! `docs/formats/command.md`), so a test can compare the documents with the code.
//!
//! Decoding borrows: a decoded value points into the received bytes and allocates nothing unless its type owns bytes.
//! Decoding a list walks through it once, so iterating over a decoded list cannot fail. Invariant: encoding a decoded
//! value gives the same bytes again. All integers are little-endian.

mod encoding;
mod field;
mod layouts;
mod list;
mod reader;

pub use encoding::{AtMost, Encoding, LimitOrNone, Micros, Varint, put_varint};
pub(crate) use encoding::{conversion, conversions};
pub use field::{EncodeError, Field, Level, RemainingBytes, ShortBytes, Structure};
pub(crate) use field::{put_bytes, put_checked, put_u16, put_u32, u32_bytes};
pub(crate) use layouts::by_hand;
pub use list::List;
pub use reader::{MAX_VARINT_BYTES, Malformed, Reader};

pub use crate::{choices, structure, variants};
