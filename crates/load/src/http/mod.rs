//! Load over HTTP.
//!
//! Parts: `requests` builds the bytes of requests and checks replies, `protocol` passes both to the load generator.

mod protocol;
mod requests;

pub use self::{
    protocol::{Answer, Counts, Fault, Http, MissingKeyPolicy, Outcome},
    requests::{Api, Judgement, Operation, Requests},
};
