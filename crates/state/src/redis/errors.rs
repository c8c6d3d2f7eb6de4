//! Conversion between the machine's errors and the error type of `thalweg-redis`.

use thalweg_redis::StoreError;
use thalweg_types::reply::Reply;

use crate::error::MachineError;

/// Converts an error that a Redis command returned back to the machine's error.
pub(crate) fn failure(error: StoreError) -> MachineError {
    match error {
        StoreError::Failed(error) => match error.downcast::<MachineError>() {
            Ok(error) => *error,
            Err(_) => MachineError::Stopped,
        },
        StoreError::Refused(_) => MachineError::Stopped,
    }
}

/// Wraps an error of the machine in the error type of the traits of `thalweg-redis`.
pub(crate) fn failed(error: MachineError) -> StoreError {
    StoreError::Failed(Box::new(error))
}

pub(crate) fn refused(text: &'static str) -> StoreError {
    StoreError::Refused(Reply::error(text))
}
