//! Runs calls into storage libraries, and converts their panics to errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `call`, a call into a library that may panic on damaged files. If the library panics, returns the text of the
/// panic as the error.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or("it panicked", |text| *text).to_owned(),
    })
}
