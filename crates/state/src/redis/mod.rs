//! Redis commands over the state: run when their entry is applied, or over a view if they only read.

pub(crate) mod apply;
pub(crate) mod errors;
pub(crate) mod part_rows;
pub(crate) mod parts;
pub(crate) mod perform;
pub(crate) mod read;
pub(crate) mod store;
pub(crate) mod view;

pub use view::{RedisView, Resolve};
