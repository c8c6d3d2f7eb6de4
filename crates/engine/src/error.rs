//! Error enums of the engine's operations: open, write, read.
//!
//! Owns: `OpenError`, `WriteError` and `ReadError`, each with a stable code and the caller's next step, and the
//! conversion of a rejected command's outcome to an error. Does not own: the errors of consumer groups (`group/error`),
//! watches (`watches/error`) and installs (`install_error`).

mod open;
mod read;
mod write;

pub use open::OpenError;
pub use read::ReadError;
pub(crate) use read::holds;
pub use write::WriteError;
pub(crate) use write::refusal;
