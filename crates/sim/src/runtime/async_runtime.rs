//! The simulation's runtime as an async runtime of openraft.

use std::{future::Future, time::Duration};

use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
use rand::rngs::SmallRng;

use super::{
    block_on,
    join::{JoinHandle, spawn_joined},
    new_rng,
    time::{Elapsed, SimInstant, Sleep, Timeout, sleep, timeout},
    watch::SimWatch,
};

/// The simulation as openraft's async runtime. A task belongs to the process of the task that starts it.
#[derive(Debug)]
pub struct SimRuntime;

impl AsyncRuntime for SimRuntime {
    type JoinError = Elapsed;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = SimInstant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = TokioMpsc;
    type Watch = SimWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn_joined(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        sleep(duration)
    }

    fn sleep_until(deadline: SimInstant) -> Sleep {
        Sleep::until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: SimInstant, future: F) -> Timeout<F> {
        Timeout::until(deadline, future)
    }

    fn is_panic(_: &Elapsed) -> bool {
        // A panic of a task ends the simulation.
        false
    }

    fn thread_rng() -> SmallRng {
        new_rng()
    }

    fn new(_threads: usize) -> Self {
        Self
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        block_on(0, future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openraft_accepts_the_runtime() {
        openraft_rt::testing::Suite::<SimRuntime>::test_all();
    }
}
