//! Errors on their way through the traits of `thalweg-redis`.

use thalweg_redis::StoreError;
use thalweg_types::reply::Reply;

use crate::error::MachineError;

/// What stopped a command, as it was before it went through the trait.
pub(crate) fn failure(error: StoreError) -> MachineError {
    match error {
        StoreError::Failed(error) => match error.downcast::<MachineError>() {
            Ok(error) => *error,
            Err(_) => MachineError::Stopped,
        },
        StoreError::Refused(_) => MachineError::Stopped,
    }
}

/// A failure of the machine on its way through the traits.
pub(crate) fn failed(error: MachineError) -> StoreError {
    StoreError::Failed(Box::new(error))
}

pub(crate) fn refused(text: &'static str) -> StoreError {
    StoreError::Refused(Reply::error(text))
}
