//! Parts that the scripts of both protocols share: inputs, and the detection of panics.

use std::{
    ops::Range,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts every later panic of the process. A panic in a connection's task ends only that task, so a test would not see
/// it.
pub fn count_panics() {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            said(panic);
        }));
    });
}

pub fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

/// Returns this number of seeds, or only the seed in `THALWEG_SEED`.
pub fn seeds(count: u64) -> Range<u64> {
    match std::env::var("THALWEG_SEED").map(|seed| seed.parse::<u64>()) {
        Ok(Ok(seed)) => seed..seed + 1,
        _ => 0..count,
    }
}

/// Returns bytes that follow from a seed, by splitmix64.
pub fn input(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
