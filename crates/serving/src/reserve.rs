//! Size of the reserve of a bound: the part that is kept for the client addresses that hold least. Admission uses it,
//! and so does the configuration, whose bounds must be large enough for their reserves.

/// Returns the reserve of a bound of `limit`: `percent` of it, rounded up.
pub(crate) fn reserve_of(limit: u64, percent: u32) -> u64 {
    (u128::from(limit) * u128::from(percent)).div_ceil(100) as u64
}

/// Returns the smallest bound in which an amount of `largest` fits below the reserve. The reserve is `percent` of the
/// bound.
pub(crate) fn least_with_reserve(largest: u64, percent: u32) -> u64 {
    let least = (u128::from(largest) * 100).div_ceil(u128::from(100 - percent.min(99))) as u64;
    // The reserve is rounded up, so one more may be needed.
    least + u64::from(least - reserve_of(least, percent) < largest)
}
