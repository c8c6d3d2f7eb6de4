//! The state machine through its public API, over a map.

mod behaviour;
mod support;
