//! Repeating a command's requests while a node is not available.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    failure::{Exit, Failure},
    render,
};

/// Pause between two attempts to reach a node.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// Calls `ask` until it succeeds, as long as it fails because the node is not available, and for at most `patience`.
/// Prints a note before the second attempt, so that the user learns why the command waits.
pub(crate) fn while_unavailable<T>(patience: Duration, ask: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    while_failing(patience, |failure| failure.exit == Exit::Unavailable, ask)
}

/// Calls `ask` repeatedly like [`while_unavailable`], as long as `is_transient` returns true for its failure.
pub(crate) fn while_failing<T>(
    patience: Duration,
    is_transient: impl Fn(&Failure) -> bool,
    mut ask: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (began, mut is_noted) = (Instant::now(), false);
    loop {
        let failure = match ask() {
            Err(failure) if is_transient(&failure) => failure,
            asked => return asked,
        };
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(failure);
        }
        if !std::mem::replace(&mut is_noted, true) {
            render::note(&format!("{}; retrying", failure.message));
        }
        thread::sleep(PAUSE.min(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unavailable_node_is_asked_again() {
        let fails = |exit, times: u32| {
            let mut asked = 0;
            let result = while_unavailable(Duration::from_secs(60), || {
                asked += 1;
                if asked > times { Ok(asked) } else { Err(Failure::new(exit, "test", "failed")) }
            });
            result.map_err(|failure| failure.exit)
        };
        assert_eq!(fails(Exit::Unavailable, 2), Ok(3));
        assert_eq!(fails(Exit::Usage, 1), Err(Exit::Usage));
        let mut asked = 0;
        let result = while_unavailable(Duration::ZERO, || {
            asked += 1;
            Err::<(), _>(Failure::new(Exit::Unavailable, "test", "failed"))
        });
        assert_eq!((result.unwrap_err().exit, asked), (Exit::Unavailable, 1), "no patience, no second attempt");
    }
}
