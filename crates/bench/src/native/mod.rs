//! The load generator of the native protocol.
//!
//! It shares the machine's cores with the server, so it does as little as it can for each message: payloads are one copy, checks
//! one comparison, messages of a batch are counted as a run, and all that came with one read has one time of arrival.
//!
//! Parts: [`crew`] are its threads, [`mod@line`] a channel of the protocol, [`alarm`] a clock and a fine timer, [`payload`] makes and
//! judges what messages carry, [`check`] whether each subscriber got everything, once, in order, [`finish`] when a run is
//! over, [`requests`] drives what is asked and answered, [`server`] which one it is and [`place`] over what it is reached, [`bare`] what the machine carries without it.

pub mod alarm;
pub mod bare;
pub mod check;
pub mod crew;
pub mod finish;
pub mod line;
pub mod options;
pub mod payload;
pub mod place;
pub mod relay;
pub mod requests;
pub mod server;
