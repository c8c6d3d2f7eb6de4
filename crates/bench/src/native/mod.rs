//! The load generator of the native protocol.
//!
//! Parts: [`payload`] makes and judges what messages carry, [`check`] whether each subscriber got everything, once, in
//! order.

pub mod check;
pub mod payload;
