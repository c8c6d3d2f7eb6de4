//! The reserve of a bound: the part that is kept for the addresses that hold least. Used by the admission, and by the
//! configuration, whose bounds must have room for it.

/// Returns the reserve of a bound.
pub(crate) fn reserve_of(limit: u64, percent: u32) -> u64 {
    (u128::from(limit) * u128::from(percent)).div_ceil(100) as u64
}

/// Returns the smallest bound in which `largest` fits beside the reserve.
pub(crate) fn least_with_reserve(largest: u64, percent: u32) -> u64 {
    let least = (u128::from(largest) * 100).div_ceil(u128::from(100 - percent.min(99))) as u64;
    // The reserve is rounded up.
    least + u64::from(least - reserve_of(least, percent) < largest)
}
