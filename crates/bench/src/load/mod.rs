//! What every suite that loads a server shares, whichever protocol it speaks.
//!
//! Owns: when load is due ([`schedule`]), the search for the highest rate that meets an objective ([`search`]), starting and
//! reaching a server ([`target`]), and what makes a run's figures void ([`validity`]).
//! Does not own: connections, requests, what is counted; those are the protocols'.

pub mod schedule;
pub mod search;
pub mod target;
pub mod validity;
